"""Turns this process into a program in which a plan is in force: its environment, and exec."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ortune.apply.inside.finder import PLAN_VARIABLE
from ortune.errors import UsageError

STARTUP = Path(__file__).parent / "inside" / "startup"
"""Goes into PYTHONPATH, where every Python looks for a `sitecustomize` when it starts."""

SEPARATED_BY_SPACE = frozenset({"LD_PRELOAD"})
"""Variables that hold lists: what is there already stays, behind what is added."""


def find_program(command: Sequence[str]) -> str:
    """Return the path of a command's program.

    Raises:
        UsageError: There is no command, or no such program.
    """
    import shutil

    if not command:
        raise UsageError("There is no command after --.", "Write it there: ortune apply tuned.json -- python app.py.")
    program = shutil.which(command[0])
    if program is None:
        path = Path(command[0])
        if path.suffix == ".py" and path.is_file():
            raise UsageError(f"{path} is not a program by itself.", f"Write: -- python {' '.join(command)}.")
        if path.is_file():
            raise UsageError(f"{path} cannot be executed.", "Write the program that runs it in front.")
        raise UsageError(f"There is no command {command[0]}.", "Check its name, and that its folder is in PATH.")
    return program


def make_environment(plan: str, settings: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program.

    Args:
        plan: What the hook is to do.
        settings: Environment variables that the configs need.
        inherited: The environment here.
    """
    environment = dict(inherited)
    for name, value in settings.items():
        before = inherited.get(name)
        environment[name] = f"{value} {before}" if before and name in SEPARATED_BY_SPACE else value
    path = inherited.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.fspath(STARTUP) + (os.pathsep + path if path else "")
    environment[PLAN_VARIABLE] = plan
    return environment


def replace_process(program: str, command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become the program: its process id, signals, streams and exit code are its own.

    Raises:
        UsageError: The system refuses to start it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "nt":
            import subprocess

            # There, exec would return to the shell at once.
            sys.exit(subprocess.call([program, *command[1:]], env=dict(environment)))
        # Python ignores them, and a program would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execve(program, list(command), dict(environment))  # noqa: S606  (what the user asks for)
    except OSError as error:
        raise UsageError(f"Cannot run {program}: {error.strerror}.") from None
