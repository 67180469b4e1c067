"""Changes to inputs of fuzz targets: of bytes, of JSON documents, and of protobuf messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBERS = (
    "0",
    "-1",
    "1",
    "2",
    "64",
    "255",
    "65536",
    "999999999",
    "2147483647",
    "2147483648",
    "4294967296",
    "1e400",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "1e-400",
    "nan",
    "inf",
    "-inf",
    "0x7f",
    "1_000",
    "007",
    "٣",
    "1.5",
    "-0.0",
    "9" * 300,
    "1" * 5000,
)
"""Texts of numbers at the limits of types, and beyond."""

WORDS = (
    "",
    " ",
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x1b[31m",
    "\u202e",
    "\ufeff",
    "é",
    "漢",
    "🙂",
    "\u0301",
    "\x7f",
    "\x85",
    "'",
    '"',
    '"""',
    "\\",
    "\\u0000",
    "\\ud800",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    "<",
    ">",
    "|",
    "@",
    "#",
    "%",
    "&",
    "*",
    "/",
    "..",
    "../../x",
    "/dev/null",
    "-",
    "--",
    "~",
    "$(x)",
    "`x`",
    "%s",
    "{0}",
    "{budget}",
    "null",
    "true",
    "false",
    "None",
    "__class__",
    "A" * 300,
    "[" * 300,
    "{" * 300,
    "a." * 300,
    "0,1-3:2/4",
    "auto",
)
"""Pieces of text that mean something to some parser."""


def mutate_bytes(data: bytes, random: Random, words: Sequence[bytes] = (), others: Sequence[bytes] = ()) -> bytes:
    """Return bytes with one to four changes.

    Args:
        data: The bytes to change.
        random: Source of the changes.
        words: Pieces to insert, in addition to numbers and words that are hostile to many parsers.
        others: Bytes to take pieces from.
    """
    content = bytearray(data)
    for _ in range(1 + int(random.random() * 4)):
        start = int(random.random() * (len(content) + 1))
        end = min(start + _length(random), len(content))
        kind = int(random.random() * 9)
        if kind == 0 and content:
            content[min(start, len(content) - 1)] = int(random.random() * 256)
        elif kind == 1 and content:
            content[min(start, len(content) - 1)] ^= 1 << int(random.random() * 8)
        elif kind == 2:
            del content[start:end]
        elif kind == 3:
            content[start:start] = content[start:end] * (1 + int(random.random() * 3))
        elif kind == 4:
            content[start:end] = random.randbytes(end - start)
        elif kind == 5:
            content[start:end] = _choose(random, words) if words and random.random() < 0.6 else _hostile(random)
        elif kind == 6:
            content[start:start] = _choose(random, words) if words and random.random() < 0.6 else _hostile(random)
        elif kind == 7 and others:
            other = _choose(random, others)
            place = int(random.random() * (len(other) + 1))
            content[start:end] = other[place : place + _length(random)]
        elif kind == 8 and random.random() < 0.2:
            del content[start:]
        else:
            _replace_number(content, start, random)
    return bytes(content)


def _length(random: Random) -> int:
    """Return the length of a piece: mostly short."""
    return int(2 ** (random.random() * 7))


def _choose(random: Random, values: Sequence[Any]) -> Any:
    return values[int(random.random() * len(values))]


def _hostile(random: Random) -> bytes:
    return str(_choose(random, NUMBERS if random.random() < 0.5 else WORDS)).encode()


def _replace_number(content: bytearray, start: int, random: Random) -> None:
    """Replace the first run of digits after a place."""
    digits = b"0123456789"
    while start < len(content) and content[start] not in digits:
        start += 1
    end = start
    while end < len(content) and content[end] in digits:
        end += 1
    if end > start:
        content[start:end] = _choose(random, NUMBERS).encode()


def make_json_mutation(vocabulary: Callable[[], Sequence[str]]) -> Callable[[bytes, Random], bytes]:
    """Return a function that changes some values or keys of a JSON document, and sometimes its text.

    Args:
        vocabulary: Returns names and values that mean something to the reader.
    """

    def mutate(data: bytes, random: Random) -> bytes:
        names = vocabulary()
        if random.random() < 0.2:
            return mutate_bytes(data, random, [json.dumps(_choose(random, names)).encode() for _ in range(4)])
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return mutate_bytes(data, random)
        for _ in range(1 + int(random.random() * 3)):
            document = _mutate_value(document, random, names)
        return json.dumps(document).encode(errors="surrogatepass")

    return mutate


