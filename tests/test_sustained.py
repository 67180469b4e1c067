"""Hosts with a power limit: what one side saves, the other spends, unless each is measured alone for minutes.

The host sustains 15 W. The default takes 6 W. With one thread, calls take 30 W, which the host allows for a short time.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

import ortune
from ortune import BenchResult
from tests.conftest import TINY_CNN, run_ortune
from tests.simulated.scenario import ONE_THREAD, Effect, Scenario, simulate


def make_scenario(speed: float) -> Scenario:
    """Return a host on which one thread has this many times the default's speed, at the same frequency."""
    return Scenario(
        effects=(Effect(watts=6.0), Effect(settings=ONE_THREAD, factor=1 / speed, watts=30.0)),
        sustained_w=15.0,
        drift=0.0,
    )


FASTER, SLOWER = make_scenario(1.27), make_scenario(1.12)
"""Alone, one thread runs at 79 % of the frequency, which makes it 1.01 and 0.89 times as fast as the default."""


def bench(scenario: Scenario, *, sustained: bool = False) -> BenchResult:
    with simulate(scenario):
        return ortune.bench(TINY_CNN, set=ONE_THREAD, sustained=sustained)


@pytest.mark.parametrize(
    ("scenario", "interleaved", "alone"), [(FASTER, 1.18, 1.01), (SLOWER, 1.04, 0.89)], ids=["faster", "slower"]
)
def test_each_side_alone_has_another_ratio(scenario: Scenario, interleaved: float, alone: float) -> None:
    for sustained, expected in ((False, interleaved), (True, alone)):
        result = bench(scenario, sustained=sustained)
        speedup = result.rows[1].speedup
        assert speedup
        assert speedup.estimate == pytest.approx(expected, rel=0.015)
        assert result.workload.sustained == sustained
        assert result.noise.one_at_a_time == sustained
        assert result.noise.frequencies
        assert result.noise.frequencies.slow_hz < 0.95 * result.noise.frequencies.fast_hz


def test_sides_are_interleaved_where_the_power_is_not_limited() -> None:
    result = bench(msgspec.structs.replace(FASTER, sustained_w=60.0))
    assert result.rows[1].speedup
    assert result.rows[1].speedup.estimate == pytest.approx(1.27, rel=0.015)
    assert result.noise.frequencies is None


def run(folder: Path, *arguments: str | Path, scenario: Scenario = FASTER) -> tuple[int, str]:
    """Return the exit status of a command, and all it printed in one line."""
    done = run_ortune(*map(str, arguments), cwd=folder, simulate=scenario)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


WARNING = (
    "The CPUs ran at 2.76 GHz for intra_op_num_threads=1, and at 3 GHz for default. If that is due to a limit of power "
    "or heat, the ratio may be another one where one of them runs alone for minutes: --sustained measures that."
)


def test_different_frequencies_are_a_warning(tmp_path: Path) -> None:
    command = ("bench", TINY_CNN, "--set", "intra_op_num_threads=1")
    status, text = run(tmp_path, *command)
    assert status == 0
    assert WARNING in text
    status, text = run(tmp_path, *command, "--sustained", "--explain")
    assert status == 0
    assert "The CPUs ran at" not in text
    assert "do not fit into memory" not in text
    assert "what the host sustains each config alone, after a minute of calls" in text
    assert "The configs were launched and measured one after the other" in text


@pytest.mark.parametrize(
    ("speed", "sustained", "verdict", "expected"),
    [(1.27, False, "faster", 1.18), (1.12, True, "nothing_found", 0.89), (1.5, True, "faster", 1.19)],
)
def test_a_search_confirms_what_is_sustained(
    speed: float, sustained: bool, verdict: str, expected: float, tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    with simulate(make_scenario(speed)):
        record = ortune.search(TINY_CNN, output=path, sustained=sustained, history=False)
    evidence = record.evidence
    assert evidence.verdict == verdict
    assert evidence.speedup
    assert evidence.speedup.estimate == pytest.approx(expected, rel=0.015)
    assert record.workload.sustained == evidence.noise.one_at_a_time == sustained
    assert evidence.noise.frequencies
    (trials,) = tmp_path.glob("*.jsonl.gz")
    lines = map(json.loads, gzip.decompress(trials.read_bytes()).splitlines())
    rounds = [line for line in lines if line.get("type") == "round"]
    assert all(entry["frequencies_hz"].keys() == entry["values"].keys() for entry in rounds)


def test_all_of_a_front_are_confirmed_alone() -> None:
    with simulate(make_scenario(1.5)):
        record = ortune.search(TINY_CNN, pareto=("p50", "cpu"), sustained=True, history=False)
    assert record.evidence.verdict == "trade_off"
    assert record.evidence.noise.one_at_a_time
    best = max((point.speedups["p50"] for point in record.evidence.front if point.speedups), key=lambda s: s.estimate)
    assert best.n_pairs == best.n_launches
    assert best.estimate == pytest.approx(1.19, rel=0.015)


def test_a_recorded_gain_may_not_be_sustained(tmp_path: Path) -> None:
    """That of a record about sustained speed is verified in the same way."""
    assert run(tmp_path, "search", TINY_CNN, "-o", "short.json", "--budget", "30s")[0] == 0
    status, text = run(tmp_path, "apply", "short.json", "--verify", "--update", "--sustained")
    assert status == 1
    assert "The recorded gain does not hold on this host" in text
    assert "speed: interleaved in the record, sustained on this host." in text
    assert not ortune.read_record(tmp_path / "short.json").evidence.occasions
    lasting = make_scenario(1.5)
    assert run(tmp_path, "search", TINY_CNN, "-o", "long.json", "--sustained", scenario=lasting)[0] == 0
    status, text = run(tmp_path, "apply", "long.json", "--verify", scenario=lasting)
    assert status == 0
    assert "The recorded gain holds on this host" in text
    assert "what the host sustains" in text


@pytest.mark.parametrize("command", ["search MODEL -o -", "bench MODEL --set intra_op_num_threads=1"])
def test_a_budget_that_is_too_short_is_refused_with_the_time_needed(command: str, tmp_path: Path) -> None:
    words = [*(str(TINY_CNN) if word == "MODEL" else word for word in command.split()), "--sustained"]
    status, text = run(tmp_path, *words, "--budget", "60s")
    assert status == 2
    text = " ".join(text.split())
    assert "60s: too short to " in text
    needed = text.partition("Give --budget ")[2].split()[0]
    assert 600 < float(needed.removesuffix("s")) < 1000
    status, text = run(tmp_path, *words, "--budget", needed)
    assert status == 0


def test_nothing_is_sustained_without_a_measurement(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    status, text = run(tmp_path, "apply", "a.json", "--sustained")
    assert status == 2
    assert "--sustained needs --verify: without it, nothing is measured." in text
