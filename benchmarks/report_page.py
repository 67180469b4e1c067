"""Size and opening time of the page about a large search.

    python -m benchmarks.report_page
    python -m benchmarks.report_page --candidates 500

Trials are made up: each of the candidates has a config of its own, and was measured in a few rounds. The page is opened
in headless Chromium several times. The time is that from the start of the navigation until all charts are drawn. The
CPU time of the page's thread does not depend on how busy the host is.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.host import write_header
from ortune.knobs import Config
from ortune.record.files import read_record, read_trials, write_record
from ortune.record.trials import Trial, TrialRound, Trials, encode_trials
from ortune.report.make import make_page
from ortune.report.source import read_source
from ortune.report.write import write_page
from tests.browser import SIZES, Browser

EXAMPLE = Path(__file__).parent.parent / "tests" / "data" / "report" / "search.json"

OPENINGS = 5

PER_ROUND = 6
"""Candidates in a round."""

VALUES: dict[str, tuple[str, ...]] = {
    "session.intra_op.allow_spinning": ("0", "1"),
    "session.inter_op.allow_spinning": ("0", "1"),
    "session.dynamic_block_base": ("1", "2", "4", "8", "16"),
    "session.force_spinning_stop": ("0", "1"),
}


def make_configs(n: int) -> list[Config]:
    """Return different configs."""
    threads = range(1, 65)
    levels = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
    entries = [dict(zip(VALUES, choice, strict=True)) for choice in itertools.product(*VALUES.values())]
    combinations = itertools.product(entries, levels, threads)
    chosen = itertools.islice(combinations, 0, None, max(len(entries) * len(levels) * len(threads) // n, 1))
    return [
        Config(session_options={"intra_op_num_threads": count, "graph_optimization_level": level}, session_config=entry)
        for entry, level, count in itertools.islice(chosen, n)
    ]


def make_trials(earlier: Trials, configs: list[Config]) -> Trials:
    """Return trials of a search that tried all of these configs."""
    rng = np.random.default_rng(0)
    speedups = np.exp(rng.normal(-0.1, 0.25, len(configs)))
    trials = [
        Trial(number=number, config=config, stage="screening", speedups=(round(float(speedup), 4),), n_blocks=3)
        for number, (config, speedup) in enumerate(zip(configs, speedups, strict=True), 1)
    ]
    rounds = []
    for start in range(0, len(configs), PER_ROUND):
        numbers = range(start + 1, min(start + PER_ROUND, len(configs)) + 1)
        for repetition in range(3):
            base = 1e6 * float(np.exp(rng.normal(0, 0.02)))
            values: dict[int, tuple[float, ...]] = {
                0: (base,),
                **{number: (base / float(speedups[number - 1]),) for number in numbers},
            }
            at_s = start * 0.4 + repetition
            share = float(abs(rng.normal(0, 0.02)))
            rounds.append(TrialRound(stage="screening", launch=start, values=values, at_s=at_s, foreign_share=share))
    confirmation = [trial_round for trial_round in earlier.rounds if trial_round.stage == "confirmation"]
    return msgspec.structs.replace(
        earlier, trials=(earlier.trials[0], *trials), rounds=(*rounds, *(confirmation)), sessions=earlier.sessions
    )


def find_cpu_s(browser: Browser) -> float:
    """Return the CPU time of the thread of the page since it was opened, in seconds."""
    metrics = browser.command("Performance.getMetrics")["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=2000)
    n_candidates = parser.parse_args().candidates
    with tempfile.TemporaryDirectory() as folder:
        record, page = Path(folder, "r.json"), Path(folder, "r.html")
        configs = make_configs(n_candidates)
        write_record(read_record(EXAMPLE), record, encode_trials(make_trials(read_trials(EXAMPLE), configs)))
        begun_s = time.perf_counter()
        made = make_page(read_source(str(record)), record.name)
        write_page(made, page)
        print(write_header())
        print(f"{len(configs)} candidates, {len(made.charts)} charts")
        print(f"made in {time.perf_counter() - begun_s:.2f} s")
        print(f"size {page.stat().st_size / 1e6:.2f} MB")
        browser = Browser()
        try:
            browser.command("Performance.enable", timeDomain="threadTicks")
            for size in SIZES:
                times, cpu_times = [], []
                for _ in range(OPENINGS):
                    times.append(browser.open(page, size))
                    cpu_times.append(find_cpu_s(browser))
                print(
                    f"opened ({size}): median {statistics.median(times):.2f} s, slowest {max(times):.2f} s, CPU time "
                    f"{statistics.median(cpu_times):.2f} s in {OPENINGS} openings"
                )
                if problems := browser.problems():
                    print(f"problems: {problems}")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
