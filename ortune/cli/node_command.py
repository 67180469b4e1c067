"""Reads the command that `ortune fleet deploy` writes, so that a mistake is found here and not on all nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from ortune.cli.after_dashes import names_program
from ortune.cli.apply import apply
from ortune.cli.explain_model import check_arguments
from ortune.cli.search import search
from ortune.cli.unknown_words import check_words
from ortune.errors import UsageError
from ortune.fleet_options import NO_CREDENTIALS, has_password
from ortune.options import make_request, options_of
from ortune.requests import COMMANDS

OF_ONE_HOST = ("output", "open", "resume", "restart", "study", "storage")
"""Options that make no sense on several nodes, or that `ortune fleet deploy` has itself."""


class Form(NamedTuple):
    """A command that nodes can run.

    Attributes:
        words: Its name, in words.
        run: Its function.
        more: Options that are added.
        writes_record: Whether it writes a record.
    """

    words: tuple[str, ...]
    run: Callable[..., None]
    more: tuple[str, ...] = ()
    writes_record: bool = False


FORMS = {
    "search": Form(("search",), search, writes_record=True),
    "verify": Form(("apply",), apply, ("--verify",)),
}
"""The values of --run."""


class NodeCommand(NamedTuple):
    """A command that has been checked.

    Attributes:
        command: `ortune` and the name of the command.
        arguments: Its arguments.
        request: Its options.
        writes_record: Whether it writes a record.
    """

    command: tuple[str, ...]
    arguments: tuple[str, ...]
    request: Any
    writes_record: bool


def read_node_command(name: str, words: Sequence[str]) -> NodeCommand:
    """Parse a command as ortune will on the nodes, up to what depends on files.

    Args:
        name: A key of `FORMS`.
        words: What follows `--`.

    Raises:
        UsageError: An option does not exist, has a value that is not valid, holds a password, or is for a single host.
    """
    form = FORMS[name]
    if any(map(has_password, words)):
        raise UsageError("What follows -- holds a password, which must not be in a file like this.", NO_CREDENTIALS)
    given = [*(word for word in form.more if word not in words), *words]
    arguments = ["ortune", *form.words, *given]
    if names_program(arguments):
        raise UsageError("There is a second --: nodes run searches of models.", "Leave it out, and name a model.")
    check_words(arguments)
    check_arguments(arguments)
    request_type = COMMANDS[form.words[0]][0]
    values = {name: value for name, value in parse(form, given).items() if value not in (None, [], ())}
    for option in OF_ONE_HOST:
        if values.get(option):
            raise UsageError("must not follow --: each node needs its own.", "Leave it out.", option=option)
    request = make_request(request_type, {key: values[key] for key in options_of(request_type) if key in values}, "cli")
    return NodeCommand(("ortune", *form.words), tuple(given), request, form.writes_record)


def parse(form: Form, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of all options, by name.

    Raises:
        UsageError: An option does not exist, or lacks its value.
    """
    alone = typer.Typer(add_completion=False)
    alone.command(context_settings={"help_option_names": ["-h", "--help"]})(form.run)
    try:
        return dict(get_command(alone).make_context(" ".join(("ortune", *form.words)), list(words)).params)
    except Exception as error:
        # Typer raises the exceptions of click, or of its own copy of click.
        if describe := getattr(error, "format_message", None):
            raise UsageError(describe(), f"See: ortune {' '.join(form.words)} --help") from None
        raise
