"""The statistics: do intervals cover what they say?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune.measure.compute_figures import percentiles
from ortune.measure.interval import Interval, share_error
from ortune.measure.quantiles import bound_share, percentile_interval, quantile_interval
from ortune.measure.stats import (
    clustered_interval,
    find_varying_share,
    pool_intervals,
    t_interval,
    trimmed_mean,
    widen_for_occasions,
)
from ortune.worker import Block, Memory
from tests.conftest import long_params


def make_block(samples_ns: np.ndarray, cases: np.ndarray) -> Block:
    """Return a block with calls of several cases."""
    return Block(
        samples_ns=samples_ns,
        cases=cases,
        n_calls=len(samples_ns),
        wall_ns=10**9,
        service_ns=1e6,
        cpu_ns=10**9,
        memory=Memory(steady_bytes=1, peak_bytes=1),
        foreign_share=0.0,
        contended=False,
    )


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


@pytest.mark.parametrize("n_clusters", [5, *long_params(6, 8)])
@pytest.mark.parametrize("launch_sigma", [0.0, 0.01])
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


def draw_launches(rng: np.random.Generator, kind: str, luck: float, k: int, n: int) -> list[np.ndarray]:
    """Return latencies of several launches, whose levels differ by chance."""

    def draw() -> np.ndarray:
        if kind == "normal":
            return np.exp(rng.normal(0, 0.05, n))
        return 1 + rng.exponential(0.2, n) if kind == "exponential" else np.exp(0.05 * np.abs(rng.standard_t(3, n)))

    return [(1e6 * draw() * np.exp(rng.normal(0, luck))).astype(np.int64) for _ in range(k)]


class TestQuantiles:
    @pytest.mark.parametrize("kind", ["normal", "exponential", "heavy"])
    def test_the_interval_covers_a_high_quantile(self, kind: str) -> None:
        rng = np.random.default_rng(2)
        (many,) = draw_launches(rng, kind, 0.0, 1, 1_000_000)
        truth = math.log(np.quantile(many, 0.99))
        found = [quantile_interval(draw_launches(rng, kind, 0.01, 8, 130), 0.99, 0.95) for _ in range(200)]
        assert np.mean([interval.low <= truth <= interval.high for interval in found]) >= 0.93
        assert np.mean([interval.high < truth + math.log(1.5) for interval in found]) >= 0.8

    def test_few_calls_say_nothing_about_the_slowest(self) -> None:
        launches = [np.arange(1, 41)] * 8
        interval = quantile_interval(launches, 0.99, 0.95)
        assert interval.high == math.inf
        assert math.exp(interval.low) <= 40

    def test_launches_that_differ_count_as_fewer_calls(self) -> None:
        """Half a percent of the calls are slow: spread over all launches, or all of them in one."""
        spread = [np.array([1] * 199 + [2])] * 8
        at_once = [np.array([1] * 192 + [2] * 8), *[np.ones(200, dtype=int)] * 7]
        assert bound_share(spread, 1, 0.95)[1] < 0.02
        assert bound_share(at_once, 1, 0.95)[1] > 0.03

    def test_the_share_of_one_launch_is_unknown(self) -> None:
        assert bound_share([np.array([1, 2])], 1, 0.95) == (0.0, 1.0)

    def test_with_several_cases_it_is_that_of_their_mean(self) -> None:
        rng = np.random.default_rng(0)

        def block(factor: float) -> Block:
            samples = np.concatenate([rng.normal(1e6, 1e4, 200), rng.normal(factor * 1e6, 1e4, 200)]).astype(np.int64)
            return make_block(samples, np.repeat([0, 1], 200))

        interval = percentile_interval([[block(4.0)] for _ in range(6)], 90).exp()
        assert interval.estimate == pytest.approx(2e6, rel=0.03)
        assert 1.95e6 < interval.low < interval.estimate < interval.high < 2.2e6


class TestOccasions:
    def interval(self, estimate: float, half: float) -> Interval:
        return Interval(estimate=estimate, low=estimate - half, high=estimate + half, confidence=0.95)

    def test_occasions_that_agree_narrow_the_interval(self) -> None:
        pooled = pool_intervals([self.interval(0.3, 0.05)] * 6, [8] * 6)
        assert pooled.estimate == pytest.approx(0.3)
        assert pooled.high - pooled.low < 0.06

    def test_occasions_that_differ_widen_it(self) -> None:
        """Three searches of one config, as they were measured: their intervals are disjoint in part."""
        found = [(1.299, 1.378), (1.304, 1.363), (1.512, 1.565)]
        logarithms = [self.interval(math.log(a * b) / 2, math.log(b / a) / 2) for a, b in found]
        pooled = pool_intervals(logarithms, [8, 8, 8]).exp()
        assert pooled.low < 1.15
        assert pooled.high > 1.6

    @pytest.mark.parametrize("ratio", [1.46, 0.8, 4.0])
    def test_two_occasions_rarely_contradict_one_another(self, ratio: float) -> None:
        """What is saved varies by 6 % between occasions. Without widening, 8 to 40 % of the pairs are disjoint."""
        rng = np.random.default_rng(5)
        saved = 1 - math.exp(-abs(math.log(ratio)))
        disjoint = 0
        for _ in range(1000):
            levels = math.log(ratio) + rng.normal(0, 0.06 * saved, 2)
            one, other = (widen_for_occasions(t_interval(rng.normal(level, 0.03, 8))) for level in levels)
            disjoint += one.high < other.low or other.high < one.low
        assert disjoint <= 1000 / 66

    def test_occasions_do_not_differ_where_nothing_is_gained(self) -> None:
        interval = self.interval(0.0, 0.01)
        widened = widen_for_occasions(interval)
        assert (widened.low, widened.high) == (interval.low, interval.high)

    @pytest.mark.parametrize("ratio", [1.3, 2.0, 10.0])
    def test_the_side_that_varies_decides_how_wide_it_is(self, ratio: float) -> None:
        """If it is the faster one, a saving that varies by a share moves the ratio by as many times as it is larger."""
        estimate, rng = math.log(ratio), np.random.default_rng(3)
        usual, varying, shared = (rng.normal(0, sigma, 400) for sigma in (0.001, 0.05, 0.1))
        shares = [find_varying_share(slower, faster) for slower, faster in ((varying, usual), (usual, varying))]
        narrow, wide = (widen_for_occasions(self.interval(estimate, 0.0), share) for share in shares)
        sigma = 1.96 * 0.06
        assert estimate - narrow.low < sigma * (1 - 1 / ratio) + 0.4 * sigma * (ratio - 1)
        assert estimate - wide.low == pytest.approx(sigma * (ratio - 1), rel=0.1)
        # What both sides have in common does not count.
        assert find_varying_share(varying + shared, usual + shared) < 0.2

    @given(estimate=st.floats(0.01, 1), share=st.floats(0.01, 0.95))
    def test_a_proven_gain_stays_proven(self, estimate: float, share: float) -> None:
        assert widen_for_occasions(self.interval(estimate, share * estimate)).low > 0
        assert widen_for_occasions(self.interval(-estimate, share * estimate)).high < 0

    @pytest.mark.parametrize("between", [0.0, 0.02, 0.1])
    @pytest.mark.parametrize("k", [3, 6])
    def test_it_covers_the_mean_of_all_occasions(self, between: float, k: int) -> None:
        rng = np.random.default_rng(3)
        covered = 0
        for _ in range(400):
            levels = 0.2 + rng.normal(0, between, k)
            intervals = [t_interval(rng.normal(level, 0.02, 6)) for level in levels]
            pooled = pool_intervals(intervals, [6] * k)
            covered += pooled.low <= 0.2 <= pooled.high
        assert covered >= 0.94 * 400


def test_intervals_that_hold_together() -> None:
    assert share_error(1) == pytest.approx(0.95)
    assert share_error(5) == pytest.approx(0.99)
    assert share_error(0) == pytest.approx(0.95)


class TestCases:
    """Calls with several inputs."""

    def launch(self, *samples_ms: tuple[int, float]) -> list[Block]:
        """Return a launch with calls of these cases."""
        samples = np.array([value * 1e6 for _, value in samples_ms], dtype=np.int64)
        return [make_block(samples, np.array([case for case, _ in samples_ms]))]

    def test_a_limit_is_one_for_all_calls(self) -> None:
        launches = [self.launch(*((case, 10.0**case) for case in (0, 1, 2) for _ in range(100))) for _ in range(6)]
        assert percentile_interval(launches, 90).exp().estimate == pytest.approx(10e6)
        assert percentile_interval(launches, 90, by_case=False).exp().estimate == pytest.approx(100e6)

    @pytest.mark.parametrize("by_case", [True, False])
    def test_a_launch_with_few_calls_may_lack_a_case(self, by_case: bool) -> None:
        launches = [self.launch((0, 1.0), (2, 4.0)), self.launch((1, 2.0), (2, 4.0)), self.launch((0, 1.0), (1, 2.0))]
        found = percentile_interval(launches, 50, by_case=by_case).exp()
        assert found.estimate == pytest.approx(2e6)


def test_ratios_too_far_apart_for_a_number() -> None:
    """Two launches that differ a lot have such intervals."""
    found = Interval(estimate=800.0, low=-5000.0, high=math.inf, confidence=0.95).exp()
    assert 1e300 < found.estimate < math.inf
    assert 0 < found.low < 1e-300
    assert found.high == math.inf
