"""What can go wrong, and the exit code of each outcome.

The exception tree::

    OrtuneError                 ortune cannot go on; the message says what, with which value, and what to do
    ├── UsageError              an option or argument has no meaning
    ├── HostError               the host could not be read, or refuses what ortune needs
    ├── ModelError              the file is not a model that ONNX Runtime can load
    ├── InputsError             the model's inputs cannot be made, or do not fit it
    ├── MeasureError            the baseline itself cannot be measured
    │   └── BackgroundLoadError      the program that was to run beside the measurements does not
    └── RecordError             a config file cannot be read, or is not for this model

A candidate that fails is not an error: it is a `Failure` value (`ortune.worker`), and the search goes on.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, the same for all commands."""

    DONE = 0
    FAILED = 1
    ERROR = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130


class OrtuneError(Exception):
    """ortune cannot go on, for a cause outside its own code.

    Args:
        message: What failed, with which value.
        hint: What the user can do about it, a sentence; empty when the message says it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OrtuneError):
    """An option or argument has no meaning."""


class HostError(OrtuneError):
    """The host could not be read, or refuses what ortune needs."""


class ModelError(OrtuneError):
    """The file is not a model that ONNX Runtime can load."""


class InputsError(OrtuneError):
    """The model's inputs cannot be made, or do not fit it."""


class MeasureError(OrtuneError):
    """The baseline itself cannot be measured."""


class BackgroundLoadError(MeasureError):
    """The program that was to run beside the measurements does not run."""


class RecordError(OrtuneError):
    """A config file cannot be read, or is not for this model."""
