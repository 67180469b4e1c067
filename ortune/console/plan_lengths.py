"""What `ortune plan --lengths` prints: how to group items of different lengths."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.widgets import format_number, make_table, show_note
from ortune.numbers import format_interval, format_ratio
from ortune.planning.length_policies import POLICY_TIE
from ortune.planning.result import Estimate, LengthPlan, LengthPolicy
from ortune.queueing.cost import price_of_million

MOST_PREDICTED = 3
"""Policies that were only predicted, and are printed."""

NARROW_COLUMNS = 80
"""Columns of a terminal below which the intervals are left out."""


def show_lengths(console: Console, lengths: LengthPlan, price_per_hour: float | None = None) -> None:
    """Print the policies and the recommended one.

    Args:
        console: Where to print.
        lengths: The policies.
        price_per_hour: Price of the host per hour; None if it is not known.
    """
    reference = lengths.policies[lengths.reference]
    console.print(Text(f"{describe_lengths(lengths)}, in calls with several items:"))
    console.print()
    console.print(make_lengths_table(lengths, with_intervals=console.width >= NARROW_COLUMNS))
    console.print()
    show_note(console, "grouping", lengths.choice.title, "bold green")
    console.print(Text(explain_grouping(lengths, price_per_hour)))
    console.print()
    if lengths.unfit_sizes:
        sizes = ", ".join(map(str, lengths.unfit_sizes))
        text = f"batches of {sizes} items: the longest items do not fit into memory in such batches"
        show_note(console, "not measured", text, "bold yellow")
    wrong = [policy for policy in lengths.policies if policy.problem]
    if wrong:
        names = ", ".join(policy.title for policy in wrong[:3]) + (" and others" if len(wrong) > 3 else "")
        text = f"{names}: outputs differ from those of the items alone: {wrong[0].problem}"
        show_note(console, "not used", text, "bold red")
    lines = (
        "items/s: measured in interleaved rounds, with all calls that the sample needs; ~ marks predictions from "
        f"calls of {lengths.n_points} sizes and lengths. Ratios are relative to {reference.title}. Outputs of each "
        "item were compared with those of the item alone.",
    )
    for line in lines:
        console.print(Text(line, "dim"))
    console.print()


def describe_lengths(lengths: LengthPlan) -> str:
    """Return a summary of the items, such as `64 items of 8 to 256 (median 29)`."""
    sample = lengths.lengths
    sizes = f"{min(sample)} to {max(sample)} (median {statistics.median(sample):g})"
    return f"{len(sample)} items of length {sizes}"


def make_lengths_table(lengths: LengthPlan, *, with_intervals: bool) -> Table:
    """Return a table with a row for each policy that was measured, and for the best ones that were not."""
    table = make_table()
    table.add_column("policy", overflow="fold")
    for heading in ("items/s", "ratio", "to one at a time", "calls", "padding"):
        table.add_column(heading, justify="right", overflow="fold")
    measured = [policy for policy in lengths.policies if policy.items_per_s.source == "measured"]
    predicted = [policy for policy in lengths.policies if policy.items_per_s.source == "predicted"]
    for policy in (*measured, *predicted[:MOST_PREDICTED]):
        name = Text(policy.title, "bold" if policy is lengths.choice else "")
        if policy is lengths.policies[lengths.reference]:
            name.append("  (the reference)", "dim")
        if policy.problem:
            name.append("  (outputs differ)", "red")
        table.add_row(
            name,
            format_items(policy),
            format_policy_ratio(policy.to_reference, with_intervals=with_intervals),
            format_policy_ratio(policy.to_single, with_intervals=False),
            str(policy.n_calls),
            f"{policy.padding:.0%}",
        )
    return table


def format_items(policy: LengthPolicy) -> str:
    """Return the items per second of a policy. A tilde marks a prediction."""
    mark = "~" if policy.items_per_s.source == "predicted" else ""
    return f"{mark}{format_number(policy.items_per_s.estimate)}"


def format_policy_ratio(ratio: Estimate | None, *, with_intervals: bool) -> str:
    """Return a ratio, with its interval if there is one and it is wanted."""
    if ratio is None:
        return ""
    bounds = "" if ratio.high is None or not with_intervals else f" {format_interval(ratio.low, ratio.high)}"
    return f"{format_ratio(ratio.estimate)}{bounds}"


def explain_grouping(lengths: LengthPlan, price_per_hour: float | None = None) -> str:
    """Return why the policy is recommended, and the price of its items if that of the host is known, in sentences."""
    choice, reference = lengths.choice, lengths.policies[lengths.reference]
    right = "" if choice.problem else " with correct outputs"
    text = f"No other way{right} that was measured is faster by more than {POLICY_TIE:.0%}"
    if choice.to_reference is None:
        text += "."
    else:
        text += f": {format_number(choice.items_per_s.estimate)} items/s"
        text += f", {format_ratio(choice.to_reference.estimate)} that of {reference.title}."
    if price_per_hour:
        price = price_of_million(price_per_hour, choice.items_per_s.estimate)
        text += f" On a host that is always busy, a million items cost {format_number(price)}."
    return text
