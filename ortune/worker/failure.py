"""Why a candidate cannot be measured, as a value."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ortune.errors import OrtuneError

FailureKind = Literal["exception", "crash", "exit", "timeout", "out_of_memory", "wrong_output", "not_applied"]


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a candidate cannot be had. It is a value: the search goes on without the candidate.

    Attributes:
        kind: "exception" (ONNX Runtime refused), "crash" (a signal), "exit" (the process ended by itself),
            "timeout", "out_of_memory", "wrong_output" (outputs differ from the default's), or "not_applied"
            (ONNX Runtime accepted a setting that did not take effect).
        stage: What was being done: "start", "load", "check" or "measure".
        message: The cause, for people.
    """

    kind: FailureKind
    stage: str
    message: str


def make_failure(error: BaseException, stage: str) -> Failure:
    """Return an exception as a value."""
    # Of ortune's own errors, the hint is for the user of a command, who did not choose this candidate.
    message = error.message if isinstance(error, OrtuneError) else f"{error}".strip() or type(error).__name__
    starved = isinstance(error, MemoryError) or re.search(
        r"bad_alloc|bad allocation|out of memory|failed to allocate|cannot allocate memory|EAGAIN",
        message,
        re.IGNORECASE,
    )
    if isinstance(error, SystemExit):
        return Failure(kind="exit", stage=stage, message=f"the process wanted to exit with status {error.code}")
    return Failure(kind="out_of_memory" if starved else "exception", stage=stage, message=message)
