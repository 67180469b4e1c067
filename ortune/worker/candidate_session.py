"""The sessions of one candidate in its worker: created, checked against the reference, measured in blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ortune.knobs.config import CPU, Config
from ortune.worker import cpu, protocol
from ortune.worker.block import BlockPlan, Memory
from ortune.worker.failure import Failure
from ortune.worker.gpu import GpuReader
from ortune.worker.readback import find_unapplied, read_pool, read_preloaded, read_settings
from ortune.worker.session import CUDA_BASED
from ortune.worker.session_info import SessionInfo

MOST_CHECKED = 8
"""Samples whose outputs are compared, beside the first of each case."""


class CpuTimes(NamedTuple):
    """CPU times so far: of the usable CPUs (None where it is not told), of this process, of the background_load."""

    busy_ns: int | None
    process_ns: int
    neighbour_ns: int


class CandidateSession:
    """The session of one candidate, and what is fed to it."""

    def __init__(self, request: protocol.LoadRequest) -> None:
        self.request = request
        self.usable = frozenset(request.usable)
        self.call: Callable[[dict[str, Any]], list[Any]]
        self.pool: frozenset[int] = frozenset()
        self.memory: Memory | None = None
        self.gpu = open_gpu(request.config)

    def load(self) -> SessionInfo:
        """Create the session and run it.

        Raises:
            Exception: Whatever onnxruntime raises.
        """
        from ortune.worker.calls import make_call
        from ortune.worker.outputs import load_outputs
        from ortune.worker.session import count_nodes, make_session, set_global_thread_pool
        from ortune.workload.inputs import load_feed

        request, config = self.request, self.request.config
        self.samples, self.cases = load_feed(Path(request.feed_path))
        import onnxruntime  # noqa: F401  (so that importing it does not count as creating the session)

        before = cpu.thread_ids()
        start = time.perf_counter_ns()
        set_global_thread_pool(config)
        sessions = [
            make_session(request.model_path, config.of_session(number), record_assignment=config.provider != CPU)
            for number in range(request.n_sessions)
        ]
        load_ns = (time.perf_counter_ns() - start) // request.n_sessions
        self.pool = cpu.thread_ids() - before
        threads = read_pool(self.pool, config, request.n_sessions)
        session = sessions[0]
        reference = None
        if config.io_binding and not request.is_reference:
            reference = load_outputs(Path(request.reference_path))[0]
        self.call = make_call(sessions, config, reference)
        self.names = [output.name for output in session.get_outputs()]
        return SessionInfo(
            load_ns=load_ns,
            providers=tuple(session.get_providers()),
            nodes=count_nodes(session) if config.provider != CPU else {},
            threads=threads,
            settings=read_settings(session, config),
            preloaded=read_preloaded(config),
        )

    def check(self, loaded: SessionInfo) -> SessionInfo | Failure:
        """Compare the outputs with the default's, or write them down as the reference."""
        import msgspec

        from ortune.worker.calls import to_arrays
        from ortune.worker.outputs import compare_outputs, describe_outputs, load_outputs, save_outputs

        fault = find_unapplied(self.request.config, loaded, self.request.n_sessions)
        if fault:
            return Failure(kind="not_applied", stage="load", message=fault)
        samples = [self.samples[position] for position in choose_checked(self.cases)]
        outputs = [to_arrays(self.call(sample)) for sample in samples]
        # Threads of the default pin themselves when they first run, which nobody waits for: now they have run.
        loaded = msgspec.structs.replace(loaded, threads=cpu.read_threads(self.pool))
        path = Path(self.request.reference_path)
        if self.request.is_reference:
            save_outputs(path, outputs)
            reference, outputs = outputs, [to_arrays(self.call(sample)) for sample in samples]
        else:
            reference = load_outputs(path)
        described = describe_outputs(self.names, outputs[0])
        worst, deterministic = 0.0, True
        if len(reference[0]) != len(self.names):
            message = f"it gives {len(self.names)} outputs instead of {len(reference[0])}"
            return Failure(kind="wrong_output", stage="check", message=message)
        for expected, actual in zip(reference, outputs, strict=True):
            wanted, found = describe_outputs(self.names, expected), describe_outputs(self.names, actual)
            if found != wanted:
                name = next(name for name in wanted if found[name] != wanted[name])
                message = f"output {name} is {found[name]} instead of {wanted[name]}"
                return Failure(kind="wrong_output", stage="check", message=message)
            if not self.request.compare_values:
                continue
            difference = compare_outputs(self.names, expected, actual, self.request.tolerance, self.request.quanta)
            if difference.fault and not self.request.is_reference:
                return Failure(kind="wrong_output", stage="check", message=difference.fault)
            worst = max(worst, difference.max_error)
            deterministic = deterministic and not difference.fault
        if not self.request.compare_values:
            return msgspec.structs.replace(loaded, outputs=described)
        return msgspec.structs.replace(loaded, outputs=described, max_error=worst, deterministic=deterministic)

    def read(self, is_start: bool) -> CpuTimes:
        """Return the CPU times so far; reading itself takes some, which lies outside of the window."""
        if is_start:
            neighbour_ns = self.read_neighbour()
            busy_ns = cpu.busy_ns(self.usable)
            return CpuTimes(busy_ns, time.process_time_ns(), neighbour_ns)
        process_ns = time.process_time_ns()
        busy_ns = cpu.busy_ns(self.usable)
        return CpuTimes(busy_ns, process_ns, self.read_neighbour())

    def read_neighbour(self) -> int:
        """Return the background_load's CPU time so far, 0 without one."""
        background_load = self.request.background_load
        return cpu.tree_ns(background_load) if background_load is not None else 0

    def measure(self, plan: BlockPlan) -> protocol.BlockReply:
        """Measure one block, after its lead-in.

        Raises:
            Exception: Whatever onnxruntime raises.
        """
        import numpy as np

        from ortune.worker.load_generator import generate_load

        window = generate_load(self.call, self.samples, plan, self.read)
        before, after = window.before, window.after
        cpu_ns = after.process_ns - before.process_ns
        share, contended = None, False
        if before.busy_ns is not None and after.busy_ns is not None:
            foreign_ns = after.busy_ns - before.busy_ns - cpu_ns - (after.neighbour_ns - before.neighbour_ns)
            share, contended = cpu.foreign_share(foreign_ns, window.wall_ns, len(self.usable))
        memory = self.memory or cpu.read_memory()
        creations = None
        if plan.creations_ns:
            # A second session beside the first would count as memory of the candidate in all later blocks.
            self.memory = memory
            creations = np.asarray(self.create_again(plan.creations_ns), dtype="<i8").tobytes()
        one_case = len(set(self.cases)) == 1
        return protocol.BlockReply(
            samples=window.latencies_ns.astype("<i8").tobytes(),
            cases=None if one_case else np.asarray(self.cases, dtype="<i8")[window.positions].tobytes(),
            n_calls=window.n_calls,
            wall_ns=window.wall_ns,
            lead_in_ns=window.lead_in_ns,
            service_ns=window.service_ns,
            cpu_ns=cpu_ns,
            cpu_between_ns=window.cpu_between_ns,
            creations=creations,
            memory=memory,
            foreign_share=share,
            contended=contended,
            gpu=self.gpu.read() if self.gpu else None,
        )

    def create_again(self, duration_ns: int) -> list[int]:
        """Create sessions for that long, at least two, and return how long each took."""
        from ortune.worker.session import make_session

        durations: list[int] = []
        begin = time.perf_counter_ns()
        while len(durations) < 2 or time.perf_counter_ns() - begin < duration_ns:
            start = time.perf_counter_ns()
            session = make_session(self.request.model_path, self.request.config)
            durations.append(time.perf_counter_ns() - start)
            del session
        return durations


def open_gpu(config: Config) -> GpuReader | None:
    """Return what reads the GPU that a config uses, or None where it uses none."""
    if config.provider not in CUDA_BASED:
        return None
    return GpuReader(int(dict(config.providers)[config.provider].get("device_id", "0")))


def choose_checked(cases: list[int]) -> list[int]:
    """Return the positions of the samples whose outputs are compared: the first of each case, and some in between."""
    firsts = {cases.index(case) for case in set(cases)}
    step = -(-len(cases) // MOST_CHECKED)
    return sorted(firsts | set(range(0, len(cases), step)))
