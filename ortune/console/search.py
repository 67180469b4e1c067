"""What a search shows: what was detected, where it stands, and the verdict."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from ortune.compare.limits import is_overloaded
from ortune.compare.results import LimitCheck, Summary
from ortune.console.text import duration, interval, per_second, plural, ratio, size
from ortune.host.default_pool import default_pool
from ortune.knobs import DEFAULT, KNOBS, Config, describe
from ortune.record.schema import Record
from ortune.tuning.outcome import Progress as Report
from ortune.tuning.request import PreparedSearch
from ortune.workload import FIGURES, Feed, Load

PLAIN_INTERVAL_S = 5.0
LIVE_INTERVAL_S = 0.1

LOG_WIDTH = 200

WIDEST = 100

MOST_SHAPES = 4
"""Shapes of an input that are shown one by one."""

DRIFT_WORTH_TELLING = 1.25
"""Disagreement of race and duel that chance and the choice of the winner do not explain."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that is not wider than people like to read."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # A log has no edge: nothing is cut off there.
        return Console(stderr=stderr, highlight=False, width=LOG_WIDTH)
    if console.width > WIDEST:
        console = Console(stderr=stderr, highlight=False, width=WIDEST)
    return console


def show_setting(console: Console, setting: PreparedSearch) -> None:
    """Print what was detected, what was guessed, and what is searched for."""
    grid = make_grid()
    add_subject(grid, setting)
    n_candidates = len(setting.space.candidates)
    names = ", ".join(dimension.knob.title for dimension in setting.space.dimensions if len(dimension.choices) > 1)
    known = f"; {plural(len(setting.hints), 'hint')} from earlier searches" if setting.hints else ""
    grid.add_row("space", f"{n_candidates} candidates  [dim]{names}{known}[/]")
    goal = setting.request.goal
    parts = [" and ".join(FIGURES[name].title for name in goal.objectives)]
    if goal.limits:
        parts.append("within " + ", ".join(limit.text for limit in goal.limits))
    if setting.request.budget_s is not None:
        parts.append(f"{setting.request.budget_s:g} s")
    grid.add_row("search", escape("; ".join(parts)))
    console.print(grid)
    show_caveats(console, setting)


def add_subject(grid: Table, setting: PreparedSearch) -> None:
    """Add what is measured: the model, its inputs, the host and the load."""
    model, host = setting.model, setting.host
    traits = model.traits
    facts = [
        size(sum(file.size_bytes for file in model.files)),
        f"opset {traits.opset}",
        plural(traits.n_nodes, "node"),
    ]
    if traits.width > 1:
        facts.append(f"up to {traits.width} side by side")
    if traits.quantized:
        facts.append("quantized")
    if traits.control_flow:
        facts.append("control flow")
    grid.add_row("model", f"{escape(Path(model.path).name)}  [dim]{', '.join(facts)}[/]")
    add_inputs(grid, setting.feed)
    usable, cores = len(host.limits.usable), len(host.usable_cores)
    cpu = [plural(cores, "core")]
    if usable != cores:
        cpu.append(plural(usable, "hardware thread"))
    nodes = sum(1 for node in host.topology.numa_nodes if node.cpus)
    if nodes > 1:
        cpu.append(f"{nodes} NUMA nodes")
    if usable < len(host.topology.online):
        cpu.append(f"of {len(host.topology.online)} CPUs on the host")
    cpu.append(f"quota {host.limits.quota.cpus:g} CPUs" if host.limits.quota else "no quota")
    grid.add_row("host", f"{escape(host.cpu_model or host.machine)}  [dim]{', '.join(cpu)}[/]")
    add_load(grid, setting.request.goal.load, setting.feed)
    if setting.request.beside:
        grid.add_row("beside", escape(setting.request.beside))
    base = setting.space.base
    if not base.is_default:
        grid.add_row("always", f"{escape(describe(base))}  [dim]in every candidate, the default too[/]")


def add_inputs(grid: Table, feed: Feed) -> None:
    """Add what is fed."""
    for name in feed.tensors:
        data = feed.describe_input(name)
        shown = str(data) if len(data.shapes) <= MOST_SHAPES else f"{data.dtype}, {len(data.shapes)} samples"
        grid.add_row("input", f"{escape(name)}  {escape(shown)}  [dim]{escape(data.origin)}[/]")


