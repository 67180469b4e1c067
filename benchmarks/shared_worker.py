"""One worker of a search on several hosts, on a replayed landscape: a child of shared_search and shared_chaos.

It prints a line of JSON with its result at the end.
"""

from __future__ import annotations

import argparse
import datetime
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

from benchmarks import varied
from benchmarks.held_out import KINDS, independent, make_held_out, make_landscape
from benchmarks.landscape import LANDSCAPES, Landscape, load_landscape
from benchmarks.replay import LAUNCH_DEADLINE_S, ReplayExecutor
from benchmarks.shared_clock import RealClock, SharedClock
from ortune.knobs import DEFAULT
from ortune.measure.comparison import Speedup
from ortune.measure.open import OpenComparison, start_comparison
from ortune.storage import SharedRace, SharedResult, SharedStudy, StorageError, parse_location
from ortune.tuning.job import SearchSettings
from ortune.tuning.outcome import Progress
from ortune.tuning.share_outcome import share_outcome
from ortune.tuning.shared_exchange import SharedExchange
from ortune.tuning.shared_job import run_shared_search
from ortune.worker.failure import Failure

T = TypeVar("T")
Row = dict[str, Any]

REFUSED = 2
"""Exit code of a worker that cannot start, because the storage does not answer."""


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

    Attributes:
        waited_s: Time that this worker waited for others after screening, in seconds.
    """

    def __init__(self, simulated: SharedClock, open_study: Callable[[], SharedStudy], **options: Any) -> None:
        self._simulated = simulated
        self.waited_s = 0.0
        opened = functools.partial(super().__init__, open_study, clock=simulated.now_s, sleep=simulated.spend)
        simulated.call(lambda: opened(**options))

    def _call(self, work: Callable[[SharedStudy], T]) -> T:
        return self._simulated.call(lambda: super(ClockedExchange, self)._call(work))

    def wait_for_result(
        self, observe: Callable[[str], None], take_part: Callable[[SharedRace], bool]
    ) -> SharedResult | None:
        """Wait, and add the time."""
        begin_s = self._simulated.now_s()
        try:
            return super().wait_for_result(observe, take_part)
        finally:
            self.waited_s += self._simulated.now_s() - begin_s


class Trace:
    """What a worker held to be the best candidate, and from when on.

    Args:
        landscape: The landscape.
        now_s: Returns the time.

    Attributes:
        steps: Time in seconds, and the true speedup of the candidate.
        notes: What happened.
    """

    def __init__(self, landscape: Landscape, now_s: Callable[[], float]) -> None:
        self.steps: list[tuple[float, float]] = []
        self.notes: list[str] = []
        self._landscape = landscape
        self._now_s = now_s
        self._number = -1

    def observe(self, progress: Progress) -> None:
        """Add a step if another candidate is the best."""
        self.notes += progress.notes
        number = self._landscape.space.numbers[progress.best.config.key] if progress.best else 0
        if number != self._number:
            self._number = number
            self.steps.append((round(self._now_s(), 2), round(math.exp(self._landscape.log_speedup(number)), 5)))


def open_replay_of(executor: ReplayExecutor, seed: int) -> OpenComparison:
    """Return a comparison by this executor."""
    landscape = executor.landscape
    (first,) = executor.launch([DEFAULT], deadline_s=LAUNCH_DEADLINE_S)
    assert not isinstance(first, Failure)
    return start_comparison(
        executor, first, landscape.goal, first_launch_s=executor.now_s(), seed=seed, quota=landscape.quota
    )


def load(name: str) -> Landscape:
    """Return a landscape: a recorded one, one of the kinds for testing, such as slow_1s-0, a varied one, or a wide one.

    In wide ones, calls take 150 ms on a host with 24 cores: one worker cannot try all candidates within ten minutes.
    """
    kind, _, number = name.rpartition("-")
    if kind == "wide":
        return make_landscape(name, independent, int(number), cores=24, call_ns=150e6)
    if kind == "varied":
        return varied.make_landscape(int(number))
    return make_held_out(kind, int(number)) if kind in KINDS else load_landscape(LANDSCAPES / f"{name}.npz")


def run_worker(landscape: Landscape, given: argparse.Namespace) -> Row:
    """Run one worker on a landscape, and return what it found."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    simulated = SharedClock(given.clock, given.slot) if given.clock else None
    factor = 1.0 if simulated else given.factor
    executor = ClockedExecutor(landscape, seed=given.seed, clock=simulated or RealClock(factor))
    opened = open_replay_of(executor, given.seed)
    space = landscape.first_space
    location = parse_location(given.storage, "storage")
    start_exchange = functools.partial(ClockedExchange, simulated) if simulated else SharedExchange
    exchange = start_exchange(
        lambda: SharedStudy(location, name_identity(given.study, given.host_class)),
        node=given.node,
        host=given.host_class,
        outbox_path=given.outbox,
        patience_s=given.patience,
        poll_s=2 / factor,
    )
    if given.log:
        given.log.write_text(f"{exchange.worker}\n")
        send = exchange.send

        def log(*values: object, **options: object) -> None:
            send(*values, **options)  # type: ignore[arg-type]
            with given.log.open("a") as file:
                file.write(f"{exchange.worker}:{exchange.state.n_measured}\n")

        exchange.send = log  # type: ignore[method-assign]
    settings = SearchSettings(budget_s=given.budget, strategy=given.strategy)
    trace = Trace(landscape, executor.now_s)
    outcome = run_shared_search(space, opened, settings, exchange, trace.observe)
    if not outcome.interrupted:
        share_outcome(exchange, outcome)
    at_s = executor.now_s()
    n_unsent = exchange.close(completed=not outcome.interrupted)
    if simulated:
        simulated.end()
    chosen = landscape.space.numbers[outcome.config.key]
    return {
        "node": given.node,
        "time_of_day": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "is_finalist": exchange.result is None and not outcome.interrupted,
        "is_apart": outcome.interrupted,
        "number": exchange.state.number,
        "s": at_s,
        "cpu_s": round(time.process_time(), 1),
        "storage_s": round(simulated.storage_s, 2) if simulated else None,
        "waited_s": round(getattr(exchange, "waited_s", 0.0), 2),
        "verdict": outcome.evidence.verdict,
        "reason": outcome.evidence.reason,
        "proof": describe_proof(outcome.evidence.speedup),
        "chosen": chosen,
        "config": outcome.config.key,
        "speedup": math.exp(landscape.log_speedup(chosen)),
        "best": math.exp(landscape.log_speedup(landscape.best)),
        "n_tried": len(outcome.trials) - 1,
        "n_own": exchange.state.n_measured,
        "n_unsent": n_unsent,
        "ended_early": outcome.ended_early,
        "stages": {stage.stage: round(stage.wall_s, 1) for stage in outcome.stages},
        "trace": trace.steps,
        "notes": [note for note in (*trace.notes, *exchange.take_notes()) if note.startswith(("storage:", "node "))],
    }


