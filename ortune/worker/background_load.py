"""Runs a command beside the measurements, as the production background_load, and ends it with all that it started.

The command runs under a supervisor, a small process of ours: `python -m ortune.worker.background_load COMMAND ...`. The
supervisor's stdin is a pipe from the parent. When that is closed, be it that the parent closed it, crashed or was
killed, the supervisor ends the command's whole tree, daemons included, and itself.
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
from ortune.worker.prctl import PR_SET_CHILD_SUBREAPER, prctl

SETTLE_S = 0.5
"""Time that the command is given to fail at once, or to get going."""

TIME_TO_END_S = 2.0
"""Time between asking the command to end and killing it."""

STARTED = b"started\n"

LOG_TAIL = 400
"""Bytes of what the command wrote last that are kept for the message when it ends."""


class BackgroundLoad:
    """A command that runs while this is entered.

    Args:
        command: Program and arguments as in a shell, without a shell's operators.

    Raises:
        BackgroundLoadError: There is no such program, or it ends at once.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self._said = b""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BackgroundLoadError(f"--beside {command!r}: {error}.") from None
        if not words:
            raise BackgroundLoadError("--beside: the command is empty.", "Such as --beside 'python app.py'.")
        if shutil.which(words[0]) is None:
            raise BackgroundLoadError(
                f"--beside {command!r}: there is no program {words[0]}.",
                "Name a program on the PATH; for a shell's operators, wrap it: --beside \"sh -c '...'\".",
            )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ortune.worker.background_load", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        try:
            # The supervisor says when it has started the command; the interpreter takes its time on a busy host.
            assert self._process.stdout
            self._process.stdout.read(len(STARTED))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(SETTLE_S)
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
        """Process id of the supervisor: the command and all that it starts are below it."""
        return self._process.pid

    def check(self) -> None:
        """Raise if the command has ended.

        Raises:
            BackgroundLoadError: It has.
        """
        status = self._process.poll()
        if status is None:
            return
        assert self._process.stdout
        self._said += self._process.stdout.read()
        said = self._said.decode("utf-8", "replace").strip()
        raise BackgroundLoadError(
            f"The command beside the trials, {self.command!r}, ended with status {status}"
            + (f", having said: {said}" if said else "."),
            "It must run as long as the search does: wrap it in a loop if it ends by itself.",
        )

    def close(self) -> None:
        """End the command and all that it started; may be called more than once."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(TIME_TO_END_S + 5)
        except subprocess.TimeoutExpired:  # pragma: no cover  (the supervisor itself hangs)
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def adopt_orphans() -> None:
    """Make processes whose parent ends children of this one, so that daemons can be ended too."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Ask all processes below this one to end, and kill those that do not."""
    import psutil

    end_s = time.monotonic() + TIME_TO_END_S
    asked: set[int] = set()
    # What is being ended may start something else meanwhile.
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.Error):
                if time.monotonic() > end_s:
                    child.kill()
                elif child.pid not in asked:
                    child.terminate()
                    asked.add(child.pid)
        psutil.wait_procs(children, timeout=0.1)
        if time.monotonic() > end_s + TIME_TO_END_S:
            break


def keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    """Read a stream to its end, and keep its last bytes: a command may write for hours."""
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]
        tail += chunk
        del tail[:-LOG_TAIL]


def main() -> None:
    """Run the command of the arguments until stdin is closed or it ends; exit with its status.

    On stdout goes a word when the command has started, and when it has ended the last of what it wrote to stderr.
    """
    adopt_orphans()
    # Ctrl-C is the parent's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except OSError as error:
        os.write(1, STARTED + str(error).encode())
        os._exit(126)
    assert process.stderr
    tail = bytearray()
    reader = threading.Thread(target=keep_tail, args=(process.stderr, tail), daemon=True)
    reader.start()
    os.write(1, STARTED)

    def wait_for_parent() -> None:
        sys.stdin.buffer.read()
        end_children()
        os._exit(0)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    status = process.wait()
    end_children()
    reader.join(TIME_TO_END_S)
    os.write(1, bytes(tail))
    os._exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
