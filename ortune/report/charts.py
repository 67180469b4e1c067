"""Charts as specifications in Vega-Lite.

Colors are CSS variables of the page, so that a chart follows the colors of the page without being drawn again. Names of
fields are fixed, and texts from files are only values of the data: Vega evaluates expressions in other places.

Source: https://vega.github.io/vega-lite/docs/
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ortune.compare.interval import Interval
from ortune.workload import FIGURES

Row = dict[str, Any]

HEIGHT = 260
"""Height of a chart, in pixels."""

ROW_HEIGHT = 26
"""Height of a row of a chart with a row for each item."""

LOG_FROM = 4.0
"""Smallest ratio of the largest and the smallest value for which an axis is logarithmic."""

SERIES = tuple(f"var(--series-{number})" for number in range(1, 7))
BASE, BEST, GOOD, BAD, UNSURE, INK, MUTED = (
    f"var(--{name})" for name in ("base", "best", "good", "bad", "unsure", "ink", "muted")
)

PRINT_COLORS = {
    "ink": "#1f2328",
    "muted": "#656d76",
    "grid": "#e3e6ea",
    "base": "#8c959f",
    "best": "#0969da",
    "good": "#1a7f37",
    "bad": "#cf222e",
    "unsure": "#9a6700",
    "series-1": "#0969da",
    "series-2": "#bf3989",
    "series-3": "#1a7f37",
    "series-4": "#bc4c00",
    "series-5": "#8250df",
    "series-6": "#1b7c83",
}
"""The colors on paper and in PNG files: those of the light page."""

CONFIG: Row = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 11,
        "gridColor": "var(--grid)",
        "domainColor": "var(--grid)",
        "tickColor": "var(--grid)",
    },
    "axisY": {"labelLimit": 280},
    "legend": {
        "labelColor": INK,
        "titleColor": MUTED,
        "labelFontSize": 12,
        "orient": "top",
        "titleFontWeight": "normal",
        "titleOrient": "left",
    },
    "text": {"color": INK},
    "rule": {"color": MUTED},
    "mark": {"tooltip": None},
}

UNITS = {"ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")), "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))}


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a chart of ratios.

    Attributes:
        label: Its name.
        ratios: The ratio of each pair.
        interval: Their interval, or None.
    """

    label: str
    ratios: tuple[float, ...] = ()
    interval: Interval | None = None


def draw_pairs(rows: Sequence[Pairs], title: str) -> Row:
    """Return a chart of the ratio of each pair, and of the intervals that they support."""
    labels = number_labels([row.label for row in rows])
    points: list[Row] = [
        {"label": label, "ratio": ratio}
        for label, row in zip(labels, rows, strict=True)
        for ratio in row.ratios
        if is_drawable(ratio)
    ]
    intervals: list[Row] = [
        {"label": label, "low": row.interval.low, "high": row.interval.high, "ratio": row.interval.estimate}
        for label, row in zip(labels, rows, strict=True)
        if row.interval and all(map(is_drawable, (row.interval.low, row.interval.high, row.interval.estimate)))
    ]
    ends = [each[end] for each in intervals for end in ("low", "high")]
    values = [*(point["ratio"] for point in points), *ends, 1.0]
    y = {"field": "label", "type": "nominal", "sort": labels, "title": None, "axis": {"grid": True}}
    x = {
        "field": "ratio",
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": pad_domain(values), "nice": False},
        "axis": {"format": "~r" if max(values) / min(values) > LOG_FROM else ".3~f", "tickCount": 6},
    }
    of_interval = [
        {"field": "low", "format": ".3f"},
        {"field": "ratio", "title": "estimate", "format": ".3f"},
        {"field": "high", "format": ".3f"},
    ]
    return layer(
        [
            rule_at(1.0, "x", dashed=False),
            {
                "data": {"values": points},
                "mark": {"type": "tick", "color": BASE, "thickness": 2, "opacity": 0.7},
                "encoding": {"x": x, "y": y, "tooltip": [{"field": "ratio", "format": ".3f"}]},
            },
            {
                "data": {"values": intervals},
                "mark": {"type": "rule", "strokeWidth": 4, "color": BEST},
                "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "tooltip": of_interval},
            },
            {
                "data": {"values": intervals},
                "mark": {"type": "point", "filled": True, "size": 90, "color": BEST},
                "encoding": {"x": x, "y": y, "tooltip": of_interval},
            },
        ],
        height=ROW_HEIGHT * len(rows) + 10,
    )


