"""An executor without processes: latencies come from a function, and its clock advances as blocks are measured."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ortune.knobs import DEFAULT, Config
from ortune.measure.open import OpenComparison, start_comparison
from ortune.queueing.batching import BatchedQueue, make_batch_times, schedule_batches
from ortune.record.journal import Journal
from ortune.tuning.resume import JournaledExecutor
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, Memory, Runtime, SessionInfo
from ortune.worker.block import GpuState, ItemsJob
from ortune.worker.open_loop import draw_arrivals
from ortune.workload import Goal, Load
from tests.simulated.power import HIGHEST_HZ, PowerLimit

Latency = Callable[[Config], float]
"""Returns the true duration of a call in ns, given a config."""

LatencyUnder = Callable[[Config, Load], float]
"""The same, given also how many processes with how many callers make calls."""

Services = Callable[[np.random.Generator, float, int], np.ndarray]
"""Draws the durations of calls that arrive at a rate, given their level in ns and their number."""

Vary = Callable[[np.random.Generator, Config, int], float]
"""Draws how many times as long the calls of a block take, given the config and the calls of its process before."""


def sojourn_times(
    arrivals: np.ndarray, services: np.ndarray, n_servers: int, free: list[float] | None = None
) -> np.ndarray:
    """Return the time of each request in a first-come-first-served queue with `n_servers` servers.

    `free` holds the times at which servers become free. It is updated.
    """
    free = free if free is not None else [0.0] * n_servers
    if n_servers == 1:
        done = np.cumsum(services)
        ends = done + np.maximum(np.maximum.accumulate(arrivals - (done - services)), free[0])
        free[0] = float(ends[-1]) if len(ends) else free[0]
        return np.asarray(ends - arrivals)
    heapq.heapify(free)
    sojourns = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        first = free[0]
        end = (arrival if arrival > first else first) + service
        heapq.heapreplace(free, end)
        sojourns.append(end - arrival)
    return np.array(sojourns)


FIRST_SHARE = 0.6
"""Share of the memory of a worker that it has before it has made a call."""

RUNTIME = Runtime(onnxruntime="simulated", providers=("CPUExecutionProvider",), python="", ortune="")


SLOW_LAUNCH_FACTOR = 2.0
"""How many times as long calls take in a slow launch."""


class SimulatedLive:
    def __init__(self, executor: SimulatedExecutor, config: Config) -> None:
        self.config = config
        self.session_info = SessionInfo(load_ns=1_000_000, providers=("CPUExecutionProvider",), max_error=0.0)
        self._executor = executor
        # Each launch has a memory layout of its own.
        self._launch_factor = float(np.exp(executor.rng.normal(0, executor.launch_sigma)))
        slow_share = executor.slow_share(config)
        if slow_share and executor.rng.random() < slow_share:
            self._launch_factor *= SLOW_LAUNCH_FACTOR
        # Where requests arrive at a rate, the queue continues from block to block.
        self._free: list[float] = []
        self._gpu_free_before_bytes = executor.gpu_free_bytes
        self._n_made = 0
        self._n_seen = executor.calls_to_peak if executor.fills_memory else 0
        self.closed = False

    def measure(self, plan: BlockPlan) -> Block | Failure:
        assert not self.closed, "a closed candidate was measured"
        executor = self._executor
        if (
            self.config in executor.dies_when_measured
            or executor.is_deadly(self.config)
            or (plan.load.rate_per_s and executor.fails_at_a_rate(self.config))
        ):
            return Failure(kind="crash", stage="measure", message="ended by SIGSEGV")
        executor.n_blocks += 1
        if executor.interrupt_at is not None and executor.n_blocks >= executor.interrupt_at:
            raise KeyboardInterrupt
        from_s, to_s = executor.busy_s
        contended = bool(executor.rng.random() < executor.contended_share) or from_s <= executor.time_s < to_s
        drift = 1 + executor.drift * np.sin(executor.time_s / 7)
        level = executor.find_level(self.config, plan.load) * self._launch_factor * drift
        if contended:
            level *= executor.contention(self.config)
        level *= np.exp(executor.rng.normal(0, executor.block_sigma)) * executor.vary(
            executor.rng, self.config, self._n_made
        )
        frequency_hz = executor.run_cpus(self.config, plan)
        level *= HIGHEST_HZ / frequency_hz if frequency_hz else 1
        if plan.job:
            level *= executor.find_job_ns(plan.job) / executor.find_level(self.config, plan.load)
        n_calls = max(plan.min_calls, min(round(plan.duration_ns / level), executor.most_calls))
        samples = (level * np.exp(executor.rng.normal(0, 0.02, n_calls))).astype(np.int64)
        # The first calls after a resume take longer; those that begin within the lead-in are not measured.
        cold = list(executor.cold(self.config))
        begin_ns = 0.0
        while cold and begin_ns < plan.lead_in_ns:
            begin_ns += cold.pop(0) * level
        factors = np.array(cold[:n_calls])
        samples[: len(factors)] = samples[: len(factors)] * factors
        level = float(level)
        lead_in_ns, wall_ns, gap_ns = plan.lead_in_ns, plan.duration_ns, level / plan.load.n_callers
        rate = plan.load.rate_per_s
        if not rate and plan.give_up_ns is not None and level > plan.give_up_ns:
            samples, lead_in_ns, wall_ns = samples[:1], 0, int(level)
        elif not rate and plan.min_calls * level > wall_ns:
            lead_in_ns = max(int(level), lead_in_ns) if lead_in_ns else 0
            wall_ns = int(plan.min_calls * level)
        executor.time_s += (wall_ns + lead_in_ns) / 1e9 + 0.002
        self._n_made += len(samples)
        if not executor.fills_memory:
            self._n_seen += len(samples)
        if rate:
            arrivals = draw_arrivals(plan.load, 0, plan.duration_ns, plan.seed)
            n_calls = len(arrivals)
            service = executor.draw_services(executor.rng, level, n_calls)
            if not self._free:
                self._free = [0.0] * plan.load.n_callers
            samples = sojourn_times(arrivals, service, plan.load.n_callers, self._free).astype(np.int64)
            self._free = [max(free_ns - plan.duration_ns, 0.0) for free_ns in self._free]
            gap_ns = 1e9 / rate
            if plan.max_batch > 1:
                samples, level = self._serve_batches(plan, arrivals, level)
        return Block(
            samples_ns=samples,
            cases=np.arange(len(samples)) % executor.n_cases if executor.n_cases > 1 else None,
            processes=np.arange(len(samples)) % plan.load.processes if plan.load.processes > 1 else None,
            n_calls=wall_ns / gap_ns,
            batch=plan.job.n_items if plan.job else self.config.batch,
            wall_ns=wall_ns,
            lead_in_ns=lead_in_ns,
            service_ns=float(level),
            cpu_ns=int(executor.cpu(self.config) * level * wall_ns / gap_ns),
            cpu_between_ns=0.1 * level if rate else None,
            memory=Memory(
                steady_bytes=50_000_000,
                peak_bytes=int(executor.peak_bytes(self.config) * self._find_share_of_peak() * plan.load.processes)
                + (executor.find_job_bytes(plan.job) if plan.job else 0),
            ),
            foreign_share=0.5 if contended else 0.0,
            contended=contended,
            gpu=self._read_gpu(),
            output_error=0.0 if plan.job and plan.job.is_checked else None,
            output_fault=executor.find_fault(plan.job) if plan.job else "",
            frequency_hz=frequency_hz,
        )

    def _find_share_of_peak(self) -> float:
        """Return how much of its peak memory this worker has, given the calls that it has made."""
        most = self._executor.calls_to_peak
        return FIRST_SHARE + (1 - FIRST_SHARE) * min(self._n_seen / most, 1.0) if most else 1.0

    def _serve_batches(self, plan: BlockPlan, arrivals: np.ndarray, level: float) -> tuple[np.ndarray, float]:
        """Return latencies of requests that are put together, and the time of a call for each of them."""
        executor = self._executor
        own = executor.find_level(self.config, plan.load)
        measured_ns = {
            size: level * executor.find_level(msgspec.structs.replace(self.config, batch=size), plan.load) / own
            for size in range(1, plan.max_batch + 1)
        }
        queue = BatchedQueue(
            times=make_batch_times(measured_ns),
            max_batch=plan.max_batch,
            max_delay_ns=plan.max_delay_ns,
            n_servers=plan.load.clients,
        )
        # Each process gets requests of its own.
        parts = [arrivals[number :: plan.load.processes] for number in range(plan.load.processes)]
        latencies, busy_ns = [], 0
        for part in parts:
            if len(part):
                schedule = schedule_batches(queue, part[:, None])
                latencies.append(schedule.end_of_requests()[:, 0] - part)
                busy_ns += int((schedule.ends_ns - schedule.starts_ns).sum())
        return np.concatenate(latencies), busy_ns / len(arrivals)

    def _read_gpu(self) -> GpuState | None:
        executor = self._executor
        used_bytes = executor.gpu_bytes(self.config)
        if not used_bytes:
            return None
        return GpuState(
            used_bytes=used_bytes if executor.knows_gpu_use else None,
            free_bytes=executor.gpu_free_bytes,
            free_before_bytes=self._gpu_free_before_bytes,
        )

    def close(self) -> None:
        self.closed = True
        self._executor.live.discard(self)


class SimulatedExecutor:
    def __init__(
        self,
        latency: Latency,
        *,
        seed: int = 0,
        vary: Vary = lambda rng, config, n_calls: 1.0,
        block_sigma: float = 0.01,
        launch_sigma: float = 0.005,
        contended_share: float = 0.0,
        busy_s: tuple[float, float] = (0.0, 0.0),
        contention: Callable[[Config], float] = lambda config: 2.0,
        fails_to_launch: Callable[[Config], Failure | None] = lambda config: None,
        dies_when_measured: Sequence[Config] = (),
        is_deadly: Callable[[Config], bool] = lambda config: False,
        interrupt_at: int | None = None,
        cpu: Callable[[Config], float] = lambda config: 1.0,
        peak_bytes: Callable[[Config], float] = lambda config: 60e6,
        calls_to_peak: int = 0,
        draw_services: Services = lambda rng, level, n_calls: np.full(n_calls, level),
        memory_bytes: float = math.inf,
        gpu_bytes: Callable[[Config], int] = lambda config: 0,
        gpu_memory_bytes: int = 0,
        knows_gpu_use: bool = True,
        launch_s: float = 0.05,
        latency_under: LatencyUnder | None = None,
        find_job_ns: Callable[[ItemsJob], float] = lambda job: 1e6 * len(job.groups),
        find_job_bytes: Callable[[ItemsJob], int] = lambda job: 0,
        find_fault: Callable[[ItemsJob], str] = lambda job: "",
        cold: Callable[[Config], Sequence[float]] = lambda config: (),
        most_calls: int = 40,
        fails_at_a_rate: Callable[[Config], bool] = lambda config: False,
        slow_share: Callable[[Config], float] = lambda config: 0.0,
        drift: float = 0.1,
        power: PowerLimit | None = None,
        watts: Callable[[Config], float] = lambda config: 1.0,
    ) -> None:
        self.runtime = RUNTIME
        self.n_cases = 1
        self.latency = latency
        self.latency_under = latency_under
        self.vary = vary
        self.rng = np.random.default_rng(seed)
        self.block_sigma = block_sigma
        self.launch_sigma = launch_sigma
        self.contended_share = contended_share
        self.busy_s = busy_s
        self.contention = contention
        self.fails_to_launch = fails_to_launch
        self.dies_when_measured = dies_when_measured
        self.is_deadly = is_deadly
        self.interrupt_at = interrupt_at
        self.cpu = cpu
        self.peak_bytes = peak_bytes
        self.calls_to_peak = calls_to_peak
        self.fills_memory = False
        self.draw_services = draw_services
        self.memory_bytes = memory_bytes
        self.gpu_bytes = gpu_bytes
        self.gpu_memory_bytes = gpu_memory_bytes
        self.knows_gpu_use = knows_gpu_use
        self.launch_s = launch_s
        self.find_job_ns = find_job_ns
        self.find_job_bytes = find_job_bytes
        self.find_fault = find_fault
        self.cold = cold
        self.most_calls = most_calls
        self.fails_at_a_rate = fails_at_a_rate
        self.slow_share = slow_share
        self.drift = drift
        self.power = power
        self.watts = watts
        self.most_live = 0
        self.n_starved = 0
        self.time_s = 0.0
        self.n_blocks = 0
        self.live: set[SimulatedLive] = set()
        self.launched: list[Config] = []

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        answers: list[LiveCandidate | Failure] = []
        self.time_s += 0.15
        if self.power:  # loading keeps the CPUs busy, too
            self.power.run(self.power.sustained_w, 0.15 + self.launch_s * len(configs))
        for config in configs:
            self.time_s += self.launch_s
            self.launched.append(config)
            failure = self.fails_to_launch(config) or self.find_lack_of_memory(config)
            if failure:
                answers.append(failure)
                continue
            live = SimulatedLive(self, config)
            self.live.add(live)
            self.most_live = max(self.most_live, len(self.live))
            answers.append(live)
        return answers

    def run_cpus(self, config: Config, plan: BlockPlan) -> float | None:
        """Return the frequency of the CPUs in a block; None without a power limit, where it is not known."""
        if not self.power:
            return None
        self.power.run(self.watts(config), plan.lead_in_ns / 1e9)
        return HIGHEST_HZ * self.power.run(self.watts(config), plan.duration_ns / 1e9)

    def find_level(self, config: Config, load: Load) -> float:
        """Return the true duration of a call in ns."""
        return self.latency_under(config, load) if self.latency_under else self.latency(config)

    @property
    def gpu_free_bytes(self) -> int:
        return self.gpu_memory_bytes - sum(self.gpu_bytes(live.config) for live in self.live)

    def find_lack_of_memory(self, config: Config) -> Failure | None:
        used_bytes = sum(self.peak_bytes(live.config) for live in self.live)
        if used_bytes + self.peak_bytes(config) <= self.memory_bytes and self.gpu_bytes(config) <= self.gpu_free_bytes:
            return None
        self.n_starved += 1
        return Failure(kind="out_of_memory", stage="load", message="bad_alloc")

    def now_s(self) -> float:
        return self.time_s


def open_simulated(executor: SimulatedExecutor, goal: Goal | None = None, *, quota: bool = False) -> OpenComparison:
    """Open a comparison of the default with others."""
    (first,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(first, Failure)
    return start_comparison(
        executor, first, goal or Goal(), first_launch_s=executor.now_s(), free_bytes=8_000_000_000, quota=quota
    )


def open_with_journal(executor: SimulatedExecutor, journal: Journal, *, seed: int = 0) -> OpenComparison | Failure:
    """Open a comparison whose blocks are kept in a journal, and go on with those that it holds."""

    def launch_reference() -> Runtime:
        (live,) = executor.launch([DEFAULT], deadline_s=9)
        assert not isinstance(live, Failure)
        live.close()
        return executor.runtime

    wrapped = JournaledExecutor(executor, launch_reference, journal)
    (first,) = wrapped.launch([DEFAULT], deadline_s=9)
    if isinstance(first, Failure):
        return first
    return start_comparison(wrapped, first, Goal(), first_launch_s=wrapped.now_s(), seed=seed, free_bytes=8_000_000_000)


def is_one_thread(config: Config) -> bool:
    """Return whether a config has one thread."""
    return config.session_options.get("intra_op_num_threads") == 1
