"""Measures rounds: one block of every live candidate, repeated while other processes use the CPUs."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NoReturn, TypeVar

import msgspec
import numpy as np

from ortune.errors import ClockError, HostError, MeasureError
from ortune.knobs import Config
from ortune.measure.comparison import Noise
from ortune.measure.compute_figures import compute_block_figure
from ortune.steps import enter_measuring, enter_step
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate, SessionInfo
from ortune.worker.attempts import Attempts
from ortune.worker.memory_plan import MemoryPlan
from ortune.workload import Load, Objective

MAX_LOST_SHARE = 0.5
"""Share of the time that may be lost to processes that end suddenly or hang, without a loss for what is planned."""

MOST_REPEATED_SHARE = 0.3
"""Maximum share of blocks that are repeated because of noise. Without it, measuring would never end on a host that is
always busy."""

MAX_REPEATS = 2

MAX_JUMPS_IN_A_ROW = 5
"""Times that a block is measured, if the clocks of the host jump each time."""

FIRST_LOAD_DEADLINE_S = 300.0
"""Time that a launch may take before the calibration sets a deadline."""

BASELINE_NAME = "the baseline"

UNTRIED = Failure(kind="exit", stage="start", message="it was not launched")
"""Stands for the answer of a launch that was not made yet."""

T = TypeVar("T")


class Round(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One block of each candidate, by its position in the list that was measured.

    Attributes:
        blocks: Blocks of the candidates that did not fail.
        loads_ns: Time to create each session.
        failures: Why the others failed.
        contended: Whether other processes used the CPUs during any block.
        at_s: When it began, on the runner's clock.
    """

    blocks: dict[int, Block]
    loads_ns: dict[int, int]
    failures: dict[int, Failure]
    contended: bool
    at_s: float = 0.0

    @cached_property
    def _figures(self) -> dict[tuple[Objective, int], float]:
        """Figures that were computed before: they are used again after each round or launch."""
        return {}

    def figure(self, name: Objective, position: int) -> float:
        """Return a figure of one candidate in this round."""
        key = (name, position)
        if key not in self._figures:
            self._figures[key] = compute_block_figure(name, self.blocks[position], self.loads_ns[position])
        return self._figures[key]


