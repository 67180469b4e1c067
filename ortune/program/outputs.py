"""Compares what a program prints, answers or returns under a candidate with what it does as it is."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ortune.errors import ProgramError
from ortune.interrupts import name_signal
from ortune.limited import TooLargeError, read_limited
from ortune.prctl import request_death_signal
from ortune.program.launcher import RETURNED_CALLS, LaunchedProgram
from ortune.program.metric import mask_metric
from ortune.program.task import ProgramTask
from ortune.program.text import NOTHING, Ignored, compare_text, find_unstable, has_stable_words
from ortune.secret_variables import inherit_environment
from ortune.worker.failure import Failure
from ortune.worker.session_log import read_log

FIRST_CHECK_TIMEOUT_S = 300.0
"""Time that the first check of the user may take."""

CHECK_TIMEOUT_FACTOR = 10
LEAST_CHECK_TIMEOUT_S = 30.0
"""Later ones may take so many times as long as the longest one, and this time at least."""

MOST_RETURNED_BYTES = 16 << 20
"""Largest size of the files with what the first calls returned, each."""

MOST_OUTPUT_FILES = 256
"""Files that are read, one for each process."""

Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class TextReference:
    """One text of the program as it is, and what varies between its runs."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._n_texts = 0
        self._ignored: Ignored = NOTHING
        self._has_words = False

    @property
    def is_comparable(self) -> bool:
        """Whether there is something to compare with: words that do not differ from run to run.

        With a single run, it is not known what varies.
        """
        return self._n_texts > 1 and self._has_words

    def add(self, text: bytes) -> None:
        """Add the text of a run of the program as it is. What varies between such runs is not compared."""
        self._n_texts += 1
        if self._first is None:
            self._first = text
            return
        more = find_unstable(self._first, text)
        if isinstance(self._ignored, str) or isinstance(more, str):
            self._ignored = "everything"
        else:
            self._ignored |= more
        self._has_words = has_stable_words(self._first, self._ignored)

    def ignore(self) -> None:
        """Compare nothing from now on."""
        self._ignored = "everything"
        self._has_words = False

    def compare(self, text: bytes) -> str | None:
        """Return how a text differs; None if it does not, or if there is nothing to compare with."""
        return compare_text(self._first, text, self._ignored) if self._first and self.is_comparable else None


