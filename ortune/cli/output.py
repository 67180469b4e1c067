"""Machine-readable output on stdout and in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.limited import STANDARD_STREAM
from ortune.sanitize import encode_json as encode_line
from ortune.sanitize import escape_json

if TYPE_CHECKING:
    import msgspec

    from ortune.errors import UsageError


def encode_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as indented JSON; `enc_hook` converts types that msgspec does not know."""
    import msgspec

    document = msgspec.json.format(encode_line(value, enc_hook), indent=2)
    return escape_json(document.decode()).encode() + b"\n"


def print_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> None:
    """Print a value as indented JSON to stdout."""
    sys.stdout.buffer.write(encode_json(value, enc_hook))


def write_found(plan: msgspec.Struct, output: Path | None, *, to_stdout: bool) -> UsageError | None:
    """Write a plan to a file, to stdout, or to both.

    Args:
        plan: A plan of any kind.
        output: The file; None or `-` for none.
        to_stdout: Whether to write it to stdout.

    Returns:
        Why the file cannot be written, and where the plan is instead; None if it was written.

    Raises:
        UsageError: Stdout cannot be written.
    """
    from ortune.planning.files import save_plan, write_plan

    fault = None
    if output is not None and str(output) != STANDARD_STREAM:
        fault = save_plan(plan, output)
    if to_stdout:
        write_plan(plan, Path(STANDARD_STREAM))
    return fault
