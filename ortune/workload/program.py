"""What is measured of a program, as it is written to a record."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from ortune.numbers import Count

MeasureKind = Literal["run", "call", "metric", "server"]
"""What is measured: complete runs, calls of a function, a number that the program prints, or requests to a server."""

LONGEST_PROGRAM_TEXT = 4096


class ProgramRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program, without its arguments, which may contain passwords, and what is measured of it.

    Attributes:
        program: File name of the program.
        sha256: SHA-256 of the whole command, as hexadecimal digits.
        kind: What is measured.
        call: For calls: the function, as `package.module:function`.
        complete_runs: For calls: whether the program is run to completion, and not measured while it stays alive. None
            if that is not known.
        metric: For a number that the program prints: the regular expression that finds it.
        maximize: Whether a larger number is better.
        url: For a server: the URL of the requests, without user name, password and query.
        n_processes: Processes of the program that created sessions.
        concurrent_calls: Largest number of calls of one session that were in progress at a time while the program was
            observed; of a server, with one client. 0 if it is not known.
    """

    program: str
    sha256: str
    kind: MeasureKind = "run"
    call: str = ""
    complete_runs: bool | None = None
    metric: str = ""
    maximize: bool = False
    url: str = ""
    n_processes: Count = 1
    concurrent_calls: Count = 0

    def __post_init__(self) -> None:
        """Reject texts that no search writes."""
        for text in (self.program, self.call, self.metric, self.url):
            if len(text) > LONGEST_PROGRAM_TEXT or "\0" in text:
                raise ValueError(f"{text[:40]!r} is too long, or not a text")


def digest_command(command: Sequence[str]) -> str:
    """Return the SHA-256 of a command, as hexadecimal digits."""
    return hashlib.sha256(b"\0".join(os.fsencode(word) for word in command)).hexdigest()
