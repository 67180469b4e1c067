"""What several hosts of a class say about a config, as plain values."""

from __future__ import annotations

import re

import msgspec

from ortune.measure.interval import Interval
from ortune.measure.judge import HostsVerdict, compare
from ortune.numbers import Count

FEWEST_HOSTS = 2
MOST_HOSTS = 32
"""Hosts that are listed at most, those with the smallest gains. All of them count."""

HOST_ID = re.compile(r"[0-9a-f]{8}")


class HostSpeedup(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times better than the baseline a config is on one host.

    Attributes:
        host: Identifies the host without its name: a short hash of it.
        n_launches: Launches of each side that the interval rests on.
        started: When it was measured, in ISO 8601 with the time zone.
        contended: Whether other processes used the CPUs.
        slower: Whether the config is proven to be worse than the baseline on this host, although several were tested.
    """

    host: str
    n_launches: Count
    started: str = ""
    contended: bool = False
    slower: bool = False

    def __post_init__(self) -> None:
        """Reject names of hosts."""
        check_host_id(self.host)


class WorstHost(Interval, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The host with the smallest speedup. The interval also holds although the host was chosen as the worst.

    Attributes:
        host: Identifies the host.
    """

    host: str

    def __post_init__(self) -> None:
        """Reject names of hosts."""
        check_host_id(self.host)


class HostsEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What several hosts of a class say about a config.

    Attributes:
        verdict: The conclusion.
        n_hosts: Number of hosts whose speedup was measured.
        n_slower: Hosts on which the config is proven to be worse than the baseline.
        n_failed: Further hosts, on which the config does not work.
        n_contended: Hosts on which other processes used the CPUs.
        speedup: The mean over all hosts of the class, of which these are a sample. The interval covers how much hosts
            differ.
        another: What a measurement on another host of the class would show.
        worst: The host with the smallest speedup.
        hosts: The hosts, from the smallest speedup to the largest. At most 32 are listed.
    """

    verdict: HostsVerdict
    n_hosts: Count
    n_slower: Count = 0
    n_failed: Count = 0
    n_contended: Count = 0
    speedup: Interval
    another: Interval
    worst: WorstHost
    hosts: tuple[HostSpeedup, ...]

    def __post_init__(self) -> None:
        """Reject what contradicts itself."""
        if self.n_hosts < FEWEST_HOSTS or not 0 <= self.n_slower <= self.n_hosts:
            raise ValueError(f"{self.n_slower} of {self.n_hosts} hosts are slower")
        if not 0 <= self.n_contended <= self.n_hosts or self.n_failed < 0:
            raise ValueError(f"{self.n_contended} of {self.n_hosts} hosts are contended, and {self.n_failed} failed")
        if len(self.hosts) != min(self.n_hosts, MOST_HOSTS):
            raise ValueError(f"{len(self.hosts)} of {self.n_hosts} hosts are listed")
        expected = judge_hosts(self.speedup, self.n_slower + self.n_failed)
        if self.verdict != expected:
            raise ValueError(f"the verdict is {self.verdict}, and the speedup says {expected}")


def judge_hosts(speedup: Interval, n_worse: int) -> HostsVerdict:
    """Return the conclusion that the mean over hosts supports.

    Args:
        speedup: The mean over all hosts of the class.
        n_worse: Hosts on which the config is proven to be worse, or does not work.
    """
    place = compare(speedup, 1)
    if place == "above":
        return "faster_on_average" if n_worse else "faster"
    return "slower" if place == "below" else "inconclusive"


def check_host_id(host: str) -> None:
    """Check that a text identifies a host without its name.

    Raises:
        ValueError: It does not.
    """
    if not HOST_ID.fullmatch(host):
        raise ValueError(f"{host!r} is not 8 hexadecimal digits")
