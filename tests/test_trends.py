"""Changes of level in histories of gates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.gates.trends import find_changes

SIGMA = 0.01


def make_series(seed: int, *levels: tuple[int, float]) -> list[float]:
    """Return a series with levels, each for some runs, in percent."""
    rng = np.random.default_rng(seed)
    logs = np.concatenate([np.full(n, math.log1p(level / 100)) for n, level in levels])
    return [float(each) for each in np.exp(logs + rng.normal(0, SIGMA, len(logs)))]


@pytest.mark.parametrize("step", [2.0, -2.0, 5.0])
def test_steps_are_found_soon(step: float) -> None:
    found = 0
    for seed in range(60):
        changes = [each for each in find_changes(make_series(seed, (50, 0.0), (10, step))) if each.found >= 50]
        found += bool(changes) and (changes[0].ratio > 1) == (step > 0)
    assert found >= 54


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


def test_quiet_histories_rarely_have_changes() -> None:
    n_alarms = sum(len(find_changes(make_series(seed, (400, 0.0)))) for seed in range(15))
    assert n_alarms <= 12  # 1 in 500


def test_a_change_that_later_runs_contradict_is_dropped() -> None:
    series = make_series(1, (30, 0.0), (6, 4.0), (40, 0.0))
    changes = find_changes(series)
    assert len(changes) >= 2 or not changes[0].holds


def test_runs_that_are_added_take_no_change_back() -> None:
    """Except for those that they contradict, changes are found once and for all."""
    series = make_series(2, (30, 0.0), (20, 3.0), (30, 0.0))
    whole = find_changes(series)
    for n in range(len(series)):
        assert [each.found for each in find_changes(series[:n])] == [each.found for each in whole if each.found < n]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.floats(1e-12, 1e18, exclude_min=True), max_size=40))
def test_any_series(values: list[float]) -> None:
    for change in find_changes(values):
        assert 0 < change.first <= change.found < len(values)


def test_a_constant_series_has_no_change() -> None:
    assert find_changes([1.01] * 50) == ()
