"""The page about a record with its trials."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortune.compare.comparison import Latencies, Speedup
from ortune.console.verdict import (
    PROGRAM_AS_IT_IS,
    find_warnings,
    format_evidence,
    format_headline,
    is_recommended,
    needs_reason,
)
from ortune.console.widgets import (
    find_figure,
    format_baseline,
    format_bytes,
    format_count,
    format_default,
    format_duration,
    format_figure,
    format_ratio,
    format_reason,
    format_speedup,
)
from ortune.errors import OrtuneError
from ortune.export import TARGETS, render
from ortune.knobs import KNOBS, Config, describe
from ortune.record.schema import Record
from ortune.record.trials import Trial, TrialRound, Trials
from ortune.report.blocks import Block, Cell, Chart, Code, Facts, Page, Section, Table, Text, Tone
from ortune.report.charts import (
    Attempt,
    FrontMark,
    Pairs,
    draw_attempts,
    draw_effects,
    draw_foreign_use,
    draw_front,
    draw_latencies,
    draw_noise,
    draw_pairs,
)
from ortune.report.effects import estimate_effects
from ortune.report.host_map import describe_host, draw_host
from ortune.report.shared import (
    describe_noise,
    describe_workload,
    list_unrecorded,
    tabulate_figures,
    tabulate_limits,
    workload_options,
)
from ortune.report.source import Records, RecordSource
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

MOST_EFFECTS, MOST_PAIRS = 18, 10
"""Number of settings and pairs of settings that are drawn."""

RATIO = "ratio to the default: above 1 is better"


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
    for number, each in enumerate(source.records, 1):
        title = f"Record {number}: {Path(each.record.model.path).name}"
        tone = TONES.get(each.record.evidence.verdict, "unsure")
        lead = (format_headline(each.record).plain, *list_lead(each.record))
        sections.append(Section(title=title, blocks=tuple(Text(text=text, tone=tone) for text in lead)))
        sections += make_sections(each, name, f"{number}-")
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
        lines.append(f"{subject}{format_evidence(evidence.speedup)}.")
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


def name_sides(record: Record) -> tuple[str, str]:
    """Return the names of the baseline and of the winner."""
    return "default", "tuned" if is_recommended(record) else "candidate"


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
        return (Text(text=f"The recommended config is {base}: there is nothing to set."),)
    rows = []
    for setting, value in record.config.settings.items():
        knob = KNOBS.get(setting)
        default = format_default(knob) if knob else "not set"
        rows.append((Cell(setting), Cell(default), Cell(str(value)), Cell(knob.title if knob else "")))
    return (Table(columns=("setting", "default", "tuned", "what it is"), rows=tuple(rows)),)


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
    columns = ["point", *(heading for name in names for heading in (name, "ratio")), "settings"]
    blocks.append(
        Table(
            columns=tuple(columns),
            rows=tuple(rows),
            numeric=tuple(range(1, 1 + 2 * len(names))),
            note="Ratios above 1 are better than the default. All intervals hold together with 95 % confidence. "
            "To choose a point: ortune apply FILE --pick N.",
        )
    )
    return tuple(blocks)


def tell_ratio(speedup: Speedup | None) -> Cell:
    """Return a ratio with its interval as a cell."""
    if speedup is None:
        return Cell("")
    tone: Tone = "good" if speedup.low > 1 else "bad" if speedup.high < 1 else "plain"
    return Cell(format_speedup(speedup), key=speedup.estimate, tone=tone)


def show_confirmation(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return the pairs with the intervals that they support, and the distributions of the latency."""
    blocks: list[Block] = []
    title = FIGURES[record.workload.objectives[0]].title
    rows = list_pairs(record, trials)
    if any(row.interval for row in rows):
        blocks.append(
            Chart(
                name=f"{prefix}pairs",
                title=f"Pairs of blocks: {title}",
                spec=draw_pairs(rows, RATIO),
                note="Each tick is a pair of blocks of both sides, measured right after each other. The point and the "
                "line are the estimate and its 95 % interval over all launches.",
            )
        )
    if distributions := list_latencies(record, trials):
        blocks.append(
            Chart(
                name=f"{prefix}latencies",
                title="Latency of all calls in the confirmation",
                spec=draw_latencies(distributions),
                note="; ".join(f"{name}: {format_count(each, 'call')}" for name, each in count_calls(record, trials))
                + ".",
            )
        )
    if record.evidence.occasions:
        verified = [Pairs(label=each.started, interval=each.speedup) for each in record.evidence.occasions]
        if record.evidence.speedup:
            verified.insert(0, Pairs(label="search", interval=record.evidence.speedup))
        blocks.append(Chart(name=f"{prefix}occasions", title="Later verifications", spec=draw_pairs(verified, RATIO)))
    return tuple(blocks)


