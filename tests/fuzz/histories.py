"""Histories of gates, and trials files."""

from __future__ import annotations

import functools
import gzip
import io
import json
import zlib

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.target import DATA, Target, attempt, write_input


@functools.cache
def history_seeds() -> tuple[bytes, ...]:
    entry = {
        "time": "2026-01-02T03:04:05+01:00",
        "name": "encoder",
        "decision": "pass",
        "reason": "not slower",
        "slowdowns": {"p50": {"estimate": 1.01, "low": 0.99, "high": 1.02, "confidence": 0.99}},
        "allowed": {"p50": 1.05},
        "head": "m.onnx",
        "wall_s": 12.5,
    }
    lines = [entry, {**entry, "name": "other", "decision": "error"}, {**entry, "decision": "fail"}]
    return (b"\n".join(json.dumps(line).encode() for line in lines), json.dumps(entry).encode())


def run_history(data: bytes) -> None:
    """Read a history of gates, show it, and make the page about it."""
    from ortune.console.report import show_history
    from ortune.console.safe_console import SafeConsole
    from ortune.gates.reporters.history import read_history
    from ortune.report.history import make_page
    from ortune.report.write import render_page

    path = write_input("h.jsonl", data)
    if found := attempt(read_history, path):
        show_history(SafeConsole(file=io.StringIO(), width=120), found[0])
        render_page(make_page(found[0], "h.jsonl"))


@functools.cache
def trials_seeds() -> tuple[bytes, ...]:
    """Return a header, two trials and a round."""
    lines = gzip.decompress((DATA / "report" / "search.trials.jsonl.gz").read_bytes()).splitlines()
    rounds = [line for line in lines if line.startswith(b'{"type":"round"')]
    return (b"\n".join((*lines[:3], rounds[0])),)


def run_trials(data: bytes) -> None:
    """Read a trials file: compressed by the target, or as it is."""

    from ortune.record.check import check_configs
    from ortune.record.trials import decode_trials, is_trials_file

    content = data if data[:1] in {b"\x1f", b""} or zlib.crc32(data) % 8 == 0 else gzip.compress(data, 1)
    is_trials_file(content)
    try:
        trials = decode_trials(content)
    except ValueError:
        return
    attempt(check_configs, trials, "t.jsonl.gz", trust=False)


HISTORIES = Target(run_history, history_seeds, lambda data, random: mutate_bytes(data, random, (), history_seeds()))
TRIALS = Target(run_trials, trials_seeds, lambda data, random: mutate_bytes(data, random, (), trials_seeds()))
