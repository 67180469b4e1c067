"""Memory as an objective: what each candidate has done when its memory is read, and which of them is the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ortune
from ortune.console.sentence import summarize
from tests.conftest import TINY_CNN
from tests.simulated import Effect, Scenario, simulate

NO_PATTERN = {"enable_mem_pattern": False}
NO_ARENA = {"enable_cpu_mem_arena": False}

ENCODER = Scenario(
    call_ms=3.51,
    peak_bytes=179_000_000,
    calls_to_peak=150,
    effects=(
        Effect(settings=NO_PATTERN, factor=3.46 / 3.51, peak_factor=122 / 179),
        Effect(settings={"intra_op_num_threads": 1}, factor=1.39),
    ),
)
"""An encoder with inputs of 24 lengths. One thread is slower, and has no effect on memory."""


def search(scenario: Scenario, folder: Path, limit: tuple[str, ...] = ()) -> ortune.Record:
    with simulate(scenario):
        return ortune.search(
            TINY_CNN, output=folder / "tuned.json", history=False, objective="memory", budget="120s", limit=limit
        )


def test_a_slow_config_that_has_seen_fewer_inputs_saves_no_memory(tmp_path: Path) -> None:
    only_threads = Scenario(call_ms=3.51, peak_bytes=179_000_000, calls_to_peak=150, effects=ENCODER.effects[1:])
    record = search(only_threads, tmp_path)
    assert record.evidence.verdict in {"default_is_best", "nothing_found"}
    assert record.config == record.base
    assert record.evidence.speedup
    assert record.evidence.speedup.estimate == pytest.approx(1, abs=0.001)


def test_a_limit_on_memory_counts_all_inputs(tmp_path: Path) -> None:
    record = search(ENCODER, tmp_path, limit=("memory<150MB",))
    assert [check.kept for check in record.evidence.baseline_limits] == ["no"]
    assert record.evidence.baseline_limits[0].value == pytest.approx(179e6, rel=0.001)


def test_what_saves_memory_at_equal_speed_is_the_answer(tmp_path: Path) -> None:
    """Without the arena, the model takes a little less memory, but calls are slower."""
    slower = Effect(settings=NO_ARENA, factor=1.39, peak_factor=121.5 / 179)
    both = Effect(settings={**NO_PATTERN, **NO_ARENA}, peak_factor=179 / 122)
    record = search(Scenario(call_ms=3.51, peak_bytes=179_000_000, effects=(*ENCODER.effects, slower, both)), tmp_path)
    assert record.evidence.verdict == "faster"
    assert record.config.settings == NO_PATTERN
    assert record.evidence.speedup
    assert record.evidence.speedup.estimate == pytest.approx(179 / 122, rel=0.001)
    assert "more time" not in summarize(record)


def test_the_answer_says_how_much_slower_it_is(tmp_path: Path) -> None:
    slower = Effect(settings=NO_ARENA, factor=1.39, peak_factor=121.5 / 179)
    record = search(Scenario(call_ms=3.51, peak_bytes=179_000_000, effects=(slower,)), tmp_path)
    assert record.config.settings == NO_ARENA
    assert re.search(r"In the confirmation, calls took (38|39|40)% more time with it \(p50\)\.", summarize(record))


def test_what_saves_memory_is_tried_first(tmp_path: Path) -> None:
    """There is time for one group of candidates only."""
    with simulate(ENCODER):
        record = ortune.search(TINY_CNN, output=tmp_path / "tuned.json", history=False, objective="memory", trials=8)
    assert record.search.n_tried == 8
    assert record.config.settings == NO_PATTERN
