"""A dimension of the search space: a knob, its choices, and when they have an effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import Provider, ThreadPool
from ortune.knobs.knob import Knob

DEFAULT_LABEL = "default"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a dimension.

    Attributes:
        label: Its name within the dimension. The first choice is always "default".
        why: Why it is worth trying, a clause.
        value: The knob's value; None leaves the knob at its default.
        value_by: If the value depends on `intra_op_num_threads`: values by the label chosen for that dimension.
    """

    label: str
    why: str
    value: int | bool | str | tuple[Provider, ...] | ThreadPool | None = None
    value_by: Mapping[str, str] = {}


DEFAULT_CHOICE = Choice(label=DEFAULT_LABEL, why="ONNX Runtime's default")


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """A knob and the choices for it.

    Attributes:
        knob: The knob.
        choices: The choices, the default first.
        between: Values between those of the choices. Only the adaptive strategy tries them, next to the best
            candidates.
        no_effect_when: Labels of earlier dimensions under which this one has no effect, by name of the dimension.
        alone: Whether it is tried one at a time: a candidate has a value other than the default in at most one of
            these dimensions, and in those that require it. They matter little, and their combinations would multiply
            the number of candidates.
        of: What it is a setting of, if choices for different ones that win alone are combined; empty for a setting of
            the whole candidate.
        default_number: Number that the default stands for; None for the threads of ONNX Runtime's default pool.
    """

    knob: Knob
    choices: tuple[Choice, ...]
    between: tuple[Choice, ...] = ()
    no_effect_when: Mapping[str, frozenset[str]] = {}
    alone: bool = False
    of: str = ""
    default_number: int | None = None

    @property
    def name(self) -> str:
        """The knob's id."""
        return self.knob.id

    @property
    def setting(self) -> str:
        """The name of the setting, as in `Config.settings`."""
        return f"{self.knob.provider}: {self.knob.name}" if self.knob.where == "models" else self.knob.id

    @property
    def labels(self) -> list[str]:
        """The labels of all choices, the default's first."""
        return [choice.label for choice in (*self.choices, *self.between)]

    def has_no_effect(self, labels: Mapping[str, str]) -> bool:
        """Return whether the dimension has no effect, given the choices in earlier dimensions."""
        # A loop, because a generator would add a tenth to the time of building a space.
        for name, without_effect in self.no_effect_when.items():
            if labels.get(name, DEFAULT_LABEL) in without_effect:
                return True
        return False

    def requires(self, name: str) -> bool:
        """Return whether the dimension has an effect only if another one is not at its default."""
        return DEFAULT_LABEL in self.no_effect_when.get(name, ())

    def choice(self, label: str) -> Choice:
        """Return the choice with a label.

        Raises:
            KeyError: There is none.
        """
        for choice in (*self.choices, *self.between):
            if choice.label == label:
                return choice
        raise KeyError(label)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A knob that a search does not try, and why."""

    knob: Knob
    why: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A choice that documentation recommends. A search tries it first.

    Attributes:
        labels: Labels by dimension; all other dimensions stay at their default.
        why: Why it may help here, a clause.
        fits_host: Whether it is a thread pool that fits the host, where ONNX Runtime's own does not.
    """

    labels: Mapping[str, str]
    why: str
    fits_host: bool = False


def choose_alone(dimensions: Iterable[Dimension], dimension: Dimension, choice: Choice) -> dict[str, str]:
    """Return labels that differ from the default in one of the dimensions, and in those that it requires.

    Args:
        dimensions: All dimensions of the space.
        dimension: The one.
        choice: Its choice.
    """
    labels = {dimension.name: choice.label}
    for name, without_effect in dimension.no_effect_when.items():
        if DEFAULT_LABEL not in without_effect:
            continue
        earlier = next(other for other in dimensions if other.name == name)
        effective = [other.label for other in earlier.choices if other.label not in without_effect]
        fitting = [label for label in effective if not choice.value_by or label in choice.value_by]
        if fitting:
            labels[name] = fitting[-1]
    return labels


def make_dimension(knob: str, *values: tuple[int | bool | str, str], **fields: Any) -> Dimension:
    """Return a dimension of the default and these values.

    Args:
        knob: Id of the knob.
        values: Values, each with the reason to try it.
        fields: Other fields of the dimension.
    """
    choices = (Choice(label=str(value), value=value, why=why) for value, why in values)
    return Dimension(knob=KNOBS[knob], choices=(DEFAULT_CHOICE, *choices), **fields)
