"""Calls of a program have items of its own: both sides of a paired run measure calls with the same ones."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from ortune import Config, Load, Objective
from ortune.knobs import DEFAULT
from ortune.measure.block_plan import CallPace, RunPlan
from ortune.measure.block_runner import BlockRunner
from ortune.measure.evaluate import compute_speedup
from ortune.measure.paired_run import PairedRun, Side
from ortune.program import candidates
from ortune.program.candidates import CallCandidate
from ortune.program.search import open_program
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, Memory, SessionInfo
from tests.conftest import TINY_CNN
from tests.records import ONE_THREAD
from tests.simulated import RUNTIME, simulate
from tests.test_program_search import CALLS, prepare, start_executor

BLOCK = BlockPlan(duration_ns=150_000_000, lead_in_ns=30_000_000, min_calls=2, deadline_s=10)

LONGEST_FIRST = np.geomspace(40e6, 5e6, 600)

ORDERS = {
    "longest first": LONGEST_FIRST,
    "shortest first": LONGEST_FIRST[::-1],
    "random": np.random.default_rng(1).permutation(LONGEST_FIRST),
    "short": np.geomspace(1e6, 1e5, 30_000),
    "long": np.geomspace(900e6, 300e6, 200),
}
"""Durations of the calls of a program in ns, in the order of its items."""


class VirtualProgram:
    """A program in virtual time, with its log: it makes one call after another while it is not suspended.

    Args:
        durations_ns: Durations of its calls. It ends after the last one.
        now_ns: Current time.

    Attributes:
        now_ns: Current time.
        n_made: Number of its calls that have ended.
    """

    def __init__(self, durations_ns: NDArray[np.float64], now_ns: int = 0) -> None:
        self._ends_ns = now_ns + np.cumsum(durations_ns).astype(np.int64)
        self._calls = np.stack([np.concatenate([[now_ns], self._ends_ns[:-1]]), self._ends_ns], axis=1)
        self.now_ns = now_ns
        self._n_read = 0

    @property
    def n_made(self) -> int:
        return int(np.searchsorted(self._ends_ns, self.now_ns, side="right"))

    @property
    def ended(self) -> Self | None:
        return self if self.now_ns >= self._ends_ns[-1] else None

    def wait(self, timeout_s: float) -> Self | None:
        self.now_ns = min(self.now_ns + int(timeout_s * 1e9), int(self._ends_ns[-1]))
        return self.ended

    def count_new(self) -> int:
        return self.n_made - self._n_read

    def finish_call(self) -> None:
        if not self.ended:
            self.now_ns = int(self._ends_ns[self.n_made])

    def read(self) -> NDArray[np.int64]:
        calls = self._calls[self._n_read : self.n_made]
        self._n_read = self.n_made
        return calls

    def perf_counter_ns(self) -> int:
        return self.now_ns


class VirtualCandidate(CallCandidate):
    """A candidate whose program runs in virtual time.

    Args:
        config: Its settings.
        durations_ns: Durations of the calls of its program.
        monkeypatch: Replaces the clock.
        ends_at: Number of the block in which its process is ended; 0 for none.

    Attributes:
        firsts: Number of the first measured call of each block.
    """

    def __init__(
        self, config: Config, durations_ns: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch, ends_at: int = 0
    ) -> None:
        super().__init__(cast(Any, None), config, cast(Any, None))
        self._durations_ns = durations_ns
        self._monkeypatch = monkeypatch
        self._ends_at = ends_at
        self.firsts: list[int] = []
        self._begin(0)

    def _begin(self, now_ns: int) -> None:
        self._program = VirtualProgram(self._durations_ns, now_ns)
        self._process = self._log = cast(Any, self._program)
        while not self._program.count_new():
            self._program.wait(candidates.CANDIDATE_POLL_S)
        self._program.finish_call()
        self._count_first_calls(len(self._program.read()))

    @property
    def session_info(self) -> SessionInfo:
        return SessionInfo(load_ns=1_000_000, providers=())

    def measure(self, plan: BlockPlan) -> Block | Failure:
        if self._ends_at and len(self.firsts) + 1 == self._ends_at:
            return Failure(kind="crash", stage="measure", message="ended by SIGKILL")
        measured: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)
        while not len(measured):
            if self._program.ended:
                self._begin(self._program.now_ns)
            start_ns = self._program.now_ns
            self._monkeypatch.setattr(candidates, "time", self._program)
            failure = self._wait_for_calls(plan, start_ns)
            if failure:
                return failure
            self._program.finish_call()
            measured = self._leave_lead_in_out(plan, self._program.read(), start_ns)
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
        ends_at: Number of the block in which the process of the other candidate is ended in its first launch; 0 for
            none.
        ends_always: Whether this is so in each launch: with two processes each.
    """

    runtime = RUNTIME

    def __init__(
        self,
        durations_ns: NDArray[np.float64],
        speedup: float,
        monkeypatch: pytest.MonkeyPatch,
        *,
        ends_at: int = 0,
        ends_always: bool = False,
    ) -> None:
        self.launched: list[VirtualCandidate] = []
        self._n_other = 0
        self._ends_always = ends_always
        self._durations_ns = durations_ns
        self._speedup = speedup
        self._monkeypatch = monkeypatch
        self._ends_at = ends_at

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        return [self._launch(config) for config in configs]

    def _launch(self, config: Config) -> VirtualCandidate:
        speedup, ends_at = 1.0, 0
        if config != DEFAULT:
            speedup = self._speedup
            if self._n_other == 0 or (self._ends_always and self._n_other % 2 == 0):
                ends_at = self._ends_at
            self._n_other += 1
        live = VirtualCandidate(config, self._durations_ns / speedup, self._monkeypatch, ends_at)
        self.launched.append(live)
        return live

    def now_s(self) -> float:
        return float(len(self.launched))

    def firsts(self, config: Config) -> list[list[int]]:
        """Return the number of the first measured call of each block of each launch of a candidate."""
        return [live.firsts for live in self.launched if live.config == config]


