"""What several ways of applying a record share: the load that is told, and what is told when a record does not fit."""

from __future__ import annotations

import os

from ortune.apply.exec import SEPARATED_BY_SPACE
from ortune.record.select import Choice
from ortune.workload.values import Load, make_load


def load_of(
    clients: int | None, rate: str | float | None, sessions: int | None, arrivals: str | None = None
) -> Load | None:
    """Return the load that is told, or None if none is.

    Raises:
        UsageError: It makes no sense.
    """
    told = any(each is not None for each in (clients, rate, sessions, arrivals))
    return make_load(clients, rate, arrivals, sessions) if told else None


def describe_mismatch(choice: Choice) -> str:
    """Return that a record is not used, and why."""
    if choice.fits:
        return (
            f"{choice.source} is not used: its search proved nothing. Sessions of {choice.record.model.path} keep the "
            "program's own options."
        )
    return (
        f"{choice.source} is not used: {choice.why}. Sessions of {choice.record.model.path} keep the program's own "
        "options. Search here, or use it all the same with any_host (--any-host)."
    )


def missing_variables(wanted: dict[str, str]) -> str:
    """Return which variables should have been set before this process started; empty if none."""
    missing = {name: value for name, value in wanted.items() if not _is_in_force(name, value)}
    settings = " ".join(f"{name}={value}" for name, value in missing.items())
    if not missing:
        return ""
    return f"this config needs environment variables that only work when a process starts with them: {settings}"


def _is_in_force(name: str, value: str) -> bool:
    here = os.environ.get(name, "")
    return here == value or (name in SEPARATED_BY_SPACE and set(value.split()) <= set(here.split()))
