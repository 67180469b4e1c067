"""Storages of fleets that hold what no node of ortune wrote, through every command that uses a storage.

A journal file may come from anyone who can write to it. Each command ends with a result or a message, never with a
traceback, and in a time that does not depend on what the storage says.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import optuna
import pytest

import ortune
from ortune import Config
from ortune.fleet.status import read_status
from ortune.storage import (
    Location,
    Measurement,
    NodeState,
    SharedResult,
    SharedRound,
    SharedSpeedup,
    SharedStudy,
    open_storage,
    parse_location,
)
from ortune.storage.identity import name_study
from ortune.storage.journal import hold_lock
from ortune.storage.outbox import Message, Outbox
from tests.conftest import TINY_CNN, run_ortune
from tests.metrics import make_metrics, make_model, make_rollout, write_metrics
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_fleet_storage import make_proof, prove
from tests.test_hostile_kinds import BIDI, take_turns
from tests.test_hostile_plans import COMMANDS_OF_LOGS, FORMATS, IN_CI, SHELL, TERMINAL, TRAVERSAL, check_end

ALL = (BIDI, COMMANDS_OF_LOGS, TERMINAL, FORMATS, SHELL, TRAVERSAL, "", "NaN", "x" * 900)
TIME = "2026-06-29T12:00:00+00:00"
CATEGORICAL = json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": ["a", "b"]}})
WHOLE = json.dumps({"name": "IntDistribution", "attributes": {"low": 0, "high": 9, "log": False, "step": 1}})

Line = dict[str, Any]


def trial(**changes: Any) -> Line:
    return {"op_code": 4, "study_id": 0, "datetime_start": TIME, "datetime_complete": TIME, "state": 1, **changes}


LINES: dict[str, Line] = {
    "a study without a name": {"op_code": 0, "directions": [1]},
    "a study without directions": {"op_code": 0, "study_name": "x"},
    "a study with a direction that is not one": {"op_code": 0, "study_name": "x", "directions": [7]},
    "a study whose directions are a text": {"op_code": 0, "study_name": "x", "directions": "1"},
    "the end of no study": {"op_code": 1},
    "the end of a study that is a list": {"op_code": 1, "study_id": [0]},
    "an attribute of no study": {"op_code": 2, "user_attr": {"a": "b"}},
    "an attribute of a study that is an object": {"op_code": 2, "study_id": {}, "user_attr": {"a": "b"}},
    "no attribute": {"op_code": 2, "study_id": 0},
    "an attribute that is empty": {"op_code": 2, "study_id": 0, "user_attr": {}},
    "two attributes": {"op_code": 3, "study_id": 0, "system_attr": {"a": 1, "b": 2}},
    "a trial without a study": {"op_code": 4, "datetime_start": TIME},
    "a trial without a beginning": {"op_code": 4, "study_id": 0},
    "a beginning that is no time": trial(datetime_start="soon"),
    "a beginning before all times": trial(datetime_start="0001-01-01T00:00:00+23:59"),
    "an end after all times": trial(datetime_complete="9999-12-31T23:59:59.999999-23:59"),
    "an end that is null": trial(datetime_complete=None),
    "a state that is not one": trial(state=99),
    "a state that is a text": trial(state="COMPLETE"),
    "a value and values": trial(value=1.0, values=[1.0]),
    "a parameter without a distribution": trial(params={"x": 0}),
    "a choice that is not one": trial(params={"x": 7}, distributions={"x": CATEGORICAL}),
    "a choice without end": trial(params={"x": float("inf")}, distributions={"x": WHOLE}),
    "a choice that is not a number": trial(params={"x": float("nan")}, distributions={"x": CATEGORICAL}),
    "a distribution that is code": trial(params={"x": 0}, distributions={"x": '{"name": "__import__"}'}),
    "a distribution that is nested": trial(params={"x": 0}, distributions={"x": "[" * 50_000}),
    "a distribution without limits": trial(distributions={"x": '{"name": "FloatDistribution", "attributes": {}}'}),
    "a step that is not one": trial(intermediate_values={"first": 0.5}),
    "a parameter of no trial": {"op_code": 5, "param_name": "x", "param_value_internal": 0, "distribution": WHOLE},
    "a trial that is an object": {"op_code": 6, "trial_id": {}, "state": 1, "values": None, "datetime_complete": TIME},
    "an attribute of no trial": {"op_code": 8, "user_attr": {"a": "b"}},
    "an operation that is not one": {"op_code": 999},
    "a negative operation": {"op_code": -1},
    "an operation without end": {"op_code": 10**30},
    "an operation that is a text": {"op_code": "0"},
    "an operation that is null": {"op_code": None},
}
"""Legal JSON that Optuna does not write, and fails to read."""

IGNORED: dict[str, Line] = {
    "a study with no direction": {"op_code": 0, "study_name": "x", "directions": []},
    "a study whose name is a number": {"op_code": 0, "study_name": 1, "directions": [1]},
    "attributes in a list": {"op_code": 3, "study_id": 0, "system_attr": [["a", 1]]},
    "a value that is a text": trial(value="0.5"),
    "values that are texts": trial(values=["0.5"]),
    "a trial that ends at no time": {"op_code": 6, "trial_id": 0, "state": 1, "values": [1.0]},
    "a trial that begins at no time": {"op_code": 6, "trial_id": 0, "state": 0, "values": None},
    "a trial without values": {"op_code": 6, "trial_id": 0, "state": 1, "datetime_complete": TIME},
    "a value at no step": {"op_code": 7, "trial_id": 0, "intermediate_value": 1.0},
    "a negative trial": {"op_code": 9, "trial_id": -1, "system_attr": {"a": 1}},
    "an operation that is true": {"op_code": True, "study_id": 0},
    "an operation that is a fraction": {"op_code": 1.0, "study_id": 0},
}
"""Legal JSON that Optuna does not write, and reads: at most, a study is removed."""

DAMAGED: dict[str, bytes] = {
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "no object": b"[0]",
    "no operation": b'{"study_id": 0}',
    "nothing": b"",
    "nesting": b'{"op_code": 2, "x": ' + b"[" * 100_000,
    "a number without end": b'{"op_code": 0, "x": ' + b"9" * 5000 + b"}",
    "null characters": b'{"op_code": 0}\0',
}
"""What is no line at all."""


@pytest.fixture(scope="module")
def record_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path_factory.mktemp("record") / "r.json").read_bytes()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Return the lines of a journal with a verified record, a search, and metrics."""
    folder = tmp_path_factory.mktemp("fleet")
    location = locate(folder)
    record = make_local_record(TINY_CNN, ONE_THREAD)
    prove(location, record, *[make_proof(f"n{number}", 1.3 + number / 50) for number in range(3)])
    study = SharedStudy(location, {"model_name": "m.onnx", "host_name": "Zen 9"})
    study.announce(NodeState(node="n7", worker="w", stage="racing", n_measured=4, sigma=0.02))
    study.add(make_measurement())
    write_metrics(folder / "metrics", *make_rollout())
    assert run(folder, "send").returncode == 0
    return (folder / "fleet.journal").read_bytes().splitlines(keepends=True)


