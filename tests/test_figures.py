"""Figures of blocks, and how many calls they must rest on."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Objective, Summary
from ortune.measure.compute_figures import (
    bound_percentile,
    compute_block_figure,
    compute_figure,
    percentiles,
    required_calls,
    supported_percentile,
    to_cost,
)
from ortune.worker import Block
from ortune.worker.block import Memory
from ortune.workload import FIGURES


def block(samples: list[int], cases: list[int] | None = None, **fields: object) -> Block:
    values = {
        "n_calls": float(len(samples)),
        "wall_ns": sum(samples),
        "service_ns": float(np.mean(samples)),
        "cpu_ns": 2 * sum(samples),
        "memory": Memory(steady_bytes=10, peak_bytes=20),
        "foreign_share": 0.0,
        "contended": False,
        **fields,
    }
    return Block(
        samples_ns=np.array(samples, dtype=np.int64),
        cases=None if cases is None else np.array(cases, dtype=np.int64),
        **values,  # type: ignore[arg-type]
    )


def test_each_figure() -> None:
    blocks = [block([10, 20, 30, 40]), block([50, 50], memory=Memory(steady_bytes=10, peak_bytes=70))]
    assert compute_figure("p50", blocks) == 30
    assert compute_figure("p99", blocks) == 50
    assert compute_figure("mean", blocks) == pytest.approx(200 / 6)
    assert compute_figure("throughput", blocks) == pytest.approx(6e9 / 200)
    assert compute_figure("cpu", blocks) == pytest.approx(400 / 6)
    assert compute_figure("memory", blocks) == 70
    assert compute_figure("load-time", blocks, [5, 7, 9]) == 7
    created = block([10], creations_ns=np.array([1, 2, 30]))
    assert compute_figure("load-time", [created], [5]) == 2


def test_percentiles_are_taken_case_by_case() -> None:
    """Of calls with one and with eight images, the median of all would be that of one of them, or neither's."""
    mixed = block([10, 80, 11, 81, 12, 82], [0, 1, 0, 1, 0, 1])
    assert compute_figure("p50", [mixed]) == pytest.approx((11 * 81) ** 0.5)
    # A candidate that is twice as fast for one case alone is better by the square root of that.
    other = block([5, 80, 5, 81, 6, 82], [0, 1, 0, 1, 0, 1])
    assert compute_figure("p50", [mixed]) / compute_figure("p50", [other]) == pytest.approx((11 / 5) ** 0.5)


def test_costs_are_smaller_when_better() -> None:
    fast, slow = block([10, 10]), block([20, 20])
    for name in ("p50", "p99", "mean", "throughput", "cpu"):
        left, right = (to_cost(name, compute_block_figure(name, given_block, 0)) for given_block in (fast, slow))
        assert left < right, name


def test_a_block_with_few_calls_shows_a_lower_percentile() -> None:
    few = block(list(range(1, 31)))
    assert supported_percentile(30) == pytest.approx(90)
    assert compute_block_figure("p99", few, 0) == compute_figure("p90", [few])
    assert compute_block_figure("p50", few, 0) == compute_figure("p50", [few])
    assert supported_percentile(2) == 50


def test_calls_needed() -> None:
    """LoadGen's formula, n = z^2 p (1 - p) / m^2, with a margin of half the tail."""
    assert required_calls("p50") == 16
    assert required_calls("p90") == 139
    assert required_calls("p99") == 1522
    assert required_calls("mean") == required_calls("memory") == 1


@pytest.mark.parametrize("n_calls", [474, 1600])
def test_a_percentile_rarely_exceeds_its_bound(n_calls: int) -> None:
    rng = np.random.default_rng(0)
    bounds = [bound_percentile([block((rng.exponential(1e6, n_calls) + 1).tolist())], 99) for _ in range(400)]
    n_kept = sum(bound >= -np.log(0.01) * 1e6 for bound in bounds)
    assert 0.92 * 400 <= n_kept < 400


def test_the_bound_of_a_percentile_with_few_calls_is_the_slowest() -> None:
    assert bound_percentile([block(list(range(1, 345)))], 99) == pytest.approx(344)


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=300),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
)
def test_percentiles_are_those_of_numpy(samples: list[int], points: list[float]) -> None:
    array = np.array(samples)
    assert percentiles(array, points) == list(np.percentile(array, points, method="inverted_cdf"))


def test_percentiles_occurred() -> None:
    assert percentiles(np.array([1, 2, 3, 100]), [50, 75, 99]) == [2, 3, 100]


def test_rows_are_complete() -> None:
    """If a new figure fails here, the message says what its row lacks."""
    fields = set(Summary.__struct_fields__)
    for name, figure in FIGURES.items():
        assert msgspec.convert(name, Objective) == figure.name == name
        assert compute_figure(name, [block([10], metric=1.0)], [1]) > 0
        assert not figure.field or figure.field in fields, f"{name}: Summary has no field {figure.field}"
        assert figure.is_latency or figure.gain, f"{name}: say what a gain is"
        assert figure.is_latency or figure.unit == "number" or figure.larger_is_better or figure.saving, name


@pytest.mark.parametrize(
    ("name", "point"), [("p50", 50), ("p75", 75), ("p95", 95), ("p99.9", 99.9), ("p97.25", 97.25), ("p99.999", 99.999)]
)
def test_any_percentile_from_the_median_on_is_a_figure(name: str, point: float) -> None:
    assert FIGURES[name].name == msgspec.convert(name, Objective) == name
    assert FIGURES[name].percentile == point
    assert FIGURES[name].is_latency
    samples = block(list(range(1, 100_001)))
    assert compute_figure(name, [samples]) == pytest.approx(1000 * point, abs=1.5)


@pytest.mark.parametrize(
    "name",
    ["p42", "p9", "p100", "p99.9999", "p99.90", "p99.", "p099", "P99", "p99\n", "p-1", "", "mean "],
)
def test_what_is_no_figure(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, Objective)
    with pytest.raises(KeyError):
        FIGURES[name]
