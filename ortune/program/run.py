"""Run a program once, with the streams of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from ortune.errors import UsageError
from ortune.interrupts import count_handled


class EndedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a program that has ended.

    Attributes:
        status: Its exit status; the negative number of the signal that ended it.
        wall_ns: Time from its start to its end.
        interrupted: Whether the user interrupted it.
    """

    status: int
    wall_ns: int
    interrupted: bool


def run_to_end(
    program: str, command: Sequence[str], environment: Mapping[str, str], *, stdout_to_stderr: bool = False
) -> EndedRun:
    """Run a program until it ends. An interrupt ends the program, not this function.

    Args:
        program: Path of the program.
        command: Its name and arguments.
        environment: Its complete environment.
        stdout_to_stderr: Whether what it prints to stdout goes to stderr, because this process uses stdout.

    Raises:
        UsageError: The system cannot start it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    start_ns = time.perf_counter_ns()
    interrupted = False
    n_handled = count_handled()
    try:
        process = subprocess.Popen(
            list(command), executable=program, env=dict(environment), stdout=2 if stdout_to_stderr else None
        )
    except OSError as error:
        raise UsageError(f"Cannot run {program}: {error.strerror}.") from None
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:
            if interrupted:
                process.kill()
            elif count_handled() > n_handled or not _is_in_foreground():
                # Where SIGINT is ignored, as in background processes of a script, the program ignores it, too.
                is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                process.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)
            interrupted = True
        except BaseException:
            process.kill()
            process.wait()
            raise
    return EndedRun(status=status, wall_ns=time.perf_counter_ns() - start_ns, interrupted=interrupted)


def _is_in_foreground() -> bool:
    """Return whether Ctrl-C in the terminal reaches the program, too."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except (OSError, AttributeError):
        return False
