"""The record: the JSON document that a search writes and all other commands read.

A record is short enough to review and plain enough to apply by hand: fields that have their default are left out. It
is data and executes nothing. Reading is strict: another schema, an unknown field, a wrong type or an illegal value is
rejected with its JSON path, because a config that is understood in part would be applied in part.

The trials of a search are in a file of their own: see `ortune.record.trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Annotated, Literal

import msgspec

from ortune.errors import RecordError
from ortune.host import HostClass
from ortune.knobs.config import CPU, DEFAULT, Config
from ortune.measure.comparison import LateCalls, LimitCheck, Noise, Speedup, Stage, StageTime, Summary
from ortune.measure.host_speedup import HostsEvidence
from ortune.measure.interval import Interval, format_speedup
from ortune.measure.judge import Verdict, compare
from ortune.model.identity import ModelIdentity
from ortune.numbers import FEW, MANY, Count, format_ratio
from ortune.times import check_time
from ortune.worker import FailureKind, Runtime
from ortune.workload import Objective, Workload

RECORD_SCHEMA = 1
"""Version of the format."""

WITHOUT_PROOF = frozenset({"nothing_found", "inconclusive", "infeasible", "overload"})
"""Verdicts of searches that did not show any config to be better than another."""


Limits = Annotated[tuple[LimitCheck, ...], FEW]
Names = Annotated[tuple[str, ...], MANY]


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config on the Pareto front: no other candidate is better in all objectives.

    Attributes:
        summary: Its settings and figures.
        speedups: By objective: how many times better than the baseline; empty for the baseline itself.
        limits: Whether it stays within each limit.
        recommended: Whether it is the knee of the front: beyond it, 1% more of one objective costs more than 1% of
            another.
    """

    summary: Summary
    speedups: Annotated[dict[str, Speedup], FEW] = {}
    limits: Limits = ()
    recommended: bool = False


class Closest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config that comes closest to staying within all limits, if none stays within them.

    Attributes:
        config: Its settings.
        limits: How it does on each limit.
    """

    config: Config = DEFAULT
    limits: Limits


class BestSoFar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best candidate of a search that was interrupted before anything was proven.

    Attributes:
        config: Its settings.
        speedup: Its median speedup over the baseline so far.
    """

    config: Config = DEFAULT
    speedup: float


Compared = Literal["values", "shapes", "nothing"]
"""What of the outputs was compared with the baseline's."""


class OutputCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How outputs were compared with the baseline's. The tolerance is that of the workload.

    Attributes:
        compared: "values", or "shapes" where the baseline's own outputs differ from run to run. "nothing" for a program
            that printed and returned nothing that could be compared, or did not end.
        max_error: The winner's largest difference, as a share of the output's largest value; None without a winner.
        n_rejected: Number of candidates that were rejected for their outputs.
    """

    compared: Compared = "values"
    max_error: float | None = None
    n_rejected: Count = 0


class Occasion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A later comparison of the config with the same baseline, on this class of host with this software and load.

    Attributes:
        started: When it began, in ISO 8601 with the time zone.
        speedup: Its result.
    """

    started: str
    speedup: Speedup


