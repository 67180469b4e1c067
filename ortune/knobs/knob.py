"""A knob: one setting of ONNX Runtime, what it may be set to, and how a text becomes such a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from ortune.errors import UsageError

Where = Literal[
    "session_options",
    "session_config",
    "run_options",
    "run_config",
    "provider_options",
    "environment",
    "dynamic_options",
    "config",
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
}
"""How a knob is set, for people."""

TRUE_WORDS = frozenset({"1", "true", "on", "yes"})
FALSE_WORDS = frozenset({"0", "false", "off", "no"})


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of ONNX Runtime.

    Attributes:
        name: ONNX Runtime's own spelling.
        where: How it is set: the field of `Config` that it goes to, or "config" where it is such a field itself.
        provider: For provider options, ONNX Runtime's name of the execution provider; else empty.
        alias: For provider options, the provider's short name, such as "cuda"; else empty.
        kind: "boolean": True or False as an attribute, "1" or "0" as an entry. "choice": one of `values`. "integer":
            a whole number in `low`..`high`. "text": whatever `pattern` matches.
        default: ONNX Runtime's default in the form that a config holds; "" where it is unset.
        values: Of a choice: what it may be.
        low: Of an integer: the least.
        high: Of an integer: the greatest.
        pattern: Of a text: a regular expression of all of it.
        since: First onnxruntime version on PyPI that knows it; empty if all that ortune supports do.
        short: How it is called in a table.
        summary: What it does, in a sentence.
        numerics: Whether it may change the outputs beyond rounding.
        tuned: When a search tries it without being asked to, a clause; empty if it never does.
        untunable: Why no search can try it, a clause; empty if `--tune` can.
        note: What goes wrong with it, a sentence; empty if nothing is known.
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
    pattern: str = ""
    since: str = ""
    short: str = ""
    numerics: bool = False
    tuned: str = ""
    untunable: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """Its name among all knobs: provider options carry the provider's short name, as in `cuda.device_id`."""
        return f"{self.alias}.{self.name}" if self.alias else self.name

    @property
    def is_attribute(self) -> bool:
        """Whether it is set as a Python attribute, with a value of its own type; all others are texts."""
        return self.where in {"session_options", "run_options", "config"}

    @property
    def title(self) -> str:
        """Its name in a table."""
        return self.short or self.id

    @property
    def is_settable(self) -> bool:
        """Whether a text can set it in a config; `providers` and pools are chosen by options of their own."""
        return self.where != "dynamic_options" and not (self.where == "config" and self.kind == "text")

    def describe_values(self) -> str:
        """Return what it may be set to, for people."""
        if self.kind == "boolean":
            return "True or False" if self.is_attribute else "1 or 0"
        if self.kind == "choice":
            return ", ".join(value or '""' for value in self.values)
        if self.kind == "integer":
            if self.low is not None and self.high is not None:
                return f"a whole number from {self.low} to {self.high}"
            return f"a whole number of at least {self.low}" if self.low is not None else "a whole number"
        return f"text like /{self.pattern}/" if self.pattern else "text"

    def parse(self, text: str) -> Value:
        """Return a text as the value that a config holds.

        Raises:
            UsageError: It is no legal value. ONNX Runtime itself would take many of these, and do something else.
        """
        text = text.strip()
        if self.kind == "boolean":
            return self._parse_boolean(text)
        if self.kind == "integer":
            return self._parse_integer(text)
        legal = text in self.values if self.kind == "choice" else re.fullmatch(self.pattern or ".*", text) is not None
        if not legal:
            raise self._refuse(text)
        return text

    def check(self, value: object) -> None:
        """Check a value in the form that a config holds.

        Raises:
            UsageError: It is not legal, or of the wrong type.
        """
        if isinstance(value, str) and not (self.is_attribute and self.kind in {"boolean", "integer"}):
            self.parse(value)
        elif self.is_attribute and self.kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
            self.parse(str(value))
        elif not (self.is_attribute and self.kind == "boolean" and isinstance(value, bool)):
            raise self._refuse(repr(value))

    def _parse_boolean(self, text: str) -> Value:
        if self.is_attribute:
            if text.lower() in TRUE_WORDS | FALSE_WORDS:
                return text.lower() in TRUE_WORDS
            raise self._refuse(text)
        if text not in {"0", "1"}:
            # Whatever is not "1" is off, "true" too.
            raise self._refuse(text, 'ONNX Runtime reads anything but "1" as off. ')
        return text

    def _parse_integer(self, text: str) -> Value:
        if not re.fullmatch(r"[+-]?\d{1,19}", text):
            raise self._refuse(text)
        number = int(text)
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            raise self._refuse(text)
        return number if self.is_attribute else str(number)

    def _refuse(self, text: str, why: str = "") -> UsageError:
        message = f"{self.id}={text}: this is not one of its values."
        return UsageError(message, f"{why}It takes {self.describe_values()}: ortune knobs {self.id}")
