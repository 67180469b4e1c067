"""Launches candidates as programs: each live candidate is a tree of processes, suspended except while it is measured.

Three kinds of programs are measured. One that runs and exits is run to completion for each block. One whose function is
timed stays alive: its calls pass a gate, which is open during a block and closed otherwise. A server stays alive, too,
and gets requests during a block.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import HostError
from ortune.interrupts import uninterrupted
from ortune.knobs import Config
from ortune.program.applied import find_others, find_untuned
from ortune.program.gate import CallLog
from ortune.program.launcher import RETURNED_CALLS, Launcher, Run, TunedModel
from ortune.program.outputs import OutputReference
from ortune.program.process import Ended, ProgramProcess
from ortune.program.server import Server, ServerLoad
from ortune.program.task import ProgramTask, find_metric
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate, Memory, Runtime, SessionInfo
from ortune.worker import cpu as worker_cpu
from ortune.worker.clocks import Clocks
from ortune.worker.cpu import CpuTimes
from ortune.worker.owned_folder import OwnedFolder, remove_abandoned_folders

FIRST_DEADLINE_S = 900.0
"""Maximum time of the first run. Nothing is known about the program at that point."""

RUN_DEADLINE_FACTOR = 10
LEAST_RUN_DEADLINE_S = 10.0
"""A run of a candidate times out after so many runs of the baseline, and this time at least."""

POLL_S = 0.01
DRAIN_S = 30.0
"""Time that calls of the function have to end when a block ends."""

FEW_CALLS = 8
"""A program that makes fewer calls in a run is run to completion for each block."""

MOST_COMPARED_BODIES = 64
COMPARE_BODIES_S = 3.0
"""Bodies of requests whose answers are compared in each launch of a server, at most, and the time that the program as
it is may take to answer them."""

PAUSE_SHARE = 0.5
LEAST_PAUSE_S = 0.2
"""After which share of its usual time a run of the program as it is is suspended, and for how long at least."""

MAX_RESTARTS = 3
"""Times that a program may end in a block before a call was measured."""


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


class ProgramExecutor:
    """Launches a program with the settings of candidates. When it is closed, all programs end.

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
        self.run_deadline_s = FIRST_DEADLINE_S
        self._run_s = run_s
        self._server = server
        self._keeps_running = keeps_running
        self._base: Config | None = None
        self.n_compared_bodies = 0
        self.others: set[str] = set() if others is None else others
        self._folder = OwnedFolder()
        self.launcher = Launcher(task, models, runtime.onnxruntime, self._folder, inherited)
        self._live: set[CallCandidate | ServerCandidate] = set()
        self._runner: ProgramProcess | None = None
        self._load: ServerLoad | None = None

    def close(self) -> None:
        """End all programs, and remove their files."""
        with uninterrupted():
            for each in tuple(self._live):
                each.close()
            if self._runner:
                self._runner.close()
            if self._load:
                self._load.close()
            self._folder.remove()

    def now_s(self) -> float:
        """Return the time of a monotonic clock, in seconds."""
        return time.monotonic()

    @property
    def keeps_alive(self) -> bool:
        """Whether candidates stay alive between blocks. The others are run to completion in each block."""
        return self._server is not None or self._keeps_running

    def launch(self, configs: Sequence[Config], *, deadline_s: float) -> list[LiveCandidate | Failure]:
        """Launch candidates one after the other, as the start of a program uses all CPUs.

        The first config that is ever launched must be the baseline.
        """
        self._base = self._base or configs[0]
        return [self._launch(config, deadline_s) for config in configs]

    def _launch(self, config: Config, deadline_s: float) -> LiveCandidate | Failure:
        if not self.keeps_alive:
            if self.outputs.n_ended:
                return RunCandidate(self, config)
            # It is not measured. Times that it prints differ from those of the next run, and are not compared.
            pause_after_s = None if self._run_s is None else PAUSE_SHARE * self._run_s
            result = self.run(config, min(deadline_s, self.run_deadline_s), pause_after_s=pause_after_s)
            if isinstance(result, Failure):
                return result
            wall_s = result.ended.wall_ns / 1e9
            self.run_deadline_s = max(LEAST_RUN_DEADLINE_S, RUN_DEADLINE_FACTOR * wall_s)
            return RunCandidate(self, config)
        with uninterrupted():
            process = ProgramProcess()
            live = (
                ServerCandidate(self, config, process, self._server)
                if self._server
                else CallCandidate(self, config, process)
            )
            self._live.add(live)
        failure = live.start(deadline_s)
        if failure:
            live.close()
        return failure or live

    def forget(self, live: CallCandidate | ServerCandidate) -> None:
        """Forget a candidate that was closed."""
        self._live.discard(live)

    @property
    def load(self) -> ServerLoad:
        """What makes the requests."""
        if self._load is None:
            assert self._server
            log_path = self._folder.path / "requests.log"
            cpus = self.cpus
            self._load = ServerLoad(self._server, log_path, cpus.usable, cpus.n_cores, cpus.background_load)
        return self._load

    def run(self, config: Config, deadline_s: float, *, pause_after_s: float | None = None) -> RunResult | Failure:
        """Run the program to completion, and check what it printed.

        Args:
            config: The candidate's settings.
            deadline_s: Time that it may take.
            pause_after_s: When it is suspended for a moment; None for never.
        """
        if self._runner is None:
            with uninterrupted():
                self._runner = ProgramProcess()
        clocks, before = Clocks.read(), self.cpus.read()
        run = self.launcher.start(self._runner, config)
        if isinstance(run, Failure):
            return run
        try:
            if pause_after_s is not None and self._runner.wait(pause_after_s) is None:
                self._runner.suspend()
                time.sleep(max(pause_after_s, LEAST_PAUSE_S))
                self._runner.resume()
            ended = self._runner.wait(deadline_s)
            if ended is None:
                self._runner.end(0)
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
                metric = find_metric(self.task.metric, (run.read_output() or b"").decode("utf-8", "replace"))
                if metric is None:
                    message = f"it printed no number above 0 that {self.task.metric!r} finds"
                    return Failure(kind="wrong_output", stage="measure", message=message)
            return RunResult(
                ended=ended,
                calls_ns=None if calls is None else drop_first(calls),
                metric=metric,
                foreign_share=share,
                contended=contended,
                clock_jump_s=Clocks.read().find_jump_s(clocks),
            )
        finally:
            self.forget_run(run)

    def check_end(self, run: Run, ended: Ended, config: Config, n_known: int = 0) -> Failure | None:
        """Return what is wrong with a run that has ended: its status, its output, or settings that had no effect.

        Args:
            run: The run.
            ended: Its end.
            config: The candidate's settings.
            n_known: Number of its calls that were compared before.
        """
        if ended.status:
            return run.explain_end(ended.status, "measure")
        if difference := self.outputs.compare_run(run, config.key, is_baseline=self.is_baseline(config)):
            return Failure(kind="wrong_output", stage="check", message=difference)
        return self.check_returned(run, config, n_known) or self.check_settings(run, config)

    def check_returned(self, run: Run, config: Config, n_known: int = 0) -> Failure | None:
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
        if (n_missing + 1) * self._run_s > left_s:
            return None
        deadline_s = max(LEAST_RUN_DEADLINE_S, RUN_DEADLINE_FACTOR * self._run_s)
        for number in range(n_missing):
            # Times that it prints then differ, so that they are not compared.
            pause_after_s = None if number else PAUSE_SHARE * self._run_s
            if isinstance(self.run(self._base, deadline_s, pause_after_s=pause_after_s), Failure):
                return None  # it ended otherwise than when it was observed, so nothing can be compared with it
        result = self.run(config, deadline_s)
        if isinstance(result, Failure) and result.is_sudden:
            result = self.run(config, deadline_s)  # anything on the host may end a process
        return result if isinstance(result, Failure) else None

    def is_baseline(self, config: Config) -> bool:
        """Return whether a candidate is the baseline: the program as it is, with what the user fixed."""
        return config == self._base

    def check_settings(self, run: Run, config: Config) -> Failure | None:
        """Return a failure if no session of the program got the candidate's settings."""
        if not self.launcher.changes_sessions(config):
            return None
        reason = find_untuned(run.folder)
        return Failure(kind="not_applied", stage="load", message=reason) if reason else None

    def forget_run(self, run: Run) -> None:
        """Remove the files of a run that is over."""
        self.others |= find_others(run.folder)
        run.remove()

    def describe_session(self, config: Config) -> SessionInfo:
        """Return facts about the sessions of a candidate."""
        is_compared = self.outputs.is_compared(config.key, is_baseline=self.is_baseline(config))
        return SessionInfo(load_ns=0, providers=(), outputs_compared=is_compared)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One complete run of a program.

    Attributes:
        ended: Its end.
        calls_ns: Durations of the calls of the function that is timed; None if there is none.
        metric: The number that it printed; None if none is wanted.
        foreign_share: Share of the CPU time that other processes used; None if unknown.
        contended: Whether they spoiled it.
        clock_jump_s: By how much the clocks of the host disagree; 0 if they agree.
    """

    ended: Ended
    calls_ns: NDArray[np.int64] | None
    metric: float | None
    foreign_share: float | None
    contended: bool
    clock_jump_s: float


class RunCandidate:
    """A candidate that is run to completion for each block. Between blocks there is no process.

    Args:
        executor: What runs it.
        config: Its settings.
    """

    def __init__(self, executor: ProgramExecutor, config: Config) -> None:
        self.config = config
        self._executor = executor

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._executor.describe_session(self.config)

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Run the program until the block is long enough, at least once."""
        results: list[RunResult] = []
        wall_ns = 0
        while len(results) < max(plan.min_calls, 1) or wall_ns < plan.duration_ns:
            result = self._executor.run(self.config, self._executor.run_deadline_s)
            if isinstance(result, Failure):
                return result
            results.append(result)
            wall_ns += result.ended.wall_ns
            if plan.give_up_ns is not None and len(results) == 1 and wall_ns > plan.give_up_ns:
                break
        walls = np.array([result.ended.wall_ns for result in results], dtype=np.int64)
        calls = [result.calls_ns for result in results if result.calls_ns is not None]
        metrics = [result.metric for result in results if result.metric is not None]
        shares = [result.foreign_share for result in results if result.foreign_share is not None]
        peak_bytes = max(result.ended.peak_bytes for result in results)
        return Block(
            samples_ns=np.concatenate(calls) if calls else walls,
            n_calls=float(len(results)),
            wall_ns=wall_ns,
            service_ns=float(walls.mean()),
            cpu_ns=sum(result.ended.cpu_ns for result in results),
            memory=Memory(steady_bytes=peak_bytes, peak_bytes=peak_bytes),
            foreign_share=float(np.mean(shares)) if shares else None,
            contended=any(result.contended for result in results),
            clock_jump_s=max((result.clock_jump_s for result in results), key=abs),
            metric=float(np.mean(metrics)) if metrics else None,
        )

    def close(self) -> None:
        """Do nothing: it has no process between blocks."""


