"""How calls arrive at the model."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, get_args

import msgspec

from ortune.bounds import MOST_CLIENTS, MOST_PROCESSES, MOST_SESSIONS
from ortune.errors import UsageError
from ortune.numbers import format_digits

Scenario = Literal["single-stream", "multi-client", "server"]
"""MLPerf's names where it has one: "single-stream" is one client that calls back to back; "multi-client" is several
clients (a closed loop); "server" is requests that arrive whether or not earlier ones are done (an open loop)."""

Arrivals = Literal["poisson", "periodic"]

LOWEST_RATE_PER_S = 0.2
HIGHEST_RATE_PER_S = 1e6


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How calls arrive at the session.

    Attributes:
        scenario: The kind of load.
        clients: Concurrent callers of each process, each of which makes one call at a time.
        rate_per_s: For a server: mean number of requests that arrive per second at all processes together. Latency
            counts from the arrival.
        arrivals: For a server: at random ("poisson") or at equal intervals ("periodic").
        sessions: Sessions of the model in one process; clients are spread over them.
        processes: Processes that run the model at the same time. Each gets the same share of the requests.
        pinned: Whether each of several processes runs on CPUs of its own.
    """

    scenario: Scenario = "single-stream"
    clients: int = 1
    rate_per_s: float | None = None
    arrivals: Arrivals | None = None
    sessions: int = 1
    processes: int = 1
    pinned: bool = False

    def __post_init__(self) -> None:
        """Reject values that describe no load."""
        if not 1 <= self.clients <= MOST_CLIENTS or not 1 <= self.sessions <= MOST_SESSIONS:
            raise ValueError(
                f"{self.clients} clients and {self.sessions} sessions: there must be 1 to {MOST_CLIENTS} clients and 1 "
                f"to {MOST_SESSIONS} sessions"
            )
        if not 1 <= self.processes <= MOST_PROCESSES:
            raise ValueError(f"{self.processes} processes: there must be 1 to {MOST_PROCESSES}")
        if self.scenario == "single-stream" and self.processes > 1:
            raise ValueError(f"{self.processes} processes have more than a single stream of calls")
        if self.pinned and self.processes == 1:
            raise ValueError("a single process cannot be pinned apart from others")
        if (self.scenario == "server") != (self.rate_per_s is not None):
            raise ValueError(f"the scenario {self.scenario} does not go with a rate of {self.rate_per_s}")
        lowest = LOWEST_RATE_PER_S / MOST_PROCESSES
        if self.rate_per_s is not None and not lowest <= self.rate_per_s <= HIGHEST_RATE_PER_S:
            raise ValueError(f"{self.rate_per_s} requests per second: must be {lowest:g} to {HIGHEST_RATE_PER_S:g}")

    @property
    def n_callers(self) -> int:
        """Concurrent callers of all processes together."""
        return self.processes * self.clients

    @property
    def of_process(self) -> Load:
        """The load of one of the processes."""
        rate_per_s = self.rate_per_s and self.rate_per_s / self.processes
        return msgspec.structs.replace(self, rate_per_s=rate_per_s, processes=1, pinned=False)

    def utilization(self, service_ns: float) -> float:
        """Return the share of the clients' time that calls of this duration take; only where there is a rate."""
        assert self.rate_per_s is not None
        return self.rate_per_s * service_ns / 1e9 / self.n_callers

    def __str__(self) -> str:
        clients = "one client" if self.clients == 1 else f"{self.clients} clients"
        if self.sessions > 1:
            clients += f" on {self.sessions} sessions"
        if self.processes > 1:
            where = " on CPUs of their own" if self.pinned else ""
            clients = f"{self.processes} processes{where} with {clients} each"
        if self.rate_per_s is None:
            return f"{clients}, back to back"
        how = "at random" if self.arrivals == "poisson" else "at equal intervals"
        return f"{format_digits(self.rate_per_s, 6)} requests/s {how}, {clients}"


