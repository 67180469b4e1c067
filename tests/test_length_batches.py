"""Batches of items with different lengths: durations between measured points, policies, and lengths from options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune import UsageError
from ortune.queueing.interpolation import CallTimes, make_call_times
from ortune.queueing.length_batches import (
    evaluate_policies,
    group_best,
    group_by_arrival,
    group_by_tokens,
    group_in_buckets,
    group_sorted,
    powers_of_two,
    predict_ends,
)
from ortune.workload import lengths as lengths_module
from ortune.workload.lengths import LengthDistribution, parse_lengths

FIXED_NS, TOKEN_NS = 100.0, 2.0


def token_times(sizes: tuple[int, ...] = (1, 8), lengths: tuple[int, ...] = (1, 64)) -> CallTimes:
    """Return durations of a fixed cost per call, and a cost per token."""
    return make_call_times({(n, m): FIXED_NS + TOKEN_NS * n * m for n in sizes for m in lengths})


def test_a_cost_per_call_and_per_token_is_interpolated_exactly() -> None:
    times = token_times()
    for size, length in ((1, 1), (3, 17), (8, 64), (5, 33)):
        assert times.time_ns(size, length) == pytest.approx(FIXED_NS + TOKEN_NS * size * length)
    assert times.time_ns([1, 2], [3, 4]).tolist() == pytest.approx([106, 116])


def test_measured_points_are_kept_and_noise_is_smoothed() -> None:
    times = make_call_times({(1, 8): 10, (1, 16): 14, (4, 8): 9, (4, 16): 30})
    assert times.times_ns == ((9.5, 14), (9.5, 30))
    assert times.time_ns(1, 3) == 9.5
    with pytest.raises(ValueError, match="measured up to a batch of 4 and a length of 16"):
        times.time_ns(4, 17)


@given(st.lists(st.floats(1, 1000), min_size=9, max_size=9))
def test_durations_never_decrease(values: list[float]) -> None:
    points = [(size, length) for size in (1, 3, 8) for length in (2, 10, 11)]
    times = make_call_times(dict(zip(points, values, strict=True)))
    grid = times.time_ns(np.arange(1, 9)[:, None], np.arange(1, 12)[None])
    assert (np.diff(grid, axis=0) >= -1e-9).all()
    assert (np.diff(grid, axis=1) >= -1e-9).all()


@pytest.mark.parametrize("measured", [{}, {(1, 2): 3.0, (2, 4): 5.0}, {(0, 1): 1.0}, {(1, 1): 0.0}])
def test_incomplete_measurements_are_refused(measured: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match=r"not measured|at least 1|positive"):
        make_call_times(measured)


LENGTHS = [9, 2, 5, 2, 7]


def test_groups_by_hand() -> None:
    assert [(group.items, group.length) for group in group_by_arrival(LENGTHS, 2)] == [
        ((0, 1), 9),
        ((2, 3), 5),
        ((4,), 7),
    ]
    assert [group.length for group in group_by_arrival(LENGTHS, 3, padded=16)] == [16, 16]
    assert [(group.items, group.length) for group in group_sorted(LENGTHS, 2)] == [((1, 3), 2), ((2, 4), 7), ((0,), 9)]
    # 2 x 2 tokens; a third item would make 3 x 5. Then 5 and 7 alone, as 2 x 7 is too much, and 9 alone though longer.
    assert [group.items for group in group_by_tokens(LENGTHS, 8, 4)] == [(1, 3), (2,), (4,), (0,)]
    assert [group.items for group in group_by_tokens(LENGTHS, 100, 4)] == [(1, 3, 2, 4), (0,)]
    found = group_in_buckets(LENGTHS, 2, [4, 8, 16])
    assert [(group.items, group.length) for group in found] == [((1, 3), 4), ((2, 4), 8), ((0,), 16)]
    with pytest.raises(ValueError, match="longer than the largest bucket"):
        group_in_buckets(LENGTHS, 2, [8])


def test_times_by_hand() -> None:
    times = token_times()
    (single,) = (grouping for grouping in evaluate_policies(LENGTHS, times) if grouping.policy == "one at a time")
    assert single.ends_ns == pytest.approx((118, 222, 332, 436, 550))
    assert single.items_per_s == pytest.approx(5e9 / 550)
    assert single.padding(LENGTHS) == 0
    (whole,) = (grouping for grouping in evaluate_policies(LENGTHS, times) if str(grouping) == "arrival, 8 per batch")
    assert whole.ends_ns == pytest.approx((100 + 2 * 5 * 9,))
    assert whole.padding(LENGTHS) == pytest.approx(1 - 25 / 45)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=30),
    fixed=st.floats(1, 1000),
    maximum=st.integers(1, 64) | st.none(),
)
def test_all_policies_have_every_item_once(lengths: list[int], fixed: float, maximum: int | None) -> None:
    times = make_call_times({(n, m): fixed + n * m + 0.1 * n * m**2 for n in (1, 4, 8) for m in (1, 8, 64)})
    found = evaluate_policies(lengths, times, maximum=maximum)
    for grouping in found:
        assert sorted(item for group in grouping.groups for item in group.items) == list(range(len(lengths)))
        assert all(lengths[item] <= group.length for group in grouping.groups for item in group.items)
        assert all(len(group.items) <= 8 for group in grouping.groups)
    rates = [result.items_per_s for result in found]
    assert rates == sorted(rates, reverse=True) or max(np.diff(rates)) < 1e-6
    # No other cuts of the sorted order are better, nor is any other policy.
    best = next(result for result in found if result.policy == "sorted, best cuts")
    assert best.ends_ns[-1] <= min(result.ends_ns[-1] for result in found) * (1 + 1e-9)


def test_the_best_cuts_are_the_best_of_all() -> None:
    lengths = [1, 2, 3, 10, 11, 30]
    times = token_times((1, 3), (1, 64))
    totals = []
    for cuts in range(1 << 5):
        groups: list[list[int]] = [[0]]
        for item in range(1, 6):
            if cuts >> (item - 1) & 1:
                groups.append([])
            groups[-1].append(item)
        if max(map(len, groups)) <= 3:
            totals.append(sum(float(times.time_ns(len(group), lengths[group[-1]])) for group in groups))
    assert predict_ends(group_best(lengths, times, 3), times)[-1] == pytest.approx(min(totals))


def test_skewed_lengths_are_sorted_and_batched() -> None:
    """A host whose calls take as long per token as in small batches up to 512 tokens, and longer beyond."""
    sizes, grid = (1, 2, 4, 8, 16, 32), (8, 16, 32, 64, 128, 256)
    times = make_call_times({(n, m): 400 + 2 * n * m * (1 + n * m / 2000) for n in sizes for m in grid})
    lengths = parse_lengths("lognormal:29,8-256").draw(64).tolist()
    found = evaluate_policies(lengths, times, maximum=256)
    rates = {str(grouping): grouping.items_per_s for grouping in found}
    assert rates["sorted by tokens, 512 tokens"] > rates["sorted, 32 per batch"] > rates["arrival, 32 per batch"]
    assert rates["arrival, 32 per batch"] > rates["maximum, 32 per batch"]
    assert rates["sorted by tokens, 512 tokens"] > rates["one at a time"]


@pytest.mark.parametrize("lengths", [[], [0, 3]])
def test_policies_need_lengths(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        evaluate_policies(lengths, token_times())


def test_powers_of_two() -> None:
    assert list(powers_of_two(3, 40)) == [4, 8, 16, 32]
    assert list(powers_of_two(1, 8)) == [1, 2, 4, 8]
    assert list(powers_of_two(9, 8)) == []


# Options


def test_named_distributions() -> None:
    assert set(parse_lengths("constant:128").draw(9).tolist()) == {128}
    uniform = parse_lengths("uniform:8-11").draw(4000)
    assert sorted(set(uniform.tolist())) == [8, 9, 10, 11]
    lognormal = parse_lengths("lognormal:29,8-256")
    drawn = lognormal.draw(200_000, seed=1)
    assert np.median(drawn) == pytest.approx(29, abs=1)
    assert (drawn.min(), drawn.max()) == (8, 256)
    assert (drawn == 256).mean() == pytest.approx(0.01, rel=0.1)
    assert parse_lengths("lognormal:29,8-256,0.5").sigma == 0.5
    assert lognormal.draw(5, seed=3).tolist() == lognormal.draw(5, seed=3).tolist()


def test_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("12\n\n 7 \r\n300\n")
    found = parse_lengths(str(path))
    assert found.sample == (12, 7, 300)
    assert set(found.draw(100).tolist()) == {7, 12, 300}


@pytest.mark.parametrize(
    "value",
    [
        "uniform:8",
        "uniform:9-8",
        "uniform:0-8",
        "constant:x",
        "constant:",
        "constant:9999999",
        "lognormal:29",
        "lognormal:300,8-256",
        "lognormal:nan,8-256",
        "lognormal:29,8-256,",
        "/nowhere/lengths.txt",
        "a\0b",
    ],
)
def test_what_is_not_a_distribution_is_refused(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(value)
    assert caught.value.message.startswith(value[:5])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no lengths"),
        (b"12\nabc\n", "line 2 is not a length: abc"),
        (b"12\n-4\n", "line 2 is not a length: -4"),
        (b"0\n", "line 1 is not a length: 0"),
        (b"1e3\n", "line 1 is not a length"),
        (b"9" * 400, "line 1 is not a length"),
        (b"\xff\xfe", "line 1 is not a length"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "lengths.txt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        parse_lengths(str(path))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b" [3, 8,\n 256]", (3, 8, 256)),
        (
            b'{"models": [{"name": "m", "shapes": [{"inputs": [{"shape": [2, 7]}], "count": 2}, '
            b'{"inputs": [{"shape": null}, {"shape": [1, 5]}], "count": 1}]}], "processes": []}',
            (7, 7, 7, 7, 5),
        ),
    ],
)
def test_json(tmp_path: Path, content: bytes, expected: tuple[int, ...]) -> None:
    path = tmp_path / "lengths.json"
    path.write_bytes(content)
    assert parse_lengths(str(path)).sample == expected


def test_many_calls_that_were_inspected(tmp_path: Path) -> None:
    shapes = [{"inputs": [{"shape": [1, size]}], "count": 10**size} for size in (1, 9)]
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"models": [{"name": "m", "shapes": shapes}]}))
    sample = parse_lengths(str(path)).sample
    assert len(sample) < 20_000
    assert set(sample) == {1, 9}


def seen_models(*names: str) -> bytes:
    shapes = [{"inputs": [{"shape": [1, 7]}], "count": 1}]
    return json.dumps({"models": [{"name": name, "shapes": shapes} for name in names]}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "it has no lengths"),
        (b"[3, 0]", "entry 2 is not a length: 0"),
        (b"[3, 1e400]", "is not a JSON list of lengths"),
        (b"[3, true]", "is not a JSON list of lengths"),
        (b"[" * 100_000, "is not a JSON list of lengths"),
        (b"{}", "is not a file of `ortune inspect`"),
        (b'{"models": []}', "it has no lengths"),
        (b'{"models": [{"name": "m", "shapes": [{"inputs": [{"shape": [1, -3]}], "count": 2}]}]}', "no lengths"),
        (seen_models("a", "b"), "several models with lengths: a, b"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        parse_lengths(str(path))


def test_a_sample_keeps_the_order_and_the_proportions() -> None:
    few = LengthDistribution(kind="sample", low=1, high=9, sample=(9, 1, 5))
    assert few.take(64) == (9, 1, 5)
    many = LengthDistribution(kind="sample", low=1, high=1000, sample=tuple(range(1, 1001)))
    assert list(many.take(64)) == sorted(set(many.take(64)))
    assert len(many.take(64)) == 64
    skewed = parse_lengths("lognormal:29,8-256").take(1000)
    assert 26 < np.median(skewed) < 32
    assert max(skewed) <= 256


def test_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("1\n" * 20)
    monkeypatch.setattr(lengths_module, "MOST_LENGTHS", 10)
    with pytest.raises(UsageError, match="more than 10 lengths"):
        parse_lengths(str(path))
    monkeypatch.setattr(lengths_module, "MOST_LENGTHS_BYTES", 10)
    with pytest.raises(UsageError, match="more than 0 KiB"):
        parse_lengths(str(path))