def list_pairs(record: Record, trials: Trials | None) -> list[Pairs]:
    """Return the pairs of each launch of the confirmation, and their interval; for a front, those of each point."""
    evidence = record.evidence
    numbers = {trial.config.key: trial.number for trial in trials.trials} if trials else {}
    if evidence.front:
        name = record.workload.objectives[0]
        return [
            Pairs(
                label=f"{number}: {describe(point.summary.config)}",
                ratios=tuple(
                    ratio
                    for launch in find_ratios(trials, name, numbers.get(point.summary.config.key, -1)).values()
                    for ratio in launch
                ),
                interval=point.speedups.get(name),
            )
            for number, point in enumerate(evidence.front, 1)
            if name in point.speedups
        ]
    if not evidence.speedup or not evidence.winner:
        return []
    launches = find_ratios(trials, record.workload.objectives[0], numbers.get(evidence.winner.config.key, -1))
    rows = [Pairs(label="all launches", interval=evidence.speedup)]
    return [*rows, *(Pairs(label=f"launch {each + 1}", ratios=tuple(launches[each])) for each in sorted(launches))]


def find_ratios(trials: Trials | None, name: str, number: int) -> dict[int, list[float]]:
    """Return by launch of the confirmation: how many times better than the baseline a trial was in each round."""
    found: dict[int, list[float]] = {}
    if trials is None or trials.header is None or name not in trials.header.figures:
        return found
    place = trials.header.figures.index(name)
    for each in trials.rounds:
        values = [each.values.get(one, ())[place : place + 1] for one in (0, number)]
        if each.stage == "confirmation" and all(values) and all(value[0] > 0 for value in values):
            ratio = values[0][0] / values[1][0]
            found.setdefault(each.launch or 0, []).append(1 / ratio if FIGURES[name].larger_is_better else ratio)
    return found


def select_latencies(record: Record, trials: Trials | None) -> list[tuple[str, Latencies]]:
    """Return the distributions of the latency of the sides of the confirmation, by name."""
    base, winner = name_sides(record)
    numbers = {point.summary.config.key: number for number, point in enumerate(record.evidence.front, 1)}
    found = []
    for place, session in enumerate(trials.sessions if trials else ()):
        if session.latencies is None:
            continue
        if place == 0:
            found.append((base, session.latencies))
        elif record.evidence.front:
            if number := numbers.get(session.config.key):
                found.append((f"{number}: {describe(session.config)}", session.latencies))
        else:
            found.append((winner, session.latencies))
    return found


def list_latencies(record: Record, trials: Trials | None) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Return pairs of share and latency of each side."""
    return {name: list(zip(each.shares, each.ns, strict=True)) for name, each in select_latencies(record, trials)}


def count_calls(record: Record, trials: Trials | None) -> list[tuple[str, int]]:
    """Return the number of calls that each distribution rests on."""
    return [(name, each.n_calls) for name, each in select_latencies(record, trials)]


def show_candidates(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return all candidates: over time, and as a table."""
    if trials is None or len(trials.trials) < 2:
        return ()
    first = find_first_rounds(trials.rounds)
    others = [trial for trial in trials.trials if trial.number != 0]
    timed = bool(first) and all(each.at_s is not None for each in trials.rounds)
    attempts = []
    latest = 0.0
    for trial in others:
        at = first.get(trial.number) if timed else float(trial.number)
        latest = latest if at is None else at  # one that failed was not measured: it was tried after the last one
        attempts.append(
            Attempt(at=latest, speedup=speedup_of(trial), stage=trial.stage, settings=describe(trial.config))
        )
    n_failed = sum(1 for trial in others if trial.failure)
    note = (
        "The line is the best so far. Ratios are medians of a few blocks and prove nothing: only the confirmation does."
    )
    note += f" Crosses: {format_count(n_failed, 'candidate')} failed." if n_failed else ""
    chart = Chart(
        name=f"{prefix}candidates",
        title="Candidates over time",
        spec=draw_attempts(attempts, timed=timed, title=RATIO),
        note=note,
    )
    return (chart, tabulate_trials(trials.trials, record))


