"""Writes a config for other systems: one file of this folder for each of them."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.errors import UsageError
from ortune.export import (
    aspose,
    cpp,
    csharp,
    embedded,
    environment,
    fastembed,
    genai,
    java,
    javascript,
    kubernetes,
    optimum,
    ort,
    python,
    rapidocr,
    rust,
    sherpa_onnx,
    triton,
    yobx,
)
from ortune.export.target import Export, Job, Target, one_line

if TYPE_CHECKING:
    from ortune.record.schema import Record

__all__ = ["TARGETS", "Export", "Target", "export", "find_target", "render"]

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        python,
        cpp,
        csharp,
        aspose,
        java,
        javascript,
        rust,
        yobx,
        optimum,
        triton,
        genai,
        sherpa_onnx,
        rapidocr,
        fastembed,
        environment,
        kubernetes,
        embedded,
        ort,
    )
}
"""All targets by name, in the order in which they are shown."""


def find_target(name: str) -> Target:
    """Return the target of this name.

    Raises:
        UsageError: There is none.
    """
    if name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name, TARGETS, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"--to {name}: there is no such target.", f"{meant}ortune apply --list shows all.")


def render(name: str, record: Record, model: str, source: str = "a record", output: Path | None = None) -> Export:
    """Return the text of a target, with what it cannot express as a comment at its head.

    Args:
        name: The target.
        record: What to write.
        model: Path of the model, as the reader of the output will find it.
        source: The file that the record was read from.
        output: The file that a binary target is to write, and that a merging one starts from.

    Raises:
        UsageError: There is no such target.
        ModelError: The target needs the model, and it cannot be read.
    """
    target = find_target(name)
    job = Job(record, model, source, output)
    text = target.write(job)
    lost = job.sheet.lost
    if target.comment:
        notes = [f"{target.comment} {line}" for line in job.head()]
        if lost:
            notes.append(
                f"{target.comment} Not expressed here{', so that less may be gained' if len(notes) > 1 else ''}:"
            )
            notes += [f"{target.comment}   {one_line(line)}" for line in lost]
        text = "\n".join(notes) + "\n" + text
    return Export(target=name, text=text.rstrip("\n") + "\n", binary=target.binary, lost=lost)


def export(name: str, record: Record, model: str, source: str, output: Path | None) -> Export:
    """Render a target, and write it if there is a file to write.

    Raises:
        UsageError: There is no such target, or the file cannot be written, or it is there already and cannot be
            added to.
        ModelError: The target needs the model, and it cannot be read.
    """
    from ortune.record.files import check_writable, write_atomically

    target = find_target(name)
    if target.binary and output is None:
        raise UsageError(f"--to {name} writes a file.", f"Name it: ortune apply {source} --to {name} -o FILE.")
    if output is not None:
        check_writable(output)
        if output.exists() and not target.merges:
            raise UsageError(f"{output} is there already.", "Name another file with -o, or remove it.")
    done = render(name, record, model, source, output)
    if output is not None and not target.binary:
        write_atomically(output, done.text.encode())
    return done
