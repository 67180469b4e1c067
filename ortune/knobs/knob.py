"""A knob: one setting of ONNX Runtime, its legal values, and how to read a value from text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

import msgspec

from ortune.errors import UsageError
from ortune.knobs.affinity import split_affinity
from ortune.knobs.ids import INTRA_OP_THREAD_AFFINITIES

Where = Literal[
    "session_options",
    "session_config",
    "run_options",
    "run_config",
    "provider_options",
    "environment",
    "dynamic_options",
    "config",
    "models",
]
Kind = Literal["boolean", "choice", "integer", "text"]
Value = int | bool | str

PLACES: Mapping[Where, str] = {
    "session_options": "attribute of SessionOptions",
    "session_config": "SessionOptions.add_session_config_entry",
    "run_options": "attribute of RunOptions",
    "run_config": "RunOptions.add_run_config_entry",
    "provider_options": "execution provider option",
    "environment": "environment variable, set before the process starts",
    "dynamic_options": "set_ep_dynamic_options of a session",
    "config": "how the program uses the session",
    "models": "the sessions of one model of a program",
}
"""How a knob is set, in words."""

TRUE_WORDS = frozenset({"1", "true", "on", "yes"})
FALSE_WORDS = frozenset({"0", "false", "off", "no"})

MAX_BYTES = 8192
"""Maximum length of a text in UTF-8: ONNX Runtime raises an exception for longer values of entries."""

SMALLEST_INTEGER, LARGEST_INTEGER = -(1 << 31), (1 << 31) - 1
"""Range of integers that are attributes: they have type int in C++."""

LONGEST_SHOWN_VALUE = 200
"""Number of characters of a value that a message shows."""

NOT_PLAIN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that a text must not contain: control and format characters, surrogates, line separators."""


