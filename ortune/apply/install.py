"""`ortune.install`: tuned options for all sessions of this program, from inside."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ortune.apply.environment import CONFIG_VARIABLE, paths_in_variable
from ortune.apply.inside import finder
from ortune.apply.inside.finder import activate
from ortune.apply.messages import describe_mismatch, load_of, missing_variables
from ortune.apply.plan import Wish, choose_records, environment_of, make_plan
from ortune.errors import UsageError


def install(
    config: str | Path | Sequence[str | Path] | None = None,
    *,
    pick: int | None = None,
    any_model: bool = False,
    any_host: bool = False,
    keep_explicit: bool = False,
    explain: bool = False,
    clients: int | None = None,
    rate: str | float | None = None,
    sessions: int | None = None,
) -> None:
    """Give every session of this process that loads a tuned model the options of its record, from now on.

    Call it before the program makes sessions, best before it imports onnxruntime: entries of SessionOptions that were
    made earlier cannot be read, and stay. Records for another class of host are left out with a warning.

    Args:
        config: Records or bundles; None for those that ORTUNE_CONFIG names.
        pick: Which point of the record's front, counted from 1; None for what it recommends.
        any_model: Whether every session gets the settings, whatever its model.
        any_host: Whether a record for another class of host is used.
        keep_explicit: Whether options that the program sets by itself win over tuned ones.
        explain: Whether each session is told of on stderr.
        clients: Concurrent callers that there will be; this and the next two pick among records for several loads.
        rate: Requests that will arrive a second.
        sessions: Sessions of the model side by side.

    Raises:
        RecordError: A file holds no records.
        UsageError: There is nothing to install, or something was installed before.
    """
    if config is None:
        config = paths_in_variable()
        if not config:
            raise UsageError("There is no record to install.", f"Pass one, or name it in {CONFIG_VARIABLE}.")
    paths = [config] if isinstance(config, (str, Path)) else list(config)
    if not paths:
        raise UsageError("There is no record to install.", "Pass the path of one.")
    wish = Wish(
        load=load_of(clients, rate, sessions),
        pick=pick,
        any_model=any_model,
        any_host=any_host,
        keep_explicit=keep_explicit,
        explain=explain,
    )
    plan = plan_of(paths, wish, lambda text: warnings.warn(text, stacklevel=4))
    if activate(lambda: plan):
        return
    if finder.from_environment:
        # A program that installs records runs under `ortune apply` too.
        if paths != paths_in_variable():
            warnings.warn("records are in force from outside already; these are not installed", stacklevel=2)
    else:
        raise UsageError(
            "Records are installed in this process already.", "Call ortune.install once, with all records."
        )


def plan_of(paths: Sequence[str | Path], wish: Wish, warn: Callable[[str], None]) -> dict[str, Any]:
    """Return the plan for some records in a process that has started already.

    Args:
        paths: Records or bundles.
        wish: How they are to be used.
        warn: Is told what cannot be done.

    Raises:
        OrtuneError: They cannot be read, or contradict each other.
    """
    choices = choose_records(paths, wish)
    for choice in choices:
        if not choice.applies:
            warn(describe_mismatch(choice))
    if missing := missing_variables(environment_of(choices)):
        warn(missing)
    return make_plan(choices, wish, "ortune.install(..., explain=True) says why")
