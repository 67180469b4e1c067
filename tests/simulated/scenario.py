"""Hosts, models and programs that do not exist, for whole commands and the Python API.

A `Scenario` says what the host has, and how long calls take under which settings. In `simulate(scenario)`, everything
that ortune reads of the host and measures on it comes from the scenario: results are always the same, and budgets take
no time.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import numpy as np

from ortune import __version__
from ortune.apply.inside.observer import OBSERVATION_FORMAT
from ortune.host import Host, HostLimits
from ortune.host.allocators import find_allocators
from ortune.host.conditions import Conditions, read_conditions
from ortune.host.read import read_host
from ortune.host.topology import Quota
from ortune.knobs import Config, ids
from ortune.model import ModelInfo
from ortune.model.child import read_in_child
from ortune.program.executor import open_program_executor
from ortune.program.observation import ObservedProcess, ObservedSession, Reading
from ortune.program.prepare import ObservedRun, observe_program
from ortune.replaceable import replace, replaced
from ortune.storage.node import name_worker
from ortune.times import read_clock_s, read_time
from ortune.worker import BlockPlan, Failure, LiveCandidate, Runtime
from ortune.worker.colocated import ColocatedBlock, ColocatedCandidates, join_blocks, open_colocated
from ortune.worker.devices import Devices, read_devices
from ortune.worker.executor import ReferenceOutputs, open_workers
from ortune.worker.failure import FailureKind
from ortune.worker.graphs import digest_graphs, keep_graph_settings
from ortune.worker.installed import RuntimePackage, find_runtime_packages
from ortune.worker.runtime import ask_for_runtime, read_installed_runtime
from ortune.workload import Feed, Load
from tests.simulated.executor import RUNTIME, SimulatedExecutor
from tests.simulated.host import make_host
from tests.simulated.power import PowerLimit
from tests.simulated.reading import read_here

ONE_THREAD = {"intra_op_num_threads": 1}

START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
"""The time of day. It does not pass."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What settings do.

    Attributes:
        settings: Settings and values that a config must have. Without any, all configs have them.
        factor: How many times as long a call takes.
        late_factor: How many times as long a call takes after `late_after` calls of a process.
        late_after: The number of these calls.
        slow_factor: How many times as long calls take in some blocks.
        slow_blocks: Share of these blocks.
        cpus: CPUs that a call keeps busy; None to leave them as they are.
        watts: Power that calls take at the highest frequency; None to leave it as it is.
        peak_factor: How many times as much memory the process takes.
        failure: How the candidate fails when it is launched; empty if it does not.
        dies: Whether its process dies when it is measured.
        slow_launches: Share of the launches in which calls take twice as long.
        phase_factor: How many times as long calls take in the phase of `phase_s`.
        phase_s: From when to when it lasts, in seconds since the start.
    """

    settings: Mapping[str, int | bool | str] = {}
    factor: float = 1.0
    late_factor: float = 1.0
    late_after: int = 0
    slow_factor: float = 1.0
    slow_blocks: float = 0.0
    cpus: float | None = None
    watts: float | None = None
    peak_factor: float = 1.0
    failure: FailureKind | Literal[""] = ""
    dies: bool = False
    slow_launches: float = 0.0
    phase_factor: float = 1.0
    phase_s: tuple[float, float] = (0.0, 0.0)

    def has(self, config: Config) -> bool:
        """Return whether a config has the settings."""
        entries = {
            **config.session_options,
            **config.session_config,
            **config.run_config,
            **config.environment,
            "allocator": config.allocator,
        }
        return all(str(entries.get(name)) == str(value) for name, value in self.settings.items())


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A host, and how fast programs are on it.

    Attributes:
        is_here: Whether the host and its software are this one, and only its speed is simulated.
        n_cores: Physical cores.
        smt: Logical CPUs of each core.
        n_nodes: NUMA nodes.
        quota: CPU quota in CPUs; None without one.
        memory_bytes: Free memory.
        peak_bytes: Memory of a worker with the default.
        calls_to_peak: Calls after which a worker has seen all inputs, and has this memory; before, it has less.
        allocators: Names of installed allocators.
        call_ms: Duration of a call with the default, in ms.
        item_share: Duration of each further item of a batch, as a share of that of the first.
        competes: Whether concurrent callers share the cores. If not, each has as many as it needs.
        effects: What settings do. All that a config has are multiplied.
        models: For file names of models, how many times as long their calls take.
        block_noise: Standard deviation of the logarithm of the durations from block to block.
        launch_noise: The same from launch to launch.
        drift: By which share of it the speed of the host rises and falls again within 44 s.
        sustained_w: Power that the processor sustains; None without a limit.
        contended_share: Share of blocks in which other processes use the CPUs.
        busy_s: From when to when other processes use the CPUs all the time, in seconds since the start.
        contention: How many times as long calls take in them.
        graphs: Name of the optimized graph, by optimization level. That of others is not known.
        idle: Other settings that change nothing in the optimized graph.
        interrupt_at: Number of the block at which the user presses Ctrl+C; None if they do not.
        wrong_program: Whether a program prints something else with other settings.
        seed: Random seed of the noise.
    """

    is_here: bool = False
    n_cores: int = 2
    smt: int = 1
    n_nodes: int = 1
    quota: float | None = None
    memory_bytes: int = 8_000_000_000
    peak_bytes: int = 60_000_000
    calls_to_peak: int = 0
    allocators: tuple[str, ...] = ()
    call_ms: float = 1.0
    item_share: float = 0.5
    competes: bool = False
    effects: tuple[Effect, ...] = (Effect(cpus=1.8), Effect(settings=ONE_THREAD, factor=0.5, cpus=1.0))
    models: Mapping[str, float] = {}
    block_noise: float = 0.01
    launch_noise: float = 0.005
    drift: float = 0.1
    sustained_w: float | None = None
    contended_share: float = 0.0
    busy_s: tuple[float, float] = (0.0, 0.0)
    contention: float = 2.0
    graphs: Mapping[str, str] = {}
    idle: frozenset[str] = frozenset()
    interrupt_at: int | None = None
    wrong_program: bool = False
    seed: int = 0

    def list_effects(self, config: Config) -> list[Effect]:
        """Return what the settings of a config do."""
        return [effect for effect in self.effects if effect.has(config)]

    def find_ns(self, config: Config, load: Load | None = None) -> float:
        """Return the duration of a call in ns, without noise."""
        call_ns = 1e6 * self.call_ms * (1 + self.item_share * (config.batch - 1))
        for effect in self.list_effects(config):
            call_ns *= effect.factor
        if self.competes and load:
            call_ns *= max(1.0, load.n_callers * self.find_cpus(config) / self.n_cores)
        return call_ns

    def find_phase(self, config: Config, time_s: float) -> float:
        """Return how many times as long a call takes as usual, so many seconds after the start."""
        effects = self.list_effects(config)
        return math.prod(effect.phase_factor for effect in effects if effect.phase_s[0] <= time_s < effect.phase_s[1])

    def vary(self, rng: np.random.Generator, config: Config, n_calls: int) -> float:
        """Return how many times as long the calls of a block take as the first ones of its process usually do."""
        factor = 1.0
        for effect in self.list_effects(config):
            factor *= effect.late_factor if n_calls >= effect.late_after else 1.0
            factor *= effect.slow_factor if effect.slow_blocks and rng.random() < effect.slow_blocks else 1.0
        return factor

    def find_cpus(self, config: Config) -> float:
        """Return how many CPUs a call keeps busy."""
        known = [effect.cpus for effect in self.list_effects(config) if effect.cpus is not None]
        return known[-1] if known else 1.0

    def find_watts(self, config: Config) -> float:
        """Return the power that calls take at the highest frequency."""
        known = [effect.watts for effect in self.list_effects(config) if effect.watts is not None]
        return known[-1] if known else 1.0

    def find_peak_bytes(self, config: Config) -> float:
        """Return the memory of a worker in bytes."""
        peak_bytes = float(self.peak_bytes)
        for effect in self.list_effects(config):
            peak_bytes *= effect.peak_factor
        return peak_bytes

    def find_failure(self, config: Config) -> Failure | None:
        """Return how a config fails when it is launched."""
        for effect in self.list_effects(config):
            if effect.failure:
                return Failure(kind=effect.failure, stage="load", message=f"simulated {effect.failure}")
        return None

    def name_graph(self, config: Config) -> str:
        """Return the digest of the optimized graph; empty if it is not known."""
        settings = keep_graph_settings(config).settings
        graph = self.graphs.get(str(settings.pop(ids.GRAPH_OPTIMIZATION_LEVEL, "ORT_ENABLE_ALL")), "")
        others = {name: value for name, value in settings.items() if name not in self.idle}
        return f"{graph} {others}" if graph else ""

    def is_deadly(self, config: Config) -> bool:
        """Return whether the process of a config dies when it is measured."""
        return any(effect.dies for effect in self.list_effects(config))

    def read_host(self, root: Path = Path("/"), *, memory: bool = True) -> Host:
        """Return the host, as `ortune.host.read_host` does."""
        host = make_host(self.n_cores, smt=self.smt, n_nodes=self.n_nodes)
        limits = HostLimits(
            usable=host.limits.usable,
            quota=Quota(cpus=self.quota, where="/sys/fs/cgroup") if self.quota else None,
            memory_bytes=self.memory_bytes if memory else None,
        )
        return msgspec.structs.replace(host, limits=limits)

    @property
    def runtime(self) -> Runtime:
        """The installed onnxruntime."""
        here = read_installed_runtime() if self.is_here else None
        return here or msgspec.structs.replace(RUNTIME, onnxruntime="1.32.0", python="3.11.2", ortune=__version__)


