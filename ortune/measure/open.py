"""Opens a comparison: background load, executors, memory limit, the baseline's first launch, calibration.

All commands that measure go through `open_comparison`: search, bench, verify and gate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from ortune.errors import UsageError
from ortune.host import Cpus, Host, place_processes, read_host
from ortune.knobs import DEFAULT, Config
from ortune.knobs.config import Provider
from ortune.knobs.providers import multiplies_in_tf32
from ortune.measure.block_runner import BlockRunner
from ortune.measure.calibrate import Calibration, calibrate
from ortune.measure.memory import MEMORY_SHARE, count_fitting, is_memory_unknown
from ortune.model import ModelInfo, compute_digest, read_model
from ortune.model.identity import ModelIdentity
from ortune.steps import enter_step
from ortune.worker import Executor, Failure, LiveCandidate, Runtime
from ortune.worker.background_load import BackgroundLoad
from ortune.worker.executor import (
    BASELINE_LOAD_DEADLINE_S,
    BUILD_DEADLINE_S,
    WORKER_COMMAND,
    ProcessExecutor,
    ReferenceOutputs,
    launch_reference,
    open_workers,
)
from ortune.worker.memory_plan import MemoryPlan
from ortune.workload import (
    APPROXIMATE_TOLERANCE,
    QUANTIZED_TOLERANCE,
    TF32_TOLERANCE,
    Feed,
    Goal,
    InputOptions,
    Load,
    Tolerance,
    Workload,
    make_feed,
)
from ortune.workload.goal import AT_TWO_SPEEDS
from ortune.workload.workload import BackgroundProgram, check_tolerance

MOST_PROCESSES_PER_CPU = 4
"""Processes of a load for each usable CPU, at most. Web servers run one or two."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program that an executor runs.

    Attributes:
        model: The model.
        path: Path of the ONNX file, as the user wrote it.
        command: Program and arguments that start a worker.
        environment: Variables that workers get in addition to those of this process.
    """

    model: ModelInfo
    path: str
    command: Sequence[str] = WORKER_COMMAND
    environment: Mapping[str, str] = {}

    def describe(self) -> ModelIdentity:
        """Return the model's identity."""
        return ModelIdentity(path=self.path, digest=compute_digest(self.model.files), files=self.model.files)


class ComparisonSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a comparison needs before it starts.

    Attributes:
        program: The model and how its workers are started.
        other: A second program whose outputs and speed are compared with those of the first, or None.
        feed: Input data of each call.
        goal: Load, objectives and limits.
        tolerance: Allowed difference of outputs.
        host: The host.
        base: Config of the baseline.
        beside: Command of the background load, or None.
        seed: Random seed of orders, traffic and resampling.
        n_sides: Sides that are in memory at the same time, at least, unless they do not fit.
        compare_outputs: Whether outputs of `other` are compared.
        memory_limit_bytes: Private memory that one worker may take, or None for a share of what is free.
        load_deadline_s: Time that the first launch may take to create the sessions, and the same to run them once.
        build_deadline_s: Time that a provider may take to compile the model, once for each config.
    """

    program: Program
    other: Program | None = None
    feed: Feed
    goal: Goal = Goal()
    tolerance: Tolerance
    host: Host
    base: Config = DEFAULT
    beside: str | None = None
    seed: int = 0
    n_sides: int = 2
    compare_outputs: bool = True
    memory_limit_bytes: int | None = None
    load_deadline_s: float = BASELINE_LOAD_DEADLINE_S
    build_deadline_s: float = BUILD_DEADLINE_S

    @property
    def model(self) -> ModelInfo:
        """The model of the first program."""
        return self.program.model

    def describe_workload(self) -> Workload:
        """Return what is measured, as records hold it."""
        return Workload(
            load=self.goal.load,
            objectives=self.goal.objectives,
            limits=self.goal.limits,
            n_samples=len(self.feed.samples),
            inputs=self.feed.describe(),
            tolerance=self.tolerance,
            background_load=BackgroundProgram.of(self.beside) if self.beside is not None else None,
            batches=self.goal.batches,
            sustained=self.goal.sustained,
        )


class OpenExecutor(Protocol):
    """Opens executors of the first program. The comparison closes them."""

    def __call__(self, load: Load, cpus: tuple[Cpus, ...] = ()) -> Executor:
        """Return an executor that launches as many processes as a load has.

        Args:
            load: How calls arrive.
            cpus: CPUs of each process; empty if they are pinned as the load says.
        """


class OpenComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison whose baseline has been launched and measured.

    Attributes:
        runner: Measures blocks.
        calibration: Result of the baseline's first blocks.
        goal: Load, objectives and limits.
        seed: Random seed.
        start_s: When it was opened, on the runner's clock.
        free_bytes: Memory that may be used, or None if unknown.
        deterministic: Whether the baseline's outputs are the same in each run.
        executors: One for each program.
        open_executor: Opens executors for other loads than that of the goal.
        check_finalist: Checks outputs of a candidate that blocks do not show, within a time in seconds, and returns
            what is wrong; None if blocks show all of them.
    """

    runner: BlockRunner
    calibration: Calibration
    goal: Goal
    seed: int
    start_s: float
    free_bytes: int | None
    deterministic: bool
    executors: tuple[Executor, ...]
    open_executor: OpenExecutor
    check_finalist: Callable[[Config, float], Failure | None] | None = None

    @property
    def runtime(self) -> Runtime:
        """The software of the baseline's workers."""
        return self.executors[0].runtime


