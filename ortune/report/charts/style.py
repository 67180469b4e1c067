"""What all charts have in common: colors, axes, labels.

Charts are specifications in Vega-Lite. Colors are CSS variables of the page, so that a chart follows the colors of the
page without being drawn again. Names of fields are fixed, and texts from files are only values of the data: Vega
evaluates expressions in other places.

Source: https://vega.github.io/vega-lite/docs/
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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


def layer(layers: Sequence[Row], *, height: int = HEIGHT) -> Row:
    """Return a chart as wide as its place on the page."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "layer": [spec for spec in layers if spec["data"]["values"]],
    }


def rule_at(value: float, channel: str, *, dashed: bool, color: str = MUTED) -> Row:
    """Return a line across the whole chart."""
    mark = {"type": "rule", "color": color, "strokeWidth": 1, **({"strokeDash": [5, 4]} if dashed else {})}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {channel: {"datum": value}}}


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
        "axis": {"format": "~r" if is_log else "~g", "tickCount": 7},
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


STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Distances of the labels on a logarithmic axis of ratios that covers less than a factor of ten."""

MOST_TICKS = 8


def choose_ticks(domain: Sequence[float]) -> list[float]:
    """Return where a logarithmic axis of ratios has labels. Vega has none between the powers of ten of short axes."""
    low, high = domain
    if high / low > 10:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        kept = [tick for tick in ticks if low <= tick <= high]
        return kept if len(kept) <= MOST_TICKS else [tick for tick in kept if math.log10(tick).is_integer()]
    step = next((step for step in STEPS if (high - low) / step <= MOST_TICKS), STEPS[-1])
    return [round(place * step, 6) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def ratio_axis(values: Sequence[float], title: str) -> Row:
    """Return a logarithmic axis of ratios, without its field."""
    domain = pad_domain([1.0, *values])
    return {
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"values": choose_ticks(domain), "format": "~g"},
    }
