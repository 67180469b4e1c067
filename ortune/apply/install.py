"""`ortune.install`: tuned options for all sessions of the calling program."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from ortune.apply.environment import CONFIG_VARIABLE, check_config_variable, read_config_variable
from ortune.apply.inside import finder
from ortune.apply.plan import plan_process
from ortune.errors import UsageError
from ortune.naming import PACKAGE
from ortune.options import make_request
from ortune.program_options import ProgramRequest


def install(
    config: str | Path | Sequence[str | Path] | None = None,
    *,
    pick: int | str | None = None,
    any_model: bool = False,
    any_host: bool = False,
    trust: bool = False,
    cache_dir: str | Path | None = None,
    keep_explicit: bool = False,
    explain: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
    processes: int | None = None,
    canary: str | float | None = None,
    metrics: str | Path | None = None,
) -> None:
    """Give tuned options to all sessions that this process creates from now on for the models of some records.

    Call it once, before the program creates sessions and, if possible, before it imports onnxruntime. Tuned options
    replace those that the program sets; a setting that the search did not try keeps the program's value. SessionOptions
    that were created before the call cannot be copied, so they are changed in place. Records for another class of host
    are not used, with a warning.

    Args:
        config: Path of a record, bundle or plan, or several paths; None for those that ORTUNE_CONFIG names.
        pick: Point of the record's Pareto front, deployment of the plan, or row of a plan for several models, counted
            from 1; "throughput", "memory" or "cpu" for the deployment that is the best in it; None for the recommended
            one.
        any_model: Whether sessions of all models get the tuned options.
        any_host: Whether a record for another class of host is used.
        trust: Whether records may name files, libraries and other environment variables.
        cache_dir: Folder in which execution providers keep compiled models; None for no cache.
        keep_explicit: Whether options that the program sets take precedence over tuned ones.
        explain: Whether to report the options of each session on stderr.
        clients: Number of concurrent callers that the program will have. With the next three, selects among
            records for several loads.
        rate: Requests that will arrive per second, as a number or as `50/s`.
        sessions: Number of sessions of the model in one process.
        processes: Number of processes that run the model at the same time.
        canary: Share of the processes that get the tuned options, such as `10%`; None for all.
        metrics: With `canary`: folder in which each process writes how long its calls take.

    Raises:
        RecordError: A file is not a record.
        UsageError: No record is given, or records are already installed in this process.

    Example:
        >>> import ortune
        >>> ortune.install("tuned.json")
        >>> import onnxruntime
        >>> session = onnxruntime.InferenceSession("model.onnx")  # has the options of tuned.json
    """
    if config is None:
        config = read_config_variable()
        check_config_variable()
        if not config:
            raise UsageError("There is no record to install.", f"Pass a path, or set {CONFIG_VARIABLE}.")
    paths = [config] if isinstance(config, (str, Path)) else list(config)
    if not paths:
        raise UsageError("There is no record to install.", "Pass at least one path.")
    options = make_request(
        ProgramRequest,
        {
            "pick": pick,
            "any_model": any_model,
            "any_host": any_host,
            "trust": trust,
            "cache_dir": cache_dir,
            "keep_explicit": keep_explicit,
            "explain": explain,
            "clients": clients,
            "rate": rate,
            "sessions": sessions,
            "processes": processes,
            "canary": canary,
            "metrics": metrics,
        },
    )
    plan = plan_process(paths, options, lambda text: warnings.warn(text, stacklevel=4))
    if finder.activate(lambda: plan):
        return
    if not finder.is_from_environment():
        raise UsageError(
            "Records are already installed in this process.", f"Call {PACKAGE}.install once, with all records."
        )
    # A program that installs records can also run under `ortune apply` or ORTUNE_CONFIG.
    if paths != read_config_variable():
        warnings.warn("this process already uses the records of its environment; these are not installed", stacklevel=2)
