"""What `ortune fleet status`, `collect` and `expire` print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ortune.console.hosts import add_hosts, describe_hosts
from ortune.console.widgets import format_count, make_grid, make_table, show_note, show_warning
from ortune.fleet.expire import Expired
from ortune.fleet.proofs import Unread
from ortune.fleet.shared_metrics import Sent
from ortune.fleet.status import NodeStatus, StudyStatus
from ortune.knobs import describe
from ortune.measure.interval import Interval, format_speedup
from ortune.measure.judge import Place, compare
from ortune.numbers import format_ratio

STYLES: dict[Place, str] = {"above": "green", "below": "red", "unclear": "yellow"}


def show_sent(console: Console, sent: Sent, title: str, *, quiet: bool) -> None:
    """Print what was sent to a storage. If nothing was, say so only if there is nothing at all."""
    if not quiet and (sent.n_processes or not sent.n_known):
        console.print(f"{format_count(sent.n_processes, 'process', 'processes')} sent to {title}")
    for fault in sent.faults:
        show_warning(console, fault)


def show_status(console: Console, title: str, studies: Sequence[StudyStatus]) -> None:
    """Print what a storage holds.

    Args:
        console: Where to print.
        title: The storage.
        studies: Its studies.
    """
    if not studies:
        console.print(f"{title} holds nothing of ortune yet.")
        return
    host = None
    for study in studies:
        if study.host != host:
            host = study.host
            console.print(Text(host or "unknown class of hosts", "bold"))
            console.print()
        show_study(console, study)


def show_study(console: Console, study: StudyStatus) -> None:
    """Print a search or a verified record."""
    grid = make_grid()
    grid.add_row("model", study.model or study.study)
    if study.load:
        grid.add_row("load", study.load)
    if study.n_measurements:
        grid.add_row("measured", format_count(study.n_measurements, "launch of a candidate", "launches of candidates"))
    if study.best:
        text = f"{format_ratio(study.best.speedup)}, not proven: {describe(study.best.config)}"
        grid.add_row("best", text)
    if study.config is not None:
        grid.add_row("config", f"{describe(study.config)} ({study.verdict.replace('_', ' ')})")
    if study.hosts:
        grid.add_row("verified", describe_hosts(study.hosts))
        add_hosts(grid, study.hosts, {status.host: status.node for status in study.nodes})
    console.print(grid)
    if study.unread:
        show_warning(console, f"The result cannot be used: {study.unread}")
    if study.nodes:
        console.print()
        show_nodes(console, study.nodes)
    console.print()


def show_nodes(console: Console, nodes: Sequence[NodeStatus]) -> None:
    """Print the hosts of a study."""
    table = make_table()
    for column in ("host", "in records", "stage", "measured", "noise", "speedup", "verified"):
        table.add_column(column, overflow="fold")
    for status in nodes:
        table.add_row(
            status.node,
            status.host,
            status.stage,
            str(status.n_measured) if status.n_measured else "",
            "" if status.noise is None else f"{status.noise:.1%}",
            format_node_speedup(status),
            " ".join(part for part in (status.started[:16].replace("T", " "), "(busy)" * status.contended) if part),
        )
    console.print(table)
    for status in nodes:
        if status.unfit:
            show_note(console, "not used", f"{status.node}: {status.unfit}")


def format_node_speedup(node: NodeStatus) -> Text | str:
    """Return the speedup of a host, or why there is none."""
    if node.speedup is None:
        return node.verdict.replace("_", " ")
    found = node.speedup
    interval = Interval(estimate=found.estimate, low=found.low, high=found.high, confidence=found.confidence)
    return Text(format_speedup(interval), STYLES[compare(found, 1)])


def show_unread(console: Console, unread: Sequence[Unread]) -> None:
    """Print which results cannot be used."""
    for result in unread:
        show_warning(console, f"{result.study} is left out: {result.reason}")


def show_expired(console: Console, expired: Sequence[Expired], *, n_records: int, removed: bool) -> None:
    """Print what has expired.

    Args:
        console: Where to print.
        expired: What has expired.
        n_records: Number of records in the storage.
        removed: Whether it was removed.
    """
    if not expired:
        console.print(f"Nothing has expired in {format_count(n_records, 'record')}.")
        return
    table = make_table()
    for column in ("model", "host", "reason"):
        table.add_column(column, overflow="fold")
    for entry in expired:
        kept = [f"not removed, because {entry.kept}"] if entry.kept else []
        table.add_row(entry.model, entry.node or "all", "; ".join([*entry.reasons, *kept]))
    console.print(table)
    console.print()
    if removed:
        n_removed = sum(not entry.kept for entry in expired)
        show_note(console, "removed", format_count(n_removed, "entry", "entries"), "green")
    else:
        show_note(console, "next", "Verify again on these hosts, or remove what has expired with --remove.")
