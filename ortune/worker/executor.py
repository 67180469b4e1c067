"""Launches candidates as processes: one worker per candidate or several, suspended except while they are measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from ortune.errors import HostError, ModelError, UsageError, make_missing_error
from ortune.interpreter import PYTHON
from ortune.interrupts import uninterrupted
from ortune.knobs.config import CPU, DEFAULT, Config
from ortune.knobs.environment import variables_of
from ortune.knobs.titles import describe
from ortune.model import ModelInfo
from ortune.replaceable import replaceable
from ortune.steps import enter_step
from ortune.worker import protocol
from ortune.worker.activity import LOOK_S
from ortune.worker.attempts import Attempts
from ortune.worker.child_process import NO_BLAS_THREADS, make_environment
from ortune.worker.compiled_models import CompiledModels
from ortune.worker.copies import CAN_COPY, FEWEST_COPIES, Template
from ortune.worker.failure import Failure
from ortune.worker.group import WorkerGroup, name_group
from ortune.worker.interfaces import Executor, LiveCandidate
from ortune.worker.memory_plan import MemoryPlan
from ortune.worker.owned_folder import OwnedFolder, remove_abandoned_folders
from ortune.worker.process import MOST_IDLE_S, WorkerProcess
from ortune.worker.session_info import Runtime
from ortune.worker.watchdog import Watchdog
from ortune.worker.working_inputs import explain_failed_run
from ortune.workload import Feed, Tolerance

WORKER_COMMAND = (*PYTHON, "-m", "ortune.worker.main")

REFERENCE_ATTEMPTS = 6
"""How many times the baseline is launched at first if its process ends suddenly."""

BASELINE_LOAD_DEADLINE_S = 900.0
"""Maximum time for the baseline to load, and the same to run once. Nothing is known about the model at that point."""

MOST_SAMPLE_REPEATS = 20
"""Number of times that a new config on another provider than the CPU runs the compared samples again."""

BUILD_DEADLINE_S = 600.0
"""Maximum time for a provider to compile the model, if it compiles models."""

BUILDS = 3
"""Compiling for all candidates together may take this many times as long as for one. It is not charged to the budget,
and without a limit, a search of many candidates would take hours."""


class ReferenceOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs that all candidates' outputs are compared with.

    Attributes:
        path: The file that contains them.
        compare_values: Whether two runs of the reference agreed. If not, only types and shapes are compared.
        baseline_key: Key of the config that they come from; None if another program than the candidates' made them.
        quanta: For each output that their model dequantizes at the end: the step between two adjacent values. A model
            that is compared with them must not choose how much it may differ.
    """

    path: Path
    compare_values: bool
    baseline_key: str | None = None
    quanta: Mapping[str, float] = {}


