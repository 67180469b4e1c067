"""Names usual mistakes in a command line, before Typer parses it: commands and options that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ortune.cli.after_dashes import NAMES, SEPARATOR, names_program
from ortune.errors import UsageError
from ortune.options import DeclaredOption, options_of
from ortune.requests import COMMANDS, GROUPS, name_command

OTHER_COMMANDS = {
    "tune": "search",
    "optimize": "search",
    "find": "search",
    "run": "apply",
    "use": "apply",
    "export": "apply",
    "convert": "apply",
    "benchmark": "bench",
    "compare": "bench",
    "measure": "bench",
    "check": "gate",
    "diagnose": "doctor",
    "options": "knobs",
    "settings": "knobs",
}
"""What users call commands, and their names here."""

OTHER_OPTIONS = {
    "--threads": "--tune intra_op_num_threads=1,2",
    "--num-threads": "--tune intra_op_num_threads=1,2",
    "--intra-op-num-threads": "--tune intra_op_num_threads=1,2",
    "--batch-size": "--batch 1",
    "--device": "--provider cuda",
    "--gpu": "--provider cuda",
    "--ep": "--provider cuda",
    "--time": "--budget 60s",
    "--timeout": "--budget 60s",
    "--duration": "--budget 60s",
    "--qps": "--rate 50/s",
    "--concurrency": "--clients 4",
    "--workers": "--processes 4",
    "--metric": "--objective p99",
    "--input-shape": "--shape INPUT=1x3x224x224",
    "--data": "--inputs data.npz",
    "--out": "--output FILE",
    "--format": "--to python",
    "--target": "--to python",
}
"""What users call options, and what to write here."""

ALWAYS = frozenset({"--help", "-h"})


def check_words(arguments: Sequence[str]) -> None:
    """Check that the command and its options exist.

    Args:
        arguments: The arguments of this process.

    Raises:
        UsageError: One of them does not. The error says what was probably meant.
    """
    if len(arguments) < 2 or arguments[1].startswith("-"):
        return
    if arguments[1] in GROUPS and (len(arguments) < 3 or ALWAYS & {arguments[2]}):
        return
    command = name_command(arguments[1:])
    if command not in COMMANDS:
        raise UsageError(f"{command}: there is no such command.", suggest_command(command, arguments[2:]))
    if command == "inspect":
        return  # what follows the first word belongs to the program
    words = list(arguments[1 + len(command.split()) :])
    words = words[: words.index(SEPARATOR)] if SEPARATOR in words else words
    if ALWAYS & set(words):
        return
    declared = find_flags(NAMES[command] if names_program(arguments) else command)
    others = find_flags(NAMES[command]) if command in NAMES else {}
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--") or word == SEPARATOR:
            position += word.startswith("-") and word in declared and not declared[word].option.is_switch
            continue
        flag = word.partition("=")[0]
        if flag in declared:
            position += "=" not in word and not declared[flag].option.is_switch and not is_negation(flag)
        elif flag not in others:
            if flag in find_flags(command):
                raise UsageError(f"{flag}: ortune {command} has this option for models only.", "Leave it out.")
            raise UsageError(f"{flag}: ortune {command} has no such option.", suggest_option(flag, command, declared))


def find_flags(command: str) -> Mapping[str, DeclaredOption]:
    """Return the options of a command by each of their spellings."""
    found: dict[str, DeclaredOption] = {}
    for request in COMMANDS[command]:
        for declaration in options_of(request).values():
            if not declaration.option.positional and "cli" in declaration.option.interfaces:
                negated = (f"--no-{declaration.key}",) if declaration.option.negatable else ()
                found |= dict.fromkeys((declaration.flag, *declaration.option.flags, *negated), declaration)
    return found


def is_negation(flag: str) -> bool:
    """Return whether a flag turns something off."""
    return flag.startswith("--no-")


def suggest_command(command: str, rest: Sequence[str]) -> str:
    """Return what was probably meant instead of an unknown command."""
    names = [name for name in COMMANDS if SEPARATOR not in name]
    group = command.partition(" ")[0]
    if group in GROUPS:
        of_group = [name for name in names if name.startswith(f"{group} ")]
        if near := _find_near(command, of_group):
            return f"Did you mean {near}?"
        return f"The commands are {', '.join(of_group)}."
    near = OTHER_COMMANDS.get(command.lower()) or _find_near(command, names)
    if Path(command).suffix.lower() in {".onnx", ".ort"}:
        return f"It is a model: ortune search {command}"
    if near:
        return f"Did you mean {near}? Write: ortune {' '.join([near, *rest])}"
    return f"The commands are {', '.join(names)}."


def suggest_option(flag: str, command: str, declared: Mapping[str, DeclaredOption]) -> str:
    """Return what was probably meant instead of an unknown option."""
    positional = {
        f"--{declaration.option.metavar.lower()}": declaration.option.metavar
        for request in COMMANDS[command]
        for declaration in options_of(request).values()
        if declaration.option.positional
    }
    if flag in positional:
        return f"{positional[flag]} is an argument: write it without {flag}."
    known = OTHER_OPTIONS.get(flag, "")
    if known and known.split()[0] in declared:
        return f"Write {known}."
    if near := _find_near(flag, declared):
        return f"Did you mean {near}?"
    homes = [name for name in COMMANDS if SEPARATOR not in name and flag in find_flags(name)]
    if homes:
        return f"It is an option of ortune {homes[0]}."
    return f"List its options: ortune {command} --help"


def _find_near(word: str, words: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word.lower(), list(words), n=1, cutoff=0.7)), "")
