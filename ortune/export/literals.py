"""How values are written in programming languages, shells, YAML, JSON and the text format of protobuf.

Strings come from records and models. A literal has one line, and only printable characters: all others are escaped by
the rules of the language. So is what CI services take for a command where an export is printed to a log. Texts that no
language can express do not get here; see `ortune.export.checks`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ortune.export.pending_settings import Value
from ortune.sanitize import LOG_COMMAND, escape_json, escape_utf16

LEVEL_NUMBERS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 99,
}
"""Values of GraphOptimizationLevel in ONNX Runtime's C API."""

LAYOUT = "ORT_ENABLE_LAYOUT"
"""The latest of the optimization levels. Some targets do not have it."""

LEVELS_WITHOUT_LAYOUT = frozenset(LEVEL_NUMBERS) - {LAYOUT}

LOGGING_LEVELS: Mapping[Value, str] = {
    number: f"ORT_LOGGING_LEVEL_{name}" for number, name in enumerate(("VERBOSE", "INFO", "WARNING", "ERROR", "FATAL"))
}
"""Names of OrtLoggingLevel, by number."""


SIMPLE_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Escape sequences that all languages here have."""


class Language:
    """How a language writes values.

    Args:
        escape: Returns the escape sequence of a character that is not printable.
        true: The word for true.
        false: The word for false.
    """

    def __init__(self, escape: Callable[[str], str], true: str = "true", false: str = "false") -> None:
        self._escape = escape
        self._words = {True: true, False: false}

    def literal(self, value: Value) -> str:
        """Return a value as a literal."""
        if isinstance(value, bool):
            return self._words[value]
        return self.quote(value) if isinstance(value, str) else str(value)

    def quote(self, text: str) -> str:
        """Return a string literal in double quotes."""
        literal = "".join(map(self._write, text))
        return f'"{LOG_COMMAND.sub(lambda found: self._escape(found[0]), literal)}"'

    def _write(self, character: str) -> str:
        if character in SIMPLE_ESCAPES:
            return SIMPLE_ESCAPES[character]
        return character if character.isprintable() else self._escape(character)

    def join_pairs(self, options: Mapping[str, str], form: str) -> str:
        """Return options as a list that is separated by commas.

        Args:
            options: Names and values.
            form: How one is written, with `{name}` and `{value}`, such as `[{name}] = {value}`.
        """
        return ", ".join(form.format(name=self.quote(name), value=self.quote(value)) for name, value in options.items())

    def call_lines(self, method: str, entries: Mapping[str, str], end: str = ";") -> list[str]:
        """Return one call of a method for each entry, such as `options.AddConfigEntry("name", "value");`.

        Args:
            method: The method, with its object.
            entries: Names and values: the two arguments.
            end: What follows the call.
        """
        return [f"{method}({self.quote(name)}, {self.quote(value)}){end}" for name, value in entries.items()]


class _Cpp(Language):
    """C++, where `??` may start a trigraph, even in a string."""

    def quote(self, text: str) -> str:
        """Return a string literal in double quotes."""
        return re.sub(r"(?<=\?)\?", r"\\?", super().quote(text))


class _Kotlin(Language):
    """Kotlin, where `$` starts a template in a string."""

    def quote(self, text: str) -> str:
        """Return a string literal in double quotes."""
        return super().quote(text).replace("$", r"\$")


class _Shell:
    """POSIX shells, where quoted parts that follow each other are one word."""

    def quote(self, text: str) -> str:
        """Return a word of a command line; in single quotes, unless it has only harmless characters."""
        return LOG_COMMAND.sub("''#", shlex.quote(text))

    def join(self, words: Iterable[str]) -> str:
        """Return a command line."""
        return " ".join(map(self.quote, words))


class _Systemd:
    """systemd's units, where `%` starts a specifier, and `$` a variable in command lines."""

    def quote(self, text: str) -> str:
        """Return a word of a command line; in double quotes, unless it has only harmless characters."""
        if re.fullmatch(r"[A-Za-z0-9_@+=:,./-]+", text):
            return text
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        escaped = LOG_COMMAND.sub(r"\\x23", escaped)
        return f'"{escaped}"'


def _escape_with_8_digits(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


PYTHON = Language(_escape_with_8_digits, "True", "False")
CPP = _Cpp(_escape_with_8_digits)
CSHARP = Language(_escape_with_8_digits)
GO = Language(_escape_with_8_digits)
# Java replaces \\u000a before it looks for the end of a string. Line breaks have simple escape sequences.
JAVA = Language(escape_utf16)
JAVASCRIPT = Language(escape_utf16)
KOTLIN = _Kotlin(escape_utf16)
RUST = Language(lambda character: f"\\u{{{ord(character):x}}}")
SWIFT = RUST
YAML = Language(_escape_with_8_digits)
SHELL = _Shell()
SYSTEMD = _Systemd()


def format_json(value: Any) -> str:
    """Return a value as indented JSON, which is also JavaScript."""
    return escape_json(json.dumps(value, indent=2, ensure_ascii=False))


def quote_protobuf(text: str) -> str:
    """Return a string of protobuf's text format. Characters other than ASCII are escaped."""
    from google.protobuf.text_encoding import CEscape

    escaped = LOG_COMMAND.sub(r"\\043", CEscape(text, as_utf8=False))
    return f'"{escaped}"'