def locate(folder: Path) -> Location:
    return parse_location(str(folder / "fleet.journal"), "storage")


def make_measurement(**changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "id": "w:1",
        "node": "n7",
        "worker": "w",
        "config": Config(session_options={"intra_op_num_threads": 1}),
        "launch": 0,
        "rounds": (SharedRound(log_ratios=(-0.5,)),),
    }
    return Measurement(**{**values, **changes})


def encode_line(line: Line) -> bytes:
    return json.dumps({"worker_id": "w", **line}).encode() + b"\n"


COMMANDS: dict[str, tuple[Any, ...]] = {
    "status": ("fleet", "status", "--storage", "fleet.journal"),
    "status as JSON": ("fleet", "status", "--storage", "fleet.journal", "--json"),
    "collect": ("fleet", "collect", "--storage", "fleet.journal", "-o", "b.json"),
    "collect to stdout": ("fleet", "collect", "--storage", "fleet.journal", "-o", "-"),
    "expire": ("fleet", "expire", TINY_CNN, "--storage", "fleet.journal", "--older-than", "1d"),
    "compare": ("fleet", "compare", "--storage", "fleet.journal"),
    "send": ("fleet", "send", "metrics", "--storage", "fleet.journal"),
    "gate": (
        "gate",
        f"{TINY_CNN}@storage",
        f"{TINY_CNN}@default",
        "--storage",
        "fleet.journal",
        "--budget",
        "2s",
    ),
    "verify": ("apply", "r.json", TINY_CNN, "--verify", "--update", "--storage", "fleet.journal", "--budget", "2s"),
    "search": ("search", TINY_CNN, "--no-history", "-o", "s.json", "--storage", "fleet.journal", "--budget", "2s"),
    "remove": ("fleet", "expire", TINY_CNN, "--storage", "fleet.journal", "--older-than", "1d", "--remove"),
}
"""All commands that use a storage, those that write to it last."""


