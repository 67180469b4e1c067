"""What `--explain` prints: the statistics behind a result, in words and with its own figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ortune.console.few_calls import describe_few_calls, spell_few_calls
from ortune.console.hosts import describe_hosts, format_confidence
from ortune.console.widgets import format_count, format_duration, format_pairs, make_grid
from ortune.gates.results import GateError, GateResult
from ortune.measure.bench import BenchResult
from ortune.measure.comparison import Noise, Speedup
from ortune.measure.host_speedup import HostsEvidence
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.judge import NEGLIGIBLE_GAIN, compare, is_negligible
from ortune.numbers import format_digits, format_interval, format_ratio
from ortune.record.schema import Record
from ortune.workload import FIGURES, is_figure

Explanation = tuple[str, str]
"""What is explained, in one or two words, and the explanation."""


def show_explanations(console: Console, explanations: Sequence[Explanation]) -> None:
    """Print explanations."""
    grid = make_grid()
    for name, text in explanations:
        grid.add_row(name, Text(text))
    console.print()
    console.print(grid)


def explain_search(record: Record) -> list[Explanation]:
    """Return what the result of a search rests on."""
    evidence = record.evidence
    found: list[Explanation] = []
    if evidence.speedup:
        few = describe_few_calls(record)
        in_turn = evidence.noise.one_at_a_time
        found = explain_speedup(evidence.speedup, evidence.objective, few_calls=few, one_at_a_time=in_turn)
    found.append(("choice", explain_choice(record)))
    if evidence.limits:
        text = "A limit counts as met or violated only if the whole interval of the figure is on one side of it."
        found.append(("limits", text))
    is_confirmed = evidence.speedup is not None or bool(evidence.front)
    found.append(("other load", explain_noise(evidence.noise, "confirmation" if is_confirmed else "")))
    error = evidence.output_check.max_error
    if error is not None:
        same = (
            f"differ from the default's by at most {error:.2g} of the largest value" if error else "equal the default's"
        )
        found.append(("outputs", f"On these inputs, the confirmed candidate's outputs {same}."))
    if evidence.hosts:
        found += explain_hosts(evidence.hosts)
    elif is_confirmed:
        text = "The interval holds for this host, this load and these inputs, within hours. Other days may differ"
        again = ": ortune apply --verify --update measures again, and adds the result to the record."
        found.append(("validity", f"{text}{'.' if record.config == record.base else again}"))
    return found


def explain_hosts(hosts: HostsEvidence) -> list[Explanation]:
    """Return what the evidence of several hosts means."""
    mean, another, worst = hosts.speedup, hosts.another, hosts.worst
    return [
        (
            "hosts",
            f"{describe_hosts(hosts)}. Over all hosts of the class, the mean is in "
            f"{format_interval(mean.low, mean.high)} with {format_confidence(mean)} confidence. The hosts are the "
            "sample: the interval covers how much they differ. More launches on the same hosts do not narrow it.",
        ),
        (
            "another",
            f"On another host of the class, a verification would show a ratio in "
            f"{format_interval(another.low, another.high)} with {format_confidence(another)} confidence.",
        ),
        (
            "worst host",
            f"{worst.host} (a hash of its name): {format_ratio(worst.estimate)} "
            f"{format_interval(worst.low, worst.high)}. The interval is wider than that of a single host, as the worst "
            "of several also has bad luck. A loss on a host counts as proven if it remains after Holm's correction for "
            "the number of hosts. Losses on hosts that were not measured cannot be seen.",
        ),
    ]


def explain_choice(record: Record) -> str:
    """Return why the figures that chose the winner are no evidence."""
    evidence, search = record.evidence, record.search
    n_all = max(search.n_candidates - 1, search.n_tried)
    tried = f"{search.n_tried} of {format_count(n_all, 'candidate')} {'was' if search.n_tried == 1 else 'were'} tried."
    if evidence.speedup:
        return (
            f"{tried} The best of many noisy figures looks better than it is. The figures that chose a candidate "
            "therefore do not count: the interval is from other launches of this candidate and the default, in new "
            "processes."
        )
    if any(point.speedups for point in evidence.front):
        return (
            f"{tried} No config of the front is better than another one in all objectives. The intervals of all "
            "configs and objectives hold simultaneously. They are from the confirmation, in new processes."
        )
    if evidence.front:
        return f"{tried} Those that were confirmed in new processes are not proven to be better in any objective."
    return f"{tried} None was confirmed against the default, so there is no interval."


def explain_bench(comparison: BenchResult) -> list[Explanation]:
    """Return what the ratios of a comparison rest on."""
    measured = [(row, row.speedup) for row in comparison.rows if row.speedup]
    speedups = [speedup for _, speedup in measured]
    in_turn = comparison.noise.one_at_a_time
    found: list[Explanation] = []
    if len(speedups) == 1:
        few, name = measured[0][0].few_calls, comparison.objective
        calls = spell_few_calls(name, few.n_calls) if few else ""
        found = explain_speedup(speedups[0], name, few_calls=calls, one_at_a_time=in_turn)
    if len(speedups) > 1:
        found = [
            (
                "intervals",
                f"With {DEFAULT_CONFIDENCE:.0%} confidence, all {len(speedups)} intervals contain their true "
                "ratios at the same time. They are therefore wider than the interval of a single config would be.",
            ),
            explain_data(speedups[0], one_at_a_time=in_turn),
        ]
    return [*found, ("other load", explain_noise(comparison.noise))]


def explain_gates(results: Sequence[GateResult | GateError]) -> list[Explanation]:
    """Return what the decisions of gates rest on; with figures if there is only one."""
    found: list[Explanation] = [
        (
            "decision",
            "A gate fails if the whole interval of a slowdown is above what is allowed, or head exceeds a limit. Among "
            "several objectives and limits, a failure needs more confidence. A gate passes if all intervals are below, "
            "and head stays within all limits. Otherwise it continues until its budget is spent or all checks are "
            "done, and is then inconclusive.",
        )
    ]
    measured = [result for result in results if isinstance(result, GateResult)]
    confidences = [finding.slowdown.confidence for result in measured for finding in result.findings]
    if confidences:
        found.append(
            (
                "interval",
                "A gate checks its figures several times, and may end at each check. Its intervals hold at all checks "
                f"simultaneously, with {confidences[0]:.0%} confidence. Checking early therefore does not cause more "
                "false alarms.",
            )
        )
    if len(results) > 1:
        found.append(
            (
                "gates",
                f"With {len(results)} gates, a single one needs more confidence to fail (Holm's correction). All gates "
                "together then cause no more false alarms than a gate that runs alone.",
            )
        )
        return found
    return [*found, *(part for result in measured for part in _explain_figures(result))]


def _explain_figures(result: GateResult) -> list[Explanation]:
    found: list[Explanation] = []
    if result.findings:
        found.append(
            (
                "data",
                f"{format_pairs(result.pairs, result.launches)} of each side. A launch is a new process. Processes of "
                "the same side differ, so the interval is computed over the launches.",
            )
        )
    if result.self_check:
        found.append(
            (
                "self-check",
                "A second copy of base was measured, too. It differs from base by "
                f"{_as_slowdown(result.self_check)}, due to the noise of this host alone. If this difference were "
                "proven, and more than half of what is allowed, the gate would not decide.",
            )
        )
    return [*found, ("other load", explain_noise(result.noise))]


def explain_speedup(
    speedup: Speedup, objective: str, *, few_calls: str = "", one_at_a_time: bool = False
) -> list[Explanation]:
    """Return what a ratio and its interval mean.

    Args:
        speedup: The ratio.
        objective: What it is about.
        few_calls: On how many calls it rests, if it is a percentile that needs more; else empty.
        one_at_a_time: Whether sides were launched and measured one after the other.
    """
    name = objective.partition(",")[0]
    title = FIGURES[name].title if is_figure(name) else name
    ratio = format_ratio(speedup.estimate)
    saved = 100 * (1 - 1 / speedup.estimate)
    share = f"{format_digits(abs(saved))}% {'lower' if saved >= 0 else 'higher'}"
    meaning = (
        f"{ratio} as much as the default, in {title}. Above 1 is better."
        if is_figure(name) and FIGURES[name].larger_is_better
        else f"The default's {title} is {ratio} the other config's, which is {share}. Above 1 is better."
    )
    place = compare(speedup, 1)
    if place == "above" and is_negligible(speedup):
        proven = f"The whole interval is above 1: there is a gain, but one below {NEGLIGIBLE_GAIN:.0%}."
    elif place == "above":
        proven = "The whole interval is above 1: the gain is proven."
    elif place == "below":
        proven = "The whole interval is below 1: the default is better."
    else:
        proven = "It contains 1: neither a gain nor a loss is proven."
    often = round(100 * speedup.confidence)
    coverage = f"of 100 such intervals, about {often} contain it"
    if few_calls:
        # It also needs the agreement of a figure that has enough calls, which the reason states.
        proven = f"It rests on {few_calls}: slow calls that are too rare to be among them may move it."
        coverage = "fewer of such intervals contain it if rare calls are slow"
    return [
        ("ratio", meaning),
        (
            "interval",
            f"The true ratio is in {format_interval(speedup.low, speedup.high)} with {speedup.confidence:.0%} "
            f"confidence: {coverage}. {proven}",
        ),
        explain_data(speedup, one_at_a_time=one_at_a_time),
    ]


def explain_data(speedup: Speedup, *, one_at_a_time: bool) -> Explanation:
    """Return what an interval was computed from.

    Args:
        speedup: The ratio with the interval.
        one_at_a_time: Whether sides were launched and measured one after the other.
    """
    span = "" if speedup.span_s is None else f" within {format_duration(1e9 * speedup.span_s)}"
    pair = "A pair measures both configs one right after the other, so changes of the host affect both."
    if one_at_a_time:
        pair = "The configs were launched and measured one after the other, so changes of the host widen the interval."
    return (
        "data",
        f"{format_pairs(speedup.n_pairs, speedup.n_launches)} of each config{span}. {pair} A launch is a new process. "
        "Processes with the same settings differ. The interval covers these differences: it is bootstrapped over the "
        "launches.",
    )


def explain_noise(noise: Noise, counted: str = "result") -> str:
    """Return how quiet the host was, and what that means for the result.

    Args:
        noise: CPU use by other processes.
        counted: What leaves out the blocks of a quiet or of a busy host, in a word; empty if there is nothing.
    """
    if noise.regime == "unknown":
        return "This system does not report CPU use, so it is not known whether other processes disturbed the blocks."
    share = "" if noise.foreign_share_mean is None else f", {noise.foreign_share_mean:.1%} of the CPUs on average"
    text = (
        f"Other processes used the CPUs during {noise.n_contended} of {format_count(noise.n_blocks, 'block')}{share}."
    )
    repeated = f" {noise.n_repeated} were repeated." if noise.n_repeated else ""
    if not counted:
        return f"{text}{repeated}"
    if noise.regime == "contended":
        return f"{text}{repeated} The {counted} includes such blocks, and holds for a busy host."
    return f"{text}{repeated} The {counted} is based on the quiet blocks only."


def _as_slowdown(interval: Interval) -> str:
    estimate, low, high = (100 * (ratio - 1) for ratio in (interval.estimate, interval.low, interval.high))
    texts = (f"{'+' * (percent >= 0)}{format_digits(percent, 2)}%" for percent in (estimate, low, high))
    return "{} [{}, {}]".format(*texts)
