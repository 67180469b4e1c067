"""The parts of a page that show the trials of a search."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ortune.console.hosts import describe_hosts, format_confidence
from ortune.console.verdict import (
    is_recommended,
)
from ortune.console.widgets import format_count
from ortune.knobs import describe
from ortune.measure.comparison import PROOF, Latencies
from ortune.measure.compute_figures import is_pooled
from ortune.measure.host_speedup import HostsEvidence
from ortune.measure.paired_run import keep_one_regime
from ortune.numbers import format_ratio
from ortune.record.schema import Record
from ortune.record.trials import Trial, TrialRound, Trials
from ortune.report.blocks import Block, Cell, Chart, Table, Text, Tone
from ortune.report.charts.ratios import Pairs, draw_effects, draw_pairs
from ortune.report.charts.search import Attempt, draw_attempts, draw_foreign_use, draw_noise
from ortune.report.effects import TOGETHER, estimate_effects
from ortune.report.shared import (
    RATIO_TITLE,
    describe_noise,
    show_distributions,
)
from ortune.workload import FIGURES

MOST_EFFECTS, MOST_LISTED_PAIRS = 18, 10
"""Number of settings and pairs of settings that are drawn."""


MOST_OCCASIONS = 50
"""Number of later verifications that are drawn, the latest ones."""


def name_sides(record: Record) -> tuple[str, str]:
    """Return the names of the baseline and of the winner."""
    return "default", "tuned" if is_recommended(record) else "candidate"


def show_confirmation(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return the pairs with the intervals that they support, and the distributions of the latency."""
    blocks: list[Block] = []
    title = FIGURES[record.workload.objectives[0]].title
    rows = list_pairs(record, trials)
    confidences = [row.interval.confidence for row in rows if row.interval]
    if confidences:
        blocks.append(
            Chart(
                name=f"{prefix}pairs",
                title=f"Pairs of blocks: {title}",
                spec=draw_pairs(rows, RATIO_TITLE),
                note=describe_pairs(record, rows, confidences[0]),
            )
        )
    blocks += show_distributions(dict(select_latencies(record, trials)), prefix)
    if record.evidence.occasions:
        latest = record.evidence.occasions[-MOST_OCCASIONS:]
        verified = [Pairs(label=occasion.started, interval=occasion.speedup) for occasion in latest]
        if record.evidence.speedup:
            verified.insert(0, Pairs(label="search", interval=record.evidence.speedup))
        blocks.append(
            Chart(name=f"{prefix}occasions", title="Later verifications", spec=draw_pairs(verified, RATIO_TITLE))
        )
    if record.evidence.hosts:
        blocks.append(draw_hosts(record.evidence.hosts, prefix))
    return tuple(blocks)


def describe_pairs(record: Record, rows: Sequence[Pairs], confidence: float) -> str:
    """Return how to read the chart of pairs.

    Args:
        record: The record.
        rows: The rows of the chart.
        confidence: Confidence of the intervals.
    """
    name, noise = record.workload.objectives[0], record.evidence.noise
    how = "launched and measured one after the other" if noise.one_at_a_time else "measured right after each other"
    text = f"Each tick is a pair of blocks of both sides, {how}."
    if is_pooled(name):
        text += f" It is about the highest percentile up to {name} for which a block has enough calls."
    counted = "over all launches"
    if any(row.left_out for row in rows):
        used = "did not use" if noise.regime == "contended" else "used"
        text += f" Ticks in another color do not count: other processes {used} the CPUs then, unlike in the others."
        counted = "over the pairs that count"
    return f"{text} The point and the line are the estimate and its {confidence:.0%} interval {counted}."


def draw_hosts(hosts: HostsEvidence, prefix: str) -> Chart:
    """Return the speedup on each host, their mean, and what another host would show."""
    rows = [
        Pairs(label=f"mean of all hosts ({format_confidence(hosts.speedup)})", interval=hosts.speedup),
        Pairs(label=f"another host ({format_confidence(hosts.another)})", interval=hosts.another),
        *(Pairs(label=f"{speedup.host}{', busy' * speedup.contended}", interval=speedup) for speedup in hosts.hosts),
    ]
    left_out = hosts.n_hosts - len(hosts.hosts)
    more = f" {left_out} with larger speedups are not listed." if left_out else ""
    return Chart(
        name=f"{prefix}hosts",
        title="Hosts of this class",
        spec=draw_pairs(rows, RATIO_TITLE),
        note=f"{describe_hosts(hosts)}. Hosts are identified by hashes of their names, from the smallest speedup up."
        f"{more}",
    )


