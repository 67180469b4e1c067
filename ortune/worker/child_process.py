"""Runs a module as a child process that answers one request: `python -m MODULE FILE`.

The child reads the request from stdin and writes its reply to FILE. stdout is not used: ONNX Runtime prints to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.host.runtime_variables import without_runtime_variables
from ortune.interpreter import PYTHON
from ortune.prctl import die_with_parent, name_parent
from ortune.secret_variables import inherit_environment
from ortune.worker.exit_status import count_oom_kills, explain_exit
from ortune.worker.failure import Failure, make_failure
from ortune.worker.owned_folder import OwnedFolder

APPLY_OFF = {"ORTUNE_APPLY": "off"}
"""Environment of every child process that imports onnxruntime. It turns off `ortune.apply.inside.hook`: where ortune
runs in an environment in which records are applied, they must not change the sessions that it measures."""

TELEMETRY_OFF = {"ORT_DISABLE_TELEMETRY": "1"}
"""Environment that keeps ONNX Runtime from sending usage data, such as names of models, and from leaving files in the
folders of temporary files and of caches.

Source: it does so since version 1.29, unless it detects CI; docs/Privacy.md of ONNX Runtime.
"""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
NO_BLAS_THREADS = {BLAS_THREADS: "01"}
"""Environment in which importing NumPy starts no threads. Otherwise, it starts one for each CPU, which takes as long as
the rest of the import with two CPUs, and longer with more. Child processes multiply no matrices with NumPy. Nobody else
spells the number like that, so that it can be recognized; see `allow_blas_threads`."""

TEMPORARY = ("TMPDIR", "TEMP", "TMP")
"""Environment variables that name the folder of temporary files."""

Enter = Callable[[str], None]
"""Enters a stage. A failure then names the stage that was entered last."""

Reply = TypeVar("Reply", bound=msgspec.Struct)
Request = TypeVar("Request", bound=msgspec.Struct)


class ChildAnswer(msgspec.Struct, frozen=True):
    """Content of the file that a child writes: a reply, or why there is none."""

    reply: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


def make_environment(folder: Path | None = None) -> dict[str, str]:
    """Return the environment of a child process that imports onnxruntime, and that may call `die_with_parent`.

    It is that of this process, without the variables that change ONNX Runtime's default, as the baseline is that
    default. A config may set them.

    Args:
        folder: Folder for its temporary files; None for the usual one.
    """
    temporary = dict.fromkeys(TEMPORARY, str(folder)) if folder else {}
    # Users who want to send usage data may set the variable.
    inherited = {**TELEMETRY_OFF, **without_runtime_variables(inherit_environment())}
    return {**inherited, **APPLY_OFF, **name_parent(), **temporary}


def allow_blas_threads() -> None:
    """Undo `NO_BLAS_THREADS`. Libraries that this process loads later then start the threads that they start for users.

    Operators of the user may need such a library.
    """
    if os.environ.get(BLAS_THREADS) == NO_BLAS_THREADS[BLAS_THREADS]:
        del os.environ[BLAS_THREADS]


def ask_child(
    module: str,
    request: msgspec.Struct,
    reply: type[Reply],
    *,
    environment: Mapping[str, str] | None = None,
    deadline_s: float,
) -> Reply | Failure:
    """Run a module as a child process, send it a request, and return its reply.

    Args:
        module: Name of the module. Its `main` calls `answer_parent`.
        request: The request.
        reply: Type of the reply.
        environment: Environment variables to set, in addition to those of this process.
        deadline_s: Time after which the child is killed.
    """
    with OwnedFolder() as folder:
        path, log_path = folder.path / "answer.json", folder.path / "log"
        n_oom_kills = count_oom_kills()
        with log_path.open("wb") as log:
            try:
                child = subprocess.run(
                    [*PYTHON, "-m", module, str(path)],
                    input=msgspec.json.encode(request),
                    stdout=log,
                    stderr=log,
                    env={**NO_BLAS_THREADS, **make_environment(folder.path), **(environment or {})},
                    timeout=deadline_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return Failure(kind="timeout", stage="load", message=f"no reply within {deadline_s:.0f} s")
        try:
            answer = msgspec.json.decode(path.read_bytes(), type=ChildAnswer)
        except (OSError, msgspec.MsgspecError):
            return explain_exit(child.returncode, log_path, "load", n_oom_kills=n_oom_kills)
        if answer.failure is not None:
            return answer.failure
        return msgspec.json.decode(answer.reply, type=reply)


def answer_parent(request: type[Request], work: Callable[[Request, Enter], msgspec.Struct]) -> None:
    """Answer the parent's request with a reply or a failure, then exit.

    Args:
        request: Type of the request.
        work: Returns the reply. Whatever it raises is sent as a failure.
    """
    allow_blas_threads()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then ends this process
    stages = ["start"]
    try:
        reply = work(msgspec.json.decode(sys.stdin.buffer.read(), type=request), stages.append)
        answer = ChildAnswer(reply=msgspec.Raw(msgspec.json.encode(reply)))
    except (Exception, SystemExit) as error:  # noqa: BLE001  (any error is reported to the parent)
        answer = ChildAnswer(failure=make_failure(error, stages[-1]))
    Path(sys.argv[-1]).write_bytes(msgspec.json.encode(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # destructors of a broken session may hang
