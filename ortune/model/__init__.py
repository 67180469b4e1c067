"""The model: what its graph asks for and what it can profit from, read in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from ortune.errors import ModelError
from ortune.model.digest import digest_of, hash_file
from ortune.model.values import Dim, InputInfo, ModelFile, ModelInfo, OutputInfo, Traits

__all__ = [
    "Dim",
    "InputInfo",
    "ModelFile",
    "ModelInfo",
    "OutputInfo",
    "Traits",
    "digest_of",
    "hash_file",
    "read_model",
]

READ_TIMEOUT_S = 600.0


class Answer(msgspec.Struct, frozen=True):
    """What the child that parses the file says: the model, or why it cannot be read."""

    model: ModelInfo | None = None
    message: str = ""
    cure: str = ""


def read_model(path: str | Path) -> ModelInfo:
    """Read a model's inputs and traits.

    Weights never enter this process: a child parses the file, and only the facts come back.

    Raises:
        ModelError: The file is missing, is not an ONNX model, or its external data is missing.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError(f"There is no file {path}.", "Pass the path of an .onnx file.")
    if not path.is_file():
        raise ModelError(f"{path} is not a file.", "Pass the path of an .onnx file.")
    command = [sys.executable, "-P", "-m", "ortune.model.inspect", str(path.resolve())]
    try:
        child = subprocess.run(command, capture_output=True, timeout=READ_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ModelError(f"Reading {path} took more than {READ_TIMEOUT_S:.0f} s.") from None
    try:
        answer = msgspec.json.decode(child.stdout, type=Answer)
    except msgspec.DecodeError:
        last = child.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        reason = last[0] if last else f"its reader ended with status {child.returncode}"
        raise ModelError(f"Cannot read {path}: {reason}.") from None
    if answer.model is None:
        raise ModelError(answer.message, answer.cure)
    return answer.model
