"""Run a fuzz target: `python -m tests.fuzz.run TARGET --count N --seed S`.

Execution number I of seed S always has the same input, so that a finding can be repeated. Inputs that end with a
traceback, or that take more than `SLOWEST_S`, are written to a folder. The exit status is 1 if there are any.

With `--engine atheris`, atheris chooses the inputs: it follows which code they reach.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.target import Target

SLOWEST_S = 5
"""An input that takes longer is a hang."""

STUCK_S = 300
"""The process ends if a thousand inputs take longer: code of a library hangs that Python cannot interrupt."""

NAMES = (
    "records",
    "gates",
    "options",
    "npz",
    "models",
    "sysfs",
    "histories",
    "trials",
    "journals",
    "processes",
    "calls",
    "sessions",
    "plans",
    "lengths",
    "reports",
    "canaries",
)
"""The targets. They are imported late, so that atheris can instrument what they import."""

MOST_SAVED = 20
"""Number of findings of each kind that are written."""


class Hang(BaseException):
    """An input takes too long."""


def raise_hang(*_: Any) -> None:
    """Handle the alarm."""
    raise Hang


class Findings:
    """What went wrong, by the place in the code.

    Attributes:
        counts: Number of findings by kind and place.
        slowest_s: Time of the slowest input.
        slowest: Number of that input.
    """

    def __init__(self, folder: Path) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.slowest_s, self.slowest = 0.0, ""
        self._folder = folder

    def execute(self, target: Target, data: bytes, name: str) -> None:
        """Run a target on an input, and keep what goes wrong."""
        start = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, SLOWEST_S)
            try:
                target.run(data)
            finally:  # the alarm may come just before it is switched off
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Exception, Hang) as error:  # noqa: BLE001  (that is what is looked for)
            self._keep(error, data, name)
        if (elapsed := time.perf_counter() - start) > self.slowest_s:
            self.slowest_s, self.slowest = elapsed, name

    def _keep(self, error: BaseException, data: bytes, name: str) -> None:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/ortune/" in frame.filename]
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
        kind = f"{type(error).__name__} at {place}"
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_SAVED:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{type(error).__name__}-{place.replace(':', '-')}-{name}").write_bytes(data)
        if self.counts[kind] == 1:
            print(f"{kind}: {str(error)[:300]!r} ({name})", flush=True)


def run_all(target: Target, count: int, seed: int, most_s: float, findings: Findings) -> int:
    """Run a target on inputs that are changed at random, and return the number of executions.

    Args:
        target: The target.
        count: Number of executions.
        seed: Seed of all changes.
        most_s: Time after which it ends early.
        findings: Where to keep what goes wrong.
    """
    end_s = time.monotonic() + most_s
    for number in range(count):
        if number % 1000 == 0:
            if time.monotonic() > end_s:
                count = number
                break
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
        findings.execute(target, target.make(Random(seed * 1_000_000_007 + number)), f"{seed}-{number}")
    faulthandler.cancel_dump_traceback_later()
    return count


def run_atheris(name: str, count: int, seed: int, findings: Findings) -> None:
    """Run a target on inputs that atheris chooses. It ends the process."""
    import atheris

    with atheris.instrument_imports(include=["ortune"]):
        from tests.fuzz.target import pretending, remove_folders
        from tests.fuzz.targets import TARGETS

        target = TARGETS[name]
        stack = contextlib.ExitStack()
        stack.enter_context(pretending())
        for sample in target.seeds():  # so that all modules are imported
            target.run(sample)
    numbers = iter(range(sys.maxsize))
    start = time.monotonic()

    def test(data: bytes) -> None:
        number = next(numbers)
        findings.execute(target, data, f"atheris-{seed}-{number}")
        if number == count - 1:
            show(name, count, findings, start)
            sys.stdout.flush()
            remove_folders()
            shutil.rmtree(folder)
            # libFuzzer would go on, and read the folder again that is gone.
            os._exit(1 if findings.counts else 0)

    def mutate(data: bytes, most_bytes: int, own_seed: int) -> bytes:
        random = Random(own_seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most_bytes))
        return target.mutate(data, random)[:most_bytes]

    folder = tempfile.mkdtemp(prefix="ortune-fuzz-")
    for position, sample in enumerate(target.seeds()):
        Path(folder, str(position)).write_bytes(sample)
    options = [
        f"-runs={count}",
        f"-seed={seed or 1}",
        "-max_len=65536",
        "-rss_limit_mb=1024",
        "-verbosity=0",
        f"-artifact_prefix={folder}/",
    ]
    atheris.Setup([sys.argv[0], *options, folder], test, custom_mutator=mutate)
    atheris.Fuzz()


def show(name: str, count: int, findings: Findings, start: float) -> None:
    """Print the figures of a run."""
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"{name}: {count} executions in {time.monotonic() - start:.0f} s, {findings.counts.total()} failures, "
        f"slowest {findings.slowest_s:.2f} s ({findings.slowest}), peak memory {peak_mb:.0f} MB"
    )
    for kind, number in findings.counts.most_common():
        print(f"  {number:7} {kind}")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--count", type=int, default=10_000, help="number of executions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-seconds", type=float, default=float("inf"), help="time after which to end early")
    parser.add_argument("--engine", choices=["random", "atheris"], default="random")
    parser.add_argument("--findings", type=Path, default=Path("build/fuzz-findings"), help="folder for what fails")
    return parser.parse_args()


def main() -> int:
    """Run a target and print the figures."""
    arguments = parse_arguments()
    findings = Findings(arguments.findings / arguments.target)
    signal.signal(signal.SIGALRM, raise_hang)
    start = time.monotonic()
    if arguments.engine == "atheris":
        run_atheris(arguments.target, arguments.count, arguments.seed, findings)
    from tests.fuzz.target import pretending
    from tests.fuzz.targets import TARGETS

    with pretending():
        target = TARGETS[arguments.target]
        count = run_all(target, arguments.count, arguments.seed, arguments.most_seconds, findings)
    show(arguments.target, count, findings, start)
    return 1 if findings.counts else 0


if __name__ == "__main__":
    sys.exit(main())
