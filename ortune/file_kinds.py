"""Recognizes files by their content: JSON documents of ortune, and what was passed in the place of something else."""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ortune.limited import TooLargeError, read_limited

MOST_JSON_BYTES = 4 << 20
"""Largest JSON file that is recognized."""

SUFFIXES = {
    ".onnx": "an ONNX model",
    ".ort": "a model in ORT format",
    ".py": "a Python script",
    ".pt": "a PyTorch model",
    ".pth": "a PyTorch model",
    ".safetensors": "a file of weights",
    ".tflite": "a TensorFlow Lite model",
    ".pb": "a TensorFlow model",
    ".engine": "a TensorRT engine",
    ".npz": "a file of arrays",
    ".toml": "a file of settings",
    ".json": "a JSON file",
}

Document = Literal["record", "bundle", "plan", "plan for several models", "bench", ""]
"""A JSON document of ortune. "plan" is one for a single model, and "bench" is the output of `ortune bench --json`."""

DOCUMENTS = {"a record": (b'"evidence"', b'"search"'), "a plan": (b'"rows"', b'"recommended"')}
"""What a JSON document that may be damaged is, if it has these keys. A bundle of records counts as one."""

SPECIAL: dict[str, Callable[[int], bool]] = {
    "a folder": stat.S_ISDIR,
    "a named pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}
"""What is no regular file, and how its mode shows it."""

PROGRAMS = re.compile(
    r"(python|pypy)[\d.]*w?(\.exe)?|uvicorn|gunicorn|hypercorn|granian|torchrun|uv|poetry|bash|sh|env"
)
"""Programs that run other programs."""

MOST_NAMES = 1000
"""Files of a folder among which a similar name is looked for."""


class _Keys(msgspec.Struct):
    """Keys that show what a document is; empty if it does not have them. Their values are not read."""

    schema: msgspec.Raw = msgspec.Raw()
    evidence: msgspec.Raw = msgspec.Raw()
    search: msgspec.Raw = msgspec.Raw()
    records: msgspec.Raw = msgspec.Raw()
    rows: msgspec.Raw = msgspec.Raw()
    recommended: msgspec.Raw = msgspec.Raw()
    measured_scale: msgspec.Raw = msgspec.Raw()
    workload: msgspec.Raw = msgspec.Raw()
    calls_needed: msgspec.Raw = msgspec.Raw()


class _MemberKeys(msgspec.Struct):
    evidence: msgspec.Raw
    search: msgspec.Raw


_Members = Annotated[list[_MemberKeys], msgspec.Meta(min_length=1)]


def find_document(content: bytes) -> Document:
    """Return what a JSON document is, of any schema; empty if it is none of ortune's, or damaged."""
    try:
        keys = msgspec.json.decode(content, type=_Keys)
        if keys.rows and keys.recommended:
            return "plan for several models" if keys.measured_scale else "plan"
        if keys.rows and keys.workload and keys.calls_needed:
            return "bench"
        if not bytes(keys.schema).isdigit():
            return ""
        if keys.evidence and keys.search:
            return "record"
        msgspec.json.decode(keys.records, type=_Members)
    except (ValueError, RecursionError):
        return ""
    return "bundle"


def is_record(content: bytes) -> bool:
    """Return whether a file's content looks like a record or a bundle, of any schema."""
    return find_document(content) in {"record", "bundle"}


def name_kind(path: Path) -> str:
    """Return what a file is, such as "a record"; empty if it is not recognized.

    The content of a pipe is not: it may have been read already, and opening it again would block.
    """
    if special := name_special(path):
        return special
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            begin = file.read(64).lstrip()
        content = read_limited(path, MOST_JSON_BYTES, only_regular=True) if begin[:1] == b"{" else b""
    except (OSError, TooLargeError):
        return ""
    if b'"schema"' in content:
        for kind, keys in DOCUMENTS.items():
            if all(key in content for key in keys):
                return kind
    if begin.startswith((b"\x7fELF", b"MZ", b"#!", b"\xcf\xfa\xed\xfe")) or PROGRAMS.fullmatch(path.name):
        return "a program"
    return SUFFIXES.get(path.suffix.lower(), "")


def name_special(path: Path) -> str:
    """Return what a path leads to if that is no regular file, such as "a folder"; empty for a file and for nothing."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return next((kind for kind, is_kind in SPECIAL.items() if is_kind(mode)), "")


def advise_for(kind: str, path: str) -> str:
    """Return what can be done with a file that is no model; empty if nothing is known."""
    return {
        "a record": f"Pass the model that it is for, and use it with: ortune apply {path}",
        "a plan": f"Pass the model that it is for, and use it with: ortune apply {path}",
        "a Python script": f"Find the models that it loads: ortune inspect -- python {path}",
        "a program": f"Find the models that it loads: ortune inspect -- {path}",
        "a PyTorch model": "Export it with torch.onnx.export, and pass the .onnx file.",
        "a TensorFlow Lite model": "Convert it with tf2onnx, and pass the .onnx file.",
        "a TensorFlow model": "Convert it with tf2onnx, and pass the .onnx file.",
        "a file of arrays": f"Pass the model, and this file with --inputs {path}",
    }.get(kind, "")


def find_similar(path: Path) -> str:
    """Return the path of a file with a similar name in the same folder; empty if there is none."""
    try:
        names = [sibling.name for sibling, _ in zip(sorted(path.parent.iterdir()), range(MOST_NAMES), strict=False)]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
    return str(path.parent / near[0]) if near else ""