def relaxation_services(utilization: float, variation: float) -> float:
    """Return the relaxation time of a queue, in mean service times divided by the number of servers.

    It is v / 2 / (1 - sqrt(u))^2, where u is the utilization and v the sum of the squared coefficients of variation of
    the times between arrivals and of the service times.

    Args:
        utilization: Share of the servers' time that calls take, below 1.
        variation: The sum of both.

    Source: P. M. Morse, "Stochastic Properties of Waiting Lines", Journal of the Operations Research Society of America
    3 (1955), for exponentially distributed durations. The time scales with the variation as in heavy traffic: J. Abate
    and W. Whitt, "Transient Behavior of Regulated Brownian Motion", Advances in Applied Probability 19 (1987).
    """
    return variation / 2 / (1 - math.sqrt(utilization)) ** 2


def make_load(
    clients: int | None = None,
    rate_per_s: float | None = None,
    arrivals: str | None = None,
    sessions: int | None = None,
    processes: int | None = None,
    *,
    pinned: bool = False,
) -> Load:
    """Return the load that options describe.

    Args:
        clients: Concurrent callers of each process; None for one per session.
        rate_per_s: Requests that arrive per second; None for clients that call back to back.
        arrivals: "poisson" (the default with a rate) or "periodic".
        sessions: Sessions in one process; None for one. Each has the same number of clients.
        processes: Processes that run the model at the same time; None for one.
        pinned: Whether each process runs on CPUs of its own.

    Raises:
        UsageError: The options contradict each other.
    """
    n_sessions = sessions or 1
    if clients is not None and clients % n_sessions:
        raise UsageError(
            f"{clients}: must be a multiple of {{sessions={sessions}}}, as each session gets the same number of "
            "clients.",
            option="clients",
        )
    if arrivals is not None and arrivals not in get_args(Arrivals):
        raise UsageError(f"{arrivals}: must be poisson or periodic.", option="arrivals")
    n_processes = processes or 1
    if pinned and n_processes == 1:
        raise UsageError("needs several processes.", "Add {processes=2}.", option="pin_processes")
    n = clients or n_sessions
    if rate_per_s is None:
        if arrivals is not None:
            raise UsageError(f"{arrivals}: needs a rate of requests.", "Add {rate=50/s}.", option="arrivals")
        return Load(
            scenario="single-stream" if n * n_processes == 1 else "multi-client",
            clients=n,
            sessions=n_sessions,
            processes=n_processes,
            pinned=pinned,
        )
    if n_processes > 1 and rate_per_s < LOWEST_RATE_PER_S * n_processes:
        raise UsageError(
            f"{rate_per_s:g}/s: too few requests for {n_processes} processes to measure within a reasonable time.",
            f"Use {{rate={60 * LOWEST_RATE_PER_S * n_processes:g}/min}}: a session that is idle for longer behaves the "
            "same.",
            option="rate",
        )
    return Load(
        scenario="server",
        clients=n,
        rate_per_s=rate_per_s,
        arrivals="periodic" if arrivals == "periodic" else "poisson",
        sessions=n_sessions,
        processes=n_processes,
        pinned=pinned,
    )


def parse_rate(value: Any) -> float:
    """Parse `50`, `"50/s"` or `"30/min"`.

    Returns:
        Requests per second.

    Raises:
        UsageError: The value is not a rate, or too low to be measured.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:/\s*(s|sec|min|m|h))?\s*", str(value))
    per_s = float(found[1]) / {"min": 60, "m": 60, "h": 3600}.get(found[2] or "", 1) if found else 0.0
    if not 0 < per_s <= HIGHEST_RATE_PER_S:
        raise UsageError(f"{value}: is not a rate of requests.", "Write 50/s or 30/min.")
    if per_s < LOWEST_RATE_PER_S:
        raise UsageError(
            f"{value}: too few requests to measure within a reasonable time.",
            "Use {rate=12/min}: a session that is idle for longer behaves the same.",
        )
    return per_s