def measure(
    programs: VirtualPrograms,
    call_pace: CallPace | None,
    *,
    one_at_a_time: bool = False,
    name: Objective = "mean",
) -> tuple[float, PairedRun]:
    """Return the estimated speedup of a paired run, and the run."""
    runner = BlockRunner(programs, np.random.default_rng(0))
    runner.one_at_a_time = one_at_a_time
    run = PairedRun([Side(name=str(config), config=config) for config in (DEFAULT, ONE_THREAD)], Load())
    plan = RunPlan(block=BLOCK, launches=3, rounds=20, call_pace=call_pace)
    run.measure(runner, plan, end_s=1e9)
    found = compute_speedup(run, 1, name)
    assert found
    return found.estimate, run


def pace_of(durations_ns: NDArray[np.float64]) -> CallPace:
    return CallPace(gap_ns=float(durations_ns[:5].mean()))


@pytest.mark.parametrize(("order", "expected"), [("longest first", 1.41), ("shortest first", 1.16)])
def test_blocks_of_equal_time_have_different_items(
    order: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate, _ = measure(VirtualPrograms(ORDERS[order], 1.3, monkeypatch), None)
    assert estimate == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("truth", [6.0, 1.3, 0.8])
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_gain_is_that_of_the_same_items(
    truth: float, order: str, one_at_a_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations_ns = ORDERS[order]
    programs = VirtualPrograms(durations_ns, truth, monkeypatch)
    estimate, _ = measure(programs, pace_of(durations_ns), one_at_a_time=one_at_a_time)
    # A block that ended a call too late has an item more, which may be quite another one in a random order. The first
    # block of a launch may end much too late if the candidate is many times faster.
    is_random, is_much_faster = order == "random", truth > 4
    assert estimate == pytest.approx(truth, rel=0.03 if is_random or is_much_faster else 2e-3)
    for one, other in zip(programs.firsts(DEFAULT), programs.firsts(ONE_THREAD), strict=True):
        assert one[2:] == pytest.approx(other[2:], abs=10 if is_random else 0)


@pytest.mark.parametrize("order", ["longest first", "shortest first"])
@pytest.mark.parametrize("n_items", [90, 110, 130, 150, 170])
def test_a_program_that_ends_begins_with_the_first_items_again(
    n_items: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations_ns = np.geomspace(40e6, 5e6, n_items)[:: 1 if order == "longest first" else -1]
    estimate, _ = measure(VirtualPrograms(durations_ns, 1.3, monkeypatch), pace_of(durations_ns), name="p50")
    assert estimate == pytest.approx(1.3, rel=0.05)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize(
    ("ends_at", "ends_always", "expected"),
    [(5, False, [4, 20, 20]), (5, True, [4, 4, 4]), (1, False, [20, 20, 20]), (1, True, [20, 20, 20])],
)
def test_a_launch_ends_if_a_side_begins_again(
    ends_at: int, ends_always: bool, expected: list[int], one_at_a_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    durations_ns = ORDERS["longest first"]
    programs = VirtualPrograms(durations_ns, 1.3, monkeypatch, ends_at=ends_at, ends_always=ends_always)
    estimate, run = measure(programs, pace_of(durations_ns), one_at_a_time=one_at_a_time)
    assert estimate == pytest.approx(1.3, rel=2e-3)
    assert [len(launch) for launch in run.launches] == expected
    assert all(len(measured_round.blocks) == 2 for launch in run.launches for measured_round in launch)


@pytest.mark.parametrize("n_concurrent", [1, 8])
def test_the_lead_in_is_not_shortened_by_calls_in_progress(n_concurrent: int) -> None:
    gap_ns = 40e6 / n_concurrent
    plan = RunPlan(
        block=BLOCK, launches=1, rounds=1, call_pace=CallPace(gap_ns=gap_ns, n_concurrent=n_concurrent)
    ).next_block()
    live = CallCandidate(cast(Any, None), DEFAULT, cast(Any, SimpleNamespace(ended=None)))
    n_left_out = []
    for _ in range(5):
        # When the calls of a block have ended, each thread has begun another one.
        n_calls = plan.n_lead_in_calls + (plan.n_calls or 0) - live._n_ahead + n_concurrent
        calls = np.arange(n_calls * 2).reshape(-1, 2)
        n_left_out.append(n_calls - len(live._leave_lead_in_out(plan, calls, 0)))
    assert min(n_left_out) * gap_ns >= BLOCK.lead_in_ns


def test_a_call_that_takes_all_of_a_block_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    durations_ns = np.array([1e6] * 20 + [400e6, 1e6])
    live = VirtualCandidate(DEFAULT, durations_ns, monkeypatch)
    block = live.measure(BLOCK)
    assert isinstance(block, Block)
    assert block.samples_ns.tolist() == [400_000_000]


@pytest.mark.parametrize(
    ("gap_ns", "lead_in_ns", "expected"), [(10e6, 30_000_000, (15, 4)), (1e9, 30_000_000, (2, 2)), (1e7, 0, (15, 0))]
)
def test_as_many_calls_as_fit_are_counted(gap_ns: float, lead_in_ns: int, expected: tuple[int, int]) -> None:
    block = BlockPlan(duration_ns=150_000_000, lead_in_ns=lead_in_ns, min_calls=2, deadline_s=1)
    plan = RunPlan(block=block, launches=1, rounds=1, call_pace=CallPace(gap_ns=gap_ns))
    assert plan.next_block() == plan.next_block(gap_ns)
    assert (plan.next_block().n_calls, plan.next_block().n_lead_in_calls) == expected
    assert msgspec.structs.replace(plan, call_pace=None).next_block(gap_ns) == block


def test_a_program_makes_the_calls_of_a_block() -> None:
    plan = BlockPlan(
        duration_ns=1_000_000_000, lead_in_ns=100_000_000, min_calls=2, n_calls=200, n_lead_in_calls=10, deadline_s=60
    )
    executor = start_executor(CALLS, call="__main__:work")
    try:
        (live,) = executor.launch([Config()], deadline_s=60)
        assert not isinstance(live, Failure)
        block = live.measure(plan)
        assert isinstance(block, Block)
        # Each call sleeps for 10 ms, so a block that ended by time would have 100.
        assert block.n_calls > 110
    finally:
        executor.close()


@pytest.mark.parametrize("keeps_running", [True, False])
def test_calls_are_counted_if_the_program_stays_alive(
    keeps_running: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TINY_CNN, "model.onnx")
    with simulate():
        prepared = msgspec.structs.replace(prepare("forever", "0", call="__main__:work"), keeps_running=keeps_running)
        with open_program(prepared) as opened:
            assert (opened.calibration.pace.call_pace is not None) == keeps_running
