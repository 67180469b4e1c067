"""Files that observed programs write: what was seen of each process, and the calls of a function."""

from __future__ import annotations

import functools
import io
import json
import struct
import sys
import zlib
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

from tests.conftest import TINY_CNN
from tests.fuzz.mutation import NUMBERS, make_json_mutation, mutate_bytes
from tests.fuzz.target import Target, attempt, find_folder
from tests.observing import make_process
from tests.simulated import Scenario, simulate

if TYPE_CHECKING:
    from ortune.program.observation import Reading

NAMES = (
    "intra_op_num_threads",
    "enable_cpu_mem_arena",
    "graph_optimization_level",
    "execution_mode",
    "logid",
    "session.intra_op.allow_spinning",
    "session.dynamic_block_base",
    "session.intra_op_thread_affinities",
    "ORT_ENABLE_ALL",
    "1",
    "0",
    "CPUExecutionProvider",
    "1.23.0",
    "2.x",
    "OpenBLAS",
    "OpenCV",
    "int64",
    "string",
    "/m/a.onnx",
    "/m/b/a.onnx",
    "\x00",
    "../a",
    "sha256",
    "sessions",
    "n_calls",
    "run",
    "shape",
    "format",
    "/dev/zero",
)

SEARCHES = 16
"""Of so many inputs, one is searched with; the others are only prepared."""

SEARCH_S = 2.0


@functools.cache
def process_seeds() -> tuple[bytes, ...]:
    """Return processes with one session and with several, as programs write them."""
    shapes = [
        {"inputs": [{"name": "image", "dtype": "float32", "shape": [1, 3, 8, 8]}], "count": 5},
        {"inputs": [{"name": "image", "dtype": "", "shape": None}], "count": 1},
    ]
    samples = {
        "threshold": 0.5,
        "entries": [{"priority": 0.1, "offset_ns": 3, "n_bytes": 12, "file": "7-1.npz"}],
        "n_left_out": 1,
    }
    own = {
        "options": {"intra_op_num_threads": 2, "enable_cpu_mem_arena": False, "session.dynamic_block_base": "4"},
        "requested": ["CPUExecutionProvider"],
        "providers": ["CPUExecutionProvider"],
        "shapes": shapes,
    }
    one = make_process(onnxruntime="1.23.0", session=own)
    (session,) = one["sessions"]
    function = {"name": "__main__:work", "found": True, "n_calls": 3}
    several = make_process(libraries=["OpenBLAS", "OpenCV"], function=function, session={**own, "samples": samples})
    several["sessions"].append({**session, "path": "/m/b.onnx", "sha256": "1" * 64, "total_ns": 30, "record": "a.json"})
    several["sessions"].append({**session, "path": "", "model": "9 bytes", "sha256": "2" * 64, "reason": "no record"})
    return tuple(json.dumps(document).encode() for document in (one, several))


def make_folder(name: str, data: bytes) -> Path:
    """Return the folder of a program that wrote one file."""
    folder = find_folder() / "observed"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


def run_process(data: bytes) -> None:
    """Read the file of a process, show it, and tune the program."""
    from ortune.program.observation import group_sessions, name_models, read_processes

    folder = make_folder("process-7.json", data)
    reading = read_processes(folder)
    assert reading.processes or reading.faults
    if not reading.processes:
        return
    groups = group_sessions(reading.processes)
    assert name_models({key: group[0][1] for key, group in groups.items()}).keys() == groups.keys()
    _show(folder)
    _tune(reading, is_searched=zlib.crc32(data) % SEARCHES == 0)


def _show(folder: Path) -> None:
    """Print what `ortune inspect` prints, as text and as JSON."""
    from ortune.cli.output import encode_json
    from ortune.console.inspect import show_observation
    from ortune.console.safe_console import SafeConsole
    from ortune.program.inspect import explain_lack, summarize
    from ortune.program.run import EndedRun
    from ortune.requests import InspectRequest

    observation = summarize(
        folder, EndedRun(status=0, wall_ns=1, interrupted=False), InspectRequest(command=("python", "app.py"))
    )
    show_observation(SafeConsole(file=io.StringIO(), width=100), observation, explain_lack(observation))
    encode_json(observation)


