"""Runs candidates as processes: one worker each, suspended while it is not measured."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from ortune.errors import ModelError, UsageError
from ortune.interrupts import uninterrupted
from ortune.knobs.config import DEFAULT, Config
from ortune.knobs.providers import find_provider
from ortune.knobs.space import describe
from ortune.model import ModelInfo
from ortune.worker import protocol
from ortune.worker.failure import Failure
from ortune.worker.interfaces import LiveCandidate
from ortune.worker.process import WorkerProcess
from ortune.worker.session_info import Runtime
from ortune.workload import Feed, Tolerance
from ortune.workload.inputs import explain_failure

if TYPE_CHECKING:
    pass

WORKER_COMMAND = (sys.executable, "-P", "-m", "ortune.worker.main")

FIRST_LOAD_DEADLINE_S = 900.0
"""Time that the default may take to load and run once: nothing is known of the model yet."""

BUILD_DEADLINE_S = 600.0
"""Time that a provider which compiles models may take for one."""


class ReferenceOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs to compare with.

    Attributes:
        path: The file that holds them.
        compare_values: Whether they are the same from run to run; if not, only types and shapes are compared.
    """

    path: Path
    compare_values: bool


class ProcessExecutor:
    """Launches workers, and ends all of them when it is left.

    Args:
        model: What to run.
        feed: What is fed in each call.
        tolerance: How far outputs may lie from the default's.
        usable: CPUs on which foreign use is watched.
        background_load: Process id of the program that runs beside the trials, or None.
        memory_limit_bytes: Private memory that one worker may take, or None.
        n_sessions: Sessions of the model that each worker makes.
        build_deadline_s: Time that a provider may take to compile the model, once for each candidate.
        command: Program and arguments that start a worker.
        environment: Variables that workers have beside those of this process.
        reference: Outputs to compare with, of another executor; None for those of the first launch.

    Attributes:
        runtime: What the workers run, known after the first successful launch.
    """

    runtime: Runtime

    def __init__(
        self,
        model: ModelInfo,
        feed: Feed,
        tolerance: Tolerance,
        *,
        usable: tuple[int, ...],
        background_load: int | None = None,
        memory_limit_bytes: int | None = None,
        n_sessions: int = 1,
        build_deadline_s: float = BUILD_DEADLINE_S,
        command: Sequence[str] = WORKER_COMMAND,
        environment: Mapping[str, str] | None = None,
        reference: ReferenceOutputs | None = None,
    ) -> None:
        self._n_sessions = n_sessions
        self._build_deadline_s = build_deadline_s
        self._built: dict[str, Failure | float] = {}
        self._caches: dict[str, str] = {}
        self._compiling_s = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="ortune-")
        self._model = model
        self._feed_path = Path(self._folder.name) / "feed.npz"
        self._has_reference = reference is not None
        self._reference_path = reference.path if reference else Path(self._folder.name) / "reference.pickle"
        self._tolerance = tolerance
        self._usable = usable
        self._neighbour = background_load
        self._memory_limit_bytes = memory_limit_bytes
        self._command = command
        self._environment = dict(environment or {})
        self._compare_values = reference.compare_values if reference else True
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
            self._folder.cleanup()

    def now_s(self) -> float:
        """Return the time on the monotonic clock, in seconds; it stands still while a provider compiles the model.

        So compiling is not charged to the budget: it is done once, and a cache keeps it.
        """
        return time.monotonic() - self._compiling_s

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[LiveCandidate | Failure]:
        """Start a worker for each config, all at once, and suspend each as soon as it has loaded and run."""
        answers: list[LiveCandidate | Failure] = []
        started: list[WorkerProcess | Failure] = []
        is_reference = self._n_launched == 0 and not self._has_reference
        for config in configs:
            failure = self._build(config, is_reference=is_reference)
            started.append(failure or self._start(config, is_reference=is_reference))
            is_reference = False
        end_s = time.monotonic() + deadline_s
        for worker in started:
            if isinstance(worker, Failure):
                answers.append(worker)
                continue
            failure = worker.finish_loading(max(end_s - time.monotonic(), 0.1), self.build_s(worker.config))
            answers.append(failure or worker)
            if failure is None:
                self.runtime = worker.runtime
                self._compare_values = self._compare_values and worker.session_info.deterministic
        return answers

    @property
    def reference(self) -> ReferenceOutputs:
        """The outputs of the first launch, for another executor to compare its own with."""
        return ReferenceOutputs(path=self._reference_path, compare_values=self._compare_values)

    def build_s(self, config: Config) -> float | None:
        """Return how long a provider took to compile the model with this config; None where it does not compile."""
        built = self._built.get(config.key)
        return built if isinstance(built, float) else None

    def _build(self, config: Config, *, is_reference: bool) -> Failure | None:
        """Let a provider that compiles models do so once, by itself; later launches find it in the cache."""
        if not find_provider(config.provider).builds:
            return None
        if config.key not in self._built:
            start_s = time.monotonic()
            worker = self._start(config, is_reference=is_reference)
            failure = worker if isinstance(worker, Failure) else worker.finish_loading(self._build_deadline_s)
            if isinstance(worker, WorkerProcess):
                worker.close()
            if failure and failure.kind == "timeout":
                message = f"{config.provider} did not compile the model within {self._build_deadline_s:.0f} s"
                failure = msgspec.structs.replace(failure, stage="build", message=message)
            took_s = time.monotonic() - start_s
            self._compiling_s += took_s
            self._built[config.key] = failure or took_s
        built = self._built[config.key]
        return built if isinstance(built, Failure) else None

    def _with_cache(self, config: Config) -> Config:
        """Return the config with a folder of its own for what its provider compiles."""
        provider = find_provider(config.provider)
        if not provider.builds:
            return config
        number = len(self._caches)
        folder = Path(self._folder.name) / "cache" / self._caches.setdefault(config.key, f"{number:05}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in provider.caches(str(folder)).items():
            config = config.with_setting("provider_options", name, value, provider.name)
        return config

    def _start(self, config: Config, *, is_reference: bool) -> WorkerProcess | Failure:
        self._n_launched += 1
        request = protocol.LoadRequest(
            model_path=self._model.path,
            config=self._with_cache(config),
            feed_path=str(self._feed_path),
            reference_path=str(self._reference_path),
            is_reference=is_reference,
            n_sessions=self._n_sessions,
            tolerance=self._tolerance,
            quanta={output.name: output.quantum for output in self._model.outputs if output.quantum},
            compare_values=self._compare_values,
            memory_limit_bytes=self._memory_limit_bytes,
            usable=self._usable,
            background_load=self._neighbour,
        )
        log_path = Path(self._folder.name) / f"worker-{self._n_launched:05}.log"
        try:
            with uninterrupted():  # a process that nobody knows of would not be ended
                worker = WorkerProcess(
                    config, self._command, log_path, environment=self._environment, on_close=self._live.discard
                )
                self._live.add(worker)
        except OSError as error:
            return Failure(kind="exception", stage="start", message=f"cannot start a worker: {error.strerror}")
        worker.send(request)
        return worker


def launch_reference(
    executor: ProcessExecutor,
    model: ModelInfo,
    feed: Feed,
    base: Config = DEFAULT,
    deadline_s: float = FIRST_LOAD_DEADLINE_S,
) -> LiveCandidate:
    """Make the default, or what takes its place, live: the first proof that the model loads and runs on these inputs.

    Raises:
        ModelError: ONNX Runtime cannot load the model.
        InputsError: The model does not run on these inputs.
        UsageError: What takes the place of the default does not work.
    """
    (first,) = executor.launch([base], deadline_s=deadline_s)
    if not isinstance(first, Failure):
        return first
    if not base.is_default:
        raise UsageError(
            f"{describe(base)}, which every candidate is to have, does not work here "
            f"({first.kind.replace('_', ' ')}): {first.message}",
            "Give compiling more time with --build-timeout."
            if first.stage == "build"
            else "Change --fix or --provider.",
        )
    if first.stage == "check" and first.kind == "exception":
        raise explain_failure(model, feed, first.message)
    raise ModelError(
        f"ONNX Runtime cannot {'run' if first.stage == 'check' else 'load'} {model.path}"
        f" ({first.kind.replace('_', ' ')}): {first.message}",
        "Check that it loads by itself: python -c 'import onnxruntime; onnxruntime.InferenceSession(PATH)'.",
    )
