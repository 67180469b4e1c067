"""Saves a model as ONNX Runtime optimizes it, in a child process: `python -m ortune.export.save ANSWER`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.knobs.config import Config
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure
from ortune.worker.graphs import write_to
from ortune.worker.runtime import read_runtime
from ortune.worker.session import make_session

SAVE_DEADLINE_S = 900.0


class SaveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model to optimize and save.

    Attributes:
        model_path: The model.
        config: The settings to optimize it with.
        output: The file to write. Its suffix is the format: `.onnx` or `.ort`.
    """

    model_path: str
    config: Config
    output: str


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a saved model, and the version of onnxruntime that optimized it."""

    size_bytes: int
    onnxruntime: str


def save_optimized(request: SaveRequest) -> SavedModel | Failure:
    """Save an optimized model, in a child process."""
    return ask_child("ortune.export.save", request, SavedModel, deadline_s=SAVE_DEADLINE_S)


# The rest runs in the child process.


def save(request: SaveRequest, enter: Enter) -> SavedModel:
    """Create a session that writes its optimized graph.

    Raises:
        Exception: Any error of onnxruntime.
    """
    enter("load")
    config = write_to(request.config, Path(request.output))
    if Path(request.output).suffix == ".ort":
        config = config.with_setting("session_config", "session.save_model_format", "ORT")
    make_session(request.model_path, config)
    return SavedModel(size_bytes=Path(request.output).stat().st_size, onnxruntime=read_runtime().onnxruntime)


if __name__ == "__main__":
    answer_parent(SaveRequest, save)
