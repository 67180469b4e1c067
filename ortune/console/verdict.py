"""The result of a search: the verdict, the figures that it rests on, warnings, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.few_calls import describe_few_calls, find_few_calls
from ortune.console.front import show_front
from ortune.console.sentence import summarize
from ortune.console.warnings import (
    NOTABLE_DRIFT,
    warn_approximate,
    warn_compilation,
    warn_differing_ratio,
    warn_disagreement,
    warn_failures,
    warn_late_calls,
    warn_noise,
    warn_not_compared,
    warn_opposed_figures,
    warn_other_nodes,
    warn_pinned,
    warn_requirements,
    warn_slow_phase,
    warn_tf32,
    warn_unstable_outputs,
)
from ortune.console.widgets import (
    KEPT,
    LIMIT_STATES,
    add_note,
    format_baseline,
    format_bytes,
    format_contribution,
    format_count,
    format_duration,
    format_figure,
    format_figures,
    format_pairs,
    format_reason,
    make_grid,
    make_settings_table,
    make_table,
    show_warning,
)
from ortune.knobs import KNOBS, describe
from ortune.knobs.providers import multiplies_in_tf32
from ortune.measure.comparison import LimitCheck, Speedup, Summary
from ortune.measure.interval import format_speedup
from ortune.measure.limits import is_overloaded
from ortune.numbers import format_ratio
from ortune.record.schema import Record
from ortune.tuning.verdict import format_bound
from ortune.workload import FIGURES, Figure, Tolerance, Workload, list_figures

NEXT_COLUMN = 10
"""Where values of the last lines begin."""

PROGRAM_AS_IT_IS = "the program as it is"
"""What candidates of a program are compared with."""

CONTENDED_BLOCKS_OF_A_SEARCH = (
    "The confirmation leaves them out. Before it, they may have decided which candidate was confirmed: to compare more "
    "of them, search on a quieter host."
)
"""What it means for a search that other processes used the CPUs during some blocks."""


def show_verdict(
    console: Console,
    record: Record,
    output: Path | None,
    kept: Path | None = None,
    session_warnings: Sequence[str] = (),
) -> None:
    """Print the verdict, the figures that it rests on, and what to do next.

    Args:
        console: Where to print.
        record: The result of the search.
        output: Where it was written, or None.
        kept: Where the previous record is, if it proves more than this one.
        session_warnings: What ONNX Runtime warned of, in words.
    """
    evidence = record.evidence
    console.print()
    console.print(format_headline(record))
    if needs_reason(record):
        console.print(Text(format_reason(evidence.reason), "dim"))
    if evidence.best_so_far:
        best = evidence.best_so_far
        console.print(Text(f"Best so far, not proven: {format_ratio(best.speedup)}  {describe(best.config)}"))
    if evidence.speedup:
        tried = evidence.winner and not is_recommended(record)
        subject = f"{describe(evidence.winner.config)}: " if tried and evidence.winner else ""
        console.print(Text(f"{subject}{format_evidence(record, evidence.speedup)}"))
    console.print()
    if evidence.front:
        show_front(console, record)
    elif evidence.winner and evidence.baseline:
        show_figures(console, record, evidence.baseline, evidence.winner)
    if evidence.closest:
        console.print(Text(f"Closest to the limits in the confirmation: {describe(evidence.closest.config)}"))
    warnings = [*find_warnings(record), *session_warnings]
    for warning in warnings:
        show_warning(console, warning)
    if warnings:
        console.print()
    console.print(Text(summarize(record), "italic"))
    if output is not None:
        console.print()
        show_output(console, record, output, kept)


def show_figures(console: Console, record: Record, baseline: Summary, winner: Summary) -> None:
    """Print the settings, if they are recommended, and the figures and limits of both sides."""
    evidence, recommended = record.evidence, is_recommended(record)
    if recommended:
        console.print(make_settings_table(record.config, console.width, evidence.contributions))
        for note in filter(None, (name_dropped(record), note_unmeasured(record))):
            console.print(Text(note, "dim"))
        console.print()
    unit = unit_of(record.workload)
    figures = list_figures("search", record.workload.figures)
    console.print(make_figures_table(figures, baseline, winner, recommended=recommended, unit=unit))
    console.print()
    if evidence.limits:
        console.print(make_limits_table(evidence.baseline_limits, evidence.limits, recommended=recommended))
        console.print()


def name_dropped(record: Record) -> str:
    """Return which settings were dropped, with what they contributed; empty if none were."""
    dropped = {name: ratio for name, ratio in record.evidence.dropped.items() if name in KNOBS}
    named = [f"{name} ({format_contribution(ratio)})" for name, ratio in dropped.items()]
    return f"Dropped because they contribute too little: {', '.join(named)}" if named else ""


def note_unmeasured(record: Record) -> str:
    """Return that the contributions of several settings are not known; empty if they are."""
    tuned = record.config.settings.items() - record.base.settings.items()
    if record.evidence.contributions or len(tuned) < 2:
        return ""
    remedy = "" if record.workload.program else " A search with --simplify RECORD measures it."
    return f"What each setting contributes was not measured.{remedy}"


def show_output(console: Console, record: Record, output: Path, kept: Path | None) -> None:
    """Print where the record is, and what to do next."""
    is_long, command = False, ""
    grid = make_grid()
    grid.add_row("written", str(output))
    if record.search.trials:
        grid.add_row("trials", record.search.trials.file)
    if kept is not None:
        grid.add_row("kept", add_note(str(kept), KEPT))
    if record.config != record.base:
        command = f"ortune apply {shlex.quote(str(output))} {shlex.quote(record.model.path)}"
        is_long = NEXT_COLUMN + len(command) > console.width
        grid.add_row("next", Text("" if is_long else command, "bold"))
    console.print(grid)
    if is_long:
        # Not folded, so that it can be copied.
        console.print(Text(command, "bold"), soft_wrap=True)


def format_headline(record: Record) -> Text:
    """Return the verdict in a line."""
    evidence = record.evidence
    base = PROGRAM_AS_IT_IS if record.workload.program else format_baseline(record.base, record.workload.batches)
    match evidence.verdict:
        case "faster":
            estimate = evidence.speedup.estimate if evidence.speedup else 1.0
            _, n_calls = find_few_calls(record) or ("", 0)
            gain = format_gain(record.workload.objectives[0], estimate, unit_of(record.workload), n_calls)
            parts = (gain, "green", f" {base}")
        case "default_is_best":
            most = f"no other settings gain more than {format_bound(evidence.most_gain)}" if evidence.most_gain else ""
            parts = (f"{base[0].upper()}{base[1:]} is best", "green", f" on this host: {most or 'keep it'}")
        case "nothing_found":
            n_tried, n_all = record.search.n_tried, max(record.search.n_candidates - 1, record.search.n_tried)
            most = f", none gains more than {format_bound(evidence.most_gain)}" if evidence.most_gain else ""
            among = f" among {n_tried} of {n_all} candidates{most}: keep {base}"
            parts = ("Nothing better found", "yellow", among)
        case "within_limits":
            parts = ("Within the limits", "green", f", unlike {base}")
        case "infeasible":
            parts = ("No candidate was found within the limits", "red", ": keep the default")
        case "overload":
            parts = ("Overload", "red", ": no candidate was found that can serve requests at this rate")
        case "trade_off":
            parts = (f"Pareto front of {format_count(len(evidence.front), 'config')}", "green", "")
        case "inconclusive":
            state = "Interrupted" if record.search.interrupted else "Inconclusive"
            parts = (state, "yellow", ": nothing is proven, keep the default")
    verdict, color, rest = parts
    return Text.assemble((verdict, f"bold {color}"), rest)


def needs_reason(record: Record) -> bool:
    """Return whether the headline does not say why the verdict is what it is."""
    evidence = record.evidence
    if evidence.verdict == "faster":
        is_unbounded = evidence.baseline is not None and is_overloaded(evidence.baseline)
        return is_unbounded or find_few_calls(record) is not None
    return not (evidence.verdict == "inconclusive" and record.search.interrupted)


def is_recommended(record: Record) -> bool:
    """Return whether the winner of the search is recommended, and not the baseline."""
    return record.evidence.verdict in {"faster", "within_limits"}


def unit_of(workload: Workload) -> str:
    """Return what throughput counts."""
    return "item" if workload.batches else "call"


def format_gain(objective: str, estimate: float, unit: str = "call", n_calls: int = 0) -> str:
    """Return what a ratio means for an objective, as the start of a sentence that ends with the baseline's name.

    Args:
        objective: The objective.
        estimate: The ratio.
        unit: What throughput counts.
        n_calls: Calls that a percentile rests on if it needs more; 0 if it has enough.
    """
    calls = f" over {n_calls} calls" if n_calls else ""
    template = FIGURES[objective].gain or f"{{ratio}} as fast ({objective}{calls}) as"
    return template.format(ratio=format_ratio(estimate), unit=unit)


def format_evidence(record: Record, speedup: Speedup) -> str:
    """Return the speedup of a record with what it rests on."""
    few = describe_few_calls(record)
    calls = f", and {few}" if few else ""
    is_speed = FIGURES[record.workload.objectives[0]].is_speed
    return (
        f"{format_speedup(speedup)} with {speedup.confidence:.0%} confidence, "
        f"from {format_pairs(speedup.n_pairs, speedup.n_launches)} of each config{format_span(speedup)}{calls}"
        f"{f'; {speedup.slow_launches}' if speedup.n_launches and is_speed else ''}"
    )


def format_span(speedup: Speedup) -> str:
    """Return within what time a speedup was measured, because other times may differ."""
    return "" if speedup.span_s is None else f" within {format_duration(1e9 * speedup.span_s)}"


def make_figures_table(
    figures: Sequence[Figure], baseline: Summary, winner: Summary, *, recommended: bool, unit: str = "call"
) -> Table:
    """Return the figures of both sides of confirmation.

    Args:
        figures: Those that have a row.
        baseline: Figures of the baseline.
        winner: Figures of the candidate.
        recommended: Whether the candidate is recommended.
        unit: What throughput counts.
    """
    table = make_table()
    table.add_column("", min_width=16)
    table.add_column("default", justify="right", style="dim", min_width=9)
    table.add_column(_winner_title(recommended), justify="right", style="bold" if recommended else "")
    sides = (baseline, winner)
    if unit == "item":
        table.add_row("items per call", *(f"{side.config.batch}" for side in sides))
    for figure in figures:
        if figure.is_latency:
            table.add_row(figure.name, *format_figures(figure, sides))
    for name, field in (("p50", "worst_p50_ns"), ("p99", "worst_p99_ns")):
        if all(getattr(side, field) is not None for side in sides):
            table.add_row(f"{name}, worst process", *(format_duration(getattr(side, field)) for side in sides))
    for figure in figures:
        if not figure.is_latency and all(side.get_figure(figure.name) is not None for side in sides):
            table.add_row(figure.name_row(unit), *format_figures(figure, sides))
        if figure.name == "cpu":
            _add_use_of_cpus(table, sides)
        if figure.name == "memory" and any(side.gpu_bytes is not None for side in sides):
            memory = ("-" if side.gpu_bytes is None else format_bytes(side.gpu_bytes) for side in sides)
            table.add_row("GPU memory", *memory)
    builds = [side.build_s for side in sides]
    if any(build_s is not None for build_s in builds):
        table.add_row(
            "first compilation", *("-" if build_s is None else format_duration(1e9 * build_s) for build_s in builds)
        )
    return table


def _add_use_of_cpus(table: Table, sides: Sequence[Summary]) -> None:
    """Add what is known of CPU time between calls, and of how busy the callers were."""
    if all(side.cpu_ns_between_calls is not None for side in sides):
        table.add_row("  between calls", *(format_duration(side.cpu_ns_between_calls or 0) for side in sides))
    if all(side.utilization is not None for side in sides):
        table.add_row("utilization", *(f"{side.utilization or 0:.0%}" for side in sides))


def make_limits_table(baseline: Sequence[LimitCheck], winner: Sequence[LimitCheck], *, recommended: bool) -> Table:
    """Return whether both sides meet the limits. The baseline's checks may be missing in a record that was edited."""
    table = make_table()
    table.add_column("limit", min_width=16)
    table.add_column("default", style="dim")
    table.add_column(_winner_title(recommended))
    lefts: Sequence[LimitCheck | None] = baseline or [None] * len(winner)
    for left, right in zip(lefts, winner, strict=True):
        table.add_row(right.limit, _format_check(left) if left else "-", _format_check(right))
    return table


