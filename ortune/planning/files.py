"""Reads and writes plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.planning.result import PLAN_SCHEMA, Plan
from ortune.record.check import check_configs, check_schema, shorten
from ortune.record.files import name_of_input, read_content, write_atomically
from ortune.record.json_text import check_json_text
from ortune.record.rescue import rescue
from ortune.sanitize import encode_json, escape_json

MOST_PLAN_BYTES = 4 << 20
"""Largest size of a file that is read as a plan. A plan has some kilobytes."""

Document = TypeVar("Document")

PLAN_HINT = "Create one: ortune plan MODEL -o FILE."


def encode_plan(plan: msgspec.Struct) -> bytes:
    """Return a plan of any kind as indented JSON."""
    document = msgspec.json.format(encode_json(plan), indent=2)
    return escape_json(document.decode()).encode() + b"\n"


def write_plan(plan: msgspec.Struct, path: Path) -> None:
    """Write a plan of any kind to a file; `-` for stdout.

    Raises:
        UsageError: It cannot be written.
    """
    write_atomically(path, encode_plan(plan))


def save_plan(plan: msgspec.Struct, path: Path) -> UsageError | None:
    """Write a plan of any kind to a file, or to another folder if it cannot be written there.

    Returns:
        Why it cannot be written, and where it is instead; None if it was written.
    """
    try:
        write_plan(plan, path)
    except UsageError as error:
        return rescue("plan", path.name, encode_plan(plan), lambda target: write_plan(plan, target), error)
    return None


def read_plan(path: str | Path, *, trust: bool = False) -> Plan:
    """Read a plan. Nothing in it is executed, and its settings must be those that ortune knows, with legal values.

    Args:
        path: Path of the file; `-` for stdin.
        trust: Whether the plan may name files, libraries and other environment variables, as for records.

    Raises:
        RecordError: There is no such file, or it is not a plan that this version can read.
    """
    return decode_plan(read_content(path, MOST_PLAN_BYTES, "a plan", PLAN_HINT), name_of_input(path), trust=trust)


def decode_plan(data: bytes, name: str = "the text", *, trust: bool = False) -> Plan:
    """Return the plan that a text holds; see `read_plan`."""
    plan = decode_document(data, name, Plan, PLAN_SCHEMA, PLAN_HINT)
    check_configs(plan, name, trust=trust)
    return plan


def decode_document(data: bytes, name: str, kind: type[Document], schema: int, hint: str) -> Document:
    """Return the plan of some kind that a text holds, of which the configs are not checked yet.

    Args:
        data: The text.
        name: Its name, for messages.
        kind: Type of the plan.
        schema: The version of it that can be read.
        hint: How to create one.

    Raises:
        RecordError: It is not such a plan, or of another version.
    """
    if len(data) > MOST_PLAN_BYTES:
        raise RecordError(f"{name} is not a plan: it has more than {MOST_PLAN_BYTES >> 20} MiB.", hint)
    try:
        check_json_text(data)
        document: Any = msgspec.json.decode(data)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"{name} is not a plan: {shorten(str(error))}.", hint) from None
    version = document.get("schema") if isinstance(document, dict) else None
    if type(version) is not int:
        raise RecordError(f"{name} is not a plan: it has no number as its schema.", hint)
    check_schema(version, schema, name, hint)
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordError(f"{name} is not a plan: {shorten(str(error))}.", hint) from None
