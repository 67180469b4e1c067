"""The options of `ortune apply` that select what an export writes: the commands in it must select the same."""

from __future__ import annotations

from pathlib import Path

from ortune.planning.read import find_deployment
from ortune.record.select import Sourced, Wanted
from ortune.workload import Load

CACHE_DIR = "--cache-dir"


def list_selection(found: Sourced, wanted: Wanted, *, trust: bool, cache_dir: Path | None = None) -> tuple[str, ...]:
    """Return options as words of a command line.

    Args:
        found: What was selected.
        wanted: What it was selected by.
        trust: Whether its file is trusted.
        cache_dir: Folder of compiled models.
    """
    words: list[str] = []
    if picked := find_deployment(found):
        words += [] if picked.is_recommended else ["--pick", str(picked.number)]
    else:
        words += ["--pick", str(wanted.pick)] if wanted.pick is not None else []
        words += list_load(wanted.load) if wanted.load else []
    words += ["--any-host"] if wanted.any_host else []
    words += [CACHE_DIR, str(cache_dir)] if cache_dir is not None else []
    return (*words, *(["--trust"] if trust else []))


def list_load(load: Load) -> list[str]:
    """Return the options that describe a load."""
    words = ["--clients", str(load.clients)]
    for flag, number in (("--sessions", load.sessions), ("--processes", load.processes)):
        words += [flag, str(number)] if number != 1 else []
    return [*words, *(["--rate", f"{load.rate_per_s:g}/s"] if load.rate_per_s else [])]
