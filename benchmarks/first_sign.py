"""Measure how long commands take to show the first sign of life on a terminal.

    python -m benchmarks.first_sign [--runs 5] [MODEL]

Each command runs on a terminal of its own. The benchmark reports the time from the start of the process to its first
output, and the longest time after that without any output, until measuring begins or the command ends.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pty
import select
import signal
import statistics
import sys
import time
from pathlib import Path

from benchmarks.host import describe_host

MODEL = Path(__file__).parent.parent / "models" / "tiny_cnn.onnx"

COMMANDS = ("search", "bench", "doctor", "space")

LIMIT_S = 0.5
"""Longest time to the first sign of life that is called good."""

LONGEST_S = 60.0

MEASURING = b"calibrating"
"""What the screen shows when measuring begins: nothing is drawn from then on that would share the CPUs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("model", nargs="?", default=str(MODEL))
    options = parser.parse_args()
    print(describe_host())
    print(f"{'command':10} {'first output':>14} {'longest pause':>14}  (medians of {options.runs} runs)")
    for name in COMMANDS:
        found = [watch(name, options.model) for _ in range(options.runs)]
        first_s, pause_s = (statistics.median(values) for values in zip(*found, strict=True))
        verdict = "good" if max(first for first, _ in found) <= LIMIT_S else f"above {LIMIT_S} s"
        print(f"{name:10} {first_s:12.2f} s {pause_s:12.2f} s  {verdict}")


def watch(name: str, model: str) -> tuple[float, float]:
    """Return the time to the first output of a command, and the longest pause after it, in seconds."""
    start_s = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover  (another process)
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-P", "-m", "ortune", name, model])
    outputs, end_s = [start_s], start_s + LONGEST_S
    try:
        while time.monotonic() < end_s:
            if not select.select([terminal], [], [], max(end_s - time.monotonic(), 0))[0]:
                break
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # the command has ended
                break
            outputs.append(time.monotonic())
            if not data or MEASURING in data:
                break
    finally:
        os.kill(child, signal.SIGINT)
        os.close(terminal)
        os.waitpid(child, 0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(outputs[1:])]
    return outputs[1] - start_s, max(pauses, default=0.0)


if __name__ == "__main__":
    main()
