"""The lines of a journal of Optuna, as it reads them.

Optuna checks none of them: what is missing in a line, or has another type, is an error that does not say which line it
is. Lines are therefore checked before Optuna gets them.

Source: `JournalStorageReplayResult` in optuna/storages/journal/_storage.py of Optuna 5.0.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal

import msgspec
from optuna.distributions import BaseDistribution, json_to_distribution

from ortune.numbers import Count
from ortune.times import check_time

MOST_SHOWN = 64
"""Number of characters of a name that a message shows."""

MOST_OPERATIONS = 100
"""Numbers from this one on are no operations of any version of Optuna."""

RUNNING: Final = 0
WAITING: Final = 4
"""States of trials, of which all others are final."""

State = Literal[0, 1, 2, 3, 4]
Direction = Literal[0, 1, 2]
Attribute = Annotated[dict[str, Any], msgspec.Meta(min_length=1, max_length=1)]
Step = Annotated[str, msgspec.Meta(pattern="^-?[0-9]{1,18}$")]


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="op_code"):
    """A line. Each kind has a number, its `op_code`.

    Attributes:
        worker_id: Identifier of who wrote it.
    """

    worker_id: str


class CreateStudy(Operation, frozen=True, kw_only=True, tag=0):
    """A new study."""

    study_name: str
    directions: Annotated[tuple[Direction, ...], msgspec.Meta(min_length=1, max_length=100)]


class DeleteStudy(Operation, frozen=True, kw_only=True, tag=1):
    """The end of a study."""

    study_id: Count


class SetStudyUserAttribute(Operation, frozen=True, kw_only=True, tag=2):
    """An attribute of a study."""

    study_id: Count
    user_attr: Attribute


class SetStudySystemAttribute(Operation, frozen=True, kw_only=True, tag=3):
    """An attribute of a study that Optuna itself sets."""

    study_id: Count
    system_attr: Attribute


class CreateTrial(Operation, frozen=True, kw_only=True, tag=4):
    """A new trial, often a finished one."""

    study_id: Count
    datetime_start: str | None
    datetime_complete: str | msgspec.UnsetType = msgspec.UNSET
    state: State = RUNNING
    value: float | None = None
    values: tuple[float, ...] | None = None
    distributions: dict[str, str] = {}
    params: dict[str, float] = {}
    user_attrs: dict[str, Any] = {}
    system_attrs: dict[str, Any] = {}
    intermediate_values: dict[Step, float | None] = {}

    def __post_init__(self) -> None:
        """Check the times, the values, and that each parameter has a legal distribution."""
        check_times(self.datetime_start, self.datetime_complete)
        if self.value is not None and self.values is not None:
            raise ValueError("it has both value and values")
        for name, value in self.params.items():
            check_parameter(name, value, self.distributions.get(name, ""))
        for name, text in self.distributions.items():
            if name not in self.params:
                check_parameter(name, None, text)


class SetTrialParameter(Operation, frozen=True, kw_only=True, tag=5):
    """A parameter of a trial."""

    trial_id: Count
    param_name: str
    param_value_internal: float
    distribution: str

    def __post_init__(self) -> None:
        """Check that Optuna can read the distribution and the value."""
        check_parameter(self.param_name, self.param_value_internal, self.distribution)


class SetTrialStateValues(Operation, frozen=True, kw_only=True, tag=6):
    """The state of a trial, with its values if it is finished."""

    trial_id: Count
    state: State
    values: tuple[float, ...] | None
    datetime_start: str | msgspec.UnsetType = msgspec.UNSET
    datetime_complete: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Check the times."""
        check_times(self.datetime_start, self.datetime_complete)
        if self.state == RUNNING and self.datetime_start is msgspec.UNSET:
            raise ValueError("datetime_start is missing")
        if self.state not in {RUNNING, WAITING} and self.datetime_complete is msgspec.UNSET:
            raise ValueError("datetime_complete is missing")


class SetTrialIntermediateValue(Operation, frozen=True, kw_only=True, tag=7):
    """A value of a trial before its end."""

    trial_id: Count
    step: int
    intermediate_value: float | None


class SetTrialUserAttribute(Operation, frozen=True, kw_only=True, tag=8):
    """An attribute of a trial."""

    trial_id: Count
    user_attr: Attribute


class SetTrialSystemAttribute(Operation, frozen=True, kw_only=True, tag=9):
    """An attribute of a trial that Optuna itself sets."""

    trial_id: Count
    system_attr: Attribute


LAST_OPERATION = 10
"""The largest `op_code` of Optuna 5.0."""


class DiscardTrials(Operation, frozen=True, kw_only=True, tag=LAST_OPERATION):
    """A line that Optuna itself skips."""


AnyOperation = (
    CreateStudy
    | DeleteStudy
    | SetStudyUserAttribute
    | SetStudySystemAttribute
    | CreateTrial
    | SetTrialParameter
    | SetTrialStateValues
    | SetTrialIntermediateValue
    | SetTrialUserAttribute
    | SetTrialSystemAttribute
    | DiscardTrials
)


def check_operation(log: dict[str, Any]) -> None:
    """Check that Optuna can read a line.

    Args:
        log: What the line holds.

    Raises:
        msgspec.ValidationError: It cannot. The message is part of a sentence.
        ValueError: A later version of Optuna wrote it. The message is a sentence about the line.
    """
    code = log.get("op_code")
    if type(code) is int and LAST_OPERATION < code < MOST_OPERATIONS:
        raise ValueError(f"has the operation {code}, which this version of Optuna does not know. Update Optuna here.")
    msgspec.convert(log, type=AnyOperation)


def check_times(*times: str | msgspec.UnsetType | None) -> None:
    """Check that texts are times in ISO 8601 that have a local time.

    Raises:
        ValueError: One is not.
    """
    for each in times:
        if isinstance(each, str):
            check_time(each)


def check_parameter(name: str, value: float | None, distribution: str) -> None:
    """Check that Optuna can read a parameter.

    Args:
        name: Its name.
        value: Its value as it is stored; None to check the distribution alone.
        distribution: Its distribution, as JSON text.

    Raises:
        ValueError: It cannot.
    """
    try:
        found = read_distribution(distribution)
        if value is not None:
            found.to_external_repr(value)
    except Exception:  # noqa: BLE001  (Optuna raises any)
        raise ValueError(f"the parameter {name[:MOST_SHOWN]!r} has no legal distribution and value") from None


@functools.lru_cache(maxsize=1024)
def read_distribution(text: str) -> BaseDistribution:
    """Return a distribution. Trials of a study have the same ones."""
    return json_to_distribution(text)
