"""Reads an ONNX file in a process of its own: weights never enter the caller's, and only facts come back as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.errors import ModelError

READ_TIMEOUT_S = 600.0

Facts = TypeVar("Facts", bound=msgspec.Struct)


class Answer(msgspec.Struct, frozen=True):
    """What the child says: the facts, or with a message why the file cannot be read."""

    facts: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""
    hint: str = ""


def read_in_child(module: str, path: str | Path, kind: type[Facts]) -> Facts:
    """Return what a module finds in an ONNX file.

    Args:
        module: Its name; run as a program it calls `answer_parent`.
        path: The file.
        kind: Type of what it finds.

    Raises:
        ModelError: The file is missing, or the module cannot read it.
    """
    import subprocess

    path = Path(path)
    if not path.is_file():
        what = f"{path} is not a file." if path.exists() else f"There is no file {path}."
        raise ModelError(what, "Pass the path of an .onnx file.")
    command = [sys.executable, "-P", "-m", module, str(path.resolve())]
    try:
        child = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False)
        answer = msgspec.json.decode(child.stdout, type=Answer)
    except subprocess.TimeoutExpired:
        raise ModelError(f"Reading {path} took more than {READ_TIMEOUT_S:.0f} s.") from None
    except msgspec.DecodeError:
        last = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        reason = last[0] if last else f"its reader ended with status {child.returncode}"
        raise ModelError(f"Cannot read {path}: {reason}.") from None
    if answer.message:
        raise ModelError(answer.message, answer.hint)
    return msgspec.json.decode(answer.facts, type=kind)


def answer_parent(read: Callable[[Path], msgspec.Struct]) -> None:
    """Print what is found in the file that the command line names, or the fault."""
    try:
        answer = Answer(facts=msgspec.Raw(msgspec.json.encode(read(Path(sys.argv[1])))))
    except ModelError as error:
        answer = Answer(message=error.message, hint=error.hint)
    except OSError as error:
        answer = Answer(message=f"Cannot read {sys.argv[1]}: {error.strerror}.")
    sys.stdout.buffer.write(msgspec.json.encode(answer))
