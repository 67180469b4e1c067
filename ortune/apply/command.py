"""`ortune apply CONFIG... -- COMMAND`: run an unmodified program with tuned options.

Every start of the program waits for this module, so it parses its arguments with the standard library and imports only
what it needs. `ortune apply --help` and the other uses of that command are in `ortune/cli/apply.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from pathlib import Path
from typing import NoReturn

import msgspec

from ortune.apply.exec import find_program, make_environment, replace_process
from ortune.apply.messages import describe_mismatch
from ortune.apply.plan import ApplyOptions, choose_records, encode_plan, environment_of, make_plan
from ortune.errors import UsageError, spell_as_flag, spell_options
from ortune.record.select import Choice

SHORT_FLAGS = {"quiet": "-q"}
"""Short flags of options, by name."""


def launch(arguments: list[str]) -> NoReturn:
    """Become the command that follows `--`.

    Args:
        arguments: Those of `ortune`, beginning with `apply`.

    Raises:
        OrtuneError: The command does not exist, an option is not valid, or a record cannot be used.
    """
    separator = arguments.index("--")
    configs, options = parse(arguments[1:separator])
    command = arguments[separator + 1 :]
    program = find_program(command)
    choices = choose_records(configs, options)
    plan = encode_plan(make_plan(choices, options, "--explain shows why"))
    environment = make_environment(plan, environment_of(choices), os.environ)
    if not options.quiet:
        sys.stderr.writelines(f"ortune: {line}\n" for line in notes(choices, keep_explicit=options.keep_explicit))
    replace_process(program, command, environment)


def parse(arguments: list[str]) -> tuple[list[str], ApplyOptions]:
    """Return the paths of the records, and how they are used.

    Raises:
        UsageError: No record is given, or an option is not valid.
    """
    values = vars(make_parser().parse_args(arguments))
    configs = values.pop("configs")
    if not configs:
        raise UsageError("There is no CONFIG.", "Write: ortune apply tuned.json -- python app.py.")
    for path in configs:
        if Path(path).suffix.lower() in {".onnx", ".ort"}:
            raise UsageError(f"{path} is a model. The command loads its own models.", "Pass only records before --.")
    options = ApplyOptions(**values)
    if options.explain_json is not None:
        from ortune.record.files import check_writable

        check_writable(options.explain_json, "explain_json")
    return configs, options


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments before `--`. Its options are the fields of `ApplyOptions`."""
    parser = _Parser(prog="ortune apply", add_help=False, allow_abbrev=False)
    parser.add_argument("configs", nargs="*")
    for field in msgspec.structs.fields(ApplyOptions):
        flags = [spell_as_flag(field.name), *filter(None, [SHORT_FLAGS.get(field.name)])]
        if field.type is bool:
            parser.add_argument(*flags, action="store_true")
        else:
            parser.add_argument(*flags, type=typing.get_args(field.type)[0])
    return parser


class _Parser(argparse.ArgumentParser):
    """Parser that reports errors as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"ortune apply ... -- COMMAND: {message}.", "ortune apply --help shows its options.")


def notes(choices: tuple[Choice, ...], *, keep_explicit: bool) -> list[str]:
    """Return what is printed before the program starts."""
    lines = [
        f"{choice.source} for {choice.record.model.path}: {choice.why}"
        if choice.applies
        else f"warning: {describe_mismatch(choice, spell_as_flag)}"
        for choice in choices
    ]
    if any(choice.applies for choice in choices):
        text = (
            "the program's own options take precedence over tuned ones"
            if keep_explicit
            else "tuned options take precedence over the program's own ({keep_explicit} reverses this)"
        )
        lines.append(spell_options(text, spell_as_flag))
    return lines