def fit_objective(opened: OpenComparison) -> OpenComparison:
    """Return a comparison with the mean as the objective, if the user named none and calls run at two speeds.

    A gate has the same objective in each run, so this is for commands that ask only once.
    """
    if not opened.calibration.has_two_speeds:
        return opened
    return msgspec.structs.replace(opened, goal=opened.goal.with_mean(AT_TWO_SPEEDS))


def prepare_comparison(
    path: str,
    goal: Goal,
    inputs: InputOptions,
    *,
    tolerance: Tolerance | None = None,
    approximate: bool = False,
    beside: str | None = None,
    seed: int = 0,
) -> ComparisonSetup:
    """Read the model and the host, and make the inputs.

    Args:
        path: Path of the ONNX file.
        goal: Load, objectives and limits.
        inputs: The user's options for inputs.
        tolerance: Allowed difference of outputs, or None to choose it from the model.
        approximate: Whether configs may change outputs beyond rounding.
        beside: Command of the background load, or None.
        seed: Random seed.

    Raises:
        ModelError: The file is not a model.
        InputsError: The inputs do not fit the model.
        UsageError: The tolerance is too large, the processes of the load cannot run on this host, or the goal has
            batches and the model takes none.
    """
    if tolerance:
        check_tolerance(tolerance)
    host = read_host()
    check_processes(goal.load, host)
    model = read_model(path)
    enter_step("making inputs")
    return ComparisonSetup(
        program=Program(model=model, path=path),
        feed=make_feed(model, inputs, goal.batches),
        goal=goal.on_host(throttled=host.limits.throttled),
        tolerance=tolerance or choose_tolerance(model, approximate=approximate),
        host=host,
        beside=beside,
        seed=seed,
    )


def check_processes(load: Load, host: Host) -> None:
    """Check that the processes of a load can run on a host.

    Raises:
        UsageError: There are too many of them, or this host cannot pin them apart.
    """
    n_cpus, n_cores = len(host.limits.usable), len(host.usable_cores)
    if load.processes > max(MOST_PROCESSES_PER_CPU * n_cpus, 1):
        raise UsageError(
            f"{load.processes}: more than {MOST_PROCESSES_PER_CPU} processes for each of the {n_cpus} usable CPUs.",
            f"Use at most {MOST_PROCESSES_PER_CPU * n_cpus}.",
            option="processes",
        )
    if not load.pinned:
        return
    if host.system == "Darwin":
        raise UsageError("macOS cannot pin processes to CPUs.", "Leave out {pin_processes}.")
    if load.processes > n_cores:
        raise UsageError(
            f"{load.processes} processes cannot have CPUs of their own on {n_cores} usable "
            f"{'core' if n_cores == 1 else 'cores'}.",
            "Use fewer {processes}, or leave out {pin_processes}.",
        )


