"""The live candidates of a program: what is measured in a block, and what is suspended between blocks.

Three kinds of programs are measured. One that runs and exits is run to completion for each block. One whose function is
timed stays alive: its calls pass a gate, which is open during a block and closed otherwise. A server stays alive, too,
and gets requests during a block.
"""

from __future__ import annotations

import math
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import HostError
from ortune.knobs import Config
from ortune.program.gate import CallLog
from ortune.program.launcher import RETURNED_CALLS, LaunchedProgram
from ortune.program.process import ProgramProcess
from ortune.program.runner import ProgramRunner, RunResult
from ortune.program.server import Server
from ortune.program.tree import list_leaves
from ortune.worker import Block, BlockPlan, Failure, Memory, SessionInfo
from ortune.worker import cpu as worker_cpu
from ortune.worker.clocks import Clocks

CANDIDATE_POLL_S = 0.01
DRAIN_S = 30.0
"""Time that calls of the function have to end when a block ends."""

MOST_COMPARED_BODIES = 64
COMPARE_BODIES_S = 3.0
"""Bodies of requests whose answers are compared in each launch of a server, at most, and the time that the program as
it is may take to answer them."""

REPLACED = (
    "its workers were replaced when it was resumed: it ends workers that did not respond for a while, and while other "
    "candidates are measured, all of its processes are suspended. Turn that off, as with gunicorn --timeout 0"
)
"""Message of a server whose new workers still load their models, so that they cannot be measured."""

MOST_TIMES_LONGER = 4
"""A block that ends after a number of calls ends by time after so many times its planned duration."""

FIRST_LOOK = 0.25
SHARE_OF_LEFT = 0.5
"""When its calls are counted: after this part of its planned duration, and then after this part of the time that the
other calls are expected to take."""

MAX_ENDS_BEFORE_A_CALL = 3
"""Times that a program may end in a block before a call was measured. It ends because its work is done."""


def count_lead_in(plan: BlockPlan) -> int:
    """Return how many calls of a block are not measured, at least."""
    return 1 if plan.lead_in_ns else 0


