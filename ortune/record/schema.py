"""The record: the JSON document that a search writes, and that everything else reads.

It is plain enough to be applied by hand. It is strict: a newer schema, an unknown field or a wrong type is refused
with the path of the fault, as a config that is half understood would be half applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from ortune.compare.comparison import Stage
from ortune.knobs.config import Config
from ortune.model.identity import ModelIdentity
from ortune.worker import Failure

if TYPE_CHECKING:
    pass

import datetime

from ortune.compare.comparison import LimitCheck, Noise, Speedup, StageTime, Summary
from ortune.errors import RecordError
from ortune.host import HostClass
from ortune.knobs.config import DEFAULT
from ortune.worker import Runtime
from ortune.workload import Tolerance, Workload

SCHEMA = 4
"""2 brought loads; 3 provider options, IO binding, pools and run options, which need no change of older documents."""


Verdict = Literal["faster", "default_is_best", "inconclusive", "within_limits", "infeasible", "overload", "trade_off"]
"""What a search concludes.

- "faster": the challenger is better than the default in the objective, beyond doubt, and keeps to all limits.
- "default_is_best": nothing is.
- "inconclusive": it could not be told.
- "within_limits": the default breaks a limit, and the challenger keeps to all of them.
- "infeasible": nothing that was tried keeps to all limits.
- "overload": requests arrive faster than the default or any candidate can serve them.
- "trade_off": several objectives were asked for, and there is a front to choose from.
"""


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config that nothing betters in all objectives.

    Attributes:
        summary: Its figures, with its settings.
        speedups: By objective, how many times better than the default; empty for the default itself.
        limits: Whether it keeps to each limit.
        recommended: Whether it is the knee of the front: where gaining 1 % in one objective begins to cost more than
            1 % of another.
    """

    summary: Summary
    speedups: dict[str, Speedup] = {}
    limits: tuple[LimitCheck, ...] = ()
    recommended: bool = False


class Closest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all that break a limit, what comes closest to keeping to them."""

    config: Config
    limits: tuple[LimitCheck, ...]


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A candidate that was tried.

    Attributes:
        number: Position in the order of trying; 0 is the default.
        config: Its settings.
        stage: The last stage that it reached.
        speedups: How many times better than the default in that stage, for each objective; None when it failed.
        over_limits: Limits that it seemed to break.
        blocks: Blocks measured in all stages.
        failure: Why it is out, or None.
    """

    number: int
    config: Config
    stage: Stage
    speedups: tuple[float, ...] | None = None
    over_limits: tuple[str, ...] = ()
    blocks: int = 0
    failure: Failure | None = None


class BestSoFar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best candidate before a search was interrupted. Its speed-up is a first impression, not a claim."""

    config: Config
    speedup: float
    proven: Literal[False] = False


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How outputs were compared with the default's.

    Attributes:
        tolerance: How far they may lie apart.
        compared: "values", or "shapes" where the default's own outputs differ from run to run.
        max_error: The winner's largest difference, as a share of the output's largest value; None without a winner.
        rejected: Candidates that were dropped for their outputs.
    """

    tolerance: Tolerance
    compared: str
    max_error: float | None
    rejected: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recommendation rests on.

    Attributes:
        verdict: The conclusion; "faster" means better in the objective, beyond doubt.
        reason: Why, a sentence.
        objective: What was to be made better; several are separated by commas.
        speedup: The final duel's result, or None when there was none.
        baseline: ONNX Runtime's default in the duel.
        winner: The challenger in the duel. It is recommended only if the verdict is "faster" or "within_limits".
        limits: Whether the challenger keeps to each limit.
        baseline_limits: Whether the default does.
        closest: Where nothing keeps to all limits: what comes closest.
        front: Where several objectives were asked for: the configs that nothing betters in all of them.
        best_so_far: The best candidate of an interrupted search, unproven.
        output_check: How outputs were compared.
        noise: How quiet the host was.
    """

    verdict: Verdict
    reason: str
    objective: str
    speedup: Speedup | None = None
    baseline: Summary | None = None
    winner: Summary | None = None
    limits: tuple[LimitCheck, ...] = ()
    baseline_limits: tuple[LimitCheck, ...] = ()
    closest: Closest | None = None
    front: tuple[FrontPoint, ...] = ()
    best_so_far: BestSoFar | None = None
    output_check: OutputCheck
    noise: Noise


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the search went.

    Attributes:
        started: When it began, in ISO 8601 with the time zone.
        interrupted: Whether the user ended it early.
        n_candidates: Distinct candidates in the space.
        strategy: In which order they were screened.
        hints: How many of those screened first came from earlier searches.
        ended_early: Why the screen ended before its time, a sentence; empty if it did not.
        trials: Those that were tried.
        stages: Where the time went.
    """

    seed: int
    budget_s: float
    started: str
    interrupted: bool
    n_candidates: int
    strategy: str = "tpe"
    hints: int = 0
    ended_early: str = ""
    trials: tuple[Trial, ...]
    stages: tuple[StageTime, ...]

    def __post_init__(self) -> None:
        """Refuse what no search writes."""
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, below 0")
        datetime.datetime.fromisoformat(self.started)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The document.

    Attributes:
        schema: Version of this format.
        config: What to apply.
        evidence: What it rests on.
        model: Which model it is for.
        workload: What was measured.
        host: The class of host it was measured on.
        runtime: The software it was measured with.
        search: How it was found.
    """

    schema: int
    config: Config
    evidence: Evidence
    model: ModelIdentity
    workload: Workload
    host: HostClass
    runtime: Runtime
    search: Search


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several records in one file: for other hosts, other loads, other models.

    Attributes:
        schema: Version of this format, and of all records in it.
        records: In the order in which they were given.
    """

    schema: int
    records: tuple[Record, ...]


def base_of(record: Record) -> Config:
    """Return what the record's config was compared with."""
    return record.evidence.baseline.config if record.evidence.baseline else DEFAULT


def tried_by(record: Record) -> dict[str, list[str]]:
    """Return the settings that the search tried: attributes and entries. For them, the default is a finding too."""
    configs = [record.config, *(trial.config for trial in record.search.trials)]
    return {
        "options": sorted({name for config in configs for name in config.session_options}),
        "entries": sorted({name for config in configs for name in config.session_config}),
    }


def pick_point(record: Record, number: int) -> Record:
    """Return a record that recommends another point of its front.

    Args:
        record: One with a front.
        number: Which point, counted from 1, as they are shown.

    Raises:
        RecordError: There is no such point.
    """
    front = record.evidence.front
    if not front:
        raise RecordError(
            f"--pick {number}: the record has no front to pick from.",
            "Make one with a front: ortune search MODEL --pareto p99,cpu.",
        )
    if not 1 <= number <= len(front):
        raise RecordError(f"--pick {number}: the front has the points 1 to {len(front)}.")
    return msgspec.structs.replace(record, config=front[number - 1].summary.config)
