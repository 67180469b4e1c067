"""`ortune apply CONFIG... -- COMMAND`: run a program as it is, with records in force.

Every start of the program waits for this, so that it is parsed here, with the standard library, and nothing that is not
needed is imported. `ortune apply --help`, and all else of that command, is in `ortune/cli/apply.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from ortune.apply.exec import find_program, make_environment, replace_process
from ortune.apply.messages import describe_mismatch, load_of
from ortune.apply.plan import Wish, choose_records, encode_plan, environment_of, make_plan
from ortune.errors import UsageError
from ortune.record.select import Choice


def launch(arguments: list[str]) -> NoReturn:
    """Become the command behind the two dashes.

    Args:
        arguments: Those of `ortune`, from `apply` on.

    Raises:
        OrtuneError: There is no such command, no such option, or no record.
    """
    place = arguments.index("--")
    configs, wish = parse(arguments[1:place])
    command = arguments[place + 1 :]
    program = find_program(command)
    choices = choose_records(configs, wish)
    plan = encode_plan(make_plan(choices, wish, "--explain says why"))
    environment = make_environment(plan, environment_of(choices), os.environ)
    if not wish.quiet:
        sys.stderr.writelines(f"ortune: {line}\n" for line in notes(choices, keep_explicit=wish.keep_explicit))
    replace_process(program, command, environment)


def parse(arguments: list[str]) -> tuple[list[str], Wish]:
    """Return the records and how they are to be used.

    Raises:
        UsageError: There is no record, or an option has no meaning here.
    """
    parser = make_parser()
    given = parser.parse_args(arguments)
    if not given.configs:
        raise UsageError("There is no CONFIG.", "Write: ortune apply tuned.json -- python app.py.")
    for path in given.configs:
        if Path(path).suffix.lower() in {".onnx", ".ort"}:
            raise UsageError(f"{path} is a model: a command finds its own.", "Pass records alone in front of --.")
    if given.explain_json is not None:
        from ortune.record.files import check_writable

        check_writable(given.explain_json, "--explain-json")
    return given.configs, Wish(
        load=load_of(given.clients, given.rate, given.sessions),
        pick=given.pick,
        any_model=given.any_model,
        any_host=given.any_host,
        keep_explicit=given.keep_explicit,
        explain=given.explain,
        explain_json=given.explain_json,
        quiet=given.quiet,
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of what stands before the two dashes."""
    parser = _Parser(prog="ortune apply", add_help=False, allow_abbrev=False)
    parser.add_argument("configs", nargs="*")
    for name in ("--keep-explicit", "--any-model", "--any-host", "--explain"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--explain-json", type=Path)
    parser.add_argument("--pick", type=int)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--rate")
    parser.add_argument("-q", "--quiet", action="store_true")
    return parser


class _Parser(argparse.ArgumentParser):
    """Tells faults as ortune does."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"ortune apply ... -- COMMAND: {message}.", "ortune apply --help shows its options.")


def notes(choices: tuple[Choice, ...], *, keep_explicit: bool) -> list[str]:
    """Return what is told before the program starts."""
    lines = [
        f"{choice.source} for {choice.record.model.path}: {choice.why}"
        if choice.applies
        else f"warning: {describe_mismatch(choice)}"
        for choice in choices
    ]
    if any(choice.applies for choice in choices):
        lines.append(
            "options that the program sets itself win over tuned ones"
            if keep_explicit
            else "tuned options win over those that the program sets itself (--keep-explicit: the reverse)"
        )
    return lines
