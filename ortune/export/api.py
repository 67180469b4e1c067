"""`ortune.export_config`: writes records and plans for other systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortune.export import Export, export
from ortune.export.selection import list_selection
from ortune.options import make_request
from ortune.planning.read import find_deployment, read_configs, select_config, use_cache_dir
from ortune.program_options import LoadOptions
from ortune.record.select import Wanted

if TYPE_CHECKING:
    from ortune.planning.colocation.result import HostPlan
    from ortune.planning.result import Plan
    from ortune.record.schema import Record


def export_config(
    config: str | Path | Record | Plan | HostPlan,
    to: str,
    *,
    model: str | Path | None = None,
    output: str | Path | None = None,
    pick: int | str | None = None,
    any_host: bool = False,
    trust: bool = False,
    cache_dir: str | Path | None = None,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
    processes: int | None = None,
) -> Export:
    """Write the settings of a record, or a deployment of a plan, for another system.

    Args:
        config: A record or plan, or the path of a record, bundle or plan.
        to: The target, such as "gunicorn" or "kubernetes"; `ortune apply --list` shows all.
        model: Path of the model, as the program that uses the export will find it; None for the recorded one.
        output: The file to write; None to return the text only.
        pick: Point of the record's Pareto front, deployment of the plan, or row of a plan for several models, counted
            from 1; "throughput", "memory" or "cpu" for the deployment that is the best in it; None for the recommended
            one.
        any_host: Whether a record for another class of host may be selected from a bundle.
        trust: Whether the record may name files, libraries and other environment variables.
        cache_dir: Folder in which execution providers will keep compiled models; None for no cache.
        clients: Number of concurrent callers. With the next three, selects among the records of a bundle.
        rate: Requests that will arrive per second, as a number or as `50/s`.
        sessions: Number of sessions of the model in one process.
        processes: Number of processes that run the model at the same time.

    Returns:
        The text, and what the target does not support.

    Raises:
        RecordError: The file is not a record or plan, has no record for this model or no such point, or has a setting
            that cannot be written.
        UsageError: There is no such target, or the file cannot be written.
        ModelError: The target needs the model, and it cannot be read.

    Example:
        >>> import ortune
        >>> done = ortune.export_config("plan.json", "gunicorn")
        >>> "workers = 2" in done.text
        True
        >>> done.unsupported
        ()
    """
    given = {"clients": clients, "rate": rate, "sessions": sessions, "processes": processes}
    load = make_request(LoadOptions, given).given_load
    records = read_configs([config], trust=trust, pick=pick)
    present = model if model is not None and Path(model).is_file() else None
    wanted = Wanted(load=load, pick=pick, any_host=any_host, elsewhere=True)
    folder = None if cache_dir is None else Path(cache_dir)
    found = use_cache_dir(select_config(records, wanted, present), folder)
    return export(
        to,
        found.record,
        str(model or found.record.model.path),
        found.path or "tuned.json",
        None if output is None else Path(output),
        find_deployment(found),
        list_selection(found, wanted, trust=trust, cache_dir=folder),
    )
