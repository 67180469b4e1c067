"""Replace this process with a program, and set up the environment in which the program gets tuned options."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ortune.apply.inside.finder import PLAN_VARIABLE
from ortune.errors import UsageError
from ortune.naming import COMMAND
from ortune.secret_variables import without_own

STARTUP = Path(__file__).parent / "inside" / "startup"
"""Folder for PYTHONPATH. It holds the `sitecustomize` that every Python imports when it starts."""


def find_program(command: Sequence[str], usage: str = f"Write: {COMMAND} tuned.json -- python app.py.") -> str:
    """Return the path of a command's program.

    Args:
        command: The program and its arguments.
        usage: How to write a command, as a sentence.

    Raises:
        UsageError: The command is empty, or there is no such program.
    """
    import shutil

    if not command:
        raise UsageError("There is no command after --.", usage)
    program = shutil.which(command[0])
    if program is None:
        path = Path(command[0])
        if path.suffix == ".py" and path.is_file():
            raise UsageError(f"{path} is not an executable file.", f"Write: -- python {' '.join(command)}.")
        if path.suffix.lower() in {".onnx", ".ort"} and path.is_file():
            raise UsageError(f"{path} is a model, not a program.", "Write the program after --, without the model.")
        if path.is_file():
            raise UsageError(f"{path} is not an executable file.", "Put the program that runs it first.")
        raise UsageError(
            f"There is no command {command[0]}.", "Check the name, and whether the command's folder is in PATH."
        )
    return program


def make_environment(plan: str, settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program. It does not get the URL of the storage, which only ortune needs.

    Args:
        plan: What the hook does, as JSON.
        settings: Environment variables that the configs need.
        inherited: Environment of this process.
    """
    environment = {**without_own(inherited), **settings}
    path = inherited.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.fspath(STARTUP) + (os.pathsep + path if path else "")
    environment[PLAN_VARIABLE] = plan
    return environment


def replace_process(program: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with the program, which keeps the process ID.

    Raises:
        UsageError: The system cannot start it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "nt":
            import subprocess

            # On Windows, exec returns to the shell immediately.
            sys.exit(subprocess.call([program, *command[1:]], env=dict(environment)))
        # Python ignores these signals, and the program would inherit this setting.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execve(program, list(command), dict(environment))  # noqa: S606  (the user asks for it)
    except OSError as error:
        raise UsageError(f"Cannot run {program}: {error.strerror}.") from None
