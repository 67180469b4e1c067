"""Histories of searches that hold what no search wrote, through the commands that take hints from them.

Each ends with a result: a line that cannot be used is skipped, and no setting outside the own search space is tried.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortune
from tests.conftest import TINY_CNN, run_ortune
from tests.test_hostile_kinds import BIDI, NESTED, Change, Document, put, put_all, take_turns
from tests.test_hostile_plans import COMMANDS_OF_LOGS, FORMATS, IN_CI, SHELL, TERMINAL, TRAVERSAL, check_end

EVERY_TEXT = (COMMANDS_OF_LOGS, TERMINAL, FORMATS, SHELL, TRAVERSAL, BIDI)


def put_config(**config: Any) -> Change:
    return put([config], "configs")


LINES: dict[str, Change] = {
    "operators without end": put({"Conv": 10**400, "Relu": 10**4000}, "traits", "ops"),
    "operators that are negative": put({"Conv": -(10**18)}, "traits", "ops"),
    "operators at their limit": put_all(1 << 53, "Conv", "Relu", "Gemm", "Add"),
    "many operators": put({f"Op{number}": 1 for number in range(100_000)}, "traits", "ops"),
    "operators that are texts": put({"Conv": "9"}, "traits", "ops"),
    "no operators": put({}, "traits", "ops"),
    "a lack of traits": lambda line: line.pop("traits"),
    "a lack of a host": lambda line: line.update(host={}),
    "a library": put_config(environment={"LD_PRELOAD": "/tmp/evil.so"}),
    "a file to write": put_config(session_options={"optimized_model_filepath": f"{TRAVERSAL}.onnx"}),
    "threads without end": put_config(session_options={"intra_op_num_threads": 10**9}),
    "names of settings": put_config(session_config=dict.fromkeys(EVERY_TEXT, "1")),
    "values of settings": put_config(session_options={"logid": COMMANDS_OF_LOGS, "execution_mode": SHELL}),
    "a plugin": put_config(providers=[["QNNExecutionProvider", {"backend_path": "/tmp/evil.so"}]]),
    "many configs": put([{"session_options": {"intra_op_num_threads": number}} for number in range(50_000)], "configs"),
    "a config that is nested": put_config(models={"m": {"session_config": {"x": "[" * 1000}}}),
    "no configs": put([], "configs"),
    "a speedup without end": put([1.7e308, 1.7e308], "speedup"),
    "a reversed speedup": put([9, 2], "speedup"),
    "a negative speedup": put([-5, -1], "speedup"),
    "a speedup of one number": put([2], "speedup"),
    "texts of inputs": put(" ".join(EVERY_TEXT), "inputs"),
    "long texts of inputs": put("x" * 1_000_000, "inputs"),
    "names of hosts": put_all(" ".join(EVERY_TEXT), "name", "platform"),
    "an unknown objective": put(["p50", SHELL], "objectives"),
    "all objectives": put(["p50"] * 10_000, "objectives"),
    "a further field": put({"command": SHELL}, "run"),
}
"""Changes of the line of a search on the same host for the same model."""

CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "no lines": lambda line: b"",
    "no text": lambda line: b"\xff\xfe\0" * 1000,
    "nesting": lambda line: line.replace(b'"configs":', b'"configs": ' + NESTED.encode() + b', "x":'),
    "not a number": lambda line: line.replace(b'"speedup":', b'"speedup": [NaN, NaN], "x":'),
    "a number without end": lambda line: line.replace(b'"width":', b'"width": ' + b"9" * 5000 + b', "x":'),
    "a field twice": lambda line: line.replace(b'"configs":', b'"configs": [], "configs":'),
    "half a line": lambda line: line[: len(line) // 2],
    "half a character": lambda line: line.replace(b'"load":"', rb'"load":"\ud800'),
    "many lines": lambda line: line * 3000,
    "a line without an end": lambda line: b'{"host":' + b" " * 5_000_000,
    "lines of another file": lambda line: b"#!/bin/sh\ntouch pwned\n" * 100,
}
"""Changes of the whole file."""


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the line that a search writes on the simulated host."""
    folder = tmp_path_factory.mktemp("history")
    run(folder, "search", "-o", "r.json", "--budget", "20s")
    line = (folder / "h.jsonl").read_bytes().strip()
    assert json.loads(line)["configs"]
    assert "an earlier search" in run(folder, "suggest")
    return line + b"\n"


def run(folder: Path, command: str, *options: str, history: str = "h.jsonl") -> str:
    environment = {**IN_CI, "ORTUNE_HISTORY": str(folder / history)}
    done = run_ortune(command, TINY_CNN, *options, cwd=folder, simulate=True, timeout=100, environment=environment)
    check_end(command, done)
    assert done.returncode in {0, 3}, done.stderr
    return done.stdout + done.stderr


COMMANDS = ("suggest", "suggest --json", "search")
"""All commands that read the history."""


def use(folder: Path, content: bytes, commands: list[str]) -> None:
    """Let commands read the history."""
    path = folder / "h.jsonl"
    path.write_bytes(content)
    for command in commands:
        if command == "search":
            run(folder, "search", "-o", "r.json", "--budget", "2s")
            config = ortune.read_record(folder / "r.json").config
            assert not config.environment
            assert not {"logid", "optimized_model_filepath"} & {*config.session_options}
            assert int(config.session_options.get("intra_op_num_threads", 0)) < 1000
        else:
            text = run(folder, *command.split())
            assert "evil" not in text
            assert "optimized_model_filepath" not in text
    assert not list(folder.glob("*pwned*"))


@pytest.mark.parametrize(("name", "commands"), take_turns(LINES, COMMANDS, 1))
def test_lines(name: str, commands: list[str], line: bytes, tmp_path: Path) -> None:
    document: Document = copy.deepcopy(json.loads(line))
    LINES[name](document)
    use(tmp_path, json.dumps(document, separators=(",", ":")).encode() + b"\n" + line, commands)


@pytest.mark.parametrize(("name", "commands"), take_turns(CONTENTS, COMMANDS, 1))
def test_contents(name: str, commands: list[str], line: bytes, tmp_path: Path) -> None:
    use(tmp_path, CONTENTS[name](line), commands)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link to itself"])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    """It has the same effect as no history."""
    path = tmp_path / "h.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "h.jsonl")
    run(tmp_path, "suggest")
