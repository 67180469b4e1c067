"""One worker of a search on several hosts, on a replayed landscape: a child of shared_search and shared_chaos.

It prints a line of JSON with its result at the end.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import optuna

from benchmarks.held_out import KINDS, make_held_out
from benchmarks.landscape import LANDSCAPES, Landscape, load_landscape
from benchmarks.replay import LAUNCH_DEADLINE_S, ReplayExecutor
from benchmarks.shared_clock import RealClock, SharedClock
from ortune.compare.open import OpenComparison, start_comparison
from ortune.knobs import DEFAULT
from ortune.storage import SharedStudy, parse_location
from ortune.tuning.share_outcome import share_outcome
from ortune.tuning.shared import SharedExchange
from ortune.tuning.stages import SearchSettings, run_search
from ortune.worker.failure import Failure

T = TypeVar("T")


class ClockedExecutor(ReplayExecutor):
    """A replay on a clock: a simulated one that other workers share, or a real one.

    Args:
        landscape: The landscape.
        seed: Random seed.
        clock: The clock.
    """

    def __init__(self, landscape: Landscape, *, seed: int, clock: SharedClock | RealClock) -> None:
        self._clock = clock
        super().__init__(landscape, seed=seed)

    def now_s(self) -> float:
        """Return the time of the clock."""
        return self._clock.now_s()

    def spend(self, duration_s: float) -> None:
        """Advance the clock."""
        self._clock.spend(duration_s)
        self._time_s = self.now_s()


class ClockedExchange(SharedExchange):
    """An exchange on the same clock.

    Args:
        simulated: The clock.
        open_study: Opens the study.
        **options: See `SharedExchange`.
    """

    def __init__(self, simulated: SharedClock, open_study: Callable[[], SharedStudy], **options: Any) -> None:
        self._simulated = simulated
        opened = functools.partial(super().__init__, open_study, clock=simulated.now_s, sleep=simulated.spend)
        simulated.call(lambda: opened(**options))

    def _call(self, work: Callable[[SharedStudy], T]) -> T:
        return self._simulated.call(lambda: super(ClockedExchange, self)._call(work))


def open_replay_of(executor: ReplayExecutor, seed: int) -> OpenComparison:
    """Return a comparison by this executor."""
    landscape = executor.landscape
    (first,) = executor.launch([DEFAULT], deadline_s=LAUNCH_DEADLINE_S)
    assert not isinstance(first, Failure)
    return start_comparison(
        executor, first, landscape.goal, first_launch_s=executor.now_s(), seed=seed, quota=landscape.quota
    )


def load(name: str) -> Landscape:
    """Return a landscape: a recorded one, or one of the kinds for testing, such as slow_1s-0."""
    kind, _, number = name.rpartition("-")
    return make_held_out(kind, int(number)) if kind in KINDS else load_landscape(LANDSCAPES / f"{name}.npz")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("landscape")
    parser.add_argument("storage")
    parser.add_argument("--study", default="0", help="what distinguishes the study from others in the storage")
    parser.add_argument("--node", default="a")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--factor", type=float, default=10.0, help="how many times faster than real time it is")
    parser.add_argument("--clock", type=Path, help="file of a simulated clock, instead of real time")
    parser.add_argument("--slot", type=int, default=0, help="number of this worker on that clock")
    parser.add_argument("--strategy", default="adaptive")
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--outbox", type=Path)
    parser.add_argument("--log", type=Path, help="file for the identifiers of all measurements that were completed")
    parser.add_argument("--clock-offset", type=float, default=0.0, help="seconds that the time of day is off")
    given = parser.parse_args(arguments)
    if given.clock_offset:
        now = time.time
        time.time = lambda: now() + given.clock_offset
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    landscape = load(given.landscape)
    simulated = SharedClock(given.clock, given.slot) if given.clock else None
    factor = 1.0 if simulated else given.factor
    executor = ClockedExecutor(landscape, seed=given.seed, clock=simulated or RealClock(factor))
    opened = open_replay_of(executor, given.seed)
    space = landscape.first_space
    location = parse_location(given.storage, "storage")
    start_exchange = functools.partial(ClockedExchange, simulated) if simulated else SharedExchange
    exchange = start_exchange(
        lambda: SharedStudy(location, {"model_name": given.landscape, "study": given.study}),
        node=given.node,
        outbox_path=given.outbox,
        choices={each.name: tuple(each.labels) for each in space.dimensions},
        patience_s=given.patience,
        poll_s=2 / factor,
    )
    if given.log:
        send = exchange.send

        def log(*values: object, **options: object) -> None:
            send(*values, **options)  # type: ignore[arg-type]
            with given.log.open("a") as file:
                file.write(f"{exchange.worker}:{exchange.state.n_measured}\n")
                file.flush()

        exchange.send = log  # type: ignore[method-assign]
    settings = SearchSettings(budget_s=given.budget, strategy=given.strategy, exchange=exchange)
    outcome = run_search(space, opened, settings)
    if not outcome.interrupted:
        share_outcome(exchange, outcome)
    at_s = executor.now_s()
    n_unsent = exchange.close(completed=not outcome.interrupted)
    if simulated:
        simulated.end()
    chosen = landscape.space.numbers[outcome.config.key]
    row = {
        "node": given.node,
        "is_finalist": exchange.result is None and not outcome.interrupted,
        "is_apart": outcome.interrupted,
        "number": exchange.state.number,
        "s": at_s,
        "cpu_s": round(time.process_time(), 1),
        "verdict": outcome.evidence.verdict,
        "reason": outcome.evidence.reason,
        "chosen": chosen,
        "speedup": math.exp(landscape.log_speedup(chosen)),
        "best": math.exp(landscape.log_speedup(landscape.best)),
        "n_tried": len(outcome.trials) - 1,
        "n_own": exchange.state.n_measured,
        "n_unsent": n_unsent,
        "ended_early": outcome.ended_early,
        "stages": {each.stage: round(each.wall_s, 1) for each in outcome.stages},
        "notes": exchange.take_notes(),
    }
    print(json.dumps(row), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a call of the storage may hang


if __name__ == "__main__":
    main()
