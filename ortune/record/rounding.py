"""Rounds the figures of a record, because digits that only show noise make a diff of two records hard to read."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ortune.measure.comparison import LimitCheck, Noise, Speedup, StageTime, Summary
from ortune.measure.host_speedup import HostsEvidence
from ortune.measure.interval import Interval
from ortune.record.schema import Evidence, FrontPoint, Record, Search, SettingEvidence
from ortune.workload import FIGURES

SIGNIFICANT = 4
"""Significant digits of latencies, rates and CPU times. Even a quiet host changes the fourth from launch to launch."""

RATIO_PLACES = 4
"""Decimal places of speedups."""

ROUNDED_FIELDS = (
    *{figure.field for figure in FIGURES.values() if figure.field and figure.unit != "bytes"},
    "worst_p50_ns",
    "worst_p99_ns",
    "cpu_ns_between_calls",
    "build_s",
    "utilization",
    "utilization_low",
    "utilization_high",
)
"""Fields of a summary that are rounded: those of figures, and others. Memory is a whole number of bytes."""

T = TypeVar("T", bound=msgspec.Struct)
OneInterval = TypeVar("OneInterval", bound=Interval)


def round_record(record: Record) -> Record:
    """Return a record with all figures rounded. Rounding a second time changes nothing."""
    return msgspec.structs.replace(
        record, evidence=round_evidence(record.evidence), search=_round_search(record.search)
    )


def round_evidence(evidence: Evidence) -> Evidence:
    """Return evidence with all figures rounded."""
    closest, best, check = evidence.closest, evidence.best_so_far, evidence.output_check
    late = evidence.late_calls
    return msgspec.structs.replace(
        evidence,
        speedup=evidence.speedup and round_speedup(evidence.speedup),
        late_calls=late and _round_interval(msgspec.structs.replace(late, early=ratio(late.early))),
        baseline=evidence.baseline and round_summary(evidence.baseline),
        winner=evidence.winner and round_summary(evidence.winner),
        limits=round_limits(evidence.limits),
        baseline_limits=round_limits(evidence.baseline_limits),
        closest=closest and msgspec.structs.replace(closest, limits=round_limits(closest.limits)),
        front=tuple(map(_round_point, evidence.front)),
        best_so_far=best and msgspec.structs.replace(best, speedup=ratio(best.speedup)),
        output_check=_significant(check, "max_error"),
        noise=round_noise(evidence.noise),
        occasions=tuple(
            msgspec.structs.replace(occasion, speedup=round_speedup(occasion.speedup))
            for occasion in evidence.occasions
        ),
        hosts=evidence.hosts and round_hosts(evidence.hosts),
        contributions={name: _round_setting(setting) for name, setting in evidence.contributions.items()},
        dropped={name: _round_setting(setting) for name, setting in evidence.dropped.items()},
    )


def _round_setting(setting: SettingEvidence) -> SettingEvidence:
    return msgspec.structs.replace(_round_interval(setting), cpu=ratio(setting.cpu))


def _round_point(point: FrontPoint) -> FrontPoint:
    return msgspec.structs.replace(
        point,
        summary=round_summary(point.summary),
        speedups={name: round_speedup(speedup) for name, speedup in point.speedups.items()},
        limits=round_limits(point.limits),
    )


def round_noise(noise: Noise) -> Noise:
    """Return noise with rounded shares."""
    speeds, frequencies = noise.two_speeds, noise.frequencies
    return msgspec.structs.replace(
        noise,
        two_speeds=speeds and _significant(speeds, "slow_share", "factor"),
        frequencies=frequencies and _significant(frequencies, "slow_hz", "fast_hz"),
    )


def _round_search(search: Search) -> Search:
    return msgspec.structs.replace(search, stages=tuple(map(_round_stage, search.stages)))


def _round_stage(stage: StageTime) -> StageTime:
    return msgspec.structs.replace(stage, wall_s=round(stage.wall_s, 2), inference_s=round(stage.inference_s, 2))


def round_summary(summary: Summary) -> Summary:
    """Return a summary with all figures rounded."""
    rounded = _significant(summary, *ROUNDED_FIELDS)
    if rounded.others is msgspec.UNSET:
        return rounded
    others = {name: significant(value) for name, value in rounded.others.items()}
    return msgspec.structs.replace(rounded, others=others)


def round_speedup(speedup: Speedup) -> Speedup:
    """Return a speedup with rounded ratios."""
    return msgspec.structs.replace(
        speedup,
        estimate=ratio(speedup.estimate),
        low=ratio(speedup.low),
        high=ratio(speedup.high),
        span_s=None if speedup.span_s is None else round(speedup.span_s, 1),
    )


def round_hosts(hosts: HostsEvidence) -> HostsEvidence:
    """Return the evidence of several hosts with rounded ratios."""
    return msgspec.structs.replace(
        hosts,
        speedup=_round_interval(hosts.speedup),
        another=_round_interval(hosts.another),
        worst=_round_interval(hosts.worst),
        hosts=tuple(map(_round_interval, hosts.hosts)),
    )


def _round_interval(interval: OneInterval) -> OneInterval:
    return msgspec.structs.replace(
        interval, estimate=ratio(interval.estimate), low=ratio(interval.low), high=ratio(interval.high)
    )


def round_limits(checks: tuple[LimitCheck, ...]) -> tuple[LimitCheck, ...]:
    """Return checks of limits with rounded values."""
    return tuple(_significant(check, "value", "low", "high") for check in checks)


def _significant(value: T, *names: str) -> T:
    """Return a struct with some fields rounded to significant digits. Fields that are None are unchanged."""
    rounded = {name: significant(own) for name in names if (own := getattr(value, name)) is not None}
    return msgspec.structs.replace(value, **rounded)


def significant(value: float, digits: int = SIGNIFICANT) -> float:
    """Round to significant digits."""
    return float(f"{value:.{digits}g}")


def ratio(value: float) -> float:
    """Round a ratio, but never to 1 or 0.

    A claim depends on which side of 1 the interval ends, and intervals are pooled by their logarithms.
    """
    rounded = round(value, RATIO_PLACES)
    if rounded == 1:
        return significant(value, 12)
    return rounded or significant(value)
