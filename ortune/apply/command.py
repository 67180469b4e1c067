"""`ortune apply CONFIG... -- COMMAND`: run an unmodified program with tuned options.

The program starts only after this module has run. The module therefore parses its arguments with the standard library
and imports only what it needs. `ortune/cli/apply.py` implements `ortune apply --help` and other uses of the command.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from ortune.apply.canary import describe_canary, plan_canary
from ortune.apply.exec import find_program, make_environment, replace_process
from ortune.apply.messages import describe_left_out, describe_mismatch, describe_missing_cache
from ortune.apply.placeholders import fill_command, find_own_workers
from ortune.apply.plan import (
    choose_for,
    encode_plan,
    environment_of,
    find_doubts,
    find_foreign_settings,
    make_hook_plan,
    missing_allocators,
    read_for,
)
from ortune.errors import UsageError, spell_as_flag, spell_options
from ortune.naming import COMMAND
from ortune.options import make_request, options_of
from ortune.program_options import ProgramRequest
from ortune.record.select import SelectedRecord
from ortune.sanitize import printable


def launch(arguments: list[str]) -> NoReturn:
    """Replace this process with the command that follows `--`.

    Args:
        arguments: The arguments of `ortune apply`.

    Raises:
        OrtuneError: The command does not exist, an option is not valid, or a record cannot be used.
    """
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    request = parse(arguments[:separator])
    command = arguments[separator + 1 :]
    program = find_program(command)
    records = read_for(request.files, request)
    choices = choose_for(records, request)
    canary = plan_canary(records, choices, request)
    workers = find_workers(choices)
    has_place = find_own_workers(command) > 0
    command = fill_command(command, workers=workers)
    plan = encode_plan(make_hook_plan(choices, request, "--explain shows why", canary))
    environment = make_environment(plan, environment_of(choices), os.environ)
    if not request.quiet:
        lines = [*notes(choices, keep_explicit=request.keep_explicit), *describe_canary(canary)]
        if workers and not has_place:
            lines.append(f"the config is for {workers} workers. COMMAND has no {{workers}}, so it must start as many.")
        sys.stderr.writelines(f"ortune: {line}\n" for line in lines)
    replace_process(program, command, environment)


def find_workers(choices: tuple[SelectedRecord, ...]) -> int:
    """Return the number of worker processes that the records in use ask for; 0 for that of the command."""
    return max((choice.record.config.workers for choice in choices if choice.applies), default=0)


def parse(arguments: list[str]) -> ProgramRequest:
    """Return the records and how to use them.

    Raises:
        UsageError: No record is given and nothing is to be explained, or an option is not valid.
    """
    given = vars(make_parser().parse_args(arguments))
    request = make_request(ProgramRequest, {name: value for name, value in given.items() if value}, "cli")
    if not request.files and request.canary is not None:
        raise UsageError("needs a CONFIG.", f"Write: {COMMAND} tuned.json ... -- python app.py.", option="canary")
    if not request.files and not request.explain and request.explain_json is None:
        raise UsageError(
            "There is no CONFIG.",
            f"Write: {COMMAND} tuned.json -- python app.py. Without one, {{explain}} shows the sessions as they are.",
        )
    for path in request.files:
        if Path(path).suffix.lower() in {".onnx", ".ort"}:
            raise UsageError(f"{path} is a model. The command loads its own models.", "Pass only records before --.")
    if request.explain_json is not None:
        from ortune.record.files import check_writable

        check_writable(request.explain_json, "explain_json")
    return request


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments before `--`, made from the options of `ProgramRequest`."""
    parser = _Parser(
        prog=COMMAND,
        usage=f"{COMMAND} CONFIG... [OPTION...] -- COMMAND",
        description="Run a program with the settings of records in all sessions that load their models.",
        add_help=False,
        allow_abbrev=False,
    )
    for name, declared in options_of(ProgramRequest).items():
        option = declared.option
        meaning = spell_options(option.describe(), spell_as_flag).replace("%", "%%")
        if option.positional:
            parser.add_argument(name, nargs="*", metavar="CONFIG", help="record or bundle")
        elif option.is_switch:
            parser.add_argument(declared.flag, *option.flags, action="store_true", help=meaning)
        else:
            parser.add_argument(declared.flag, *option.flags, metavar=option.metavar, help=meaning)
    return parser


class _Parser(argparse.ArgumentParser):
    """Parser that reports errors as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{COMMAND} ... -- COMMAND: {message}.", f"{COMMAND} --help shows its options.")


def notes(choices: tuple[SelectedRecord, ...], *, keep_explicit: bool) -> list[str]:
    """Return the message to print before the program starts."""
    lines = [
        printable(f"{choice.source} for {choice.record.model.path}: {choice.why}")
        if choice.applies
        else f"warning: {describe_mismatch(choice, spell_as_flag)}"
        for choice in choices
    ]
    left_out = [text for choice in choices if choice.applies and (text := describe_left_out(choice))]
    doubts = (*find_foreign_settings(choices), *find_doubts(choices))
    lines += [f"warning: {text}" for text in (*left_out, *missing_allocators(choices), *doubts)]
    lines += [
        text for choice in choices if choice.applies and (text := describe_missing_cache(choice.record, spell_as_flag))
    ]
    if any(choice.applies for choice in choices):
        text = (
            "the program's own options take precedence over tuned ones"
            if keep_explicit
            else "tuned options take precedence over the program's own ({keep_explicit} reverses this)"
        )
        lines.append(spell_options(text, spell_as_flag))
    return lines