def add_load(grid: Table, load: Load, feed: Feed) -> None:
    """Add how calls arrive."""
    samples = len(feed.samples)
    facts: list[str] = [load.scenario]
    if samples > 1:
        facts.append(f"{samples} samples in turn" if feed.n_cases == 1 else f"{samples} shapes in turn")
    grid.add_row("load", f"{load}  [dim]{', '.join(facts)}[/]")


def show_caveats(console: Console, setting: PreparedSearch) -> None:
    """Print what ONNX Runtime's default does wrong here, and which sizes were guessed."""
    for name, fault in setting.faults.items():
        console.print(Text(f"without {name}: {fault}", "yellow"))
    for fault in default_pool(setting.host).faults:
        console.print(Text(f"ORT default misbehaves here: {fault}", "yellow"))
    show_guesses(console, setting.feed)
    console.print()


def show_guesses(console: Console, feed: Feed) -> None:
    """Print which sizes were guessed."""
    guessed = [f"{name}: {text}" for name, tensor in feed.tensors.items() for text in tensor.guessed]
    if guessed:
        console.print(Text(f"guessed {'; '.join(guessed)}. Set them with --dim, --shape or --inputs.", "yellow"))


def make_grid() -> Table:
    """Return a table of names and values, without lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", justify="right", no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    return grid


class SearchProgress:
    """Shows where the search stands: one live line on a terminal, now and then a plain line elsewhere.

    Nothing is drawn by a thread in the background: a block that is being measured must not share its CPU with us.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live = console.is_terminal and not quiet
        self._last_s = -math.inf
        self._stage = ""
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("[cyan]{task.description:>8}[/]", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=14, table_column=Column(no_wrap=True, min_width=14)),
            TextColumn("{task.completed:.0f}/{task.total:.0f}", table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("[dim]{task.fields[left]}[/]", table_column=Column(no_wrap=True, min_width=10)),
            TextColumn("{task.fields[best]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            auto_refresh=False,
            expand=True,
        )

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._finish_task()
            self._bar.stop()

    def __call__(self, report: Report) -> None:
        """Show a report."""
        if self._quiet:
            return
        for note in report.notes:
            self._console.print(Text(note, "yellow"), soft_wrap=not self._live)
        now_s = time.monotonic()
        new_stage = report.stage != self._stage
        self._stage = report.stage
        if self._live:
            self._draw(report, new_stage, force=now_s - self._last_s > LIVE_INTERVAL_S)
        elif new_stage or now_s - self._last_s > PLAIN_INTERVAL_S or report.done == report.total:
            left = f"{report.left_s:.0f} s left"
            self._console.print(
                f"{report.stage} {report.done}/{report.total}, {left}, "
                f"{'' if report.stage == 'confirmation' else 'best '}so far {_best(report)}",
                soft_wrap=True,
                markup=False,
            )
        else:
            return
        self._last_s = now_s

    def _draw(self, report: Report, new_stage: bool, *, force: bool) -> None:
        if new_stage:
            self._finish_task()
            self._task = self._bar.add_task(report.stage, total=report.total, left="", best="")
        assert self._task is not None
        self._bar.update(
            self._task,
            completed=report.done,
            total=max(report.total, report.done),
            left=f"{report.left_s:.0f} s left",
            best=escape(_best(report)),
        )
        if new_stage or force or report.done == report.total:
            self._bar.refresh()

    def _finish_task(self) -> None:
        if self._task is not None:
            task = self._bar.tasks[-1]
            self._bar.update(self._task, total=task.completed, left="")
            self._bar.refresh()


def _best(report: Report) -> str:
    if report.best is None or report.speedup is None:
        return "nothing yet"
    bounds = ""
    if math.isfinite(report.speedup.low) and math.isfinite(report.speedup.high):
        bounds = f" {interval(report.speedup.low, report.speedup.high)}"
    return f"{ratio(report.speedup.estimate)}{bounds}  {report.best.label}"


def show_verdict(console: Console, record: Record, output: Path | None, kept: Path | None = None) -> None:
    """Print the verdict, the figures that it rests on, and what to do next.

    Args:
        console: Where.
        record: What was found.
        output: Where it was written, or None.
        kept: Where the record is that was there before and proves more, or None.
    """
    evidence = record.evidence
    speedup = evidence.speedup
    console.print()
    console.print(headline(record))
    if record.search.interrupted and evidence.verdict == "inconclusive":
        pass  # the headline says it all
    elif evidence.verdict not in {"faster", "trade_off"} or (evidence.baseline and is_overloaded(evidence.baseline)):
        console.print(Text(f"{evidence.reason[0].upper()}{evidence.reason[1:]}.", "dim"))
    if evidence.best_so_far:
        best = evidence.best_so_far
        console.print(f"Best so far, unproven: {ratio(best.speedup)} {describe(best.config)}", markup=False)
    if speedup:
        launches = plural(speedup.restarts, "fresh launch", "fresh launches")
        subject = "" if recommends(record) or not evidence.winner else f" for {describe(evidence.winner.config)}"
        console.print(
            f"{ratio(speedup.estimate)} {interval(speedup.low, speedup.high)} at {speedup.confidence:.0%}{subject}, "
            f"{speedup.pairs} paired blocks over {launches} of each side",
            markup=False,
        )
    console.print()
    if evidence.front:
        show_front(console, record)
    elif evidence.winner and evidence.baseline:
        if recommends(record):
            console.print(settings_table(record.config))
            console.print()
        console.print(figures_table(evidence.baseline, evidence.winner, proven=recommends(record)))
        console.print()
        if evidence.limits:
            console.print(limits_table(evidence.baseline_limits, evidence.limits, proven=recommends(record)))
            console.print()
    if evidence.closest:
        console.print(f"Closest: {describe(evidence.closest.config)}", markup=False)
    for warning in _warnings(record):
        console.print(Text(warning, "yellow"))
    if output is not None:
        show_written(console, record, output, kept)


def show_written(console: Console, record: Record, output: Path, kept: Path | None) -> None:
    """Print where the record is, and what to do next."""
    grid = make_grid()
    grid.add_row("written", escape(str(output)))
    if kept is not None:
        grid.add_row("kept", f"{escape(str(kept))}  [dim]the record that was there, as it proves more[/]")
    if not record.config.is_default:
        command = f"ortune apply {shlex.quote(str(output))} {shlex.quote(record.model.path)}"
        grid.add_row("next", f"[bold]{escape(command)}[/]")
    console.print(grid)


def name_of_base(record: Record) -> str:
    """Return what candidates were compared with: ONNX Runtime's default, unless the user wanted something else."""
    base = base_of(record)
    return "ONNX Runtime's default" if base.is_default else f"the default with {escape(describe(base))}"


def base_of(record: Record) -> Config:
    """Return what the candidates were compared with."""
    if record.evidence.baseline:
        return record.evidence.baseline.config
    return DEFAULT if recommends(record) else record.config


def recommends(record: Record) -> bool:
    """Return whether the duel's challenger is recommended."""
    return record.evidence.verdict in {"faster", "within_limits"}


def headline(record: Record) -> str:
    """Return the verdict in a line."""
    evidence = record.evidence
    if evidence.verdict == "faster" and evidence.speedup:
        return f"[bold green]{gain(record.workload.objectives[0], evidence.speedup.estimate)}[/] {name_of_base(record)}"
    if evidence.verdict == "default_is_best":
        name = name_of_base(record)
        return f"[bold green]{name[0].upper()}{name[1:]} is best[/] here: keep it"
    if evidence.verdict == "within_limits":
        return f"[bold green]Within the limits[/], which {name_of_base(record)} breaks"
    if evidence.verdict == "infeasible":
        return "[bold red]Nothing keeps to the limits[/]: the default stays recommended"
    if evidence.verdict == "overload":
        return "[bold red]Overload[/]: no candidate keeps up with the rate"
    if evidence.verdict == "trade_off":
        return f"[bold green]A choice of {len(evidence.front)}[/]: none is better than another in everything"
    if record.search.interrupted:
        return "[bold yellow]Interrupted[/]: nothing is proven, the default stays recommended"
    return "[bold yellow]Inconclusive[/]: the default stays recommended"


def gain(objective: str, estimate: float) -> str:
    """Return what a ratio means for an objective, as the beginning of a sentence that ends with what is bettered."""
    return {
        "throughput": f"{ratio(estimate)} the throughput of",
        "cpu": f"{ratio(estimate)} less CPU time a call than",
        "memory": f"{ratio(estimate)} less memory than",
        "load-time": f"{ratio(estimate)} faster to create than",
    }.get(objective, f"{ratio(estimate)} faster{'' if objective == 'p50' else f' ({objective})'} than")


def settings_table(config: Config) -> Table:
    """Return the settings that differ from the default."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("setting")
    table.add_column("default", style="dim")
    table.add_column("tuned", style="bold")
    for name, value in config.settings.items():
        knob = KNOBS.get(name)
        table.add_row(name, str(knob.default) if knob and knob.default != "" else "not set", escape(str(value)))
    return table


def figures_table(baseline: Summary, winner: Summary, *, proven: bool) -> Table:
    """Return both sides of the duel, figure by figure."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", min_width=16)
    table.add_column("default", justify="right", style="dim", min_width=9)
    table.add_column("tuned" if proven else "challenger", justify="right", style="bold" if proven else "")
    sides = (baseline, winner)
    for name, field in (("p50", "p50_ns"), ("p90", "p90_ns"), ("p99", "p99_ns"), ("mean", "mean_ns")):
        table.add_row(name, *(duration(getattr(side, field)) for side in sides))
    table.add_row("throughput", *(per_second(side.calls_per_s) for side in sides))
    table.add_row("CPU time a call", *(duration(side.cpu_ns_per_call) for side in sides))
    if all(side.cpu_ns_between_calls is not None for side in sides):
        table.add_row("  between calls", *(duration(side.cpu_ns_between_calls or 0) for side in sides))
    if all(side.utilization is not None for side in sides):
        table.add_row("utilization", *(f"{side.utilization or 0:.0%}" for side in sides))
    if all(side.peak_bytes is not None for side in sides):
        table.add_row("peak memory", *(size(side.peak_bytes or 0) for side in sides))
    if any(side.gpu_bytes is not None for side in sides):
        table.add_row("GPU memory", *("-" if side.gpu_bytes is None else size(side.gpu_bytes) for side in sides))
    table.add_row("session creation", *(duration(side.load_ns) for side in sides))
    builds = [side.session.build_s for side in sides]
    if any(build_s is not None for build_s in builds):
        table.add_row("compiled once in", *("-" if build_s is None else duration(1e9 * build_s) for build_s in builds))
    return table


