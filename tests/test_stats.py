"""The statistics: do intervals cover what they say?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortune.compare.figures import percentiles
from ortune.compare.stats import clustered_interval, t_interval, trimmed_mean


def test_trimmed_mean_leaves_out_a_tenth_at_each_end() -> None:
    assert trimmed_mean([-1000, *range(1, 9), 1000]) == pytest.approx(4.5)
    assert trimmed_mean([1, 2, 3]) == pytest.approx(2)
    assert trimmed_mean([-1000, -900, 1, 2, 3, 4, 900, 1000], 0.25) == pytest.approx(2.5)


def test_t_interval_against_a_table() -> None:
    interval = t_interval([1, 2, 3, 4, 5])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert interval.low == pytest.approx(3 - half, rel=1e-5)
    assert interval.high == pytest.approx(3 + half, rel=1e-5)


def test_one_value_proves_nothing() -> None:
    assert t_interval([1.0]).low == -math.inf
    assert clustered_interval([[1.0, 1.1]]).high == math.inf


def test_no_values_are_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        clustered_interval([[], []])


@pytest.mark.parametrize("n_clusters", [5, 6, 8])
@pytest.mark.parametrize("launch_sigma", [0.0, 0.01])
@pytest.mark.slow
def test_the_clustered_interval_covers_the_truth(n_clusters: int, launch_sigma: float) -> None:
    """With the variance between launches that breaks intervals which take pairs for independent."""
    rng = np.random.default_rng(1)
    covered = 0
    n = 400
    for seed in range(n):
        truth = 0.05
        clusters = [
            truth + rng.normal(0, launch_sigma) + rng.normal(0, 0.02, 10) + rng.standard_t(3, 10) * 0.005
            for _ in range(n_clusters)
        ]
        interval = clustered_interval(clusters, seed=seed)
        covered += interval.low <= truth <= interval.high
    # Three standard errors below 95 %.
    assert covered / n >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / n)


def test_the_interval_of_ratios() -> None:
    interval = clustered_interval([[math.log(2)] * 4] * 5).exp()
    assert interval.estimate == pytest.approx(2)
    assert interval.low == pytest.approx(2)


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(np.arange(1, 101), [50, 90, 99]) == [50, 90, 99]
