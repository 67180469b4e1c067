"""Pieces that the pages of several kinds have in common."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ortune.console.widgets import (
    LIMIT_STATES,
    format_bytes,
    format_count,
    format_duration,
    format_figure,
    format_figures,
)
from ortune.measure.comparison import Latencies, LimitCheck, Noise, Speedup, Summary
from ortune.measure.interval import Interval
from ortune.measure.judge import Kept, Place, compare
from ortune.numbers import format_ratio
from ortune.report.blocks import Cell, Chart, Facts, Table, Tone
from ortune.report.charts.latencies import draw_latencies, draw_tails
from ortune.workload import APPROXIMATE_TOLERANCE, FIGURES, Load, Workload, list_figures
from ortune.workload.data import format_shape
from ortune.workload.workload import QUANTIZED_TOLERANCE, TF32_TOLERANCE, Tolerance

USUAL_TOLERANCES = (
    Tolerance(),
    QUANTIZED_TOLERANCE,
    TF32_TOLERANCE,
    Tolerance(relative=TF32_TOLERANCE.relative, absolute=QUANTIZED_TOLERANCE.absolute),
)
"""Those that a search uses without an option: of models in floats and in integers, on CPUs and on GPUs with TF32."""

RATIO_TITLE = "ratio to the default: above 1 is better"

LIMIT_TONES: dict[Kept, Tone] = {"yes": "good", "no": "bad", "unsure": "unsure"}

RATIO_TONES: dict[Place, Tone] = {"above": "good", "below": "bad", "unclear": "plain"}


def tone_of(ratio: Interval | Speedup) -> Tone:
    """Return the tone of a ratio: good or bad only if the whole interval is."""
    return RATIO_TONES[compare(ratio, 1)]


def tabulate_figures(names: Sequence[str], summaries: Sequence[Summary], workload: Workload) -> Table:
    """Return a table with a column for each side, and a row for each figure.

    Args:
        names: Names of the sides.
        summaries: Their figures.
        workload: What was measured.
    """
    unit = "item" if workload.batches else "call"
    figures = list_figures("search", workload.figures)
    rows = [(figure.title, format_figures(figure, summaries)) for figure in figures if figure.is_latency]
    if all(side.worst_p99_ns is not None for side in summaries):
        rows.append(("p99 latency, worst process", [format_duration(side.worst_p99_ns or 0) for side in summaries]))
    for figure in figures:
        if not figure.is_latency and all(side.get_figure(figure.name) is not None for side in summaries):
            rows.append((figure.name_row(unit), format_figures(figure, summaries)))
        if figure.name == "cpu" and all(side.utilization is not None for side in summaries):
            rows.append(("utilization", [f"{side.utilization or 0:.0%}" for side in summaries]))
        if figure.name == "memory" and any(side.gpu_bytes is not None for side in summaries):
            memory = ["" if side.gpu_bytes is None else format_bytes(side.gpu_bytes) for side in summaries]
            rows.append(("GPU memory", memory))
    rows.append(("calls measured", [str(side.n_calls) for side in summaries]))
    return Table(
        columns=("", *names),
        rows=tuple((Cell(title), *(Cell(value) for value in values)) for title, values in rows),
        numeric=tuple(range(1, len(names) + 1)),
    )


def show_distributions(sides: Mapping[str, Latencies], prefix: str = "") -> tuple[Chart, ...]:
    """Return charts of the distributions of the latency: of nearly all calls, and of the slowest.

    Args:
        sides: The distribution of each side, by its name.
        prefix: What the names of the charts start with.
    """
    if not sides:
        return ()
    points = {name: list(zip(side.shares, side.ns, strict=True)) for name, side in sides.items()}
    slowest = "; ".join(
        f"{name}: {format_count(side.n_calls, 'call')}, the slowest {format_duration(side.ns[-1] if side.ns else 0)}"
        for name, side in sides.items()
    )
    title = "Latency of 99% of the calls"
    charts = [Chart(name=f"{prefix}latencies", title=title, spec=draw_latencies(points), note=slowest)]
    if tails := draw_tails(points):
        charts.append(Chart(name=f"{prefix}tails", title="Latency of the slowest calls", spec=tails))
    return tuple(charts)


def tabulate_limits(sides: Sequence[tuple[str, Sequence[LimitCheck]]]) -> Table | None:
    """Return a table of the limits with a column for each side that was checked, or None without limits."""
    checked = [(name, checks) for name, checks in sides if checks]
    if not checked:
        return None
    limits = checked[0][1]
    rows = []
    for place, limit in enumerate(limits):
        cells = [Cell(limit.limit)]
        for _, checks in checked:
            check = checks[place] if place < len(checks) else None
            cells.append(Cell(_format_check(check), tone=LIMIT_TONES[check.kept]) if check else Cell(""))
        rows.append(tuple(cells))
    return Table(columns=("limit", *(name for name, _ in checked)), rows=tuple(rows), title="Limits")


def _format_check(check: LimitCheck) -> str:
    value = format_ratio(check.value) if check.relative else format_figure(check.figure, check.value)
    return f"{value} {LIMIT_STATES[check.kept][0]}"


def describe_noise(noise: Noise, counted: str = "result") -> Facts:
    """Return how quiet the host was.

    Args:
        noise: CPU use by other processes.
        counted: What rests on the blocks of a quiet or of a busy host, in a word; empty if there is nothing.
    """
    facts = [
        ("blocks", f"{noise.n_blocks}, of which {noise.n_contended} while other processes used the CPUs"),
        ("measured again", format_count(noise.n_repeated, "block")),
    ]
    if counted:
        blocks = {"unknown": "all blocks"}.get(noise.regime, f"{noise.regime} blocks")
        facts.append((f"the {counted} rests on", blocks))
    if noise.foreign_share_mean is not None and noise.foreign_share_p90 is not None:
        facts.append(
            (
                "CPU time of others",
                f"{noise.foreign_share_mean:.1%} on average, 90th percentile {noise.foreign_share_p90:.1%}",
            )
        )
    if noise.drift is not None:
        facts.append(("racing vs. confirmation", format_ratio(noise.drift)))
    return Facts(facts=tuple(facts))


def describe_workload(workload: Workload) -> Facts:
    """Return what was measured."""
    facts = [
        ("load", str(workload.load)),
        ("objective", ", ".join(FIGURES[name].title for name in workload.objectives)),
    ]
    if workload.limits:
        facts.append(("limits", ", ".join(limit.text for limit in workload.limits)))
    if workload.batches:
        facts.append(("items in a call", ", ".join(map(str, workload.batches))))
    if workload.sustained:
        facts.append(("speed", "what the host sustains: each config alone, after a minute of calls"))
    inputs = [f"{name}: {data} ({data.origin})" for name, data in workload.inputs.items()]
    facts += [("inputs" if number == 0 else "", text) for number, text in enumerate(inputs)]
    if workload.program:
        facts.append(("program", workload.program.program))
    if workload.background_load:
        facts.append(("background load", workload.background_load.program))
    return Facts(facts=tuple(facts))


def load_options(load: Load) -> list[str]:
    """Return the options that describe a load on the command line."""
    options = []
    if load.clients > 1 and load.clients != load.sessions:
        options.append(f"--clients {load.clients}")
    if load.sessions > 1:
        options.append(f"--sessions {load.sessions}")
    if load.processes > 1:
        options.append(f"--processes {load.processes}")
    if load.pinned:
        options.append("--pin-processes")
    if load.rate_per_s is not None:
        options.append(f"--rate {load.rate_per_s:g}/s")
    if load.arrivals == "periodic":
        options.append("--arrivals periodic")
    return options


def workload_options(workload: Workload) -> list[str]:
    """Return the options that describe a workload on the command line."""
    options = load_options(workload.load)
    if len(workload.objectives) > 1:
        options.append(f"--pareto {','.join(workload.objectives)}")
    else:
        # Without it, the host decides.
        options.append(f"--objective {workload.objectives[0]}")
    options += [f"--limit {shlex.quote(limit.text)}" for limit in workload.limits]
    if workload.batches:
        options.append(f"--batch {','.join(map(str, workload.batches))}")
    if workload.sustained:
        options.append("--sustained")
    for name, data in workload.inputs.items():
        # Arrays of files, named by their origin, have their own shapes. A single number has no sizes.
        if len(data.shapes) == 1 and data.shapes[0] and not data.origin.startswith("from "):
            options.append(f"--shape {shlex.quote(f'{name}={format_shape(data.shapes[0])}')}")
    if workload.tolerance == APPROXIMATE_TOLERANCE:
        options.append("--allow-approximate")
    return options


def tolerance_options(tolerance: Tolerance) -> list[str]:
    """Return the options for a tolerance that none of the commands chooses without them."""
    if tolerance in (*USUAL_TOLERANCES, APPROXIMATE_TOLERANCE):
        return []
    return [f"--rtol {tolerance.relative:g}", f"--atol {tolerance.absolute:g}"]


def list_unrecorded(workload: Workload) -> list[str]:
    """Return what has to be added to a command to reproduce a measurement, because files do not hold it."""
    notes = []
    for name, data in workload.inputs.items():
        distinct = list(dict.fromkeys(data.shapes))
        if len(distinct) > 1 and not data.origin.startswith("from "):
            shapes = ", ".join(map(format_shape, distinct))
            notes.append(f"{name} had several shapes: {shapes}. Give their sizes with --dim.")
    if workload.background_load:
        notes.append(f"Add --beside with the command of the background load ({workload.background_load.program}).")
    origins = {data.origin for data in workload.inputs.values()}
    if workload.inputs:
        notes.append(f"The inputs came from: {', '.join(sorted(origins))}. Name files of inputs with --inputs.")
    return notes
