"""`ortune inspect`: run a program once, and show its sessions."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ortune.cli.command import Values, command
from ortune.cli.explain_model import spell_program
from ortune.errors import ExitCode, UsageError
from ortune.options import make_request
from ortune.requests import InspectOutputOptions, InspectRequest


@command(InspectRequest, InspectOutputOptions, has_steps=True)
def inspect(values: Values, output: InspectOutputOptions) -> None:
    """Run COMMAND once, and show its sessions: models, calls, shares of the time, input shapes, options."""
    from ortune.cli.output import encode_json, print_json
    from ortune.console.inspect import show_observation, show_save_warning
    from ortune.console.widgets import make_console
    from ortune.limited import STANDARD_STREAM
    from ortune.program.inspect import explain_lack, inspect_program
    from ortune.record.files import check_writable, write_atomically

    request = make_request(InspectRequest, values, "cli")
    check_separator(request.command, sys.argv)
    to_stdout = output.json or str(output.output) == STANDARD_STREAM
    path = None if str(output.output) == STANDARD_STREAM else output.output
    if path is not None:
        check_writable(path, "output", is_observation)
    console = make_console(stderr=True)
    if request.save_inputs is not None and not output.quiet:
        show_save_warning(console, request.save_inputs)
    if console.is_terminal and not output.quiet:
        # From here on, the terminal is the program's.
        name = Path(request.command[0]).name
        console.print(f"running {name} once; its sessions are shown when it ends", style="dim")
    observation = inspect_program(request, stdout_to_stderr=to_stdout)
    lack = explain_lack(observation)
    if not output.quiet or lack:
        show_observation(console, observation, lack)
    if to_stdout:
        print_json(observation)
    if path is not None:
        write_atomically(path, encode_json(observation))
    if observation.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if lack or observation.status:
        raise typer.Exit(ExitCode.FAILED)


def is_observation(content: bytes) -> bool:
    """Return whether a file was written by this command."""
    import msgspec

    try:
        document = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"command", "models", "outside_share", "processes"} <= document.keys()


def check_separator(command: tuple[str, ...], arguments: list[str]) -> None:
    """Check that -- precedes the command, which distinguishes its options from those of ortune.

    Args:
        command: The command.
        arguments: Arguments of this process.

    Raises:
        UsageError: There is no command, or no -- before it.
    """
    if not command:
        raise UsageError("There is no COMMAND.", "Write: ortune inspect -- python app.py.")
    if arguments[-len(command) - 1] != "--":
        import shlex

        words = shlex.join(spell_program(command))
        raise UsageError(f"There is no -- before {command[0]}.", f"Write: ortune inspect -- {words}.")
