"""The sessions of one candidate, inside its worker: create them, check their outputs, and measure blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ortune.knobs.config import CPU, Config
from ortune.worker import cpu, protocol
from ortune.worker.block import BlockPlan, Memory
from ortune.worker.failure import Failure
from ortune.worker.gpu import GpuReader
from ortune.worker.readback import find_unapplied, read_pool, read_preloaded, read_settings
from ortune.worker.session import CUDA_BASED
from ortune.worker.session_info import SessionInfo

if TYPE_CHECKING:
    from ortune.worker.batches import Batches
    from ortune.worker.open_loop import RequestStream

MOST_CHECKED = 8
"""Number of samples whose outputs are compared, in addition to the first sample of each case."""


class CpuTimes(NamedTuple):
    """CPU times so far.

    Attributes:
        at_ns: When they were read.
        busy_ns: Time that the usable CPUs were busy; None if unknown.
        process_ns: CPU time of this process.
        background_load_ns: CPU time of the background load; 0 if there is none.
        threads: Times of this process's threads; empty if they are not needed.
    """

    at_ns: int
    busy_ns: int | None
    process_ns: int
    background_load_ns: int
    threads: dict[int, cpu.ThreadTime]


class CandidateSession:
    """The sessions of one candidate, and the samples that calls are made with.

    Args:
        request: What to load.

    Attributes:
        call: Makes one call with one sample and returns the outputs. Set by `load`.
    """

    call: Callable[[dict[str, Any]], list[Any]]

    def __init__(self, request: protocol.LoadRequest) -> None:
        self.request = request
        self.usable = frozenset(request.usable)
        self.pool: frozenset[int] = frozenset()
        self.memory: Memory | None = None
        self.stream: RequestStream | None = None
        self.gpu = open_gpu(request.config)
        self.batches: Batches | None = None

    def load(self) -> SessionInfo:
        """Create the sessions, without running them.

        Raises:
            Exception: Any exception that onnxruntime raises.
        """
        from ortune.worker.batches import Batches
        from ortune.worker.calls import make_call
        from ortune.worker.outputs import load_outputs
        from ortune.worker.session import count_nodes, make_session, set_global_thread_pool
        from ortune.workload.feed import load_feed

        request, config = self.request, self.request.config
        self.samples, self.cases = load_feed(Path(request.feed_path))
        if config.batch > 1:
            self.batches = Batches(self.samples, self.cases, config.batch)
            self.samples = self.batches.samples
        import onnxruntime  # noqa: F401  (so that the time of the import does not count as creating the session)

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
            reference = self.batches.widen(reference) if self.batches else reference
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

    def check(self, session_info: SessionInfo) -> SessionInfo | Failure:
        """Run the session, and compare its outputs with the reference, or write them as the reference."""
        import msgspec

        from ortune.worker.batches import SplitError
        from ortune.worker.outputs import compare_outputs, describe_outputs, load_outputs, save_outputs

        request = self.request
        fault = find_unapplied(request.config, session_info, request.n_sessions)
        if fault:
            return Failure(kind="not_applied", stage="load", message=fault)
        try:
            outputs = self.run_checked_samples()
        except SplitError as error:
            return Failure(kind="wrong_output", stage="check", message=f"{error}")
        # The default's threads pin themselves when they first run, so that their CPUs are only known now.
        session_info = msgspec.structs.replace(session_info, threads=cpu.read_threads(self.pool))
        path = Path(request.reference_path)
        if request.is_reference:
            save_outputs(path, outputs)
            reference, outputs = outputs, self.run_checked_samples()
        else:
            reference = load_outputs(path)
        if len(reference[0]) != len(self.names):
            message = f"the session has {len(self.names)} outputs instead of {len(reference[0])}"
            return Failure(kind="wrong_output", stage="check", message=message)
        differences = []
        for expected, actual in zip(reference, outputs, strict=True):
            wanted, found = describe_outputs(self.names, expected), describe_outputs(self.names, actual)
            if found != wanted:
                name = next(name for name in wanted if found[name] != wanted[name])
                message = f"output {name} is {found[name]} instead of {wanted[name]}"
                return Failure(kind="wrong_output", stage="check", message=message)
            if request.compare_values:
                difference = compare_outputs(self.names, expected, actual, request.tolerance, request.quanta)
                if difference.fault and not request.is_reference:
                    where = f", in a batch of {self.batches.size}" if self.batches else ""
                    return Failure(kind="wrong_output", stage="check", message=f"{difference.fault}{where}")
                differences.append(difference)
        session_info = msgspec.structs.replace(session_info, outputs=describe_outputs(self.names, outputs[0]))
        if not request.compare_values:
            return session_info
        return msgspec.structs.replace(
            session_info,
            max_error=max(difference.max_error for difference in differences),
            deterministic=not any(difference.fault for difference in differences),
        )

    def run_checked_samples(self) -> list[list[Any]]:
        """Return the outputs of each sample whose outputs are compared."""
        from ortune.worker.calls import to_arrays

        def call(sample: dict[str, Any]) -> list[Any]:
            return to_arrays(self.call(sample))

        positions = choose_checked(self.cases)
        if self.batches:
            return self.batches.run_items(call, positions)
        return [call(self.samples[position]) for position in positions]

    def read_cpu_times(self) -> CpuTimes:
        """Return the CPU times so far. This takes up to a millisecond on hosts with many CPUs."""
        background_load = self.request.background_load
        return CpuTimes(
            at_ns=time.perf_counter_ns(),
            busy_ns=cpu.busy_ns(self.usable),
            process_ns=time.process_time_ns(),
            background_load_ns=cpu.tree_ns(background_load) if background_load is not None else 0,
            threads=cpu.read_thread_times() if self.request.check_waiting else {},
        )

    def measure(self, plan: BlockPlan) -> protocol.BlockReply:
        """Measure one block, after its lead-in.

        Raises:
            Exception: Any exception that onnxruntime raises.
        """
        import numpy as np

        from ortune.worker.load_generator import generate_load
        from ortune.worker.open_loop import RequestStream

        if self.stream is None or self.stream.load != plan.load:
            self.stream = RequestStream(plan.load)
        window = generate_load(self.call, self.samples, plan, self.read_cpu_times, stream=self.stream)
        before, after = window.before, window.after
        share, contended = None, False
        if before.busy_ns is not None and after.busy_ns is not None:
            own_ns = after.process_ns - before.process_ns
            background_load_ns = after.background_load_ns - before.background_load_ns
            foreign_ns = after.busy_ns - before.busy_ns - own_ns - background_load_ns
            wall_ns, n_cpus = after.at_ns - before.at_ns, len(self.usable)
            wait_ns = cpu.find_longest_wait(before.threads, after.threads, wall_ns, n_cpus)
            use = cpu.CpuUse(wall_ns, n_cpus, self.request.n_cores or n_cpus, own_ns, foreign_ns, wait_ns)
            share, contended = use.foreign_share, use.contended
        memory = self.memory or cpu.read_memory()
        creations = None
        if plan.creations_ns:
            # The memory of these extra sessions must not count as the candidate's in later blocks.
            self.memory = memory
            creations = np.asarray(self.time_creations(plan.creations_ns), dtype="<i8").tobytes()
        has_one_case = len(set(self.cases)) == 1
        return protocol.BlockReply(
            samples=window.latencies_ns.astype("<i8").tobytes(),
            cases=None if has_one_case else np.asarray(self.cases, dtype="<i8")[window.positions].tobytes(),
            n_calls=window.n_calls,
            batch=self.request.config.batch,
            wall_ns=window.wall_ns,
            lead_in_ns=window.lead_in_ns,
            service_ns=window.service_ns,
            cpu_ns=window.cpu_ns,
            cpu_between_ns=window.cpu_between_ns,
            creations=creations,
            memory=memory,
            foreign_share=share,
            contended=contended,
            gpu=self.gpu.read() if self.gpu else None,
        )

    def time_creations(self, duration_ns: int) -> list[int]:
        """Create sessions for this time, at least two, and return how long each took."""
        from ortune.worker.session import time_session_creation

        durations: list[int] = []
        begin = time.perf_counter_ns()
        while len(durations) < 2 or time.perf_counter_ns() - begin < duration_ns:
            config = self.request.config.of_session(len(durations))
            durations.append(time_session_creation(self.request.model_path, config)[1])
        return durations


def open_gpu(config: Config) -> GpuReader | None:
    """Return a reader of the GPU that a config uses; None if it uses none."""
    if config.provider not in CUDA_BASED:
        return None
    return GpuReader(int(dict(config.providers)[config.provider].get("device_id", "0")))


def choose_checked(cases: list[int]) -> list[int]:
    """Return the positions of the samples whose outputs are compared.

    These are the first sample of each case, and samples at regular distances in between.

    Args:
        cases: The case of each sample.
    """
    firsts = {cases.index(case) for case in set(cases)}
    step = -(-len(cases) // MOST_CHECKED)
    return sorted(firsts | set(range(0, len(cases), step)))
