"""Changes of level in histories of gates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trends import BEFORE, FEW_BEFORE, NOISES, find_step
from ortune.gates.trends import find_changes
from tests.conftest import long_params

SIGMA = 0.01


def make_series(seed: int, *levels: tuple[int, float]) -> list[float]:
    """Return a series with levels, each for some runs, in percent."""
    rng = np.random.default_rng(seed)
    logs = np.concatenate([np.full(n, math.log1p(level / 100)) for n, level in levels])
    return [float(value) for value in np.exp(logs + rng.normal(0, SIGMA, len(logs)))]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("before", [BEFORE, *long_params(FEW_BEFORE)])
def test_steps_are_found_soon(noise: str, before: int) -> None:
    """Steps of 2 % in noise of 1 %: 95 % of them within 10 runs."""
    rng = np.random.default_rng(before)
    steps = [math.log(1.02), -math.log(1.02)] * 75
    found = [find_step(NOISES[noise], rng, step, before) is not None for step in steps]
    # Less than two standard errors below.
    assert sum(found) >= 0.92 * len(steps)


@pytest.mark.parametrize("step", [5.0, -5.0])
def test_large_steps_are_always_found(step: float) -> None:
    for seed in range(20):
        changes = [change for change in find_changes(make_series(seed, (50, 0.0), (10, step))) if change.found >= 50]
        assert (changes[0].ratio > 1) == (step > 0)


def test_a_step_is_placed_and_measured() -> None:
    (change,) = find_changes(make_series(3, (40, 0.0), (30, 6.0)))
    assert abs(change.first - 40) <= 1 and change.holds
    assert math.isclose(change.ratio, 1.06, abs_tol=0.01)
    assert change.found - 40 < 10


def test_a_slow_drift_is_found() -> None:
    """1 % a week, with a run a day."""
    rng = np.random.default_rng(0)
    drift = np.concatenate([np.zeros(30), 0.01 * np.arange(1, 43) / 7])
    changes = find_changes(np.exp(drift + rng.normal(0, SIGMA, len(drift))).tolist())
    assert changes and changes[0].ratio > 1 and changes[0].found < 30 + 28


@pytest.mark.parametrize("noise", NOISES)
def test_quiet_histories_rarely_have_changes(noise: str) -> None:
    rng = np.random.default_rng(5)
    series = [np.exp(NOISES[noise](rng, 1000)).tolist() for _ in range(10)]
    # 1 in 500 would be 20; two standard errors above.
    assert sum(len(find_changes(history)) for history in series) <= 30


@pytest.mark.parametrize("place", [12, 20, 35])
def test_one_slow_run_is_no_change_and_hides_none(place: int) -> None:
    series = make_series(4, (40, 0.0), (10, 4.0))
    (change,) = find_changes(series)
    series[place] *= 1.5
    (same,) = find_changes(series)
    assert same.first == change.first
    assert math.isclose(same.ratio, change.ratio, abs_tol=0.005)


def test_what_begins_with_unusual_runs_is_no_change() -> None:
    """The window begins with runs that are fast by chance; those before them are like the later ones."""
    logs = np.random.default_rng(5).normal(0, SIGMA, 160)
    logs[80:85] -= 0.02
    changes = find_changes(np.exp(logs).tolist())
    # Once for the fast runs, and not again for each later window that begins with them.
    assert len([change for change in changes if change.found >= 80]) <= 2


def test_a_change_that_later_runs_contradict_is_dropped() -> None:
    series = make_series(1, (30, 0.0), (6, 4.0), (40, 0.0))
    changes = find_changes(series)
    assert len(changes) >= 2 or not changes[0].holds


def test_runs_that_are_added_take_no_change_back() -> None:
    """Except for those that they contradict, changes are found once and for all."""
    series = make_series(2, (30, 0.0), (20, 3.0), (30, 0.0))
    whole = find_changes(series)
    for n in range(len(series)):
        assert [change.found for change in find_changes(series[:n])] == [
            change.found for change in whole if change.found < n
        ]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(1e-12, 1e18, exclude_min=True), max_size=40))
def test_any_series(values: list[float]) -> None:
    for change in find_changes(values):
        assert 0 < change.first <= change.found < len(values)


def test_a_constant_series_has_no_change() -> None:
    assert find_changes([1.01] * 50) == ()
