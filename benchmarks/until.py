"""Replay searches with `--until`: how long do they take, and how often is more left to gain than they say?

    python -m benchmarks.until [--replays 4] [--shares 10%,5%,2%] [--budget 60] [--landscapes test|development]
                               [--steady] [--json FILE]
    python -m benchmarks.until --report FILE

The simulated hosts change their speed, as shared hosts do, unless --steady is given. The columns are:

- time: median of the searches, in seconds;
- answers: searches that prove a gain, or say that there is none;
- within: searches whose answer is within the share of the best candidate, in searches that ended by it;
- ended: searches whose screening ended by it;
- bounds: of the bounds that were shown, those that were right. A bound says how much better than the best one so far
  any candidate is at most, with a probability of 95 %. So it is compared with what the best candidate truly gains over
  the best one so far, or over the default if that is better;
- always: searches in which no bound was wrong.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import statistics
from pathlib import Path

import msgspec
from threadpoolctl import threadpool_limits

from benchmarks.early_ends import chosen_sets
from benchmarks.host import describe_run, write_header
from benchmarks.landscape import Landscape
from benchmarks.regret import UNSTEADY, Row
from benchmarks.replay import open_replay
from ortune.options import parse_share
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Progress

TOLERANCE = 1e-3
"""By how much more than a share may be left to gain, as rounding."""


def replay(job: tuple[str, Landscape, float, float | None, int]) -> Row:
    """Run one search, and compare what it shows with what is true."""
    title, landscape, budget_s, until, seed = job
    best = landscape.log_speedup(landscape.best)
    right: list[bool] = []

    def observe(progress: Progress) -> None:
        if progress.gain_left is None:
            return
        found = landscape.space.numbers[progress.best.config.key] if progress.best else 0
        so_far = max(landscape.log_speedup(found), 0.0)
        right.append(math.expm1(best - so_far) <= progress.gain_left + TOLERANCE)

    with threadpool_limits(limits=1):  # each CPU already has a process
        opened = open_replay(landscape, seed=seed)
        settings = SearchSettings(budget_s=budget_s, until=until)
        outcome = run_search(landscape.first_space, opened, settings, observe)
    chosen = landscape.space.numbers[outcome.config.key]
    return {
        "set": title,
        "landscape": landscape.name,
        "until": until,
        "seed": seed,
        "verdict": outcome.evidence.verdict,
        "left": math.expm1(best - landscape.log_speedup(chosen)),
        "spent_s": opened.runner.now_s(),
        "ended": outcome.ended_early,
        "n_bounds": len(right),
        "n_right": sum(right),
    }


def describe(title: str, rows: list[Row]) -> str:
    """Return a line of the table."""
    until = rows[0]["until"]
    ended = [row for row in rows if until is not None and "more than the best one" in row["ended"]]
    within = sum(row["left"] <= until + TOLERANCE for row in ended)
    answers = sum(row["verdict"] != "inconclusive" for row in rows)
    shown, right = (sum(row[name] for row in rows) for name in ("n_bounds", "n_right"))
    always = sum(row["n_right"] == row["n_bounds"] for row in rows)
    return (
        f"{title:20}{'none' if until is None else f'{until:.0%}':>6}{len(rows):8}"
        f"{statistics.median(row['spent_s'] for row in rows):7.1f}"
        f"{answers / len(rows):9.0%}{len(ended) / len(rows):7.0%}"
        f"{f'{within / len(ended):.0%}' if ended else '-':>8}{right / max(shown, 1):8.0%}{always / len(rows):8.0%}"
    )


def main() -> None:
    """Replay all searches, or print what a file has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replays", type=int, default=4, help="seeds of each landscape")
    parser.add_argument("--shares", default="10%,5%,2%", help="values of --until")
    parser.add_argument("--budget", type=float, default=60.0, help="budget in seconds")
    parser.add_argument("--landscapes", choices=["test", "development"], default="test")
    parser.add_argument("--steady", action="store_true", help="simulate hosts whose speed does not change")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--report", type=Path, help="print the results of this file")
    arguments = parser.parse_args()
    if arguments.report:
        written = json.loads(arguments.report.read_text())
        rows = written["rows"]
    else:
        found = [(title, one) for title, several in chosen_sets(arguments.landscapes).items() for one in several]
        if not arguments.steady:
            found = [(title, msgspec.structs.replace(one, speeds=UNSTEADY)) for title, one in found]
        shares = [None, *map(parse_share, arguments.shares.split(","))]
        jobs = [
            (title, landscape, arguments.budget, share, seed)
            for (title, landscape), share, seed in itertools.product(found, shares, range(arguments.replays))
        ]
        # Forked processes have the landscapes.
        with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
            rows = list(pool.map(replay, jobs, chunksize=4))
        written = {**describe_run(), "rows": rows}
    if arguments.json:
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    print(write_header(written))
    print(
        f"\n{'landscapes':20}{'until':>6}{'n':>8}{'time':>7}{'answers':>9}{'ended':>7}{'within':>8}{'bounds':>8}{'always':>8}"
    )
    for title in dict.fromkeys(row["set"] for row in rows):
        for until in dict.fromkeys(row["until"] for row in rows):
            print(describe(title, [row for row in rows if (row["set"], row["until"]) == (title, until)]))


if __name__ == "__main__":
    main()
