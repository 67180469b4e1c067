"""Compare the time left that a search shows with the time that it then takes.

    python -m benchmarks.time_left
    python -m benchmarks.time_left --only silero_vad:30s

Searches run as a user would start them, and each of their reports is noted. Between reports, a terminal shows the last
one: it is looked at twice a second. After the first third of a search, the time left is true if it differs by at most a
fifth from the time that the search then takes, or by at most a second. Where the screen says "at most", because the
search may end early, it is true if it is not shorter than that.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import ortune
from benchmarks.host import write_header
from models.build import build, find_search_options
from ortune.options import parse_shapes
from ortune.tuning.outcome import Progress

MODEL = Path(__file__).parent.parent / "models" / "tiny_cnn.onnx"

SEARCHES = ("tiny_cnn:20s", "squeezenet:60s", "silero_vad:40s", "minilm_l6_int8:60s:2")
"""Model, budget and, if there are several, the number of callers."""

TOLERANCE = 0.2
SHORT_S = 1.0
"""Differences that count as true: a share of the time that was left, and a time."""

STEP_S = 0.5


class Shown(NamedTuple):
    """A report of a search: when it came, and what it said."""

    at_s: float
    stage: str
    left_s: float
    is_bound: bool

    @property
    def text(self) -> str:
        """The stage, and how the time is stated."""
        return f"{self.stage}, {'at most' if self.is_bound else 'left'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SEARCHES), help="searches, separated by commas (default: all)")
    parser.add_argument("--all", action="store_true", help="print every report")
    options = parser.parse_args()
    print(write_header())
    for text in options.only.split(","):
        name, budget, clients = (*text.split(":"), "1")[:3]
        watch(name, budget, int(clients), print_all=options.all)


def watch(name: str, budget: str, clients: int, *, print_all: bool) -> None:
    """Run a search, and print how true the time left was."""
    path = MODEL if name == MODEL.stem else build(name)
    shown: list[Shown] = []
    start_s = time.monotonic()

    def observe(report: Progress) -> None:
        shown.append(Shown(time.monotonic() - start_s, report.stage, report.left_s, report.may_end_early))

    with tempfile.TemporaryDirectory() as folder:
        record = ortune.search(
            path,
            budget=budget,
            clients=clients,
            shape=parse_shapes(
                [search_option for search_option in find_search_options(name) if search_option != "--shape"]
            ),
            output=Path(folder, "tuned.json"),
            history=False,
            progress=observe,
        )
    total_s = time.monotonic() - start_s
    evidence = record.evidence
    print(f"\n{name}, budget {budget}, {clients} caller(s): {total_s:.1f} s, {evidence.verdict}")
    print(f"  first report after {shown[0].at_s:.1f} s; {len(shown)} reports")
    for report in shown if print_all else ():
        true_s = total_s - report.at_s
        print(f"  {report.at_s:6.1f} s {report.text:21} shown {report.left_s:5.1f} s, true {true_s:5.1f} s")
    judge(shown, total_s)


def judge(shown: list[Shown], total_s: float) -> None:
    """Print how the shown times differ from the true ones, for each stage, after the first third of the search."""
    seen: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    at_s = max(total_s / 3, shown[0].at_s)
    while at_s < total_s:
        report = [entry for entry in shown if entry.at_s <= at_s][-1]
        seen.setdefault((report.text, report.is_bound), []).append((report.left_s, total_s - at_s))
        at_s += STEP_S
    for (text, is_bound), pairs in seen.items():
        lacking = [real_s - left_s if is_bound else abs(left_s - real_s) for left_s, real_s in pairs]
        allowed = [max(TOLERANCE * real_s, SHORT_S) for _, real_s in pairs]
        true = sum(difference <= most for difference, most in zip(lacking, allowed, strict=True))
        short_s = max(real_s - left_s for left_s, real_s in pairs)
        long_s = max(left_s - real_s for left_s, real_s in pairs)
        print(
            f"  {text:21} true {true} of {len(pairs)} times; at most {max(short_s, 0):.1f} s too short, "
            f"{max(long_s, 0):.1f} s too long"
        )


if __name__ == "__main__":
    main()