def prepare(folder: Path, record_bytes: bytes) -> Path:
    """Return a folder for commands, in another one where nothing else may be written."""
    work = folder / "work"
    work.mkdir()
    (work / "r.json").write_bytes(record_bytes)
    write_metrics(work / "metrics", *make_rollout())
    return work


def run(folder: Path, command: str) -> Any:
    """Run a command, and check how it ended."""
    done = run_ortune(*COMMANDS[command], cwd=folder, simulate=True, timeout=100, environment=IN_CI)
    check_end(command, done)
    return done


class TestLines:
    """A line that no host could read is named by all, with what to do."""

    def read(self, folder: Path, content: list[bytes]) -> str:
        """Return the message of a command for this journal."""
        (folder / "fleet.journal").write_bytes(b"".join(content))
        done = run(folder, "status")
        assert done.returncode == 2, done.stdout
        assert len(done.stderr) < 1000
        return " ".join(done.stderr.split())

    @pytest.mark.parametrize("name", LINES)
    def test_a_legal_line_that_is_not_of_optuna(self, name: str, lines: list[bytes], tmp_path: Path) -> None:
        message = self.read(tmp_path, [*lines[:3], encode_line(LINES[name]), *lines[3:]])
        assert "fleet.journal: line 4 is not one that Optuna can read. If a later version" in message
        assert "restore the file, or remove this line" in message

    @pytest.mark.parametrize("name", IGNORED)
    def test_a_line_that_does_no_harm(self, name: str, lines: list[bytes], tmp_path: Path) -> None:
        content = b"".join([*lines, encode_line(IGNORED[name])])
        (tmp_path / "fleet.journal").write_bytes(content)
        done = run(tmp_path, "status")
        assert done.returncode == 0, done.stderr
        assert "m.onnx" in done.stdout
        SharedStudy(locate(tmp_path), {"model_name": "m.onnx", "host_name": "Zen 9"}).add(make_measurement(id="w:2"))
        assert (tmp_path / "fleet.journal").read_bytes().startswith(content)

    def test_a_worker_that_is_missing(self, lines: list[bytes], tmp_path: Path) -> None:
        message = self.read(tmp_path, [*lines, json.dumps(trial()).encode() + b"\n"])
        assert f"line {len(lines) + 1} is not one that Optuna can read" in message

    @pytest.mark.parametrize("name", DAMAGED)
    def test_what_is_no_line(self, name: str, lines: list[bytes], tmp_path: Path) -> None:
        message = self.read(tmp_path, [*lines[:3], DAMAGED[name], b"\n", *lines[3:]])
        assert "line 4 is damaged, and others follow it. Restore the file, or remove this line" in message

    def test_values_that_are_nested(self, lines: list[bytes], tmp_path: Path) -> None:
        """Python reads them, and Optuna cannot copy them."""
        nested = json.loads("[" * 600 + "]" * 600)
        message = self.read(tmp_path, [*lines, encode_line({"op_code": 2, "study_id": 0, "user_attr": {"x": nested}})])
        assert "fleet.journal: it holds a value that is nested too deeply" in message

    def test_a_file_without_end(self, lines: list[bytes], tmp_path: Path) -> None:
        (tmp_path / "fleet.journal").write_bytes(b"".join(lines))
        os.truncate(tmp_path / "fleet.journal", 1 << 40)
        done = run(tmp_path, "status")
        assert done.returncode == 2
        assert "the file has more than 1024 MiB. Start again with a new one" in " ".join(done.stderr.split())

    @pytest.mark.parametrize("command", COMMANDS)
    def test_through_commands(self, command: str, lines: list[bytes], record_bytes: bytes, tmp_path: Path) -> None:
        folder = prepare(tmp_path, record_bytes)
        for hostile in (encode_line(LINES["no attribute"]), b"{\n"):
            content = b"".join([*lines[:3], hostile, *lines[3:]])
            (folder / "fleet.journal").write_bytes(content)
            done = run(folder, command)
            assert done.returncode == 2, done.stdout
            assert "line 4 is" in " ".join(done.stderr.split())
            assert (folder / "fleet.journal").read_bytes() == content

    def test_a_line_that_appears_later(self, lines: list[bytes], tmp_path: Path) -> None:
        """What is written meanwhile is neither lost nor cut off."""
        path = tmp_path / "fleet.journal"
        path.write_bytes(b"".join(lines))
        study = SharedStudy(locate(tmp_path), {"model_name": "m.onnx", "host_name": "Zen 9"})
        with path.open("ab") as file:
            file.write(encode_line(LINES["no attribute"]))
        number = path.read_bytes().count(b"\n")
        for _ in range(2):
            with pytest.raises(ortune.OrtuneError, match=f"line {number} is not one"):
                study.add(make_measurement(id="w:2"))
        content = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(content[: number - 1] + content[number:]))
        assert SharedStudy(locate(tmp_path), study.identity).has("w:2")


