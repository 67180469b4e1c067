"""The Python interface to a record: options and sessions as the search found them best."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.apply.fit import check_model
from ortune.measure.session import (
    make_run_options,
    make_session,
    make_session_options,
    set_global_thread_pool,
)
from ortune.record import Record, pick_point, read_record

if TYPE_CHECKING:
    import onnxruntime


def session_options(
    config: str | Path | Record, *, pick: int | None = None, session: int = 0
) -> onnxruntime.SessionOptions:
    """Return SessionOptions with the settings of a record.

    Where the config has a global pool, it is made, once in a process.

    Args:
        config: A record, or the path of one.
        pick: Which point of its front, counted from 1; None for what it recommends.
        session: Which of several sessions side by side they are for, counted from 0.

    Raises:
        RecordError: The file is not a record, or has no such point.
        UsageError: This onnxruntime does not know one of the settings.
    """
    chosen = _load(config, pick).config
    set_global_thread_pool(chosen)
    return make_session_options(chosen.of_session(session))


def run_options(config: str | Path | Record, *, pick: int | None = None) -> onnxruntime.RunOptions | None:
    """Return RunOptions with the settings of a record, to be passed to `run`, or None where it has none.

    Args:
        config: A record, or the path of one.
        pick: Which point of its front, counted from 1; None for what it recommends.

    Raises:
        RecordError: The file is not a record, or has no such point.
        UsageError: This onnxruntime does not know one of the settings.
    """
    return make_run_options(_load(config, pick).config)


def create_session(
    model: str | Path,
    config: str | Path | Record,
    *,
    pick: int | None = None,
    any_model: bool = False,
    session: int = 0,
) -> onnxruntime.InferenceSession:
    """Create a session for a model with the settings of a record.

    Args:
        model: Path of the ONNX file.
        config: A record, or the path of one.
        pick: Which point of its front, counted from 1; None for what it recommends.
        any_model: Whether to skip the check that the record is for this model, which reads all of its files.
        session: Which of several sessions side by side it is, counted from 0.

    Raises:
        RecordError: The file is not a record, has no such point, or is for another model.
        UsageError: This onnxruntime does not know one of the settings.
        Exception: Whatever onnxruntime raises for a model that it cannot load.
    """
    record = _load(config, pick)
    if not any_model:
        check_model(record, model)
    _warn_of_environment(record)
    if record.config.io_binding:
        warnings.warn("this config gains by IO binding: call run_with_iobinding instead of run", stacklevel=2)
    if record.config.run_options or record.config.run_config:
        warnings.warn("this config has run options: pass ortune.run_options(config) to run", stacklevel=2)
    set_global_thread_pool(record.config)
    return make_session(os.fspath(model), record.config.of_session(session))


def _load(config: str | Path | Record, pick: int | None) -> Record:
    record = config if isinstance(config, Record) else read_record(config)
    return record if pick is None else pick_point(record, pick)


def _warn_of_environment(record: Record) -> None:
    """Warn of variables that should have been set before this process started."""
    missing: dict[str, Any] = {
        name: value for name, value in record.config.environment.items() if os.environ.get(name) != value
    }
    if missing:
        settings = " ".join(f"{name}={value}" for name, value in missing.items())
        warnings.warn(
            f"this config needs environment variables that only work when a process starts with them: {settings}",
            stacklevel=3,
        )