def find_cpus(host: Host, load: Load) -> tuple[Cpus, ...]:
    """Return the CPUs of each process of a load that is pinned; nothing for one that is not."""
    placement = place_processes(host, load.processes) if load.pinned else None
    return placement.cpus if placement else ()


def choose_tolerance(model: ModelInfo, *, approximate: bool = False) -> Tolerance:
    """Return the default tolerance for differences of outputs."""
    if approximate:
        return APPROXIMATE_TOLERANCE
    return QUANTIZED_TOLERANCE if model.traits.quantized else Tolerance()


def allow_tf32(tolerance: Tolerance, chains: Iterable[Sequence[Provider]]) -> Tolerance:
    """Return a default tolerance that also allows for TF32, if execution providers multiply in it.

    Args:
        tolerance: The tolerance.
        chains: The execution providers of each config that is compared.
    """
    if not any(map(multiplies_in_tf32, chains)):
        return tolerance
    return Tolerance(
        relative=max(tolerance.relative, TF32_TOLERANCE.relative),
        absolute=max(tolerance.absolute, TF32_TOLERANCE.absolute),
    )


Launch = Callable[[Executor, Callable[[], None]], LiveCandidate]
"""Launches the baseline by an executor for the first time. It also gets what is called before each attempt."""

Wrap = Callable[[Executor, Callable[[], Runtime]], Executor]
"""Returns an executor that uses the given one. It also gets what launches the baseline by the given one, and returns
the software of its worker."""


@contextlib.contextmanager
def begin_measuring(beside: str | None) -> Iterator[BackgroundLoad | None]:
    """Keep the threads of this process quiet, and run the background load, while something is measured.

    Args:
        beside: Command of the background load, or None.

    Raises:
        MeasureError: The background load does not run.
    """
    from threadpoolctl import threadpool_limits

    # Idle BLAS threads of NumPy spin for a while, which would count as CPU use by other processes.
    with threadpool_limits(limits=1, user_api="blas"):
        if beside is None:
            yield None
            return
        with BackgroundLoad(beside) as background_load:
            yield background_load


class FirstLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """The first launch of the baseline.

    Attributes:
        executor: What launched it, and launches candidates.
        live: The baseline.
        start_s: When its last attempt began, on the executor's clock.
        launch_s: How long that attempt took, in seconds.
    """

    executor: Executor
    live: LiveCandidate
    start_s: float
    launch_s: float


def launch_baseline(own: Executor, launch: Launch, wrap: Wrap | None) -> FirstLaunch:
    """Launch the baseline for the first time.

    Args:
        own: Launches its processes.
        launch: Launches it by an executor.
        wrap: Returns the executor that launches candidates, given this one; None for this one.
    """
    start_s = 0.0

    def begin() -> None:
        nonlocal start_s
        start_s = executor.now_s()

    def launch_unwrapped() -> Runtime:
        launch(own, lambda: None).close()
        return own.runtime

    executor = wrap(own, launch_unwrapped) if wrap else own
    live = launch(executor, begin)
    return FirstLaunch(executor=executor, live=live, start_s=start_s, launch_s=executor.now_s() - start_s)