class RunCandidate:
    """A candidate that is run to completion for each block. Between blocks there is no process.

    Args:
        runner: What runs it.
        config: Its settings.
    """

    def __init__(self, runner: ProgramRunner, config: Config) -> None:
        self.config = config
        self._runner = runner

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._runner.describe_session(self.config)

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Run the program until the block is long enough, at least once."""
        results: list[RunResult] = []
        wall_ns = 0
        while len(results) < max(plan.min_calls, 1) or wall_ns < plan.duration_ns:
            result = self._runner.run(self.config, self._runner.run_deadline_s)
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
        n_calls = sum(result.n_calls for result in results)
        peak_bytes = max(result.ended.peak_bytes for result in results)
        return Block(
            samples_ns=np.concatenate(calls) if calls else walls,
            n_calls=float(n_calls or len(results)),
            n_untimed=max(n_calls - sum(map(len, calls)), 0),
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
    """A live program whose function is timed. It is launched again when it has ended.

    Args:
        runner: What launches it.
        config: Its settings.
        process: The process that it runs in.
    """

    def __init__(self, runner: ProgramRunner, config: Config, process: ProgramProcess) -> None:
        self.config = config
        self._runner = runner
        self._process = process
        self._run: LaunchedProgram | None = None
        self._log: CallLog | None = None
        self._start_deadline_s = 0.0
        self._n_compared = 0
        self._n_ahead = 0
        self._gap_ns = math.inf
        self._memory = Memory(steady_bytes=0, peak_bytes=0)

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._runner.describe_session(self.config)

    def start(self, deadline_s: float) -> Failure | None:
        """Start the program, wait until it has made a call, and suspend it before the next one."""
        self._start_deadline_s = deadline_s
        self._forget_run()
        run = self._runner.launcher.start(self._process, self.config, gate=True)
        if isinstance(run, Failure):
            return run
        self._run, self._log = run, CallLog(run.folder)
        end_s = time.monotonic() + deadline_s
        while not self._log.count_new():
            ended = self._process.wait(CANDIDATE_POLL_S)
            if ended and not self._log.count_new():
                return run.explain_end(ended, "load") if ended.status else self._made_no_call()
            if time.monotonic() > end_s:
                message = f"there was no call of {self._runner.task.call} within {deadline_s:.0f} s"
                return Failure(kind="timeout", stage="load", message=message)
        if failure := self._pause():
            return failure
        self._read_memory()
        self._count_first_calls(len(self._log.read()))
        return self._runner.check_returned(run, self.config) or self._runner.check_settings(run, self.config)

    def _count_first_calls(self, n_calls: int) -> None:
        """Count the calls that were made before the program was first suspended: more than one if calls are short."""
        self._n_compared = n_calls
        self._n_ahead = max(n_calls - 1, 0)

    def _made_no_call(self) -> Failure:
        return Failure(kind="exit", stage="load", message=f"it ended without a call of {self._runner.task.call}")

    def _pause(self) -> Failure | None:
        """Wait until all calls have ended, and suspend the program."""
        assert self._run and self._run.gate
        if not self._run.gate.close(DRAIN_S, lambda: self._process.wait(0) is None) and self._process.ended is None:
            message = f"calls of {self._runner.task.call} did not end within {DRAIN_S:.0f} s"
            return Failure(kind="timeout", stage="measure", message=message)
        if self._process.ended is None:
            self._process.suspend()
        return None

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Let the program run until enough calls were measured. Launch it again if it ends before."""
        answer = self._measure_or_launch_again(plan)
        if isinstance(answer, Failure):
            self.check_files()
        return answer

    def _measure_or_launch_again(self, plan: BlockPlan) -> Block | Failure:
        for _ in range(MAX_ENDS_BEFORE_A_CALL):
            if self._run is None or self._process.ended is not None:
                failure = self._finish_run() or self.start(self._start_deadline_s)
                if failure:
                    return failure
            block = self._measure(plan)
            if block is not None:
                return block
        call = self._runner.task.call
        return Failure(
            kind="exit",
            stage="measure",
            message=f"it ended before a call of {call} could be measured: repeat its calls in the program",
        )

    def _measure(self, plan: BlockPlan) -> Block | Failure | None:
        """Measure a block in the running program; None if it ended before a call was measured."""
        assert self._run and self._run.gate and self._log
        clocks, before = Clocks.read(), self._runner.cpus.read()
        tree = worker_cpu.TreeClock(self._process.supervisor_pid)
        cpu_start_ns = tree.read_ns()
        start_ns = time.perf_counter_ns()
        self._process.resume()
        self._run.gate.open()
        if failure := self._wait_for_calls(plan, start_ns) or self._pause():
            return failure
        if self._process.ended and self._process.ended.is_lost:
            return self._run.explain_end(self._process.ended, "measure")
        cpu_ns = tree.refresh_ns() - cpu_start_ns
        after = self._runner.cpus.read()
        calls = self._log.read()
        n_known, self._n_compared = self._n_compared, self._n_compared + len(calls)
        if n_known < RETURNED_CALLS and (
            failure := self._runner.check_returned(self._run, self.config, n_known=n_known)
        ):
            return failure
        measured = self._leave_lead_in_out(plan, calls, start_ns)
        if not len(measured):
            return None
        share, contended = self._runner.cpus.find_foreign(before, after, cpu_ns)
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

    def _wait_for_calls(self, plan: BlockPlan, start_ns: int) -> Failure | None:
        """Sleep until the program has made the calls of a block, or has ended."""
        assert self._log
        planned_ns = plan.lead_in_ns + plan.duration_ns
        n_needed = count_lead_in(plan) + plan.min_calls
        if plan.n_calls is None:
            n_wanted, earliest_ns, latest_ns = n_needed, planned_ns, planned_ns
        else:
            n_wanted = max(plan.n_lead_in_calls + plan.n_calls - self._n_ahead, n_needed)
            earliest_ns, latest_ns = 0, MOST_TIMES_LONGER * planned_ns
        wait_ns = earliest_ns or min(FIRST_LOOK * planned_ns, SHARE_OF_LEFT * self._gap_ns * n_wanted)
        while self._process.wait(max(wait_ns / 1e9, CANDIDATE_POLL_S / 4)) is None:
            n_calls, spent_ns = self._log.count_new(), time.perf_counter_ns() - start_ns
            if n_calls >= n_needed and spent_ns >= (earliest_ns if n_calls >= n_wanted else latest_ns):
                break
            if spent_ns > plan.deadline_s * 1e9:
                message = f"fewer than {n_needed} calls within {plan.deadline_s:.0f} s"
                return Failure(kind="timeout", stage="measure", message=message)
            if plan.n_calls is None:
                wait_ns = earliest_ns - spent_ns
            else:  # each look at the calls disturbs the program, so there are only a few
                left_ns = spent_ns / max(n_calls, 1) * (n_wanted - n_calls)
                wait_ns = min(SHARE_OF_LEFT * left_ns, planned_ns)
        return None

    def _leave_lead_in_out(self, plan: BlockPlan, calls: NDArray[np.int64], start_ns: int) -> NDArray[np.int64]:
        """Return those calls of a block that are measured, and count those that were made after it should have ended.

        As many fewer are made in the next block, so that sides do not drift apart.
        """
        calls = calls[np.argsort(calls[:, 0], kind="stable")]
        self._gap_ns = (time.perf_counter_ns() - start_ns) / max(len(calls), 1)
        if plan.n_calls is None:
            n_lead_in, n_least = int((calls[:, 0] < start_ns + plan.lead_in_ns).sum()), 1
        else:
            n_lead_in, n_least = plan.n_lead_in_calls - self._n_ahead, plan.min_calls
            self._n_ahead = max(self._n_ahead + len(calls) - plan.n_lead_in_calls - plan.n_calls, 0)
        if self._process.ended is None:  # a call of the lead-in may take all the time of the block
            n_lead_in = min(n_lead_in, len(calls) - n_least)
        return calls[max(n_lead_in, count_lead_in(plan)) :]

    def _read_memory(self) -> Memory:
        """Return the memory of the program, or what it was before, if the program has ended."""
        memory = worker_cpu.read_tree_memory(self._process.pid)
        self._memory = memory if memory.steady_bytes else self._memory
        return self._memory

    def _finish_run(self) -> Failure | None:
        """Check a run that has ended, and remove its files."""
        failure = None
        if self._run and self._process.ended is not None:
            failure = self._runner.check_end(self._run, self._process.ended, self.config, self._n_compared)
        self._forget_run()
        return failure

    def _forget_run(self) -> None:
        if self._run:
            self._runner.forget_run(self._run)
        self._run = self._log = None

    def check_files(self) -> None:
        """Check before a failure is judged that all files are there.

        Raises:
            HostError: One is missing.
        """
        self._runner.check_files(self._run)

    def close(self) -> None:
        """End the program. It may be called more than once."""
        self._process.close()
        self._forget_run()
        self._runner.live.discard(self)


