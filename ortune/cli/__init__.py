"""The command line: one module for each command. Heavy modules are imported inside the command that needs them."""

from __future__ import annotations

import copy
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO, cast

import typer
import typer.core
from typer.main import get_command_name

from ortune import __version__
from ortune.cli.after_dashes import NAMES, SEPARATOR, route
from ortune.cli.apply import apply
from ortune.cli.bench import bench
from ortune.cli.completion import prepare_completion
from ortune.cli.doctor import doctor
from ortune.cli.explain_model import check_arguments
from ortune.cli.fleet import compare, send
from ortune.cli.fleet_deploy import deploy
from ortune.cli.fleet_storage import collect, expire, status
from ortune.cli.gate import gate
from ortune.cli.gate_program import gate_program
from ortune.cli.host import host
from ortune.cli.inspect import inspect
from ortune.cli.knobs import knobs
from ortune.cli.merge import merge
from ortune.cli.plan import plan
from ortune.cli.plan_several import NAME as PLAN_SEVERAL
from ortune.cli.plan_several import plan_several, route_several
from ortune.cli.profile import profile
from ortune.cli.report import report
from ortune.cli.safe_stream import SafeStream
from ortune.cli.search import search
from ortune.cli.search_program import search_program
from ortune.cli.space import space
from ortune.cli.suggest import suggest
from ortune.cli.unknown_words import check_words
from ortune.cli.verify_program import verify_program
from ortune.errors import ExitCode, OrtuneError, UsageError, explain_lack, print_record_warnings, spell_as_flag
from ortune.interrupts import is_interrupt, raise_interrupts
from ortune.requests import GROUPS
from ortune.sanitize import printable_log
from ortune.steps import end_steps


