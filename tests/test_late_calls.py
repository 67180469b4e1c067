"""Calls that become slower or faster the longer a process runs: what is said about them, and what is recommended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ortune import Record, read_record
from tests.conftest import TINY_CNN, run_ortune
from tests.simulated import Effect, Scenario

SAID = "calls of a launch, and"
"""Part of each sentence about late calls."""


def scenario(factor: float, late_factor: float = 1.0, late_after: int = 150, seed: int = 0) -> Scenario:
    """Return a host on which calls with one thread take longer after many of a process."""
    effect = Effect(settings={"intra_op_num_threads": 1}, factor=factor, late_factor=late_factor, late_after=late_after)
    return Scenario(effects=(Effect(cpus=1.8), effect), seed=seed)


def search(folder: Path, host: Scenario) -> tuple[Record, str]:
    """Return the record of a search, and what it prints as one line."""
    options = ("-o", "tuned.json", "--budget", "60s", "--no-history")
    done = run_ortune("search", TINY_CNN, *options, cwd=folder, columns=400, simulate=host)
    assert not done.stderr
    return read_record(folder / "tuned.json"), " ".join(done.stdout.split())


def test_a_config_that_becomes_slower_is_not_recommended(tmp_path: Path) -> None:
    """Its first calls take 0.6 times as long as those of the default, and later ones 1.2 times."""
    record, text = search(tmp_path, scenario(0.6, 2.0))
    evidence = record.evidence
    assert (evidence.verdict, record.config) == ("inconclusive", record.base)
    assert SAID in evidence.reason
    assert text.count(SAID) == 1
    assert evidence.late_calls and evidence.speedup
    assert evidence.late_calls.low <= 1 / 1.2 <= evidence.late_calls.high < 1.6 < evidence.late_calls.early
    assert evidence.speedup.low < 1 < 1 / 0.6 < evidence.speedup.high


def test_a_config_that_becomes_somewhat_slower_gains_what_late_calls_gain(tmp_path: Path) -> None:
    record, text = search(tmp_path, scenario(0.5, 1.5))
    evidence = record.evidence
    assert (evidence.verdict, record.config.session_options["intra_op_num_threads"]) == ("faster", 1)
    assert evidence.speedup and evidence.late_calls
    assert evidence.speedup.estimate == evidence.late_calls.estimate == pytest.approx(1 / 0.75, rel=0.05)
    assert evidence.speedup.low <= 1 / 0.75 < 2 <= evidence.speedup.high
    assert "Late calls differ from early ones: the ratio is 1.3" in text
    assert f"{evidence.late_calls.n_calls} {SAID}" in text


@pytest.mark.parametrize("seed", range(5))
def test_calls_that_stay_as_they_are_are_not_mentioned(seed: int, tmp_path: Path) -> None:
    for factor in (0.6, 1.0):
        record, text = search(tmp_path, scenario(factor, seed=seed))
        assert record.evidence.late_calls is None
        assert SAID not in text


def test_a_bench_names_the_side(tmp_path: Path) -> None:
    sides = ("--set", "intra_op_num_threads=1", "--set", "execution_mode=ORT_PARALLEL")
    command = ("bench", TINY_CNN, *sides, "--budget", "20s")
    done = run_ortune(*command, cwd=tmp_path, columns=200, simulate=scenario(0.6, 2.0, 150))
    assert re.search(r"intra_op_num_threads=1: Late calls differ from early ones: the ratio is 0\.[78]", done.stdout)
    assert "execution_mode=ORT_PARALLEL: Late" not in done.stdout
