"""What several hosts say about a config, in words and as lines of a grid."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from ortune.console.widgets import add_note, format_count
from ortune.measure.host_speedup import HostsEvidence
from ortune.measure.interval import Interval, format_speedup

MOST_SHOWN_HOSTS = 8
"""Hosts that are named."""


def describe_hosts(hosts: HostsEvidence) -> str:
    """Return the conclusion over several hosts, as a sentence without its full stop."""
    n = hosts.n_hosts
    worse = [f"slower on {hosts.n_slower} of {format_count(n, 'host')}"] if hosts.n_slower else []
    worse += [f"not working on {format_count(hosts.n_failed, 'more host')}"] if hosts.n_failed else []
    match hosts.verdict:
        case "faster":
            return f"Faster on average over {n} hosts, and not proven to be slower on any of them"
        case "faster_on_average":
            return f"Faster on average, {' and '.join(worse)}"
        case "slower":
            return f"Slower on average over {n} hosts"
        case "inconclusive":
            return f"Over {n} hosts, neither a gain nor a loss is proven" + "".join(f", {text}" for text in worse)


def add_hosts(grid: Table, hosts: HostsEvidence, nodes: Mapping[str, str]) -> None:
    """Add lines about several hosts to a grid.

    Args:
        grid: The grid.
        hosts: What they say.
        nodes: Names of hosts by what stands for them in records. Hosts without a name are shown as they are recorded.
    """

    def name(host: str) -> str:
        return nodes.get(host, host)

    over = f"the mean of all hosts of this class, from {hosts.n_hosts} of them ({format_confidence(hosts.speedup)})"
    grid.add_row("hosts", add_note(format_speedup(hosts.speedup), over))
    another = f"what another host would show ({format_confidence(hosts.another)})"
    grid.add_row("another", add_note(format_speedup(hosts.another), another))
    worst = f"{name(hosts.worst.host)}, as the worst of {hosts.n_hosts}"
    grid.add_row("worst", add_note(format_speedup(hosts.worst), worst))
    slower = [name(host.host) for host in hosts.hosts if host.slower]
    if slower:
        more = f" and {hosts.n_slower - MOST_SHOWN_HOSTS} more" if hosts.n_slower > MOST_SHOWN_HOSTS else ""
        grid.add_row("slower", f"{', '.join(slower[:MOST_SHOWN_HOSTS])}{more}")
    if hosts.n_contended:
        grid.add_row("busy", f"{hosts.n_contended} of {hosts.n_hosts} hosts, during the verification")


def format_confidence(interval: Interval) -> str:
    """Return the confidence of an interval, such as `99.5%`."""
    return f"{100 * interval.confidence:.3g}%"
