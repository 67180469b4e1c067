"""Reads an ONNX file in a child process.

Parsing with the onnx package loads the whole file, including weights, and protobuf returns that memory late or never. A
file that crashes the parser crashes only the child.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.errors import ModelError

READ_TIMEOUT_S = 600.0

Facts = TypeVar("Facts", bound=msgspec.Struct)


class ParserReply(msgspec.Struct, frozen=True):
    """What the child prints: the facts, or a message and a hint if it cannot read the file."""

    facts: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""
    hint: str = ""


def read_in_child(module: str, path: str | Path, kind: type[Facts]) -> Facts:
    """Run a module on an ONNX file as a child process, and return the facts that it finds.

    Args:
        module: Name of the module. Its main program calls `answer_parent`.
        path: Path of the file.
        kind: Type of the facts.

    Raises:
        ModelError: The file is missing, or the module cannot read it.
    """
    import subprocess

    path = Path(path)
    if not path.is_file():
        message = f"{path} is not a file." if path.exists() else f"There is no file {path}."
        raise ModelError(message, "Pass the path of an .onnx file.")
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise ModelError(
            f"{path} has a name or a folder whose name is not UTF-8. ONNX Runtime cannot open such files.",
            "Rename it."
            if sys.getfilesystemencoding() == "utf-8"
            else f"Set PYTHONUTF8=1: the names of files are {sys.getfilesystemencoding()} here. Or rename it.",
        ) from None
    command = [sys.executable, "-P", "-m", module, str(path.resolve())]
    try:
        child = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False)
        reply = msgspec.json.decode(child.stdout, type=ParserReply)
    except subprocess.TimeoutExpired:
        raise ModelError(f"Reading {path} took more than {READ_TIMEOUT_S:.0f} s.") from None
    except msgspec.DecodeError:
        last = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        reason = last[0] if last else f"the parser exited with status {child.returncode}"
        raise ModelError(f"Cannot read {path}: {reason}.") from None
    if reply.message:
        raise ModelError(reply.message, reply.hint)
    return msgspec.json.decode(reply.facts, type=kind)


def answer_parent(read: Callable[[Path], msgspec.Struct]) -> None:
    """Print the facts that `read` finds in the file of the command line, or why it cannot be read."""
    try:
        reply = ParserReply(facts=msgspec.Raw(msgspec.json.encode(read(Path(sys.argv[1])))))
    except ModelError as error:
        reply = ParserReply(message=error.message, hint=error.hint)
    except OSError as error:
        reply = ParserReply(message=f"Cannot read {sys.argv[1]}: {error.strerror}.")
    sys.stdout.buffer.write(msgspec.json.encode(reply))
