"""What measuring takes and gives: blocks, failures, and what a session looks like once it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortune.workload import Load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class BlockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How one block is to be measured.

    Attributes:
        load: How calls arrive.
        duration_ns: Time to go on calling for, at least.
        lead_in_ns: Time of unmeasured calls before it, at least; there is always at least one call.
        min_calls: Calls that each caller makes, at least, where calls follow each other.
        seed: Decides when requests arrive, and which sample comes first: two blocks with the same seed see the same
            traffic.
        creations_ns: Time to spend on creating further sessions, after the calls; 0 for none.
        deadline_s: Time after which the candidate counts as hanging.
    """

    load: Load = Load()
    duration_ns: int
    lead_in_ns: int
    min_calls: int
    seed: int = 0
    creations_ns: int = 0
    deadline_s: float


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive calls of one candidate.

    Attributes:
        samples_ns: Latency of each call: its duration, or where calls arrive at a rate the time from its arrival.
        cases: The case that each call belongs to; None where there is one case only.
        n_calls: Calls' worth of work in `wall_ns`; with several callers, calls that overlap its ends count in part.
        wall_ns: Duration of all of them.
        lead_in_ns: Time of the unmeasured calls before.
        service_ns: Mean duration of a call from its start, without waiting for a free caller.
        cpu_ns: CPU time that the worker's process spent in `wall_ns`, all threads together.
        cpu_between_ns: Where calls arrive at a rate: CPU time for each call spent while no call was under way.
        creations_ns: Durations of the session creations after the calls, if any were asked for.
        memory: Memory after the calls.
        foreign_share: Share of the usable CPUs' time that others used meanwhile (steal included), about 0 to 1;
            one block's may be off by a tick of the kernel's clock either way. None where the system does not tell.
        contended: Whether others used enough of it to spoil the block.
        gpu: How the GPU was at the block's end, for providers that use one; None where it is not told.
    """

    samples_ns: NDArray[np.int64]
    cases: NDArray[np.int64] | None = None
    n_calls: float
    wall_ns: int
    lead_in_ns: int = 0
    service_ns: float
    cpu_ns: int
    cpu_between_ns: float | None = None
    creations_ns: NDArray[np.int64] | None = None
    memory: Memory
    foreign_share: float | None
    contended: bool
    gpu: GpuState | None = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU at one moment.

    Attributes:
        used_bytes: Memory on it that this process takes, or None where that is not told.
        utilization: Share of the last moments in which it computed, 0 to 1.
        clock_mhz: Clock of its processors.
        slowdowns: Why it runs slower than it might; empty if it does not.
    """

    used_bytes: int | None
    utilization: float
    clock_mhz: int
    slowdowns: tuple[str, ...] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resident memory of a worker: now, and at its peak."""

    steady_bytes: int
    peak_bytes: int
