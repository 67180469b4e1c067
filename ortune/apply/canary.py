"""Canaries: a config for a share of the processes of a program; see `ortune.apply.inside.canary`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import UsageError
from ortune.host import HostClass, read_host
from ortune.options import options_of
from ortune.program_options import LoadOptions, ProgramRequest
from ortune.record.select import SelectedRecord, Sourced
from ortune.sanitize import printable

ID_LENGTH = 12

DECIDING = (*options_of(LoadOptions), "any_host", "any_model", "keep_explicit")
"""Options that decide which config a session gets, and how much of it."""


def plan_canary(
    records: Sequence[Sourced], choices: Sequence[SelectedRecord], options: ProgramRequest
) -> dict[str, Any] | None:
    """Return `canary` of the plan; None if all processes use the config, or no record is for this host.

    Args:
        records: All records that were given, also those for other hosts.
        choices: Those that were selected.
        options: How to use them.

    Raises:
        UsageError: A config changes all processes, or there is no folder for the metrics.
    """
    if options.canary is None or not any(choice.applies for choice in choices):
        return None
    for choice in choices:
        config = choice.record.config
        names = [*config.environment, *(["allocator"] if config.allocator else [])]
        if choice.applies and names:
            raise UsageError(
                f"{choice.source} needs {', '.join(names)}, which all processes of the program would get.",
                "Search with {fix} for a config of sessions alone, or start a part of the servers with this config.",
                option="canary",
            )
    return {
        "share": options.canary,
        "folder": None if options.metrics is None else os.fspath(prepare_folder(options.metrics)),
        "config": identify_configs(records, options),
        "host_class": HostClass.of(read_host(memory=False)).id,
    }


def prepare_folder(folder: Path) -> Path:
    """Create the folder for metrics if there is none, and return its absolute path.

    Raises:
        UsageError: It cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not a legal path"
        raise UsageError(f"{folder}: cannot be created: {reason}.", "Name a folder.", option="metrics") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"{folder}: permission denied.", "Name a folder that the program may write to.", option="metrics"
        )
    return folder.absolute()


def identify_configs(records: Sequence[Sourced], options: ProgramRequest) -> str:
    """Return a short digest of all configs, and of the options that decide what sessions get of them.

    Hosts of several classes, which use different configs, share it.
    """
    known = sorted(
        f"{sourced.record.model.digest} {sourced.record.host.id} "
        f"{msgspec.json.encode(sourced.record.config, order='deterministic').decode()}"
        for sourced in records
    )
    # Folders may differ between hosts.
    values = {name: getattr(options, name) for name in DECIDING} | {"cache_dir": options.cache_dir is not None}
    given = [f"{name}={value}" for name, value in values.items() if value not in {None, False}]
    return hashlib.sha256("\n".join([*known, str(options.pick), *given]).encode()).hexdigest()[:ID_LENGTH]


def describe_canary(canary: Mapping[str, Any] | None) -> list[str]:
    """Return the message to print before the program starts."""
    if canary is None:
        return []
    lines = [f"{100 * canary['share']:g}% of the processes are canaries, which use config {canary['config']}"]
    if canary["folder"] is not None:
        lines.append(printable(f"metrics are written to {canary['folder']}; compare: ortune fleet compare FOLDER"))
    return lines
