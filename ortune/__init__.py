"""ortune finds the ONNX Runtime settings that make a model fastest on this host, and proves it.

The names below are the public interface; importing them imports neither onnxruntime, optuna, onnx nor numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ortune.apply.api import create_session, session_options
    from ortune.errors import (
        HostError,
        InputsError,
        MeasureError,
        ModelError,
        OrtuneError,
        RecordError,
        UsageError,
    )
    from ortune.record import Record, read_record

__version__ = "0.1.0"

__all__ = [
    "HostError",
    "InputsError",
    "MeasureError",
    "ModelError",
    "OrtuneError",
    "Record",
    "RecordError",
    "UsageError",
    "__version__",
    "create_session",
    "read_record",
    "search",
    "session_options",
]

_HOMES = {
    "create_session": "ortune.apply.api",
    "session_options": "ortune.apply.api",
    "Record": "ortune.record",
    "read_record": "ortune.record",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'ortune' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "ortune.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def search(
    model: str | Path,
    *,
    output: str | Path | None = None,
    budget_s: float = 60.0,
    n_trials: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: str | Path | None = None,
) -> Record:
    """Find the best CPU settings for a model on this host, and prove them.

    Args:
        model: Path of the ONNX file.
        output: Where to write the record, or None.
        budget_s: Wall time to spend, in seconds.
        n_trials: Candidates to screen at most, or None.
        seed: Seed of everything that is drawn.
        dims: Sizes by symbolic dimension name.
        shapes: Whole shapes by input name.
        inputs: An .npz file with an array for each input, or a folder with `input_*.pb` files.

    Returns:
        The record. Its config is ONNX Runtime's default unless `evidence.verdict` is "faster".

    Raises:
        OrtuneError: Something that was given does not make sense, or the model does not run.
    """
    from ortune.tune import SearchRequest, prepare
    from ortune.tune import search as run
    from ortune.workload import InputOptions

    request = SearchRequest(
        model=str(model),
        output=None if output is None else Path(output),
        budget_s=budget_s,
        n_trials=n_trials,
        seed=seed,
        inputs=InputOptions(
            dims=dims or {}, shapes=shapes or {}, data=None if inputs is None else str(inputs), seed=seed
        ),
    )
    return run(prepare(request)).record
