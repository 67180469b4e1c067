"""Machine-readable output on stdout and in files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortune.errors import UsageError
from ortune.limited import STANDARD_STREAM
from ortune.sanitize import escape_json

if TYPE_CHECKING:
    import msgspec


def encode_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as indented JSON; `enc_hook` converts types that msgspec does not know."""
    import msgspec

    document = msgspec.json.format(msgspec.json.encode(value, enc_hook=enc_hook), indent=2)
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
    from ortune.planning.files import encode_plan, write_plan
    from ortune.record.rescue import rescue

    fault = None
    if output is not None and str(output) != STANDARD_STREAM:
        try:
            write_plan(plan, output)
        except UsageError as error:
            content = encode_plan(plan)
            fault = rescue("plan", output.name, content, lambda path: write_plan(plan, path), error)
    if to_stdout:
        write_plan(plan, Path(STANDARD_STREAM))
    return fault