def _format_check(check: LimitCheck) -> Text:
    value = format_ratio(check.value) if check.relative else format_figure(check.figure, check.value)
    return Text.assemble(f"{value} ", LIMIT_STATES[check.kept])


def _winner_title(recommended: bool) -> str:
    return "tuned" if recommended else "candidate"


def find_warnings(record: Record) -> list[str]:
    """Return what to know about the result: the state of the host, requirements of the config, failures."""
    evidence = record.evidence
    warnings = find_noise_warnings(record)
    warnings += find_differing_ratios(record)
    warnings += find_opposed_figures(record)
    warnings += find_config_warnings(record)
    if evidence.output_check.compared == "shapes":
        warnings.append(warn_unstable_outputs())
    elif evidence.output_check.compared == "nothing" and record.workload.program:
        warnings.append(warn_not_compared())
    drift = evidence.noise.drift
    if evidence.speedup and evidence.speedup.slowdown is not None:
        warnings.append(warn_slow_phase(evidence.speedup))
    elif drift is not None and not 1 / NOTABLE_DRIFT < drift < NOTABLE_DRIFT:
        warnings.append(warn_disagreement(drift))
    if failed := record.search.failed:
        trials = record.search.trials.file if record.search.trials else ""
        warnings.append(warn_failures(sum(failed.values()), record.search.n_tried, failed, trials))
    return warnings


