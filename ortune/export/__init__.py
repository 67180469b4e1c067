"""Exports configs to other systems: one module for each target. Other packages can add targets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.errors import ModelError, UsageError
from ortune.export import (
    aspose,
    bentoml,
    compose,
    cpp,
    csharp,
    djl,
    embedded,
    environment,
    fastembed,
    genai,
    go,
    gunicorn,
    java,
    javascript,
    kotlin,
    kubernetes,
    onnxruntime_web,
    optimum,
    ort,
    python,
    rapidocr,
    ray_serve,
    rust,
    sentence_transformers,
    sherpa_onnx,
    swift,
    systemd,
    transformers_js,
    triton,
    uvicorn,
    vespa,
    yobx,
)
from ortune.export.checks import check_path
from ortune.export.comments import make_comment
from ortune.export.installed import ListedTarget, find_installed, list_installed, load_installed
from ortune.export.target import Export, Job, Target

if TYPE_CHECKING:
    from ortune.planning.pick import PickedDeployment
    from ortune.record.schema import Record

__all__ = ["TARGETS", "Export", "Job", "Target", "export", "find_target", "list_targets", "render"]

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        python,
        cpp,
        csharp,
        aspose,
        java,
        kotlin,
        swift,
        javascript,
        onnxruntime_web,
        transformers_js,
        rust,
        go,
        yobx,
        optimum,
        sentence_transformers,
        triton,
        genai,
        sherpa_onnx,
        rapidocr,
        fastembed,
        vespa,
        djl,
        environment,
        gunicorn,
        uvicorn,
        ray_serve,
        bentoml,
        kubernetes,
        compose,
        systemd,
        embedded,
        ort,
    )
}
"""ortune's own targets by name, in the order in which they are listed."""


OTHER_NAMES = {
    "k8s": ("kubernetes",),
    "yaml": ("kubernetes",),
    "py": ("python",),
    "c++": ("cpp",),
    "c": ("cpp",),
    "c#": ("csharp",),
    "dotnet": ("csharp",),
    "js": ("javascript",),
    "node": ("javascript",),
    "web": ("onnxruntime-web",),
    "browser": ("onnxruntime-web",),
    "wasm": ("onnxruntime-web",),
    "transformers.js": ("transformers-js",),
    "golang": ("go",),
    "kt": ("kotlin",),
    "android": ("kotlin",),
    "ios": ("swift",),
    "rs": ("rust",),
    "env": ("environment",),
    "huggingface": ("optimum",),
    "windows-ml": ("csharp", "cpp", "python"),
    "winml": ("csharp", "cpp", "python"),
    "opensearch": ("djl",),
    "djl-serving": ("djl",),
}
"""What users call targets."""

REASONS = {
    "windows-ml": "Windows ML has the APIs of ONNX Runtime.",
    "winml": "Windows ML has the APIs of ONNX Runtime.",
    "opensearch": "OpenSearch loads models with the Deep Java Library.",
}
"""Why a target is right for what users call it."""


def find_target(name: str) -> Target:
    """Return the target of this name: one of ortune, or one that an installed package adds.

    Raises:
        UsageError: There is no such target, or that of a package cannot be imported.
    """
    if name in TARGETS:
        return TARGETS[name]
    installed = find_installed(TARGETS)
    if name in installed:
        return load_installed(installed[name])
    called = re.sub(r"[\s_]", "-", name.lower())
    near = OTHER_NAMES.get(called, ()) or difflib.get_close_matches(name, [*TARGETS, *installed], n=1)
    suggestion = ""
    if near:
        *others, last = near
        first = f"{', '.join(others)} or " if others else ""
        suggestion = f"Did you mean {first}{last}? "
    reason = f"{REASONS[called]} " if called in REASONS else ""
    hint = f"{reason}{suggestion}{{list}} lists all targets."
    raise UsageError(f"{name}: there is no such target.", hint, option="to")


def list_targets() -> list[ListedTarget]:
    """Return all targets: those of ortune, and those that installed packages add, which are imported."""
    own = [ListedTarget(name=target.name, summary=target.summary) for target in TARGETS.values()]
    return [*own, *list_installed(TARGETS)]


def render(
    name: str,
    record: Record,
    model: str,
    source: str = "a record",
    output: Path | None = None,
    picked: PickedDeployment | None = None,
    selection: Sequence[str] = (),
) -> Export:
    """Return the text of a target. It starts with a comment that lists the settings that the target does not support.

    Args:
        name: The target.
        record: What to write.
        model: Path of the model, as the program that uses the export will find it.
        source: The file that the record was read from.
        output: The file that a binary target writes, or that a merging target reads first.
        picked: The deployment of a plan that the record is of.
        selection: Options of `ortune apply` with which the record was selected, as words of a command line.

    Raises:
        UsageError: There is no such target, or the path of the model is not text.
        RecordError: The record has a setting that cannot be written.
        ModelError: The target needs the model, and it cannot be read.
    """
    target = find_target(name)
    if not target.binary:
        check_path(model)
    job = Job(record, model, source, output, picked, selection)
    text = target.write(job)
    unsupported = job.pending.remaining
    if target.comment:
        notes = job.header()
        if unsupported:
            effect = ", so the gain may be smaller" if len(notes) > 1 and not picked else ""
            notes.append(f"Not supported by this target{effect}:")
            notes += [f"  {line}" for line in unsupported]
        text = "\n".join([*(make_comment(target.comment, line) for line in notes), text])
    return Export(target=name, text=text.rstrip("\n") + "\n", binary=target.binary, unsupported=unsupported)


def export(
    name: str,
    record: Record,
    model: str,
    source: str,
    output: Path | None,
    picked: PickedDeployment | None = None,
    selection: Sequence[str] = (),
) -> Export:
    """Render a target, and write the output file if one is given.

    Raises:
        UsageError: There is no such target, or the file cannot be written, or it exists and the target does not merge.
        RecordError: The record has a setting that cannot be written.
        ModelError: The target needs the model, and it cannot be read.
    """
    from ortune.record.files import check_writable, write_atomically

    target = find_target(name)
    if target.binary and output is None:
        raise UsageError(
            f"{name}: the output of this target is a file.", "Name the file with {output=FILE}.", option="to"
        )
    if target.binary and not Path(model).is_file():
        raise ModelError(f"There is no file {model}.", "Name the model after the record.")
    if output is not None:
        check_writable(output)
        if output.is_file() and not target.merges:
            raise UsageError(
                f"{output}: this file already exists.", "Name another file, or remove it.", option="output"
            )
    rendered = render(name, record, model, source, output, picked, selection)
    if output is not None and not target.binary:
        write_atomically(output, rendered.text.encode())
    return rendered
