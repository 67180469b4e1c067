"""One block of timed calls: how it is to be measured, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortune.numbers import Count, Difference
from ortune.workload import Load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ItemGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Items that are put together into one call.

    Attributes:
        items: Their numbers among the samples.
        length: Length that they are padded to.
    """

    items: tuple[int, ...]
    length: int


class ItemsJob(msgspec.Struct, frozen=True, kw_only=True):
    """Calls with items of different lengths, which are made one after another and measured as one.

    Attributes:
        groups: The items of each call.
        axes: Axes of each input that have the length of the item.
        is_checked: Whether the outputs of each item are compared with those of the item alone.
    """

    groups: tuple[ItemGroup, ...]
    axes: dict[str, tuple[int, ...]]
    is_checked: bool = False

    @property
    def n_items(self) -> int:
        """Items of all calls."""
        return sum(len(group.items) for group in self.groups)


class BlockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to measure one block.

    Attributes:
        load: How calls arrive.
        duration_ns: Minimum time of measured calls. If the block ends after a number of calls, their expected time.
        lead_in_ns: Minimum time of unmeasured calls before them, at least one call. With 0, one caller makes no
            unmeasured call.
        min_calls: Minimum number of measured calls of each caller. It has no effect where requests arrive at a rate.
        n_calls: Number of measured calls after which the block ends, or by time if they take much longer than planned;
            None to end it by time. Only for the function of a program, which has its own items.
        n_lead_in_calls: Number of unmeasured calls before them, if the block ends after a number of calls.
        seed: Random seed of the arrival times, and the position of the first sample. Two blocks with the same seed get
            the same traffic.
        creations_ns: Time to spend on creating more sessions after the calls; 0 for none.
        deadline_s: Time after which the candidate counts as hanging.
        give_up_ns: If the first call takes longer, it is the whole block. None to measure the whole block in any case.
            It has no effect where requests arrive at a rate.
        longest_warm_up_ns: Where requests arrive at a rate: maximum time that the first block of a launch lets the
            queue reach its steady state before the lead-in; 0 for none.
        max_batch: Where requests arrive at a rate: how many that wait are put together into a call, at most.
        max_delay_ns: Longest time that the first request of a batch waits for more.
        job: Calls that stand for each call of the load; None for calls with the samples in turn.
    """

    load: Load = Load()
    duration_ns: int
    lead_in_ns: int
    min_calls: int
    n_calls: int | None = None
    n_lead_in_calls: int = 0
    seed: int = 0
    creations_ns: int = 0
    deadline_s: float
    give_up_ns: int | None = None
    longest_warm_up_ns: int = 0
    max_batch: int = 1
    max_delay_ns: int = 0
    job: ItemsJob | None = None

    def under(self, load: Load) -> BlockPlan:
        """Return the plan of a block under another load."""
        return self if load == self.load else msgspec.structs.replace(self, load=load)


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resident memory of a worker: the current size and the peak.

    For a group of processes, these are sums. Pages that processes share, such as those of libraries, count in each.
    """

    steady_bytes: int
    peak_bytes: int


class GpuState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU at one moment.

    Attributes:
        used_bytes: GPU memory in use by this process; None if unknown.
        clock_mhz: Clock frequency of the streaming multiprocessors; None if unknown.
        slowdowns: Why the GPU runs below its full clock frequency; empty if it does not.
        free_bytes: GPU memory that is free; None if unknown.
        free_before_bytes: The same before this process created its session.
    """

    used_bytes: int | None = None
    clock_mhz: int | None = None
    slowdowns: tuple[str, ...] = ()
    free_bytes: int | None = None
    free_before_bytes: int | None = None


class CpuPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU time that threads spent on one CPU: the time of a thread counts on the CPU where it ran last.

    Attributes:
        cpu: Number of the CPU.
        pool_ns: Time of the threads of the session's pools.
        calls_ns: Time of the threads that make calls.
    """

    cpu: Count
    pool_ns: Difference
    calls_ns: Difference


class BlockFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the calls of a block together.

    Attributes:
        n_calls: Amount of work done in `wall_ns`, in calls. Where calls overlap the ends of the window, they count
            in part.
        n_untimed: Calls among them whose durations are not measured: the first one of each run of a program.
        batch: Number of items in each call.
        wall_ns: Duration of the window.
        lead_in_ns: Duration of the unmeasured calls before it.
        service_ns: Mean duration of a call from its start, without the wait for a free caller. Where requests are put
            together, the part of it for each request.
        service_sd_ns: Standard deviation of these durations; 0 unless requests arrive at a rate.
        cpu_ns: CPU time of the worker in `wall_ns`, summed over all threads, and over all processes of a group.
        cpu_between_ns: CPU time spent while no call was running, per call; None unless requests arrive at a rate.
        memory: Memory after the calls.
        foreign_share: Fraction of the usable CPUs' time that other processes used, steal time included. About 0 to 1:
            in one block it may be off by one tick of the kernel's clock in either direction. None if unknown.
        contended: Whether other processes used enough CPU time to spoil the block.
        gpu: State of the GPU at the end of the block; None if the provider uses none, or if it is unknown.
        clock_jump_s: By how much the clocks of the host disagree about the duration of the block, because it was
            suspended or its time was set; 0 if they agree.
        metric: Number that a program printed; None if it is not wanted.
        output_error: For a job that is checked: largest difference of an item's outputs from those of the item alone,
            as a fraction of the output's largest value. None for other blocks.
        output_fault: Why outputs of the job are not those of the items alone; empty if they are.
        places: CPU time on each CPU since the block before; empty if unknown. All processes of a group count.
        frequency_hz: Mean frequency of these CPUs at the end of the block, weighted by this time; None if unknown.
    """

    n_calls: float
    n_untimed: int = 0
    batch: int = 1
    wall_ns: int
    lead_in_ns: int = 0
    service_ns: float
    service_sd_ns: float = 0.0
    cpu_ns: int
    cpu_between_ns: float | None = None
    memory: Memory
    foreign_share: float | None
    contended: bool
    gpu: GpuState | None = None
    clock_jump_s: float = 0.0
    metric: float | None = None
    output_error: float | None = None
    output_fault: str = ""
    places: tuple[CpuPlace, ...] = ()
    frequency_hz: float | None = None

    @property
    def n_items(self) -> float:
        """Amount of work done in `wall_ns`, in items."""
        return self.n_calls * self.batch


class Block(BlockFigures, frozen=True, kw_only=True):
    """Consecutive calls of one candidate.

    Attributes:
        samples_ns: Latency of each call: its duration, or the time since its arrival where requests arrive at a rate.
        cases: Case that each call belongs to; None if there is only one case.
        processes: Process of the group that served each call, counted from 0; None for a single process.
        creations_ns: Durations of the session creations after the calls; None if the plan has none.
    """

    samples_ns: NDArray[np.int64]
    cases: NDArray[np.int64] | None = None
    processes: NDArray[np.int64] | None = None
    creations_ns: NDArray[np.int64] | None = None