def find_first_rounds(rounds: Sequence[TrialRound]) -> dict[int, float]:
    """Return by number of the trial: when it was first measured."""
    found: dict[int, float] = {}
    for each in rounds:
        for number in each.values:
            if each.at_s is not None:
                found.setdefault(number, each.at_s)
    return found


def speedup_of(trial: Trial) -> float | None:
    """Return how many times better than the baseline a trial was in the first objective; None if that is unknown."""
    return trial.speedups[0] if trial.speedups and not trial.failure else None


def tabulate_trials(trials: Sequence[Trial], record: Record) -> Table:
    """Return a table of all candidates that can be sorted and filtered."""
    names = record.workload.objectives
    rows = []
    for trial in trials:
        if trial.number == 0:
            continue
        cells = [Cell(str(trial.number), key=trial.number), Cell(describe(trial.config))]
        for place in range(len(names)):
            value = trial.speedups[place] if trial.speedups and place < len(trial.speedups) else None
            cells.append(Cell("" if value is None else format_ratio(value), key=-1.0 if value is None else value))
        state, tone = describe_state(trial)
        cells += [Cell(trial.stage), Cell(str(trial.n_blocks), key=trial.n_blocks), Cell(state, tone=tone)]
        rows.append(tuple(cells))
    ratios = tuple(f"{name} ratio" for name in names)
    return Table(
        columns=("number", "settings", *ratios, "last stage", "blocks", "state"),
        rows=tuple(rows),
        numeric=(0, *range(2, len(names) + 2), len(names) + 3),
        sortable=True,
        title="All candidates",
    )


def describe_state(trial: Trial) -> tuple[str, Tone]:
    """Return whether a candidate failed or exceeded limits."""
    if trial.failure:
        return f"{trial.failure.title}: {trial.failure.message}", "bad"
    if trial.over_limits:
        return f"over {', '.join(trial.over_limits)}", "unsure"
    return "", "plain"