@contextlib.contextmanager
def open_comparison(
    setup: ComparisonSetup, *, wrap: Wrap | None = None, free_bytes: int | None = None
) -> Iterator[OpenComparison]:
    """Start the background load and the executors, launch the baseline, and calibrate.

    Args:
        setup: What to compare.
        wrap: Wraps the executor of the first program, or None.
        free_bytes: Free memory to plan with, or None for that of the host.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
        InputsError: The model does not run on these inputs.
        UsageError: The config of the baseline does not work.
        MeasureError: The background load does not run.
    """
    host_bytes = setup.host.limits.memory_bytes
    free_bytes = host_bytes if free_bytes is None else free_bytes
    with contextlib.ExitStack() as stack:
        background_load = stack.enter_context(begin_measuring(setup.beside))
        load = setup.goal.load
        memory = MemoryPlan(int(MEMORY_SHARE * host_bytes) if host_bytes else None)

        def open_executor(
            program: Program, first: ProcessExecutor | None = None, load: Load = load, cpus: tuple[Cpus, ...] = ()
        ) -> ProcessExecutor:
            executor = open_workers(
                program.model,
                setup.feed,
                setup.tolerance,
                usable=setup.host.limits.usable,
                n_cores=len(setup.host.usable_cores),
                background_load=background_load.pid if background_load else None,
                quota=setup.host.limits.throttled,
                memory_limit_bytes=setup.memory_limit_bytes,
                memory=memory,
                n_sessions=load.sessions,
                n_processes=load.processes,
                pinned_to=cpus or find_cpus(setup.host, load),
                build_deadline_s=setup.build_deadline_s,
                memory_callers=load.clients if "memory" in setup.goal.figures else 0,
                command=program.command,
                environment=program.environment,
                reference=find_reference(program, first),
            )
            return stack.enter_context(executor)

        def find_reference(program: Program, first: ProcessExecutor | None) -> ReferenceOutputs | None:
            if not first or not setup.compare_outputs:
                return None
            # The config of the baseline is a candidate where another program runs it.
            is_own = program is setup.program
            return first.reference if is_own else msgspec.structs.replace(first.reference, baseline_key=None)

        own = open_executor(setup.program)
        executors: dict[tuple[int, int, tuple[Cpus, ...]], Executor] = {}

        def find_executor(load: Load, cpus: tuple[Cpus, ...] = ()) -> Executor:
            shape = (load.processes, load.sessions, cpus or find_cpus(setup.host, load))
            if shape not in executors:
                executors[shape] = open_executor(setup.program, own, load, cpus)
            return executors[shape]

        def launch(by: Executor, on_attempt: Callable[[], None]) -> LiveCandidate:
            enter_step(f"loading {Path(setup.program.path).name}")
            return launch_reference(by, setup.model, setup.feed, setup.base, setup.load_deadline_s, on_attempt)

        first = launch_baseline(own, launch, wrap)
        executor = executors[load.processes, load.sessions, find_cpus(setup.host, load)] = first.executor
        other = open_executor(setup.other, own) if setup.other else None
        opened = start_comparison(
            executor,
            first.live,
            setup.goal,
            first_launch_s=first.launch_s,
            seed=setup.seed,
            n_cases=setup.feed.n_cases,
            quota=setup.host.limits.throttled,
            n_sides=setup.n_sides,
            free_bytes=free_bytes,
            start_s=first.start_s,
            check=background_load.check if background_load else lambda: None,
            executors=(executor, other) if other else (executor,),
            open_executor=find_executor,
        )
        memory.usual_bytes = opened.calibration.peak_bytes // load.processes
        opened.runner.memory = memory
        yield opened


def start_comparison(
    executor: Executor,
    first: LiveCandidate,
    goal: Goal,
    *,
    first_launch_s: float,
    seed: int = 0,
    n_cases: int = 1,
    quota: bool = False,
    counts_calls: bool = False,
    n_sides: int = 2,
    free_bytes: int | None = None,
    start_s: float = 0.0,
    check: Callable[[], None] = lambda: None,
    executors: tuple[Executor, ...] = (),
    open_executor: OpenExecutor | None = None,
) -> OpenComparison:
    """Calibrate with the baseline's first launch, which is closed here.

    If the sides do not fit into memory at the same time, they will be measured one at a time.

    Raises:
        MeasureError: The baseline fails.
    """
    runner = BlockRunner(executor, np.random.default_rng(seed), check)
    runner.counts_all_calls = goal.counts_all_calls
    steady = runner.keep_alive(first, executor)
    runner.sessions.append(steady.session_info)
    enter_step("calibrating: measuring the default", is_measured=True)
    calibration = calibrate(
        runner,
        steady,
        goal,
        first_launch_s=first_launch_s,
        n_cases=n_cases,
        quota=quota,
        counts_calls=counts_calls,
    )
    n_fitting = count_fitting(calibration, free_bytes)
    runner.one_at_a_time = is_memory_unknown(first.config) or (n_fitting is not None and n_sides > n_fitting)
    return OpenComparison(
        runner=runner,
        calibration=calibration,
        goal=goal,
        seed=seed,
        start_s=start_s,
        free_bytes=free_bytes,
        deterministic=first.session_info.deterministic,
        executors=executors or (executor,),
        open_executor=open_executor or (lambda load, cpus=(): executor),
    )
