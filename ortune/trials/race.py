"""The race: the best of the screen and the default, launched afresh, round by round until the worse are out."""

from __future__ import annotations

import numpy as np

from ortune.measure.stats import t_interval
from ortune.trials.ledger import Entry
from ortune.trials.stage import Context
from ortune.trials.values import StageTime

FINALISTS = 8
WORTH_RACING = 0.1
"""Log-ratio behind the best of the screen within which a candidate is worth racing."""

ROUNDS_BEFORE_ELIMINATION = 5
FEWEST_ROUNDS = 6
MOST_ROUNDS = 60
ELIMINATION_CONFIDENCE = 0.98


def run_race(context: Context, race_s: float) -> StageTime:
    """Race the finalists for `race_s` seconds, or until one is left."""
    start_s, inference_s = context.now_s(), context.meter.inference_s
    end_s = start_s + race_s
    ranked = context.ledger.challengers()
    best = ranked[0].value if ranked else None
    n_finalists = min(FINALISTS, context.plan.max_live - 1)
    finalists = [
        entry
        for entry in ranked[:n_finalists]
        if entry.value is not None and best is not None and entry.value <= best + WORTH_RACING
    ]
    for entry in finalists:
        entry.enter("race")
    default = context.launch_default()
    lives = context.launch(finalists)
    racing: list[Entry] = [entry for entry, _ in lives]
    rounds: dict[int, list[float]] = {entry.number: [] for entry in racing}
    n_rounds = 0
    try:
        while lives and n_rounds < MOST_ROUNDS and (context.now_s() < end_s or n_rounds < FEWEST_ROUNDS):
            measured = context.meter.round([default, *(live for _, live in lives)], context.plan.block)
            n_rounds += 1
            context.ledger.post([context.default, *(entry for entry, _ in lives)], measured)
            for position, failure in measured.failures.items():
                context.fail(lives[position - 1][0], failure)
            for position, block in measured.blocks.items():
                if position:
                    rounds[lives[position - 1][0].number].append(float(np.log(block.p50_ns)))
            lives = [(entry, live) for entry, live in lives if not entry.failure]
            if n_rounds >= ROUNDS_BEFORE_ELIMINATION:
                beaten = find_beaten({entry.number: rounds[entry.number] for entry, _ in lives})
                for entry, live in lives:
                    if entry.number in beaten:
                        live.close()
                lives = [(entry, live) for entry, live in lives if entry.number not in beaten]
            standing = sorted((entry for entry, _ in lives), key=lambda entry: entry.value or 0.0)
            context.report(
                "race",
                n_rounds,
                min(MOST_ROUNDS, max(FEWEST_ROUNDS, context.estimate_total(n_rounds, start_s, end_s))),
                standing[0] if standing else None,
            )
            if len(lives) <= 1 and n_rounds >= FEWEST_ROUNDS:
                break
    finally:
        default.close()
        for _, live in lives:
            live.close()
    return context.meter.stage_time("race", start_s, inference_s)


def find_beaten(rounds: dict[int, list[float]]) -> set[int]:
    """Return the candidates that are slower than the best one beyond doubt.

    Args:
        rounds: Log latency in each round, by candidate. All have been through the same rounds, so that what a
            round did to all of them cancels in the differences.
    """
    if len(rounds) < 2:
        return set()
    best = min(rounds, key=lambda number: float(np.mean(rounds[number])))
    beaten = set()
    for number, values in rounds.items():
        if number == best:
            continue
        n = min(len(values), len(rounds[best]))
        behind = np.asarray(values[-n:]) - np.asarray(rounds[best][-n:])
        if t_interval(behind, ELIMINATION_CONFIDENCE).low > 0:
            beaten.add(number)
    return beaten
