"""Runs a program with a candidate's settings, and checks that it did what the program does without them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import HostError, make_missing_error
from ortune.interrupts import uninterrupted
from ortune.knobs import Config
from ortune.program.applied import find_others, find_untuned
from ortune.program.gate import CallLog
from ortune.program.launcher import LaunchedProgram, Launcher, TunedModel
from ortune.program.metric import find_metric
from ortune.program.outputs import OutputReference
from ortune.program.process import Ended, ProgramProcess
from ortune.program.server import LoadGenerator, Server
from ortune.program.task import ProgramTask
from ortune.worker import Failure, Runtime, SessionInfo
from ortune.worker import cpu as worker_cpu
from ortune.worker.attempts import Attempts
from ortune.worker.clocks import Clocks
from ortune.worker.cpu import CpuTimes
from ortune.worker.owned_folder import OwnedFolder, remove_abandoned_folders

FIRST_RUN_DEADLINE_S = 900.0
"""Maximum time of the first run. Nothing is known about the program at that point."""

RUN_DEADLINE_FACTOR = 10
LEAST_RUN_DEADLINE_S = 10.0
"""A run of a candidate times out after so many runs of the baseline, and this time at least."""

FEW_CALLS = 8
SHORTEST_STAY_NS = 50_000_000
"""A program whose run has fewer calls, or calls that all end within this time, is run to completion."""

PAUSE_SHARE = 0.5
LEAST_PAUSE_S = 0.2
"""After which share of its usual time a run of the program as it is is suspended, and for how long at least."""


class Cpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs on which the use by other processes is monitored.

    Attributes:
        usable: Their numbers.
        n_cores: Number of physical cores that they belong to; 0 if unknown.
        background_load: Process id of the background load, or None.
    """

    usable: tuple[int, ...]
    n_cores: int = 0
    background_load: int | None = None

    def read(self) -> CpuTimes:
        """Return their CPU time so far, that of this process, and that of the background load."""
        return CpuTimes(
            at_ns=time.perf_counter_ns(),
            busy_ns=worker_cpu.busy_ns(frozenset(self.usable)),
            own_ns=time.process_time_ns(),
            background_load_ns=worker_cpu.tree_ns(self.background_load) if self.background_load is not None else 0,
            threads={},
        )

    def find_foreign(self, before: CpuTimes, after: CpuTimes, program_ns: int) -> tuple[float | None, bool]:
        """Return the share of CPU time that other processes used between two readings, and whether it spoils a block.

        Args:
            before: The reading before the block.
            after: The reading after it.
            program_ns: CPU time of the program between them.
        """
        after = after._replace(own_ns=after.own_ns + program_ns)
        return worker_cpu.find_foreign(before, after, len(self.usable), self.n_cores)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One complete run of a program.

    Attributes:
        ended: Its end.
        calls_ns: Durations of the calls of the function that is timed; None if there is none.
        n_calls: Number of its calls, the first one of a run included, whose duration is left out.
        metric: The number that it printed; None if none is wanted.
        foreign_share: Share of the CPU time that other processes used; None if unknown.
        contended: Whether they spoiled it.
        clock_jump_s: By how much the clocks of the host disagree; 0 if they agree.
    """

    ended: Ended
    calls_ns: NDArray[np.int64] | None
    n_calls: int = 0
    metric: float | None
    foreign_share: float | None
    contended: bool
    clock_jump_s: float


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """End it."""


class ProgramRunner:
    """Runs a program to completion, and holds what its candidates have in common.

    Args:
        task: The program, and what is measured of it.
        models: The models whose sessions get the settings.
        runtime: The software that the program runs.
        cpus: The CPUs on which the use by other processes is monitored.
        server: How the program is loaded if it is a server; None if it is not.
        keeps_running: Whether the calls of the function are measured in a program that stays alive.
        run_s: Time that one run of the program takes; None if it is not known, because it does not end soon.
        others: Gets the names of models whose sessions have no settings; see the attribute.
        inherited: Environment of this process.

    Attributes:
        runtime: The software that the program runs.
        outputs: What the outputs of candidates are compared with.
        others: Models whose sessions got no settings, as the program did not call them while it was observed.
        run_deadline_s: Time that a run may take.
        live: Programs that stay alive between blocks. They end when this is closed.
        n_compared_bodies: Bodies of requests whose answers are compared in each launch; 0 before the first one.
    """

    def __init__(
        self,
        task: ProgramTask,
        models: Sequence[TunedModel],
        runtime: Runtime,
        cpus: Cpus,
        *,
        server: Server | None = None,
        keeps_running: bool = False,
        run_s: float | None = None,
        others: set[str] | None = None,
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        remove_abandoned_folders()
        self.runtime = runtime
        self.task = task
        self.cpus = cpus
        self.outputs = OutputReference(task)
        self.run_deadline_s = FIRST_RUN_DEADLINE_S
        self.n_compared_bodies = 0
        self.others: set[str] = set() if others is None else others
        self.live: set[Closable] = set()
        self._run_s = run_s
        self._server = server
        self._keeps_running = keeps_running
        self._base: Config | None = None
        self._folder = OwnedFolder()
        self.launcher = Launcher(task, models, runtime.onnxruntime, self._folder, inherited)
        self._process: ProgramProcess | None = None
        self._load: LoadGenerator | None = None

    def close(self) -> None:
        """End all programs, and remove their files."""
        with uninterrupted():
            for program in tuple(self.live):
                program.close()
            if self._process:
                self._process.close()
            if self._load:
                self._load.close()
            self._folder.remove()

    @property
    def load(self) -> LoadGenerator:
        """What makes the requests."""
        if self._load is None:
            assert self._server
            log_path = self._folder.path / "requests.log"
            cpus = self.cpus
            self._load = LoadGenerator(self._server, log_path, cpus.usable, cpus.n_cores, cpus.background_load)
        return self._load

    def run(self, config: Config, deadline_s: float, *, pause_after_s: float | None = None) -> RunResult | Failure:
        """Run the program to completion, and check what it printed.

        Args:
            config: The candidate's settings.
            deadline_s: Time that it may take.
            pause_after_s: When it is suspended for a moment; None for never.
        """
        if self._process is None:
            with uninterrupted():
                self._process = ProgramProcess()
        clocks, before = Clocks.read(), self.cpus.read()
        run = self.launcher.start(self._process, config)
        if isinstance(run, Failure):
            self.check_files()
            return run
        try:
            if pause_after_s is not None and self._process.wait(pause_after_s) is None:
                self._process.suspend()
                time.sleep(max(pause_after_s, LEAST_PAUSE_S))
                self._process.resume()
            ended = self._process.wait(deadline_s)
            if ended is None:
                self._process.end(0)
                return Failure(kind="timeout", stage="measure", message=f"it did not end within {deadline_s:.0f} s")
            after = self.cpus.read()
            if failure := self.check_end(run, ended, config):
                return failure
            share, contended = self.cpus.find_foreign(before, after, ended.cpu_ns)
            calls = CallLog(run.folder).read() if self.task.call else None
            if calls is not None and not len(calls):
                return Failure(kind="exit", stage="measure", message=f"it ended without a call of {self.task.call}")
            metric = None
            if self.task.metric:
                metric = find_metric(self.task.metric, run.read_output() or b"")
                if metric is None:
                    message = f"it printed no number above 0 that {self.task.metric!r} finds"
                    return Failure(kind="wrong_output", stage="measure", message=message)
            return RunResult(
                ended=ended,
                calls_ns=None if calls is None else drop_first(calls),
                n_calls=0 if calls is None else len(calls),
                metric=metric,
                foreign_share=share,
                contended=contended,
                clock_jump_s=Clocks.read().find_jump_s(clocks),
            )
        finally:
            self.forget_run(run)

    def check_end(self, run: LaunchedProgram, ended: Ended, config: Config, n_known: int = 0) -> Failure | None:
        """Return what is wrong with a run that has ended: its status, its output, or settings that had no effect.

        Args:
            run: The run.
            ended: Its end.
            config: The candidate's settings.
            n_known: Number of its calls that were compared before.
        """
        self.check_files(run)
        if ended.status:
            return run.explain_end(ended, "measure")
        if failure := self.outputs.compare_run(run, config.key, is_baseline=self.is_baseline(config)):
            return failure
        return self.check_returned(run, config, n_known) or self.check_settings(run, config)

    def check_files(self, run: LaunchedProgram | None = None) -> None:
        """Check before a failure is judged that all files are there. If one is not, the candidate is not to blame.

        Args:
            run: The run that failed; None if there is none.

        Raises:
            HostError: One is missing.
        """
        for path in (self._folder.path, *((run.folder,) if run else ())):
            if not path.exists():
                raise make_missing_error(path)
        for path in (self.task.stdin, *(self._server.bodies if self._server else ())):
            if not path.exists():
                raise HostError(f"{path} is missing: something removed it while the program was measured.")

    def check_returned(self, run: LaunchedProgram, config: Config, n_known: int = 0) -> Failure | None:
        """Return a failure if the first calls of the function returned something else than in the program as it is.

        Args:
            run: The run.
            config: The candidate's settings.
            n_known: Number of its calls that were compared before.
        """
        if not self.task.call:
            return None
        is_baseline = self.is_baseline(config)
        difference = self.outputs.compare_returned(run.folder, config.key, is_baseline=is_baseline, n_known=n_known)
        return Failure(kind="wrong_output", stage="check", message=difference) if difference else None

    def check_finalist(self, config: Config, left_s: float) -> Failure | None:
        """Run a program that is measured while it stays alive to its end, and return what is wrong with that.

        Its exit status and what it printed are only known at the end. If there is no time for it, nothing is checked.

        Args:
            config: The candidate's settings.
            left_s: Time that this may take.
        """
        if not self._keeps_running or self._run_s is None or self._base is None or self.outputs.has_ended(config.key):
            return None
        n_missing = max(self.outputs.n_needed - self.outputs.n_ended, 0)
        if (n_missing + 1) * self._run_s + self.outputs.check_s > left_s:
            return None
        deadline_s = max(LEAST_RUN_DEADLINE_S, RUN_DEADLINE_FACTOR * self._run_s)
        for number in range(n_missing):
            # Times that it prints then differ, so that they are not compared.
            pause_after_s = None if number else PAUSE_SHARE * self._run_s
            if isinstance(self.run_steadily(self._base, deadline_s, pause_after_s), Failure):
                return None  # it ended otherwise than when it was observed, so nothing can be compared with it
        result = self.run_steadily(config, deadline_s)
        return result if isinstance(result, Failure) else None

    def run_steadily(
        self, config: Config, deadline_s: float, pause_after_s: float | None = None
    ) -> RunResult | Failure:
        """Run the program to completion. It is launched again if it ends suddenly; see `run` for the arguments."""
        return Attempts().launch(lambda: self.run(config, deadline_s, pause_after_s=pause_after_s))

    def is_baseline(self, config: Config) -> bool:
        """Return whether a candidate is the baseline: the program as it is, with what the user fixed."""
        return config == self._base

    def check_settings(self, run: LaunchedProgram, config: Config) -> Failure | None:
        """Return a failure if no session of the program got the candidate's settings."""
        if not self.launcher.changes_sessions(config):
            return None
        reason = find_untuned(run.folder)
        return Failure(kind="not_applied", stage="load", message=reason) if reason else None

    def forget_run(self, run: LaunchedProgram) -> None:
        """Remove the files of a run that is over."""
        self.others |= find_others(run.folder)
        run.remove()

    def describe_session(self, config: Config) -> SessionInfo:
        """Return facts about the sessions of a candidate."""
        is_compared = self.outputs.is_compared(config.key, is_baseline=self.is_baseline(config))
        return SessionInfo(load_ns=0, providers=(), outputs_compared=is_compared)


def drop_first(calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the durations of the calls of a run in order of their start, without the first one, which warms up.

    A single call is returned as it is.
    """
    ordered = calls[np.argsort(calls[:, 0], kind="stable")]
    durations: NDArray[np.int64] = ordered[:, 1] - ordered[:, 0]
    return durations[1:] if len(durations) > 1 else durations
