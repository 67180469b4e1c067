"""A match: the default and its challengers, launched afresh several times, in interleaved rounds.

Nothing that was measured before counts here. The challengers were chosen because they looked good, and part of that
was luck; what is claimed must not rest on the luck that they were chosen for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from ortune.compare.block_runner import BlockRunner, Round, one_regime, raise_default
from ortune.compare.figures import (
    calls_needed,
    calls_of,
    cost,
    figure_of,
    is_pooled,
    percentile_bounds,
    percentile_of,
)
from ortune.compare.interval import Interval
from ortune.compare.results import CONFIDENCE, LimitCheck, Speedup, Summary
from ortune.compare.stats import TRIM, TYPICAL_TRIM, clustered_interval, t_interval
from ortune.knobs import Config
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, SessionInfo
from ortune.worker.cpu import QUIET_SHARE
from ortune.workload import FIGURES, Goal, Limit, Load, Objective

DEFAULT_POSITION = 0
"""Position of the baseline in every round."""

ENOUGH_QUIET = 0.5
"""Share of all rounds that must be quiet for the claim to rest on quiet rounds."""


class PairedRun:
    """What was measured.

    Attributes:
        configs: The default first, then its challengers; positions below are places in this list.
        launches: The rounds of each launch.
        loaded: By position: the sessions, one for each launch.
        failures: By position: why a challenger is out.
    """

    def __init__(self, configs: Sequence[Config], load: Load) -> None:
        self.configs = tuple(configs)
        self.load = load
        self.launches: list[list[Round]] = []
        self.loaded: dict[int, list[SessionInfo]] = {position: [] for position in range(len(configs))}
        self.failures: dict[int, Failure] = {}

    @property
    def n_rounds(self) -> int:
        """Rounds measured so far."""
        return sum(map(len, self.launches))

    def play(
        self,
        meter: BlockRunner,
        block: BlockPlan,
        *,
        launches: int,
        rounds: int,
        end_s: float,
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """Measure all of it.

        Args:
            meter: Measures.
            block: How long a block is.
            launches: How often everyone is launched.
            rounds: Rounds in each launch; even, so that each order comes up as often as its reverse.
            end_s: Time on the executor's clock after which no further launch begins.
            report: Is called after each launch.

        Raises:
            MeasureError: The default fails.
        """
        for number in range(launches):
            self._play_launch(meter, block, number, rounds)
            report()
            if self._is_over(len(self.configs) - len(self.failures)) or meter.executor.now_s() > end_s:
                break

    def _play_launch(self, meter: BlockRunner, block: BlockPlan, number: int, rounds: int) -> None:
        measured: list[Round] = []
        self.launches.append(measured)
        lives: dict[int, LiveCandidate] = {}
        try:
            n = len(self.configs)
            # Nobody is always the first to start, nor the first to be measured.
            for step in range(n):
                position = (step + number) % n
                if position in self.failures:
                    continue
                (answer,) = meter.launch([self.configs[position]])
                if isinstance(answer, Failure):
                    self._fail(position, answer)
                else:
                    lives[position] = answer
                    self.loaded[position].append(answer.session_info)
            order: list[int] = []
            for step in range(rounds):
                order = order[::-1] if step % 2 else [int(each) for each in meter.rng.permutation(sorted(lives))]
                found = meter.sequence(lives, [position for position in order if position in lives], block)
                measured.append(found)
                for position, failure in found.failures.items():
                    self._fail(position, failure)
                    lives.pop(position).close()
                if self._is_over(len(lives)):
                    break
        finally:
            for live in lives.values():
                live.close()

    def _is_over(self, n_left: int) -> bool:
        """Return whether the default is all that is left of several."""
        return n_left < 2 <= len(self.configs)

    def _fail(self, position: int, failure: Failure) -> None:
        if position == DEFAULT_POSITION:
            raise_default(failure)
        self.failures[position] = failure


class PairedStats:
    """The rounds of a match that count: those of one regime.

    Args:
        match: What was measured.
        goal: What it was measured for.
        seed: Seed of resampling.

    Attributes:
        contended: Whether the rounds that count were measured while others used the CPUs.
    """

    def __init__(self, match: PairedRun, goal: Goal, seed: int) -> None:
        self.match = match
        self.goal = goal
        self._seed = seed
        rounds = [(each, each.contended) for launch in match.launches for each in launch]
        kept, self.contended = one_regime(rounds, n_quiet=math.ceil(ENOUGH_QUIET * len(rounds)))
        if not self.contended and kept and mean_foreign_share(kept) > QUIET_SHARE:
            # No block by itself, but all of them together: the host was busy throughout.
            kept, self.contended = [each for each, _ in rounds], True
        counted = {id(each) for each in kept}
        launches = [[each for each in launch if id(each) in counted] for launch in match.launches]
        self.launches = [launch for launch in launches if launch]

    def blocks(self, position: int) -> list[Block]:
        """Return all blocks of one side."""
        return [each.blocks[position] for launch in self.launches for each in launch if position in each.blocks]

    def speedup(
        self, position: int, name: Objective, confidence: float = CONFIDENCE, base: int = DEFAULT_POSITION
    ) -> Speedup | None:
        """Return how many times better one side is than another, the default, or None for fewer than two launches.

        Most figures are compared pair by pair. A percentile beyond the median needs more calls than a block has, so
        that the calls of a launch are taken together.
        """
        clusters: list[list[float]] = []
        n_pairs = 0
        for launch in self.launches:
            both = [each for each in launch if position in each.blocks and base in each.blocks]
            n_pairs += len(both)
            if not both:
                continue
            costs = [self.costs(both, side, name) for side in (base, position)]
            clusters.append([math.log(default / challenger) for default, challenger in zip(*costs, strict=True)])
        if len(clusters) < 2:
            return None
        # A median asks for what is typical; a mean, throughput or CPU time counts what is not, too.
        trim = TYPICAL_TRIM if FIGURES[name].percentile == 50 else TRIM
        interval = clustered_interval(clusters, confidence=confidence, trim=trim, seed=self._seed).exp()
        return Speedup(
            estimate=interval.estimate,
            low=interval.low,
            high=interval.high,
            confidence=interval.confidence,
            pairs=n_pairs,
            restarts=len(clusters),
        )

    def costs(self, rounds: Sequence[Round], position: int, name: Objective) -> list[float]:
        """Return one side's costs in these rounds: one for each, or one for all where calls are taken together."""
        if is_pooled(name):
            return [cost(name, self._pooled(rounds, position, name))]
        return [cost(name, each.figure(name, position)) for each in rounds]

    def bounds(self, position: int, name: Objective) -> tuple[float, float]:
        """Return the interval in which a percentile lies by the number of calls that it rests on."""
        point = FIGURES[name].percentile
        assert point is not None
        return percentile_bounds(self.blocks(position), point)

    def rests_on_enough(self, position: int, name: Objective) -> bool:
        """Return whether the calls are enough for a percentile, or the two sides so far apart that few suffice."""
        if self.has_calls(position, name):
            return True
        return self.bounds(position, name)[1] < self.bounds(DEFAULT_POSITION, name)[0]

    def has_calls(self, position: int, name: Objective) -> bool:
        """Return whether this side and the default have the calls that a percentile must rest on; true for others."""
        sides = (DEFAULT_POSITION, position)
        return not is_pooled(name) or all(calls_of(self.blocks(side)) >= calls_needed(name) for side in sides)

    def _pooled(self, rounds: Sequence[Round], position: int, name: Objective) -> float:
        blocks = [each.blocks[position] for each in rounds]
        return figure_of(name, blocks, [each.loads_ns[position] for each in rounds])

    def utilization(self, position: int, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the share of the callers' time that one side's calls take, or None where they arrive at no rate."""
        load = self.match.load
        if not load.rate_per_s:
            return None
        means = [
            np.mean([each.blocks[position].service_ns for each in launch if position in each.blocks])
            for launch in self.launches
            if any(position in each.blocks for each in launch)
        ]
        return t_interval([math.log(load.utilization(float(mean))) for mean in means], confidence).exp()

    def check(self, position: int, limit: Limit, confidence: float = CONFIDENCE) -> LimitCheck:
        """Return whether one side keeps to a limit, and how sure that is.

        The figure is taken launch by launch, and is unsure by how much these differ; a percentile that rests on too few
        calls also by that.
        """
        values = []
        for launch in self.launches:
            rounds = [each for each in launch if position in each.blocks and DEFAULT_POSITION in each.blocks]
            if rounds:
                value = self._pooled(rounds, position, limit.figure)
                base = self._pooled(rounds, DEFAULT_POSITION, limit.figure) if limit.relative else 1
                values.append(math.log(value / base))
        interval = t_interval(values, confidence).exp()
        low, high = interval.low, interval.high
        if not self.has_calls(position, limit.figure) and not (limit.relative and position == DEFAULT_POSITION):
            least, most = self.bounds(position, limit.figure)
            base_least, base_most = self.bounds(DEFAULT_POSITION, limit.figure) if limit.relative else (1, 1)
            low, high = min(low, least / base_most), max(high, most / base_least)
        broken = [limit.excess(end) > 0 for end in (low, high)]
        return LimitCheck(
            limit=limit.text,
            figure=limit.figure,
            bound=limit.bound,
            relative=limit.relative,
            value=interval.estimate,
            low=low,
            high=high if math.isfinite(high) else None,
            kept="no" if all(broken) else "unsure" if any(broken) else "yes",
        )

    def summary(self, position: int) -> Summary:
        """Return all figures of one side."""
        blocks = self.blocks(position)
        loaded = self.match.loaded[position]
        samples = np.concatenate([block.samples_ns for block in blocks])
        p50, p90, p95, p99 = (percentile_of(blocks, point) for point in (50, 90, 95, 99))
        between = [block.cpu_between_ns for block in blocks if block.cpu_between_ns is not None]
        load = self.match.load
        service_ns = float(np.mean([block.service_ns for block in blocks]))
        loads = [each.load_ns for each in loaded]
        return Summary(
            config=self.match.configs[position],
            p50_ns=p50,
            p90_ns=p90,
            p95_ns=p95,
            p99_ns=p99,
            mean_ns=float(samples.mean()),
            calls_per_s=figure_of("throughput", blocks),
            cpu_ns_per_call=figure_of("cpu", blocks),
            cpu_ns_between_calls=float(np.mean(between)) if between else None,
            utilization=load.utilization(service_ns) if load.rate_per_s else None,
            n_calls=calls_of(blocks),
            load_ns=figure_of("load-time", blocks, loads),
            steady_bytes=round(statistics.median(block.memory.steady_bytes for block in blocks)),
            peak_bytes=max(block.memory.peak_bytes for block in blocks),
            gpu_bytes=max(
                (block.gpu.used_bytes for block in blocks if block.gpu and block.gpu.used_bytes), default=None
            ),
            nodes=loaded[-1].nodes,
            build_s=loaded[-1].build_s,
            session=loaded[-1],
        )


def mean_foreign_share(rounds: Sequence[Round]) -> float:
    """Return the share of the CPUs' time that others used during these rounds, 0 where it is not told."""
    blocks = [block for each in rounds for block in each.blocks.values()]
    known = [(block.foreign_share, block.wall_ns) for block in blocks if block.foreign_share is not None]
    if not known:
        return 0.0
    return sum(share * wall_ns for share, wall_ns in known) / sum(wall_ns for _, wall_ns in known)