def show_effects(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return the effects of settings and of pairs of settings."""
    measured = [
        (trial.config, 1.0 if trial.number == 0 else speedup)
        for trial in (trials.trials if trials else ())
        if (speedup := speedup_of(trial)) is not None or trial.number == 0
    ]
    effects = estimate_effects([(config, speedup) for config, speedup in measured if speedup is not None])
    if effects is None:
        return ()
    name = FIGURES[record.workload.objectives[0]].title
    note = (
        f"By which factor a setting changes the ratio in {name}, on average over the candidates that were tried, with "
        f"95 % intervals. Estimated from {format_count(len(measured), 'config')}."
    )
    shown = effects.settings[:MOST_EFFECTS]
    if left := len(effects.settings) - len(shown):
        note += f" {left} settings with less certain effects are left out."
    blocks: list[Block] = [
        Chart(name=f"{prefix}effects", title="Effect of each setting", spec=draw_effects(shown), note=note)
    ]
    if effects.pairs:
        blocks.append(
            Chart(
                name=f"{prefix}interactions",
                title="Pairs of settings that interact",
                spec=draw_effects(effects.pairs[:MOST_PAIRS]),
                note="By which factor two settings together differ from the product of their effects. Pairs whose "
                "interval contains 1 are left out.",
            )
        )
    else:
        blocks.append(Text(text="No pair of settings clearly interacts."))
    return tuple(blocks)


def show_host(record: Record, trials: Trials | None) -> tuple[Block, ...]:
    """Return the host, with the CPUs that the threads of both sides were pinned to."""
    blocks: list[Block] = [describe_host(record.host, record.runtime)]
    header = trials.header if trials else None
    if not trials or not header or header.topology is None:
        return tuple(blocks)
    shown: list[tuple[str, Config]] = [("Default", record.base)]
    if record.config != record.base:
        shown.append(("Tuned", record.config))
    elif record.evidence.winner:
        shown.append(("Candidate", record.evidence.winner.config))
    for title, config in shown:
        blocks.append(draw_host(title, header.topology, header.usable, trials.session_of(config)))
    return tuple(blocks)


def show_noise(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return how quiet the host was, over time."""
    blocks: list[Block] = [describe_noise(record.evidence.noise)]
    rounds = [each for each in (trials.rounds if trials else ()) if each.values.get(0)]
    values = [each.values[0][0] for each in rounds]
    if len(values) < 2 or min(values) <= 0:
        return tuple(blocks)
    timed = all(each.at_s is not None for each in rounds)
    times = [each.at_s or 0.0 if timed else float(place) for place, each in enumerate(rounds, 1)]
    middle = statistics.median(values)
    states = [(at, value / middle, 0 in each.contended) for at, value, each in zip(times, values, rounds, strict=True)]
    name = FIGURES[record.workload.objectives[0]].title
    blocks.append(
        Chart(
            name=f"{prefix}noise",
            title="The default over time",
            spec=draw_noise(states, timed=timed),
            note=f"{name} of the default in each round. On a quiet host, it stays near 1.",
        )
    )
    shares = [
        (at, each.foreign_share) for at, each in zip(times, rounds, strict=True) if each.foreign_share is not None
    ]
    if len(shares) > 1:
        blocks.append(
            Chart(
                name=f"{prefix}foreign-use",
                title="CPU time of other processes",
                spec=draw_foreign_use(shares, timed=timed),
                note="Largest share of the usable CPUs' time in a block of each round.",
            )
        )
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


def show_commands(record: Record, name: str) -> tuple[Block, ...]:
    """Return how to repeat the search, and what it rests on."""
    search, workload = record.search, record.workload
    model, file = shlex.quote(record.model.path), shlex.quote(name)
    facts = [
        ("model", f"{record.model.path} ({format_bytes(sum(file.size_bytes for file in record.model.files))})"),
        ("digest", record.model.digest),
        ("started", search.started),
        ("stages", ", ".join(f"{each.stage} {format_duration(1e9 * each.wall_s)}" for each in search.stages)),
        ("candidates", f"{search.n_tried} of {search.n_candidates - 1} tried, {search.strategy}, seed {search.seed}"),
        ("software", f"ortune {record.runtime.ortune}, onnxruntime {record.runtime.onnxruntime}"),
    ]
    if search.n_hints:
        facts.append(("earlier searches", f"{format_count(search.n_hints, 'config')} of them were screened first"))
    if search.ended_early:
        facts.append(("ended early", search.ended_early))
    blocks: list[Block] = [describe_workload(workload), Facts(facts=tuple(each for each in facts if each[1]))]
    if workload.program:
        text = "Records hold no commands of programs: they may contain passwords. Use the same command after --."
        blocks.append(Text(text=text))
        return tuple(blocks)
    options = workload_options(workload)
    strategy = [f"--strategy {search.strategy}"] if search.strategy != "adaptive" else []
    seed = [f"--seed {search.seed}"] if search.seed else []
    words = ["ortune search", model, *options, f"--budget {search.budget_s:g}s", *strategy, *seed, "-o again.json"]
    blocks.append(Code(title="Search again", text=" ".join(words)))
    if record.config != record.base:
        blocks.append(Code(title="Verify the gain on this host", text=f"ortune apply {file} {model} --verify"))
        blocks.append(Code(title="Compare under any load", text=" ".join(["ortune bench", model, file, *options])))
    blocks += [Text(text=text) for text in list_unrecorded(workload)]
    return tuple(blocks)