def describe_proof(speedup: Speedup | None) -> str:
    """Return what a confirmation showed on the host of a worker."""
    if speedup is None:
        return "no confirmation"
    return f"{speedup.estimate:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] from {speedup.n_launches} launches"


def name_identity(study: str, host_class: str) -> dict[str, str]:
    """Return what all workers of a search have in common."""
    return {"model_name": "replay", "study": study, "host": host_class}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line of a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("landscape")
    parser.add_argument("storage")
    parser.add_argument("--study", default="0", help="what distinguishes the study from others in the storage")
    parser.add_argument("--host-class", default="Simulated", help="part of the identity of the study")
    parser.add_argument("--node", default="a")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--factor", type=float, default=10.0, help="how many times faster than real time it is")
    parser.add_argument("--clock", type=Path, help="file of a simulated clock, instead of real time")
    parser.add_argument("--slot", type=int, default=0, help="number of this worker on that clock")
    parser.add_argument("--strategy", default="adaptive")
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--outbox", type=Path)
    parser.add_argument("--log", type=Path, help="file for the identifiers of this worker and of what it measured")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one worker. If the storage does not answer when it starts, the exit code is 2."""
    given = make_parser().parse_args(arguments)
    try:
        row = run_worker(load(given.landscape), given)
    except StorageError as error:
        print(error.message, file=sys.stderr, flush=True)
        os._exit(REFUSED)
    print(json.dumps(row), flush=True)
    os._exit(0)  # a call of the storage may hang


if __name__ == "__main__":
    main()
