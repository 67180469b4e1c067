"""Replay searches with and without their early ends: how much time do these save, and which gains do they lose?

    python -m benchmarks.early_ends [--replays 12] [--budgets 20,60] [--landscapes test|development] [--ends NAME,...]
                                    [--json FILE]
    python -m benchmarks.early_ends --report FILE

A search may end before its budget is spent because nothing is expected to be found: in screening, in racing, and in the
confirmation. Each search is replayed twice on the same simulated host: as it is, and without these ends. `--ends`
chooses which of them are switched off in the second replay: screening, racing, confirmation.

- proven: searches without the early ends that prove a gain, and whose choice truly gains more than 2 %;
- lost: of these, the searches with the early ends that prove nothing, or whose choice is 2 % slower than the other;
- found: the converse. The two searches of a pair also differ by chance, so that only the difference between these two
  shares is due to the ends;
- saved: share of the time of the searches that prove nothing in both replays, and of those that prove something.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from threadpoolctl import threadpool_limits

from benchmarks.host import describe_run, write_header
from benchmarks.landscape import Landscape
from benchmarks.regret import DEVELOPMENT_SETS, HELD_OUT, RECORDED_TEST, Row, development_set, landscape_sets, replay

GAIN = 1.02
"""What a choice must truly gain to count, as a ratio of the default's cost to its own."""

DIFFERENCE = 0.02
"""By how much slower a choice must be than that of the other search to be a loss."""

ENDS = {
    "screening": ("ortune.tuning.screening.Screening.explain_end", ""),
    "racing": ("ortune.tuning.racing.is_hopeless", False),
    "confirmation": ("ortune.tuning.confirmation.is_answered", False),
}
"""The functions that end a stage, and what they return if it goes on."""


@contextlib.contextmanager
def without(ends: list[str]) -> Iterator[None]:
    """Switch off some early ends."""
    with contextlib.ExitStack() as stack:
        for end in ends:
            function, goes_on = ENDS[end]
            stack.enter_context(mock.patch(function, return_value=goes_on))
        yield


def replay_pair(job: tuple[str, Landscape, float, int, list[str]]) -> Row:
    """Run a search with and without the early ends."""
    title, landscape, budget_s, seed, ends = job
    with threadpool_limits(limits=1):  # each CPU already has a process
        ending = replay(landscape, "ours", budget_s, seed)
        with without(ends):
            whole = replay(landscape, "ours", budget_s, seed)
    row: Row = {"set": title, "landscape": landscape.name, "budget_s": budget_s, "seed": seed}
    row["null"] = landscape.log_speedup(landscape.best) < math.log(GAIN)
    for name, found in (("ending", ending), ("whole", whole)):
        gain = math.exp(landscape.log_speedup(found["chosen"]))
        row[name] = {"gain": gain, **{key: found[key] for key in ("verdict", "spent_s")}}
    return row


def is_proven(side: Row) -> bool:
    """Return whether a search proved a gain that matters."""
    return bool(side["verdict"] == "faster" and side["gain"] > GAIN)


def is_lost(side: Row, other: Row) -> bool:
    """Return whether a search lost a gain that the other one proved."""
    return is_proven(other) and (side["verdict"] != "faster" or side["gain"] < (1 - DIFFERENCE) * other["gain"])


def show(title: str, rows: list[Row]) -> None:
    """Print the figures of some searches."""
    if not rows:
        return
    pairs = [(row["ending"], row["whole"]) for row in rows]
    lost = sum(is_lost(ending, whole) for ending, whole in pairs)
    found = sum(is_lost(whole, ending) for ending, whole in pairs)
    proven = sum(is_proven(whole) for _, whole in pairs)
    also = sum(is_proven(ending) for ending, _ in pairs)
    share = f"{lost / proven:6.1%}" if proven else "     -"
    converse = f"{found / also:6.1%}" if also else "     -"
    times = [ending["spent_s"] for ending, _ in pairs]
    print(
        f"{title:24} {rows[0]['budget_s']:4.0f} s {len(rows):5} searches  proven {proven:5}  lost {lost:4} {share}  "
        f"found {found:4} {converse}  time, median {statistics.median(times):5.1f} s  "
        f"saved {saved(pairs, proven=False)} of those without a gain, {saved(pairs, proven=True)} of those with one",
        flush=True,
    )


def saved(pairs: list[tuple[Row, Row]], *, proven: bool) -> str:
    """Return which share of their time the searches save that prove something, or nothing, in both replays."""
    chosen = [pair for pair in pairs if is_proven(pair[0]) == is_proven(pair[1]) == proven]
    if not chosen:
        return "    -"
    ending_s, whole_s = (sum(side["spent_s"] for side in sides) for sides in zip(*chosen, strict=True))
    return f"{1 - ending_s / whole_s:5.0%}"


def report(rows: list[Row]) -> None:
    """Print the figures of each set, of the landscapes where nothing is to be gained, and of all."""
    for budget_s in dict.fromkeys(row["budget_s"] for row in rows):
        of_budget = [row for row in rows if row["budget_s"] == budget_s]
        for title in dict.fromkeys(row["set"] for row in of_budget):
            show(title.lower(), [row for row in of_budget if row["set"] == title])
        show("nothing to gain", [row for row in of_budget if row["null"]])
        show("all", of_budget)


def chosen_sets(which: str) -> dict[str, list[Landscape]]:
    """Return the landscapes for development, which are made without reading the others, or those for testing."""
    if which == "development":
        return {title: development_set(title) for title in DEVELOPMENT_SETS}
    return {title: landscape_sets()[title] for title in (RECORDED_TEST, HELD_OUT)}


def main() -> None:
    """Replay what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=12)
    parser.add_argument("--budgets", default="20,60", help="budgets in seconds")
    parser.add_argument("--landscapes", choices=("test", "development"), default="test")
    parser.add_argument("--ends", default=",".join(ENDS), help="which ends are switched off for comparison")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the result of each search")
    parser.add_argument("--report", type=Path, help="print the figures of such a file instead of replaying")
    arguments = parser.parse_args()
    if arguments.report:
        kept = json.loads(arguments.report.read_text())
        print(write_header(kept))
        report(kept["rows"])
        return
    ends = arguments.ends.split(",")
    if unknown := set(ends) - set(ENDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(ENDS)}")
    jobs = [
        (title, landscape, float(budget), seed, ends)
        for title, found in chosen_sets(arguments.landscapes).items()
        for landscape, budget, seed in itertools.product(
            found, arguments.budgets.split(","), range(arguments.seed, arguments.seed + arguments.replays)
        )
    ]
    # Forked processes have the landscapes.
    with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        rows = list(pool.map(replay_pair, jobs, chunksize=4))
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}) + "\n")
    print(write_header())
    report(rows)


if __name__ == "__main__":
    main()