def draw_latencies(sides: Mapping[str, Sequence[tuple[float, float]]]) -> Row:
    """Return a chart of the share of the calls that take at most some time.

    Args:
        sides: By name: pairs of a share and a latency in ns.
    """
    known = {name: [each for each in points if is_drawable(each[1])] for name, points in sides.items()}
    values = [ns for points in known.values() for _, ns in points]
    factor, unit = choose_unit("ns", values)
    rows: list[Row] = [
        {"side": name, "share": share, "latency": ns / factor}
        for name, points in known.items()
        for share, ns in points
        if 0 <= share <= 1
    ]
    return layer(
        [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
                "encoding": {
                    "x": axis_of("latency", f"latency, {unit}", [ns / factor for ns in values]),
                    "y": {
                        "field": "share",
                        "type": "quantitative",
                        "title": "share of the calls",
                        "axis": {"format": "%"},
                    },
                    "color": color_of("side", list(known)),
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 60, "opacity": 0},
                "encoding": {
                    "x": axis_of("latency", f"latency, {unit}", [ns / factor for ns in values]),
                    "y": {"field": "share", "type": "quantitative"},
                    "tooltip": [
                        {"field": "side", "title": "config"},
                        {"field": "share", "format": ".2~%"},
                        {"field": "latency", "title": f"latency, {unit}", "format": ".4~r"},
                    ],
                },
            },
        ]
    )


STAGE_COLORS = {"screening": BASE, "racing": "var(--series-2)", "confirmation": BEST}


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate on the chart of a search.

    Attributes:
        at: When it was first measured: in seconds, or its place in the order of trying.
        speedup: How many times better than the baseline it was; None where it failed.
        stage: The last stage that it reached.
        settings: Its settings.
    """

    at: float
    speedup: float | None
    stage: str
    settings: str


def draw_attempts(attempts: Sequence[Attempt], *, timed: bool, title: str) -> Row:
    """Return a chart of all candidates over time, with the best so far.

    Args:
        attempts: The candidates.
        timed: Whether `at` is in seconds.
        title: Title of the ratios.
    """
    known = sorted((each for each in attempts if each.speedup and is_drawable(each.speedup)), key=lambda each: each.at)
    rows: list[Row] = []
    best: list[Row] = []
    so_far = 1.0
    for each in known:
        assert each.speedup
        rows.append({"at": each.at, "speedup": each.speedup, "stage": each.stage, "settings": each.settings})
        so_far = max(so_far, each.speedup)
        best.append({"at": each.at, "speedup": so_far})
    last = max((each.at for each in attempts), default=0.0)
    best.append({"at": last, "speedup": so_far})
    failed = [{"at": each.at, "settings": each.settings} for each in attempts if each.speedup is None]
    x = {
        "field": "at",
        "type": "quantitative",
        "title": "time since the start, s" if timed else "candidates in the order of trying",
        "axis": {"grid": False},
    }
    y = {
        "field": "speedup",
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": pad_domain([1.0, *(row["speedup"] for row in rows)]), "nice": False},
        "axis": {"format": "~r"},
    }
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
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.75},
                "encoding": {"x": x, "y": y, "color": color, "tooltip": tooltip},
            },
            {
                "data": {"values": failed},
                "mark": {"type": "point", "shape": "cross", "filled": True, "size": 50, "color": BAD},
                "encoding": {"x": x, "y": {"value": HEIGHT - 8}, "tooltip": [{"field": "settings", "title": "failed"}]},
            },
        ]
    )


def draw_effects(effects: Sequence[tuple[str, Interval]]) -> Row:
    """Return a chart of ratios with their intervals, a row each."""
    labels = number_labels([label for label, _ in effects])
    rows: list[Row] = [
        {"label": label, "low": each.low, "ratio": each.estimate, "high": each.high}
        for label, (_, each) in zip(labels, effects, strict=True)
        if all(map(is_drawable, (each.low, each.estimate, each.high)))
    ]
    values = [1.0, *(row[end] for row in rows for end in ("low", "high"))]
    y = {"field": "label", "type": "nominal", "sort": labels, "title": None, "axis": {"grid": True}}
    x = {
        "type": "quantitative",
        "title": "factor: above 1 is better",
        "scale": {"type": "log", "domain": pad_domain(values), "nice": False},
        "axis": {"format": ".3~f", "tickCount": 6},
    }
    tooltip = [
        {"field": "label", "title": "setting"},
        {"field": "low", "format": ".3f"},
        {"field": "ratio", "title": "estimate", "format": ".3f"},
        {"field": "high", "format": ".3f"},
    ]
    color = {
        "condition": [
            {"test": "datum.low > 1", "value": GOOD},
            {"test": "datum.high < 1", "value": BAD},
        ],
        "value": BASE,
    }
    data = {"values": rows}
    return layer(
        [
            rule_at(1.0, "x", dashed=False),
            {
                "data": data,
                "mark": {"type": "rule", "strokeWidth": 3},
                "encoding": {
                    "x": {**x, "field": "low"},
                    "x2": {"field": "high"},
                    "y": y,
                    "color": color,
                    "tooltip": tooltip,
                },
            },
            {
                "data": data,
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {"x": {**x, "field": "ratio"}, "y": y, "color": color, "tooltip": tooltip},
            },
        ],
        height=ROW_HEIGHT * len(effects) + 10,
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


def draw_noise(rounds: Sequence[tuple[float, float, bool]], *, timed: bool) -> Row:
    """Return a chart of the baseline over time.

    Args:
        rounds: For each round: when it was, the baseline's figure relative to its median, and whether other processes
            used the CPUs.
        timed: Whether times are in seconds.
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
                    "x": time_axis(timed=timed),
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


