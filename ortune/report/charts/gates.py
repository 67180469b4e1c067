"""Charts of gates over time."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

import msgspec

from ortune.measure.interval import Interval
from ortune.report.charts.style import BAD, BASE, BEST, GOOD, UNSURE, Row, layer, rule_at


class GateMark(msgspec.Struct, frozen=True, kw_only=True):
    """A gate of a history: when it was, its slowdown, what was decided, and how head was named."""

    time: str
    slowdown: Interval
    decision: str
    head: str


DECISION_COLORS = {"pass": GOOD, "fail": BAD, "inconclusive": UNSURE, "error": BASE}


def draw_gates(marks: Sequence[GateMark], allowed: float, changes: Sequence[str] = ()) -> Row:
    """Return a chart of the slowdowns of one gate in one objective over time.

    Args:
        marks: The runs.
        allowed: The largest slowdown that passes.
        changes: Times of the runs at which the level changed.
    """
    rows: list[Row] = [
        {
            "time": mark.time,
            "low": 100 * (mark.slowdown.low - 1),
            "slowdown": 100 * (mark.slowdown.estimate - 1),
            "high": 100 * (mark.slowdown.high - 1),
            "decision": mark.decision if mark.decision in DECISION_COLORS else "error",
            "head": mark.head,
        }
        for mark in marks
        if all(map(math.isfinite, (mark.slowdown.low, mark.slowdown.estimate, mark.slowdown.high)))
    ]
    decisions = [decision for decision in DECISION_COLORS if any(row["decision"] == decision for row in rows)]
    times = sorted(row["time"] for row in rows)
    axis: Row = {"grid": False, "labelOverlap": "greedy", "labelSeparation": 12}
    if times and spans_days(times[0], times[-1]):
        # Otherwise, labels are days of the week, and months only where they begin.
        axis["format"] = "%b %-d"
    x: Row = {"field": "time", "type": "temporal", "title": None, "axis": axis}
    if len(set(times)) == 1:
        x = {"field": "time", "type": "ordinal", "title": None, "axis": {"labelAngle": 0}}
    color = {
        "field": "decision",
        "type": "nominal",
        "scale": {"domain": decisions, "range": [DECISION_COLORS[decision] for decision in decisions]},
        "legend": {"title": None},
    }
    y = {
        "field": "slowdown",
        "type": "quantitative",
        "title": "head vs. base, %",
        "scale": {"domain": bound_slowdowns(rows, 100 * (allowed - 1)), "clamp": True},
    }
    tooltip: list[Row] = [
        {"field": "time", "type": "nominal"},
        {"field": "slowdown", "title": "slowdown, %", "format": "+.2f"},
        {"field": "low", "title": "low, %", "format": "+.2f"},
        {"field": "high", "title": "high, %", "format": "+.2f"},
        {"field": "decision"},
        {"field": "head"},
    ]
    layers: list[Row] = [
        rule_at(0.0, "y", dashed=False),
        rule_at(100 * (allowed - 1), "y", dashed=True, color=BAD),
        {
            "data": {"values": rows},
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": color},
        },
        {
            "data": {"values": rows},
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": color, "tooltip": tooltip},
        },
    ]
    if changes:
        layers.append(
            {
                "data": {"values": [{"time": time} for time in changes]},
                "mark": {"type": "rule", "strokeWidth": 2, "color": BEST, "strokeDash": [2, 2]},
                "encoding": {"x": x, "tooltip": [{"field": "time", "type": "nominal", "title": "change of level"}]},
            }
        )
    return layer(layers, height=200)


DAYS = datetime.timedelta(days=3), datetime.timedelta(days=400)
"""Shortest and longest history whose axis is labeled with days."""


def spans_days(first: str, last: str) -> bool:
    """Return whether an axis between two times is labeled with days."""
    try:
        span = datetime.datetime.fromisoformat(last) - datetime.datetime.fromisoformat(first)
    except (TypeError, ValueError):
        return False
    return DAYS[0] <= span <= DAYS[1]


MOST_WIDTHS = 3.0
"""How far an axis extends beyond the estimates, in ranges of these. Intervals of few launches may be extremely wide."""


def bound_slowdowns(rows: Sequence[Row], allowed: float) -> list[float]:
    """Return the range of an axis that holds all estimates, and intervals unless they are much wider than the rest."""
    levels = [0.0, allowed, *(row["slowdown"] for row in rows)]
    low, high = min(levels), max(levels)
    space = MOST_WIDTHS * max(high - low, 1.0)
    ends = [low, high, *(row[end] for row in rows for end in ("low", "high"))]
    return [max(min(ends), low - space) - 0.2, min(max(ends), high + space) + 0.2]