class CallCandidate:
    """A live program whose function is timed. It is started again when it has ended.

    Args:
        executor: What launches it.
        config: Its settings.
        process: The process that it runs in.
    """

    def __init__(self, executor: ProgramExecutor, config: Config, process: ProgramProcess) -> None:
        self.config = config
        self._executor = executor
        self._process = process
        self._run: Run | None = None
        self._log: CallLog | None = None
        self._start_deadline_s = FIRST_DEADLINE_S
        self._n_compared = 0
        self._memory = Memory(steady_bytes=0, peak_bytes=0)

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._executor.describe_session(self.config)

    def start(self, deadline_s: float) -> Failure | None:
        """Start the program, wait until it has made a call, and suspend it before the next one."""
        self._start_deadline_s = deadline_s
        self._forget_run()
        run = self._executor.launcher.start(self._process, self.config, gate=True)
        if isinstance(run, Failure):
            return run
        self._run, self._log = run, CallLog(run.folder)
        end_s = time.monotonic() + deadline_s
        while not self._log.count_new():
            ended = self._process.wait(POLL_S)
            if ended and not self._log.count_new():
                return run.explain_end(ended.status, "load") if ended.status else self._made_no_call()
            if time.monotonic() > end_s:
                message = f"there was no call of {self._executor.task.call} within {deadline_s:.0f} s"
                return Failure(kind="timeout", stage="load", message=message)
        if failure := self._pause():
            return failure
        self._read_memory()
        self._n_compared = len(self._log.read())
        return self._executor.check_returned(run, self.config) or self._executor.check_settings(run, self.config)

    def _made_no_call(self) -> Failure:
        return Failure(kind="exit", stage="load", message=f"it ended without a call of {self._executor.task.call}")

    def _pause(self) -> Failure | None:
        """Wait until all calls have ended, and suspend the program."""
        assert self._run and self._run.gate
        if not self._run.gate.close(DRAIN_S, lambda: self._process.wait(0) is None) and self._process.ended is None:
            message = f"calls of {self._executor.task.call} did not end within {DRAIN_S:.0f} s"
            return Failure(kind="timeout", stage="measure", message=message)
        if self._process.ended is None:
            self._process.suspend()
        return None

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Let the program run until enough calls were measured. Start it again if it ends before."""
        for _ in range(MAX_RESTARTS):
            if self._run is None or self._process.ended is not None:
                failure = self._finish_run() or self.start(self._start_deadline_s)
                if failure:
                    return failure
            block = self._measure(plan)
            if block is not None:
                return block
        return self._made_no_call()

    def _measure(self, plan: BlockPlan) -> Block | Failure | None:
        """Measure a block in the running program; None if it ended before a call was measured."""
        assert self._run and self._run.gate and self._log
        clocks, before = Clocks.read(), self._executor.cpus.read()
        tree = worker_cpu.TreeClock(self._process.supervisor_pid)
        cpu_start_ns = tree.read_ns()
        start_ns = time.perf_counter_ns()
        self._process.resume()
        self._run.gate.open()
        end_ns = start_ns + plan.lead_in_ns + plan.duration_ns
        n_needed = plan.min_calls + (1 if plan.lead_in_ns else 0)
        deadline_ns = start_ns + int(plan.deadline_s * 1e9)
        while True:
            left_ns = end_ns - time.perf_counter_ns()
            if self._process.wait(max(left_ns / 1e9, POLL_S / 4)) is not None:
                break
            now_ns = time.perf_counter_ns()
            if now_ns >= end_ns and self._log.count_new() >= n_needed:
                break
            if now_ns > deadline_ns:
                message = f"fewer than {n_needed} calls within {plan.deadline_s:.0f} s"
                return Failure(kind="timeout", stage="measure", message=message)
        if failure := self._pause():
            return failure
        cpu_ns = tree.refresh_ns() - cpu_start_ns
        after = self._executor.cpus.read()
        calls = self._log.read()
        n_known, self._n_compared = self._n_compared, self._n_compared + len(calls)
        if n_known < RETURNED_CALLS and (
            failure := self._executor.check_returned(self._run, self.config, n_known=n_known)
        ):
            return failure
        measured = calls[calls[:, 0] >= start_ns + plan.lead_in_ns]
        if plan.lead_in_ns and len(measured) == len(calls):
            measured = measured[1:]
        if not len(measured):
            return None
        share, contended = self._executor.cpus.find_foreign(before, after, cpu_ns)
        durations = measured[:, 1] - measured[:, 0]
        n_all = len(calls)
        wall_ns = after.at_ns - before.at_ns
        return Block(
            samples_ns=durations,
            n_calls=float(len(durations)),
            wall_ns=round(wall_ns * len(durations) / n_all),
            lead_in_ns=round(wall_ns * (n_all - len(durations)) / n_all),
            service_ns=float(durations.mean()),
            cpu_ns=round(cpu_ns * len(durations) / n_all),
            memory=self._read_memory(),
            foreign_share=share,
            contended=contended,
            clock_jump_s=Clocks.read().find_jump_s(clocks),
        )

    def _read_memory(self) -> Memory:
        """Return the memory of the program, or what it was before, if the program has ended."""
        memory = worker_cpu.read_tree_memory(self._process.pid)
        self._memory = memory if memory.steady_bytes else self._memory
        return self._memory

    def _finish_run(self) -> Failure | None:
        """Check a run that has ended, and remove its files."""
        failure = None
        if self._run and self._process.ended is not None:
            failure = self._executor.check_end(self._run, self._process.ended, self.config, self._n_compared)
        self._forget_run()
        return failure

    def _forget_run(self) -> None:
        if self._run:
            self._executor.forget_run(self._run)
        self._run = self._log = None

    def close(self) -> None:
        """End the program. It may be called more than once."""
        self._process.close()
        self._forget_run()
        self._executor.forget(self)


class ServerCandidate:
    """A live server. Requests come from a process of their own.

    Args:
        executor: What launches it.
        config: Its settings.
        process: The process that it runs in.
        server: How it is loaded.
    """

    def __init__(self, executor: ProgramExecutor, config: Config, process: ProgramProcess, server: Server) -> None:
        self.config = config
        self._executor = executor
        self._process = process
        self._server = server
        self._run: Run | None = None

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._executor.describe_session(self.config)

    def start(self, deadline_s: float) -> Failure | None:
        """Start the server, wait until it answers, compare its answer with the baseline's, and suspend it."""
        try:
            port = self._server.choose_port()
        except OSError as error:
            raise HostError(f"There is no free TCP port: {error.strerror}.") from None
        run = self._executor.launcher.start(self._process, self.config, port=port)
        if isinstance(run, Failure):
            return run
        self._run = run

        def find_end() -> Failure | None:
            ended = self._process.wait(0)
            if ended is None:
                return None
            if ended.status:
                return run.explain_end(ended.status, "load")
            return Failure(kind="exit", stage="load", message="it exited with status 0 before it answered")

        if failure := self._server.wait_until_up(port, find_end, deadline_s):
            return failure
        failure = self._check_answers(port) or self._executor.check_settings(run, self.config)
        self._process.suspend()
        return failure

    def _check_answers(self, port: int) -> Failure | None:
        """Compare the answers to all bodies with those of the program as it is.

        As many bodies are compared as the program as it is answers in a short time, when it is launched first.
        """
        executor = self._executor
        n_bodies = executor.n_compared_bodies or min(max(len(self._server.bodies), 1), MOST_COMPARED_BODIES)
        is_baseline = executor.is_baseline(self.config)
        end_s = time.monotonic() + COMPARE_BODIES_S
        for position in range(n_bodies):
            load = executor.load
            answer = load.fetch(position) if position else load.open(port, self._process.supervisor_pid)
            if isinstance(answer, Failure):
                return answer
            key = self.config.key
            if difference := executor.outputs.compare_part(position, answer, key, is_baseline=is_baseline):
                which = f"answer to {self._server.bodies[position].name}: " if len(self._server.bodies) > 1 else ""
                return Failure(kind="wrong_output", stage="check", message=f"{which}{difference}")
            if not executor.n_compared_bodies and time.monotonic() > end_s:
                n_bodies = position + 1
                break
        executor.n_compared_bodies = n_bodies
        return None

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Resume the server, make requests, and suspend it."""
        assert self._run
        clocks = Clocks.read()
        self._process.resume()
        load = self._executor.load
        answer = load.open(self._run.port, self._process.supervisor_pid)
        block = answer if isinstance(answer, Failure) else load.measure(plan)
        ended = self._process.wait(0)
        if ended is not None:
            return self._run.explain_end(ended.status, "measure")
        self._process.suspend()
        if isinstance(block, Failure):
            return block
        return msgspec.structs.replace(block, clock_jump_s=Clocks.read().find_jump_s(clocks))

    def close(self) -> None:
        """End the server. It may be called more than once."""
        self._process.close()
        if self._run:
            self._executor.forget_run(self._run)
        self._run = None
        self._executor.forget(self)


def drop_first(calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the durations of the calls of a run in order of their start, without the first one, which warms up.

    A single call is returned as it is.
    """
    ordered = calls[np.argsort(calls[:, 0], kind="stable")]
    durations: NDArray[np.int64] = ordered[:, 1] - ordered[:, 0]
    return durations[1:] if len(durations) > 1 else durations
