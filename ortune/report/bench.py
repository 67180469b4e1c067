"""The page about the result of a bench."""

from __future__ import annotations

import shlex
from pathlib import Path

from ortune.console.bench import find_warnings
from ortune.console.verdict import format_gain
from ortune.console.widgets import format_pairs
from ortune.knobs import describe
from ortune.measure.bench import BenchResult
from ortune.measure.comparison import Row
from ortune.measure.compute_figures import is_pooled, is_total
from ortune.measure.interval import format_speedup
from ortune.measure.judge import compare
from ortune.report.blocks import Block, Cell, Chart, Code, Facts, Page, Section, Table, Text, Tone
from ortune.report.charts.ratios import Pairs, draw_pairs
from ortune.report.host_map import describe_host, draw_host
from ortune.report.shared import (
    RATIO_TITLE,
    describe_noise,
    describe_workload,
    list_unrecorded,
    show_distributions,
    tabulate_figures,
    tabulate_limits,
    tone_of,
    workload_options,
)
from ortune.workload import FIGURES


def make_page(result: BenchResult) -> Page:
    """Return the page about a bench."""
    verdict, tone = conclude(result)
    sections = (
        Section(title="Result", blocks=show_result(result)),
        Section(title="Figures", blocks=show_figures(result)),
        Section(
            title="Latency",
            blocks=show_distributions({row.name: row.latencies for row in result.rows if row.latencies}),
        ),
        Section(title="Host", blocks=show_host(result)),
        Section(title="Noise", blocks=(describe_noise(result.noise),)),
        Section(title="Reproduce", blocks=show_commands(result)),
    )
    return Page(
        title=f"{Path(result.model.path).name}: bench",
        verdict=verdict,
        tone=tone,
        lead=list_lead(result),
        sections=tuple(section for section in sections if section.blocks),
    )


def conclude(result: BenchResult) -> tuple[str, Tone]:
    """Return the result in a line, and how it is to be taken."""
    known = [(row, row.speedup) for row in result.rows if row.speedup]
    if len(result.rows) == 1:
        return "Only the baseline was measured", "plain"
    if not known:
        return f"No config could be compared with the {result.rows[0].name}", "unsure"
    title = FIGURES[result.objective].title
    better = [(row, speedup) for row, speedup in known if compare(speedup, 1) == "above"]
    if better:
        row, best = max(better, key=lambda pair: pair[1].estimate)
        n_calls = row.few_calls.n_calls if row.few_calls else 0
        gain = format_gain(result.objective, best.estimate, "item" if result.workload.batches else "call", n_calls)
        return f"{row.name}: {gain} the {result.rows[0].name}", "good"
    if all(compare(speedup, 1) == "below" for _, speedup in known):
        return f"The {result.rows[0].name} is the best in {title}", "good"
    return f"No config is clearly better than the {result.rows[0].name} in {title}", "unsure"


def list_lead(result: BenchResult) -> tuple[str, ...]:
    """Return what the verdict rests on."""
    speedup = next((row.speedup for row in result.rows if row.speedup), None)
    if speedup is None:
        return ()
    together = " The intervals hold simultaneously." if sum(1 for row in result.rows if row.speedup) > 1 else ""
    pairs = format_pairs(speedup.n_pairs, speedup.n_launches)
    return (f"95% confidence intervals from {pairs} of each config.{together}",)


def show_result(result: BenchResult) -> tuple[Block, ...]:
    """Return how the configs compare."""
    blocks: list[Block] = [Text(text=text, tone="unsure") for text in find_warnings(result)]
    pairs = [
        Pairs(label=row.name, ratios=tuple(ratio for launch in row.pairs for ratio in launch), interval=row.speedup)
        for row in result.rows[1:]
        if row.speedup
    ]
    if pairs:
        blocks.append(
            Chart(
                name="ratios",
                title=f"Ratio to the {result.rows[0].name}: {FIGURES[result.objective].title}",
                spec=draw_pairs(pairs, RATIO_TITLE),
                note=f"Ticks are {describe_ticks(result)}. Points and lines are estimates and their intervals.",
            )
        )
    blocks.append(tabulate_rows(result))
    return tuple(blocks)


def describe_ticks(result: BenchResult) -> str:
    """Return what the ratios of single measurements are of."""
    if is_pooled(result.objective) or is_total(result.objective):
        return "launches: the figure needs all calls of one"
    if result.noise.one_at_a_time:
        return "pairs of blocks, measured one config after the other"
    return "pairs of blocks measured right after each other"


def tabulate_rows(result: BenchResult) -> Table:
    """Return a table of the configs with their ratios."""
    rows = []
    for number, row in enumerate(result.rows, 1):
        text, tone = describe_row(row)
        key = -1.0
        if row.speedup:
            key = row.speedup.estimate
        elif number == 1:
            key = 1.0
        rows.append(
            (
                Cell(str(number), key=number),
                Cell(row.name),
                Cell(text, key=key, tone=tone),
                Cell(describe(row.config)),
            )
        )
    return Table(
        columns=("", "config", f"{result.objective} ratio", "settings"), rows=tuple(rows), numeric=(2,), sortable=True
    )


def describe_row(row: Row) -> tuple[str, Tone]:
    """Return the ratio of a config, or why there is none."""
    if row.failure:
        return f"{row.failure.title}: {row.failure.message}", "bad"
    if row.speedup is None:
        return "", "plain"
    return format_speedup(row.speedup), tone_of(row.speedup)


def show_figures(result: BenchResult) -> tuple[Block, ...]:
    """Return the figures of all configs, and the limits."""
    known = [(row.name, row.summary) for row in result.rows if row.summary]
    if not known:
        return ()
    names, summaries = zip(*known, strict=True)
    limits = tabulate_limits([(row.name, row.limits) for row in result.rows])
    return (tabulate_figures(names, summaries, result.workload), *([limits] if limits else []))


def show_host(result: BenchResult) -> tuple[Block, ...]:
    """Return the host, with the CPUs on which the threads of each config ran, and those that they were pinned to."""
    blocks: list[Block] = [describe_host(result.host, result.runtime)]
    if result.topology is not None:
        blocks += [
            draw_host(row.name, result.topology, result.usable, row.session, row.places)
            for row in result.rows
            if row.session
        ]
    return tuple(blocks)


def show_commands(result: BenchResult) -> tuple[Block, ...]:
    """Return how to repeat the bench. Configs that came from records are named as they were."""
    model = Facts(facts=(("model", result.model.path), ("digest", result.model.digest)))
    blocks: list[Block] = [describe_workload(result.workload), model]
    if result.workload.program:
        return tuple(blocks)
    words = ["ortune bench", shlex.quote(result.model.path)]
    names = [row.name for row in result.rows[1:] if ", batch " not in row.name]
    words += [shlex.quote(name) for name in names if "=" not in name]
    words += [f"--set {shlex.quote(name)}" for name in names if "=" in name]
    words += workload_options(result.workload)
    blocks.append(Code(title="Measure again", text=" ".join(words)))
    blocks += [Text(text=text) for text in list_unrecorded(result.workload)]
    return tuple(blocks)