def find_noise_warnings(record: Record) -> list[str]:
    """Return what to know about the state of the host during the measurements."""
    evidence = record.evidence
    is_confirmed = bool(evidence.winner or evidence.front)
    return warn_noise(
        evidence.noise,
        record.workload,
        stage="confirmation",
        effect=CONTENDED_BLOCKS_OF_A_SEARCH if is_confirmed else "",
        median_is_unsure=evidence.verdict == "inconclusive" and evidence.objective == "p50",
    )


def find_differing_ratios(record: Record) -> list[str]:
    """Return where late calls, or the figures of both sides, have another ratio than the one that is stated."""
    evidence = record.evidence
    if not evidence.baseline or not evidence.winner or not evidence.speedup:
        return []
    if late := evidence.late_calls:
        return [] if str(late) in evidence.reason else [warn_late_calls(late)]
    return warn_differing_ratio(
        evidence.baseline, evidence.winner, record.objectives[0], evidence.speedup, evidence.noise.two_speeds
    )


def find_opposed_figures(record: Record) -> list[str]:
    """Return that figures disagree about which side of the confirmation is better, if they do."""
    baseline, winner = record.evidence.baseline, record.evidence.winner
    return warn_opposed_figures(baseline, winner, record.evidence.objective) if baseline and winner else []


def find_config_warnings(record: Record) -> list[str]:
    """Return what the recommended config requires of the program, and what it changes."""
    config, winner, recommended = record.config, record.evidence.winner, is_recommended(record)
    warnings = [*warn_requirements(config)]
    if record.cache_options:
        warnings.append(warn_compilation(record.cache_options))
    if record.workload.load.pinned and recommended:
        warnings.append(warn_pinned(record.workload.load.processes))
    if winner and recommended:
        nodes = winner.nodes
        if any(name != config.provider for name in nodes):
            warnings.append(warn_other_nodes(config.provider, nodes))
    max_error = record.evidence.output_check.max_error
    in_tf32 = [compared for compared in (config, record.base) if multiplies_in_tf32(compared.providers)]
    if recommended and len(in_tf32) == 1 and max_error is not None and max_error > Tolerance().absolute:
        warnings.append(warn_tf32(max_error, config))
    if any(is_approximate(name) for name in config.settings):
        known = recommended and not any(is_approximate(name) for name in record.base.settings)
        warnings.append(warn_approximate(record.evidence.output_check.max_error if known else None))
    return warnings


def is_approximate(name: str) -> bool:
    """Return whether a setting may change outputs beyond rounding."""
    return name in KNOBS and KNOBS[name].numerics
