"""Kotlin code for ai.onnxruntime, on the Java virtual machine and on Android, with the calls of the Java API.

Source: java/src/main/java/ai/onnxruntime of onnxruntime 1.29.
"""

from __future__ import annotations

from ortune.export.java import Dialect, write_code
from ortune.export.literals import KOTLIN
from ortune.export.target import Job, Target

SYNTAX = Dialect(
    language=KOTLIN,
    variable="val",
    new="",
    end="",
    make_map=lambda options: f"mapOf<String, String>({KOTLIN.join_pairs(options, '{name} to {value}')})",
    devices="    environment.getEpDevices().filter {{ device -> {condition} }}.take(1)",
    has_name="device.getEpName() == {name}",
    has_vendor="device.getDevice().getVendor().equals({name}, ignoreCase = true)",
)

ANDROID = "// On Android, pass the bytes of the model instead of its path: assets.open(NAME).readBytes()"


def write(job: Job) -> str:
    """Return the code."""
    return f"{ANDROID}\n{write_code(job, SYNTAX)}"


TARGET = Target(name="kotlin", summary="Kotlin code for ai.onnxruntime, also on Android", write=write, comment="//")
