"""Follow the tutorial word for word: `python -m docs.tutorial`.

All commands of docs/tutorial.md run in one shell, in a copy of the repository without models and environments. The exit
code is 1 if a command fails. With `--write`, their output replaces that on the page: do this on an idle host.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of commands and their output."""

COLUMNS = 80
"""Width of the terminal."""

LEFT_OUT = (".git", ".venv", ".nox", "build", "cache", "*.egg-info", "__pycache__", ".*_cache")
"""What a new clone does not have."""

DONE = "ortune-tutorial-done"
"""What the shell prints after each command, with the exit code."""


class Step(NamedTuple):
    """A command of the page, and what it printed.

    Attributes:
        command: The command.
        output: Its stdout and stderr.
        code: Its exit code.
    """

    command: str
    output: str
    code: int


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the output of the commands into the page")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    steps = []
    with tempfile.TemporaryDirectory(prefix="ortune-tutorial-") as folder:
        clone = Path(folder, "ortune")
        shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for step in follow(find_commands(page), clone):
            sys.stdout.write(f"$ {step.command}\n{step.output}")
            sys.stdout.flush()
            if step.code:
                sys.stderr.write(f"This command ended with {step.code}.\n")
                return 1
            steps.append(step)
    if arguments.write:
        PAGE.write_text(replace_output(page, steps))
    return 0


def find_commands(page: str) -> list[str]:
    """Return all commands of a page, in order."""
    return [line[2:] for block in BLOCK.findall(page) for line in block.splitlines() if line.startswith("$ ")]


def follow(commands: list[str], folder: Path) -> Iterator[Step]:
    """Run commands in one shell, and yield each when it has ended."""
    environment = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    # Warnings of pip are about the indexes of this host.
    environment |= {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "ORTUNE_HISTORY": "off", "PIP_QUIET": "1"}
    with subprocess.Popen(
        [shutil.which("bash") or "/bin/bash"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdin and shell.stdout
        for command in commands:
            # The commands do not read the stdin of the shell, which holds the next ones.
            shell.stdin.write(f'{{ {command}\n}} </dev/null\necho "{DONE} $?"\n')
            shell.stdin.flush()
            lines: list[str] = []
            for line in shell.stdout:
                if line.startswith(DONE):
                    yield Step(command, "".join(lines), int(line.split()[1]))
                    break
                lines.append(line.replace(str(folder), "ortune").rstrip() + "\n")
        shell.stdin.close()


def replace_output(page: str, steps: list[Step]) -> str:
    """Return a page with the output of each command after it."""
    rest = iter(steps)

    def rewrite(block: re.Match[str]) -> str:
        shown = []
        for line in block[1].splitlines():
            if line.startswith("$ "):
                step = next(rest)
                assert line == f"$ {step.command}"
                shown.append(f"{line}\n{step.output.rstrip()}".rstrip())
        return "```console\n" + "\n".join(shown) + "\n```"

    return BLOCK.sub(rewrite, page)


if __name__ == "__main__":
    sys.exit(main())
