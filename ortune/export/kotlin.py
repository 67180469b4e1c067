"""Kotlin code for ai.onnxruntime, on the Java virtual machine and on Android, with the calls of the Java API."""

from __future__ import annotations

from ortune.export.java import Dialect, write_code
from ortune.export.literals import KOTLIN
from ortune.export.target import Job, Target

SYNTAX = Dialect(
    language=KOTLIN,
    variable="val",
    new="",
    end="",
    map="mapOf<String, String>({pairs})",
    pair="{name} to {value}",
)

ANDROID = "// On Android, pass the bytes of the model instead of its path: assets.open(NAME).readBytes()"


def write(job: Job) -> str:
    """Return the code."""
    return f"{ANDROID}\n{write_code(job, SYNTAX)}"


TARGET = Target(name="kotlin", summary="Kotlin code for ai.onnxruntime, also on Android", write=write, comment="//")
