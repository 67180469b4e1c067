"""Checks the text of a JSON document before it is decoded: what would take much memory, and what is ambiguous."""

from __future__ import annotations

import json
from collections import Counter

MOST_CONTAINERS = 1_000_000
MOST_TEXTS = 2_000_000
"""Numbers of lists and objects, and of texts and names, in a document. Each takes fifty bytes or more, however short it
is. A record has one in ten bytes at most."""

LONGEST_JSON_TEXT = 1 << 16
"""Number of characters of a text. The longest values of settings have 8192."""

LONGEST_SHOWN_NAME = 100
"""Number of characters of a name that a message shows."""


def check_json_text(data: bytes) -> None:
    """Check the text of a JSON document. What is not JSON is left to the decoder.

    Args:
        data: The text, which is short enough to be read into memory.

    Raises:
        ValueError: It has too many parts, or parts that are too long. Or a name occurs twice in an object, so that
            readers could take it for something else than ortune does. The message is part of a sentence.
        RecursionError: It is nested too deeply.
    """
    if data.count(b"{") + data.count(b"[") > MOST_CONTAINERS:
        raise ValueError(f"it has more than {MOST_CONTAINERS} lists and objects")
    if data.count(b'"') > 2 * MOST_TEXTS:
        raise ValueError(f"it has more than {MOST_TEXTS} texts and names")
    try:
        # Numbers of any length are skipped, and objects are not kept.
        json.loads(data, object_pairs_hook=_check_object, parse_int=len, parse_float=len)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return


def _check_object(pairs: list[tuple[str, object]]) -> None:
    """Check the names and texts of an object. The objects in it were checked before, and are None."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"the name {twice[:LONGEST_SHOWN_NAME]!r} occurs twice in an object")
    for name, value in pairs:
        for text in value if isinstance(value, list) else (name, value):
            if isinstance(text, str) and len(text) > LONGEST_JSON_TEXT:
                raise ValueError(
                    f"the text of {name[:LONGEST_SHOWN_NAME]!r} has more than {LONGEST_JSON_TEXT} characters"
                )