def _tune(reading: Reading, *, is_searched: bool) -> None:
    """Do what a search does with a program that was observed. Its models are read as one that exists."""
    from ortune.console.program import show_program
    from ortune.console.safe_console import SafeConsole
    from ortune.options import make_request
    from ortune.program.identity import describe_program_identity
    from ortune.program.prepare import ObservedRun, observe_program, prepare_program
    from ortune.program.search import describe_inputs, search_program
    from ortune.program.space import resolve
    from ortune.record.files import read_records
    from ortune.replaceable import replaced
    from ortune.requests import ProgramSearchRequest

    path = find_folder() / "tuned.json"
    path.unlink(missing_ok=True)
    values = {"command": (sys.executable,), "output": path, "budget": SEARCH_S}
    known = _read_tiny()
    with (
        simulate(Scenario(n_cores=4)),
        replaced({observe_program: lambda *_: ObservedRun(reading=reading)}),
        mock.patch("ortune.program.prepare.read_model", lambda path: known),
    ):
        prepared = attempt(prepare_program, make_request(ProgramSearchRequest, values))
        if prepared is None:
            return
        show_program(SafeConsole(file=io.StringIO(), width=100), prepared)
        describe_program_identity(prepared)
        for model in prepared.models:
            describe_inputs(model)
            for candidate in prepared.space.candidates[:3]:
                resolve(candidate.config, model)
        if is_searched and attempt(search_program, prepared):
            assert attempt(read_records, path), "a record that cannot be read again"


@functools.cache
def _read_tiny() -> object:
    from ortune.model import read_model

    return read_model(TINY_CNN)


@functools.cache
def calls_seeds() -> tuple[bytes, ...]:
    """Return calls, one after the other, and calls that overlap."""
    ordered = [(1000 * number, 1000 * number + 500) for number in range(1, 40)]
    overlapping = [(start, end + 3000) for start, end in ordered]
    return tuple(b"".join(struct.pack("<qq", *call) for call in calls) for calls in (ordered, overlapping))


def run_calls(data: bytes) -> None:
    """Read the calls that a process logged, while it logs them and at its end."""
    import numpy as np

    from ortune.program.gate import CallLog
    from ortune.program.runner import drop_first

    folder = make_folder("calls-7.bin", data[: len(data) // 2])
    log = CallLog(folder)
    first = log.read()
    make_folder("calls-7.bin", data)
    assert log.count_new() >= 0
    calls = np.concatenate([first, log.read()])
    assert log.count_new() == 0
    if len(calls):
        durations = drop_first(calls)
        assert (durations > 0).all()
        assert 0 < durations.mean() < 1e18


def mutate_calls(data: bytes, random: Random) -> bytes:
    """Return calls with other numbers, or with other changes."""
    if random.random() < 0.5:
        return mutate_bytes(data, random, others=calls_seeds())
    content = bytearray(data)
    for _ in range(1 + int(random.random() * 4)):
        place = 8 * int(random.random() * (len(content) // 8))
        number = random.choice(NUMBERS)
        value = int(number) if number.isascii() and number.lstrip("-").isdigit() and len(number) < 30 else 0
        content[place : place + 8] = (value % (1 << 64)).to_bytes(8, "little")
    return bytes(content)


@functools.cache
def sessions_seeds() -> tuple[bytes, ...]:
    """Return what is noted of sessions: that all have their settings, or that one has not."""
    tuned = {"model": "/m/a.onnx", "has_rule": True, "is_tuned": True, "reason": ""}
    missed = {**tuned, "is_tuned": False, "reason": "ortune failed"}
    return tuple(
        b"".join(json.dumps(line).encode() + b"\n" for line in lines) for lines in ([tuned] * 2, [tuned, missed])
    )


def run_sessions(data: bytes) -> None:
    """Read what is noted of sessions."""
    from ortune.program.applied import find_untuned

    reason = find_untuned(make_folder("sessions.jsonl", data))
    assert reason or data.count(b"true") >= 1


SESSIONS = Target(run_sessions, sessions_seeds, lambda data, random: mutate_bytes(data, random, (), sessions_seeds()))
PROCESSES = Target(run_process, process_seeds, make_json_mutation(lambda: NAMES))
CALLS = Target(run_calls, calls_seeds, mutate_calls)
