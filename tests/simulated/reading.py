"""Reads models in this process, where starting a child process is not the point of a test.

A child takes half a second, most of it to import onnx, which the processes of tests have imported already.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import ModelError
from ortune.model.child import check_file, explain_refusal

READERS = {"ortune.model.inspect": "inspect_model", "ortune.model.graph": "summarize_graph"}
"""The function of each module that its child process calls."""


def read_here(module: str, path: str | Path, kind: type[Any], options: Sequence[str] = ()) -> Any:
    """Return what `read_in_child` returns, without a child."""
    path = Path(path)
    check_file(path)
    reader = getattr(importlib.import_module(module), READERS[module])
    try:
        facts = reader(path.resolve())
    except ModelError as error:
        raise explain_refusal(path, error) from None
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror}.") from None
    return msgspec.json.decode(msgspec.json.encode(facts), type=kind)
