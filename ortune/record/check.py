"""Checks the configs of a record that was read from a file.

A record is data. Its configs hold only settings that the catalog knows, with legal values, and none that names a
file, a library or a command. Everything else is an error, unless the user trusts the file.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.errors import RecordError, TrustWarning
from ortune.knobs.config import Config
from ortune.knobs.knob import LONGEST_SHOWN_VALUE
from ortune.knobs.legal import Fault, find_faults
from ortune.model.data_files import is_inside
from ortune.naming import DISTRIBUTION

if TYPE_CHECKING:
    from ortune.measure.interval import Interval
    from ortune.record.schema import Evidence, Record

LARGEST_RECORDED_RATIO = 1e9
"""No config is so many times better or worse than another one, even if requests pile up with one of them."""


def check_schema(schema: int, known: int, name: str, again: str) -> None:
    """Check that a document has the schema that this version of ortune reads.

    Args:
        schema: That of the document.
        known: The one that can be read.
        name: Name of the file, for messages.
        again: How to write such a file.

    Raises:
        RecordError: It has another one.
    """
    if schema != known:
        raise RecordError(
            f"{name} has schema {schema}, and this version of ortune reads schema {known}.",
            f"Install a newer version of {DISTRIBUTION}." if schema > known else again,
        )


def check_files(record: Record, name: str, place: str) -> None:
    """Check that the names of the model's external data do not lead out of the folder of the model.

    Raises:
        RecordError: One does.
    """
    for number, file in enumerate(record.model.files[1:], 1):
        if not is_inside(file.name):
            raise RecordError(
                f"{name}: {shorten(repr(file.name))} is not the name of a file in the folder of the model - at "
                f"`{place}.model.files[{number}].name`.",
                "Write the file again: ortune search MODEL -o FILE.",
            )


class EvidenceError(ValueError):
    """Evidence that no measurement gives."""


def check_evidence(evidence: Evidence, place: str) -> None:
    """Check that the intervals of ratios in evidence are possible. They are pooled by their logarithms.

    Args:
        evidence: The evidence.
        place: JSON path of its record.

    Raises:
        EvidenceError: One is not. The message names its JSON path.
    """
    for path, interval in _list_intervals(evidence):
        if not 0 < interval.low <= interval.high:
            numbers = f"low is {interval.low:g}, and high is {interval.high:g}"
            raise EvidenceError(f"this is no interval of ratios: {numbers} - at `{place}.evidence.{path}`")
        if not 1 / LARGEST_RECORDED_RATIO <= interval.estimate <= LARGEST_RECORDED_RATIO:
            numbers = (
                f"estimate is {interval.estimate:g}, not {1 / LARGEST_RECORDED_RATIO:g} to {LARGEST_RECORDED_RATIO:g}"
            )
            raise EvidenceError(f"{numbers} - at `{place}.evidence.{path}`")


def _list_intervals(evidence: Evidence) -> Iterator[tuple[str, Interval]]:
    if evidence.speedup:
        yield "speedup", evidence.speedup
    for number, point in enumerate(evidence.front):
        for name, speedup in point.speedups.items():
            yield f"front[{number}].speedups.{shorten(name)}", speedup
    for number, occasion in enumerate(evidence.occasions):
        yield f"occasions[{number}].speedup", occasion.speedup
    if hosts := evidence.hosts:
        yield from (("hosts.speedup", hosts.speedup), ("hosts.another", hosts.another), ("hosts.worst", hosts.worst))
        for number, host in enumerate(hosts.hosts):
            yield f"hosts.hosts[{number}]", host


def check_configs(value: Any, name: str, *, trust: bool, place: str = "$") -> None:
    """Check all configs in a record, a bundle or trials.

    Args:
        value: What was read.
        name: Name of the file, for messages.
        trust: Whether the user trusts the file. Settings that are legal but unsafe or unknown then cause a
            `TrustWarning` each instead of an error.
        place: JSON path of the value.

    Raises:
        RecordError: A config has a setting that it must not have. The message names it and its JSON path.
    """
    seen = set()
    for path, config in _find_configs(value, place):
        for fault in find_faults(config):
            setting = shorten(fault.setting)
            if fault.is_illegal or not trust:
                raise _reject(fault, name, setting, f"{path}.{shorten(fault.place)}")
            if fault.setting not in seen:
                seen.add(fault.setting)
                warnings.warn(f"{name} is trusted: it sets {setting} ({fault.why})", TrustWarning, stacklevel=2)


def _reject(fault: Fault, name: str, setting: str, path: str) -> RecordError:
    hint = (
        "Correct it, or write the file again: ortune search MODEL -o FILE."
        if fault.is_illegal
        else "Remove it. If you trust whoever made this file, pass {trust}."
    )
    return RecordError(f"{name} must not set {setting}: {fault.why} - at `{path}`.", hint)


def shorten(text: str) -> str:
    """Return a text for a message: of a limited length, with escape sequences for characters that are not printable."""
    shown = text if len(text) <= LONGEST_SHOWN_VALUE else f"{text[:LONGEST_SHOWN_VALUE]}..."
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in shown
    )


def _find_configs(value: Any, path: str) -> Iterator[tuple[str, Config]]:
    """Yield all configs in a value with their JSON paths."""
    if isinstance(value, Config):
        yield path, value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _find_configs(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, (tuple, list)):
        yield from _find_all(((f"{path}[{number}]", item) for number, item in enumerate(value)))
    elif isinstance(value, dict):
        yield from _find_all(((f"{path}.{name}", item) for name, item in value.items()))


def _find_all(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Config]]:
    for path, value in values:
        # Most values are numbers and texts.
        if isinstance(value, (msgspec.Struct, tuple, list, dict)):
            yield from _find_configs(value, path)
