"""The worker: a process that creates the sessions of one candidate, checks their outputs, and measures blocks.

The parent starts it as `python -m ortune.worker.main HANDLE`, where HANDLE is the worker's end of a pipe. The worker
answers one request at a time and ends when the pipe is closed. The parent suspends it between requests.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ortune.prctl import die_with_parent
from ortune.worker import protocol
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.child_process import allow_blas_threads
from ortune.worker.failure import Failure, make_failure
from ortune.worker.runtime import read_runtime


def limit_memory(limit_bytes: int) -> None:
    """Make allocations beyond the limit fail, so that a candidate that needs too much memory does not harm the host."""
    if sys.platform == "win32":  # pragma: no cover
        return
    import resource

    # RLIMIT_DATA counts private writable memory. RLIMIT_AS would count reserved addresses too.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def disable_garbage_collection() -> None:
    """Prevent collections during blocks. They would run at random times and be measured."""
    gc.collect()
    gc.freeze()
    gc.disable()


def exchange(connection: Any, value: int) -> Sequence[int]:
    """Give a number to the other processes of the group, and wait for theirs. The parent passes them on."""
    connection.send_bytes(protocol.encode(protocol.ExchangeReply(value)))
    request = protocol.decode_request(connection.recv_bytes())
    if not isinstance(request, protocol.ExchangeRequest):
        raise RuntimeError("another request came while the processes of a group waited for each other")
    return request.values


def serve(connection: Any, make: Callable[[protocol.LoadRequest], CandidateSession] = CandidateSession) -> None:
    """Answer requests until the pipe is closed."""
    candidate: CandidateSession | None = None
    while True:
        try:
            request = protocol.decode_request(connection.recv_bytes())
        except EOFError:
            return
        stage = "measure"
        try:
            reply: protocol.Reply
            if isinstance(request, protocol.LoadRequest):
                stage = "load"
                if request.memory_limit_bytes is not None:
                    limit_memory(request.memory_limit_bytes)
                candidate = make(request)
                candidate.exchange = functools.partial(exchange, connection)
                session_info = candidate.load()
                connection.send_bytes(protocol.encode(protocol.CreatedReply()))
                stage = "check"
                checked = candidate.check(session_info)
                if isinstance(checked, Failure):
                    reply = protocol.FailureReply(checked)
                else:
                    reply = protocol.LoadedReply(checked, read_runtime())
                    disable_garbage_collection()
            else:
                if candidate is None or not isinstance(request, protocol.MeasureRequest):
                    raise RuntimeError("a block was requested before the session was loaded")
                measured = candidate.measure(request)
                if isinstance(measured, Failure):
                    reply = protocol.FailureReply(measured)
                else:
                    reply = protocol.BlockReply.of(measured)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (any error is a failure of the candidate)
            reply = protocol.FailureReply(make_failure(error, stage))
        connection.send_bytes(protocol.encode_reply(reply, stage))


def run(connection: Any, make: Callable[[protocol.LoadRequest], CandidateSession] = CandidateSession) -> NoReturn:
    """Serve the parent until it closes the pipe, and end this process."""
    allow_blas_threads()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        serve(connection, make)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)  # destructors of a broken session may hang


def main(make: Callable[[protocol.LoadRequest], CandidateSession] = CandidateSession) -> NoReturn:
    """Serve the parent. The last command-line argument is the handle of the pipe."""
    run(protocol.connect(sys.argv[-1]), make)


if __name__ == "__main__":
    main()
