"""Measure how long commands take to show the first sign of life on a terminal, and how long nothing moves after that.

    python -m benchmarks.first_sign [--runs 5] [--only search,doctor] [MODEL ...]

A model is a file, or a name of models/build.py. Each command runs on a terminal of its own. The benchmark reports the
time from the start of the process to its first output, and the longest time without any output from then on, until
measuring begins or the command ends. Nothing is drawn while something is measured, because it would share the CPUs: the
last column has the time from the beginning of the calibration to the next output.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import os
import pty
import select
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ortune
from benchmarks.host import write_header
from models.build import build
from ortune.knobs import Config
from tests.records import make_local_record, write

MODEL = Path(__file__).parent.parent / "models" / "tiny_cnn.onnx"

PROGRAM = """
import sys
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
sample = np.ones([size if isinstance(size, int) else 1 for size in given.shape], np.float32)
for _ in range(20):
    session.run(None, {given.name: sample})
"""
"""A program that runs a model with one input."""

COMMANDS: Mapping[str, Sequence[str]] = {
    "search": ("search", "MODEL"),
    "bench": ("bench", "MODEL"),
    "gate": ("gate", "MODEL", "MODEL"),
    "plan": ("plan", "MODEL"),
    "doctor": ("doctor", "MODEL"),
    "space": ("space", "MODEL"),
    "suggest": ("suggest", "MODEL"),
    "profile": ("profile", "MODEL", "-o", "traces"),
    "apply": ("apply", "tuned.json", "MODEL"),
    "apply --verify": ("apply", "tuned.json", "MODEL", "--verify"),
    "inspect --": ("inspect", "--", sys.executable, "app.py", "MODEL"),
    "search --": ("search", "--", sys.executable, "app.py", "MODEL"),
}
"""Arguments of each command. All run in a folder with a record and a program."""

LIMIT_S = 0.5
"""Longest time to the first sign of life, and without one from then on, that is called good."""

LONGEST_S = 180.0
"""How long a command is watched until it measures."""

MEASURING = b"calibrating"
"""What the screen shows when measuring begins: nothing is drawn from then on that would share the CPUs."""


class Seen(NamedTuple):
    """What was seen of a run, in seconds: the first output, the longest pause before measuring, and the first then."""

    first_s: float
    pause_s: float
    measuring_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands, separated by commas (default: all)")
    parser.add_argument("models", nargs="*", default=[str(MODEL)], metavar="MODEL")
    options = parser.parse_args()
    print(write_header())
    # As in an installation.
    compileall.compile_dir(str(Path(ortune.__file__).parent), quiet=1)
    for model in options.models:
        path = Path(model).absolute() if Path(model).is_file() else build(model).absolute()
        print(f"\n{model if path.name == 'model.onnx' else path.name}, {path.stat().st_size / 1e6:.1f} MB", end="")
        print(f" (medians of {options.runs} runs; longest in brackets)")
        print(f"{'command':15} {'first output':>20} {'longest pause':>20} {'while measuring':>20}")
        for name in options.only.split(","):
            report(name, [watch(COMMANDS[name], path) for _ in range(options.runs)])


def report(name: str, seen: Sequence[Seen]) -> None:
    """Print a line on the runs of a command."""
    columns = [
        f"{statistics.median(values):.2f} s [{max(values):.2f}]" if any(values) else "-"
        for values in zip(*seen, strict=True)
    ]
    worst = max(max(run.first_s, run.pause_s) for run in seen)
    verdict = "good" if worst <= LIMIT_S else f"above {LIMIT_S} s"
    print(f"{name:15} {columns[0]:>20} {columns[1]:>20} {columns[2]:>20}  {verdict}", flush=True)


def watch(arguments: Sequence[str], model: Path) -> Seen:
    """Run a command on a terminal until it ends or was watched for long enough."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(PROGRAM)
        if "tuned.json" in arguments:
            one_thread = Config(session_options={"intra_op_num_threads": 1})
            write(make_local_record(model, one_thread), Path(folder, "tuned.json"))
        words = [str(model) if argument == "MODEL" else argument for argument in arguments]
        start_s = time.monotonic()
        child, terminal = pty.fork()
        if child == 0:  # pragma: no cover  (another process)
            os.chdir(folder)
            os.environ["TERM"] = "xterm"
            os.execv(sys.executable, [sys.executable, "-P", "-m", "ortune", *words])
        try:
            outputs, measures = read_times(terminal, start_s)
        finally:
            os.kill(child, signal.SIGINT)
            os.close(terminal)
            os.waitpid(child, 0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(outputs)]
    measuring = pauses.pop() if measures else 0.0
    return Seen(outputs[0] - start_s, max(pauses, default=0.0), measuring)


def read_times(terminal: int, start_s: float) -> tuple[list[float], bool]:
    """Return when there was output, up to the first while measuring or to the end, and whether the command measures."""
    outputs: list[float] = []
    measures, end_s = False, start_s + LONGEST_S
    while time.monotonic() < end_s:
        if not select.select([terminal], [], [], max(end_s - time.monotonic(), 0))[0]:
            break
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the command has ended
            data = b""
        outputs.append(time.monotonic())
        if not data or measures:
            return outputs, measures
        measures = MEASURING in data
    return [*outputs, time.monotonic()], measures


if __name__ == "__main__":
    main()
