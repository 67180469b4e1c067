"""The bound of what candidates may gain that were measured briefly, and not confirmed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.held_out import make_held_out
from benchmarks.replay import open_replay
from ortune import Config, Goal
from ortune.knobs import Candidate
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.noise import RoundNoise
from ortune.tuning.results import Results, Score
from ortune.tuning.tried import PRIOR_LUCK, bound_tried_gain
from tests.conftest import long_params

NOISE = 0.02
N = 200


def make_results(gains: np.ndarray, seed: int, *, n_launches: int = 1) -> Results:
    """Return results of candidates with these gains, measured in two rounds of each launch."""
    rng = np.random.default_rng(seed)
    results = Results(Goal())
    results.get_or_add(Candidate(config=Config()))
    for number, gain in enumerate(gains):
        result = results.get_or_add(Candidate(config=Config(session_options={"intra_op_num_threads": number + 1})))
        for launch in range(n_launches):
            level = rng.normal(-gain, PRIOR_LUCK)
            for log_ratio in rng.normal(level, NOISE, 2):
                place = 10 * (number // 8) + launch  # as in batches of 8
                score = Score(log_ratios=(log_ratio,), excesses=(), contended=False, launch=place, blocks=None)
                result.scores.append(score)
    return results


def bound(results: Results) -> float:
    return bound_tried_gain(results, RoundNoise(), None, lambda result: False)


@pytest.mark.parametrize("scale", [0.02, 0.1, *long_params(0.0, 0.05)])
def test_the_bound_holds(scale: float) -> None:
    """In 95 of 100 cases, no gain is larger, where gains have one scale and many settings are harmful."""
    held = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 1])
        gains = np.where(rng.random(N) < 0.4, -rng.exponential(0.3, N), rng.normal(0, scale, N))
        held.append(bound(make_results(gains, seed)) >= gains.max() - 0.005)
    assert np.mean(held) >= 0.9


def test_nothing_to_gain() -> None:
    """What is luck alone bounds the gain at less than the largest that was measured."""
    bounds = [bound(make_results(np.zeros(N), seed)) for seed in range(20)]
    assert np.median(bounds) < 0.06


def test_what_was_confirmed_does_not_count() -> None:
    gains = np.zeros(N)
    gains[7] = 0.5
    results = make_results(gains, 3)
    best = results.rank()[0]
    assert bound(results) > 0.3
    scores = best.scores
    best.enter("confirmation")
    best.scores += scores
    assert bound(results) < 0.1


def test_more_launches_tell_more() -> None:
    gains = np.random.default_rng(5).normal(0, 0.05, N)
    gap = [bound(make_results(gains, 6, n_launches=n)) - gains.max() for n in (1, 16)]
    assert abs(gap[1]) < abs(gap[0])


def test_nothing_was_tried() -> None:
    assert bound(make_results(np.zeros(0), 0)) == 0.0


def test_an_exhaustive_search_that_is_misled_does_not_call_the_default_the_best() -> None:
    """Each of 340 candidates is launched once, and those that seem to be the best are lucky."""
    landscape = make_held_out("tails", 2)
    assert landscape.log_speedup(landscape.best) > math.log(1.08)
    verdicts = []
    for seed in range(4):
        opened = open_replay(landscape, seed=seed)
        outcome = run_search(landscape.first_space, opened, SearchSettings(budget_s=300, strategy="exhaustive"))
        verdicts.append(outcome.evidence.verdict)
    assert set(verdicts) <= {"faster", "nothing_found"}
