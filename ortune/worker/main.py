"""The worker: a process of its own for one candidate. It creates the session, checks it, and measures blocks.

Started by the parent as `python -m ortune.worker.main HANDLE`. It answers one request at a time, and ends when
the pipe is closed. Between requests the parent suspends it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ortune.worker import protocol
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.failure import Failure, make_failure
from ortune.worker.prctl import die_with_parent
from ortune.worker.runtime import read_runtime


def limit_memory(limit_bytes: int) -> None:
    """Make allocations beyond the limit fail, so that a candidate that eats memory fails instead of the host."""
    if sys.platform == "win32":  # pragma: no cover
        return
    import resource

    # RLIMIT_DATA counts private writable memory; RLIMIT_AS would count reserved addresses too.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


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
                loaded = candidate.load()
                stage = "check"
                answer = candidate.check(loaded)
                if isinstance(answer, Failure):
                    reply = protocol.FailureReply(answer)
                else:
                    reply = protocol.LoadedReply(answer, read_runtime())
                    # Collections at odd moments would be measured; what is alive now stays alive.
                    gc.collect()
                    gc.freeze()
                    gc.disable()
            else:
                if candidate is None:
                    raise RuntimeError("nothing is loaded")
                reply = candidate.measure(request.plan)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it is, it is the candidate's failure)
            reply = protocol.FailureReply(make_failure(error, stage))
        connection.send_bytes(protocol.encode(reply))


def main(make: Callable[[protocol.LoadRequest], CandidateSession] = CandidateSession) -> None:
    """Serve the parent whose pipe the last argument names."""
    die_with_parent()
    # Ctrl-C is the parent's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(protocol.connect(sys.argv[-1]), make)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        # Without the interpreter's own way out: destructors of a broken session must not hang.
        os._exit(0)


if __name__ == "__main__":
    main()
