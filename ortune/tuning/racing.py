"""Racing: launches the best candidates of screening several times, and eliminates significantly slower ones."""

from __future__ import annotations

import numpy as np

from ortune.compare.stats import t_interval
from ortune.tuning.pareto import Vector
from ortune.tuning.results import CandidateResult
from ortune.tuning.state import SearchState

MIN_CANDIDATES = 2
MAX_CANDIDATES = 8
WORTH_RACING = 0.25
"""Minimum and maximum number of candidates in racing, and their maximum distance from the best of screening, as a
log-ratio. Part of the lead of the best is due to chance: up to 15 % with several clients."""

LAUNCHES = 5
MIN_LAUNCHES = 2
"""Planned and minimum number of launches. With several callers, two launches of one config differed by 10 %, and more
rounds per launch do not reduce this difference. In replays, five launches of two rounds chose better candidates than
three launches of four."""

ROUNDS_BEFORE_ELIMINATION = 4
MIN_ROUNDS = 2
MAX_ROUNDS = 20
ELIMINATION_CONFIDENCE = 0.98
LAUNCH_MARGIN = 0.05
"""Log-ratio by which two launches of one config may differ: a candidate that is closer is not eliminated."""


def run_racing(state: SearchState, racing_s: float) -> None:
    """Race the best candidates of screening for a time, in several launches, if there is time for two of them."""
    most = count_affordable(state, racing_s)
    if most < MIN_CANDIDATES:
        return
    with state.time_stage("racing"):
        start_s = state.now_s()
        end_s = start_s + racing_s
        racing = choose_candidates(state, most)
        for result in racing:
            result.enter("racing")
        for launch in range(LAUNCHES):
            if not racing or (launch >= MIN_LAUNCHES and state.now_s() >= end_s):
                break
            launch_end_s = start_s + racing_s * (launch + 1) / LAUNCHES
            racing = race_launch(state, racing, launch_end_s, end_s)


def race_launch(
    state: SearchState,
    racing: list[CandidateResult],
    launch_end_s: float,
    end_s: float,
) -> list[CandidateResult]:
    """Launch the candidates, measure rounds until `launch_end_s`, and return the candidates that are left.

    Args:
        state: The search.
        racing: The candidates.
        launch_end_s: When this launch ends, after a minimum of rounds.
        end_s: When racing ends, for the progress.
    """
    start_s = state.now_s()
    baseline = state.launch_baseline()
    lives = state.launch(racing)
    n_rounds = 0
    try:
        while lives and n_rounds < MAX_ROUNDS and (state.now_s() < launch_end_s or n_rounds < MIN_ROUNDS):
            lives = state.measure_round(baseline, lives)
            n_rounds += 1
            done = max(len(result.scores) for result in racing)
            if done >= ROUNDS_BEFORE_ELIMINATION:
                slower = find_slower(
                    {
                        result.number: [score.log_ratios for score in result.scores]
                        for result, _ in lives
                        if not result.excess
                    }
                )
                for result, live in lives:
                    if result.number in slower:
                        live.close()
                lives = [(result, live) for result, live in lives if result.number not in slower]
            left = {result.number for result, _ in lives}
            ranked = [result for result in state.results.rank() if result.number in left]
            total = done + state.estimate_total(n_rounds, start_s, end_s) - n_rounds
            state.report("racing", done, max(total, LAUNCHES * MIN_ROUNDS), ranked[0] if ranked else None)
            if len(lives) <= 1 and n_rounds >= MIN_ROUNDS:
                break
    finally:
        baseline.close()
        for _, live in lives:
            live.close()
        # In a race, there is no time to measure them alone. What is known of them stays.
        state.starved.clear()
    return [result for result, _ in lives]


def count_affordable(state: SearchState, racing_s: float) -> int:
    """Return how many candidates can race in the minimum of launches within this time."""
    return int(racing_s / state.plan.candidate_s(MIN_LAUNCHES, MIN_ROUNDS)) - 1


def choose_candidates(state: SearchState, most: int = MAX_CANDIDATES) -> list[CandidateResult]:
    """Return the best candidates of screening: up to eight, and as many as memory and time allow.

    They stay within the limits and are close to the best in at least one objective. If none stays within the limits,
    all candidates may race.
    """
    ranked = state.results.rank()
    keeping = [result for result in ranked if not result.excess] or ranked
    vectors = {result.number: result.log_ratios or () for result in keeping}
    if state.expected and len(state.goal.objectives) == 1:
        # Part of the best candidate's lead is due to chance, especially if similar candidates are slower.
        vectors = {result.number: (state.expected[result.candidate.config.key],) for result in keeping}
        keeping.sort(key=lambda result: (result.excess, vectors[result.number]))
    bests = [min(values) for values in zip(*vectors.values(), strict=True)]
    worth_racing = [
        result
        for result in keeping
        if any(value <= best + WORTH_RACING for value, best in zip(vectors[result.number], bests, strict=True))
    ]
    return worth_racing[: min(MAX_CANDIDATES, most, state.plan.max_live - 1)]


def find_slower(log_ratios: dict[int, list[Vector]]) -> set[int]:
    """Return the candidates that are significantly worse than the best one in every objective.

    Args:
        log_ratios: Log-ratios to the baseline in each round, by number of the candidate. All candidates were measured
            in the same rounds, so whatever affects a whole round, including the baseline, cancels in the differences.
    """
    if len(log_ratios) < 2:
        return set()
    best = min(log_ratios, key=lambda number: float(np.mean(log_ratios[number], axis=0).sum()))
    slower = set()
    for number, values in log_ratios.items():
        if number == best:
            continue
        behind = np.asarray(values) - np.asarray(log_ratios[best])
        if all(t_interval(column, ELIMINATION_CONFIDENCE).low > LAUNCH_MARGIN for column in behind.T):
            slower.add(number)
    return slower
