"""What a search shows: what was detected, where it stands, and the verdict."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from ortune.console.text import duration, interval, plural, ratio, size
from ortune.host.default_pool import default_pool
from ortune.knobs import KNOBS, Config, describe
from ortune.record import Record
from ortune.trials.values import Progress as Report
from ortune.trials.values import Summary
from ortune.tune import Setting

PLAIN_INTERVAL_S = 5.0
LIVE_INTERVAL_S = 0.1

WIDEST = 100

DRIFT_WORTH_TELLING = 1.25
"""Disagreement of race and duel that chance and the choice of the winner do not explain."""


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that is not wider than people like to read."""
    console = Console(stderr=stderr, highlight=False)
    if console.width > WIDEST:
        console = Console(stderr=stderr, highlight=False, width=WIDEST)
    return console


def show_setting(console: Console, setting: Setting) -> None:
    """Print what was detected, and what was guessed."""
    model, host = setting.model, setting.host
    traits = model.traits
    grid = make_grid()
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
    guessed = []
    for name, tensor in setting.feed.tensors.items():
        grid.add_row("input", f"{escape(name)}  {escape(str(tensor.data))}  [dim]{escape(tensor.origin)}[/]")
        guessed += [f"{name}: {text}" for text in tensor.guessed]
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
    n_candidates = sum(1 for _ in setting.space.candidates())
    names = ", ".join(dimension.knob.short for dimension in setting.space.dimensions if len(dimension.choices) > 1)
    grid.add_row("space", f"{n_candidates} candidates  [dim]{names}[/]")
    budget = f"one caller, back to back; median latency; {setting.request.budget_s:g} s"
    grid.add_row("search", budget)
    console.print(grid)
    for fault in default_pool(host).faults:
        console.print(Text(f"ORT default misbehaves here: {fault}", "yellow"))
    if guessed:
        console.print(
            Text.assemble(
                ("guessed ", "yellow"),
                (f"{'; '.join(guessed)}. Set them with --dim, --shape or --inputs.", "yellow"),
            )
        )
    console.print()


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
                f"{report.stage} {report.done}/{report.total}, {left}, best so far {_best(report)}",
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


def show_verdict(console: Console, record: Record, output: Path | None) -> None:
    """Print the verdict, the figures that it rests on, and what to do next."""
    evidence = record.evidence
    speedup = evidence.speedup
    console.print()
    if evidence.verdict == "faster" and speedup:
        title = f"[bold green]{ratio(speedup.estimate)} faster[/] than ONNX Runtime's default"
    elif evidence.verdict == "default_is_best":
        title = "[bold green]ONNX Runtime's default is best[/] here: keep it"
    elif record.search.interrupted:
        title = "[bold yellow]Interrupted[/]: nothing is proven, the default stays recommended"
    else:
        title = "[bold yellow]Inconclusive[/]: the default stays recommended"
    console.print(title)
    if evidence.verdict != "faster":
        console.print(Text(f"{evidence.reason[0].upper()}{evidence.reason[1:]}.", "dim"))
    if evidence.best_so_far:
        best = evidence.best_so_far
        console.print(f"Best so far, unproven: {ratio(best.speedup)} {describe(best.config)}", markup=False)
    if speedup:
        launches = plural(speedup.restarts, "fresh launch", "fresh launches")
        subject = (
            "" if evidence.verdict == "faster" or not evidence.winner else f" for {describe(evidence.winner.config)}"
        )
        console.print(
            f"{ratio(speedup.estimate)} {interval(speedup.low, speedup.high)} at {speedup.confidence:.0%}{subject}, "
            f"{speedup.pairs} paired blocks over {launches} of each side",
            markup=False,
        )
    console.print()
    if evidence.winner and evidence.baseline:
        if evidence.verdict == "faster":
            console.print(settings_table(record.config))
            console.print()
        console.print(figures_table(evidence.baseline, evidence.winner, proven=evidence.verdict == "faster"))
        console.print()
    for warning in _warnings(record):
        console.print(Text(warning, "yellow"))
    if output is not None:
        grid = make_grid()
        grid.add_row("written", escape(str(output)))
        if evidence.verdict == "faster":
            command = f"ortune apply {shlex.quote(str(output))} {shlex.quote(record.model.path)}"
            grid.add_row("next", f"[bold]{escape(command)}[/]")
        console.print(grid)


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
    for name, field in (
        ("p50", "p50_ns"),
        ("p90", "p90_ns"),
        ("p99", "p99_ns"),
        ("CPU time a call", "cpu_ns_per_call"),
    ):
        table.add_row(name, duration(getattr(baseline, field)), duration(getattr(winner, field)))
    if baseline.peak_bytes is not None and winner.peak_bytes is not None:
        table.add_row("peak memory", size(baseline.peak_bytes), size(winner.peak_bytes))
    table.add_row("session creation", duration(baseline.load_ns), duration(winner.load_ns))
    return table


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
        warnings.append(
            f"Other programs used the CPUs during {noise.contended} of {noise.blocks} blocks; "
            "the duel counts the quiet ones alone."
        )
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
