"""Reads an ONNX file in a child process.

Parsing with the onnx package loads the whole file, including weights, and protobuf returns that memory late or never. A
file that crashes the parser crashes only the child.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.errors import ModelError
from ortune.file_kinds import advise_for, find_similar, name_kind, name_special
from ortune.interpreter import PYTHON
from ortune.interrupts import name_signal
from ortune.limited import explain_no_access
from ortune.prctl import die_with_parent, name_parent
from ortune.replaceable import replaceable
from ortune.secret_variables import inherit_environment
from ortune.steps import enter_step

READ_TIMEOUT_S = 600.0

MOST_FACTS_BYTES = 256 << 20
"""Largest size of the facts."""

MODEL_HINT = "Check that the file is complete: onnx.checker.check_model(path) should pass."

NOT_A_MODEL = "is not an ONNX model"
"""In messages about files that cannot be parsed."""

CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")
"""Signals of a process whose own code is at fault."""

Facts = TypeVar("Facts", bound=msgspec.Struct)


class ParserCrashError(ModelError):
    """The child process that reads a model crashed.

    Args:
        path: The model.
        cause: The name of the signal.
    """

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"Cannot read {path}: the parser was ended by {cause}.", MODEL_HINT)
        self.cause = cause


class ParserReply(msgspec.Struct, frozen=True):
    """What the child prints: the facts, or a message and a hint if it cannot read the file."""

    facts: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""
    hint: str = ""


@replaceable
def read_in_child(module: str, path: str | Path, kind: type[Facts], options: Sequence[str] = ()) -> Facts:
    """Run a module on an ONNX file as a child process, and return the facts that it finds.

    Args:
        module: Name of the module. Its main program calls `answer_parent`.
        path: Path of the file.
        kind: Type of the facts.
        options: Further arguments of the module.

    Raises:
        ModelError: The file is missing, or the module cannot read it.
        ParserCrashError: The file crashes the module.
    """
    import subprocess

    path = Path(path)
    check_file(path)
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise ModelError(
            f"{path} has a name or a folder whose name is not UTF-8. ONNX Runtime cannot open such files.",
            "Rename it."
            if sys.getfilesystemencoding() == "utf-8"
            else f"Set PYTHONUTF8=1: the names of files are {sys.getfilesystemencoding()} here. Or rename it.",
        ) from None
    enter_step(f"reading {path.name}")
    command = [*PYTHON, "-m", module, str(path.resolve()), *options]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            env={**inherit_environment(), **name_parent()},
            timeout=READ_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"Reading {path} took more than {READ_TIMEOUT_S:.0f} s.") from None
    if child.returncode < 0:
        name = name_signal(-child.returncode)
        if name in CRASHES:
            raise ParserCrashError(path, name)
        raise ModelError(f"Cannot read {path}: the parser was ended by {name}.")
    if child.returncode:
        last = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        reason = last[0] if last else f"the parser exited with status {child.returncode}"
        raise ModelError(f"Cannot read {path}: {reason}.")
    return parse_reply(child.stdout, path, kind)


def parse_reply(data: bytes, path: Path, kind: type[Facts]) -> Facts:
    """Return the facts in the reply of a child.

    Raises:
        ModelError: The child could not read the file, or what it replied is not a reply.
    """
    try:
        reply = msgspec.json.decode(data, type=ParserReply)
        if not reply.message:
            return msgspec.json.decode(reply.facts, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"Cannot read {path}: the parser gave no valid answer: {error}.") from None
    raise explain_refusal(path, ModelError(reply.message, reply.hint))


def check_file(path: Path) -> None:
    """Check that there is a file.

    Raises:
        ModelError: There is none, or it cannot be accessed.
    """
    if why := explain_no_access(path):
        raise ModelError(f"{path}: {why}.")
    hint = "Pass the path of an .onnx file."
    if special := name_special(path):
        raise ModelError(f"{path} is {special}, not a file.", hint)
    if not path.is_file():
        similar = find_similar(path)
        raise ModelError(f"There is no file {path}.", f"Did you mean {similar}?" if similar else hint)


def explain_refusal(path: Path, error: ModelError) -> ModelError:
    """Return an error for a file that cannot be read as a model: what it is instead, if that is known."""
    kind = name_kind(path) if NOT_A_MODEL in error.message else ""
    if not kind or kind == "an ONNX model":
        return error
    return ModelError(f"{path} is {kind}, not an ONNX model.", advise_for(kind, str(path)) or error.hint)


def answer_parent(read: Callable[[Path], msgspec.Struct]) -> None:
    """Print the facts that `read` finds in the file of the command line, or why it cannot be read."""
    die_with_parent()
    sys.stdout.buffer.write(make_reply(read, Path(sys.argv[1])))


def make_reply(read: Callable[[Path], msgspec.Struct], path: Path) -> bytes:
    """Return the reply of a child: the facts that `read` finds in a file, or why it cannot be read."""
    try:
        facts = msgspec.json.encode(read(path))
        if len(facts) > MOST_FACTS_BYTES:
            raise ModelError(
                f"Cannot read {path}: its graph has more than {MOST_FACTS_BYTES >> 20} MiB without weights."
            )
        reply = ParserReply(facts=msgspec.Raw(facts))
    except ModelError as error:
        reply = ParserReply(message=error.message, hint=error.hint)
    except OSError as error:
        reply = ParserReply(message=f"Cannot read {path}: {error.strerror}.")
    except Exception as error:  # noqa: BLE001  (a file may be malformed in any way)
        fault = explain_fault(f"Cannot read {path}", error)
        reply = ParserReply(message=fault.message, hint=fault.hint)
    return msgspec.json.encode(reply)


def explain_fault(place: str, error: Exception) -> ModelError:
    """Return an error for a part of a model that is malformed in a way that no check expects.

    Args:
        place: The part, such as "node 3 (Gather)".
        error: What reading it raised.
    """
    reason = f"{type(error).__name__}: {error}".partition("\n")[0][:300].rstrip(".: ")
    return ModelError(f"{place}: it is malformed ({reason}).", MODEL_HINT)
