"""Runs the tests several times in random order, and counts how often each of them fails.

    python -m tests.flakes [--count N] [--hogs N] [--seed N] [ARGUMENTS OF PYTEST]

Each run has another order, which `--seed` repeats. Tests that depend on an order, or on an idle host, then fail at
times. The status is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import junitparser

from benchmarks.host import write_header

HOG = "while True: pass"


@contextlib.contextmanager
def keep_busy(n: int) -> Iterator[None]:
    """Run this many processes that each keep one CPU busy."""
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(n)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run_once(seed: int, arguments: list[str]) -> tuple[int, list[str]]:
    """Run the tests in the order of a seed, and return their number and the names of those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "results.xml")
        order = ("-p", "randomly", f"--randomly-seed={seed}")
        command = [sys.executable, "-m", "pytest", "-q", *order, f"--junit-xml={path}", *arguments]
        status = subprocess.run(command, check=False).returncode
        if status not in {0, 1}:
            sys.exit(f"pytest ended with status {status}")
        return read_results(path)


def read_results(path: Path) -> tuple[int, list[str]]:
    """Return the number of tests in an XML file of pytest, and the names of those that failed."""
    cases = [case for suite in junitparser.JUnitXml.fromfile(str(path)) for case in suite]
    broken = (junitparser.Failure, junitparser.Error)
    # A test whose call and whose teardown fail is there twice.
    names = [f"{case.classname}::{case.name}" for case in cases]
    is_broken = [any(isinstance(result, broken) for result in case.result) for case in cases]
    return len(set(names)), sorted(set(itertools.compress(names, is_broken)))


def main() -> int:
    """Run the tests, print the counts, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3, help="number of runs")
    parser.add_argument("--hogs", type=int, default=0, help="number of processes that keep a CPU busy")
    parser.add_argument("--seed", type=int, default=1, help="order of the first run; the others have the next ones")
    arguments, rest = parser.parse_known_args()
    failures = Counter[str]()
    n_tests = 0
    print(write_header())
    with keep_busy(arguments.hogs):
        for number in range(arguments.count):
            seed = arguments.seed + number
            n, failed = run_once(seed, rest)
            n_tests += n
            failures.update(failed)
            print(f"run {number + 1} of {arguments.count}, --seed {seed}: {n} tests, {len(failed)} failed", flush=True)
    beside = f" beside {arguments.hogs} busy processes" if arguments.hogs else ""
    print(f"{arguments.count} runs{beside}: {n_tests} tests, {failures.total()} failures")
    for name, n in failures.most_common():
        print(f"  {n} of {arguments.count}  {name}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
