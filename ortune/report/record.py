"""The page about a record with its trials."""

from __future__ import annotations

import shlex
from pathlib import Path

from ortune.console.few_calls import describe_few_calls
from ortune.console.verdict import (
    PROGRAM_AS_IT_IS,
    find_warnings,
    format_evidence,
    format_headline,
    is_recommended,
    name_dropped,
    needs_reason,
)
from ortune.console.widgets import (
    find_figure,
    format_baseline,
    format_bytes,
    format_contribution,
    format_count,
    format_default,
    format_duration,
    format_figure,
    format_reason,
)
from ortune.errors import OrtuneError
from ortune.export import TARGETS, render
from ortune.knobs import KNOBS, Config, describe
from ortune.knobs.ids import BATCH
from ortune.measure.comparison import Speedup
from ortune.measure.interval import format_speedup
from ortune.numbers import format_ratio
from ortune.record.schema import Record
from ortune.record.trials import Trials
from ortune.report.blocks import Block, Cell, Chart, Code, Facts, Page, Section, Table, Text, Tone
from ortune.report.charts.search import FrontMark, draw_front
from ortune.report.host_map import describe_host, draw_host
from ortune.report.shared import (
    describe_workload,
    list_unrecorded,
    tabulate_figures,
    tabulate_limits,
    tolerance_options,
    tone_of,
    workload_options,
)
from ortune.report.source import Records, RecordSource
from ortune.report.trials import name_sides, show_candidates, show_confirmation, show_effects, show_noise
from ortune.workload import FIGURES

TONES: dict[str, Tone] = {
    "faster": "good",
    "default_is_best": "good",
    "within_limits": "good",
    "trade_off": "good",
    "infeasible": "bad",
    "overload": "bad",
}
"""How a verdict is to be taken; others are uncertain."""


def make_page(source: Records, name: str) -> Page:
    """Return the page about a record, or about the records of a bundle.

    Args:
        source: The records.
        name: Name of their file.
    """
    if len(source.records) == 1:
        (one,) = source.records
        record = one.record
        return Page(
            title=f"{Path(record.model.path).name}: search",
            verdict=format_headline(record).plain,
            tone=TONES.get(record.evidence.verdict, "unsure"),
            lead=list_lead(record),
            sections=make_sections(one, name),
        )
    sections: list[Section] = []
    for number, record_source in enumerate(source.records, 1):
        title = f"Record {number}: {Path(record_source.record.model.path).name}"
        tone = TONES.get(record_source.record.evidence.verdict, "unsure")
        lead = (format_headline(record_source.record).plain, *list_lead(record_source.record))
        sections.append(Section(title=title, blocks=tuple(Text(text=text, tone=tone) for text in lead)))
        sections += make_sections(record_source, name, f"{number}-")
    return Page(
        title=f"{name}: bundle",
        verdict=f"A bundle of {len(source.records)} records",
        tone="plain",
        sections=tuple(sections),
    )


def list_lead(record: Record) -> tuple[str, ...]:
    """Return what the verdict rests on."""
    evidence = record.evidence
    lines = []
    if needs_reason(record):
        lines.append(format_reason(evidence.reason))
    if evidence.speedup:
        tried = evidence.winner if not is_recommended(record) else None
        subject = f"{describe(tried.config)}: " if tried else ""
        lines.append(f"{subject}{format_evidence(record, evidence.speedup)}.")
    if evidence.best_so_far:
        best = evidence.best_so_far
        lines.append(f"Best so far, not proven: {format_ratio(best.speedup)} with {describe(best.config)}.")
    return tuple(lines)


def make_sections(source: RecordSource, name: str, prefix: str = "") -> tuple[Section, ...]:
    """Return the sections about a record. What the files do not hold is left out.

    Args:
        source: The record and its trials.
        name: Name of its file.
        prefix: What the names of its charts start with.
    """
    record, trials = source.record, source.trials
    notes: list[Block] = [Text(text=text, tone="unsure") for text in find_warnings(record)]
    if source.lack:
        notes.append(Text(text=f"Parts of this page need the trials of the search. {source.lack}", tone="unsure"))
    sections = [
        Section(title="Result", blocks=(*notes, *show_figures(record))),
        Section(title="Pareto front", blocks=show_front(record, prefix)),
        Section(title="Settings", blocks=show_settings(record)),
        Section(title="Confirmation", blocks=show_confirmation(record, trials, prefix)),
        Section(title="Candidates", blocks=show_candidates(record, trials, prefix)),
        Section(title="Which settings matter", blocks=show_effects(record, trials, prefix)),
        Section(title="Host", blocks=show_host(record, trials)),
        Section(title="Noise", blocks=show_noise(record, trials, prefix)),
        Section(title="Use it elsewhere", blocks=show_exports(source, name)),
        Section(title="Reproduce", blocks=show_commands(record, name)),
    ]
    return tuple(section for section in sections if section.blocks)


