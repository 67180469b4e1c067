"""Phrases that findings are made of."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ortune.doctor.facts import ModelFacts
from ortune.model.graph import Node


def plural(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 node` or `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def list_ops(nodes: Iterable[Node], most: int = 4) -> str:
    """Return how many nodes there are of each operator, such as `3 Conv, 1 Relu`."""
    counts = Counter(node.op for node in nodes).most_common()
    listed = ", ".join(f"{number} {op}" for op, number in counts[:most])
    return f"{listed} and others" if len(counts) > most else listed


def format_bytes(n_bytes: int) -> str:
    """Return a size with a suitable unit."""
    if n_bytes < 1e6:
        return f"{n_bytes / 1e3:.0f} kB" if n_bytes >= 1e4 else f"{n_bytes} bytes"
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes >= 1e7 else f"{n_bytes / 1e6:.1f} MB"


def format_ns(ns: float) -> str:
    """Return a duration with three digits and a suitable unit."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= factor:
            value = ns / factor
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns"


def shorten(message: str, most: int = 400) -> str:
    """Return ONNX Runtime's message without its error code and source locations."""
    message = re.sub(r"/\S+\.(cc|h):\d+ .*?\) (const )?", "", message)
    message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", message).strip()
    return message if len(message) <= most else message[: most - 1] + "…"


def tool_command(
    facts: ModelFacts, module: str, suffix: str, *options: str, source: str = "", named: bool = True
) -> str:
    """Return a shell command that runs one of onnxruntime's tools and writes a new model next to the old one.

    Args:
        facts: Of the model.
        module: The tool, a module below `onnxruntime`.
        suffix: Added to the stem of the new model's name.
        options: Further arguments.
        source: The tool's input file; the model if empty.
        named: Whether the tool takes its files as `--input` and `--output`, else as the last two arguments.
    """
    source = shlex.quote(source or facts.path)
    target = shlex.quote(str(Path(facts.path).with_suffix(f".{suffix}.onnx")))
    files = f"--input {source} --output {target}" if named else f"{source} {target}"
    return " ".join(["python -P -m", f"onnxruntime.{module}", *([files, *options] if named else [*options, files])])
