"""The JSON Schema of a record."""

from __future__ import annotations

from typing import Any

import msgspec

from ortune.record.schema import Record


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    schema = _dedent(msgspec.json.schema(Record))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ortune record", **schema}


def _dedent(value: Any) -> Any:
    """Take the indentation out of descriptions: Python 3.13 does, earlier versions do not."""
    import inspect

    if isinstance(value, dict):
        return {key: _dedent(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_dedent(each) for each in value]
    return inspect.cleandoc(value) if isinstance(value, str) else value
