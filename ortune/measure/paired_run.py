"""A paired run: all sides are launched several times, and measured in interleaved rounds.

Earlier measurements do not count here. The candidates were selected by them, so part of their lead is due to chance. A
claim must not rest on the measurements that the selection was based on.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from ortune.knobs import Config
from ortune.measure.block_plan import RunPlan
from ortune.measure.block_runner import BlockRunner, Round, SteadyCandidate, make_round, raise_failure, select_regime
from ortune.measure.memory import is_memory_unknown
from ortune.measure.slow_launches import NO_EARLIER_ONES
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate, SessionInfo
from ortune.worker.cpu import QUIET_SHARE
from ortune.workload import Load

BASELINE_POSITION = 0
"""Position of the baseline in every round."""

LAUNCHES_OF_AN_INTERVAL = 2
"""Launches that an interval needs at least."""

ENOUGH_QUIET = 0.5
"""Share of all rounds that must be quiet for the result to rest on quiet rounds."""

T = TypeVar("T")

Order = Callable[[np.random.Generator, int, list[int]], list[int]]
"""Returns the order of a round, given the number of the launch and the positions that are live."""


def shuffle(rng: np.random.Generator, launch: int, positions: list[int]) -> list[int]:
    """Return the positions in random order."""
    return [int(position) for position in rng.permutation(positions)]


def alternate(rng: np.random.Generator, launch: int, positions: list[int]) -> list[int]:
    """Return the positions in ascending order in every second launch, and in descending order in the others."""
    return positions if launch % 2 else positions[::-1]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A config that is compared with others.

    Attributes:
        name: Its name in reports.
        config: Its settings.
        load: How calls arrive; None for the load of the run. Executors launch as many processes as it has.
        is_required: Whether its failure ends the run.
    """

    name: str
    config: Config
    load: Load | None = None
    is_required: bool = False


Launch = contextlib.AbstractContextManager[Iterator[bool]]
"""One launch of a run: it gives what measures a round at each step, and whether that was not the last planned one."""


def measure_launch(launch: Launch, on_round: Callable[[], None]) -> None:
    """Measure the rounds of a launch. `on_round` is called after each but the last planned one."""
    with launch as rounds:
        for goes_on in rounds:
            if goes_on:
                on_round()


