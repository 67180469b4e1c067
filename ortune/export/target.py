"""What a target of `ortune apply --to` is, and what it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortune.export.pending_settings import PendingSettings

if TYPE_CHECKING:
    from ortune.record.schema import Record


def one_line(text: str) -> str:
    """Return a text that stays within its comment."""
    return " ".join(text.splitlines())


class Job:
    """What is to be written.

    Attributes:
        record: The record.
        model: Path of the model, as the reader of the output will find it.
        source: The file that the record was read from.
        output: The file to write, or None where only a text is wanted.
        sheet: The config's settings, to be ticked off.
    """

    def __init__(self, record: Record, model: str, source: str, output: Path | None = None) -> None:
        self.record = record
        self.model = model
        self.source = source
        self.output = output
        self.sheet = PendingSettings(record.config)

    def head(self) -> list[str]:
        """Return what the output begins with: where it comes from and what it is worth, a line each."""
        evidence = self.record.evidence
        lines = [f"Written by ortune from {self.source}, for {self.record.model.path}."]
        if evidence.speedup and not self.record.config.is_default:
            speedup = evidence.speedup
            lines.append(
                f"{speedup.estimate:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] in {evidence.objective} "
                f"({self.record.workload.load}), on {self.record.host.cpu_model}, {self.record.host.n_usable} CPUs."
            )
        return [one_line(line) for line in lines]

    def environment_lines(self, comment: str) -> list[str]:
        """Return comments that say which variables the program must start with."""
        variables = self.sheet.take_environment()
        return [
            one_line(f"{comment} start with {name}={value} in the environment") for name, value in variables.items()
        ]

    def session_lines(self, form: str) -> list[str]:
        """Return comments with what each of several sessions has of its own.

        Args:
            form: One of them, with `{number}`, `{name}` and `{value}`.
        """
        return [
            form.format(number=number, name=json.dumps(name), value=json.dumps(text))
            for number, entries in enumerate(self.sheet.take_sessions(), 1)
            for name, text in entries.items()
        ]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One system that configs can be written for.

    Attributes:
        name: As it is named behind --to.
        summary: What is written, a line.
        write: Returns the text, or writes `job.output` by itself where `binary` is set and returns what is to be said
            about it.
        comment: What a comment begins with, or empty where the format has none.
        binary: Whether the output is a file that `write` makes.
        merges: Whether an existing output is added to rather than refused.
    """

    name: str
    summary: str
    write: Callable[[Job], str]
    comment: str = "#"
    binary: bool = False
    merges: bool = False


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        target: For which system.
        text: The whole output; for a binary file, what is to be said about it.
        binary: Whether it is a file that is there already.
        lost: Settings that the target cannot express, a line each.
    """

    target: str
    text: str
    binary: bool = False
    lost: tuple[str, ...]
