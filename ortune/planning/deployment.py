"""Deployments: how many processes run a model, with how many callers and which settings."""

from __future__ import annotations

import msgspec

from ortune.bounds import MOST_ITEMS
from ortune.host import Cpus, ProcessPlacement
from ortune.knobs import ids
from ortune.knobs.config import DEFAULT, Config
from ortune.knobs.titles import describe
from ortune.workload import Load
from ortune.workload.load import Arrivals

LONGEST_DELAY_US = 10_000_000


class Batching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dynamic batching: each process puts single requests that wait in its queue together into calls.

    A call starts when a caller of the process is free, and the batch is full or its first request has waited for the
    longest delay. These are the rules of the dynamic batcher of NVIDIA's Triton Inference Server.

    Attributes:
        max_batch: Requests in a call, at most.
        max_delay_us: Longest time that the first request of a batch waits for more, in microseconds.
    """

    max_batch: int
    max_delay_us: int = 0

    def __post_init__(self) -> None:
        """Reject values that describe no batches."""
        if not 2 <= self.max_batch <= MOST_ITEMS:
            raise ValueError(f"batches of {self.max_batch}: there must be 2 to {MOST_ITEMS} requests in a batch")
        if not 0 <= self.max_delay_us <= LONGEST_DELAY_US:
            raise ValueError(f"a delay of {self.max_delay_us} us: it must be from 0 to {LONGEST_DELAY_US}")

    @property
    def title(self) -> str:
        """A short description, such as `up to 8 in a batch, delay 2 ms`."""
        delay = f", delay {self.max_delay_us / 1000:g} ms" if self.max_delay_us else ", no delay"
        return f"up to {self.max_batch} in a batch{delay}"


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to run a model on a host.

    Attributes:
        processes: Processes, each with a session of its own.
        clients: Calls that each process makes at a time.
        placement: CPUs that each process is pinned to; None if all run on all CPUs.
        config: Settings of each session.
        batching: How each process puts waiting requests together; None for a call per request.
    """

    processes: int = 1
    clients: int = 1
    placement: ProcessPlacement | None = None
    config: Config = DEFAULT
    batching: Batching | None = None

    def __post_init__(self) -> None:
        """Reject values that describe no load, and CPUs of other processes."""
        _ = self.load
        if self.placement and len(self.placement.cpus) != self.processes:
            raise ValueError(f"{self.processes} processes with the CPUs of {len(self.placement.cpus)}")
        if self.batching and self.config.batch > 1:
            raise ValueError("requests of several items are not put together: a batch of 1 or no batching")

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
        """Return requests that arrive at all processes together, given how many items they bring per second."""
        return Load(
            scenario="server",
            clients=self.clients,
            rate_per_s=rate_per_s / self.config.batch,
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
        batching = f" {self.batching.max_batch} {self.batching.max_delay_us}" if self.batching else ""
        return f"{self.processes} {self.clients} {self.cpus} {self.config.key}{batching}"

    @property
    def title(self) -> str:
        """A short description, such as `2 processes · intra threads=1`."""
        parts = ["1 process" if self.processes == 1 else f"{self.processes} processes"]
        if self.clients > 1:
            parts.append(f"{self.clients} callers" + (" each" if self.processes > 1 else ""))
        if self.placement:
            parts.append(self.placement.title)
        if self.batching:
            parts.append(self.batching.title)
        return " · ".join([*parts, describe(self.config)])

    @property
    def n_threads(self) -> int:
        """Threads of each session as it is set; 0 for ONNX Runtime's default."""
        return int(self.config.session_options.get(ids.INTRA_OP_NUM_THREADS, 0))