def show_figures(record: Record) -> tuple[Block, ...]:
    """Return the figures of the baseline and of the winner, and the limits."""
    evidence = record.evidence
    if not evidence.baseline or not evidence.winner:
        return ()
    base, winner = name_sides(record)
    limits = tabulate_limits([(base, evidence.baseline_limits), (winner, evidence.limits)])
    figures = tabulate_figures((base, winner), (evidence.baseline, evidence.winner), record.workload)
    return (figures, *([limits] if limits else []))


def show_settings(record: Record) -> tuple[Block, ...]:
    """Return the recommended settings."""
    if record.config == record.base:
        base = PROGRAM_AS_IT_IS if record.workload.program else format_baseline(record.base, record.workload.batches)
        if record.workload.program or record.config.is_default:
            return (Text(text=f"The recommended config is {base}: there is nothing to set."),)
        return (Text(text=f"The recommended config is {base}: there is nothing else to set."),)
    rows = []
    for setting, value in record.config.settings.items():
        knob = KNOBS.get(setting)
        default = format_default(knob) if knob else "not set"
        row = [Cell(setting), Cell(default), Cell(str(value))]
        if contributions := record.evidence.contributions:
            row.append(Cell(format_contribution(contributions[setting]) if setting in contributions else "-"))
        rows.append((*row, Cell(knob.title if knob else "")))
    contributes = ("contributes",) if record.evidence.contributions else ()
    blocks: list[Block] = [Table(columns=("setting", "default", "tuned", *contributes, "what it is"), rows=tuple(rows))]
    if dropped := name_dropped(record):
        blocks.append(Text(text=f"{dropped}."))
    return tuple(blocks)


def show_front(record: Record, prefix: str) -> tuple[Block, ...]:
    """Return the Pareto front as charts, one for each pair with the first objective, and as a table."""
    front, names = record.evidence.front, record.workload.objectives
    if not front:
        return ()
    blocks: list[Block] = []
    baseline = record.evidence.baseline
    for other in names[1:]:
        marks = [
            FrontMark(
                x=find_figure(point.summary, names[0]),
                y=find_figure(point.summary, other),
                label=str(number),
                kind="recommended" if point.recommended else "on the front",
                settings=describe(point.summary.config),
            )
            for number, point in enumerate(front, 1)
        ]
        if baseline:
            marks.append(
                FrontMark(
                    x=find_figure(baseline, names[0]),
                    y=find_figure(baseline, other),
                    label="",
                    kind="default",
                    settings=describe(baseline.config),
                )
            )
        blocks.append(
            Chart(
                name=f"{prefix}front-{names[0]}-{other}",
                title=f"{FIGURES[names[0]].title} and {FIGURES[other].title}",
                spec=draw_front(marks, names[0], other),
                note="No other config that was compared is better in all objectives than a numbered one.",
            )
        )
    rows = []
    for number, point in enumerate(front, 1):
        cells = [Cell(f"{number}{' (recommended)' if point.recommended else ''}", key=number)]
        for name in names:
            value, speedup = find_figure(point.summary, name), point.speedups.get(name)
            cells += [Cell(format_figure(name, value), key=value)]
            cells += [tell_ratio(speedup)]
        cells.append(Cell(describe(point.summary.config)))
        rows.append(tuple(cells))
    note = ""
    if any(point.speedups for point in front):
        note = "Ratios above 1 are better than the default. All intervals hold simultaneously with 95% confidence."
        if few := describe_few_calls(record):
            note += f" They rest on {few}."
    columns = ["point", *(heading for name in names for heading in (name, "ratio")), "settings"]
    blocks.append(
        Table(
            columns=tuple(columns),
            rows=tuple(rows),
            numeric=tuple(range(1, 1 + 2 * len(names))),
            note=f"{note} To choose a point: ortune apply FILE --pick N.".strip(),
        )
    )
    return tuple(blocks)


def tell_ratio(speedup: Speedup | None) -> Cell:
    """Return a ratio with its interval as a cell."""
    if speedup is None:
        return Cell("")
    return Cell(format_speedup(speedup), key=speedup.estimate, tone=tone_of(speedup))