class SettingEvidence(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a setting contributes beside the other settings: the cost without it divided by the cost with it.

    Attributes:
        cpu: The same of the CPU time of a call.
    """

    cpu: float = 1.0


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recommendation rests on.

    Attributes:
        verdict: The conclusion.
        reason: Why, in a sentence.
        objective: What was optimized; several are separated by commas.
        speedup: Result of the confirmation; None without one.
        most_gain: What no setting that was tried gains more than, as a share; for "default_is_best", no setting at all.
            None for other verdicts, with limits or several objectives, and where little is known.
        late_calls: How late calls of a launch compare, which the speedup then includes; None if they do as early ones.
        baseline: Figures of the baseline in the confirmation.
        winner: Figures of the best candidate in the confirmation. It is recommended only if the verdict is "faster"
            or "within_limits".
        limits: Whether the winner stays within each limit.
        baseline_limits: Whether the baseline stays within each limit.
        closest: The config that comes closest to staying within all limits, if none stays within them.
        front: The Pareto front, where several objectives were given.
        best_so_far: The best candidate of a search that was interrupted before anything was proven.
        output_check: How outputs were compared.
        noise: How quiet the host was.
        occasions: Verifications that were added to the record.
        hosts: What several hosts of the class say about the config; None if fewer than two were compared.
        contributions: What each setting of the winner contributes, by name. Empty for one setting, whose contribution
            is the speedup, and where there was no time.
        dropped: The same of settings that the best candidate had before, and that contribute too little.
    """

    verdict: Verdict
    reason: str
    objective: str
    speedup: Speedup | None = None
    most_gain: Annotated[float, msgspec.Meta(ge=0)] | None = None
    late_calls: LateCalls | None = None
    baseline: Summary | None = None
    winner: Summary | None = None
    limits: Limits = ()
    baseline_limits: Limits = ()
    closest: Closest | None = None
    front: Annotated[tuple[FrontPoint, ...], FEW] = ()
    best_so_far: BestSoFar | None = None
    output_check: OutputCheck = OutputCheck()
    noise: Noise
    occasions: Annotated[tuple[Occasion, ...], MANY] = ()
    hosts: HostsEvidence | None = None
    contributions: Annotated[dict[str, SettingEvidence], FEW] = {}
    dropped: Annotated[dict[str, SettingEvidence], FEW] = {}

    def __post_init__(self) -> None:
        """Check that both sides have the same limits."""
        sides = [tuple(check.limit for check in side) for side in (self.baseline_limits, self.limits) if side]
        if len(set(sides)) > 1:
            raise ValueError("limits and baseline_limits are not about the same limits")

    def map_configs(self, change: Callable[[Config], Config]) -> Evidence:
        """Return the evidence with changed settings."""

        def replace(summary: Summary) -> Summary:
            return msgspec.structs.replace(summary, config=change(summary.config))

        best, closest = self.best_so_far, self.closest
        return msgspec.structs.replace(
            self,
            baseline=self.baseline and replace(self.baseline),
            winner=self.winner and replace(self.winner),
            closest=closest and msgspec.structs.replace(closest, config=change(closest.config)),
            front=tuple(msgspec.structs.replace(point, summary=replace(point.summary)) for point in self.front),
            best_so_far=best and msgspec.structs.replace(best, config=change(best.config)),
        )


class Tried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the settings that a search tried. For these, a default in the config is a result of the search, too.

    Settings in which the sessions of a program differ are left out, unless the config has one value for all of them.

    Attributes:
        session_options: Attributes of SessionOptions.
        session_config: Entries of SessionOptions.
        providers: Execution providers other than the CPU provider, which runs what no other provider runs.
    """

    session_options: Names = ()
    session_config: Names = ()
    providers: Names = ()

    @classmethod
    def of(cls, *configs: Config) -> Tried:
        """Return the settings that any of the configs has."""
        return cls(
            session_options=tuple(sorted({name for config in configs for name in config.session_options})),
            session_config=tuple(sorted({name for config in configs for name in config.session_config})),
            providers=tuple(sorted({name for config in configs for name, _ in config.providers} - {CPU})),
        )

    def without(self, names: Container[str]) -> Tried:
        """Return these settings without those of some names."""
        return msgspec.structs.replace(
            self,
            session_options=tuple(name for name in self.session_options if name not in names),
            session_config=tuple(name for name in self.session_config if name not in names),
        )


class RankedTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the best trials. Its speedups are medians, and prove nothing: only the confirmation does.

    Attributes:
        config: Its settings.
        stage: The last stage that it reached.
        speedups: For each objective: how many times better than the baseline.
    """

    config: Config = DEFAULT
    stage: Stage
    speedups: Annotated[tuple[float, ...], FEW]


class TrialsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file with all trials, next to the record. Applying the record does not need it.

    Attributes:
        file: Its name, without a folder.
        sha256: SHA-256 of its content, as hexadecimal digits.
    """

    file: str
    sha256: str

    def __post_init__(self) -> None:
        """Check that it is a name and a digest: a record must not lead to files elsewhere."""
        if self.file in {"", ".", ".."} or any(character in self.file for character in "/\\\0"):
            raise ValueError(f"{self.file!r} is not a plain file name")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ValueError(f"{self.sha256!r} is not a SHA-256 digest")


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the config was found.

    Attributes:
        started: When the search began, in ISO 8601 with the time zone.
        budget_s: Wall time that it was given, in seconds.
        seed: Its random seed.
        strategy: In which order candidates were screened.
        n_hints: Number of configs from earlier searches that were screened first.
        interrupted: Whether it was interrupted.
        n_resumes: How often it was interrupted or killed before, and then resumed.
        ended_early: Why the screening ended before its time; empty if it did not.
        n_candidates: Number of distinct candidates in the search space.
        n_tried: Number of those that were tried, without the baseline.
        failed: Number of those that failed, by kind of failure.
        tried: Names of the settings that were tried.
        best: The best trials, the best first.
        stages: How long each stage took.
        trials: The file with all trials; None where it was not written.
    """

    started: str
    budget_s: float
    seed: int
    strategy: str
    n_hints: Count = 0
    interrupted: bool = False
    n_resumes: Count = 0
    ended_early: str = ""
    n_candidates: Count
    n_tried: Count
    failed: dict[FailureKind, Count] = {}
    tried: Tried = Tried()
    best: Annotated[tuple[RankedTrial, ...], FEW] = ()
    stages: Annotated[tuple[StageTime, ...], FEW] = ()
    trials: TrialsFile | None = None

    def __post_init__(self) -> None:
        """Reject values that no search writes."""
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, below 0")
        check_time(self.started)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a search: what to apply, the evidence for it, and what it is valid for.

    Attributes:
        schema: Version of this format.
        config: The settings to apply.
        base: The settings that `config` was compared with: ONNX Runtime's default, and what the user fixed.
        cache_options: Options of the config's providers that name a folder for compiled models, such as
            `openvino.cache_dir`. Without a folder, each new session compiles the model. The record does not name one.
        evidence: What the recommendation rests on.
        model: The model that was tuned.
        workload: The load and the inputs it was tuned for.
        host: The class of hosts it was tuned on.
        runtime: The software it was tuned with.
        search: How the config was found.
    """

    schema: int
    config: Config
    base: Config = DEFAULT
    cache_options: Names = ()
    evidence: Evidence
    model: ModelIdentity
    workload: Workload
    host: HostClass
    runtime: Runtime
    search: Search

    def __post_init__(self) -> None:
        """Reject options for caches that the config's providers do not have. They are shown as advice."""
        if self.cache_options:
            from ortune.knobs.caches import check_cache_options

            check_cache_options(self.config, self.cache_options)

    def map_configs(self, change: Callable[[Config], Config]) -> Record:
        """Return the record with changed settings: those that it recommends, and those of its evidence."""
        return msgspec.structs.replace(
            self, config=change(self.config), base=change(self.base), evidence=self.evidence.map_configs(change)
        )

    @property
    def is_slower(self) -> bool:
        """Whether `config` turned out to be worse over several hosts of this class."""
        return self.evidence.hosts is not None and self.evidence.hosts.verdict == "slower"

    @property
    def is_proven(self) -> bool:
        """Whether the search showed that `config` is better than another config, or that no other is better.

        A search without a result recommends the base, about which it has proven nothing. A config that turned out to be
        worse over several hosts is not proven, whatever the search showed on one of them.
        """
        if self.is_slower:
            return False
        return self.evidence.verdict not in WITHOUT_PROOF or self.config != self.base

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives. For a point of a front, those in which it is proven to be better come first."""
        objectives = self.workload.objectives
        point = self._point
        if point is None:
            return objectives
        gained = [name for name in objectives if (gain := point.speedups.get(name)) and compare(gain, 1) == "above"]
        return tuple(dict.fromkeys((*gained, *objectives)))

    @property
    def gain(self) -> Speedup | None:
        """The speedup that the record claims for `config` in the first of `objectives`; None if it claims none."""
        if point := self._point:
            return point.speedups.get(self.objectives[0])
        winner = self.evidence.winner
        return self.evidence.speedup if winner is None or winner.config == self.config else None

    @property
    def claims_limits(self) -> bool:
        """Whether the claim is only that `config` stays within the limits, unlike the baseline.

        Its gain says nothing then: the config may be worse than the baseline in all objectives.
        """
        if point := self._point:
            has_gain = any(compare(gain, 1) == "above" for gain in point.speedups.values())
            return self.evidence.verdict == "trade_off" and bool(point.limits) and not has_gain
        return self.evidence.verdict == "within_limits"

    @property
    def tried(self) -> Tried:
        """Names of the settings that the search tried, with those of `config` and the providers of `base`."""
        tried, own = self.search.tried, Tried.of(self.config)
        return Tried(
            session_options=tuple(sorted({*tried.session_options, *own.session_options})),
            session_config=tuple(sorted({*tried.session_config, *own.session_config})),
            providers=tuple(sorted({*tried.providers, *own.providers, *Tried.of(self.base).providers})),
        )

    @property
    def _point(self) -> FrontPoint | None:
        """The point of the front that has this config."""
        return next((point for point in self.evidence.front if point.summary.config == self.config), None)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ortune.record.html import render_summary

        evidence, gain = self.evidence, self.gain
        lines = [
            f"{format_speedup(gain)} in {self.objectives[0]}" if gain else "",
            evidence.reason,
            f"{self.model.path}: {self.workload.load}",
            f"{self.host.cpu_name}, {self.host.n_usable} CPUs, onnxruntime {self.runtime.onnxruntime}",
        ]
        settings = [(name, str(value)) for name, value in self.config.settings.items()]
        objectives = self.workload.objectives
        points = [
            (
                str(number),
                *(format_ratio(ratio.estimate) if (ratio := point.speedups.get(name)) else "" for name in objectives),
            )
            for number, point in enumerate(evidence.front, 1)
        ]
        ratios = ("point", *(f"{name} ratio" for name in objectives))
        title = evidence.verdict.replace("_", " ").capitalize()
        return render_summary(title, lines, [(("setting", "value"), settings), (ratios, points)])

    def point(self, number: int | str) -> Record:
        """Return the same record with another point of its front as the recommended config.

        Args:
            number: The point, counted from 1 as reports show it. Only deployments of plans are picked by a word.

        Raises:
            RecordError: There is no such point.
        """
        front = self.evidence.front
        if isinstance(number, str):
            raise RecordError(
                f"{number}: only a deployment of a plan can be picked by that.",
                "Pass the number of a point of the record's front.",
                option="pick",
            )
        if not front:
            raise RecordError(
                f"{number}: this record has no Pareto front to pick from.",
                "Search with {pareto=p99,cpu} to get one.",
                option="pick",
            )
        if not 1 <= number <= len(front):
            raise RecordError(f"{number}: the front has points 1 to {len(front)}.", option="pick")
        summary = front[number - 1].summary
        options: tuple[str, ...] = ()
        if summary.build_s is not None:  # sessions started from compiled models
            from ortune.knobs.caches import list_cache_options

            options = list_cache_options(summary.config)
        return msgspec.structs.replace(self, config=summary.config, cache_options=options)


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several records in one file: for several hosts, loads or models.

    Attributes:
        schema: Version of this format.
        records: The records, in the order in which they were given.
    """

    schema: int
    records: tuple[Record, ...]
