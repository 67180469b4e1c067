"""What a search may choose from: a knob with its choices, and when the choice makes a difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ortune.knobs.config import Provider, ThreadPool
from ortune.knobs.knob import Knob

DEFAULT_LABEL = "default"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a dimension.

    Attributes:
        label: Its name within the dimension; "default" is always the first choice.
        why: Why it is worth trying, a sentence.
        value: The setting's value; None leaves the setting alone.
        value_by: Where the value depends on what was chosen for `intra_op_num_threads`: by that label.
    """

    label: str
    why: str
    value: int | bool | str | tuple[Provider, ...] | ThreadPool | None = None
    value_by: Mapping[str, str] = {}


DEFAULT_CHOICE = Choice(label=DEFAULT_LABEL, why="ONNX Runtime's default")


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """A knob, and the choices for it.

    Attributes:
        knob: The setting.
        choices: ONNX Runtime's default first.
        inert: By the name of an earlier dimension: the labels of it under which this one makes no difference.
        alone: Whether it is tried without others of its kind: a candidate leaves the default in one of them at most,
            as what matters little would otherwise multiply the candidates.
    """

    knob: Knob
    choices: tuple[Choice, ...]
    inert: Mapping[str, frozenset[str]] = {}
    alone: bool = False

    @property
    def name(self) -> str:
        """The knob's id."""
        return self.knob.id

    def is_inert(self, labels: Mapping[str, str]) -> bool:
        """Return whether it makes no difference under these choices of earlier dimensions."""
        for name, inert in self.inert.items():  # noqa: SIM110  (a generator takes a tenth of the time of a space)
            if labels.get(name, DEFAULT_LABEL) in inert:
                return True
        return False

    def choice(self, label: str) -> Choice:
        """Return the choice of that label."""
        for choice in self.choices:
            if choice.label == label:
                return choice
        raise KeyError(label)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A knob that is not tried, and why."""

    knob: Knob
    why: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What the documentation advises: tried first.

    Attributes:
        labels: The choices that it makes, by dimension; all others stay at their default.
        why: Why it may help here, a sentence.
    """

    labels: Mapping[str, str]
    why: str


def choose(knob: Knob, *choices: tuple[int | bool | str, str], **given: Any) -> Dimension:
    """Return a dimension of these values beside the default, each with the reason to try it."""
    made = (Choice(label=str(value), value=value, why=why) for value, why in choices)
    return Dimension(knob=knob, choices=(DEFAULT_CHOICE, *made), **given)