class Knob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting of ONNX Runtime.

    Texts name options of ortune as `{provider=cuda}`; see `ortune.errors`.

    Attributes:
        name: ONNX Runtime's own spelling.
        where: How it is set: the field of `Config` that holds it, or "config" if it is itself a field of `Config`.
        provider: For provider options, ONNX Runtime's name of the execution provider; for settings of one model of a
            program, the model's name; otherwise empty.
        alias: For provider options, the provider's short name, such as "cuda". "run" for attributes of RunOptions
            that SessionOptions has, too. Otherwise empty.
        kind: "boolean": True or False as an attribute, "1" or "0" as an entry. "choice": one of `values`. "integer":
            an integer in `low`..`high`. "text": text that matches `pattern`.
        default: ONNX Runtime's default in the form that a config holds; "" if it is not set.
        values: Legal values of a choice.
        low: Minimum of an integer.
        high: Maximum of an integer.
        examples: Values to show in examples, where those that follow from the default are not useful.
        pattern: Regular expression that must match the whole text.
        since: First onnxruntime version on PyPI that supports it; empty if all versions that ortune supports do.
        values_since: The same of those values that are newer than the setting itself.
        short: Name in tables.
        summary: What it does.
        numerics: Whether it may change outputs beyond rounding.
        graph: Whether it changes the graph that ONNX Runtime optimizes, so that a saved optimized model contains it.
        risk: What may go wrong with it on another host, a clause; empty if nothing is known. `numerics` is a risk, too.
        captures: Whether it captures the work of a call and replays it; see `CAPTURES` of `ortune.knobs.config`.
        tuned: When a search tries it by default, a clause; empty if never.
        not_tunable: Why no search can try it, a clause; empty if it can be given to `{tune}`.
        unsafe: Why a record must not set it, a clause; empty if it may. `{trust}` lets it through.
        threads: Whether it is a number of threads, which the host limits where a config is applied.
        instead: Id of the knob that must be set instead, because this one has no effect; empty if it has one.
        note: Known pitfalls; empty if there are none.
        source: Where it is documented.
    """

    name: str
    where: Where
    kind: Kind
    default: Value
    summary: str
    source: str
    provider: str = ""
    alias: str = ""
    values: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    examples: tuple[str, ...] = ()
    pattern: str = ""
    since: str = ""
    values_since: Mapping[str, str] = {}
    short: str = ""
    numerics: bool = False
    graph: bool = False
    risk: str = ""
    captures: bool = False
    tuned: str = ""
    not_tunable: str = ""
    unsafe: str = ""
    threads: bool = False
    instead: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """The unique name. Provider options have the provider's short name as a prefix: `cuda.device_id`."""
        return f"{self.alias}.{self.name}" if self.alias else self.name

    @property
    def is_attribute(self) -> bool:
        """Whether it is set as a Python attribute, with a typed value; all others are strings."""
        return self.where in {"session_options", "run_options", "config"}

    @property
    def title(self) -> str:
        """The name in tables."""
        return self.short or self.id

    @property
    def is_settable(self) -> bool:
        """Whether a value can set it in a config. Providers and thread pools have separate options."""
        is_separate = self.where == "dynamic_options" or (self.where == "config" and self.kind == "text")
        return not is_separate and not self.instead

    def check_effect(self, option: str = "") -> None:
        """Check that setting it has an effect.

        Raises:
            UsageError: It has none; the error names the option.
        """
        if self.instead:
            message = f"{self.id}: ONNX Runtime ignores this entry in Python."
            raise UsageError(message, f"Did you mean {self.instead}?", option=option)

    def describe_values(self) -> str:
        """Return a description of the legal values."""
        if self.kind == "boolean":
            return "True or False" if self.is_attribute else "1 or 0"
        if self.kind == "choice":
            return ", ".join(value or '""' for value in self.values)
        if self.kind == "integer":
            if self.low is not None and self.high is not None:
                return f"an integer from {self.low} to {self.high}"
            return f"an integer, at least {self.low}" if self.low is not None else "an integer"
        return f"text that matches /{self.pattern}/" if self.pattern else "text"

    def read(self, value: object) -> Value:
        """Return a value from the user, typed or as text, in the form that a config holds.

        Raises:
            UsageError: The value is not legal.
        """
        if isinstance(value, str):
            return self.parse(value)
        if self.kind == "boolean" and isinstance(value, bool):
            return value if self.is_attribute else str(int(value))
        return self.parse(str(value))

    def parse(self, text: str) -> Value:
        """Return a text as the value that a config holds.

        Raises:
            UsageError: The value is not legal. ONNX Runtime would accept many of these and do something else.
        """
        text = text.strip()
        if self.kind == "boolean":
            return self._parse_boolean(text)
        if self.kind == "integer":
            return self._parse_integer(text)
        if not (text in self.values if self.kind == "choice" else self._is_legal_text(text)):
            raise self._reject(text)
        return text

    def check(self, value: object) -> None:
        """Check a value in the form that a config holds.

        Raises:
            UsageError: The value is not legal or has the wrong type.
        """
        if isinstance(value, str) and not (self.is_attribute and self.kind in {"boolean", "integer"}):
            # ONNX Runtime reads " 1" and "+1" in another way than "1".
            if self.parse(value) != value:
                raise self._reject(repr(value))
        elif self.is_attribute and self.kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
            self.parse(str(value))
        elif not (self.is_attribute and self.kind == "boolean" and isinstance(value, bool)):
            raise self._reject(repr(value))

    def _is_legal_text(self, text: str) -> bool:
        # ONNX Runtime logs values, and exports write them into programs.
        if len(text) > MAX_BYTES or any(unicodedata.category(character) in NOT_PLAIN for character in text):
            return False
        if len(text.encode()) > MAX_BYTES or re.fullmatch(self.pattern or ".*", text, re.ASCII) is None:
            return False
        return self.name != INTRA_OP_THREAD_AFFINITIES or not text or _is_affinity(text)

    def _parse_boolean(self, text: str) -> Value:
        if self.is_attribute:
            if text.lower() in TRUE_WORDS | FALSE_WORDS:
                return text.lower() in TRUE_WORDS
            raise self._reject(text)
        if text not in {"0", "1"}:
            raise self._reject(text, 'ONNX Runtime reads every value except "1" as off, including "true". ')
        return text

    def _parse_integer(self, text: str) -> Value:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            raise self._reject(text)
        number = int(text)
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            raise self._reject(text)
        if self.is_attribute and not SMALLEST_INTEGER <= number <= LARGEST_INTEGER:
            raise self._reject(text)
        return number if self.is_attribute else str(number)

    def _reject(self, text: str, why: str = "") -> UsageError:
        shown = text if len(text) <= LONGEST_SHOWN_VALUE else f"{text[:LONGEST_SHOWN_VALUE]}…"
        message = f"{self.id}={shown}: not a legal value."
        return UsageError(message, f"{why}Legal values: {self.describe_values()}. See `ortune knobs {self.id}`.")


def _is_affinity(text: str) -> bool:
    try:
        split_affinity(text)
    except ValueError:
        return False
    return True
