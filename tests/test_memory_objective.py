"""Memory as an objective: what each candidate has done when its memory is read, and which of them is the answer."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import ortune
from ortune.console.sentence import summarize
from ortune.knobs import DEFAULT
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.filled_memory import MOST_SHAPES, PASSES, choose_shapes, fill_memory
from ortune.workload import Load, Tolerance
from ortune.workload.feed import InputOptions
from ortune.workload.inputs import make_feed
from tests.conftest import TINY_CNN, TINY_ENCODER
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


def search(scenario: Scenario, folder: Path, limit: tuple[str, ...] = ()) -> Record:
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
    assert "In the confirmation, calls took 39% more time with it (p50)." in summarize(record)


def test_what_saves_memory_is_tried_first(tmp_path: Path) -> None:
    """There is time for one group of candidates only."""
    with simulate(ENCODER):
        record = ortune.search(TINY_CNN, output=tmp_path / "tuned.json", history=False, objective="memory", trials=8)
    assert record.search.n_tried == 8
    assert record.config.settings == NO_PATTERN


def make_samples(lengths: list[int]) -> list[dict[str, np.ndarray]]:
    return [{"x": np.zeros((1, length)), "mask": np.ones(length)} for length in lengths]


@pytest.mark.parametrize("n_callers", [1, 3])
def test_each_caller_makes_the_same_calls_with_each_shape(n_callers: int) -> None:
    calls: Counter[tuple[int, int]] = Counter()

    def call(sample: dict[str, np.ndarray]) -> None:
        calls[threading.get_ident(), len(sample["mask"])] += 1

    together = threading.Barrier(n_callers)

    def call_together(sample: dict[str, np.ndarray]) -> None:
        together.wait(60)
        call(sample)

    memory = fill_memory(call_together, make_samples([4, 2, 4, 3, 2]), n_callers)
    assert memory.peak_bytes >= memory.steady_bytes > 0
    assert sorted(length for _, length in calls) == sorted([2, 3, 4] * n_callers)
    assert set(calls.values()) == {PASSES}


def test_what_a_call_raises_is_raised() -> None:
    def call(sample: object) -> None:
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        fill_memory(call, make_samples([1]), 2)


def test_shapes_are_in_the_order_of_the_samples_and_spread_over_their_sizes() -> None:
    assert [len(sample["mask"]) for sample in choose_shapes(make_samples([5, 1, 5, 9]))] == [5, 1, 9]
    lengths = [int(length) for length in np.random.default_rng(0).permutation(np.arange(1, 1001))]
    chosen = [len(sample["mask"]) for sample in choose_shapes(make_samples(lengths))]
    assert len(chosen) == MOST_SHAPES
    assert chosen == [length for length in lengths if length in chosen]
    assert {1, 1000} <= set(chosen)
    assert max(np.diff(sorted(chosen))) <= 17


def test_blocks_of_a_launch_have_the_memory_after_its_first_calls() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"batch": (1,), "sequence": (300, 8, 600)}))
    plan = BlockPlan(load=Load(), duration_ns=1_000_000, lead_in_ns=0, min_calls=1, deadline_s=60)
    with ProcessExecutor(model, feed, Tolerance(), usable=(0,), memory_callers=1) as executor:
        launch_reference(executor, model, feed).close()
        (live,) = executor.launch([DEFAULT], deadline_s=60)
        assert not isinstance(live, Failure)
        # The last one has seen more than the first.
        blocks = [live.measure(plan) for _ in range(3)]
    memories = [block.memory for block in blocks if isinstance(block, Block)]
    assert len(memories) == 3
    assert memories[0] == memories[1] == memories[2]
    assert memories[0].peak_bytes >= memories[0].steady_bytes > 20_000_000