class ServerCandidate:
    """A live server. Requests come from a process of their own.

    Args:
        runner: What launches it.
        config: Its settings.
        process: The process that it runs in.
        server: How it is loaded.
    """

    def __init__(self, runner: ProgramRunner, config: Config, process: ProgramProcess, server: Server) -> None:
        self.config = config
        self._runner = runner
        self._process = process
        self._server = server
        self._run: LaunchedProgram | None = None
        self._workers: set[int] = set()

    @property
    def session_info(self) -> SessionInfo:
        """Facts about its sessions."""
        return self._runner.describe_session(self.config)

    def start(self, deadline_s: float) -> Failure | None:
        """Start the server, wait until it answers, compare its answer with the baseline's, and suspend it."""
        try:
            port = self._server.choose_port()
        except OSError as error:
            raise HostError(f"There is no free TCP port: {error.strerror}.") from None
        run = self._runner.launcher.start(self._process, self.config, port=port)
        if isinstance(run, Failure):
            return run
        self._run = run
        if failure := self._server.wait_until_up(port, run.find_early_end, deadline_s):
            return failure
        before = list_leaves(self._process.supervisor_pid)
        failure = self._check_answers(port) or self._runner.check_settings(run, self.config)
        self._suspend(before)
        # Requests to a server that has ended fail, too.
        return run.explain_end(self._process.ended, "load") if self._process.ended else failure

    def _check_answers(self, port: int) -> Failure | None:
        """Compare the answers to all bodies with those of the program as it is.

        As many bodies are compared as the program as it is answers in a short time, when it is launched first.
        """
        runner = self._runner
        n_bodies = runner.n_compared_bodies or min(max(len(self._server.bodies), 1), MOST_COMPARED_BODIES)
        is_baseline = runner.is_baseline(self.config)
        end_s = math.inf
        for position in range(n_bodies):
            load = runner.load
            answer = load.fetch(position) if position else load.open(port, self._process.supervisor_pid)
            if isinstance(answer, Failure):
                return answer
            if not position:  # the load generator has started
                end_s = time.monotonic() + COMPARE_BODIES_S
            key = self.config.key
            if difference := runner.outputs.compare_part(position, answer, key, is_baseline=is_baseline):
                which = f"answer to {self._server.bodies[position].name}: " if len(self._server.bodies) > 1 else ""
                return Failure(kind="wrong_output", stage="check", message=f"{which}{difference}")
            if not runner.n_compared_bodies and time.monotonic() > end_s:
                n_bodies = position + 1
                break
        runner.n_compared_bodies = n_bodies
        return None

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Resume the server, make requests, and suspend it."""
        assert self._run
        clocks = Clocks.read()
        self._process.resume()
        load = self._runner.load
        answer = load.open(self._run.port, self._process.supervisor_pid)
        leaves = list_leaves(self._process.supervisor_pid)
        if are_replaced(self._workers, leaves):
            answer = Failure(kind="exit", stage="measure", message=REPLACED)
        block = answer if isinstance(answer, Failure) else load.measure(plan)
        self._suspend(leaves)
        if self._process.ended:
            block = self._run.explain_end(self._process.ended, "measure")
        if isinstance(block, Failure):
            self.check_files()
            return block
        return msgspec.structs.replace(block, clock_jump_s=Clocks.read().find_jump_s(clocks))

    def _suspend(self, before: set[int]) -> None:
        """Suspend the server, and note its workers: those of some processes without children that are still alive.

        Processes that end during a block do so as part of their work.
        """
        self._process.suspend()
        self._workers = before & list_leaves(self._process.supervisor_pid)

    def check_files(self) -> None:
        """Check before a failure is judged that all files are there.

        Raises:
            HostError: One is missing.
        """
        self._runner.check_files(self._run)

    def close(self) -> None:
        """End the server. It may be called more than once."""
        self._process.close()
        if self._run:
            self._runner.forget_run(self._run)
        self._run = None
        self._runner.live.discard(self)


def are_replaced(before: set[int], after: set[int]) -> bool:
    """Return whether all workers of a server have ended and others have taken their place.

    Args:
        before: The workers when the server was suspended.
        after: Its processes without children after it was resumed.
    """
    return bool(before) and not before & after and len(after - before) >= len(before)
