"""Measures rounds: one block of every live candidate, in shuffled order, repeated when the host is noisy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

import msgspec
import numpy as np

from ortune.compare.figures import figure_of_block
from ortune.compare.results import Noise, Stage, StageTime
from ortune.errors import MeasureError
from ortune.knobs import Config
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate
from ortune.workload import Objective

PATIENCE = 0.3
"""Blocks that may be repeated for noise, as a share of all: on a host that is always busy, waiting for quiet
would never end."""

MAX_REPEATS = 2

T = TypeVar("T")


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One block of each candidate, by its position in the list that was measured.

    Attributes:
        blocks: The blocks of those that did not fail.
        loads_ns: How long creating each one's session took.
        failures: Why the others failed.
        contended: Whether any block was measured while others used the CPUs.
    """

    blocks: dict[int, Block]
    loads_ns: dict[int, int]
    failures: dict[int, Failure]
    contended: bool

    def figure(self, name: Objective, position: int) -> float:
        """Return a figure of one candidate in this round."""
        return figure_of_block(name, self.blocks[position], self.loads_ns[position])


class BlockRunner:
    """Measures, and keeps account of noise and time.

    Args:
        executor: Makes candidates live.
        rng: Decides the order within rounds, and the traffic that all candidates of a round see.
        check: Is called before each block, and raises if the search cannot go on.
    """

    def __init__(self, executor: Executor, rng: np.random.Generator, check: Callable[[], None] = lambda: None) -> None:
        self.executor = executor
        self.check = check
        self.rng = rng
        self.load_deadline_s = 300.0
        self._shares: list[float] = []
        self._n_blocks = 0
        self._n_contended = 0
        self._n_repeated = 0
        self._n_slowed = 0
        self._inference_s = 0.0

    def launch(self, configs: Sequence[Config]) -> list[LiveCandidate | Failure]:
        """Make candidates live."""
        return self.executor.launch(configs, deadline_s=self.load_deadline_s)

    def block(self, live: LiveCandidate, plan: BlockPlan) -> Block | Failure:
        """Measure one block, again while it is contended and patience lasts."""
        for attempt in range(MAX_REPEATS + 1):
            self.check()
            block = live.measure(plan)
            if isinstance(block, Failure):
                return block
            self._n_blocks += 1
            self._n_contended += block.contended
            self._n_slowed += bool(block.gpu and block.gpu.slowdowns)
            self._inference_s += (block.wall_ns + block.lead_in_ns) / 1e9
            if block.foreign_share is not None:
                self._shares.append(block.foreign_share)
            impatient = self._n_repeated >= PATIENCE * max(self._n_blocks, 20)
            if not block.contended or impatient or attempt == MAX_REPEATS:
                return block
            self._n_repeated += 1
        raise AssertionError("unreachable")

    def round(self, lives: Sequence[LiveCandidate], plan: BlockPlan) -> Round:
        """Measure one block of each candidate in shuffled order."""
        return self.sequence(lives, self.rng.permutation(len(lives)).tolist(), plan)

    def sequence(
        self, lives: Sequence[LiveCandidate] | Mapping[int, LiveCandidate], order: Sequence[int], plan: BlockPlan
    ) -> Round:
        """Measure one block of each candidate in the given order, all under the same traffic."""
        plan = msgspec.structs.replace(plan, seed=int(self.rng.integers(2**31)))
        blocks: dict[int, Block] = {}
        failures: dict[int, Failure] = {}
        for position in order:
            answer = self.block(lives[position], plan)
            if isinstance(answer, Failure):
                failures[position] = answer
            else:
                blocks[position] = answer
        return Round(
            blocks=blocks,
            loads_ns={position: lives[position].session_info.load_ns for position in blocks},
            failures=failures,
            contended=any(block.contended for block in blocks.values()),
        )

    def stage_time(self, stage: Stage, start_s: float, inference_before_s: float) -> StageTime:
        """Return where the time of a stage went that began at `start_s`."""
        return StageTime(
            stage=stage,
            wall_s=self.executor.now_s() - start_s,
            inference_s=self._inference_s - inference_before_s,
        )

    @property
    def inference_s(self) -> float:
        """Time under load so far."""
        return self._inference_s

    @property
    def is_mostly_contended(self) -> bool:
        """Whether more than half of the blocks so far were contended: that is then how this host is."""
        return 2 * self._n_contended > self._n_blocks

    def noise(self, *, contended: bool, drift: float | None) -> Noise:
        """Return how quiet the host was, given which blocks the claim rests on, and the drift between stages."""
        known = bool(self._shares)
        return Noise(
            blocks=self._n_blocks,
            contended=self._n_contended,
            repeated=self._n_repeated,
            foreign_share_mean=round(max(float(np.mean(self._shares)), 0.0), 4) if known else None,
            foreign_share_p90=round(max(float(np.quantile(self._shares, 0.9)), 0.0), 4) if known else None,
            regime=("contended" if contended else "quiet") if known else "unknown",
            drift=drift,
            slowed=self._n_slowed,
        )


def one_regime(values: Sequence[tuple[T, bool]], *, n_quiet: int) -> tuple[list[T], bool]:
    """Return the values of one regime, and whether it is the contended one.

    Quiet values are taken if there are at least `n_quiet` of them or no others; rankings differ between a quiet and
    a busy host, so the two are never mixed.

    Args:
        values: Each value with whether it was measured under contention.
        n_quiet: Quiet values that are enough.
    """
    quiet = [value for value, contended in values if not contended]
    noisy = [value for value, contended in values if contended]
    if len(quiet) >= n_quiet or len(quiet) >= len(noisy):
        return quiet, False
    return noisy, True


def raise_default(failure: Failure) -> NoReturn:
    """Raise that the default itself cannot be measured: without it there is nothing to compare with."""
    kind = failure.kind.replace("_", " ")
    raise MeasureError(
        f"ONNX Runtime's default worked at first, and then failed ({kind}): {failure.message}",
        "Check that the host has enough free memory, and that nothing ends processes on it.",
    )
