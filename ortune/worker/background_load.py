"""Runs a command as background load during measurements, and ends it together with all processes that it started.

The command runs under a supervisor process: `python -m ortune.worker.background_load COMMAND ...`. The supervisor's
stdin is a pipe from the parent. When it is closed, because the parent closed it, crashed or was killed, the supervisor
ends all descendants of the command, including daemons, and then itself.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import IO, Self

from ortune.errors import BackgroundLoadError
from ortune.interpreter import PYTHON
from ortune.prctl import HAS_DEATH_SIGNAL, adopt_orphans, request_death_signal
from ortune.secret_variables import inherit_environment

START_UP_S = 0.5
"""Time to wait after the start: for the command to fail immediately, or to start up."""

TERMINATE_TIMEOUT_S = 1.0
"""Time between terminating the command and killing it."""

STARTED = b"started\n"

LOG_TAIL = 400
"""Number of bytes of the end of the command's stderr that are kept, for an error message."""


class BackgroundLoad:
    """A command that runs until this context manager exits.

    Args:
        command: Program and arguments, quoted as in a shell. Operators of a shell are not supported.

    Raises:
        BackgroundLoadError: The command is not valid, the program does not exist, or it ends immediately.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._stderr_tail = b""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BackgroundLoadError(f"{command!r} is not a valid command: {error}.", option="beside") from None
        if not words:
            raise BackgroundLoadError(
                f"{command!r}: the command is empty.", "For example: 'python app.py'.", option="beside"
            )
        if shutil.which(words[0]) is None:
            raise BackgroundLoadError(
                f"{command!r}: there is no program {words[0]}.",
                "Give a program on the PATH. To use operators of a shell, run one: sh -c '...'.",
                option="beside",
            )
        self._process = subprocess.Popen(
            [*PYTHON, "-m", "ortune.worker.background_load", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=inherit_environment(),
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        try:
            # The supervisor reports when it has started the command. On a busy host that may take a while.
            assert self._process.stdout
            self._process.stdout.read(len(STARTED))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(START_UP_S)
            self.check()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the supervisor, which is the ancestor of the command and of all processes that it starts."""
        return self._process.pid

    def check(self) -> None:
        """Check that the command is running.

        Raises:
            BackgroundLoadError: The command has ended.
        """
        status = self._process.poll()
        if status is None:
            return
        assert self._process.stdout
        self._stderr_tail += self._process.stdout.read()
        tail = self._stderr_tail.decode("utf-8", "replace").strip()
        raise BackgroundLoadError(
            f"The background load {self.command!r} exited with status {status}" + (f": {tail}" if tail else "."),
            "It must run until the measurements are done. If it ends before that, run it in a loop.",
        )

    def close(self) -> None:
        """End the command and all processes that it started. It may be called more than once."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(TERMINATE_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:  # pragma: no cover  (the supervisor itself hangs)
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0 and sys.platform != "win32":
            # The supervisor was killed. What the command started is still in its session, except for daemons.
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdout:
            self._process.stdout.close()


def end_children() -> None:
    """Terminate all descendants of this process, and kill those that do not end in time."""
    import psutil

    end_s = time.monotonic() + TERMINATE_TIMEOUT_S
    terminated: set[int] = set()
    # A process that is being terminated may start others.
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > end_s:
                    child.kill()
                elif child.pid not in terminated:
                    child.terminate()
                    terminated.add(child.pid)
        psutil.wait_procs(children, timeout=0.1)
        if time.monotonic() > end_s + TERMINATE_TIMEOUT_S:
            break


def keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    """Read a stream to its end, and keep only its last bytes in `tail`: a command may write for hours."""
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        tail += chunk
        del tail[:-LOG_TAIL]


def report(data: bytes) -> None:
    """Write to the parent. If it has ended, stdin is closed as well, and another thread ends everything."""
    with contextlib.suppress(OSError):
        os.write(1, data)


def main() -> None:
    """Run the command of the arguments until it ends or stdin is closed, then exit with its status.

    Write `STARTED` to stdout when the command has started, and the end of its stderr when it has ended.
    """
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C

    def end(number: int, frame: object) -> None:
        end_children()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        process = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=inherit_environment(),
            preexec_fn=request_death_signal if HAS_DEATH_SIGNAL else None,  # if this process is killed
        )
    except OSError as error:
        report(STARTED + str(error).encode())
        os._exit(126)
    assert process.stderr
    tail = bytearray()
    reader = threading.Thread(target=keep_tail, args=(process.stderr, tail), daemon=True)
    reader.start()
    report(STARTED)

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        end_children()
        os._exit(0)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    status = process.wait()
    end_children()
    reader.join(TERMINATE_TIMEOUT_S)
    report(bytes(tail))
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
