"""The JSON Schema of records and bundles."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from ortune.record.schema import Bundle, Record


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file with a record or a bundle."""
    alternatives, definitions = msgspec.json.schema_components((Record, Bundle), ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ortune record",
        "anyOf": list(alternatives),
        "$defs": _dedent(definitions),
    }


def _dedent(value: Any) -> Any:
    """Remove the indentation of descriptions, which Python does itself from 3.13 on."""
    if isinstance(value, dict):
        return {key: _dedent(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dedent(item) for item in value]
    return inspect.cleandoc(value) if isinstance(value, str) else value
