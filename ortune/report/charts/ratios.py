"""Charts of ratios with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ortune.measure.interval import Interval
from ortune.report.charts.style import (
    BAD,
    BASE,
    BEST,
    GOOD,
    ROW_HEIGHT,
    UNSURE,
    Row,
    is_drawable,
    layer,
    number_labels,
    ratio_axis,
    rule_at,
)

COUNTED, LEFT_OUT = "counts", "left out"
"""What tooltips say of a pair, and of one that the evaluation left out."""


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a chart of ratios.

    Attributes:
        label: Its name.
        ratios: The ratio of each pair that counts.
        left_out: The ratio of each pair that does not count.
        interval: The interval of those that count, or None.
    """

    label: str
    ratios: tuple[float, ...] = ()
    left_out: tuple[float, ...] = ()
    interval: Interval | None = None


def draw_pairs(rows: Sequence[Pairs], title: str) -> Row:
    """Return a chart of the ratio of each pair, and of the intervals that they support."""
    labels = number_labels([row.label for row in rows])
    points: list[Row] = []
    for label, row in zip(labels, rows, strict=True):
        for ratios, state in ((row.ratios, COUNTED), (row.left_out, LEFT_OUT)):
            points += [{"label": label, "ratio": ratio, "state": state} for ratio in ratios if is_drawable(ratio)]
    intervals: list[Row] = [
        {"label": label, "low": row.interval.low, "high": row.interval.high, "ratio": row.interval.estimate}
        for label, row in zip(labels, rows, strict=True)
        if row.interval and all(map(is_drawable, (row.interval.low, row.interval.high, row.interval.estimate)))
    ]
    ends = [interval[end] for interval in intervals for end in ("low", "high")]
    values = [*(point["ratio"] for point in points), *ends]
    y = {"field": "label", "type": "nominal", "sort": labels, "title": None, "axis": {"grid": True}}
    x = {**ratio_axis(values, title), "field": "ratio"}
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
                "mark": {"type": "tick", "thickness": 2, "opacity": 0.7},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {"condition": {"test": f"datum.state === '{LEFT_OUT}'", "value": UNSURE}, "value": BASE},
                    "tooltip": [{"field": "ratio", "format": ".3f"}, {"field": "state"}],
                },
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


def draw_effects(effects: Sequence[tuple[str, Interval]]) -> Row:
    """Return a chart of ratios with their intervals, a row each."""
    labels = number_labels([label for label, _ in effects])
    rows: list[Row] = [
        {"label": label, "low": interval.low, "ratio": interval.estimate, "high": interval.high}
        for label, (_, interval) in zip(labels, effects, strict=True)
        if all(map(is_drawable, (interval.low, interval.estimate, interval.high)))
    ]
    values = [row[end] for row in rows for end in ("low", "high")]
    y = {"field": "label", "type": "nominal", "sort": labels, "title": None, "axis": {"grid": True}}
    x = ratio_axis(values, "factor: above 1 is better")
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