class BlockRunner:
    """Measures blocks and rounds, and tracks noise and time.

    Args:
        executor: Launches candidates.
        rng: Decides the order within rounds, and the traffic that all candidates of a round get.
        check: Called before each block. It raises if measuring cannot go on.

    Attributes:
        load_deadline_s: Time that a launch may take to create the sessions, and the same to run them once.
        inference_s: Time spent in calls so far.
        one_at_a_time: Whether only one candidate may be live at a time, because two do not fit into memory.
        memory: The memory that candidates share. It limits what each of them may take.
        patient_until_s: Time on the runner's clock after which no block is repeated because of noise.
        counts_all_calls: Whether no block is repeated because of noise at all, so that the calls in it count.
        sessions: Facts about each session that was created, in order.
    """

    def __init__(self, executor: Executor, rng: np.random.Generator, check: Callable[[], None] = lambda: None) -> None:
        self.executor = executor
        self.rng = rng
        self.check = check
        self.load_deadline_s = FIRST_LOAD_DEADLINE_S
        self.inference_s = 0.0
        self.one_at_a_time = False
        self.memory = MemoryPlan(None)
        self.patient_until_s = math.inf
        self.counts_all_calls = False
        self._attempts: defaultdict[tuple[Executor, str], Attempts] = defaultdict(Attempts)
        self._start_s = executor.now_s()
        self._lost_s = 0.0
        self.sessions: list[SessionInfo] = []
        self._shares: list[float] = []
        self._n_blocks = 0
        self._n_contended = 0
        self._n_repeated = 0
        self._n_throttled = 0
        self._n_jumps = 0

    def now_s(self) -> float:
        """Return the time on the executor's clock, in seconds, without what was lost to processes that ended suddenly.

        A process that hangs costs seconds, and the rest of a small budget could prove nothing. At most a part of the
        time does not count.
        """
        at_s = self.executor.now_s()
        return at_s - min(self._lost_s, MAX_LOST_SHARE * (at_s - self._start_s))

    def attempts_of(self, config: Config, executor: Executor | None = None) -> Attempts:
        """Return what decides whether a candidate is launched again, by another executor if one is given.

        Executors run different programs: that a config works in one of them says nothing about another.
        """
        return self._attempts[executor or self.executor, config.key]

    @property
    def n_launched_again(self) -> int:
        """Number of failures after which a candidate was launched again."""
        return sum(attempts.n_failures for attempts in self._attempts.values())

    def launch(
        self, configs: Sequence[Config], executor: Executor | None = None, *, independent: bool = True
    ) -> list[SteadyCandidate | Failure]:
        """Launch candidates, by another executor if one is given. Those whose process ends are launched again.

        Args:
            configs: Their configs.
            executor: The other executor, or None.
            independent: As for `Executor.launch`.

        Raises:
            HostError: Processes cannot be started.
        """
        executor = executor or self.executor
        attempts = [self.attempts_of(config, executor) for config in configs]
        answers: list[SteadyCandidate | Failure] = [UNTRIED] * len(configs)
        left = list(range(len(configs)))
        while left:
            for position in left:
                attempts[position].add_launch()
            # Side by side, each may take as long as all of them one after the other.
            deadline_s = self.load_deadline_s * len(left)
            enter_step(f"loading {len(left)} {'config' if len(left) == 1 else 'configs'}")
            start_s = self.executor.now_s()
            chosen = [configs[position] for position in left]
            launched = executor.launch(chosen, deadline_s=deadline_s, independent=independent)
            spent_s = self.executor.now_s() - start_s
            if len(left) < len(configs) or any(
                isinstance(answer, Failure) and answer.kind == "timeout" for answer in launched
            ):
                # Of the first attempt, the time of one that hangs is lost; of the others, all of it.
                self._lost_s += min(spent_s, self.load_deadline_s) if len(left) == len(configs) else spent_s
            again = []
            for position, answer in zip(left, launched, strict=True):
                if not isinstance(answer, Failure):
                    self.sessions.append(answer.session_info)
                    answers[position] = self.keep_alive(answer, executor)
                    continue
                answers[position] = answer
                if attempts[position].may_launch_again(answer):
                    again.append(position)
                elif answer.stage == "start":
                    raise HostError(
                        f"{answer.message[0].upper()}{answer.message[1:]}.",
                        "Check the limits of processes, open files and memory.",
                    )
            left = again
        return answers

    def keep_alive(self, live: LiveCandidate, executor: Executor | None) -> SteadyCandidate:
        """Return a candidate whose disturbed blocks are repeated, and which its executor launches again if it ends.

        Args:
            live: The candidate.
            executor: What launched it; None for a candidate that is not launched again.
        """
        return SteadyCandidate(self, live, executor)

    @contextlib.contextmanager
    def without_repeats(self) -> Iterator[None]:
        """Repeat no block because of noise.

        Where requests arrive, what disturbs a block makes them late. Without these blocks, the share of late requests
        would be too low.
        """
        before, self.counts_all_calls = self.counts_all_calls, True
        try:
            yield
        finally:
            self.counts_all_calls = before

    def measure_rounds(
        self,
        lives: Mapping[int, LiveCandidate],
        next_block: Callable[[], BlockPlan | None],
        *,
        next_order: Callable[[list[int]], Sequence[int]] | None = None,
        loads: Mapping[int, Load] = MappingProxyType({}),
    ) -> Iterator[Round]:
        """Measure rounds: one block of each live candidate, all with the same traffic.

        Args:
            lives: The candidates by position. Between two rounds, the caller may remove some.
            next_block: Returns how the blocks of the next round are measured; None for no further round.
            next_order: Returns the order of a round, given the sorted positions; None for a random one.
            loads: Loads of those candidates that have another one than the plan.
        """
        while (plan := next_block()) is not None:
            positions = sorted(lives)
            order = next_order(positions) if next_order else [positions[k] for k in self.rng.permutation(len(lives))]
            plan = self.draw_traffic(plan)
            at_s = self.now_s()
            answers: dict[int, Block | Failure] = {}
            for position in order:
                answers[position] = lives[position].measure(plan.under(loads.get(position, plan.load)))
            loads_ns = {
                position: lives[position].session_info.load_ns
                for position, answer in answers.items()
                if not isinstance(answer, Failure)
            }
            yield make_round(answers, loads_ns, at_s)

    def draw_traffic(self, plan: BlockPlan) -> BlockPlan:
        """Return the plan of the blocks of one round, with traffic of its own."""
        return msgspec.structs.replace(plan, seed=int(self.rng.integers(2**31)))

    def count_block(self, block: Block) -> None:
        """Count a block of a comparison, and its noise."""
        self._n_blocks += 1
        self._n_contended += block.contended
        self._n_throttled += bool(block.gpu and block.gpu.slowdowns)
        self.inference_s += (block.wall_ns + block.lead_in_ns) / 1e9
        if block.foreign_share is not None:
            self._shares.append(block.foreign_share)

    def count_repeat(self) -> None:
        """Count a block that is repeated because of noise."""
        self._n_repeated += 1

    def count_jump(self, n_in_a_row: int, jump_s: float) -> None:
        """Count a block in which the clocks of the host jumped.

        Raises:
            ClockError: So many blocks in a row had a jump that none can be measured.
        """
        self._n_jumps += 1
        if n_in_a_row == MAX_JUMPS_IN_A_ROW:
            raise ClockError(
                f"The clocks of this host disagree in every block, the last time by {jump_s:+.3g} s.",
                "Check that the host does not sleep, and that nothing sets its time again and again.",
            )

    def may_repeat(self, plan: BlockPlan, block: Block) -> bool:
        """Return whether a contended block may be repeated: not if many were, nor if the budget or the side is slow."""
        were_many = self._n_repeated >= MOST_REPEATED_SHARE * max(self._n_blocks, 20)
        is_late = self.now_s() >= self.patient_until_s
        has_given_up = plan.give_up_ns is not None and block.n_calls <= 1 and block.wall_ns > plan.give_up_ns
        return not (self.counts_all_calls or were_many or is_late or has_given_up)

    @property
    def is_mostly_contended(self) -> bool:
        """Whether more than half of the blocks so far were contended, so that this host is usually busy."""
        return 2 * self._n_contended > self._n_blocks

    def describe_noise(self, *, contended: bool, drift: float | None = None) -> Noise:
        """Return the noise so far.

        Args:
            contended: Whether the result rests on contended blocks.
            drift: How much the host changed between two stages, or None.
        """
        known = bool(self._shares)
        regime: Literal["quiet", "contended"] = "contended" if contended else "quiet"
        return Noise(
            n_blocks=self._n_blocks,
            n_contended=self._n_contended,
            n_repeated=self._n_repeated,
            foreign_share_mean=round(max(float(np.mean(self._shares)), 0.0), 4) if known else None,
            foreign_share_p90=round(max(float(np.quantile(self._shares, 0.9)), 0.0), 4) if known else None,
            regime=regime if known else "unknown",
            drift=drift,
            n_throttled=self._n_throttled,
            n_relaunched=self.n_launched_again,
            n_jumps=self._n_jumps,
            one_at_a_time=self.one_at_a_time,
        )