def write_texts(study: SharedStudy, location: Location, record: bytes) -> None:
    for number, text in enumerate(ALL):
        other = SharedStudy(location, {"model_name": text, "host_name": text, "load": text, "number": str(number)})
        node = text[:128] or "n"
        other.announce(NodeState(node=node, worker=f"w{number}", stage="screening", unfit=text, host=text, kernel=text))
        other.write(f"proof:{number}", make_proof(node, verdict=text[:128] or "v", started=text[:64]))


def write_results(study: SharedStudy, location: Location, record: bytes) -> None:
    for number, content in enumerate((record, b"null", b"[]", b'{"schema": 99}', b'{"schema": 1, "records": []}')):
        other = SharedStudy(location, {"kind": f"{number}"})
        result = SharedResult(
            node=BIDI,
            worker=TERMINAL,
            number=number,
            verdict=COMMANDS_OF_LOGS[:128],
            config=Config(environment={"LD_PRELOAD": "/tmp/evil.so"}),
            front=(Config(session_options={"__class__": SHELL}),) * 16,
            digest="ab" * 32,
            record=msgspec.Raw(content),
            unfit=dict.fromkeys((BIDI, TRAVERSAL), FORMATS),
        )
        other.write("result:w", result)
        for place, (estimate, low, high, confidence, n) in enumerate(
            ((1.0, 1.0, 1.0, 1 - 2**-53, 1 << 53), (1e9, 0.0, 1e9, 0.5, 2), (5e-324, 5e-324, 5e-324, 1e-300, 0))
        ):
            speedup = SharedSpeedup(estimate=estimate, low=low, high=high, confidence=confidence, n_launches=n)
            proof = make_proof(
                f"n{place}", digest="ab" * 32, worker=f"w{place}", speedup=speedup, started=ALL[place][:64]
            )
            other.write(f"proof:{place}", proof)
            again = msgspec.structs.replace(proof, node=f"m{place}", worker=f"v{place}")
            other.write(f"proof:v{place}", again)