def list_pairs(record: Record, trials: Trials | None) -> list[Pairs]:
    """Return the pairs of each launch of the confirmation, and their interval; for a front, those of each point."""
    evidence, name = record.evidence, record.workload.objectives[0]
    numbers = {trial.config.key: trial.number for trial in trials.trials} if trials else {}
    rounds = [trial_round for trial_round in (trials.rounds if trials else ()) if trial_round.stage in PROOF]
    rows = []
    if evidence.front:
        counted = find_counted(rounds, evidence.noise.regime)
        for number, point in enumerate(evidence.front, 1):
            if name not in point.speedups:
                continue
            ratios = find_ratios(trials, rounds, name, numbers.get(point.summary.config.key, -1))
            own, left_out = split_ratios(ratios, counted)
            label = f"{number}: {describe(point.summary.config)}"
            rows.append(Pairs(label=label, ratios=own, left_out=left_out, interval=point.speedups[name]))
        return rows
    if not evidence.speedup or not evidence.winner:
        return []
    number = numbers.get(evidence.winner.config.key, -1)
    # Other candidates may have been confirmed before, in other runs.
    rounds = [trial_round for trial_round in rounds if number in trial_round.values]
    counted = find_counted(rounds, evidence.noise.regime)
    ratios = find_ratios(trials, rounds, name, number)
    for position, launch in enumerate(sorted({launch for launch, _, _ in ratios}), 1):
        own, left_out = split_ratios([ratio for ratio in ratios if ratio[0] == launch], counted)
        label = f"launch {position}" if own else f"launch {position} (left out)"
        rows.append(Pairs(label=label, ratios=own, left_out=left_out))
    label = "all that count" if any(row.left_out for row in rows) else "all launches"
    return [Pairs(label=label, interval=evidence.speedup), *rows]


Ratio = tuple[int, int, float]
"""How many times better than the baseline a trial was: number of the launch, place of the round, and the ratio."""


def find_ratios(trials: Trials | None, rounds: Sequence[TrialRound], name: str, number: int) -> list[Ratio]:
    """Return how many times better than the baseline a trial was in each of some rounds.

    Args:
        trials: All trials.
        rounds: The rounds.
        name: The figure.
        number: Number of the trial.
    """
    if trials is None or name not in trials.header.figures:
        return []
    found, figure = [], trials.header.figures.index(name)
    for place, trial_round in enumerate(rounds):
        values = [trial_round.values.get(one, ())[figure : figure + 1] for one in (0, number)]
        if all(values) and all(value[0] > 0 for value in values):
            ratio = values[0][0] / values[1][0]
            found.append((trial_round.launch, place, 1 / ratio if FIGURES[name].larger_is_better else ratio))
    return found


def find_counted(rounds: Sequence[TrialRound], regime: str) -> set[int]:
    """Return the places of the rounds of a run that count.

    Args:
        rounds: All rounds of the run.
        regime: That of the rounds on which the result rests.
    """
    states = [(place, bool(trial_round.contended)) for place, trial_round in enumerate(rounds)]
    kept, _ = keep_one_regime(states, lambda quiet: regime == "contended")
    return set(kept)


