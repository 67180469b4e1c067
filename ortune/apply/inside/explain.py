"""Describe the options of a session, as text and as JSON."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from ortune.apply.inside.options_log import read_entry
from ortune.apply.inside.providers import show_option
from ortune.apply.inside.settings import THREADS, TunedSession, show_value

PINNING_S = 0.02
"""Time after which the threads of a new pool run on the CPUs that they are pinned to."""


def describe(model: str, tuned: TunedSession | None, reason: str, session: Any, before: set[int]) -> dict[str, Any]:
    """Return a description of a session for JSON.

    Args:
        model: Name of its model.
        tuned: Its tuned options, or None if it has the program's own options.
        reason: Why it has the program's own options.
        session: The session.
        before: IDs of the threads that existed before the session was created.
    """
    description: dict[str, Any] = {"pid": os.getpid(), "model": model, "matched": tuned is not None}
    if tuned is None:
        return {**description, "reason": reason}
    read = session.get_session_options()
    names = dict.fromkeys((THREADS, *tuned.set, *tuned.replaced))
    providers = tuned.providers
    description |= {
        "record": tuned.rule["source"],
        "set": {**tuned.set, **providers.set},
        "replaced": {**tuned.replaced, **providers.replaced},
        "not_set": [*tuned.not_set, *providers.not_set],
        "read_back": {
            name: show_value(getattr(read, name)) if hasattr(read, name) else read_entry(read, name) or "unset"
            for name in names
        }
        | _read_provider_options(session),
        "run_options": {**tuned.config["run_options"], **tuned.config["run_config"]},
        "providers": list(session.get_providers()),
        "providers_dropped": providers.dropped,
        "providers_reordered": providers.reordered,
    }
    return {**description, **_describe_threads(before)}


def describe_own(session: Any, options: dict[str, Any], entries: dict[str, str], before: set[int]) -> dict[str, Any]:
    """Return a description of a session as the program creates it, for JSON.

    Args:
        session: The session.
        options: Attributes of SessionOptions that the program sets.
        entries: Configuration entries that it sets.
        before: IDs of the threads that existed before the session was created.
    """
    return {
        "program_options": {name: show_value(value) for name, value in options.items()} | entries,
        "read_back": {THREADS: getattr(session.get_session_options(), THREADS)} | _read_provider_options(session),
        "providers": list(session.get_providers()),
        **_describe_threads(before),
    }


def _describe_threads(before: set[int]) -> dict[str, Any]:
    """Return the CPUs of each new thread, if the threads that existed before are known."""
    if not before:
        return {}
    time.sleep(PINNING_S)
    return {"threads": [_read_cpus(thread) for thread in sorted(list_threads() - before)]}


def render(description: dict[str, Any]) -> str:
    """Return a description as human-readable text."""
    head = f"ortune: [{description['pid']}] {description['model']}:"
    if "program_options" in description:
        rows = {"set": _list_settings(description["program_options"]) or "nothing", **_render_state(description)}
        return _join(f"{head} has the program's own options", rows)
    if not description["matched"]:
        return printable(f"{head} keeps the program's own options: {description['reason']}") + "\n"
    settings = {**description["set"], **description["run_options"]}
    rows = {
        "set": _list_settings(settings) or "nothing",
        "replaced": _list_settings(description["replaced"]),
        "dropped": ", ".join(description["providers_dropped"]),
        "reordered": "the execution providers" if description["providers_reordered"] else "",
        "not set": "; ".join(description["not_set"]),
        **_render_state(description),
    }
    return _join(f"{head} uses the tuned options of {description['record']}", rows)


def _render_state(description: dict[str, Any]) -> dict[str, str]:
    """Return what was read back, and the new threads."""
    rows = {"read back": _list_settings({**description["read_back"], "providers": ",".join(description["providers"])})}
    if "threads" in description:
        n_threads = len(description["threads"])
        cpus = f", allowed on CPUs {'; '.join(description['threads'])}" if n_threads else ""
        rows["threads"] = f"{n_threads} new thread{'' if n_threads == 1 else 's'}{cpus}"
    return rows


def _join(first: str, rows: dict[str, str]) -> str:
    lines = [first, *(f"ortune:   {name:<10} {text}" for name, text in rows.items() if text)]
    return "\n".join(map(printable, lines)) + "\n"


def printable(text: str) -> str:
    """Return a text as one line without what a terminal interprets, or a CI service in a log.

    Source: `ortune.sanitize.LOG_COMMAND`.
    """
    text = "".join(map(_printable_character, text))
    return re.sub(r"(?<=#)#(?=\w*\[)", "\N{FULLWIDTH NUMBER SIGN}", text)


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else "\ufffd"


def _read_provider_options(session: Any) -> dict[str, str]:
    """Return the options of a session's providers. Some providers do not report theirs, and the CPU has none."""
    return {
        show_option(provider, name): str(value)
        for provider, options in session.get_provider_options().items()
        for name, value in options.items()
    }


def write_stderr(text: str) -> None:
    """Write lines to stderr if it is open. Daemons close it."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.write("\n".join(map(printable, text.split("\n"))))


def list_threads() -> set[int]:
    """Return the ids of this process's threads; empty where the system does not list them."""
    try:
        return {int(path.name) for path in Path("/proc/self/task").iterdir()}
    except OSError:
        return set()


def _read_cpus(thread: int) -> str:
    """Return the CPUs that a thread may run on, as a list of ranges; empty if it has ended."""
    try:
        lines = Path(f"/proc/self/task/{thread}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("Cpus_allowed_list:")), "")


def _list_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
