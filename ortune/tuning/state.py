"""What all stages share: the meter, the ledger, the plan, and the way to tell where the search stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortune.compare.block_runner import BlockRunner, raise_default
from ortune.compare.interval import Interval
from ortune.compare.results import Stage
from ortune.compare.stats import t_interval
from ortune.knobs import Candidate, Config, SearchSpace
from ortune.tuning.budget import Plan
from ortune.tuning.outcome import Budget, Observe, Progress, StrategyName
from ortune.tuning.results import Entry, Results
from ortune.worker import Failure, LiveCandidate
from ortune.workload import Goal


class Context:
    """A search under way.

    Attributes:
        candidates: All of the space, the default first.
        end_s: When the budget ends, on the executor's clock.
        strategy: In which order candidates are screened.
        hints: Configs to screen early: what earlier searches found.
        ended_early: Why the screen ended before its time, a sentence; empty if it did not.
        expected: Log-ratio to the default that each candidate is expected to have after the screen, by its key; empty
            where the strategy does not say.
        default: The default's entry in the ledger.
    """

    def __init__(
        self,
        *,
        meter: BlockRunner,
        space: SearchSpace,
        goal: Goal,
        plan: Plan,
        budget: Budget,
        end_s: float,
        observe: Observe,
        strategy: StrategyName = "adaptive",
        hints: Sequence[Config] = (),
    ) -> None:
        self.meter = meter
        self.goal = goal
        self.space = space
        self.candidates = space.candidates
        self.plan = plan
        self.budget = budget
        self.end_s = end_s
        self.strategy = strategy
        self.hints = hints
        self.ended_early = ""
        self.expected: Mapping[str, float] = {}
        self.ledger = Results(goal)
        self.default = self.ledger.open(Candidate(config=space.base))
        self._observe = observe
        self._notes: list[str] = []

    def now_s(self) -> float:
        """Return the time on the executor's clock."""
        return self.meter.executor.now_s()

    def note(self, text: str) -> None:
        """Tell the user something at the next report."""
        self._notes.append(text)

    def fail(self, entry: Entry, failure: Failure) -> None:
        """Take a candidate out and say so."""
        entry.failure = failure
        self.note(f"out: {entry.candidate.label}: {failure.kind.replace('_', ' ')}: {first_line(failure.message)}")

    def report(self, stage: Stage, done: int, total: int, best: Entry | None, speedup: Interval | None = None) -> None:
        """Tell the observer where the search stands."""
        self._observe(
            Progress(
                stage=stage,
                done=done,
                total=total,
                left_s=max(self.end_s - self.now_s(), 0.0),
                best=best.candidate if best else None,
                speedup=speedup or (speedup_of(best.values) if best and best.scores else None),
                notes=tuple(self._notes),
            )
        )
        self._notes.clear()

    def estimate_total(self, done: int, start_s: float, end_s: float) -> int:
        """Return how many steps there will be time for until `end_s`, going by those done since `start_s`."""
        now_s = self.now_s()
        rate = done / max(now_s - start_s, 1e-9)
        return max(done, round(done + rate * max(end_s - now_s, 0.0)))

    def launch_default(self) -> LiveCandidate:
        """Make the default live.

        Raises:
            MeasureError: It fails.
        """
        (answer,) = self.meter.launch([self.space.base])
        if isinstance(answer, Failure):
            raise_default(answer)
        return answer

    def launch(self, entries: Sequence[Entry]) -> list[tuple[Entry, LiveCandidate]]:
        """Make candidates live; those that fail are taken out."""
        answers = self.meter.launch([entry.candidate.config for entry in entries])
        lives = []
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, Failure):
                self.fail(entry, answer)
            else:
                lives.append((entry, answer))
        return lives


def first_line(text: str, length: int = 160) -> str:
    """Return the first line of a text, cut to a length."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line if len(line) <= length else line[: length - 1] + "…"


def speedup_of(log_ratios: Sequence[float]) -> Interval:
    """Return log-ratios to the default as an interval of the speed-up: a first impression, for the screen."""
    return t_interval([-value for value in log_ratios]).exp()
