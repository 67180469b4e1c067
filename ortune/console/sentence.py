"""The result of a search in one sentence, for readers who do not know its terms."""

from __future__ import annotations

import math

from ortune.console.few_calls import find_few_calls
from ortune.console.hosts import describe_hosts
from ortune.measure.limits import is_overloaded
from ortune.numbers import format_digits, format_ratio
from ortune.record.schema import Record
from ortune.tuning.verdict import SMALL_GAIN, format_bound
from ortune.workload import FIGURES, is_figure

NOTABLY_SLOWER = 0.02
"""Share by which p50 must be longer that is named together with a gain in memory."""


def summarize(record: Record) -> str:
    """Return the result of a search, and what several hosts say about it, in a sentence or two each."""
    hosts = record.evidence.hosts
    return " ".join([summarize_search(record), *([f"{describe_hosts(hosts)}."] if hosts else [])])


def summarize_search(record: Record) -> str:
    """Return the result of a search in a sentence or two."""
    evidence = record.evidence
    kept = "the program as it is" if record.workload.program else "the default settings"
    match evidence.verdict:
        case "faster":
            return _describe_gain(record)
        case "default_is_best":
            within = " within the limits" if record.workload.limits else ""
            most = f"{SMALL_GAIN:.0%}" if evidence.most_gain is None else format_bound(evidence.most_gain)
            return f"Keep {kept}: on this host, no other settings{within} are likely to be better by more than {most}."
        case "nothing_found":
            if evidence.most_gain is not None:
                most = format_bound(evidence.most_gain)
                return f"Keep {kept}: none of the settings that were tried gains more than {most}."
            return f"Keep {kept}: none of the settings that were tried is proven to be better."
        case "within_limits":
            return "These settings satisfy the limits. The default settings do not."
        case "infeasible":
            return "No settings were found that satisfy the limits on this host: relax them, or use a faster host."
        case "overload":
            return "This host seems too slow for this rate: no settings were found with which requests do not pile up."
        case "trade_off":
            if len(evidence.front) == 1:
                return "These settings are better than the default in at least one respect."
            return "No settings are best in every respect: choose the point of the front that suits you best."
        case "inconclusive":
            if record.search.interrupted:
                return f"Keep {kept}: the search was stopped before it could prove anything."
            return f"Keep {kept} for now: there may be a gain, but it is not proven."


def _describe_gain(record: Record) -> str:
    speedup, baseline, program = record.evidence.speedup, record.evidence.baseline, record.workload.program
    if baseline and is_overloaded(baseline):
        return "With these settings, this host can serve the requests. With the default settings, requests pile up."
    if speedup is None:
        return "These settings are proven to be better."
    objective = record.evidence.objective
    # It is any text in a record that somebody wrote by hand.
    figure = FIGURES[objective if is_figure(objective) else "p50"]
    certain = f"with {speedup.confidence:.0%} confidence"
    if figure.unit == "per_s":
        more, least = 100 * (speedup.estimate - 1), _round_down(100 * (speedup.low - 1))
        unit = f"{_unit(record)}s"
        return (
            f"This host handles {format_digits(more, 2)}% more {unit} than before: at least {least}% more, {certain}."
        )
    if figure.unit == "number":
        better, least = format_ratio(speedup.estimate), format_ratio(math.floor(1000 * speedup.low) / 1000)
        return f"The number that the program prints is {better} better than before: at least {least}, {certain}."
    share, least = 100 * (1 - 1 / speedup.estimate), _round_down(100 * (1 - 1 / speedup.low))
    subject = "The program takes" if program and program.kind == "run" else f"{_unit(record).capitalize()}s take"
    text = figure.saving or f"{subject} {{share}}% less time"
    few = find_few_calls(record)
    calls = f" This rests on {few[1]} calls of each, so rarer slow calls may be missing." if few else ""
    slower = _describe_slowdown(record) if objective == "memory" else ""
    return f"{text.format(share=f'{share:.2g}')} than before: at least {least}% less, {certain}.{calls}{slower}"


def _describe_slowdown(record: Record) -> str:
    """Return by how much a config that saves memory is slower than the default, or nothing if it is not."""
    baseline, winner, program = record.evidence.baseline, record.evidence.winner, record.workload.program
    if not baseline or not winner or winner.p50_ns <= (1 + NOTABLY_SLOWER) * baseline.p50_ns or not baseline.p50_ns:
        return ""
    more = 100 * (winner.p50_ns / baseline.p50_ns - 1)
    subject = "the program" if program and program.kind == "run" else f"{_unit(record)}s"
    return f" In the confirmation, {subject} took {format_digits(more, 2)}% more time with it (p50)."


def _unit(record: Record) -> str:
    if record.workload.program and record.workload.program.kind == "server":
        return "request"
    return "item" if record.workload.batches else "call"


def _round_down(percent: float) -> str:
    """Return a percentage that is not above the given one."""
    step = 1 if percent >= 10 else 10
    return f"{math.floor(percent * step) / step:g}"