def draw_foreign_use(rounds: Sequence[tuple[float, float]], *, timed: bool) -> Row:
    """Return a chart of the share of the CPUs' time that other processes used.

    Args:
        rounds: For each round: when it was, and the share.
        timed: Whether times are in seconds.
    """
    rows = [{"at": at, "share": max(share, 0.0)} for at, share in rounds if math.isfinite(share)]
    return layer(
        [
            {
                "data": {"values": rows},
                "mark": {"type": "area", "interpolate": "step", "color": UNSURE, "opacity": 0.5, "line": False},
                "encoding": {
                    "x": time_axis(timed=timed),
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
    decisions = [each for each in DECISION_COLORS if any(row["decision"] == each for row in rows)]
    x: Row = {"field": "time", "type": "temporal", "title": None, "axis": {"grid": False, "labelOverlap": True}}
    if len({row["time"] for row in rows}) == 1:
        x = {"field": "time", "type": "ordinal", "title": None, "axis": {"labelAngle": 0}}
    color = {
        "field": "decision",
        "type": "nominal",
        "scale": {"domain": decisions, "range": [DECISION_COLORS[each] for each in decisions]},
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


MOST_WIDTHS = 3.0
"""How far an axis extends beyond the estimates, in ranges of these. Intervals of few launches may be extremely wide."""


def bound_slowdowns(rows: Sequence[Row], allowed: float) -> list[float]:
    """Return the range of an axis that holds all estimates, and intervals unless they are much wider than the rest."""
    levels = [0.0, allowed, *(row["slowdown"] for row in rows)]
    low, high = min(levels), max(levels)
    space = MOST_WIDTHS * max(high - low, 1.0)
    ends = [low, high, *(row[end] for row in rows for end in ("low", "high"))]
    return [max(min(ends), low - space) - 0.2, min(max(ends), high + space) + 0.2]


def layer(layers: Sequence[Row], *, height: int = HEIGHT) -> Row:
    """Return a chart as wide as its place on the page."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "layer": [each for each in layers if each["data"]["values"]],
    }


def rule_at(value: float, channel: str, *, dashed: bool, color: str = MUTED) -> Row:
    """Return a line across the whole chart."""
    mark = {"type": "rule", "color": color, "strokeWidth": 1, **({"strokeDash": [5, 4]} if dashed else {})}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {channel: {"datum": value}}}


def time_axis(*, timed: bool) -> Row:
    """Return the horizontal axis of a chart over time."""
    title = "time since the start, s" if timed else "rounds in the order of measuring"
    return {"field": "at", "type": "quantitative", "title": title, "axis": {"grid": False}}


def axis_of(field: str, title: str, values: Sequence[float], *, padded: bool = False) -> Row:
    """Return an axis, which is logarithmic where values differ by a large factor."""
    is_log = bool(values) and max(values) / min(values) > LOG_FROM
    scale: Row = {"type": "log", "nice": False} if is_log else {"zero": False}
    if (padded or is_log) and values:
        scale |= {"domain": pad_domain(values), "nice": False}
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": {"format": "~r" if is_log else "~g"},
    }


def color_of(field: str, names: Sequence[str]) -> Row:
    """Return colors for sides: that of the baseline, which is first, and one for each other side."""
    colors = [BASE, *(SERIES[number % len(SERIES)] for number in range(len(names) - 1))]
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(names), "range": colors},
        "legend": {"title": None, "labelLimit": 300},
    }


def pad_domain(values: Sequence[float]) -> list[float]:
    """Return a range on a logarithmic axis that has some space on both sides of the values."""
    low, high = min(values), max(values)
    space = max((high / low) ** 0.06, 1.005)
    return [low / space, high * space]


def choose_unit(unit: str, values: Sequence[float]) -> tuple[float, str]:
    """Return the factor and the name of the unit that suits values in ns or bytes."""
    if unit not in UNITS:
        return 1.0, "1/s" if unit == "per_s" else ""
    middle = sorted(values)[len(values) // 2] if values else 0.0
    return next(((factor, name) for factor, name in UNITS[unit] if middle >= factor), UNITS[unit][-1])


def is_drawable(value: float) -> bool:
    """Return whether a value can be on a logarithmic axis: files may hold any number."""
    return 1e-12 < value < 1e18


def number_labels(labels: Sequence[str]) -> list[str]:
    """Return labels that differ from each other."""
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found
