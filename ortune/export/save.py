"""Saves a model as ONNX Runtime optimises it, in a child process: `python -m ortune.export.save ANSWER`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.knobs.config import Config
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure

DEADLINE_S = 900.0


class SaveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to save: the model, the settings to optimise it with, and the file, whose suffix says the format."""

    model_path: str
    config: Config
    output: str


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: its size, and the onnxruntime that wrote it."""

    size_bytes: int
    onnxruntime: str


def save_optimized(request: SaveRequest) -> Saved | Failure:
    """Let a child create a session that writes its optimised graph."""
    return ask_child(
        "ortune.export.save", request, Saved, environment=request.config.environment, deadline_s=DEADLINE_S
    )


# The rest runs in the child.


def save(request: SaveRequest, enter: Enter) -> Saved:
    """Create the session.

    Raises:
        Exception: Whatever onnxruntime raises.
    """
    import onnxruntime

    from ortune.worker.session import make_session

    enter("load")
    config = request.config.with_setting("session_options", "optimized_model_filepath", request.output)
    # Without it, ONNX Runtime warns that a graph of the highest level fits this CPU alone, which ortune says itself.
    config = config.with_setting("session_options", "log_severity_level", 3)
    if Path(request.output).suffix == ".ort":
        config = config.with_setting("session_config", "session.save_model_format", "ORT")
    make_session(request.model_path, config)
    return Saved(size_bytes=Path(request.output).stat().st_size, onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    answer_parent(SaveRequest, save)
