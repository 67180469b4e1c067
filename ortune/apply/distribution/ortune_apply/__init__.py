"""Apply records of ortune: ONNX Runtime settings that were tuned for a model, a host and a load.

    install                                         apply records to all sessions of this process
    create_session, session_options, run_options    apply a record in code
    read_record                                     read a record

Importing this package imports neither onnxruntime nor msgspec.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortune.apply.api import create_session, run_options, session_options
    from ortune.apply.install import install
    from ortune.errors import ModelError, OrtuneError, RecordError, UsageError
    from ortune.record.files import read_record
    from ortune.record.schema import Record

    __version__: str

_HOMES = {
    "apply.api": ("create_session", "run_options", "session_options"),
    "apply.install": ("install",),
    "errors": ("ModelError", "OrtuneError", "RecordError", "UsageError"),
    "record.files": ("read_record",),
    "record.schema": ("Record",),
}
"""Modules of the public names, which are imported on first use."""

__all__ = [
    "ModelError",
    "OrtuneError",
    "Record",
    "RecordError",
    "UsageError",
    "__version__",
    "create_session",
    "install",
    "read_record",
    "run_options",
    "session_options",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("ortune-apply")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