class ProcessExecutor:
    """Launches workers. As a context manager, it ends all of them on exit.

    Args:
        model: The model to run.
        feed: The samples that calls are made with.
        tolerance: Tolerance for differences between a candidate's outputs and the baseline's.
        usable: CPUs on which the use by other processes is monitored.
        n_cores: Number of physical cores that these CPUs belong to; 0 if unknown.
        background_load: Process id of the background load, or None.
        quota: Whether a CPU quota applies.
        memory_limit_bytes: Maximum private memory of one worker; None for no limit of its own.
        memory: The memory that the workers share, also with those of other executors; None for no limit.
        n_sessions: Number of sessions in each worker.
        n_processes: Number of workers of each candidate, which are measured together.
        pinned_to: CPUs of each of these workers; empty if they may run on all.
        build_deadline_s: Maximum time for a provider to compile the model, once per candidate.
        memory_callers: Concurrent callers that make the same calls of each candidate at launch, before its memory is
            read; 0 to read it after each block.
        command: Program and arguments that start a worker.
        environment: Environment variables of the workers, in addition to those of this process.
        reference: Reference outputs from another executor; None to use those of the first launch.

    Attributes:
        runtime: Versions of the software that the workers run. Set by the first successful launch.
    """

    runtime: Runtime

    def __init__(
        self,
        model: ModelInfo,
        feed: Feed,
        tolerance: Tolerance,
        *,
        usable: tuple[int, ...],
        n_cores: int = 0,
        background_load: int | None = None,
        quota: bool = False,
        memory_limit_bytes: int | None = None,
        memory: MemoryPlan | None = None,
        n_sessions: int = 1,
        n_processes: int = 1,
        pinned_to: Sequence[tuple[int, ...]] = (),
        build_deadline_s: float = BUILD_DEADLINE_S,
        memory_callers: int = 0,
        command: Sequence[str] = WORKER_COMMAND,
        environment: Mapping[str, str] | None = None,
        reference: ReferenceOutputs | None = None,
    ) -> None:
        self._n_sessions = n_sessions
        self._n_processes = n_processes
        self._pinned_to = tuple(pinned_to) or ((),) * n_processes
        self._build_deadline_s = build_deadline_s
        self._memory_callers = memory_callers
        self._nodes: dict[str, dict[str, int]] = {}
        remove_abandoned_folders()
        self._folder = OwnedFolder()
        self._copies = CAN_COPY
        self._compiled = CompiledModels(self._folder.path / "cache")
        self._temporary = self._folder.path / "tmp"
        self._temporary.mkdir()
        self._watchdog = Watchdog()
        self._model = model
        self._feed_path = self._folder.path / "feed.npz"
        self._has_reference = reference is not None
        self._reference_path = reference.path if reference else self._folder.path / "reference.pickle"
        self._tolerance = tolerance
        self._usable = usable
        self._n_cores = n_cores
        self._background_load = background_load
        self._check_waiting = background_load is None and not quota
        self._memory_limit_bytes = memory_limit_bytes
        self._memory = memory or MemoryPlan(None)
        self._command = command
        self._environment = dict(environment or {})
        self._compare_values = reference.compare_values if reference else True
        self._baseline_key = reference.baseline_key if reference else None
        self._quanta = reference.quanta if reference else _list_quanta(model)
        self._live: set[WorkerProcess] = set()
        self._n_launched = 0
        feed.save(self._feed_path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and remove their files."""
        with uninterrupted():
            for worker in tuple(self._live):
                worker.close()
            self._watchdog.close()
            self._folder.remove()

    def now_s(self) -> float:
        """Return the time of a monotonic clock, in seconds. It stops while a provider compiles the model.

        Compiling is therefore not charged to the budget: each config is compiled once and then read from a cache.
        """
        return time.monotonic() - self._compiled.total_s

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Start the workers of all configs at the same time, and suspend each as soon as it is loaded and checked.

        Args:
            configs: The configs.
            deadline_s: Maximum time to load, and the same for the first run.
            independent: As for `Executor.launch`.
        """
        results: list[LiveCandidate | Failure] = []
        started: list[list[WorkerProcess] | Failure] = []
        limit_bytes = self._memory.find_limit(len(configs) * self._n_processes)
        with self._open_template([] if independent else configs) as template:
            for config in configs:
                is_reference = not self._has_reference and not started
                failure = self._build(config, is_reference=is_reference)
                started.append(
                    failure
                    or self._start_all(config, limit_bytes, deadline_s, is_reference=is_reference, template=template)
                )
        failures = self._finish_loading(
            [launched for launched in started if not isinstance(launched, Failure)], deadline_s
        )
        for workers in started:
            failed = workers if isinstance(workers, Failure) else failures.get(workers[0])
            if failed or isinstance(workers, Failure):
                assert failed
                results.append(failed)
                self._check_files()
                continue
            for worker in workers:
                worker.note_build(self._compiled.check(worker.config))
            results.append(workers[0] if len(workers) == 1 else WorkerGroup(workers))
            self._note_loaded(workers[0])
        return results

    def _note_loaded(self, worker: WorkerProcess) -> None:
        self._nodes[worker.config.key] = worker.session_info.nodes
        self.runtime = worker.runtime
        self._has_reference = True
        self._compare_values = self._compare_values and worker.session_info.deterministic

    def _finish_loading(
        self, groups: Sequence[Sequence[WorkerProcess]], deadline_s: float
    ) -> dict[WorkerProcess, Failure]:
        """Wait until workers are loaded and checked, and suspend each at once.

        Creating the sessions and running them for the first time have a deadline each: a model that is slow to load is
        not the same as one whose first run hangs. When all others are done, one that hangs gets the time of a single
        launch. A worker that does nothing for a long time is given up before a long deadline.

        Args:
            groups: The workers of each candidate. If one of them fails, all of them are closed.
            deadline_s: Maximum time of each stage.

        Returns:
            Why candidates failed, by their first worker.
        """
        failures = {}
        group_of = {worker: group for group in groups for worker in group}
        # A model that is compiled in each launch takes the same time in each.
        longest_s = max(deadline_s, self._build_deadline_s)
        deadlines_s = {
            worker: longest_s if self._compiled.compiles_again(worker.config) else deadline_s for worker in group_of
        }
        ends_s = {worker: time.monotonic() + deadlines_s[worker] for worker in group_of if not worker.is_loaded}
        while ends_s:
            if len(groups) > 1 and len({group_of[worker][0] for worker in ends_s}) == 1:
                now_s = time.monotonic()
                ends_s = {
                    worker: min(end_s, now_s + deadlines_s[worker] / len(groups)) for worker, end_s in ends_s.items()
                }
            first = min(ends_s, key=ends_s.__getitem__)
            left_s = max(ends_s[first] - time.monotonic(), 0.0)
            looks = left_s > LOOK_S and deadlines_s[first] > MOST_IDLE_S
            replied = wait([worker.pipe for worker in ends_s], LOOK_S if looks else left_s)
            due = [waiting for waiting in ends_s if waiting.pipe in replied]
            if looks and not due:
                due = [waiting for waiting in ends_s if waiting.looks_idle()]
            for worker in due if due or looks else [first]:
                if worker not in ends_s:  # another one of its group has failed
                    continue
                left_s = max(ends_s.pop(worker) - time.monotonic(), 0.1)
                failure = worker.finish_stage(left_s, deadline_s=deadlines_s[worker])
                group = group_of[worker]
                if failure:
                    failures[group[0]] = failure if len(group) == 1 else name_group(failure, len(group))
                    for other in (member for member in group if member is not worker):
                        ends_s.pop(other, None)
                        other.close()
                elif not worker.is_loaded:
                    if not self._has_reference:
                        enter_step("first run")
                    ends_s[worker] = time.monotonic() + deadlines_s[worker]
        return failures

    def _check_files(self) -> None:
        """Check after a failure that what workers read is there. If it is not, the candidate is not to blame.

        Raises:
            HostError: It is not.
        """
        if not Path(self._model.path).is_file():
            raise HostError(f"{self._model.path} is missing: something removed the model while it was measured.")
        for path in (self._feed_path, *([self._reference_path] if self._has_reference else [])):
            if not path.is_file():
                raise make_missing_error(path)

    @property
    def reference(self) -> ReferenceOutputs:
        """The reference outputs, for use by another executor."""
        return ReferenceOutputs(
            path=self._reference_path,
            compare_values=self._compare_values,
            baseline_key=self._baseline_key,
            quanta=self._quanta,
        )

    def _build(self, config: Config, *, is_reference: bool) -> Failure | None:
        """Let a provider that compiles models do so in a launch of its own. Later launches read its cache."""
        if self._compiled.is_needed(config):
            left_s = BUILDS * self._build_deadline_s - self._compiled.total_s
            if left_s <= 0:
                message = f"compiling other candidates took {self._compiled.total_s:.0f} s, which is the limit for all"
                return Failure(kind="timeout", stage="skipped", message=message)
            deadline_s = min(left_s, self._build_deadline_s)
            before = self._compiled.list_files(config)
            start_s = time.monotonic()
            worker = self._start(config, self._memory.find_limit(1), is_reference=is_reference)
            failure: Failure | None
            if isinstance(worker, Failure):
                failure = worker
            else:
                failure = self._finish_loading([[worker]], deadline_s).get(worker)
                worker.close()
            build_s = time.monotonic() - start_s
            if failure and not isinstance(worker, Failure) and worker.is_idle:  # more time would not help
                message = f"{config.provider} did not compile the model: {failure.message}"
                failure = msgspec.structs.replace(failure, message=message)
            elif failure and failure.kind == "timeout":
                message = f"{config.provider} did not compile the model within {deadline_s:.0f} s"
                stage = "build"
                if deadline_s < self._build_deadline_s:
                    message, stage = f"{message}, which were left of the limit for all candidates", "skipped"
                failure = msgspec.structs.replace(failure, stage=stage, message=message)
            self._compiled.note(config, build_s, failure, before)
        return self._compiled.find_failure(config)

    @contextlib.contextmanager
    def _open_template(self, configs: Sequence[Config]) -> Iterator[Template | None]:
        """Yield what the workers of a launch are copies of, or None if they are started on their own."""
        template = None
        with contextlib.ExitStack() as stack:
            if len(configs) * self._n_processes >= FEWEST_COPIES and self._can_copy(configs):
                try:
                    with uninterrupted():
                        opened = stack.enter_context(
                            Template(self._list_variables(), self._folder.path / "template.log")
                        )
                    opened.wait()
                    template = opened
                except OSError:
                    self._copies = False
            yield template

    def _can_copy(self, configs: Sequence[Config]) -> bool:
        """Return whether all workers of a launch can be copies of one process, so that none has an advantage."""
        variables = self._list_variables()
        return (
            self._copies
            and self._command == WORKER_COMMAND
            and not any(self._pinned_to)
            and all(config.provider == CPU and not variables_of(config, variables) for config in configs)
        )

    def _list_variables(self) -> dict[str, str]:
        """Return the environment of workers, without the variables of their configs."""
        return {**NO_BLAS_THREADS, **make_environment(self._temporary), **self._environment}

    def _start_all(
        self,
        config: Config,
        limit_bytes: int | None,
        deadline_s: float,
        *,
        is_reference: bool,
        template: Template | None,
    ) -> list[WorkerProcess] | Failure:
        """Start the workers of a candidate.

        The first worker of the reference loads alone, as the others compare their outputs with those that it writes.
        """
        workers: list[WorkerProcess] = []
        for number in range(self._n_processes):
            worker = self._start(
                config, limit_bytes, is_reference=is_reference and number == 0, number=number, template=template
            )
            failure = worker if isinstance(worker, Failure) else None
            if isinstance(worker, WorkerProcess):
                workers.append(worker)
                if is_reference and number == 0 and self._n_processes > 1:
                    failure = self._finish_loading([workers], deadline_s).get(worker)
                    if not failure:
                        self._note_loaded(worker)
            if failure:
                for launched in workers:
                    launched.close()
                return failure
        return workers

    def _count_repeats(self, config: Config) -> int:
        """Return how often the compared samples are run again at a launch: most often in the first one of a config.

        On the CPU, outputs do not depend on chance.
        """
        if config.provider == CPU:
            return 0
        return 1 if config.key in self._nodes else MOST_SAMPLE_REPEATS

    def _start(
        self,
        config: Config,
        limit_bytes: int | None,
        *,
        is_reference: bool,
        number: int = 0,
        template: Template | None = None,
    ) -> WorkerProcess | Failure:
        self._n_launched += 1
        if is_reference:
            self._baseline_key = config.key
        request = protocol.LoadRequest(
            model_path=self._model.path,
            config=self._compiled.with_folder(config),
            feed_path=str(self._feed_path),
            reference_path=str(self._reference_path),
            is_reference=is_reference,
            n_sessions=self._n_sessions,
            tolerance=self._tolerance,
            quanta=dict(self._quanta),
            compare_values=self._compare_values,
            repeats=self._count_repeats(config),
            is_baseline=config.key == self._baseline_key,
            memory_limit_bytes=limit_bytes if self._memory_limit_bytes is None else self._memory_limit_bytes,
            usable=self._usable,
            n_cores=self._n_cores,
            background_load=self._background_load,
            check_waiting=self._check_waiting,
            cpus=self._pinned_to[number],
            nodes=self._nodes.get(config.key, {}),
            memory_callers=self._memory_callers,
        )
        log_path = self._folder.path / f"worker-{self._n_launched:05}.log"
        try:
            with uninterrupted():  # otherwise a process could start that is not in the set, and would never be ended
                worker = WorkerProcess(
                    config,
                    self._command,
                    log_path,
                    environment=self._list_variables(),
                    on_close=self._forget,
                    template=template,
                )
                self._live.add(worker)
                self._memory.add(worker)
                self._watchdog.add(worker.pid)
        except OSError as error:
            self._check_files()
            return Failure(kind="exit", stage="start", message=f"cannot start a worker: {error.strerror}")
        worker.send(request)
        return worker

    def _forget(self, worker: WorkerProcess) -> None:
        self._live.discard(worker)
        self._memory.remove(worker)
        self._watchdog.remove(worker.pid)


open_workers = replaceable(ProcessExecutor)
"""Returns a `ProcessExecutor`, or what a simulated host has instead."""


def _list_quanta(model: ModelInfo) -> dict[str, float]:
    """Return the step between two adjacent values of each output that a model dequantizes at the end."""
    return {output.name: output.quantum for output in model.outputs if output.quantum}


def launch_reference(
    executor: Executor,
    model: ModelInfo,
    feed: Feed,
    base: Config = DEFAULT,
    deadline_s: float = BASELINE_LOAD_DEADLINE_S,
    on_attempt: Callable[[], None] = lambda: None,
) -> LiveCandidate:
    """Launch the baseline, again if its process ends suddenly. This is the first proof that the model loads and runs.

    Args:
        executor: What launches it.
        model: The model.
        feed: The inputs.
        base: Config of the baseline.
        deadline_s: Maximum time of an attempt.
        on_attempt: Called before each attempt.

    Raises:
        HostError: Workers cannot be started.
        ModelError: ONNX Runtime cannot load the model.
        InputsError: The model does not run on these inputs.
        UsageError: The settings that the user fixed for all candidates do not work.
    """

    def launch() -> LiveCandidate | Failure:
        on_attempt()
        (answer,) = executor.launch([base], deadline_s=deadline_s)
        return answer

    first = Attempts(max_first_failures=REFERENCE_ATTEMPTS, should_work=True).launch(launch)
    if not isinstance(first, Failure):
        return first
    kind = first.title
    if first.stage == "start":
        raise HostError(f"{first.message[0].upper()}{first.message[1:]}.", "Check the limits of processes and memory.")
    if first.stage == "files":
        raise HostError(
            f"Cannot write the outputs of the model to a temporary file: {first.message}.",
            "Set the variable TMPDIR to a folder with free space.",
        )
    if not base.is_default:
        raise UsageError(
            f"The settings that are fixed for all candidates, {describe(base)}, do not work on this host ({kind}): "
            f"{first.message}",
            "Increase the time limit with {build_timeout=20m}."
            if first.stage == "build"
            else "Change {fix}, {provider} or the first number of {batch}.",
        )
    if first.stage == "check" and first.kind == "exception":
        raise explain_failed_run(model, feed, first.message)
    raise ModelError(
        f"ONNX Runtime cannot {'run' if first.stage == 'check' else 'load'} {model.path} ({kind}): {first.message}",
        "Check whether ONNX Runtime loads it without ortune: "
        "python -P -c 'import onnxruntime; onnxruntime.InferenceSession(PATH)'.",
    )