def _mutate_value(value: Any, random: Random, names: Sequence[str]) -> Any:
    """Return a JSON value with one change, in place where that is possible."""
    if not isinstance(value, (dict, list)) or not value or random.random() < 0.1:
        return _grow(value, random, names)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = _choose(random, keys)
    kind = random.random()
    if kind < 0.75:
        value[key] = _mutate_value(value[key], random, names)
    elif kind < 0.85:
        del value[key]
    elif isinstance(value, dict):
        value[_choose(random, names)] = value.pop(key) if kind < 0.9 else _make_value(random, names)
    else:
        value.insert(key, value[key] if kind < 0.95 else _make_value(random, names))
    return value


def _grow(value: Any, random: Random, names: Sequence[str]) -> Any:
    if isinstance(value, dict) and random.random() < 0.7:
        return {**value, _choose(random, names): _make_value(random, names)}
    if isinstance(value, list) and random.random() < 0.5:
        return [*value, _make_value(random, names)]
    if isinstance(value, str) and random.random() < 0.4:
        text = mutate_bytes(value.encode(errors="surrogatepass"), random)
        return text.decode("utf-8", "replace")
    return _make_value(random, names)


def _make_value(random: Random, names: Sequence[str]) -> Any:
    kind = int(random.random() * 10)
    if kind < 3:
        return _choose(random, names)
    if kind < 5:
        return _choose(
            random, (0, 1, -1, 2, 7, 2**31, 2**31 - 1, -(2**31) - 1, 2**63, 2**64, 10**400, 1.5, 1e308, -0.0)
        )
    if kind < 6:
        return _choose(random, (None, True, False, [], {}, "", "1", "0", "true", "-1"))
    if kind < 7:
        return _choose(random, NUMBERS)
    if kind < 8:
        return _choose(random, WORDS)
    if kind < 9:
        return {_choose(random, names): _choose(random, names)}
    return [_choose(random, names), _choose(random, names)]


def mutate_message(message: Any, random: Random, pool: Sequence[Any] = ()) -> None:
    """Change a protobuf message in one place, at any depth.

    Args:
        message: The message, which is changed.
        random: Source of the changes.
        pool: Texts to use.
    """
    filled = [field for field, _ in message.ListFields()]
    deeper = [field for field in filled if field.message_type is not None]
    if deeper and random.random() < 0.85:
        field = _choose(random, deeper)
        value = getattr(message, field.name)
        if not is_repeated(field):
            mutate_message(value, random, pool)
        elif not value:
            return
        elif random.random() < 0.8:
            mutate_message(_choose(random, value), random, pool)
        elif random.random() < 0.4:
            del value[int(random.random() * len(value))]
        else:
            value.add().CopyFrom(_choose(random, value))
        return
    field = _choose(random, filled if filled and random.random() < 0.6 else message.DESCRIPTOR.fields)
    if random.random() < 0.3:
        message.ClearField(field.name)
    elif field.message_type is not None:
        value = getattr(message, field.name)
        value.add() if is_repeated(field) else value.SetInParent()
    else:
        _set_scalar(message, field, random, pool)


def is_repeated(field: Any) -> bool:
    """Return whether a field of a message holds a list."""
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _set_scalar(message: Any, field: Any, random: Random, pool: Sequence[Any]) -> None:
    value = _make_scalar(field, random, pool)
    try:
        if not is_repeated(field):
            setattr(message, field.name, value)
        elif len(getattr(message, field.name)) and random.random() < 0.6:
            values = getattr(message, field.name)
            values[int(random.random() * len(values))] = value
        else:
            getattr(message, field.name).append(value)
    except (TypeError, ValueError):
        pass  # not a value of this field


def _make_scalar(field: Any, random: Random, pool: Sequence[Any]) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        text = _choose(random, pool) if pool and random.random() < 0.6 else _choose(random, (*WORDS, *NUMBERS))
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in {field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE}:
        return _choose(random, (0.0, -1.0, 1e38, float("nan"), float("inf"), 1e-45))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if random.random() < 0.5:
        return int(random.random() * 30)
    return _choose(random, (0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**6, 10**12, 2**40))
