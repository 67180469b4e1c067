"""Explains what `ortune search` needs if its MODEL is something else: a folder, a package, a program, a record."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ortune.cli.after_dashes import SEPARATOR, names_program
from ortune.errors import ModelError, UsageError
from ortune.file_kinds import PROGRAMS
from ortune.options import DeclaredOption, options_of
from ortune.requests import ProgramSearchRequest, SearchOutputOptions, SearchRequest

if TYPE_CHECKING:
    from ortune.model.info import InputInfo

MAX_LISTED = 20
"""Models that are listed."""

MAX_READ_BYTES = 64 << 20
MAX_READ_S = 5.0
"""Models up to this size are read, the first ones of the list, until so much time has passed."""

MAX_RECORD_BYTES = 4 << 20

MAX_DESCRIBED_INPUTS = 4
"""Inputs of a model that are described."""


class Line(NamedTuple):
    """A command line of `ortune search`, as far as it can be read without Typer.

    Attributes:
        options: Names of its options, as they are written.
        before: Words before the first argument.
        arguments: The first argument, and all words after it.
        n_arguments: Number of its arguments.
    """

    options: tuple[str, ...]
    before: tuple[str, ...]
    arguments: tuple[str, ...]
    n_arguments: int


def check_arguments(arguments: Sequence[str]) -> None:
    """Check that a program for `ortune search` follows `--`.

    Args:
        arguments: The arguments of this process.

    Raises:
        UsageError: It does not, or there are options that only programs have, and no program.
    """
    if list(arguments[1:2]) != ["search"] or names_program(arguments):
        return
    own = list(arguments[2:])
    words = own[: own.index(SEPARATOR)] if SEPARATOR in own else own
    if {"-h", "--help"} & set(words):
        return
    line = read_line(words)
    if SEPARATOR not in own and line.arguments and is_program(line.arguments, line.n_arguments):
        command = [*line.before, SEPARATOR, *spell_program(line.arguments)]
        raise UsageError(
            f"There is no -- before {command[len(line.before) + 1]}.", f"Write: ortune search {shlex.join(command)}"
        )
    for_programs = {declaration.flag: name for name, declaration in find_program_options().items()}
    misplaced = next((option for option in line.options if option in for_programs), None)
    if misplaced:
        raise UsageError(
            "is for programs, not for models.",
            "Write the program after --: ortune search [OPTIONS] -- python app.py",
            option=for_programs[misplaced],
        )


def find_program_options() -> dict[str, DeclaredOption]:
    """Return the options that only the search of a program has, by name."""
    others = options_of(SearchRequest)
    return {
        name: declaration
        for name, declaration in options_of(ProgramSearchRequest).items()
        if name not in others and not declaration.option.positional
    }


def read_line(words: Sequence[str]) -> Line:
    """Return the parts of a command line. Options are those of searches of models and of programs."""
    takes_value: dict[str, bool] = {}
    for request in (SearchRequest, ProgramSearchRequest, SearchOutputOptions):
        for declaration in options_of(request).values():
            if not declaration.option.positional:
                takes_value |= dict.fromkeys(
                    (declaration.flag, *declaration.option.flags), not declaration.option.is_switch
                )
    options, first, n_arguments = [], len(words), 0
    position = 0
    while position < len(words):
        word = words[position]
        if word.startswith("-") and len(word) > 1:
            name = word.partition("=")[0] if word.startswith("--") else word
            if n_arguments == 0 or name in takes_value:
                options.append(name)
            position += 2 if takes_value.get(name) and "=" not in word else 1
            continue
        if n_arguments == 0:
            first = position
        n_arguments += 1
        position += 1
    return Line(tuple(options), tuple(words[:first]), tuple(words[first:]), n_arguments)


def is_program(words: Sequence[str], n_arguments: int) -> bool:
    """Return whether arguments look like a program, not like a model.

    Args:
        words: The first argument, and all words after it.
        n_arguments: How many of them are no options.
    """
    path = Path(words[0])
    if path.suffix.lower() in {".onnx", ".ort"} or path.is_dir():
        return False
    if path.suffix.lower() == ".py" or PROGRAMS.fullmatch(path.name):
        return True
    return n_arguments > 1 and not path.is_file() and shutil.which(words[0]) is not None


def spell_program(words: Sequence[str]) -> list[str]:
    """Return a command that runs a program; for a script, with the interpreter before it."""
    return ["python", *words] if Path(words[0]).suffix.lower() == ".py" else list(words)


def check_model(model: str) -> None:
    """Check that MODEL is a file, and not a record. What is in the file is checked when it is read.

    Raises:
        UsageError: It is a folder, a package or a record.
    """
    path = Path(model)
    try:
        if path.is_dir():
            raise list_models(path, model)
        if path.is_file():
            check_no_record(path)
            return
        exists = path.exists()
    except (OSError, ValueError):  # the name is too long, or has a null character
        return
    if not exists and path.name == model and path.suffix.lower() not in {".onnx", ".ort"}:
        from ortune.model.find import find_place

        place = find_place(model)
        if place:
            raise list_models_of_place(model, place.kind, place.folders, place.files)


def check_no_record(path: Path) -> None:
    """Check that a file is not a record.

    Raises:
        UsageError: It is one.
    """
    from ortune.file_kinds import is_record
    from ortune.limited import TooLargeError, read_limited

    try:
        with path.open("rb") as file:
            if file.read(64).lstrip()[:1] != b"{":
                return
        if not is_record(read_limited(path, MAX_RECORD_BYTES, only_regular=True)):
            return
    except (OSError, TooLargeError):
        return
    quoted = shlex.quote(str(path))
    raise UsageError(
        f"{path} is a record, not a model.",
        f"Use it: ortune apply {quoted} -- COMMAND. Measure it again: ortune bench MODEL {quoted}.",
    )


def list_models(folder: Path, name: str) -> UsageError:
    """Return an error that lists the models in a folder."""
    return list_models_of_place(name, "folder", (folder,), ())


def list_models_of_place(name: str, kind: str, folders: Sequence[Path], files: Sequence[Path]) -> UsageError:
    """Return an error that lists the models at a place.

    Args:
        name: What the user wrote.
        kind: What it is.
        folders: Folders to search.
        files: Further files.
    """
    from ortune.console.widgets import format_count
    from ortune.model.find import find_models

    found = find_models(folders, files)
    title = f"{name} is a {kind}"
    missed = []
    if found.n_links:
        missed.append(f"{format_count(found.n_links, 'link')} that lead out of it are not followed")
    if not found.is_complete:
        missed.append("it is too large to be searched completely")
    note = f" ({', '.join(missed)})" if missed else ""
    if not found.models:
        return UsageError(
            f"{title}, and no .onnx or .ort file is in it{note}.",
            "Pass the path of an .onnx file. For a program, `ortune inspect -- COMMAND` shows which models it loads.",
        )
    details = []
    end_s = time.monotonic() + MAX_READ_S
    for model in found.models[:MAX_LISTED]:
        facts = describe_file(model.path, model.size_bytes, may_read=time.monotonic() < end_s, is_ort=model.is_ort)
        details += [facts[0], f"  {facts[1]}"]
    if len(found.models) > MAX_LISTED:
        details.append(f"and {len(found.models) - MAX_LISTED} more")
    return UsageError(
        f"{title} with {format_count(len(found.models), 'model')}{note}. Search one of them:",
        "For a program, `ortune inspect -- COMMAND` shows which of them it uses, and with which shapes. "
        "`ortune search -- COMMAND` tunes them together, in the program.",
        details=details,
    )


def describe_file(path: Path, size_bytes: int, *, may_read: bool, is_ort: bool) -> tuple[str, str]:
    """Return the command that searches a model, and its size, inputs and traits.

    Args:
        path: Path of the file.
        size_bytes: Its size, with external data.
        may_read: Whether there is time to read it.
        is_ort: Whether it is in ORT format.
    """
    from ortune.console.header import list_traits
    from ortune.console.widgets import format_bytes
    from ortune.model import read_model

    size = format_bytes(size_bytes)
    if is_ort:
        return str(path), f"{size}, ORT format: search the .onnx file that it was made from"
    shown = f"./{path}" if str(path).startswith("-") else str(path)
    command = f"ortune search {shlex.quote(shown)}"
    if not may_read or size_bytes > MAX_READ_BYTES:
        return command, size
    try:
        info = read_model(path)
    except ModelError:
        return command, f"{size}, cannot be read as a model"
    inputs = [describe_input(model_input) for model_input in info.inputs[:MAX_DESCRIBED_INPUTS]]
    inputs += ["..."] if len(info.inputs) > MAX_DESCRIBED_INPUTS else []
    return command, "; ".join([", ".join([size, *list_traits(info)]), *inputs])


def describe_input(model_input: InputInfo) -> str:
    """Return the name, type and shape of an input."""
    sizes = ["?" if size is None else str(size) for size in model_input.shape or ()]
    return f"{model_input.name} {model_input.dtype}[{','.join(sizes)}]"
