"""The sessions of one candidate, inside its worker: create them, check their outputs, and measure blocks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.knobs.config import CPU, CUDA_BASED, Config
from ortune.worker import cpu, protocol
from ortune.worker.barrier import Exchange
from ortune.worker.block import Block, BlockPlan, ItemsJob, Memory
from ortune.worker.failure import Failure
from ortune.worker.gpu import GpuReader, find_number
from ortune.worker.places import PlaceReader, find_frequency_hz
from ortune.worker.readback import find_unapplied, read_pool, read_preloaded, read_settings
from ortune.worker.session import MISCOUNTED
from ortune.worker.session_info import SessionInfo

if TYPE_CHECKING:
    from ortune.worker.batches import Batches
    from ortune.worker.jobs import JobPreparation, PreparedJob
    from ortune.worker.open_loop import RequestStream

SEED_STEP = 0x9E3779B1
"""Distance between the random seeds of the processes of a group."""

MOST_CHECKED = 8
"""Number of samples whose outputs are compared, in addition to the first sample of each case."""


REPEATED_S = 0.5
"""Time that samples may take that are run again at a launch."""

LONGEST_PASS_S = 1.0
"""If the first calls with all of them took longer, they are not run again."""

LONGEST_CHECK_S = 0.05
"""Before blocks, samples are not run again if that took longer: blocks would take much longer than planned."""

LARGEST_CHECK_BYTES = 16_000_000
"""Nor if the file with the reference outputs is larger than this."""


class CandidateSession:
    """The sessions of one candidate, and the samples that calls are made with.

    Args:
        request: What to load.

    Attributes:
        call: Makes one call with one sample and returns the outputs. Set by `load`.
        exchange: Exchanges numbers with the other processes of the group. `ortune.worker.main` sets it.
    """

    call: Callable[[dict[str, Any]], list[Any]]
    exchange: Exchange

    def __init__(self, request: protocol.LoadRequest) -> None:
        self.request = request
        self.usable = frozenset(request.usable)
        self.pool: frozenset[int] = frozenset()
        self.memory: Memory | None = None
        self.stream: RequestStream | None = None
        self.gpu = open_gpu(request.config)
        self.places: PlaceReader | None = None
        self.batches: Batches | None = None
        self.jobs: JobPreparation | None = None
        self.largest_checked = 1
        self.pass_s = self.check_s = 0.0
        self.n_blocks = 0

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
        if request.cpus:
            cpu.pin_process(request.cpus)
        self.samples, self.cases = load_feed(Path(request.feed_path))
        if config.batch > 1:
            self.batches = Batches(self.samples, self.cases, config.batch)
            self.samples = self.batches.samples
        import onnxruntime  # noqa: F401  (so that the time of the import does not count as creating the session)

        nodes = self.profile_nodes_first() if config.provider in MISCOUNTED else {}
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
        if config.provider not in {CPU, *MISCOUNTED}:
            nodes = count_nodes(session)
        self.names = [output.name for output in session.get_outputs()]
        return SessionInfo(
            load_ns=load_ns,
            providers=tuple(session.get_providers()),
            nodes=nodes,
            threads=threads,
            settings=read_settings(session, config),
            preloaded=read_preloaded(config),
        )

    def check(self, session_info: SessionInfo) -> SessionInfo | Failure:
        """Run the session, and compare its outputs with the reference, or write them as the reference."""
        from ortune.worker.batches import SplitError
        from ortune.worker.filled_memory import fill_memory
        from ortune.worker.outputs import load_outputs, save_outputs

        request = self.request
        if request.config.provider in MISCOUNTED and not session_info.nodes:
            session_info = msgspec.structs.replace(session_info, nodes=self.profile_nodes())
        fault = find_unapplied(request.config, session_info, request.n_sessions)
        if fault:
            return Failure(kind="not_applied", stage="load", message=fault)
        if request.memory_callers:
            # Before outputs are compared, as they would count, too.
            self.memory = fill_memory(self.call, self.samples, request.memory_callers)
        try:
            outputs = self.run_checked_samples()
        except SplitError as error:
            return Failure(kind="wrong_output", stage="check", message=f"{error}")
        # The default's threads pin themselves when they first run, so that their CPUs are only known now.
        session_info = msgspec.structs.replace(session_info, threads=cpu.read_threads(self.pool))
        path = Path(request.reference_path)
        if request.is_reference:
            try:
                save_outputs(path, outputs)
            except OSError as error:
                return Failure(kind="exception", stage="files", message=error.strerror or f"{error}")
            reference, outputs = outputs, self.run_checked_samples()
        else:
            reference = load_outputs(path)
        if len(reference[0]) != len(self.names):
            message = f"the session has {len(self.names)} outputs instead of {len(reference[0])}"
            return Failure(kind="wrong_output", stage="check", message=message)
        try:
            return self.compare_checked_samples(session_info, reference, outputs)
        except SplitError as error:
            return Failure(kind="wrong_output", stage="check", message=f"{error}, in a repeated call")

    def compare_checked_samples(
        self, session_info: SessionInfo, reference: list[list[Any]], outputs: list[list[Any]]
    ) -> SessionInfo | Failure:
        """Compare the outputs of each sample, and of repeated calls, with the reference.

        Args:
            session_info: The session, to which the result is added.
            reference: The outputs of the reference.
            outputs: The outputs of the first run.

        Raises:
            SplitError: In a repeated call, the outputs cannot be divided into those of the items.
        """
        from ortune.worker.outputs import compare_outputs, describe_outputs

        request = self.request
        differences = []
        for expected, actual, repeated in self.repeat_checked_samples(reference, outputs):
            wanted, found = describe_outputs(self.names, expected), describe_outputs(self.names, actual)
            if found != wanted:
                name = next(name for name in wanted if found[name] != wanted[name])
                message = f"output {name} is {found[name]} instead of {wanted[name]}"
                return Failure(kind="wrong_output", stage="check", message=message)
            if request.compare_values:
                difference = compare_outputs(self.names, expected, actual, request.tolerance, request.quanta)
                if difference.fault and repeated and request.is_baseline and not request.is_reference:
                    continue
                if difference.fault and not request.is_reference:
                    where = f", in a batch of {self.batches.size}" if self.batches else ""
                    return Failure(kind="wrong_output", stage="check", message=f"{difference.fault}{where}{repeated}")
                differences.append(difference)
        session_info = msgspec.structs.replace(session_info, outputs=describe_outputs(self.names, outputs[0]))
        if not request.compare_values:
            return session_info
        return msgspec.structs.replace(
            session_info,
            max_error=max(difference.max_error for difference in differences),
            deterministic=not any(difference.fault for difference in differences),
        )

    def profile_nodes_first(self) -> dict[str, int]:
        """Return the number of nodes that each provider runs: what an earlier launch found, or what a profile shows.

        It is called before the session is created, so that there is memory for the session of the profile.

        Returns:
            Nothing if there is an exception. The session will probably raise it, too, and in the right stage.
        """
        from ortune.worker.session import set_global_thread_pool

        if self.request.nodes:
            return self.request.nodes
        set_global_thread_pool(self.request.config)
        try:
            return self.profile_nodes()
        except Exception:  # noqa: BLE001  (onnxruntime raises several kinds)
            return {}

    def profile_nodes(self) -> dict[str, int]:
        """Return the number of nodes that each provider runs, from a profile."""
        from ortune.worker.session import count_nodes_in_profile

        config = self.request.config.of_session(0)
        return count_nodes_in_profile(self.request.model_path, config, self.samples[0], Path(tempfile.gettempdir()))

    def call_for_arrays(self, sample: dict[str, Any]) -> list[Any]:
        """Make one call, and return its outputs as `run` returns them."""
        from ortune.worker.calls import to_arrays

        return to_arrays(self.call(sample))

    def run_checked_samples(self) -> list[list[Any]]:
        """Return the outputs of each sample whose outputs are compared."""
        positions = choose_checked(self.cases)
        start_s = time.monotonic()
        if self.batches:
            outputs = self.batches.run_items(self.call_for_arrays, positions)
        else:
            outputs = [self.call_for_arrays(self.samples[position]) for position in positions]
        self.pass_s = time.monotonic() - start_s
        return outputs

    def repeat_checked_samples(
        self, reference: list[list[Any]], outputs: list[list[Any]]
    ) -> Iterator[tuple[list[Any], list[Any], str]]:
        """Yield the reference and the outputs of each sample, and what to add to a message about them.

        On other providers than the CPU, samples are run again as often as there is time for: a kernel with a race
        condition returns wrong outputs only in some calls.

        Args:
            reference: The outputs of the reference.
            outputs: The outputs of the first run.
        """
        for expected, actual in zip(reference, outputs, strict=True):
            yield expected, actual, ""
        end_s = time.monotonic() + REPEATED_S
        for number in range(self.request.repeats):
            # The first calls of a session take longer: they load libraries and choose kernels.
            if self.pass_s > LONGEST_PASS_S if number == 0 else time.monotonic() + self.pass_s > end_s:
                return
            for expected, actual in zip(reference, self.run_checked_samples(), strict=True):
                yield expected, actual, ", in a repeated call"

    def check_again(self) -> Failure | None:
        """Check, between two blocks, that the outputs of one sample are still those of the reference.

        This is for candidates whose samples are run again at launch, and whose calls are short.
        """
        from ortune.worker.outputs import compare_outputs, load_outputs

        request = self.request
        if not request.repeats or not request.compare_values or self.batches:
            return None
        positions, path = choose_checked(self.cases), Path(request.reference_path)
        if self.check_s > LONGEST_CHECK_S or path.stat().st_size > LARGEST_CHECK_BYTES:
            return None
        number = self.n_blocks % len(positions)
        self.n_blocks += 1
        start_s = time.monotonic()
        outputs = self.call_for_arrays(self.samples[positions[number]])
        # The reference is read each time, because what is kept would count as memory of the candidate.
        expected = load_outputs(path)[number]
        difference = compare_outputs(self.names, expected, outputs, request.tolerance, request.quanta)
        self.check_s = time.monotonic() - start_s
        # The baseline makes the same call, so that it is as warm as the candidates.
        if not difference.fault or request.is_baseline:
            return None
        return Failure(kind="wrong_output", stage="measure", message=f"{difference.fault}, in a repeated call")

    def check_served(self, size: int) -> Failure | None:
        """Check that the batching server gives each of so many requests the outputs that the reference has."""
        from ortune.worker.batches import SplitError
        from ortune.worker.batching_server import BatchingServer
        from ortune.worker.outputs import compare_outputs, load_outputs

        request, positions = self.request, choose_checked(self.cases)
        reference = load_outputs(Path(request.reference_path))
        chosen = [number % len(positions) for number in range(size)]
        try:
            served = BatchingServer(self.call_for_arrays).serve([self.samples[positions[number]] for number in chosen])
        except SplitError as error:
            return Failure(kind="wrong_output", stage="check", message=f"{error}")
        self.largest_checked = size
        if not request.compare_values:
            return None
        for number, outputs in zip(chosen, served, strict=True):
            difference = compare_outputs(self.names, reference[number], outputs, request.tolerance, request.quanta)
            if difference.fault:
                where = f", in a batch of {size} requests"
                return Failure(kind="wrong_output", stage="check", message=f"{difference.fault}{where}")
        return None

    def prepare_job(self, job: ItemsJob) -> PreparedJob:
        """Return the calls of a job. Items must be samples of their own, so that the config has no batches."""
        from ortune.worker.jobs import JobPreparation
        from ortune.worker.outputs import Difference, compare_outputs

        request = self.request

        def compare(expected: Sequence[Any], actual: Sequence[Any]) -> Difference:
            if not request.compare_values:  # two runs of the reference disagreed
                return Difference()
            return compare_outputs(self.names, expected, actual, request.tolerance, request.quanta)

        if self.jobs is None:
            self.jobs = JobPreparation(self.samples, self.call_for_arrays, compare)
        return self.jobs.prepare(job)

    def read_cpu_times(self, group: tuple[int, ...] = ()) -> cpu.CpuTimes:
        """Return the CPU times so far. This takes up to a millisecond on hosts with many CPUs.

        Args:
            group: Ids of the processes that are measured together; empty for this one alone.
        """
        background_load = self.request.background_load
        return cpu.CpuTimes(
            at_ns=time.perf_counter_ns(),
            busy_ns=cpu.busy_ns(self.usable),
            own_ns=sum(map(cpu.find_process_ns, group)) if group else time.process_time_ns(),
            background_load_ns=cpu.tree_ns(background_load) if background_load is not None else 0,
            threads=cpu.read_thread_times(group or None) if self.request.check_waiting else {},
        )

    def measure(self, request: protocol.MeasureRequest) -> Block | Failure:
        """Measure one block, after its lead-in.

        In a group, each process measures its own calls, and the first one measures how much CPU time all of them and
        all others use.

        Raises:
            Exception: Any exception that onnxruntime raises.
        """
        import numpy as np

        from ortune.worker.batching_server import BatchingServer
        from ortune.worker.load_generator import generate_load
        from ortune.worker.open_loop import RequestStream
        from ortune.worker.window import RealClock

        plan, load = plan_of_process(request), request.plan.load
        call: Callable[[Any], Any] = self.call
        samples: Sequence[Any] = self.samples
        if plan.max_batch > self.largest_checked and (failure := self.check_served(plan.max_batch)):
            return failure
        if plan.max_batch > 1:
            call = BatchingServer(self.call).serve
        job = self.prepare_job(plan.job) if plan.job else None
        if job:
            call, samples = self.run_calls, [job.calls]
        if self.stream is None or self.stream.load != plan.load:
            first_ns = request.number * 1e9 / load.rate_per_s if load.rate_per_s else 0.0
            self.stream = RequestStream(plan.load, first_ns)
        is_first = request.number == 0
        self.places = self.places or PlaceReader(self.pool)
        clock = RealClock()
        if not job and (failure := self.check_again()):
            return failure
        window = generate_load(
            call,
            samples,
            plan,
            lambda: self.read_cpu_times(request.group) if is_first else None,
            clock,
            stream=self.stream,
            exchange=self.exchange if request.group else None,
        )
        places = self.places.read(clock.places)
        frequency_hz = find_frequency_hz(places)
        share, contended = None, False
        if window.before and window.after:
            n_cpus = len(self.usable)
            share, contended = cpu.find_foreign(window.before, window.after, n_cpus, self.request.n_cores)
        memory = self.memory or cpu.read_memory()
        creations = None
        if plan.creations_ns:
            # The memory of these extra sessions must not count as the candidate's in later blocks.
            self.memory = memory
            creations = np.asarray(self.time_creations(plan.creations_ns), dtype=np.int64)
        has_one_case = len(set(self.cases)) == 1
        return Block(
            samples_ns=window.latencies_ns,
            cases=None if has_one_case or job else np.asarray(self.cases, dtype=np.int64)[window.positions],
            n_calls=window.n_calls,
            batch=plan.job.n_items if plan.job else self.request.config.batch,
            wall_ns=window.wall_ns,
            lead_in_ns=window.lead_in_ns,
            service_ns=window.service_ns,
            service_sd_ns=window.service_sd_ns,
            cpu_ns=window.cpu_ns,
            cpu_between_ns=window.cpu_between_ns,
            creations_ns=creations,
            memory=memory,
            foreign_share=share,
            contended=contended,
            gpu=self.gpu.read() if self.gpu else None,
            output_error=job.difference.max_error if job and job.difference else None,
            output_fault=job.difference.fault if job and job.difference else "",
            places=places,
            frequency_hz=frequency_hz,
        )

    def run_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Make the calls of a job, one after another."""
        for sample in calls:
            self.call(sample)

    def time_creations(self, duration_ns: int) -> list[int]:
        """Create sessions for this time, at least two, and return how long each took."""
        from ortune.worker.session import time_session_creation

        durations: list[int] = []
        begin = time.perf_counter_ns()
        while len(durations) < 2 or time.perf_counter_ns() - begin < duration_ns:
            config = self.request.config.of_session(len(durations))
            durations.append(time_session_creation(self.request.model_path, config)[1])
        return durations


def plan_of_process(request: protocol.MeasureRequest) -> BlockPlan:
    """Return the plan of one process of a group: its part of the load, with traffic of its own."""
    plan = request.plan
    seed = (plan.seed + request.number * SEED_STEP) % 2**31
    return msgspec.structs.replace(plan, load=plan.load.of_process, seed=seed)


def open_gpu(config: Config) -> GpuReader | None:
    """Return a reader of the GPU that a config uses; None if it uses none."""
    if config.provider not in CUDA_BASED:
        return None
    return GpuReader(find_number(config))


def choose_checked(cases: list[int]) -> list[int]:
    """Return the positions of the samples whose outputs are compared.

    These are the first sample of each case, and samples at regular distances in between.

    Args:
        cases: The case of each sample.
    """
    firsts = {cases.index(case) for case in set(cases)}
    step = -(-len(cases) // MOST_CHECKED)
    return sorted(firsts | set(range(0, len(cases), step)))