def split_ratios(ratios: Sequence[Ratio], counted: set[int]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ratios that count, and those that do not."""
    own = tuple(ratio for _, place, ratio in ratios if place in counted)
    return own, tuple(ratio for _, place, ratio in ratios if place not in counted)


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


def show_candidates(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return all candidates: over time, and as a table."""
    if trials is None or len(trials.trials) < 2:
        return ()
    first = find_first_rounds(trials.rounds)
    # Without a failure or a figure, a candidate was launched, and there was no time to measure it.
    others = [trial for trial in trials.trials if trial.number != 0 and (has_failed(trial) or trial.speedups)]
    attempts = []
    latest = 0.0
    for trial in others:
        latest = first.get(trial.number, latest)  # one that failed was not measured: it was tried after the last one
        attempts.append(
            Attempt(at=latest, speedup=speedup_of(trial), stage=trial.stage, settings=describe(trial.config))
        )
    n_failed = sum(1 for trial in others if trial.failure)
    note = "The line is the best so far. Ratios are of a few blocks and prove nothing: only the confirmation does."
    note += f" Crosses: {format_count(n_failed, 'candidate')} failed." if n_failed else ""
    chart = Chart(
        name=f"{prefix}candidates",
        title="Candidates over time",
        spec=draw_attempts(attempts, title=RATIO_TITLE),
        note=note,
    )
    return (chart, tabulate_trials(trials.trials, record))


def has_failed(trial: Trial) -> bool:
    """Return whether a candidate failed. One that was skipped for lack of time did not."""
    return trial.failure is not None and trial.failure.stage != "skipped"


def find_first_rounds(rounds: Sequence[TrialRound]) -> dict[int, float]:
    """Return by number of the trial: when it was first measured."""
    found: dict[int, float] = {}
    for trial_round in rounds:
        for number in trial_round.values:
            found.setdefault(number, trial_round.at_s)
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
        f"95% intervals. Estimated from {format_count(len(measured), 'config')}."
    )
    shown = effects.settings[:MOST_EFFECTS]
    if left := len(effects.settings) - len(shown):
        note += f" {left} settings with less certain effects are left out."
    if any(TOGETHER in label for label, _ in shown):
        note += " A setting that was tried only with another one is shown with it: what it does alone is unknown."
    blocks: list[Block] = [
        Chart(name=f"{prefix}effects", title="Effect of each setting", spec=draw_effects(shown), note=note)
    ]
    if effects.pairs:
        blocks.append(
            Chart(
                name=f"{prefix}interactions",
                title="Pairs of settings that interact",
                spec=draw_effects(effects.pairs[:MOST_LISTED_PAIRS]),
                note="By which factor two settings together differ from the product of their effects. Pairs whose "
                f"interval contains 1 are left out, and so are all but the {MOST_LISTED_PAIRS} most certain ones.",
            )
        )
    else:
        blocks.append(Text(text="No pair of settings that was tried together often enough clearly interacts."))
    return tuple(blocks)


def show_noise(record: Record, trials: Trials | None, prefix: str) -> tuple[Block, ...]:
    """Return how quiet the host was, over time."""
    is_confirmed = bool(record.evidence.speedup or record.evidence.front)
    blocks: list[Block] = [describe_noise(record.evidence.noise, "confirmation" if is_confirmed else "")]
    rounds = [trial_round for trial_round in (trials.rounds if trials else ()) if trial_round.values.get(0)]
    values = [trial_round.values[0][0] for trial_round in rounds]
    if len(values) < 2 or min(values) <= 0:
        return tuple(blocks)
    middle = statistics.median(values)
    objective = record.workload.objectives[0]
    per_block = f"A block has few calls for {objective}: a lower percentile is shown. " if is_pooled(objective) else ""
    states = [
        (trial_round.at_s, value / middle, 0 in trial_round.contended)
        for value, trial_round in zip(values, rounds, strict=True)
    ]
    name = FIGURES[objective].title
    blocks.append(
        Chart(
            name=f"{prefix}noise",
            title="The default over time",
            spec=draw_noise(states),
            note=f"{name} of the default in each round, relative to its median. {per_block}On a quiet host, it stays "
            "near 1.",
        )
    )
    shares = [
        (trial_round.at_s, trial_round.foreign_share) for trial_round in rounds if trial_round.foreign_share is not None
    ]
    if len(shares) > 1:
        blocks.append(
            Chart(
                name=f"{prefix}foreign-use",
                title="CPU time of other processes",
                spec=draw_foreign_use(shares),
                note="Largest share of the usable CPUs' time in a block of each round.",
            )
        )
    return tuple(blocks)
