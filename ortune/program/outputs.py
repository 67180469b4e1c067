"""Compares what a program prints under a candidate with what it prints as it is."""

from __future__ import annotations

import shlex
import subprocess

from ortune.program.launcher import Run
from ortune.program.task import ProgramTask
from ortune.program.text import NOTHING, Ignored, compare_text, find_unstable
from ortune.secret_variables import inherit_environment

CHECK_TIMEOUT_S = 300.0


class OutputReference:
    """What the program prints as it is, and what varies between its runs.

    Args:
        task: The program.

    Attributes:
        status: Its exit status.
    """

    def __init__(self, task: ProgramTask) -> None:
        self._task = task
        self._first: bytes | None = None
        self._ignored: Ignored = NOTHING
        self._is_too_long = False
        self.is_known = False
        self.status = 0

    @property
    def is_stable(self) -> bool:
        """Whether values are compared: two runs of the program as it is have the same structure."""
        is_compared = not self._task.ignore_outputs and not self._is_too_long
        return is_compared and self._ignored != "everything"

    def compare(self, run: Run, *, is_baseline: bool) -> str | None:
        """Return how the output of a complete run differs from that of the program as it is; None if it does not.

        Args:
            run: The run.
            is_baseline: Whether the run is one of the program as it is. What varies between such runs is not compared.
        """
        if self._task.check:
            self.is_known = True
            return self._check(run)
        if self._task.ignore_outputs or self._is_too_long:
            self.is_known = True
            return None
        output = run.read_output()
        if output is None:
            self._is_too_long = self.is_known = True
            return None
        return self._compare(output, is_baseline=is_baseline)

    def compare_answer(self, answer: bytes, *, is_baseline: bool) -> str | None:
        """Return how an answer of a server differs from that of the program as it is; None if it does not."""
        if self._task.ignore_outputs:
            return None
        return self._compare(answer, is_baseline=is_baseline)

    def _compare(self, output: bytes, *, is_baseline: bool) -> str | None:
        self.is_known = True
        if self._first is None:
            self._first = output
            return None
        if not is_baseline:
            return compare_text(self._first, output, self._ignored)
        more = find_unstable(self._first, output)
        if isinstance(self._ignored, str) or isinstance(more, str):
            self._ignored = "everything"
        else:
            self._ignored |= more
        return None

    def _check(self, run: Run) -> str | None:
        """Return how the user's command judges an output; None if it accepts it."""
        with run.stdout.open("rb") as output:
            try:
                done = subprocess.run(
                    shlex.split(self._task.check),
                    stdin=output,
                    capture_output=True,
                    env=inherit_environment(),
                    timeout=CHECK_TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"the check {self._task.check!r} failed: {error}"
        if done.returncode == 0:
            return None
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        return f"the check {self._task.check!r} rejects it" + (f": {lines[-1][:200]}" if lines else "")
