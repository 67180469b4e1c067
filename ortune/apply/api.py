"""`ortune.create_session`, `ortune.session_options` and `ortune.run_options`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.apply.messages import describe_mismatch, describe_missing_allocator, missing_variables
from ortune.knobs.config import DEFAULT, Config
from ortune.knobs.environment import variables_of
from ortune.options import make_request
from ortune.planning.read import read_configs
from ortune.program_options import LoadOptions
from ortune.record.schema import Record
from ortune.record.select import Wanted, minor_version, select_record
from ortune.sanitize import printable
from ortune.worker.installed import find_installed_version, require_runtime
from ortune.worker.session import (
    has_global_thread_pool,
    make_run_options,
    make_session,
    make_session_options,
    set_global_thread_pool,
)

if TYPE_CHECKING:
    from ortune.planning.colocation.result import HostPlan
    from ortune.planning.result import Plan
    from ortune.worker.session import InferenceSession, RunOptions, SessionOptions
    from ortune.workload import Load


def create_session(
    model: str | Path,
    config: str | Path | Record | Plan | HostPlan,
    *,
    pick: int | str | None = None,
    any_model: bool = False,
    any_host: bool = False,
    trust: bool = False,
    cache_dir: str | Path | None = None,
    session: int = 0,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
    processes: int | None = None,
) -> InferenceSession:
    """Create a session for a model with the settings of a record.

    If the record is for another class of host, the session has ONNX Runtime's default settings, with a warning. A
    warning also names what must be done outside the session: environment variables, IO binding and run options. Numbers
    of threads that this host cannot run are reduced, also with a warning.

    If the config has a global thread pool, the pool is created with the first session. A process can have only one.
    onnxruntime then requires that all sessions of the process use it. Those that this function creates do; for others,
    set `use_per_session_threads = False`.

    Args:
        model: Path of the ONNX file.
        config: A record or plan, or the path of a record, bundle or plan.
        pick: Point of the record's Pareto front, deployment of the plan, or row of a plan for several models, counted
            from 1; "throughput", "memory" or "cpu" for the deployment that is the best in it; None for the recommended
            one.
        any_model: Whether to skip the check that the record is for this model, which reads all files of the model.
        any_host: Whether to use a record for another class of host.
        trust: Whether the record may name files, libraries and other environment variables.
        cache_dir: Folder in which execution providers keep compiled models; None for no cache.
        session: Index of the session, counted from 0, if the config is for several sessions in one process.
        clients: Number of concurrent callers that the session will have. With the next three, selects among the
            records of a bundle.
        rate: Requests that will arrive per second, as a number or as `50/s`.
        sessions: Number of sessions of the model in one process.
        processes: Number of processes that run the model at the same time.

    Returns:
        The session, an `onnxruntime.InferenceSession`.

    Raises:
        HostError: onnxruntime is not installed.
        RecordError: The file is not a record, has no record for this model, or has no such point.
        UsageError: The installed onnxruntime does not support one of the settings, or the process has another global
            thread pool.
        Exception: Whatever onnxruntime raises for a model that it cannot load.

    Example:
        >>> import ortune
        >>> session = ortune.create_session("model.onnx", "tuned.json")
        >>> session.get_providers()
        ['CPUExecutionProvider']
    """
    load = _load_of(clients, rate, sessions, processes)
    chosen = _choose(config, pick, None if any_model else model, any_host=any_host, trust=trust, load=load)
    for missing in (
        missing_variables(variables_of(chosen, os.environ)),
        describe_missing_allocator(chosen.allocator),
    ):
        if missing:
            warnings.warn(missing, stacklevel=2)
    if chosen.io_binding:
        warnings.warn("this config needs IO binding: call run_with_iobinding instead of run", stacklevel=2)
    if chosen.batch > 1:
        warnings.warn(f"this config is for calls with {chosen.batch} items each", stacklevel=2)
    if chosen.run_options or chosen.run_config:
        warnings.warn("this config has run options: pass ortune.run_options(config) to run", stacklevel=2)
    if chosen.without_captures() != chosen:
        warnings.warn(
            "this config captures calls: outputs are wrong unless inputs stay in the same buffers on the device",
            stacklevel=2,
        )
    if cache_dir is not None:
        # Only here: it reads the catalog of execution providers.
        from ortune.knobs.caches import with_caches

        chosen = with_caches(chosen, cache_dir)
    set_global_thread_pool(chosen)
    if has_global_thread_pool() and not chosen.global_thread_pool:
        warnings.warn("this session uses the global thread pool of the process, as onnxruntime requires", stacklevel=2)
    return make_session(os.fspath(model), chosen.of_session(session))


def session_options(
    config: str | Path | Record | Plan | HostPlan,
    *,
    model: str | Path | None = None,
    pick: int | str | None = None,
    session: int = 0,
    any_host: bool = False,
    trust: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
    processes: int | None = None,
) -> SessionOptions:
    """Return SessionOptions with the settings of a record, for a session that you create yourself.

    The process is not changed. If the config has a global thread pool (`record.config.global_thread_pool`), create the
    pool yourself, once, before the first session: call `onnxruntime.set_global_thread_pool_sizes` with its two sizes.
    `ortune.create_session` does that for you.

    SessionOptions do not include execution providers, run options, IO binding and environment variables. If the config
    has providers from plugin packages, the options include all providers, as ONNX Runtime requires: pass none to
    InferenceSession. If the record is for another class of host, the options are ONNX Runtime's defaults, with a
    warning. Captured graphs are left out, also with a warning.

    Args:
        config: A record or plan, or the path of a record, bundle or plan.
        model: Path of the ONNX file, required for a bundle or a plan for several models.
        pick: Point of the record's Pareto front, deployment of the plan, or row of a plan for several models, counted
            from 1; "throughput", "memory" or "cpu" for the deployment that is the best in it; None for the recommended
            one.
        session: Index of the session, counted from 0, if the config is for several sessions in one process.
        any_host: Whether to use a record for another class of host.
        trust: Whether the record may name files, libraries and other environment variables.
        clients: Number of concurrent callers that the session will have. With the next three, selects among the
            records of a bundle.
        rate: Requests that will arrive per second, as a number or as `50/s`.
        sessions: Number of sessions of the model in one process.
        processes: Number of processes that run the model at the same time.

    Returns:
        The options, an `onnxruntime.SessionOptions`.

    Raises:
        HostError: onnxruntime is not installed.
        RecordError: The file is not a record, has no record for this model, or has no such point.
        UsageError: The installed onnxruntime does not support one of the settings.

    Example:
        >>> import onnxruntime
        >>> import ortune
        >>> options = ortune.session_options("tuned.json")
        >>> session = onnxruntime.InferenceSession("model.onnx", options)
    """
    chosen = _choose(
        config, pick, model, any_host=any_host, trust=trust, load=_load_of(clients, rate, sessions, processes)
    )
    safe = chosen.without_captures()
    if safe != chosen:
        warnings.warn(
            "this config captures calls, which the options leave out: outputs would be wrong unless inputs stay in the "
            "same buffers on the device",
            stacklevel=2,
        )
    return make_session_options(safe.of_session(session))


def run_options(
    config: str | Path | Record | Plan | HostPlan,
    *,
    model: str | Path | None = None,
    pick: int | str | None = None,
    any_host: bool = False,
    trust: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
    processes: int | None = None,
) -> RunOptions | None:
    """Return RunOptions with the settings of a record, or None if it has none. Pass them to each call of `run`.

    If the record is for another class of host, the result is None, with a warning.

    Args:
        config: A record or plan, or the path of a record, bundle or plan.
        model: Path of the ONNX file, required for a bundle or a plan for several models.
        pick: Point of the record's Pareto front, deployment of the plan, or row of a plan for several models, counted
            from 1; "throughput", "memory" or "cpu" for the deployment that is the best in it; None for the recommended
            one.
        any_host: Whether to use a record for another class of host.
        trust: Whether the record may name files, libraries and other environment variables.
        clients: Number of concurrent callers that the session will have. With the next three, selects among the
            records of a bundle.
        rate: Requests that will arrive per second, as a number or as `50/s`.
        sessions: Number of sessions of the model in one process.
        processes: Number of processes that run the model at the same time.

    Returns:
        The options, an `onnxruntime.RunOptions`, or None.

    Raises:
        HostError: onnxruntime is not installed.
        RecordError: The file is not a record, has no record for this model, or has no such point.
        UsageError: The installed onnxruntime does not support one of the settings.

    Example:
        >>> import numpy
        >>> import ortune
        >>> session = ortune.create_session("model.onnx", "tuned.json")
        >>> options = ortune.run_options("tuned.json")
        >>> image = numpy.zeros((1, 3, 32, 32), numpy.float32)
        >>> (probabilities,) = session.run(None, {"image": image}, options)
        >>> probabilities.shape
        (1, 10)
    """
    return make_run_options(
        _choose(config, pick, model, any_host=any_host, trust=trust, load=_load_of(clients, rate, sessions, processes))
    )


def _load_of(clients: int | None, rate: str | float | None, sessions: int | None, processes: int | None) -> Load | None:
    """Return the load that the options describe, or None if none of them is given."""
    given = {"clients": clients, "rate": rate, "sessions": sessions, "processes": processes}
    return make_request(LoadOptions, given).given_load


def _choose(
    config: str | Path | Record | Plan | HostPlan,
    pick: int | str | None,
    model: str | Path | None,
    *,
    any_host: bool,
    trust: bool,
    load: Load | None,
) -> Config:
    """Return the config for this model, host and load, or the default where there is none for the host."""
    require_runtime()
    choice = select_record(
        read_configs([config], trust=trust, pick=pick), Wanted(load=load, pick=pick, any_host=any_host), model
    )
    if not choice.fits or choice.record.is_slower:
        warnings.warn(describe_mismatch(choice), stacklevel=3)
        return DEFAULT
    recorded, here = choice.record.runtime.onnxruntime, find_installed_version()
    if here and minor_version(recorded) != minor_version(here):
        text = f"{choice.source} was tuned with onnxruntime {recorded}; this is onnxruntime {here}"
        warnings.warn(printable(text), stacklevel=3)
    return choice.record.config