def write_measurements(study: SharedStudy, location: Location, record: bytes) -> None:
    configs = [
        Config(environment={"LD_PRELOAD": "/tmp/evil.so"}),
        Config(session_options={"__class__": SHELL, "intra_op_num_threads": 10**9}),
        Config(session_config={COMMANDS_OF_LOGS: TERMINAL}),
        Config(providers=((f"{BIDI}ExecutionProvider", {}),)),
    ]
    for number, config in enumerate(configs):
        rounds = tuple(SharedRound(log_ratios=(-20.0 + place % 2 * 40,)) for place in range(256))
        study.add(make_measurement(id=f"{BIDI}{number}", config=config, rounds=rounds, spent_s=1e9))
    study.announce(NodeState(node=BIDI, worker="v", number=1 << 53, beat=1 << 53, silent_s=1e9, leased=("x",) * 64))


def write_attributes(study: SharedStudy, location: Location, record: bytes) -> None:
    nested = json.loads("[" * 200 + "]" * 200)
    for value in (3, None, "{", "zlib:", "x" * 60_000, nested, {"node": "a"}, [1] * 10_000):
        for name in ("node:x", "proof:x", "result:x", "race:x", "process:x", "other"):
            study._study.set_user_attr(name, value)


def write_raw(*lines: Line) -> Callable[[SharedStudy, Location, bytes], None]:
    def change(study: SharedStudy, location: Location, record: bytes) -> None:
        with Path(location.url).open("ab") as file:
            file.write(b"".join(map(encode_line, lines)))

    return change


def identify(identity: Any, name: str = "ortune1/x/0") -> tuple[Line, ...]:
    """Return the lines of a further study. The journal has four already."""
    return (
        {"op_code": 0, "study_name": name, "directions": [1]},
        *({"op_code": 2, "study_id": number, "user_attr": {"identity": identity}} for number in range(2, 9)),
    )


METRICS = {"kind": "metrics of canaries", "config": "0123456789ab", "model_name": "canary"}
GENUINE = {**METRICS, "config": "../x", "model_name": TRAVERSAL}
"""What identifies the metrics of a rollout, and those of one that cannot be."""


def write_metrics_of_others(study: SharedStudy, location: Location, record: bytes) -> None:
    shared = SharedStudy(location, METRICS)
    for pid, model in enumerate(
        (
            make_model([1e6] * 30, name=COMMANDS_OF_LOGS, reason=TERMINAL, sha256="b" * 64),
            make_model([1e6] * 30, n_tuned=1 << 53, n_own=1 << 53, n_failed=1 << 53),
            make_model([], total_ns=0),
        )
    ):
        process = make_metrics(pid, "canary", models=[model] * 16, wall_ns=pid, cpu_ns=1 << 62, share=1.0, host=BIDI)
        name = f"{BIDI.encode().hex()[:64]}-{pid}-{process['start_ns']}"
        shared.write_text(f"process:{name}", json.dumps(process))