KEPT = {"yes": "[green]kept[/]", "no": "[red]broken[/]", "unsure": "[yellow]uncertain[/]"}


def limits_table(baseline: Sequence[LimitCheck], winner: Sequence[LimitCheck], *, proven: bool) -> Table:
    """Return whether both sides keep to the limits."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("limit", min_width=16)
    table.add_column("default", style="dim")
    table.add_column("tuned" if proven else "challenger")
    for left, right in zip(baseline, winner, strict=True):
        sides = (
            f"{ratio(each.value) if each.relative else figure(each.figure, each.value)} {KEPT[each.kept]}"
            for each in (left, right)
        )
        table.add_row(escape(left.limit), *sides)
    return table


def figure(name: str, value: float) -> str:
    """Return a figure with its unit."""
    unit = FIGURES[name].unit
    return duration(value) if unit == "ns" else size(value) if unit == "bytes" else per_second(value)


def show_front(console: Console, record: Record) -> None:
    """Print the front as a table and, of two objectives, as a plot."""
    names = record.workload.objectives
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("ratio", style="dim", no_wrap=True)
    table.add_column("settings", overflow="fold")
    points = []
    for number, point in enumerate(record.evidence.front, 1):
        summary = point.summary
        values = [figure_of_summary(summary, name) for name in names]
        points.append((values[0], values[1], str(number)))
        cells = []
        for name, value in zip(names, values, strict=True):
            speedup = point.speedups.get(name)
            cells += [
                figure(name, value),
                f"{ratio(speedup.estimate)} {interval(speedup.low, speedup.high)}" if speedup else "",
            ]
        limits = "".join(f"  {escape(check.limit)} {KEPT[check.kept]}" for check in point.limits if check.kept != "yes")
        table.add_row(
            f"{'→' if point.recommended else ''}{number}",
            *map(escape, cells),
            f"{escape(describe(summary.config))}{limits}",
            style="bold" if point.recommended else "",
        )
    console.print(table)
    console.print()
    if len(names) == 2 and len(points) > 1:
        console.print(Text(plot(points, FIGURES[names[0]].title, FIGURES[names[1]].title), "cyan"))
        console.print()
    if any(point.recommended for point in record.evidence.front):
        console.print(
            Text(
                "Ratios above 1 are better than the default, at 95 %. → is the knee: beyond it, 1 % more of one "
                "costs more than 1 % of another. Take another point with ortune apply --pick N.",
                "dim",
            )
        )
        console.print()


def figure_of_summary(summary: Summary, name: str) -> float:
    """Return a figure of a summary by its name in options."""
    fields = {
        "mean": "mean_ns",
        "throughput": "calls_per_s",
        "cpu": "cpu_ns_per_call",
        "memory": "peak_bytes",
        "load-time": "load_ns",
    }
    return float(getattr(summary, fields.get(name, f"{name}_ns")) or 0)


PLOT_WIDTH, PLOT_HEIGHT = 44, 9


def plot(points: Sequence[tuple[float, float, str]], across: str, up: str) -> str:
    """Return points as text, each shown by its label, on logarithmic axes."""
    columns = _scale([math.log(x) for x, _, _ in points], PLOT_WIDTH)
    rows = _scale([math.log(y) for _, y, _ in points], PLOT_HEIGHT)
    grid = [[" "] * PLOT_WIDTH for _ in range(PLOT_HEIGHT)]
    for column, row, (_, _, label) in zip(columns, rows, points, strict=True):
        grid[PLOT_HEIGHT - 1 - row][column] = label[-1]
    lines = [f"  {up}", *("  │" + "".join(line).rstrip() for line in grid)]
    return "\n".join([*lines, "  └" + "─" * PLOT_WIDTH, " " * max(PLOT_WIDTH + 3 - len(across), 0) + across])


def _scale(values: Sequence[float], n: int) -> list[int]:
    low, high = min(values), max(values)
    return [round((value - low) / (high - low) * (n - 1)) if high > low else n // 2 for value in values]


def is_approximate(name: str) -> bool:
    """Return whether a setting may change outputs beyond rounding."""
    return name in KNOBS and KNOBS[name].numerics


def _duties(record: Record) -> list[str]:
    """Return what the user must do, or know, beyond setting options."""
    config, winner = record.config, record.evidence.winner
    duties = []
    if config.io_binding:
        duties.append("This gain needs IO binding: the program must call run_with_iobinding instead of run.")
    if config.global_thread_pool:
        duties.append("This gain needs a global pool: see the code that ortune apply prints.")
    if config.per_session:
        duties.append("This gain needs options of its own for each session: create_session(..., session=0), 1, ...")
    if config.run_config or config.run_options:
        duties.append("This gain needs run options: pass ortune.run_options(RECORD) to each call of run.")
    if config.environment:
        settings = " ".join(f"{name}={value}" for name, value in config.environment.items())
        duties.append(f"This gain needs variables in the environment that the program starts with: {settings}")
    if winner and recommends(record):
        nodes = winner.session.nodes
        n_others = sum(count for name, count in nodes.items() if name != config.provider)
        if n_others:
            where = ", ".join(f"{count} on {name}" for name, count in nodes.items())
            duties.append(f"{n_others} of {sum(nodes.values())} nodes do not run on {config.provider}: {where}.")
    if any(is_approximate(name) for name in config.settings):
        known = recommends(record) and not any(is_approximate(name) for name in base_of(record).settings)
        error = record.evidence.output_check.max_error if known else None
        told = f"; the largest error seen is {error:.2g} of the largest value" if error is not None else ""
        duties.append(f"Outputs are approximate{told}. Check the accuracy of your model with it.")
    return duties


def _warnings(record: Record) -> list[str]:
    evidence = record.evidence
    noise = evidence.noise
    warnings = []
    if noise.regime == "contended":
        warnings.append(
            "Other programs used the CPUs during most of the duel: this holds for a busy host. "
            "Search again on a quiet one if that is where the model runs."
        )
    elif noise.blocks and noise.contended > 0.1 * noise.blocks:
        counted = "; the duel counts the quiet ones alone" if evidence.winner or evidence.front else ""
        warnings.append(f"Other programs used the CPUs during {noise.contended} of {noise.blocks} blocks{counted}.")
    if noise.slowed > 0.1 * noise.blocks:
        warnings.append(
            f"The GPU ran slower than it might, for heat or power, in {noise.slowed} of {noise.blocks} blocks."
        )
    warnings += _duties(record)
    if evidence.output_check.compared == "shapes":
        warnings.append("The model's outputs differ from run to run, so only their types and shapes were compared.")
    drift = evidence.noise.drift
    if drift is not None and not 1 / DRIFT_WORTH_TELLING < drift < DRIFT_WORTH_TELLING:
        warnings.append(
            f"This host changes with time: in the race the same candidate was {drift:.1f} times as fast against the "
            "default as in the duel. The claim holds for the minute of the duel."
        )
    failures = [trial for trial in record.search.trials if trial.failure]
    if failures:
        kinds = sorted({trial.failure.kind.replace("_", " ") for trial in failures if trial.failure})
        warnings.append(
            f"{plural(len(failures), 'candidate')} of {len(record.search.trials) - 1} failed ({', '.join(kinds)}); "
            "the record names them."
        )
    return warnings