class PairedRun:
    """Rounds of several sides, over several launches.

    Args:
        sides: The baseline first. Positions below are places in this list.
        load: How calls arrive at sides that have no load of their own.
        seed: Random seed of the resampling in its statistics.
        executors: The executor of each side; by default, the runner's executor launches all sides.

    Attributes:
        launches: The rounds of each launch.
        late: Rounds that followed those of the first launch, in the same processes.
        loaded: The session of each launch, by position.
        failures: Why a side failed, by position.
        contended: Whether other processes used the CPUs during the rounds. Known once a regime is selected.
        whole: The run that the rounds were selected from, or this one.
        before: What launches before these show.
    """

    def __init__(
        self, sides: Sequence[Side], load: Load, *, seed: int = 0, executors: Sequence[Executor] | None = None
    ) -> None:
        self.sides = tuple(sides)
        self.load = load
        self.seed = seed
        self.launches: list[list[Round]] = []
        self.late: list[Round] = []
        self.followed: list[Round] = []
        self.loaded: dict[int, list[SessionInfo]] = {position: [] for position in range(len(sides))}
        self.failures: dict[int, Failure] = {}
        self.contended = False
        self.whole = self
        self.before = NO_EARLIER_ONES
        self._executors = executors
        self._turns: list[int] = []
        self._gaps_ns: list[float | None] = []

    def load_of(self, position: int) -> Load:
        """Return how calls arrive at one side."""
        return self.sides[position].load or self.load

    @property
    def n_rounds(self) -> int:
        """Number of rounds so far, with late ones."""
        return sum(map(len, self.launches)) + len(self.late)

    def measure(
        self,
        runner: BlockRunner,
        plan: RunPlan,
        *,
        end_s: float,
        latest_s: float = math.inf,
        order: Order = shuffle,
        stop_within_launch: bool = False,
        count_rounds: Callable[[], int] | None = None,
        is_done: Callable[[], bool] = lambda: False,
        on_round: Callable[[], None] = lambda: None,
    ) -> None:
        """Launch all sides repeatedly, and measure rounds in each launch. Another call adds launches to the run.

        `is_done` is called after each launch, to report progress or to stop. `on_round` is called after each round but
        the last of a launch, or after each block of sides that are measured one after the other. See `list_launches`
        for the other arguments.

        Raises:
            MeasureError: The baseline fails, or another side that is required.
        """
        for launch in self.list_launches(
            runner,
            plan,
            end_s=end_s,
            latest_s=latest_s,
            order=order,
            stop_within_launch=stop_within_launch,
            count_rounds=count_rounds,
        ):
            measure_launch(launch, on_round)
            if is_done():
                break

    def list_launches(
        self,
        runner: BlockRunner,
        plan: RunPlan,
        *,
        end_s: float,
        latest_s: float = math.inf,
        order: Order = shuffle,
        stop_within_launch: bool = False,
        count_rounds: Callable[[], int] | None = None,
    ) -> Iterator[Launch]:
        """Yield the launches that are to be measured. Who takes one measures it before the next one is asked for.

        They end after the planned number, at `end_s`, or when only the baseline is left. If not all sides fit into
        memory at the same time, or the plan says so, they are launched and measured one after the other.

        Args:
            runner: Measures blocks.
            plan: Size of the run.
            end_s: Time on the runner's clock after which no launch begins.
            latest_s: No launch begins that would end after this time, if two launches are done, as an interval needs.
                After this time, a launch that was expected to be shorter ends with the current round.
            order: Decides the order of every second round. The round after it has the reverse order.
            stop_within_launch: Whether no round begins after `end_s` either. If sides are measured one after the other,
                no launch begins that would end after `end_s`.
            count_rounds: Returns how many rounds the next launch has; None for as many as the plan says.
        """
        first = number = len(self.launches)
        is_unknown = sum(is_memory_unknown(side.config) for side in self.sides) > 1
        while plan.launches is None or number < first + plan.launches:
            start_s, last_start_s = runner.now_s(), end_s
            if count_rounds:
                plan = msgspec.structs.replace(plan, rounds=count_rounds())
            if plan.in_turn or runner.one_at_a_time or is_unknown:
                yield contextlib.closing(self._measure_in_turn(runner, plan, number, order=order))
                if stop_within_launch:
                    last_start_s -= runner.now_s() - start_s
            else:
                first_round_s, next_round_s = (end_s, end_s) if stop_within_launch else (math.inf, latest_s)
                yield self._open_launch(
                    runner, plan, number, order=order, first_round_s=first_round_s, next_round_s=next_round_s
                )
            number += 1
            n_left = len(self.sides) - len(self.failures)
            if self._is_alone(n_left) or runner.now_s() >= last_start_s:
                break
            if len(self.launches) >= LAUNCHES_OF_AN_INTERVAL and 2 * runner.now_s() - start_s > latest_s:
                break

    @contextlib.contextmanager
    def _open_launch(
        self,
        runner: BlockRunner,
        plan: RunPlan,
        number: int,
        *,
        order: Order,
        first_round_s: float,
        next_round_s: float,
    ) -> Iterator[Iterator[bool]]:
        """Launch all sides, measure the rounds of one launch, and end all sides.

        Args:
            runner: Measures blocks.
            plan: Size of the run.
            number: Number of the launch.
            order: Decides the order of every second round.
            first_round_s: Time on the runner's clock after which the first round does not begin.
            next_round_s: Time after which the other rounds do not begin.
        """
        rounds: list[Round] = []
        self.launches.append(rounds)
        n_planned = plan.rounds
        if number == 0:
            n_planned += plan.late_rounds
            self.followed = rounds
        loads = {position: self.load_of(position) for position in range(len(self.sides))}
        step = 0
        positions: list[int] = []
        gap_ns: float | None = None
        block, latest_s, is_over = plan.block, first_round_s, False

        def next_block() -> BlockPlan | None:
            nonlocal block
            if is_over or step == n_planned or runner.now_s() >= latest_s:
                return None
            block = plan.next_block(gap_ns)
            return block

        def next_order(left: list[int]) -> list[int]:
            nonlocal positions
            before = positions
            positions = sorted(left, key=before.index, reverse=True) if step % 2 else order(runner.rng, number, left)
            return positions

        def add(measured: Round) -> bool:
            """Add a round. Return whether it was not the last that is planned."""
            nonlocal step, gap_ns, latest_s, is_over
            is_out_of_step = any(has_begun_again(live, plan, step) for live in lives.values())
            if not is_out_of_step:
                (rounds if step < plan.rounds else self.late).append(measured)
                latest_s = next_round_s
            if last := measured.blocks.get(BASELINE_POSITION):
                gap_ns = plan.find_gap_ns(block, last)
            step += 1
            for position, failure in measured.failures.items():
                self._fail(position, failure)
                lives.pop(position).close()
            is_over = self._is_alone(len(lives)) or is_out_of_step
            return step < n_planned

        try:
            with self._launch(runner, number, one_by_one=plan.block.creations_ns > 0) as lives:
                yield map(add, runner.measure_rounds(lives, next_block, next_order=next_order, loads=loads))
        finally:
            if not rounds:
                self.launches.pop()

    @contextlib.contextmanager
    def _launch(self, runner: BlockRunner, number: int, *, one_by_one: bool) -> Iterator[dict[int, LiveCandidate]]:
        """Launch the sides that have not failed, and end them at the end; see `_group_launches` for the arguments."""
        lives: dict[int, LiveCandidate] = {}
        groups = self._group_launches(number, one_by_one=one_by_one)
        try:
            with runner.memory.expect(sum(self.load_of(position).processes for group in groups for position in group)):
                for group in groups:
                    self._launch_sides(runner, group, lives)
            yield lives
        finally:
            for live in lives.values():
                live.close()

    def _group_launches(self, number: int, *, one_by_one: bool) -> list[list[int]]:
        """Return the positions of the sides that are launched, in groups that are launched at the same time.

        These are the sides of one executor.

        Args:
            number: Number of the launch.
            one_by_one: Whether each side is launched alone, so that the others do not affect how long it takes.
        """
        n_sides = len(self.sides)
        # Rotate, so that no side is always the first to start.
        rotated = [(step + number) % n_sides for step in range(n_sides)]
        left = [position for position in rotated if position not in self.failures]
        if one_by_one:
            return [[position] for position in left]
        groups: defaultdict[Executor | None, list[int]] = defaultdict(list)
        for position in left:
            groups[self._executors[position] if self._executors else None].append(position)
        return list(groups.values())

    def _measure_in_turn(
        self, runner: BlockRunner, plan: RunPlan, number: int, *, order: Order
    ) -> Generator[bool, None, None]:
        """Launch one side after the other, and measure its blocks of one launch before the next one is launched.

        Every second launch has the reverse order of the one before, so that drift of the host cancels. Blocks are
        measured while this is iterated over.
        """
        if number % 2 == 0 or not self._turns:
            self._turns = order(runner.rng, number, list(range(len(self.sides))))
        blocks: list[BlockPlan] = []
        answers: list[dict[int, Block | Failure]] = [{} for _ in range(plan.rounds)]
        starts_s: dict[int, float] = {}
        for position in reversed(self._turns) if number % 2 else self._turns:
            if position in self.failures:
                continue
            lives: dict[int, LiveCandidate] = {}
            self._launch_sides(runner, [position], lives)
            if not (live := lives.get(position)):
                continue
            try:
                gaps_ns: list[float | None] = [None]
                for step in range(plan.rounds):
                    if step == len(blocks):  # the others have the blocks of the first side
                        # The baseline's pace is known from the launch before, except in the first one.
                        known = self._gaps_ns if step < len(self._gaps_ns) else gaps_ns
                        blocks.append(runner.draw_traffic(plan.next_block(known[step])))
                    starts_s.setdefault(step, runner.now_s())
                    answer = live.measure(blocks[step].under(self.load_of(position)))
                    if isinstance(answer, Failure):
                        answers[step][position] = answer
                        self._fail(position, answer)
                        break
                    if has_begun_again(live, plan, step):
                        break
                    answers[step][position] = answer
                    gaps_ns.append(plan.find_gap_ns(blocks[step], answer))
                    yield True
            finally:
                live.close()
            if position == BASELINE_POSITION:
                self._gaps_ns = gaps_ns
        loads_ns = {position: loaded[-1].load_ns for position, loaded in self.loaded.items() if loaded}
        left = {position for position in range(len(self.sides)) if position not in self.failures}
        self.launches.append(
            [
                make_round(answers[step], loads_ns, at_s)
                for step, at_s in starts_s.items()
                if left <= answers[step].keys()
            ]
        )

    def _launch_sides(self, runner: BlockRunner, positions: Sequence[int], lives: dict[int, LiveCandidate]) -> None:
        """Launch sides of one executor at the same time, and add those that work to `lives`."""
        executor = self._executors[positions[0]] if self._executors else None
        answers = runner.launch([self.sides[position].config for position in positions], executor)
        for position, answer in zip(positions, answers, strict=True):
            if not isinstance(answer, Failure):
                lives[position] = answer
                self.loaded[position].append(answer.session_info)
        for position, answer in zip(positions, answers, strict=True):
            if isinstance(answer, Failure):
                self._fail(position, answer)

    def _is_alone(self, n_left: int) -> bool:
        """Return whether only the baseline is left of several sides."""
        return n_left < 2 <= len(self.sides)

    def _fail(self, position: int, failure: Failure) -> None:
        side = self.sides[position]
        if position == BASELINE_POSITION or side.is_required:
            raise_failure(side.name, failure)
        self.failures[position] = failure

    def in_one_regime(self) -> PairedRun:
        """Return the run with the rounds of one regime only, quiet or contended."""
        rounds = [(measured, measured.contended) for launch in self.launches for measured in launch]
        kept, contended = keep_one_regime(rounds, lambda quiet: mean_foreign_share(quiet) > QUIET_SHARE)
        counted = {id(measured) for measured in kept}
        selected = PairedRun(self.sides, self.load, seed=self.seed)
        launches = ([measured for measured in launch if id(measured) in counted] for launch in self.launches)
        selected.launches = [launch for launch in launches if launch]
        is_whole = len(kept) == len(rounds)
        selected.late, selected.followed = (
            [measured for measured in others if is_whole or measured.contended == contended]
            for others in (self.late, self.followed)
        )
        selected.loaded = self.loaded
        selected.failures = self.failures
        selected.contended = contended
        selected.whole = self
        selected.before = self.before
        return selected

    @property
    def n_left_out(self) -> int:
        """Number of rounds that were left out when the regime was selected."""
        return self.whole.n_rounds - self.n_rounds

    def blocks(self, position: int) -> list[Block]:
        """Return all blocks of one side."""
        return [
            measured.blocks[position] for launch in self.launches for measured in launch if position in measured.blocks
        ]

    def list_all(self, position: int) -> list[list[Round]]:
        """Return the rounds of each launch that include a side and the baseline, in both regimes, and late ones."""
        launches = self.whole.rounds_of(position, BASELINE_POSITION)
        late = [measured for measured in self.whole.late if {position, BASELINE_POSITION} <= measured.blocks.keys()]
        return [[*launches[0], *late], *launches[1:]] if launches else []

    def rounds_of(self, *positions: int) -> list[list[Round]]:
        """Return the rounds of each launch that include all of these sides, without launches that have none."""
        launches = (
            [measured for measured in launch if all(position in measured.blocks for position in positions)]
            for launch in self.launches
        )
        return [launch for launch in launches if launch]