class SimulatedWorkers(SimulatedExecutor):
    """What takes the place of worker processes. As a context manager, it ends all of them on exit."""

    def __init__(self, scenario: Scenario, factor: float = 1.0) -> None:
        super().__init__(
            scenario.find_ns,
            latency_under=lambda config, load: factor * scenario.find_ns(config, load),
            seed=scenario.seed,
            vary=scenario.vary,
            block_sigma=scenario.block_noise,
            launch_sigma=scenario.launch_noise,
            drift=scenario.drift,
            power=PowerLimit(scenario.sustained_w) if scenario.sustained_w else None,
            watts=scenario.find_watts,
            contended_share=scenario.contended_share,
            busy_s=scenario.busy_s,
            contention=lambda config: scenario.contention,
            fails_to_launch=scenario.find_failure,
            is_deadly=scenario.is_deadly,
            interrupt_at=scenario.interrupt_at,
            cpu=scenario.find_cpus,
            peak_bytes=scenario.find_peak_bytes,
            calls_to_peak=scenario.calls_to_peak,
            slow_share=lambda config: sum(effect.slow_launches for effect in scenario.list_effects(config)),
        )
        self.scenario = scenario
        self.runtime = scenario.runtime
        self.reference = ReferenceOutputs(path=Path(), compare_values=True)

    def find_level(self, config: Config, load: Load) -> float:
        """Return the true duration of a call in ns, at this time."""
        return super().find_level(config, load) * self.scenario.find_phase(config, self.time_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for live in [*self.live]:
            live.close()


class SimulatedPrograms(SimulatedWorkers):
    """What takes the place of programs that stay alive."""

    keeps_alive = True

    def __init__(self, scenario: Scenario, task: Any, runtime: Runtime) -> None:
        super().__init__(scenario)
        self.runtime = runtime
        self.task = task
        self.prints_the_same = not scenario.wrong_program

    def check_finalist(self, config: Config, left_s: float) -> Failure | None:
        """Return how what the program prints differs, as `ProgramRunner.check_finalist` does."""
        if self.prints_the_same:
            return None
        return Failure(kind="wrong_output", stage="measure", message="line 1 differs")

    def close(self) -> None:
        """Check that no program is left."""
        assert not self.live, "programs are still live"


class SimulatedColocated(ColocatedCandidates):
    """What takes the place of candidates of several models. Each has as many cores as it needs."""

    def __init__(self, lives: Sequence[LiveCandidate], loads: Sequence[Load]) -> None:
        self.lives = tuple(lives)
        self.loads = tuple(loads)

    def measure(self, plan: BlockPlan) -> ColocatedBlock | Failure:
        """Measure a block of each model under its load."""
        parts = []
        for live, load in zip(self.lives, self.loads, strict=True):
            block = live.measure(plan.under(load))
            if isinstance(block, Failure):
                return block
            parts.append(block)
        return join_blocks(parts)


def observe(model: Path) -> ObservedRun:
    """Return what is seen of a program that calls one model."""
    content = model.read_bytes()
    session = ObservedSession(
        model=str(model),
        path=str(model),
        package="",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        requested=("CPUExecutionProvider",),
        providers=("CPUExecutionProvider",),
        options={},
        other_methods=(),
        record="",
        reason="",
        n_threads=1,
        inherited=False,
        created_ns=1_000_000,
        create_ns=1_000_000,
        n_sessions=1,
        n_calls={"run": 100},
        n_failed=0,
        total_ns=900_000_000,
        first_ns=10_000_000,
        most_concurrent=1,
        shapes=(),
        n_other_shapes=100,
    )
    process = ObservedProcess(
        format=OBSERVATION_FORMAT,
        pid=1,
        ppid=0,
        argv=("app.py",),
        onnxruntime="1.32.0",
        start_ns=0,
        wall_ns=1_100_000_000,
        cpu_ns=1_000_000_000,
        observing_ns=0,
        busy_ns=900_000_000,
        first_call_ns=100_000_000,
        last_call_ns=1_050_000_000,
        peak_threads=2,
        libraries=(),
        function=None,
        sessions=(session,),
        n_sessions_left_out=0,
    )
    return ObservedRun(reading=Reading(processes=(process,), n_python=1, faults=()), keeps_running=True)


@contextlib.contextmanager
def simulate(scenario: Scenario | None = None) -> Iterator[None]:
    """Measure on a simulated host in this block, where results are always the same.

    A program that is tuned is what calls `model.onnx` in the current folder.
    """
    with replaced(list_replacements(scenario or Scenario())):
        yield


def start_simulation(scenario: Scenario | None = None) -> None:
    """Measure on a simulated host from now on, until this process ends."""
    replace(list_replacements(scenario or Scenario()))


def list_replacements(scenario: Scenario) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return what takes the place of each replaceable function."""

    def open_simulated_workers(model: ModelInfo, feed: Feed, *others: Any, **options: Any) -> SimulatedWorkers:
        workers = SimulatedWorkers(scenario, scenario.models.get(Path(model.path).name, 1.0))
        workers.n_cases = feed.n_cases
        workers.fills_memory = options.get("memory_callers", 0) > 0
        return workers

    def open_simulated_programs(task: Any, models: Any, runtime: Runtime, *others: Any, **options: Any) -> Any:
        return SimulatedPrograms(scenario, task, runtime)

    measured: dict[Callable[..., Any], Callable[..., Any]] = {
        read_in_child: read_here,
        open_workers: open_simulated_workers,
        open_colocated: SimulatedColocated,
        open_program_executor: open_simulated_programs,
        observe_program: lambda *arguments: observe(Path("model.onnx").resolve()),
        digest_graphs: lambda model, configs: tuple(map(scenario.name_graph, configs)),
    }
    if scenario.is_here:
        return measured
    return {
        **measured,
        read_host: scenario.read_host,
        read_devices: Devices,
        read_conditions: lambda root=Path("/"): Conditions(load_1m=0.1),
        read_time: lambda: START,
        read_clock_s: lambda: 0.0,
        name_worker: lambda: hashlib.sha256(" ".join(sys.argv).encode()).hexdigest()[:16],
        find_allocators: lambda root=Path("/"): {name: f"/usr/lib/lib{name}.so" for name in scenario.allocators},
        ask_for_runtime: lambda: scenario.runtime,
        find_runtime_packages: lambda: (RuntimePackage("onnxruntime", scenario.runtime.onnxruntime),),
    }