def show_host(record: Record, trials: Trials | None) -> tuple[Block, ...]:
    """Return the host, with the CPUs on which the threads of both sides ran, and those that they were pinned to."""
    blocks: list[Block] = [describe_host(record.host, record.runtime)]
    if not trials:
        return tuple(blocks)
    shown: list[tuple[str, Config]] = [("Default", record.base)]
    if record.config != record.base:
        shown.append(("Tuned", record.config))
    elif record.evidence.winner:
        shown.append(("Candidate", record.evidence.winner.config))
    for title, config in shown:
        found = trials.find_session(config)
        session, places = (found.session, found.places) if found else (None, ())
        blocks.append(draw_host(title, trials.header.topology, trials.header.usable, session, places))
    return tuple(blocks)


def show_exports(source: RecordSource, name: str) -> tuple[Block, ...]:
    """Return the config for each target that can express it."""
    record = source.record
    if source.fault:
        return (Text(text=f"This config is not exported. {source.fault}", tone="bad"),)
    if record.config.is_default:
        return ()
    blocks: list[Block] = []
    refused = []
    for target in TARGETS.values():
        if target.binary:
            continue
        try:
            done = render(target.name, record, record.model.path, name)
        except OrtuneError as error:
            refused.append((target.name, error.message))
            continue
        note = "" if not done.unsupported else f"Not supported: {'; '.join(done.unsupported)}"
        blocks.append(Code(title=f"{target.name}: {target.summary}", text=done.text, note=note, folded=True))
    if refused:
        blocks.append(Facts(facts=tuple(refused)))
    return tuple(blocks)


def fix_options(base: Config) -> list[str]:
    """Return the options that fix the settings of a base. Without them, another baseline would be measured."""
    options = []
    for name, value in base.settings.items():
        if name == "providers":
            options.append(f"--provider {shlex.quote(str(value))}")
        elif name in KNOBS and name != BATCH:  # the first batch is that of the baseline
            text = str(value).lower() if isinstance(value, bool) else str(value)
            options.append(f"--fix {shlex.quote(f'{name}={text}')}")
    return options


NOT_RECORDED = (
    "A record does not hold the options --tune, --only, --simplify, --trials, --build-timeout and --history. "
    "Add those that the search had."
)


def show_commands(record: Record, name: str) -> tuple[Block, ...]:
    """Return how to repeat the search, and what it rests on."""
    search, workload = record.search, record.workload
    model, file = shlex.quote(record.model.path), shlex.quote(name)
    facts = [
        ("model", f"{record.model.path} ({format_bytes(sum(file.size_bytes for file in record.model.files))})"),
        ("digest", record.model.digest),
        ("started", search.started),
        ("stages", ", ".join(f"{stage.stage} {format_duration(1e9 * stage.wall_s)}" for stage in search.stages)),
        ("candidates", f"{search.n_tried} of {search.n_candidates - 1} tried, {search.strategy}, seed {search.seed}"),
        ("software", f"ortune {record.runtime.ortune}, onnxruntime {record.runtime.onnxruntime}"),
    ]
    if search.n_hints:
        facts.append(("earlier searches", f"{format_count(search.n_hints, 'config')} of them were screened first"))
    if search.ended_early:
        facts.append(("ended early", search.ended_early))
    blocks: list[Block] = [describe_workload(workload), Facts(facts=tuple(fact for fact in facts if fact[1]))]
    if workload.program:
        text = "Records hold no commands of programs: they may contain passwords. Use the same command after --."
        blocks.append(Text(text=text))
        return tuple(blocks)
    options = workload_options(workload)
    strategy = [f"--strategy {search.strategy}"] if search.strategy != "adaptive" else []
    seed = [f"--seed {search.seed}"] if search.seed else []
    budget = f"--budget {search.budget_s:g}s"
    fixed = fix_options(record.base)
    tolerance = tolerance_options(workload.tolerance)
    words = ["ortune search", model, *options, *tolerance, *fixed, budget, *strategy, *seed, "-o again.json"]
    blocks.append(Code(title="Search again", text=" ".join(words)))
    if record.config != record.base:
        blocks.append(Code(title="Verify the gain on this host", text=f"ortune apply {file} {model} --verify"))
        blocks.append(Code(title="Compare under any load", text=" ".join(["ortune bench", model, file, *options])))
    blocks += [Text(text=text) for text in [*list_unrecorded(workload), NOT_RECORDED]]
    return tuple(blocks)
