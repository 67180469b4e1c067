"""The parent's side of a worker process: start it, exchange messages with it, suspend and resume it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import msgspec
import psutil

from ortune.knobs.config import Config
from ortune.knobs.environment import variables_of
from ortune.worker import protocol
from ortune.worker.activity import Activity
from ortune.worker.block import Block, BlockPlan
from ortune.worker.clocks import Clocks
from ortune.worker.copies import CopiedWorker, Template
from ortune.worker.exit_status import count_oom_kills, explain_closed_pipe
from ortune.worker.failure import Failure, find_cause
from ortune.worker.session_info import Runtime, SessionInfo
from ortune.worker.session_log import read_log, read_warnings

TIMEOUTS = {
    "load": "the session was not created within {} s",
    "check": "its first run did not end within {} s",
    "measure": "no reply within {} s",
}
"""What a timeout of each stage means."""

IDLE = {"load": "while the session was created", "check": "in its first run"}

MOST_IDLE_S = 120.0
"""Time without any activity after which a process that loads a model counts as one that hangs.

A model may take many minutes to load, so that deadlines of the first launch are long. But the process computes then, or
it waits for a disk.
"""


class WorkerProcess:
    """A candidate in its worker process.

    Args:
        config: The config of the candidate.
        command: Program and arguments that start a worker.
        log_path: File for its stdout and stderr.
        environment: Environment variables of workers, without those of the config.
        on_close: Called with this object when the process has ended.
        template: What it is a copy of; None if it is started on its own.

    Attributes:
        session_info: Facts about its session. Set when it is loaded, as is `runtime`.
        runtime: Versions of the software that it runs.
        stage: What it does, or does next: "load" (it creates the sessions), "check" (it runs them for the first time)
            or "measure".
        pipe: The parent's end of the pipe.

    Raises:
        OSError: The process cannot be started.
    """

    session_info: SessionInfo
    runtime: Runtime

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str],
        on_close: Callable[[WorkerProcess], object],
        template: Template | None = None,
    ) -> None:
        self.config = config
        self.stage = "load"
        self._log_path = log_path
        self._on_close = on_close
        self._failed: Failure | None = None
        self._n_oom_kills = count_oom_kills()
        own = variables_of(config, environment)
        with log_path.open("wb") as log:
            self._process, self.pipe = start_process(
                command, environment={**environment, **own}, log=log, template=template
            )
        self._control = psutil.Process(self._process.pid)
        self._activity = Activity(self._control)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def send(self, request: protocol.Request) -> None:
        """Send a request. If the worker has ended, reading the reply will report it."""
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(protocol.encode(request))

    def looks_idle(self) -> bool:
        """Look at the process, and return whether it has done nothing for so long that it hangs."""
        self._activity.look()
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        """Whether it had done nothing for so long, at the last look."""
        return self._activity.idle_s >= MOST_IDLE_S

    @property
    def is_loaded(self) -> bool:
        """Whether its sessions exist and were checked."""
        return self.stage == "measure"

    def finish_stage(self, left_s: float, *, deadline_s: float | None = None) -> Failure | None:
        """Wait until it has created the sessions, or, in the next stage, until it has checked them and is suspended.

        Args:
            left_s: Maximum time to wait.
            deadline_s: The time that this is left of, for messages; `left_s` by default.
        """
        if self.is_idle and not self.pipe.poll():
            message = f"{IDLE[self.stage]}, it did nothing for {self._activity.idle_s:.0f} s"
            return self.fail(Failure(kind="timeout", stage=self.stage, message=message))
        self._activity = Activity(self._control)
        reply = self.receive(left_s, self.stage, deadline_s)
        if isinstance(reply, Failure):
            return reply
        if self.stage == "load" and isinstance(reply, protocol.CreatedReply):
            self.stage = "check"
            return None
        if self.stage != "check" or not isinstance(reply, protocol.LoadedReply):
            return self.fail(self.refuse(self.stage, "it is not the result of loading"))
        self.stage = "measure"
        self.session_info = msgspec.structs.replace(reply.session_info, log=read_warnings(self._log_path))
        self.runtime = reply.runtime
        self.suspend()
        return None

    def note_build(self, build_s: float | None) -> None:
        """Add to `session_info` the time that compiling the model took in an earlier launch."""
        self.session_info = msgspec.structs.replace(self.session_info, build_s=build_s)

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Resume the worker, measure one block, and suspend it. This process sleeps in the meantime."""
        before = Clocks.read()
        if failure := self.resume():
            return failure
        self.send(protocol.MeasureRequest(plan=plan))
        reply = self.receive(plan.deadline_s, "measure")
        if isinstance(reply, Failure):
            return reply
        self.suspend()
        block = self.read_block(reply)
        if isinstance(block, Failure):
            return block
        return msgspec.structs.replace(block, clock_jump_s=Clocks.read().find_jump_s(before))

    def read_block(self, reply: protocol.Reply) -> Block | Failure:
        """Return the block of a reply. A reply that is none fails the worker."""
        try:
            if isinstance(reply, protocol.BlockReply):
                return reply.to_block()
        except ValueError:
            pass
        return self.fail(self.refuse("measure", "it is not the result of a block"))

    def close(self) -> None:
        """Kill the worker, even if it is suspended, and wait for its end. It may be called more than once."""
        self._process.kill()
        self._process.wait()
        self.pipe.close()
        self._on_close(self)

    def resume(self) -> Failure | None:
        """Resume the worker, or return why it has failed."""
        if self._failed:
            return self._failed
        try:
            self._control.resume()
        except psutil.Error:
            return self.fail(self._explain_end("measure"))
        return None

    def suspend(self) -> None:
        """Suspend the worker until it is resumed."""
        with contextlib.suppress(psutil.Error):  # it has ended; the next request reports why
            self._control.suspend()

    def receive(self, left_s: float, stage: str, deadline_s: float | None = None) -> protocol.Reply | Failure:
        """Sleep until the reply arrives, for at most `left_s`."""
        try:
            reply: protocol.Reply = protocol.decode_reply(protocol.receive(self.pipe, left_s))
        except TimeoutError:
            message = TIMEOUTS[stage].format(f"{deadline_s or left_s:.0f}")
            return self.fail(Failure(kind="timeout", stage=stage, message=message))
        except (EOFError, OSError):
            return self.fail(self._explain_end(stage))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            return self.fail(self.refuse(stage, str(error)))
        if isinstance(reply, protocol.FailureReply):
            return self.fail(find_cause(reply.failure, read_log(self._log_path)))
        return reply

    def refuse(self, stage: str, fault: str) -> Failure:
        """Return the failure of a worker whose message is not what it should be."""
        return Failure(
            kind="exit", stage=stage, message=f"the worker was ended, as it sent an invalid message: {fault}"
        )

    def fail(self, failure: Failure) -> Failure:
        """Close the worker for this reason, and return it."""
        self._failed = failure
        self.close()
        return failure

    def _explain_end(self, stage: str) -> Failure:
        return explain_closed_pipe(self._process, "the worker", self._log_path, stage, n_oom_kills=self._n_oom_kills)


def start_process(
    command: Sequence[str], *, environment: Mapping[str, str], log: IO[bytes], template: Template | None
) -> tuple[subprocess.Popen[bytes] | CopiedWorker, Connection]:
    """Start a worker, and return its process and the parent's end of its pipe.

    Args:
        command: Program and arguments that start a worker.
        environment: Its complete environment.
        log: File for its stdout and stderr.
        template: What it is a copy of, if one can be made.
    """
    if template:
        with contextlib.suppress(OSError):
            return template.start_worker(log)
    return protocol.spawn(command, environment=environment, log=log)
