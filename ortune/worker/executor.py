"""Runs candidates as processes: one worker each, suspended while it is not measured."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
import psutil

from ortune.errors import ModelError, UsageError
from ortune.interrupts import uninterrupted
from ortune.knobs.config import DEFAULT, Config
from ortune.knobs.providers import find_provider
from ortune.knobs.space import describe
from ortune.model import ModelInfo
from ortune.worker import protocol
from ortune.worker.exit_status import explain_death, read_log
from ortune.worker.values import UNTUNED, Block, BlockPlan, Failure, Live, Loaded, Runtime
from ortune.workload import Feed, Tolerance
from ortune.workload.inputs import explain_failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WORKER_COMMAND = (sys.executable, "-P", "-m", "ortune.worker.main")

FIRST_LOAD_DEADLINE_S = 900.0
"""Time that the default may take to load and run once: nothing is known of the model yet."""

BUILD_DEADLINE_S = 600.0
"""Time that a provider which compiles models may take for one."""

TIME_TO_DIE_S = 10.0


class Reference(msgspec.Struct, frozen=True, kw_only=True):
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
        reference: Reference | None = None,
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
        self._live: set[Worker] = set()
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

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[Live | Failure]:
        """Start a worker for each config, all at once, and suspend each as soon as it has loaded and run."""
        answers: list[Live | Failure] = []
        started: list[Worker | Failure] = []
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
                self._compare_values = self._compare_values and worker.loaded.deterministic
        return answers

    @property
    def reference(self) -> Reference:
        """The outputs of the first launch, for another executor to compare its own with."""
        return Reference(path=self._reference_path, compare_values=self._compare_values)

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
            if isinstance(worker, Worker):
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

    def _start(self, config: Config, *, is_reference: bool) -> Worker | Failure:
        self._n_launched += 1
        request = protocol.Load(
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
                worker = Worker(
                    config, self._command, log_path, environment=self._environment, on_close=self._live.discard
                )
                self._live.add(worker)
        except OSError as error:
            return Failure(kind="exception", stage="start", message=f"cannot start a worker: {error.strerror}")
        worker.send(request)
        return worker


class Worker:
    """A candidate in a process of its own."""

    loaded: Loaded
    runtime: Runtime

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str],
        on_close: Callable[[Worker], object],
    ) -> None:
        self.config = config
        self._log_path = log_path
        self._on_close = on_close
        self._failed: Failure | None = None
        with log_path.open("wb") as log:
            self._process, self._pipe = protocol.spawn(
                command, environment={**os.environ, **UNTUNED, **environment, **config.environment}, log=log
            )
        self._control = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, request: protocol.Request) -> None:
        """Send a request; a worker that is gone already is noticed when its reply is read."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(protocol.encode(request))

    def finish_loading(self, deadline_s: float, build_s: float | None = None) -> Failure | None:
        """Wait until the session is there, and suspend the worker; `build_s` is what compiling took before."""
        reply = self._receive(deadline_s, "load")
        if isinstance(reply, Failure):
            return reply
        assert isinstance(reply, protocol.LoadedReply)
        self.loaded = msgspec.structs.replace(reply.loaded, log=read_log(self._log_path), build_s=build_s)
        self.runtime = reply.runtime
        self._suspend()
        return None

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Resume, measure one block, and suspend. This process sleeps on the pipe meanwhile."""
        reply = self._ask(protocol.Measure(plan=plan), plan.deadline_s)
        if isinstance(reply, Failure):
            return reply
        assert isinstance(reply, protocol.BlockReply)
        return Block(
            samples_ns=_integers(reply.samples),
            cases=None if reply.cases is None else _integers(reply.cases),
            n_calls=reply.n_calls,
            wall_ns=reply.wall_ns,
            lead_in_ns=reply.lead_in_ns,
            service_ns=reply.service_ns,
            cpu_ns=reply.cpu_ns,
            cpu_between_ns=reply.cpu_between_ns,
            creations_ns=None if reply.creations is None else _integers(reply.creations),
            memory=reply.memory,
            foreign_share=reply.foreign_share,
            contended=reply.contended,
            gpu=reply.gpu,
        )

    def close(self) -> None:
        """Kill the worker, suspended or not, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._on_close(self)

    def _ask(self, request: protocol.Request, deadline_s: float) -> protocol.Reply | Failure:
        if self._failed:
            return self._failed
        try:
            self._control.resume()
        except psutil.Error:
            return self._fail(self._cause_of_death("measure"))
        self.send(request)
        reply = self._receive(deadline_s, "measure")
        if not isinstance(reply, Failure):
            self._suspend()
        return reply

    def _receive(self, deadline_s: float, stage: str) -> protocol.Reply | Failure:
        """Sleep until the reply is there, for at most `deadline_s`."""
        try:
            if not self._pipe.poll(deadline_s):
                message = f"no answer within {deadline_s:.0f} s"
                return self._fail(Failure(kind="timeout", stage=stage, message=message))
            reply: protocol.Reply = protocol.decode_reply(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return self._fail(self._cause_of_death(stage))
        except msgspec.MsgspecError as error:
            return self._fail(
                Failure(kind="exception", stage=stage, message=f"the worker's answer is garbled: {error}")
            )
        if isinstance(reply, protocol.FailureReply):
            return self._fail(reply.failure)
        return reply

    def _fail(self, failure: Failure) -> Failure:
        self._failed = failure
        self.close()
        return failure

    def _cause_of_death(self, stage: str) -> Failure:
        try:
            status = self._process.wait(TIME_TO_DIE_S)
        except subprocess.TimeoutExpired:
            return Failure(kind="exit", stage=stage, message="the worker closed its pipe and went on running")
        return explain_death(status, " ".join(read_log(self._log_path)[-2:]), stage)

    def _suspend(self) -> None:
        with contextlib.suppress(psutil.Error):  # it died; the next request tells how
            self._control.suspend()


def _integers(data: bytes) -> NDArray[np.int64]:
    import numpy as np

    return np.frombuffer(data, dtype="<i8")


def launch_reference(
    executor: ProcessExecutor,
    model: ModelInfo,
    feed: Feed,
    base: Config = DEFAULT,
    deadline_s: float = FIRST_LOAD_DEADLINE_S,
) -> Live:
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
