"""What measuring takes and gives: blocks, failures, and what a session looks like once it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from ortune.knobs.config import Config
from ortune.workload import Load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNTUNED = {"ORTUNE_APPLY": "off"}
"""Environment of every child that makes sessions: what is measured must not be tuned behind its back, where ortune
itself runs in an environment in which records are applied (`ortune.apply.inside.hook`)."""

FailureKind = Literal["exception", "crash", "exit", "timeout", "out_of_memory", "wrong_output", "not_applied"]


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a candidate cannot be had. It is a value: the search goes on without the candidate.

    Attributes:
        kind: "exception" (ONNX Runtime refused), "crash" (a signal), "exit" (the process ended by itself),
            "timeout", "out_of_memory", "wrong_output" (outputs differ from the default's), or "not_applied"
            (ONNX Runtime accepted a setting that did not take effect).
        stage: What was being done: "start", "load", "check" or "measure".
        message: The cause, for people.
    """

    kind: FailureKind
    stage: str
    message: str


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
    gpu: Gpu | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class PoolThread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thread that appeared while the session was created, and the CPUs that it is allowed on."""

    cpus: tuple[int, ...]


class Loaded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session turned out to be, read back after it was created and run once.

    Attributes:
        load_ns: Time that creating the session took.
        providers: Execution providers that the session has.
        nodes: How many nodes each provider got, the CPU last; empty for the CPU alone, or where onnxruntime is too old.
        threads: Pool threads with the CPUs that they are allowed on; empty where the system does not tell.
        settings: SessionOptions, their entries and options of providers as the session has them, for those of the
            config.
        outputs: Each output's type and shape.
        max_error: Largest difference of an output from the default's, as a share of the output's largest value;
            for the first default, from its own second run.
        deterministic: Whether the default's second run agreed with its first. Where it did not, only types and
            shapes of outputs are compared.
        build_s: Time that the provider took to compile the model, before and apart from this session; None where it
            does not compile.
        preloaded: Libraries of the config's LD_PRELOAD that are in the process.
        log: What the worker printed while loading: ONNX Runtime's warnings and errors.
    """

    load_ns: int
    providers: tuple[str, ...]
    nodes: dict[str, int] = {}
    threads: tuple[PoolThread, ...] = ()
    settings: dict[str, int | bool | str] = {}
    outputs: dict[str, str] = {}
    max_error: float | None = None
    deterministic: bool = True
    build_s: float | None = None
    preloaded: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that a worker runs."""

    onnxruntime: str
    providers: tuple[str, ...]
    python: str
    ortune: str


class Live(Protocol):
    """A candidate with a session that can be measured; it does not run while it is not measured."""

    @property
    def config(self) -> Config:
        """The candidate's config."""

    @property
    def loaded(self) -> Loaded:
        """What the session turned out to be."""

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure one block. After a Failure the candidate is gone."""

    def close(self) -> None:
        """End it; may be called more than once."""


class Executor(Protocol):
    """Makes candidates live. Search code cannot tell whether they are processes or recordings."""

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[Live | Failure]:
        """Make all of them live, side by side; one answer for each config, in the same order.

        The first config ever launched must be the default: its outputs are the reference.
        """

    def now_s(self) -> float:
        """Return the time on a clock that only goes forward, in seconds."""
