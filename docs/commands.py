"""Finds the commands that the pages show, and checks that the command line of ortune accepts them.

Every indented or fenced block without a language holds commands, or lines after `$ ` and their output. Tests run all of
them, except for those that `docs/commands.toml` lists with the reason; of these, the options and values are checked.
"""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer
from markdown_it import MarkdownIt
from typer.main import get_command

from ortune.apply.command import parse as parse_apply
from ortune.cli import app
from ortune.cli.after_dashes import SEPARATOR, route
from ortune.cli.plan_several import route_several
from ortune.errors import UsageError
from ortune.options import make_request, options_of
from ortune.requests import COMMANDS, GROUPS

ROOT = Path(__file__).parent.parent
RULES = ROOT / "docs" / "commands.toml"

SHELLS = {"", "bash", "console", "sh", "shell"}
"""Languages of blocks that hold commands."""

ENDS = {"|", "||", "&&", ";", ">", ">>", "<"}
"""Words that end a command in a line of a shell."""


class Rule(NamedTuple):
    """Commands that are not run, or blocks that are not commands.

    Attributes:
        start: Regular expression for the start of the command, or of the block.
        reason: Why it is not run; what the block is.
    """

    start: str
    reason: str


class Command(NamedTuple):
    """A command in a page.

    Attributes:
        page: Path of the page.
        line: Number of the first line of its block.
        text: The command.
        rule: The rule that says why it is not run; None if it is.
    """

    page: Path
    line: int
    text: str
    rule: Rule | None


def read_rules() -> dict[str, list[Rule]]:
    """Return the rules, by kind: `not_run` and `output`."""
    document = tomllib.loads(RULES.read_text())
    return {kind: [Rule(**rule) for rule in rules] for kind, rules in document.items()}


def find_pages() -> list[Path]:
    """Return all pages: those of the root, of docs/ and of examples/."""
    names = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
    return [*(ROOT / name for name in names), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]


def find_commands(page: Path, rules: dict[str, list[Rule]]) -> Iterator[Command]:
    """Yield the commands of a page."""
    for line, block in find_blocks(page.read_text()):
        if any(re.match(rule.start, block) for rule in rules["output"]):
            continue
        for text in split_block(block):
            rule = next((candidate for candidate in rules["not_run"] if re.match(candidate.start, text)), None)
            yield Command(page, line, text, rule)


def find_blocks(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each block of commands in a page."""
    for token in MarkdownIt("commonmark").parse(page):
        if token.type == "code_block" or (token.type == "fence" and token.info.strip() in SHELLS):
            assert token.map
            yield token.map[0] + 1, token.content


def split_block(block: str) -> list[str]:
    """Return the commands of a block. If any line starts with `$ `, the other lines are output."""
    lines = block.replace("\\\n", " ").splitlines()
    shown = [line[2:] for line in lines if line.startswith("$ ")]
    return shown or [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def find_calls(text: str) -> Iterator[list[str]]:
    """Yield the words of each call of ortune in a command."""
    words = shlex.split(text, comments=True)
    for place, word in enumerate(words):
        if re.fullmatch(r"(\S*/bin/)?(ortune|ortune-apply)", word):
            end = next((n for n in range(place, len(words)) if words[n] in ENDS), len(words))
            yield [Path(word).name, *words[place + 1 : end]]


def check_call(words: Sequence[str]) -> None:
    """Check that a command exists, and that its options and their values are legal.

    Args:
        words: `ortune` or `ortune-apply`, and the arguments.

    Raises:
        UsageError: There is no such command or option, or a value is not legal.
    """
    try:
        parse_call(words)
    except Exception as error:
        # Typer raises the exceptions of click, or of its own copy of click.
        if describe := getattr(error, "format_message", None):
            raise UsageError(describe()) from None
        raise


@functools.cache
def build_group() -> Any:
    """Build the group of all commands, which takes a tenth of a second."""
    return get_command(app)


def parse_call(words: Sequence[str]) -> None:
    """Parse a command as ortune does, up to the values of its options."""
    if words[0] == "ortune-apply":
        words = ["ortune", "apply", *words[1:]]
    arguments = route_several(route(words))
    if arguments[1:2] == ["apply"] and SEPARATOR in arguments:
        parse_apply(list(arguments[2 : arguments.index(SEPARATOR)]))
        return
    if arguments[1] in GROUPS:
        arguments[1:3] = [" ".join(arguments[1:3])]
    group = build_group()
    context = typer.Context(group)
    if arguments[1].startswith("-"):
        group.make_parser(context).parse_args(arguments[1:])
        return
    command = group.get_command(context, arguments[1])
    if command is None:
        raise UsageError(f"{arguments[1]}: there is no such command.")
    given = command.make_context(arguments[1], arguments[2:], parent=context).params
    values = {name: value for name, value in given.items() if value not in (None, [], ())}
    for request in COMMANDS[arguments[1]]:
        own = {name: value for name, value in values.items() if name in options_of(request)}
        if "base" in options_of(request) and "base" not in own:
            own["base"] = "from the file"
        make_request(request, own, "cli")