class Command(typer.core.TyperCommand):
    """A command whose help shows no type for its flags."""

    def get_params(self, ctx: Any) -> Any:
        """Return all options and arguments."""
        return _without_types(super().get_params(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what a shell offers, also of the forms of the command with a program or with several models."""
        found = super().shell_complete(ctx, incomplete)
        words = {item.value for item in found}
        for name in FORMS.get(self.name or "", ()):
            form = ctx.parent.command.get_command(ctx.parent, name)
            found += [item for item in super(Command, form).shell_complete(ctx, incomplete) if item.value not in words]
        return found


class CommandGroup(typer.core.TyperGroup):
    """All commands, or those of a group. Its help shows no type for its flags."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name; one of a group also by its full name, such as `fleet compare`."""
        group, _, rest = cmd_name.partition(" ")
        if rest and group in GROUPS:
            return cast("CommandGroup", super().get_command(ctx, group)).get_command(ctx, rest)
        return super().get_command(ctx, cmd_name)

    def get_params(self, ctx: Any) -> Any:
        """Return all options and arguments."""
        return _without_types(super().get_params(ctx))


def _without_types(options: Any) -> Any:
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return options


FORMS = {**{name: (form,) for name, form in NAMES.items()}, "plan": (PLAN_SEVERAL,)}
"""Names in Typer of further forms of a command, which `main` finds by the arguments."""

app = typer.Typer(
    name="ortune",
    cls=CommandGroup,
    help="Find the ONNX Runtime settings that make a model fastest on this host, with evidence.",
    epilog="Exit codes: 0 done, 1 check failed, 2 usage or operational error, 3 inconclusive, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Command)(search)
app.command(NAMES["search"], cls=Command, hidden=True)(search_program)
app.command(cls=Command)(apply)
app.command(NAMES["apply"], cls=Command, hidden=True)(verify_program)
# What follows the first word of the command belongs to it.
app.command(cls=Command, context_settings={"allow_interspersed_args": False})(inspect)
app.command(cls=Command)(merge)
fleet = typer.Typer(help="Commands for many processes and hosts.", no_args_is_help=True)
fleet.command(cls=Command)(compare)
fleet.command(cls=Command)(send)
fleet.command(cls=Command)(deploy)
fleet.command(cls=Command)(status)
fleet.command(cls=Command)(collect)
fleet.command(cls=Command)(expire)
app.add_typer(fleet, name="fleet", cls=CommandGroup)
app.command(cls=Command)(gate)
app.command(NAMES["gate"], cls=Command, hidden=True)(gate_program)
app.command(cls=Command)(report)
app.command(cls=Command)(bench)
app.command(cls=Command)(plan)
app.command(PLAN_SEVERAL, cls=Command, hidden=True)(plan_several)
app.command(cls=Command)(suggest)
app.command(cls=Command)(space)
app.command(cls=Command)(knobs)
app.command(cls=Command)(profile)
app.command(cls=Command)(doctor)
app.command(cls=Command)(host)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ortune {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of ortune itself."""


def main() -> None:
    """Run the command line. Errors become messages and exit codes."""
    raise_interrupts()
    # The line that shows the current step is on stderr, and is removed before anything is written to stdout.
    safe_stdout = SafeStream(sys.stdout, end_steps)
    sys.stdout = cast("TextIO", safe_stdout)
    # Messages and progress may be lost, but not the work that they are about.
    sys.stderr = cast("TextIO", SafeStream(sys.stderr))
    print_record_warnings()
    try:
        try:
            os.environ.update(prepare_completion(os.environ))
            check_words(sys.argv)
            check_arguments(sys.argv)
            sys.argv = route_several(route(sys.argv))
            choose_command(app, sys.argv)(prog_name="ortune")
        except SystemExit:
            if fault := safe_stdout.find_fault():
                raise UsageError(f"Cannot write to stdout: {fault}.") from None
            raise
    except OrtuneError as error:
        show_error(error)
        sys.exit(ExitCode.ERROR)
    except BaseException as error:
        if is_interrupt(error):
            sys.exit(ExitCode.INTERRUPTED)
        if isinstance(error, SystemExit):
            raise
        if lack := explain_lack(error):
            show_error(lack)
            sys.exit(ExitCode.ERROR)
        # A bug in ortune. Python would exit with code 1, which ortune uses for a failed check.
        show_traceback()
        sys.exit(ExitCode.ERROR)


def choose_command(every: typer.Typer, arguments: Sequence[str]) -> typer.Typer:
    """Return the application with only the command or group that runs: Typer needs a while to build the others.

    Args:
        every: The application with all commands.
        arguments: The arguments of this process. If they name no command first, all are kept.
    """
    names = arguments[1:2]
    commands = [
        command for command in every.registered_commands if [command.name or name_of(command.callback)] == names
    ]
    groups = [group for group in every.registered_groups if [group.name] == names]
    if not commands and not groups:
        return every
    chosen = copy.copy(every)
    chosen.registered_commands, chosen.registered_groups = commands, groups
    return chosen


def name_of(callback: Callable[..., Any] | None) -> str:
    """Return the name of the command that Typer makes of a function."""
    return get_command_name(callback.__name__) if callback else ""


def show_traceback() -> None:
    """Print the exception that is being handled. Its message may quote a file."""
    sys.stderr.write(printable_log(traceback.format_exc()))


def show_error(error: OrtuneError) -> None:
    """Print an error and its hint."""
    from rich.text import Text

    from ortune.console.safe_console import SafeConsole

    console = SafeConsole(stderr=True, soft_wrap=True)
    message, hint = error.render(spell_as_flag)
    first, *details = message.split("\n")
    console.print(Text.assemble(("error: ", "bold red"), first))
    for line in details:
        console.print(line)
    if error.advised:
        console.print(Text("This runs:", "dim"))
        console.print(f"  {make_advised_command(sys.argv, error.advised)}")
    elif hint:
        console.print(Text(hint, "dim"))


def make_advised_command(arguments: Sequence[str], advised: Sequence[tuple[str, str]]) -> str:
    """Return the command of this process with more options.

    Args:
        arguments: The arguments of this process.
        advised: Names and values of the options.
    """
    end = arguments.index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    more = [word for name, value in advised for word in (f"--{name}", value)]
    return shlex.join(["ortune", *arguments[1:end], *more, *arguments[end:]])
