"""Charts of the distribution of the latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortune.report.charts.style import Row, axis_of, choose_unit, color_of, is_drawable, layer

DRAWN_SHARE = 0.99
"""Share of the calls up to which latencies are drawn on the chart of all calls: the slowest would compress the rest."""


TAIL_SHARE = 0.9
"""Share of the calls from which latencies are drawn on the chart of the slowest calls."""


FEWEST_IN_TAIL = 8
"""Points of a distribution from which its tail is drawn."""


def draw_latencies(sides: Mapping[str, Sequence[tuple[float, float]]]) -> Row:
    """Return a chart of the share of the calls that take at most some time.

    Args:
        sides: By name: pairs of a share and a latency in ns.
    """
    kept = {name: [(share, ns) for share, ns in points if share <= DRAWN_SHARE] for name, points in sides.items()}
    y = {"field": "share", "type": "quantitative", "title": "share of the calls", "axis": {"format": "%"}}
    return draw_distributions(kept, y, "share", ".2~%")


def draw_tails(sides: Mapping[str, Sequence[tuple[float, float]]]) -> Row | None:
    """Return a chart of the share of the calls that take longer than some time, or None if there are too few calls.

    Args:
        sides: By name: pairs of a share and a latency in ns.
    """
    kept = {
        name: [(1 - share, ns) for share, ns in points if TAIL_SHARE <= share < 1] for name, points in sides.items()
    }
    if any(len(points) < FEWEST_IN_TAIL or points[0][0] < 10 * points[-1][0] for points in kept.values()):
        return None
    y = {
        "field": "share",
        "type": "quantitative",
        "title": "share that takes longer",
        "scale": {"type": "log"},
        "axis": {"format": "~%", "tickCount": 4},
    }
    return draw_distributions(kept, y, "share that takes longer", ".3~%")


def draw_distributions(
    sides: Mapping[str, Sequence[tuple[float, float]]], y: Row, share_title: str, share_format: str
) -> Row:
    """Return a chart of shares of the calls and latencies.

    Args:
        sides: By name: pairs of a share and a latency in ns.
        y: The axis of the shares.
        share_title: What shares are, for tooltips.
        share_format: Format of shares in tooltips.
    """
    known = {name: [(share, ns) for share, ns in points if is_drawable(ns)] for name, points in sides.items()}
    factor, unit = choose_unit("ns", [ns for points in known.values() for _, ns in points])
    rows: list[Row] = [
        {"side": name, "share": share, "latency": ns / factor}
        for name, points in known.items()
        for share, ns in points
        if 0 <= share <= 1
    ]
    x = axis_of("latency", f"latency, {unit}", [row["latency"] for row in rows], padded=True)
    data = {"values": rows}
    return layer(
        [
            {
                "data": data,
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
                "encoding": {"x": x, "y": y, "color": color_of("side", list(known))},
            },
            {
                "data": data,
                "mark": {"type": "point", "size": 60, "opacity": 0},
                "encoding": {
                    "x": x,
                    "y": y,
                    "tooltip": [
                        {"field": "side", "title": "config"},
                        {"field": "share", "title": share_title, "format": share_format},
                        {"field": "latency", "title": f"latency, {unit}", "format": ".4~r"},
                    ],
                },
            },
        ]
    )
