"""What nodes run, and what they need for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from ortune.errors import UsageError
from ortune.export.checks import find_fault
from ortune.export.comments import make_comment

RESULTS = (1, 3)
"""Exit codes of ortune that are results, which need no repetition: a check failed, or nothing was decided."""


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A PersistentVolumeClaim in a container.

    Attributes:
        claim: Its name.
        path: Where it is mounted.
        read_only: Whether it must not be written.
    """

    claim: str
    path: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Task:
    """A command of ortune that several nodes run.

    Attributes:
        name: Name of the objects and jobs.
        command: `ortune` and the name of the command.
        arguments: Its arguments.
        record: Name of the record that each node writes, without the suffix; empty if the command writes none.
        n_nodes: Number of nodes; 0 if the target does not need it.
        cpus: CPUs of each node that it may use; None for all.
        memory: Memory of a container, as Kubernetes writes it.
        deadline_s: Time after which a node is stopped.
        image: The container image.
        volumes: Volumes of a container.
        labels: Labels of the nodes.
        notes: What a reader must know about the labels.
        constraint: Features of the nodes, as Slurm writes them.
        storage: URL of the storage, without a password; empty if a file or a Secret has it.
        storage_file: File on the nodes with the URL of the storage.
        secret: The Secret with the URL of the storage.
    """

    name: str
    command: Sequence[str]
    arguments: Sequence[str]
    record: str = ""
    n_nodes: int = 0
    cpus: int | None = None
    memory: str = ""
    deadline_s: int = 3600
    image: str = "IMAGE"
    volumes: Sequence[Volume] = ()
    labels: Mapping[str, str] | None = None
    notes: Sequence[str] = ()
    constraint: str = ""
    storage: str = ""
    storage_file: str = ""
    secret: str = ""

    @property
    def header(self) -> list[str]:
        """The first comment."""
        return ["# Written by ortune fleet deploy."]

    @property
    def note_lines(self) -> list[str]:
        """What a reader must know about the labels, as comments."""
        return [make_comment("#", note) for note in self.notes]


def check_word(word: str, *, in_shell: bool) -> None:
    """Check that a word of a command can be written.

    Args:
        word: The word.
        in_shell: Whether it is written into a script of a shell, where characters that are not printable could deceive
            a reader.

    Raises:
        UsageError: It cannot be written.
    """
    fault = find_fault(word)
    if not fault and in_shell and not word.isprintable():
        fault = "contains characters that are not printable"
    if fault:
        raise UsageError(f"{word!r}: this {fault}.", "Rename the file, or name it by another path.")


def name_record(model: str) -> str:
    """Return the name of the record of a model, without the suffix."""
    return PurePosixPath(model).stem or "model"
