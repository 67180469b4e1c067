"""The text of a record: JSON without defaults, with short arrays and objects on one line."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import msgspec

WIDTH = 120
"""Columns up to which an array or object stays on one line."""

JSON_INDENT = 2


def to_plain(value: Any) -> Any:
    """Return structs as dictionaries without the fields that have their default, in the order of their fields.

    msgspec's own `omit_defaults` compares by identity, so that it keeps equal strings and numbers.
    """
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        return tag | {
            field.encode_name: to_plain(own)
            for field in _fields_of(type(value))
            if not _is_default(field, own := getattr(value, field.name))
        }
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return _to_number(value)
    return value


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a class. msgspec would evaluate their types each time, which takes longer than the rest."""
    return msgspec.structs.fields(kind)


def _to_number(value: float) -> float | None:
    """Return a number in its shortest JSON form: 198200 for 198200.0, and null for values that JSON cannot express."""
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    if field.default is not msgspec.NODEFAULT:
        return bool(value == field.default)
    return field.default_factory is not msgspec.NODEFAULT and bool(value == field.default_factory())


def encode(value: Any) -> bytes:
    """Return a struct as the text of a file."""
    return to_bytes(_lay_out(to_plain(value), 0, 0, is_whole=True) + "\n")


def encode_line(value: Any) -> bytes:
    """Return a struct as one line of JSON."""
    return to_bytes(json.dumps(to_plain(value), ensure_ascii=False, separators=(",", ":")) + "\n")


def to_bytes(text: str) -> bytes:
    """Encode a text as UTF-8. A file name that is not valid UTF-8 does not cause an error."""
    return text.encode("utf-8", "replace")


def _lay_out(value: Any, depth: int, column: int, *, is_whole: bool = False) -> str:
    """Return a value as JSON.

    Args:
        value: Made of dictionaries, lists and scalars.
        depth: Levels of indentation.
        column: Columns before it on its line, with the comma after it.
        is_whole: Whether it is the document, which is never on one line.
    """
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or (not is_whole and column + len(line) <= WIDTH):
        return line
    inner = " " * (JSON_INDENT * (depth + 1))
    if isinstance(value, dict):
        heads = [f"{inner}{json.dumps(name, ensure_ascii=False)}: " for name in value]
        values = list(value.values())
    else:
        heads, values = [inner] * len(value), value
    parts = [head + _lay_out(item, depth + 1, len(head) + 1) for head, item in zip(heads, values, strict=True)]
    start, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    body = ",\n".join(parts)
    return f"{start}\n{body}\n{' ' * (JSON_INDENT * depth)}{end}"
