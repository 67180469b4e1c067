"""Checks of what is exported. A record is data: none of its texts may become code, a name or a line of its own.

Texts are escaped by the rules of each target (`ortune.export.literals`, `ortune.export.comments`). What cannot be
escaped is checked here, before anything is written: names, enum members, numbers, and texts that no target can express.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ortune.errors import RecordError, UsageError
from ortune.export.pending_settings import Value
from ortune.host import HostClass
from ortune.knobs import KNOBS, Config
from ortune.knobs.legal import PROVIDER_NAME

RECORD_HINT = "Remove it from the record, or write the record again: ortune search MODEL -o FILE."

ENTRY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*")
"""Names of configuration entries and of options of execution providers."""

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names of environment variables in POSIX shells and in Kubernetes."""

NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
"""A number that all languages and YAML read as the same number."""

LARGEST_NUMBER = 2**31 - 1
"""Largest integer. ONNX Runtime's are `int`."""

LONGEST_SHOWN = 100
"""Length to which a value is shown in a message."""


def check_config(config: Config) -> None:
    """Check the names and values of all settings.

    Raises:
        RecordError: A name is not that of a setting, or a value is not legal for its setting or cannot be written.
    """
    for options, where in ((config.session_options, "session_options"), (config.run_options, "run_options")):
        for name, value in options.items():
            _check_attribute(name, value, where)
    for entries in (config.session_config, config.run_config, *config.per_session):
        _check_entries(entries, "a configuration entry")
    chain = [name for name, _ in config.providers]
    for name, own in config.providers:
        if chain.count(name) > 1:
            raise _make_error("providers", ",".join(chain), f"names {name} twice")
        _check_name(PROVIDER_NAME, name, name, "an execution provider")
        _check_entries(own, f"an option of {name}")
    for name, value in config.environment.items():
        _check_name(VARIABLE_NAME, name, f"{name}={value}", "an environment variable")
        if not value.isprintable():
            raise _make_error(name, value, "contains characters that are not printable")
    if pool := config.global_thread_pool:
        for name in ("intra_op_num_threads", "inter_op_num_threads"):
            _check_integer(f"global_thread_pool.{name}", getattr(pool, name), 0, LARGEST_NUMBER)


def check_host(host: HostClass) -> None:
    """Check the numbers of a host.

    Raises:
        RecordError: A number is not possible for a host.
    """
    for name in ("n_logical", "n_usable", "n_usable_cores"):
        _check_integer(f"host.{name}", getattr(host, name), 0, LARGEST_NUMBER)
    quota = host.cpu_quota
    if quota is not None and not (math.isfinite(quota) and 0 < quota <= LARGEST_NUMBER):
        raise _make_error("host.cpu_quota", quota, "is not a number of CPUs")


def check_path(path: str) -> None:
    """Check that a path can be written as text.

    Raises:
        UsageError: It contains bytes that are not text.
    """
    if fault := find_fault(path):
        raise UsageError(f"{path!r}: this path {fault}.", "Rename the file, or name it by another path.")


def check_line(path: str) -> None:
    """Check that a path can be written into a line of a command.

    Raises:
        UsageError: It contains characters that are not printable.
    """
    if not path.isprintable():
        raise UsageError(f"{path!r}: this path contains characters that are not printable.", "Rename the file.")


def find_fault(text: str) -> str:
    """Return why a text cannot be written in any language, as the rest of a sentence; empty if it can be."""
    if "\0" in text:
        return "contains a null character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains bytes that are not text"
    return ""


def read_number(name: str, text: str) -> int:
    """Return a value that is a number.

    Args:
        name: The setting.
        text: Its value.

    Raises:
        RecordError: It is not a number.
    """
    if not NUMBER.fullmatch(text):
        raise _make_error(name, text, "is not a number")
    return int(text)


def _check_attribute(name: str, value: Value, where: str) -> None:
    knob = next((knob for knob in KNOBS.values() if (knob.where, knob.name) == (where, name)), None)
    if knob is None:
        raise _make_error(name, value, f"is not an attribute of {_CLASSES[where]}")
    if knob.kind == "boolean" and not isinstance(value, bool):
        raise _make_error(name, value, "is not True or False")
    if knob.kind == "integer":
        _check_integer(name, value, -LARGEST_NUMBER - 1 if knob.low is None else knob.low, knob.high or LARGEST_NUMBER)
    if knob.kind == "choice" and value not in knob.values:
        raise _make_error(name, value, f"is not one of {', '.join(knob.values)}")
    if knob.kind == "text":
        _check_text(name, value)


_CLASSES = {"session_options": "SessionOptions", "run_options": "RunOptions"}


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _make_error(name, value, f"is not an integer from {low} to {high}")


def _check_entries(entries: Mapping[str, str], what: str) -> None:
    for name, value in entries.items():
        _check_name(ENTRY_NAME, name, f"{name}={value}", what)
        _check_text(name, value)


def _check_name(pattern: re.Pattern[str], name: str, shown: str, what: str) -> None:
    if not pattern.fullmatch(name):
        raise RecordError(f"{_shorten(shown)}: {name[:LONGEST_SHOWN]!r} is not a name of {what}.", RECORD_HINT)


def _check_text(name: str, value: object) -> None:
    fault = find_fault(value) if isinstance(value, str) else "is not text"
    if fault:
        raise _make_error(name, value, fault)


def _make_error(name: str, value: object, fault: str) -> RecordError:
    # Python does not convert very large integers to decimal digits.
    shown = hex(value) if isinstance(value, int) and abs(value) > LARGEST_NUMBER else str(value)
    return RecordError(f"{name[:LONGEST_SHOWN]}={_shorten(shown)}: this {fault}.", RECORD_HINT)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