def keep_one_regime(
    rounds: Sequence[tuple[T, bool]], is_busy: Callable[[Sequence[T]], bool]
) -> tuple[Sequence[T], bool]:
    """Return the rounds of a run that count, those of one regime, and whether it is the contended one.

    Args:
        rounds: Each round with whether it is contended.
        is_busy: Returns whether the host was busy throughout the quiet rounds, although none of them is contended by
            itself. All rounds of the run then count.
    """
    kept, contended = select_regime(rounds, n_quiet=math.ceil(ENOUGH_QUIET * len(rounds)))
    if not contended and kept and is_busy(kept):
        return [measured for measured, _ in rounds], True
    return kept, contended


def has_begun_again(live: LiveCandidate, plan: RunPlan, step: int) -> bool:
    """Return whether the program of a side has begun with its first items again, so that it is behind the other sides.

    In the first round of a launch, all begin with them, also in another process. If calls are not counted, it does not
    matter.

    Args:
        live: The side. That its process was launched again is forgotten here.
        plan: Size of the run.
        step: Number of the round in the launch, counted from 0.
    """
    if not isinstance(live, SteadyCandidate):
        return False
    is_launched_again, live.is_launched_again = live.is_launched_again, False
    return is_launched_again and step > 0 and plan.call_pace is not None


def mean_foreign_share(rounds: Sequence[Round]) -> float:
    """Return the share of the CPUs' time that other processes used during these rounds; 0 if unknown."""
    blocks = [block for measured in rounds for block in measured.blocks.values()]
    known = [(block.foreign_share, block.wall_ns) for block in blocks if block.foreign_share is not None]
    if not known:
        return 0.0
    return sum(share * wall_ns for share, wall_ns in known) / sum(wall_ns for _, wall_ns in known)
