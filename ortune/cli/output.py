"""Machine-readable output on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ortune.sanitize import escape_json


def encode_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as indented JSON; `enc_hook` converts types that msgspec does not know."""
    import msgspec

    document = msgspec.json.format(msgspec.json.encode(value, enc_hook=enc_hook), indent=2)
    return escape_json(document.decode()).encode() + b"\n"


def print_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> None:
    """Print a value as indented JSON to stdout."""
    sys.stdout.buffer.write(encode_json(value, enc_hook))
