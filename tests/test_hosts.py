"""The gain over several hosts: does the interval cover, are losses found, and does the worst host count?"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import ortune
from ortune import read_record
from ortune.export import render
from ortune.measure.host_speedup import MOST_HOSTS, HostsEvidence, HostSpeedup
from ortune.measure.hosts import WIDEST, can_pool, find_slower, pool_hosts, widen_for_choice
from ortune.measure.stats import student_error, t_interval
from tests.conftest import TINY_CNN, long_params
from tests.records import ONE_THREAD, make_local_record, write

N_LAUNCHES = 6


def speedup(estimate: float, half: float = 0.05, n_launches: int = N_LAUNCHES) -> HostSpeedup:
    """Return a speedup with an interval of a width that is given as a logarithm."""
    return HostSpeedup(
        host="0" * 8,
        estimate=estimate,
        low=estimate * math.exp(-half),
        high=estimate * math.exp(half),
        confidence=0.95,
        n_launches=n_launches,
    )


def measure(rng: np.random.Generator, gain: float, sigma: float = 0.03) -> HostSpeedup:
    """Return what launches on a host with a gain show."""
    found = t_interval(rng.normal(gain, sigma, N_LAUNCHES)).exp()
    return HostSpeedup(**msgspec.structs.asdict(found), host="0" * 8, n_launches=N_LAUNCHES)


def test_hosts_that_agree() -> None:
    gain = pool_hosts([speedup(1.3)] * 8)
    assert gain.verdict == "faster"
    assert gain.speedup.estimate == pytest.approx(1.3)
    assert gain.speedup.confidence == 0.995
    assert 1.25 < gain.speedup.low < 1.28
    assert gain.another.low < gain.speedup.low
    assert gain.n_slower == 0


def test_hosts_that_differ_widen_the_interval() -> None:
    gain = pool_hosts([speedup(estimate) for estimate in (1.2, 1.3, 1.4, 1.3, 1.2)])
    assert gain.speedup.low < 1.2
    assert gain.another.low < gain.speedup.low
    assert gain.another.confidence == 0.95


def test_two_hosts_prove_little() -> None:
    gain = pool_hosts([speedup(1.3), speedup(1.5)])
    assert gain.verdict == "inconclusive"
    assert gain.speedup.low < 0.1
    widest = pool_hosts([speedup(900.0), speedup(1 / 900)])
    assert (widest.speedup.low, widest.speedup.high) == pytest.approx((1 / WIDEST, WIDEST))


def test_a_loss_on_one_host_is_stated() -> None:
    gain = pool_hosts([*[speedup(1.5 + place / 100) for place in range(11)], speedup(0.8)])
    assert gain.verdict == "faster_on_average"
    assert gain.n_slower == 1
    assert [host.slower for host in gain.hosts] == [True, *[False] * 11]
    assert [host.estimate for host in gain.hosts] == sorted(host.estimate for host in gain.hosts)
    assert gain.worst.estimate == pytest.approx(0.8)
    assert gain.worst.high < 1
    assert gain.worst.low < speedup(0.8).low


def test_a_loss_everywhere() -> None:
    assert pool_hosts([speedup(0.7)] * 6).verdict == "slower"


def test_two_hosts_that_claim_to_be_exact_do_not_decide_alone() -> None:
    claims = [speedup(1.2000, 1e-9), speedup(1.2001, 1e-9), *[speedup(estimate) for estimate in (0.8, 0.9, 1.0, 1.1)]]
    gain = pool_hosts(claims)
    assert gain.verdict == "inconclusive"


def test_the_error_of_an_interval() -> None:
    found = t_interval([1.0, 2.0, 3.0, 4.0])
    assert student_error(found, 4) == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    assert student_error(t_interval([1.0, 1.0]), 2) > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"n_launches": 1},
        {"low": 0.0},
        {"low": 2.0},
        {"high": math.inf},
        {"estimate": math.nan},
        {"confidence": 1.0},
        {"confidence": 0.0},
    ],
)
def test_speedups_that_cannot_be_pooled(changes: dict[str, float]) -> None:
    assert can_pool(speedup(1.3))
    assert not can_pool(msgspec.structs.replace(speedup(1.3), **changes))


@pytest.mark.parametrize("between", [0.0, 0.2, *long_params(0.03)])
@pytest.mark.parametrize("tails", ["heavy", *long_params("normal")])
def test_equal_configs_are_rarely_called_faster(between: float, tails: str) -> None:
    rng = np.random.default_rng(7)
    n = 800
    found = []
    for _ in range(n):
        draws = rng.normal(size=12) if tails == "normal" else rng.standard_t(3, 12) / math.sqrt(3)
        found.append(pool_hosts([measure(rng, effect) for effect in between * draws]))
    faster = sum(gain.verdict.startswith("faster") for gain in found)
    # Three standard errors above one side of 99.5 %.
    assert faster / n <= 0.0025 + 3 * math.sqrt(0.0025 * 0.9975 / n)


@pytest.mark.parametrize("k", [3, 5, 12])
@pytest.mark.parametrize("between", [0.0, 0.1, *long_params(0.02)])
def test_the_interval_of_another_host_covers_it(k: int, between: float) -> None:
    rng = np.random.default_rng(5)
    n = 500
    covered = 0
    for _ in range(n):
        *known, other = (measure(rng, effect) for effect in 0.2 + rng.normal(0, between, k + 1))
        another = pool_hosts(known).another
        covered += another.low <= other.estimate <= another.high
    assert covered / n >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / n)


def test_the_interval_of_the_worst_host_covers_its_gain() -> None:
    rng = np.random.default_rng(2)
    n = 500
    covered = plain = 0
    for _ in range(n):
        found = [measure(rng, 0.1) for _ in range(12)]
        worst = min(found, key=lambda host_speedup: host_speedup.estimate)
        chosen = widen_for_choice(worst, len(found))
        covered += chosen.low <= math.exp(0.1) <= chosen.high
        plain += worst.low <= math.exp(0.1) <= worst.high
    assert covered / n >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / n)
    assert plain / n < 0.9


def test_losses_are_rarely_found_where_there_are_none() -> None:
    rng = np.random.default_rng(3)
    n = 500
    wrong = sum(bool(find_slower([measure(rng, 0.0) for _ in range(12)])) for _ in range(n))
    assert wrong / n <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / n)


def test_losses_are_found() -> None:
    rng = np.random.default_rng(4)
    assert find_slower([measure(rng, gain) for gain in (0.2, -0.3, 0.2, -0.4, 0.2)]) == (1, 3)


def test_only_so_many_hosts_are_listed() -> None:
    gain = pool_hosts([speedup(1 + place / 100) for place in range(100, 0, -1)])
    assert gain.n_hosts == 100
    assert [host.estimate for host in gain.hosts] == pytest.approx([1 + n / 100 for n in range(1, MOST_HOSTS + 1)])


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "slower"},
        {"verdict": "faster_on_average"},
        {"n_hosts": 1},
        {"n_hosts": 3},
        {"n_slower": 1},
        {"n_slower": 9},
        {"n_contended": -1},
        {"hosts": []},
        {"hosts": [{**msgspec.to_builtins(speedup(1.3)), "host": "db-7.example.com"}] * 8},
        {"extra": 1},
    ],
)
def test_evidence_that_contradicts_itself(changes: dict[str, object]) -> None:
    legal = msgspec.to_builtins(pool_hosts([speedup(1.3)] * 8))
    assert msgspec.convert(legal, HostsEvidence).verdict == "faster"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**legal, **changes}, HostsEvidence)


def test_what_is_slower_over_several_hosts_is_not_applied(tmp_path: Path) -> None:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    slower = msgspec.structs.replace(record.evidence, hosts=pool_hosts([speedup(0.7)] * 6))
    path = write(msgspec.structs.replace(record, evidence=slower), tmp_path / "r.json")
    assert ortune.session_options(write(record, tmp_path / "kept.json")).intra_op_num_threads == 1
    with pytest.warns(UserWarning, match="is not used: it is slower over 6 hosts of this class"):
        options = ortune.session_options(path)
    assert options.intra_op_num_threads != 1
    assert "Over 6 hosts of this class, it is slower" in render("python", read_record(path), "m.onnx").text