ODD: dict[str, Callable[[SharedStudy, Location, bytes], None]] = {
    "texts": write_texts,
    "results": write_results,
    "measurements": write_measurements,
    "attributes": write_attributes,
    "metrics": write_metrics_of_others,
    "an identity that is not one": write_raw(*identify(3)),
    "an identity that is no JSON": write_raw(*identify("{")),
    "an identity with half a character": write_raw(*identify('{"a": "\ud800"}')),
    "an identity that is nested": write_raw(*identify("[" * 50_000)),
    "an identity of another study": write_raw(*identify('{"model_name": "other"}')),
    "a study whose name is a path": write_raw(*identify("{}", name=f"ortune1/{TRAVERSAL}")),
    "a study whose name is a command": write_raw(*identify("{}", name=f"ortune1/{COMMANDS_OF_LOGS}")),
    "a study of another kind": write_raw(*identify(json.dumps(GENUINE), name=name_study(GENUINE))),
    "a study of no direction": write_raw(
        {"op_code": 0, "study_name": name_study({"model_name": "none"}), "directions": []},
        *identify('{"model_name": "none"}'),
    ),
    "a study of many directions": write_raw(
        {"op_code": 0, "study_name": name_study({"model_name": "many"}), "directions": [0, 1, 2] * 33},
        *identify('{"model_name": "many"}'),
    ),
    "trials that no tool writes": write_raw(
        trial(study_id=1),
        trial(study_id=1, values=[float("nan"), float("inf")]),
        trial(study_id=1, value=-1e308, user_attrs={"ortune": "{"}),
        trial(study_id=1, value=1.0, user_attrs={"ortune": [1]}, system_attrs={"x": None}),
        trial(study_id=1, value="0.5", user_attrs=5),
        trial(study_id=1, values={}, user_attrs=[["ortune", "{"]]),
        {"op_code": 6, "trial_id": 0, "state": 3, "values": None, "datetime_complete": TIME},
        {"op_code": 4, "study_id": 1, "datetime_start": None, "state": 4},
    ),
    "operations on what is not there": write_raw(
        {"op_code": 1, "study_id": 99},
        {"op_code": 2, "study_id": 1 << 53, "user_attr": {"a": "b"}},
        trial(study_id=77),
        {"op_code": 7, "trial_id": 10**6, "step": 10**12, "intermediate_value": None},
        {"op_code": 10},
    ),
    "the end of all studies": write_raw(*({"op_code": 1, "study_id": number} for number in range(9))),
    "many studies": write_raw(
        *({"op_code": 0, "study_name": f"ortune1/x/{number}", "directions": [1]} for number in range(3000))
    ),
}
"""What is legal in a journal, and odd."""


@pytest.mark.parametrize(("name", "commands"), take_turns(ODD, COMMANDS, 2))
def test_odd_contents(name: str, commands: list[str], lines: list[bytes], record_bytes: bytes, tmp_path: Path) -> None:
    folder = prepare(tmp_path, record_bytes)
    path = folder / "fleet.journal"
    path.write_bytes(b"".join(lines))
    location = locate(folder)
    ODD[name](SharedStudy(location, {"model_name": "m.onnx", "host_name": "Zen 9"}), location, record_bytes)
    content = path.read_bytes()
    for command in commands:
        path.write_bytes(content)
        write_record(folder, record_bytes)
        run(folder, command)
        if command in {"status", "status as JSON", "collect", "compare", "expire", "gate"}:
            assert path.read_bytes() == content, command  # reading writes nothing
    assert [entry.name for entry in tmp_path.iterdir()] == ["work"]
    assert not (folder / "pwned").exists()
    if (bundle := folder / "b.json").exists():
        assert "LD_PRELOAD" not in bundle.read_text()


def write_record(folder: Path, content: bytes) -> None:
    (folder / "r.json").write_bytes(content)