class SteadyCandidate:
    """A live candidate whose process is launched again if it ends suddenly.

    What was measured before stays. Rounds of one launch may then come from two processes of a side, which makes the
    mean of the launch vary less, not more. Where calls are counted, a paired run ends the launch instead.

    Args:
        runner: Launches it again.
        live: Its first process.
        executor: What launched it; None if it is not launched again.

    Attributes:
        is_launched_again: Whether its process was launched again. Who reads it may reset it.
    """

    def __init__(self, runner: BlockRunner, live: LiveCandidate, executor: Executor | None) -> None:
        self.config = live.config
        self.is_launched_again = False
        self._runner = runner
        self._live = live
        self._executor = executor

    @property
    def session_info(self) -> SessionInfo:
        """Facts about the session of its last process."""
        return self._live.session_info

    def measure(self, plan: BlockPlan, *, counts: bool = True) -> Block | Failure:
        """Measure a block. It is repeated if the host slept or is busy, and in a new process if its own ends.

        Args:
            plan: How the block is measured.
            counts: Whether it is one of those that are compared. Others are not repeated because of a busy host.

        Raises:
            MeasureError: The clocks of the host jump again and again.
        """
        runner = self._runner
        if counts:
            enter_measuring()
        n_jumps = n_repeats = 0
        while True:
            runner.check()
            start_s, lost_s = runner.executor.now_s(), runner._lost_s
            answer = self._live.measure(plan)
            if isinstance(answer, Failure):
                if failure := self._launch_again(answer, start_s, lost_s):
                    return failure
                continue
            if self._executor:
                runner.attempts_of(self.config, self._executor).add_block()
            if answer.clock_jump_s:
                n_jumps += 1
                runner.count_jump(n_jumps, answer.clock_jump_s)
                continue
            n_jumps = 0
            if not counts:
                return answer
            runner.count_block(answer)
            if not answer.contended or n_repeats == MAX_REPEATS or not runner.may_repeat(plan, answer):
                return answer
            n_repeats += 1
            runner.count_repeat()

    def _launch_again(self, failure: Failure, start_s: float, lost_s: float) -> Failure | None:
        """Launch its process again after a failure.

        Args:
            failure: The failure.
            start_s: When the block began that failed, on the executor's clock. All time since then is lost.
            lost_s: Time that was lost before.

        Returns:
            The failure that counts if it is not launched again, or does not work.
        """
        runner = self._runner
        self._live.close()
        if not self._executor or not runner.attempts_of(self.config, self._executor).may_launch_again(failure):
            return failure
        (again,) = runner.launch([self.config], self._executor)
        runner._lost_s = lost_s + runner.executor.now_s() - start_s
        if isinstance(again, Failure):
            return again
        self._live, self.is_launched_again = again._live, True
        return None

    def close(self) -> None:
        """End its process."""
        self._live.close()


