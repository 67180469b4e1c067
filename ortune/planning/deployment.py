"""Deployments: how many processes run a model, with how many callers and which settings."""

from __future__ import annotations

import msgspec

from ortune.host import Cpus, ProcessPlacement
from ortune.knobs import describe, ids
from ortune.knobs.config import DEFAULT, Config
from ortune.workload import Load
from ortune.workload.load import Arrivals


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to run a model on a host.

    Attributes:
        processes: Processes, each with a session of its own.
        clients: Calls that each process makes at a time.
        placement: CPUs that each process is pinned to; None if all run on all CPUs.
        config: Settings of each session.
    """

    processes: int = 1
    clients: int = 1
    placement: ProcessPlacement | None = None
    config: Config = DEFAULT

    def __post_init__(self) -> None:
        """Reject values that describe no load, and CPUs of other processes."""
        _ = self.load
        if self.placement and len(self.placement.cpus) != self.processes:
            raise ValueError(f"{self.processes} processes with the CPUs of {len(self.placement.cpus)}")

    @property
    def pinned(self) -> bool:
        """Whether several processes are pinned to CPUs."""
        return self.placement is not None and self.processes > 1

    @property
    def cpus(self) -> tuple[Cpus, ...]:
        """CPUs of each process; empty if all run on all CPUs."""
        return self.placement.cpus if self.placement else ()

    @property
    def load(self) -> Load:
        """Callers that call back to back, as many as the deployment serves at a time."""
        return Load(
            scenario="single-stream" if self.n_callers == 1 else "multi-client",
            clients=self.clients,
            processes=self.processes,
            pinned=self.pinned,
        )

    def load_at(self, rate_per_s: float, arrivals: Arrivals = "poisson") -> Load:
        """Return requests that arrive at a rate, at all processes together."""
        return Load(
            scenario="server",
            clients=self.clients,
            rate_per_s=rate_per_s,
            arrivals=arrivals,
            processes=self.processes,
            pinned=self.pinned,
        )

    @property
    def n_callers(self) -> int:
        """Calls that all processes make at a time."""
        return self.processes * self.clients

    @property
    def key(self) -> str:
        """A text that is the same for equal deployments."""
        return f"{self.processes} {self.clients} {self.cpus} {self.config.key}"

    @property
    def title(self) -> str:
        """A short description, such as `2 processes · intra threads=1`."""
        parts = ["1 process" if self.processes == 1 else f"{self.processes} processes"]
        if self.clients > 1:
            parts.append(f"{self.clients} callers" + (" each" if self.processes > 1 else ""))
        if self.placement:
            parts.append(self.placement.title)
        return " · ".join([*parts, describe(self.config)])

    @property
    def n_threads(self) -> int:
        """Threads of each session as it is set; 0 for ONNX Runtime's default."""
        return int(self.config.session_options.get(ids.INTRA_OP_NUM_THREADS, 0))
