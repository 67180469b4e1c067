"""Count the models that run on guessed inputs, and run the advice for the others.

    python -m benchmarks.guessed_inputs
    python -m benchmarks.guessed_inputs silero_vad ppocrv4_rec

`ortune space MODEL` makes inputs and runs the model on them once. If the model does not run, the error ends with a
command; the benchmark runs it word for word. The models are those of `models/manifest.toml` and of `models/build.py`,
and ten small graphs that the tests generate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.host import write_header
from models.build import GENERATED, build, read_manifest
from tests.input_graphs import GRAPHS, make_graph

ADVICE = "This runs:\n"
"""What precedes the advised command."""


class Checked(NamedTuple):
    """What came of a model without options.

    Attributes:
        runs: Whether it runs.
        message: What the command printed to stderr.
        advised: The advised command; empty if there is none.
        advised_runs: Whether the model runs with it.
    """

    runs: bool
    message: str = ""
    advised: str = ""
    advised_runs: bool = False


def check_model(path: Path, folder: Path) -> Checked:
    """Run `ortune space` on a model without options, and the command that it advises if the model does not run.

    Args:
        path: The model.
        folder: An empty folder, in which `ortune` is made a command of the shell.
    """
    command = folder / "ortune"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m ortune "$@"\n')
    command.chmod(0o755)
    first = run_in_shell(f"ortune space {path.name}", path.parent, folder)
    if first.returncode == 0:
        return Checked(runs=True)
    advised = first.stderr.partition(ADVICE)[2].strip()
    again = run_in_shell(advised, path.parent, folder) if advised else None
    return Checked(False, first.stderr, advised, again is not None and again.returncode == 0)


def run_in_shell(line: str, cwd: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell that finds commands of a folder first."""
    paths = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", "-c", line],
        cwd=cwd,
        env={**os.environ, "PATH": paths, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    names = parser.parse_args().names
    print(write_header())
    with tempfile.TemporaryDirectory() as temporary:
        real = [(name, build(name)) for name in (*read_manifest(), *GENERATED) if not names or name in names]
        graphs = [(name, make_graph(name, Path(temporary))) for name in GRAPHS if not names or name in names]
        for title, models in (("real models", real), ("generated graphs", graphs)):
            if not models:
                continue
            print(f"\n{title}")
            checked = [(name, report(name, path, Path(temporary))) for name, path in models]
            without = sum(result.runs for _, result in checked)
            rest = len(checked) - without
            advised = sum(result.advised_runs for _, result in checked)
            print(f"  {without} of {len(checked)} run without options ({without / len(checked):.0%}); ", end="")
            print(f"the advice works for {advised} of the other {rest}" if rest else "none needs advice")


def report(name: str, path: Path, folder: Path) -> Checked:
    """Check a model, and print what came of it."""
    checked = check_model(path, folder)
    if checked.runs:
        text = "runs"
    elif not checked.advised:
        text = f"does not run, and no command is advised: {checked.message.strip()}"
    else:
        text = f"{'needs' if checked.advised_runs else 'DOES NOT RUN WITH'}  {checked.advised}"
    print(f"  {name:24} {text}", flush=True)
    return checked


if __name__ == "__main__":
    main()