class Returned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call, and what it returned; see `ortune.apply.inside.returned`.

    Attributes:
        start_ns: Its start.
        end_ns: Its end.
        text: What it returned; None if that means nothing outside of its process.
    """

    start_ns: Number
    end_ns: Number
    text: str | None


class OutputReference:
    """What the program prints, answers and returns as it is, and what varies between its runs.

    Args:
        task: The program.

    Attributes:
        n_ended: Number of runs of the program as it is that ended by themselves.
        check_s: Longest time that a check of the user has taken so far.
    """

    def __init__(self, task: ProgramTask) -> None:
        self._task = task
        self._printed = TextReference()
        self._parts: dict[int, TextReference] = {}
        self._compared: dict[str, set[TextReference]] = {}
        self._checked: set[str] = set()
        self._ended: set[str] = set()
        self.n_ended = 0
        self.check_s = 0.0

    @property
    def n_needed(self) -> int:
        """Number of runs of the program as it is that must have ended before others can be compared with them.

        What varies between them is found by comparing two.
        """
        return 2 if self._task.compares_values else 0

    def has_ended(self, key: str) -> bool:
        """Return whether a run of a candidate has ended and was judged.

        Args:
            key: Key of its config.
        """
        return key in self._ended

    def is_compared(self, key: str, *, is_baseline: bool) -> bool:
        """Return whether the outputs of a candidate were compared with those of the program as it is.

        Args:
            key: Key of its config.
            is_baseline: Whether it is the program as it is. Then it is whether there is something to compare with.
        """
        if self._task.check:
            return key in self._checked
        references = (self._printed, *self._parts.values()) if is_baseline else self._compared.get(key, ())
        return any(reference.is_comparable for reference in references)

    def compare_run(self, run: LaunchedProgram, key: str, *, is_baseline: bool) -> Failure | None:
        """Return how the output of a complete run differs from that of the program as it is; None if it does not.

        A check of the user that does not run says nothing about the output: this is a failure of another kind.

        Args:
            run: The run.
            key: Key of its config.
            is_baseline: Whether the run is one of the program as it is. What varies between such runs is not compared.
        """
        self.n_ended += is_baseline
        if self._task.check:
            return self._check(run, key)
        if self.n_ended >= self.n_needed:
            self._ended.add(key)
        difference = None if self._task.ignore_outputs else self._compare_printed(run, key, is_baseline=is_baseline)
        return Failure(kind="wrong_output", stage="check", message=difference) if difference else None

    def _check(self, run: LaunchedProgram, key: str) -> Failure | None:
        timeout_s = (
            max(LEAST_CHECK_TIMEOUT_S, CHECK_TIMEOUT_FACTOR * self.check_s) if self._checked else FIRST_CHECK_TIMEOUT_S
        )
        begin_s = time.monotonic()
        failure = check_output(self._task.check, run, timeout_s=timeout_s)
        if failure is None or failure.kind == "wrong_output":
            self.check_s = max(self.check_s, time.monotonic() - begin_s)
            self._ended.add(key)
            self._checked.add(key)
        return failure

    def _compare_printed(self, run: LaunchedProgram, key: str, *, is_baseline: bool) -> str | None:
        output = run.read_output()
        if output is None:
            if is_baseline:
                self._printed.ignore()
            return "it printed more than can be compared" if self._printed.is_comparable else None
        if self._task.metric:
            output = mask_metric(self._task.metric, output)
        return self._compare(self._printed, output, key, is_baseline=is_baseline)

    def compare_part(self, number: int, text: bytes, key: str, *, is_baseline: bool) -> str | None:
        """Return how an answer of a server, or what a call returned, differs from that of the program as it is.

        Args:
            number: Which request or call it was, from 0.
            text: The answer, or what the call returned.
            key: Key of the candidate's config.
            is_baseline: Whether it is that of the program as it is.
        """
        if not self._task.compares_values:
            return None
        reference = self._parts.setdefault(number, TextReference())
        return self._compare(reference, text, key, is_baseline=is_baseline)

    def compare_returned(self, folder: Path, key: str, *, is_baseline: bool, n_known: int = 0) -> str | None:
        """Return how what the first calls of a run returned differs from the program as it is; None if it does not.

        Calls of several threads or processes at the same time have no order in which they could be compared. Those of a
        candidate do not keep other candidates from being compared.

        Args:
            folder: Folder with what is noted of the run.
            key: Key of the candidate's config.
            is_baseline: Whether it is the program as it is.
            n_known: Number of its calls that were compared before.
        """
        calls = read_returned(folder)[:RETURNED_CALLS]
        if any(after.start_ns < before.end_ns for before, after in itertools.pairwise(calls)):
            for number in range(RETURNED_CALLS if is_baseline else 0):
                self._parts.setdefault(number, TextReference()).ignore()
            return None
        for number, call in enumerate(calls[n_known:], n_known):
            which = f"call {number + 1} of {self._task.call} returned"
            if call.text is not None:
                text = call.text.encode(errors="replace")
                if difference := self.compare_part(number, text, key, is_baseline=is_baseline):
                    return f"{which} something else: {difference}"
                continue
            reference = self._parts.setdefault(number, TextReference())
            if is_baseline:
                reference.ignore()
            elif reference.is_comparable:
                return f"{which} nothing that can be compared"
        return None

    def _compare(self, reference: TextReference, text: bytes, key: str, *, is_baseline: bool) -> str | None:
        if is_baseline:
            reference.add(text)
            return None
        if reference.is_comparable:
            self._compared.setdefault(key, set()).add(reference)
        return reference.compare(text)


def check_output(command: str, run: LaunchedProgram, *, timeout_s: float) -> Failure | None:
    """Return how the user's command judges the output of a run; None if it accepts it.

    Args:
        command: The command, which gets the output on stdin.
        run: The run.
        timeout_s: Time that the command may take.

    Returns:
        Wrong output if it exits with another status than 0. A failure of another kind if it cannot be started, does
        not end in time, or is ended by a signal.
    """
    files = [run.folder / f"check-{name}" for name in ("stderr", "stdout")]
    with ExitStack() as opened:
        output = opened.enter_context(run.stdout.open("rb"))
        stderr, stdout = (opened.enter_context(path.open("wb")) for path in files)
        try:
            process = subprocess.Popen(
                shlex.split(command),
                stdin=output,
                stdout=stdout,
                stderr=stderr,
                env=inherit_environment(),
                start_new_session=True,
                preexec_fn=request_death_signal,
            )
        except OSError as error:
            message = f"the check {command!r} cannot be started: {error.strerror}"
            return Failure(kind="exit", stage="check", message=message)
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            message = f"the check {command!r} did not end within {timeout_s:g} s"
            return Failure(kind="timeout", stage="check", message=message)
        finally:
            # With what it started, also when it was interrupted.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status < 0:
        message = f"the check {command!r} was ended by {name_signal(-status)}"
        return Failure(kind="crash", stage="check", message=message)
    if status == 0:
        return None
    lines = read_log(files[0]) or read_log(files[1])
    message = f"the check {command!r} rejects it" + (f": {lines[-1][:200]}" if lines else "")
    return Failure(kind="wrong_output", stage="check", message=message)


def is_unjudged(task: ProgramTask, failure: Failure) -> bool:
    """Return whether a run failed because the check of the user did not run, which says nothing about the program."""
    return bool(task.check) and failure.stage == "check" and failure.is_sudden


def make_check_error(name: str, failure: Failure) -> ProgramError:
    """Return the error of a program whose check does not run."""
    return ProgramError(
        f"What {name} prints cannot be checked ({failure.title}): {failure.message}.",
        "Run the command of {check_command} without ortune. It gets the output of the program on its stdin.",
    )


def read_returned(folder: Path) -> list[Returned]:
    """Return the first calls of all processes of a run in the order of their start, with what they returned.

    The program can write anything: files that are not what ortune writes are left out.
    """
    calls: list[Returned] = []
    for path in sorted(folder.glob("returned-*.jsonl"))[:MOST_OUTPUT_FILES]:
        with contextlib.suppress(OSError, TooLargeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            lines = read_limited(path, MOST_RETURNED_BYTES, only_regular=True).splitlines()
            calls += [msgspec.json.decode(line, type=Returned) for line in lines]
    return sorted(calls, key=lambda call: call.start_ns)
