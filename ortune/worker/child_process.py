"""Runs a module as a child process that answers one request: `python -m MODULE ANSWER`.

The child reads the request from stdin and writes its answer to the file ANSWER: ONNX Runtime prints to stdout.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.worker.exit_status import explain_exit, read_log
from ortune.worker.failure import Failure, make_failure
from ortune.worker.prctl import die_with_parent

APPLY_OFF = {"ORTUNE_APPLY": "off"}
"""Environment of every child that makes sessions: what is measured must not be tuned behind its back, where ortune
itself runs in an environment in which records are applied (`ortune.apply.inside.hook`)."""

Enter = Callable[[str], None]
"""Is told which stage begins, so that a failure can tell it."""

Reply = TypeVar("Reply", bound=msgspec.Struct)
Request = TypeVar("Request", bound=msgspec.Struct)


class Answer(msgspec.Struct, frozen=True):
    """What is in the file that a child writes: a reply, or why there is none."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


def ask_child(
    module: str,
    request: msgspec.Struct,
    reply: type[Reply],
    *,
    environment: Mapping[str, str] | None = None,
    deadline_s: float,
) -> Reply | Failure:
    """Run a module as a child process that answers one request, and return its reply.

    Args:
        module: Its name; its `main` calls `answer_parent`.
        request: What it reads from stdin.
        reply: Type of what it answers.
        environment: Variables to set for it.
        deadline_s: Time after which it counts as hanging.
    """
    with tempfile.TemporaryDirectory(prefix="ortune-") as folder:
        path, log_path = Path(folder) / "answer.json", Path(folder) / "log"
        with log_path.open("wb") as log:
            try:
                done = subprocess.run(
                    [sys.executable, "-P", "-m", module, str(path)],
                    input=msgspec.json.encode(request),
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **APPLY_OFF, **(environment or {})},
                    timeout=deadline_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Failure(kind="timeout", stage="load", message=f"no answer within {deadline_s:.0f} s")
        try:
            answer = msgspec.json.decode(path.read_bytes(), type=Answer)
        except (OSError, msgspec.MsgspecError):
            return explain_exit(done.returncode, " ".join(read_log(log_path)[-2:]), "load")
        if answer.failure is not None:
            return answer.failure
        return msgspec.json.decode(answer.reply, type=reply)


def answer_parent(request: type[Request], work: Callable[[Request, Enter], msgspec.Struct]) -> None:
    """Answer the parent's request, whatever happens; then end without a session's destructors, which may hang."""
    die_with_parent()
    # Ctrl-C is the parent's affair, which then ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stages = ["start"]
    try:
        done = work(msgspec.json.decode(sys.stdin.buffer.read(), type=request), stages.append)
        answer = Answer(reply=msgspec.Raw(msgspec.json.encode(done)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it is, the parent wants to know)
        answer = Answer(failure=make_failure(error, stages[-1]))
    Path(sys.argv[-1]).write_bytes(msgspec.json.encode(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
