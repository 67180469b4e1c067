"""Builds Typer commands from the options that `ortune.requests` declares."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ortune.cli.completion import make_completer
from ortune.cli.defaults import TABLES, read_defaults
from ortune.console.spinner import show_steps
from ortune.errors import OrtuneError, spell_as_flag, spell_options
from ortune.options import DeclaredOption, Request, make_request, options_of, sort_options
from ortune.requests import COMMANDS
from ortune.toml_file import FILES

Values = dict[str, Any]
"""Unparsed values from the command line by option name, without options that are not set."""

Command = Callable[..., None]


def command(
    request: type[Request],
    *more: type[Request],
    optional: frozenset[str] = frozenset(),
    has_steps: bool = False,
) -> Callable[[Command], Command]:
    """Return a decorator that gives a function the options of some requests.

    The function is called with the given values of the first request, unparsed, as it may have to merge them with
    those of a file, and with an object of each further type. Its docstring is the command's help.

    Args:
        request: A class of `ortune.requests`.
        more: Further ones.
        optional: Names of required options that need not be on the command line, as a file can have them.
        has_steps: Whether it shows what it does before it measures; see `ortune.steps`.
    """
    types = (request, *more)
    declared = sort_options({name: declaration for one in types for name, declaration in options_of(one).items()})
    arguments = {name: declaration.flag for name, declaration in declared.items() if declaration.option.positional}
    table = next(name.split()[0] for name, requests in COMMANDS.items() if requests[0] is request)

    def decorate(run: Command) -> Command:
        @functools.wraps(run)
        def wrapper(**given: Any) -> None:
            given = {name: value for name, value in given.items() if value is not None and value != []}
            try:
                first, *rest = ({name: given[name] for name in options_of(one) if name in given} for one in types)
                others = [make_request(one, values, "cli") for one, values in zip(more, rest, strict=True)]
                if table in TABLES:
                    first = {**find_defaults(table, request, first, quiet="quiet" in given), **first}
                with show_steps(quiet=not has_steps or "quiet" in given):
                    run(first, *others)
            except OrtuneError as error:
                if error.option in arguments:
                    error.message = f"{arguments[error.option]} {error.message}"
                    error.option = ""
                raise

        # Typer reads the parameters from the signature.
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                make_parameter(
                    declaration,
                    required=declaration.required and name not in optional,
                    hidden=name in request.refused,
                )
                for name, declaration in declared.items()
            ]
        )
        wrapper.__annotations__ = {}
        return wrapper

    return decorate


def find_defaults(table: str, request: type[Request], given: Values, *, quiet: bool) -> Values:
    """Return the values of a file for options that are not given, and print which they are."""
    defaults = {name: value for name, value in read_defaults(table, request).items() if name not in given}
    if defaults and not quiet:
        from ortune.console.safe_console import SafeConsole

        flags = ", ".join(options_of(request)[name].flag for name in defaults)
        text = f"From [{table}] of {' or '.join(FILES)}: {flags}"
        SafeConsole(stderr=True, soft_wrap=True).print(text, style="dim", markup=False)
    return defaults


def make_parameter(declared: DeclaredOption, *, required: bool, hidden: bool = False) -> inspect.Parameter:
    """Return an option as the parameter of a Typer command. None stands for an option that was not given."""
    option = declared.option
    kind: Any = str
    if option.is_switch:
        kind = bool
    elif option.repeatable:
        kind = list[str]
    text = spell_options(option.describe(), spell_as_flag)
    text += " Can be repeated." if option.repeatable and not option.positional else ""
    text += f" [default: {option.default}]" if option.default else ""
    offer: Any = make_completer(option.metavar)
    if option.positional:
        info = typer.Argument(metavar=option.metavar, help=escape(text), show_default=False, autocompletion=offer)
    else:
        info = typer.Option(
            *option.flags,
            f"{declared.flag}/--no-{declared.key}" if option.negatable else declared.flag,
            metavar=option.metavar,
            help=escape(text),
            hidden=hidden,
            show_default=False,
            rich_help_panel=option.panel,
            autocompletion=offer,
        )
    return inspect.Parameter(
        declared.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind if required else kind | None, info],
        default=inspect.Parameter.empty if required else None,
    )


def escape(text: str) -> str:
    """Return a text without Rich's `[...]` markup."""
    return text.replace("[", "\\[")
