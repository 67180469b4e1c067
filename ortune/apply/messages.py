"""Messages and checks that all uses of a record share."""

from __future__ import annotations

import os

from ortune.errors import Spelling, spell_in_python, spell_options
from ortune.host.allocators import find_allocators
from ortune.record.schema import Record
from ortune.record.select import SelectedRecord
from ortune.sanitize import printable


def describe_mismatch(choice: SelectedRecord, spell: Spelling = spell_in_python) -> str:
    """Return a warning that ortune does not use a record.

    Args:
        choice: The record.
        spell: Spells options as the caller's interface does.
    """
    kept = f"Sessions of {choice.record.model.path} keep the program's own options."
    text = f"{choice.source} is not used: {choice.reason}. {kept}"
    if choice.fits:
        return printable(text)
    hint = spell_options("Search on this host, or use the record anyway with {any_host}.", spell)
    return printable(f"{text} {hint}")


def describe_left_out(choice: SelectedRecord) -> str:
    """Return a warning that names what a program itself would have to do for the gain of a record; empty for nothing.

    Args:
        choice: The record.
    """
    config = choice.record.config
    left_out = ["captured graphs"] if config.without_captures() != config else []
    left_out += ["IO binding"] if config.io_binding else []
    left_out += [f"calls with {config.batch} items"] if config.batch > 1 and not choice.shapes_vary else []
    if not left_out:
        return ""
    return printable(
        f"{choice.source} was tuned with {' and '.join(left_out)}, which a program must do itself. Otherwise, the gain "
        "may be smaller."
    )


def missing_variables(wanted: dict[str, str]) -> str:
    """Return a warning that names the environment variables that this process lacks; empty if there are none.

    Args:
        wanted: Environment variables that configs need.
    """
    missing = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
    settings = " ".join(f"{name}={value}" for name, value in missing.items())
    if not missing:
        return ""
    return printable(f"this config needs environment variables that must be set before the process starts: {settings}")


def describe_missing_allocator(allocator: str) -> str:
    """Return a warning that an allocator is not installed on this host; empty if it is, or if none is needed."""
    if not allocator or allocator in find_allocators():
        return ""
    return f"this config needs the allocator {allocator}, which is not installed here: the gain may be smaller"


def describe_missing_cache(record: Record, spell: Spelling = spell_in_python) -> str:
    """Return a warning that each session compiles the model; empty if none does, or if the config names a folder.

    Args:
        record: The settings to apply.
        spell: Spells options as the caller's interface does.
    """
    if not record.cache_options:
        return ""
    settings = record.config.settings
    missing = [option for option in record.cache_options if option not in settings]
    if not missing:
        return ""
    text = f"each new session compiles the model, because {' and '.join(missing)} names no folder: set {{cache_dir}}"
    return printable(spell_options(text, spell))