def test_a_storage_is_read_once_for_all_studies(
    lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a study for each model and class of hosts, reading would otherwise take the square of the time."""
    path = tmp_path / "fleet.journal"
    path.write_bytes(b"".join(lines))
    for number in range(5):
        SharedStudy(locate(tmp_path), {"model_name": f"{number}"})
    opened: list[Location] = []

    def open_counted(location: Location) -> optuna.storages.BaseStorage:
        opened.append(location)
        return open_storage(location)

    monkeypatch.setattr("ortune.storage.connect.open_storage", open_counted)
    monkeypatch.setattr("ortune.storage.shared_study.open_storage", open_counted)
    content = path.read_bytes()
    assert len(read_status(locate(tmp_path))) == 7
    assert len(opened) == 1
    assert path.read_bytes() == content


def test_a_trial_that_cannot_be_read_does_not_hide_other_studies(tmp_path: Path) -> None:
    """Optuna fails at a parameter whose distribution is none, and would take all studies with it."""
    location = Location(kind="database", url=f"sqlite:///{tmp_path}/x.db", title="x.db")
    for model in ("m", "n"):
        SharedStudy(location, {"model_name": model}).add(make_measurement())
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database, database:
        database.execute("INSERT INTO trial_params VALUES (9, 1, 'x', 0, '{}')")
    with pytest.raises((KeyError, ValueError, TypeError)):
        optuna.get_all_study_summaries(open_storage(location))
    unread, sound = read_status(location)
    assert (unread.model, unread.n_measurements) == ("m", 0)
    assert unread.unread == "it holds a trial that Optuna cannot read"
    assert (sound.model, sound.n_measurements, sound.unread) == ("n", 1, "")


def test_models_without_end_are_not_compared(tmp_path: Path) -> None:
    """Each model is compared over all processes."""
    processes = [
        make_metrics(pid, models=[make_model([1e6], sha256=f"{pid * 16 + n:064x}") for n in range(16)])
        for pid in range(1, 18)
    ]
    write_metrics(tmp_path / "metrics", *processes)
    done = run_ortune("fleet", "compare", "metrics", cwd=tmp_path)
    assert done.returncode == 2
    assert "The metrics are of 272 models, and at most 256 can be compared" in " ".join(done.stderr.split())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
class TestFiles:
    """What lies in the place of a journal may have come with the folder."""

    @pytest.mark.parametrize("kind", ["a named pipe", "a device", "a folder", "a socket"])
    @pytest.mark.parametrize("command", ["status", "search", "verify"])
    def test_what_is_no_file(
        self, kind: str, command: str, record_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = prepare(tmp_path, record_bytes)
        monkeypatch.chdir(folder)  # the name of a socket must be short
        path = Path("fleet.journal")
        if kind == "a named pipe":
            os.mkfifo(path)
        elif kind == "a device":
            path.symlink_to("/dev/zero")
        elif kind == "a folder":
            path.mkdir()
        else:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        done = run(folder, command)
        assert done.returncode == 2
        assert f"this is {kind}, and a journal is a file" in " ".join(done.stderr.split())
        assert not (folder / "s.json").exists()

    @pytest.mark.parametrize("command", ["status", "search"])
    def test_a_link_to_itself(self, command: str, record_bytes: bytes, tmp_path: Path) -> None:
        folder = prepare(tmp_path, record_bytes)
        (folder / "fleet.journal").symlink_to("fleet.journal")
        assert run(folder, command).returncode == 2

    @pytest.mark.parametrize("kind", ["link to nowhere", "link", "file", "folder"])
    def test_a_lock_that_nobody_holds(
        self, kind: str, lines: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Optuna waits forever for one that leads nowhere: one of a host with other paths, or one that came along."""
        monkeypatch.setattr("ortune.storage.journal.LOCK_GRACE_S", 0.05)
        path = tmp_path / "fleet.journal"
        path.write_bytes(b"".join(lines))
        lock = tmp_path / "fleet.journal.lock"
        if kind == "file":
            lock.touch()
        elif kind == "folder":
            lock.mkdir()
        else:
            lock.symlink_to(path if kind == "link" else "/nowhere/fleet.journal")
        SharedStudy(locate(tmp_path), {"model_name": "new"})
        assert not lock.is_symlink() and not lock.exists()

    def test_a_lock_that_others_hold_in_turn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is theirs as long as it changes."""
        monkeypatch.setattr("ortune.storage.journal.LOCK_GRACE_S", 0.2)
        lock = tmp_path / "fleet.journal.lock"
        n_left = 20

        def change(pause_s: float) -> None:
            nonlocal n_left
            n_left -= 1
            lock.unlink()
            if n_left:
                lock.symlink_to(f"/nowhere/{n_left}")

        lock.symlink_to("/nowhere")
        monkeypatch.setattr("ortune.storage.journal.time.sleep", change)
        SharedStudy(locate(tmp_path), {"model_name": "new"})
        assert n_left == 0
        assert not lock.is_symlink()


def test_an_operation_of_a_later_version(tmp_path: Path) -> None:
    SharedStudy(locate(tmp_path), {"model_name": "new"})
    with (tmp_path / "fleet.journal").open("a") as file:
        file.write('{"op_code": 11, "worker_id": "x"}\n')
    done = run_ortune("fleet", "status", "--storage", "fleet.journal", cwd=tmp_path)
    assert done.returncode == 2
    text = " ".join(done.stderr.split())
    assert "line 3 is not one that Optuna can read. If a later version of Optuna wrote it, update Optuna here." in text


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_a_lock_that_others_took_is_not_removed(tmp_path: Path) -> None:
    """A process that was stopped while it wrote finds the lock of another one."""
    path = tmp_path / "fleet.journal"
    lock = path.with_name(f"{path.name}.lock")
    path.touch()
    with hold_lock(path):
        lock.unlink()
        lock.symlink_to(path)
        os.utime(lock, ns=(1, 1), follow_symlinks=False)
    assert lock.is_symlink()


class TestOutbox:
    """What was not sent yet lies next to the record, and may have come with the folder."""

    def plant(self, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch, study: str = "any") -> Path:
        """Leave what another user has not sent."""
        path = folder / "s.outbox.jsonl"
        with monkeypatch.context() as patched:
            patched.setenv("XDG_STATE_HOME", str(home))
            box = Outbox(path, study)
            box.add(Message(study=study, name="node:n1", text="{}"))
            box._release()
        return path

    def test_that_of_someone_else_is_not_sent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "work"
        folder.mkdir()
        path = self.plant(folder, tmp_path / "other", monkeypatch)
        content = path.read_bytes()
        done = run(folder, "search")
        assert done.returncode in {0, 1, 3}, done.stderr
        text = " ".join(done.stdout.split())
        assert "s.outbox.jsonl is not signed with the key of this user on this host, so it is not sent" in text
        assert path.read_bytes() == content
        assert b"node:n1" not in (folder / "fleet.journal").read_bytes()

    def test_it_is_not_sent_to_the_study_that_it_names(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.plant(tmp_path, tmp_path / "other", monkeypatch, "own")
        box = Outbox(path, "own")
        assert box.is_foreign
        assert box.messages == []
        box.add(Message(study="own", name="node:me", text="{}"))
        assert len(box.first()) == 1
        box.close()
        self.plant(tmp_path, tmp_path / "other", monkeypatch, "own")  # its owner can go on

    def test_a_line_that_was_added(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        own = Outbox(tmp_path / "s.outbox.jsonl", "own")
        own.add(Message(study="own", name="node:me", text="{}"))
        own._release()
        other = tmp_path / "other"
        other.mkdir()
        line = self.plant(other, tmp_path / "home", monkeypatch, "own").read_bytes()
        with (tmp_path / "s.outbox.jsonl").open("ab") as file:
            file.write(line)
        assert Outbox(tmp_path / "s.outbox.jsonl", "own").is_foreign

    def test_without_a_folder_for_the_secret_each_process_has_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # no folder can be made in it
        box = Outbox(tmp_path / "s.outbox.jsonl", "own")
        box.add(Message(study="own", name="node:me", text="{}"))
        assert box.first()
        box._release()
        assert Outbox(tmp_path / "s.outbox.jsonl", "own").is_foreign

    def test_the_secret_is_private(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
        Outbox(tmp_path / "s.outbox.jsonl", "own").close()
        (key,) = (tmp_path / "home").rglob("outbox.key")
        assert key.stat().st_mode & 0o077 == 0
        assert len(key.read_bytes()) == 32

    @pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")
    @pytest.mark.parametrize("target", ["victim", "gone", "/dev/zero"])
    def test_a_link_is_not_followed(self, target: str, tmp_path: Path) -> None:
        folder = tmp_path / "work"
        folder.mkdir()
        (tmp_path / "victim").write_text("a file without a line break")
        (folder / "s.outbox.jsonl").symlink_to(tmp_path / target if target != "/dev/zero" else target)
        done = run(folder, "search")
        assert done.returncode == 2
        assert "s.outbox.jsonl: cannot be used: it is a link" in " ".join(done.stderr.split())
        assert (tmp_path / "victim").read_text() == "a file without a line break"
        assert not (tmp_path / "gone").exists()

    @pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")
    def test_a_pipe_is_not_used(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "s.outbox.jsonl")
        done = run(tmp_path, "search")
        assert done.returncode == 2
        assert "it is not a regular file" in " ".join(done.stderr.split())