class FreshCandidate:
    """A candidate that is launched for each block and ended after it, because two do not fit into memory.

    Args:
        runner: Launches it, and measures its blocks.
        config: Its config.

    Attributes:
        session_info: Facts about the session of its last block.
    """

    session_info: SessionInfo

    def __init__(self, runner: BlockRunner, config: Config) -> None:
        self.config = config
        self._runner = runner

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Launch the candidate, measure one block, and end it."""
        (live,) = self._runner.launch([self.config])
        if isinstance(live, Failure):
            return live
        self.session_info = live.session_info
        try:
            return live.measure(plan)
        finally:
            live.close()

    def close(self) -> None:
        """Do nothing: it is live only while it is measured."""


def make_round(answers: Mapping[int, Block | Failure], loads_ns: dict[int, int], at_s: float) -> Round:
    """Return the round of these blocks and failures; `loads_ns` holds the time to create each session."""
    blocks = {position: answer for position, answer in answers.items() if not isinstance(answer, Failure)}
    return Round(
        blocks=blocks,
        loads_ns=loads_ns,
        failures={position: answer for position, answer in answers.items() if isinstance(answer, Failure)},
        contended=any(block.contended for block in blocks.values()),
        at_s=at_s,
    )


def select_regime(values: Sequence[tuple[T, bool]], *, n_quiet: int) -> tuple[list[T], bool]:
    """Return the values of one regime, and whether it is the contended one.

    Rankings differ between a quiet and a busy host, so the two are never mixed.

    Args:
        values: Each value with whether it was measured under contention.
        n_quiet: Number of quiet values that suffice. With fewer, the regime with more values is taken.
    """
    quiet = [value for value, contended in values if not contended]
    noisy = [value for value, contended in values if contended]
    if len(quiet) >= n_quiet or len(quiet) >= len(noisy):
        return quiet, False
    return noisy, True


def raise_failure(name: str, failure: Failure) -> NoReturn:
    """Raise an error for the failure of a required side.

    Raises:
        MeasureError: Always.
    """
    raise MeasureError(
        f"{name[0].upper()}{name[1:]} worked at first and then failed ({failure.title}): {failure.message}",
        "Check that the host has enough free memory, and that nothing else ends processes on it.",
    )
