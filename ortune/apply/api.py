"""The Python interface to a record: options and sessions as the search found them best."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.apply.fit import check_model
from ortune.apply.messages import describe_mismatch, load_of, missing_variables
from ortune.errors import RecordError, UsageError
from ortune.host import HostClass, read_host
from ortune.knobs.config import DEFAULT, Config
from ortune.record.schema import Record, pick_point
from ortune.record.select import Sourced, choose, read_sourced
from ortune.worker.session import make_run_options, make_session, make_session_options, set_global_thread_pool

if TYPE_CHECKING:
    import onnxruntime


def session_options(
    config: str | Path | Record,
    *,
    model: str | Path | None = None,
    pick: int | None = None,
    session: int = 0,
    any_host: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
) -> onnxruntime.SessionOptions:
    """Return SessionOptions with the settings of a record.

    Where the config has a global pool, it is made, once in a process. Where the record is for another class of host,
    they are ONNX Runtime's default, with a warning.

    Args:
        config: A record, or the path of one or of a bundle.
        model: Path of the ONNX file, which a bundle for several models needs.
        pick: Which point of its front, counted from 1; None for what it recommends.
        session: Which of several sessions side by side they are for, counted from 0.
        any_host: Whether a record for another class of host is used.
        clients: Concurrent callers that there will be; this and the next two pick among the records of a bundle.
        rate: Requests that will arrive a second.
        sessions: Sessions of the model side by side.

    Raises:
        RecordError: The file holds no record for this model, or those of several, or has no such point.
        UsageError: This onnxruntime does not know one of the settings.
    """
    chosen = _choose(config, pick, model, any_host=any_host, load=(clients, rate, sessions))
    set_global_thread_pool(chosen)
    return make_session_options(chosen.of_session(session))


def run_options(
    config: str | Path | Record,
    *,
    model: str | Path | None = None,
    pick: int | None = None,
    any_host: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
) -> onnxruntime.RunOptions | None:
    """Return RunOptions with the settings of a record, to be passed to `run`, or None where it has none.

    Args:
        config: A record, or the path of one or of a bundle.
        model: Path of the ONNX file, which a bundle for several models needs.
        pick: Which point of its front, counted from 1; None for what it recommends.
        any_host: Whether a record for another class of host is used.
        clients: Concurrent callers that there will be; this and the next two pick among the records of a bundle.
        rate: Requests that will arrive a second.
        sessions: Sessions of the model side by side.

    Raises:
        RecordError: The file holds no record for this model, or those of several, or has no such point.
        UsageError: This onnxruntime does not know one of the settings.
    """
    return make_run_options(_choose(config, pick, model, any_host=any_host, load=(clients, rate, sessions)))


def create_session(
    model: str | Path,
    config: str | Path | Record,
    *,
    pick: int | None = None,
    any_model: bool = False,
    any_host: bool = False,
    session: int = 0,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
) -> onnxruntime.InferenceSession:
    """Create a session for a model with the settings of a record.

    Where the record is for another class of host, the session has ONNX Runtime's default, with a warning.

    Args:
        model: Path of the ONNX file.
        config: A record, or the path of one or of a bundle.
        pick: Which point of its front, counted from 1; None for what it recommends.
        any_model: Whether to skip the check that the record is for this model, which reads all of its files.
        any_host: Whether a record for another class of host is used.
        session: Which of several sessions side by side it is, counted from 0.
        clients: Concurrent callers that there will be; this and the next two pick among the records of a bundle.
        rate: Requests that will arrive a second.
        sessions: Sessions of the model side by side.

    Raises:
        RecordError: The file holds no record for this model, or has no such point.
        UsageError: This onnxruntime does not know one of the settings.
        Exception: Whatever onnxruntime raises for a model that it cannot load.
    """
    load = (clients, rate, sessions)
    chosen = _choose(config, pick, None if any_model else model, any_host=any_host, load=load)
    if missing := missing_variables(chosen.environment):
        warnings.warn(missing, stacklevel=2)
    if chosen.io_binding:
        warnings.warn("this config gains by IO binding: call run_with_iobinding instead of run", stacklevel=2)
    if chosen.run_options or chosen.run_config:
        warnings.warn("this config has run options: pass ortune.run_options(config) to run", stacklevel=2)
    set_global_thread_pool(chosen)
    return make_session(os.fspath(model), chosen.of_session(session))


def _choose(
    config: str | Path | Record,
    pick: int | None,
    model: str | Path | None,
    *,
    any_host: bool,
    load: tuple[int | None, str | float | None, int | None],
) -> Config:
    """Return the config for this model, host and load, or the default where there is none for the host."""
    if isinstance(config, Record):
        records: tuple[Sourced, ...] = (Sourced(record=config, source="the record"),)
    else:
        records = read_sourced([config])
    if model is not None:
        records = for_model(records, model)
    elif len({each.record.model.digest for each in records}) > 1:
        raise RecordError(f"{config} is a bundle for several models.", "Say for which: model=PATH, without any_model.")
    choice = choose(records, HostClass.of(read_host(memory=False)), load_of(*load), any_host=any_host)
    if not choice.fits:
        warnings.warn(describe_mismatch(choice), stacklevel=3)
        return DEFAULT
    return (choice.record if pick is None else pick_point(choice.record, pick)).config


def for_model(records: tuple[Sourced, ...], model: str | Path) -> tuple[Sourced, ...]:
    """Return those of some records that are for a model.

    Raises:
        RecordError: None is.
        ModelError: The model cannot be read.
    """
    found = []
    fault: RecordError | None = None
    fits: dict[str, bool] = {}
    for each in records:
        digest = each.record.model.digest
        if digest not in fits:
            try:
                check_model(each.record, model)
                fits[digest] = True
            except RecordError as error:
                fault = fault or error
                fits[digest] = False
        if fits[digest]:
            found.append(each)
    if not found:
        raise fault or UsageError("There is no record.")
    return tuple(found)
