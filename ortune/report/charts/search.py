"""Charts of a search: candidates, the Pareto front, noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ortune.report.charts.style import (
    BAD,
    BASE,
    BEST,
    GOOD,
    HEIGHT,
    UNSURE,
    Row,
    axis_of,
    choose_unit,
    is_drawable,
    layer,
    ratio_axis,
    rule_at,
)
from ortune.workload import FIGURES

TIME_AXIS: Row = {
    "field": "at",
    "type": "quantitative",
    "title": "time since the start, s",
    "axis": {"grid": False, "format": "~g"},
}
"""The horizontal axis of a chart over time."""

STAGE_COLORS = {
    "fitting": "var(--series-3)",
    "screening": BASE,
    "racing": "var(--series-2)",
    "pruning": "var(--series-5)",
    "confirmation": BEST,
}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on the chart of a search.

    Attributes:
        at: When it was first measured, in seconds.
        speedup: How many times better than the baseline it was; None where it failed.
        stage: The last stage that it reached.
        settings: Its settings.
    """

    at: float
    speedup: float | None
    stage: str
    settings: str


def draw_attempts(attempts: Sequence[Attempt], *, title: str) -> Row:
    """Return a chart of all candidates over time, with the best so far.

    Args:
        attempts: The candidates.
        title: Title of the ratios.
    """
    known = sorted(
        (attempt for attempt in attempts if attempt.speedup and is_drawable(attempt.speedup)),
        key=lambda attempt: attempt.at,
    )
    rows: list[Row] = []
    best: list[Row] = []
    so_far = 1.0
    for attempt in known:
        assert attempt.speedup
        rows.append(
            {"at": attempt.at, "speedup": attempt.speedup, "stage": attempt.stage, "settings": attempt.settings}
        )
        so_far = max(so_far, attempt.speedup)
        best.append({"at": attempt.at, "speedup": so_far})
    last = max((attempt.at for attempt in attempts), default=0.0)
    best.append({"at": last, "speedup": so_far})
    failed = [{"at": attempt.at, "settings": attempt.settings} for attempt in attempts if attempt.speedup is None]
    y = {**ratio_axis([row["speedup"] for row in rows], title), "field": "speedup"}
    stages = [stage for stage in STAGE_COLORS if any(row["stage"] == stage for row in rows)]
    color = {
        "field": "stage",
        "type": "nominal",
        "scale": {"domain": stages, "range": [STAGE_COLORS[stage] for stage in stages]},
        "legend": {"title": "last stage"},
    }
    tooltip = [
        {"field": "settings"},
        {"field": "speedup", "title": "ratio", "format": ".3f"},
        {"field": "stage", "title": "last stage"},
    ]
    return layer(
        [
            rule_at(1.0, "y", dashed=True),
            {
                "data": {"values": best},
                "mark": {"type": "line", "interpolate": "step-after", "color": GOOD, "strokeWidth": 1.5},
                "encoding": {"x": TIME_AXIS, "y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
                "encoding": {"x": TIME_AXIS, "y": y, "color": color, "tooltip": tooltip},
            },
            {
                "data": {"values": failed},
                "mark": {"type": "point", "shape": "cross", "filled": True, "size": 50, "color": BAD},
                "encoding": {
                    "x": TIME_AXIS,
                    "y": {"value": HEIGHT - 8},
                    "tooltip": [{"field": "settings", "title": "failed"}],
                },
            },
        ]
    )


class FrontMark(msgspec.Struct, frozen=True, kw_only=True):
    """A point on the chart of a front: its figures, its label, what it is, and its settings."""

    x: float
    y: float
    label: str
    kind: str
    settings: str


FRONT_COLORS = {"on the front": BEST, "recommended": GOOD, "default": BASE}


def draw_front(points: Sequence[FrontMark], across: str, up: str) -> Row:
    """Return a chart of a Pareto front.

    Args:
        points: Its points, and the baseline.
        across: Name of the figure on the horizontal axis.
        up: Name of the figure on the vertical axis.
    """
    known = [point for point in points if is_drawable(point.x) and is_drawable(point.y)]
    scales = [choose_unit(FIGURES[across].unit, [point.x for point in known])]
    scales.append(choose_unit(FIGURES[up].unit, [point.y for point in known]))
    rows: list[Row] = [
        {
            "x": point.x / scales[0][0],
            "y": point.y / scales[1][0],
            "label": point.label,
            "kind": point.kind,
            "settings": point.settings,
        }
        for point in known
    ]
    titles = [
        f"{FIGURES[name].title}, {unit}" if unit else FIGURES[name].title
        for name, (_, unit) in zip((across, up), scales, strict=True)
    ]
    kinds = [kind for kind in FRONT_COLORS if any(point.kind == kind for point in known)]
    encoding = {
        "x": axis_of("x", titles[0], [row["x"] for row in rows], padded=True),
        "y": axis_of("y", titles[1], [row["y"] for row in rows], padded=True),
    }
    line = [row for row in rows if row["label"]]
    return layer(
        [
            {
                "data": {"values": line},
                "mark": {"type": "line", "color": BASE, "strokeDash": [4, 3], "strokeWidth": 1},
                "encoding": encoding,
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
                "encoding": {
                    **encoding,
                    "color": {
                        "field": "kind",
                        "type": "nominal",
                        "scale": {"domain": kinds, "range": [FRONT_COLORS[kind] for kind in kinds]},
                        "legend": {"title": None},
                    },
                    "tooltip": [
                        {"field": "settings"},
                        {"field": "x", "title": titles[0], "format": ".4~r"},
                        {"field": "y", "title": titles[1], "format": ".4~r"},
                    ],
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "text", "dx": 12, "dy": -10, "fontSize": 12},
                "encoding": {**encoding, "text": {"field": "label"}},
            },
        ],
        height=320,
    )


def draw_noise(rounds: Sequence[tuple[float, float, bool]]) -> Row:
    """Return a chart of the baseline over time.

    Args:
        rounds: For each round: when it was in seconds, the baseline's figure relative to its median, and whether other
            processes used the CPUs.
    """
    rows: list[Row] = [
        {"at": at, "ratio": ratio, "state": "contended" if contended else "quiet"}
        for at, ratio, contended in rounds
        if is_drawable(ratio)
    ]
    states = [state for state in ("quiet", "contended") if any(row["state"] == state for row in rows)]
    return layer(
        [
            rule_at(1.0, "y", dashed=True),
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.8},
                "encoding": {
                    "x": TIME_AXIS,
                    "y": axis_of(
                        "ratio", "default, relative to its median", [row["ratio"] for row in rows], padded=True
                    ),
                    "color": {
                        "field": "state",
                        "type": "nominal",
                        "scale": {
                            "domain": states,
                            "range": [BASE if state == "quiet" else UNSURE for state in states],
                        },
                        "legend": {"title": None},
                    },
                    "tooltip": [{"field": "ratio", "format": ".3f"}, {"field": "state"}],
                },
            },
        ],
        height=180,
    )


def draw_foreign_use(rounds: Sequence[tuple[float, float]]) -> Row:
    """Return a chart of the share of the CPUs' time that other processes used.

    Args:
        rounds: For each round: when it was in seconds, and the share.
    """
    rows = [{"at": at, "share": max(share, 0.0)} for at, share in rounds if math.isfinite(share)]
    return layer(
        [
            {
                "data": {"values": rows},
                "mark": {"type": "area", "interpolate": "step", "color": UNSURE, "opacity": 0.5, "line": False},
                "encoding": {
                    "x": TIME_AXIS,
                    "y": {
                        "field": "share",
                        "type": "quantitative",
                        "title": "CPU time of others",
                        "axis": {"format": "%", "tickCount": 4},
                    },
                },
            }
        ],
        height=110,
    )
