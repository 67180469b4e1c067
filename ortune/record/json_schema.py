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
        "$defs": _make_uniform(definitions),
    }


def _make_uniform(value: Any) -> Any:
    """Return a part of a schema without what depends on the versions of Python and msgspec.

    Python removes the indentation of descriptions from 3.13 on. msgspec lists names of properties from 0.23 on.
    """
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "propertyNames" or "enum" not in item}
        return {key: _make_uniform(item) for key, item in kept.items()}
    if isinstance(value, list):
        return [_make_uniform(item) for item in value]
    return inspect.cleandoc(value) if isinstance(value, str) else value
