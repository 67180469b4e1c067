"""Reads the options that a program passed to ONNX Runtime, whatever its language.

At log severity 0, ONNX Runtime logs the options of each new session to stderr.
"""

from __future__ import annotations

import re
from typing import Any

LEVELS = {
    "0": "ORT_DISABLE_ALL",
    "1": "ORT_ENABLE_BASIC",
    "2": "ORT_ENABLE_EXTENDED",
    "3": "ORT_ENABLE_LAYOUT",
    "4": "ORT_ENABLE_ALL",
}
"""Optimization levels by their numbers in the log, which are not those of the API."""

MODES = {"0": "ORT_SEQUENTIAL", "1": "ORT_PARALLEL"}

SWITCHES = ("enable_mem_pattern", "enable_cpu_mem_arena", "use_deterministic_compute", "use_per_session_threads")

_SESSION = re.compile(r"Session Options \{(?P<options>.*?)config_options: \{(?P<entries>.*?)\}\s*\}", re.DOTALL)
_POOL = re.compile(r"(?P<pool>intra|inter)_op_param:\s*OrtThreadPoolParams \{ thread_pool_size: (?P<threads>-?\d+)")


def read_sessions(log: str) -> list[dict[str, Any]]:
    """Return the options of each session, by their names in a config. Entries are strings."""
    return [_read_session(found["options"], found["entries"]) for found in _SESSION.finditer(log)]


def _read_session(options: str, entries: str) -> dict[str, Any]:
    def value(name: str) -> str:
        found = re.search(rf"\b{name}:\s*(\S+)", options)
        assert found, f"{name} is not in the log: {options}"
        return found[1]

    read: dict[str, Any] = {name: value(name) == "1" for name in SWITCHES}
    read["execution_mode"] = MODES[value("execution_mode")]
    read["graph_optimization_level"] = LEVELS[value("graph_optimization_level")]
    read["log_severity_level"] = int(value("session_log_severity_level"))
    for found in _POOL.finditer(options):
        read[f"{found['pool']}_op_num_threads"] = int(found["threads"])
    # Two spaces separate entries; an entry has at most one.
    for entry in filter(None, re.split(r"\s{2,}", entries.strip())):
        name, _, text = entry.partition(": ")
        read[name] = text
    return read
