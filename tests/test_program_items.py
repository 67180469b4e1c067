"""Calls of a program have items of its own: both sides of a paired run measure calls with the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from ortune.compare.block_plan import RunPlan
from ortune.compare.block_runner import BlockRunner
from ortune.compare.evaluate import compute_speedup
from ortune.compare.paired_run import PairedRun, Side
from ortune.knobs import DEFAULT, Config
from ortune.program import candidates
from ortune.program.candidates import CallCandidate
from ortune.program.search import open_program
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, Memory, SessionInfo
from ortune.workload import Load
from tests.records import ONE_THREAD
from tests.simulation import RUNTIME
from tests.test_program_search import CALLS, prepare, start_executor

BLOCK = BlockPlan(duration_ns=150_000_000, lead_in_ns=30_000_000, min_calls=2, deadline_s=10)

LONGEST_FIRST = np.geomspace(40e6, 5e6, 600)

ORDERS = {
    "longest first": LONGEST_FIRST,
    "shortest first": LONGEST_FIRST[::-1],
    "random": np.random.default_rng(1).permutation(LONGEST_FIRST),
    "short": np.geomspace(1e6, 1e5, 30_000),
    "long": np.geomspace(900e6, 300e6, 80),
}
"""Durations of the calls of a program in ns, in the order of its items."""


class VirtualProgram:
    """A program in virtual time, with its log: it makes one call after another while it is not suspended."""

    def __init__(self, durations_ns: NDArray[np.float64]) -> None:
        self.now_ns = 0
        self._ends_ns = np.cumsum(durations_ns).astype(np.int64)
        self._calls = np.stack([np.concatenate([[0], self._ends_ns[:-1]]), self._ends_ns], axis=1)
        self._n_read = 0

    @property
    def n_made(self) -> int:
        return int(np.searchsorted(self._ends_ns, self.now_ns, side="right"))

    def wait(self, timeout_s: float) -> None:
        self.now_ns += int(timeout_s * 1e9)

    def count_new(self) -> int:
        return self.n_made - self._n_read

    def finish_call(self) -> None:
        self.now_ns = int(self._ends_ns[self.n_made])

    def read(self) -> NDArray[np.int64]:
        calls = self._calls[self._n_read : self.n_made]
        self._n_read = self.n_made
        return calls

    def perf_counter_ns(self) -> int:
        return self.now_ns


class VirtualCandidate(CallCandidate):
    """A candidate whose program runs in virtual time.

    Attributes:
        firsts: Number of the first measured call of each block.
    """

    def __init__(self, config: Config, durations_ns: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
        self._program = VirtualProgram(durations_ns)
        super().__init__(cast(Any, None), config, cast(Any, self._program))
        self._log = cast(Any, self._program)
        self._monkeypatch = monkeypatch
        self.firsts: list[int] = []

    @property
    def session_info(self) -> SessionInfo:
        return SessionInfo(load_ns=1_000_000, providers=())

    def measure(self, plan: BlockPlan) -> Block | Failure:
        self._monkeypatch.setattr(candidates, "time", self._program)
        start_ns = self._program.now_ns
        failure = self._wait_for_calls(plan, start_ns)
        if failure:
            return failure
        self._program.finish_call()
        calls = self._program.read()
        measured = self._leave_lead_in_out(plan, calls, start_ns)
        self.firsts.append(self._program.n_made - len(measured))
        durations_ns = measured[:, 1] - measured[:, 0]
        return Block(
            samples_ns=durations_ns,
            n_calls=len(durations_ns),
            wall_ns=int(durations_ns.sum()),
            service_ns=float(durations_ns.mean()),
            cpu_ns=int(durations_ns.sum()),
            memory=Memory(steady_bytes=1, peak_bytes=1),
            foreign_share=0.0,
            contended=False,
        )

    def close(self) -> None:
        pass


class VirtualPrograms:
    """Launches candidates in virtual time.

    Args:
        durations_ns: Durations of the calls of the baseline.
        speedup: How many times as fast each call of the other candidate is.
        monkeypatch: Replaces the clock.
    """

    runtime = RUNTIME

    def __init__(self, durations_ns: NDArray[np.float64], speedup: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launched: list[VirtualCandidate] = []
        self._durations_ns = durations_ns
        self._speedup = speedup
        self._monkeypatch = monkeypatch

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[LiveCandidate | Failure]:
        lives = [
            VirtualCandidate(
                config, self._durations_ns / (1.0 if config == DEFAULT else self._speedup), self._monkeypatch
            )
            for config in configs
        ]
        self.launched += lives
        return list(lives)

    def now_s(self) -> float:
        return float(len(self.launched))


def measure(programs: VirtualPrograms, counted_gap_ns: float | None, *, one_at_a_time: bool = False) -> float:
    """Return the estimated speedup of a paired run."""
    runner = BlockRunner(programs, np.random.default_rng(0))
    runner.one_at_a_time = one_at_a_time
    run = PairedRun([Side(name=str(config), config=config) for config in (DEFAULT, ONE_THREAD)], Load())
    plan = RunPlan(block=BLOCK, launches=3, rounds=20, counted_gap_ns=counted_gap_ns)
    run.measure(runner, plan, end_s=1e9)
    found = compute_speedup(run, 1, "mean")
    assert found
    return found.estimate


@pytest.mark.parametrize(("order", "estimate"), [("longest first", 1.41), ("shortest first", 1.16)])
def test_blocks_of_equal_time_have_different_items(
    order: str, estimate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = VirtualPrograms(ORDERS[order], 1.3, monkeypatch)
    assert measure(programs, None) == pytest.approx(estimate, abs=0.01)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("truth", [1.3, 0.8])
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_gain_is_that_of_the_same_items(
    truth: float, order: str, one_at_a_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations_ns = ORDERS[order]
    programs = VirtualPrograms(durations_ns, truth, monkeypatch)
    estimate = measure(programs, float(durations_ns[:5].mean()), one_at_a_time=one_at_a_time)
    # A block that ended a call too late has an item more, which may be quite another one in a random order.
    is_random = order == "random"
    assert estimate == pytest.approx(truth, rel=0.01 if is_random else 1e-3)
    for one, other in zip(programs.launched[::2], programs.launched[1::2], strict=True):
        assert one.firsts == pytest.approx(other.firsts, abs=5 if is_random else 0)


@pytest.mark.parametrize(
    ("gap_ns", "lead_in_ns", "expected"), [(10e6, 30_000_000, (15, 3)), (1e9, 30_000_000, (2, 1)), (1e7, 0, (15, 0))]
)
def test_as_many_calls_as_fit_are_counted(gap_ns: float, lead_in_ns: int, expected: tuple[int, int]) -> None:
    block = BlockPlan(duration_ns=150_000_000, lead_in_ns=lead_in_ns, min_calls=2, deadline_s=1)
    plan = RunPlan(block=block, launches=1, rounds=1, counted_gap_ns=gap_ns)
    found = plan.plan_block(gap_ns)
    assert (found.n_calls, found.n_lead_in_calls) == expected
    by_time = msgspec.structs.replace(plan, counted_gap_ns=None)
    assert by_time.plan_block(gap_ns) == block


@pytest.mark.slow
def test_a_program_makes_the_calls_of_a_block() -> None:
    plan = BlockPlan(
        duration_ns=100_000_000, lead_in_ns=20_000_000, min_calls=2, n_calls=10, n_lead_in_calls=2, deadline_s=60
    )
    executor = start_executor(CALLS, call="__main__:work")
    try:
        (live,) = executor.launch([Config()], deadline_s=60)
        assert not isinstance(live, Failure)
        for _ in range(3):
            block = live.measure(plan)
            assert isinstance(block, Block)
            assert block.n_calls >= 2
    finally:
        executor.close()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "counts"), [(("forever", "0"), True), (("run", "3"), False)])
def test_calls_are_counted_if_the_program_stays_alive(how: tuple[str, str], counts: bool, tmp_path: Path) -> None:
    with open_program(prepare(*how, call="__main__:work")) as opened:
        assert (opened.calibration.pace.counted_gap_ns is not None) == counts
