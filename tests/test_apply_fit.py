"""Records that do not fit the calls of a program, and programs without a record, under `ortune apply`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import Config, Load, Record
from ortune.apply.inside.fit import MOST_CALLS, FitCheck
from ortune.apply.inside.processes import Processes
from ortune.apply.plan import describe_measured
from ortune.workload.program import ProgramRun
from ortune.workload.workload import InputData
from tests.applying import TUNED, run
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write

HEAD = f"""
import numpy as np, onnxruntime as ort, threading
session = ort.InferenceSession({str(TINY_ENCODER)!r})
def call(length, batch=1):
    return session.run(None, {{name: np.ones((batch, length), np.int64) for name in ("input_ids", "attention_mask")}})
"""


def make_text_record(*shapes: tuple[int, ...], load: Load | None = None, regime: str = "quiet") -> Record:
    record = make_record(TINY_ENCODER, Config(session_options={"intra_op_num_threads": 1}))
    data = InputData(dtype="int64", shapes=shapes, origin="synthesized")
    workload = msgspec.structs.replace(
        record.workload, inputs={"input_ids": data, "attention_mask": data}, load=load or Load()
    )
    noise: Any = msgspec.structs.replace(record.evidence.noise, regime=regime)
    evidence = msgspec.structs.replace(record.evidence, noise=noise)
    return msgspec.structs.replace(record, workload=workload, evidence=evidence)


def run_code(record: Record, code: str, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = write(record, tmp_path / "r.json")
    done = run(sys.executable, "-c", HEAD + textwrap.dedent(code), record=path, options=options)
    assert done.returncode == 0, done.stderr
    return done


class TestShapes:
    def test_other_shapes_are_named_once(self, tmp_path: Path) -> None:
        code = "for n in range(1200): call(48 if n % 3 else 8)"
        log = tmp_path / "log"
        done = run_code(make_text_record((1, 8), (1, 16)), code, tmp_path, "--explain-json", str(log))
        assert done.stderr.count("was measured with input_ids of shape 1x16, 1x8, but 666 of the first 1000") == 1
        assert "Search with --shape input_ids=1x48." in done.stderr
        last = json.loads(log.read_text().splitlines()[-1])
        assert last["record"].endswith("r.json")
        assert len(last["misfits"]) == 1

    def test_the_measured_shapes_are_not(self, tmp_path: Path) -> None:
        code = "for n in range(100): call(8)\ncall(9)"
        assert "was measured" not in run_code(make_text_record((1, 8)), code, tmp_path).stderr

    def test_quiet(self, tmp_path: Path) -> None:
        assert run_code(make_text_record((1, 8)), "call(9)", tmp_path, "-q").stderr == ""

    def test_a_record_of_many_shapes_is_not_checked(self, tmp_path: Path) -> None:
        record = make_text_record(*((1, n) for n in range(1, 60)))
        assert "was measured" not in run_code(record, "call(99)", tmp_path).stderr


class TestClients:
    OVERLAP = """
    threads = [threading.Thread(target=lambda: [call(64, 64) for _ in range(20)]) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    """

    def test_several_where_the_record_is_for_one(self, tmp_path: Path) -> None:
        done = run_code(make_text_record((64, 64)), self.OVERLAP, tmp_path)
        assert "was measured with one client, but up to" in done.stderr

    def test_several_where_the_record_is_for_several(self, tmp_path: Path) -> None:
        record = make_text_record((64, 64), load=Load(scenario="multi-client", clients=4))
        assert "was measured" not in run_code(record, self.OVERLAP, tmp_path).stderr

    def check(self, clients: int | None, n_calls: int) -> list[str]:
        done: list[FitCheck] = []
        check = FitCheck("r.json", "m.onnx", {"clients": clients}, done.append)
        for _ in range(n_calls):
            check.end(check.begin(), "run", {})
        assert len(done) == (n_calls >= MOST_CALLS)
        assert check.is_done == bool(done)
        return check.explain()

    def test_one_where_the_record_is_for_several(self) -> None:
        assert "are made one after another" in self.check(4, MOST_CALLS)[0]
        assert self.check(4, MOST_CALLS - 1) == []
        assert self.check(1, MOST_CALLS) == self.check(None, MOST_CALLS) == []


class TestPrograms:
    """Records that were proven with a program, under other processes or other calls at a time."""

    SEVERAL = """
    import os, subprocess, sys
    call(8)
    if "CHILD" not in os.environ:
        subprocess.run(sys.orig_argv, env={**os.environ, "CHILD": "1"}, check=True)
    """

    def make(self, load: Load | None = None, **measured: Any) -> Record:
        record = make_text_record((1, 8), load=load)
        run = ProgramRun(program="app", sha256="0" * 64, **measured)
        return msgspec.structs.replace(record, workload=msgspec.structs.replace(record.workload, program=run))

    @pytest.mark.skipif(sys.platform != "linux", reason="processes are counted on Linux")
    def test_several_processes_where_the_record_is_for_one(self, tmp_path: Path) -> None:
        done = run_code(self.make(), self.SEVERAL, tmp_path)
        assert done.stderr.count("was measured with 1 process, but 2 processes have sessions") == 1
        assert "Search again under this load" in done.stderr

    @pytest.mark.skipif(sys.platform != "linux", reason="processes are counted on Linux")
    def test_processes(self) -> None:
        one, other, another = (Processes({"rules": rules}) for rules in ([1], [1], [2]))
        one.join()
        one.join()
        assert other.list_pids() == [os.getpid()]
        assert another.list_pids() == []
        one.leave()
        assert other.list_pids() == []

    def explain(
        self, record: Record, pids: Sequence[int] = (), n_calls: int = MOST_CALLS, at_a_time: int = 1
    ) -> list[str]:
        """Return what is said after some calls."""

        class Counted(Processes):
            def list_pids(self) -> list[int]:
                return list(pids)

        measured = describe_measured(record)
        check = FitCheck("r.json", "m.onnx", measured, lambda check: None, Counted({"rules": [str(pids)]}))
        for _ in range(at_a_time - 1):
            check.begin()
        for _ in range(n_calls):
            check.end(check.begin(), "run", {})
        assert check._processes
        check._processes.leave()
        return check.explain()

    def test_the_process_that_began_last_names_their_number(self) -> None:
        pid = os.getpid()
        assert "but 2 processes have" in self.explain(self.make(), [pid - 1, pid])[0]
        assert self.explain(self.make(n_processes=2), [pid - 1, pid]) == []
        assert self.explain(self.make(), [pid, pid + 1]) == []
        assert self.explain(self.make(), [pid]) == []
        assert self.explain(self.make(), []) == []

    def test_fewer_processes_of_a_server(self) -> None:
        server, load = {"kind": "server", "n_processes": 2}, Load(scenario="multi-client", clients=4)
        assert "but only one process has" in self.explain(self.make(load, **server), [os.getpid()])[0]
        assert self.explain(self.make(load, **server), [os.getpid()], n_calls=9) == []
        assert self.explain(self.make(n_processes=2), [os.getpid()]) == []

    def test_the_number_of_workers_of_a_record_was_not_counted(self) -> None:
        record = self.make()
        record = msgspec.structs.replace(record, config=msgspec.structs.replace(record.config, workers=2))
        assert self.explain(record, [1, os.getpid()]) == []

    def test_more_calls_at_a_time(self) -> None:
        assert "with up to 1 call of a session" in self.explain(self.make(concurrent_calls=1), at_a_time=2)[0]
        assert self.explain(self.make(concurrent_calls=2), at_a_time=3) == []
        assert self.explain(self.make(), at_a_time=9) == []
        server = {"kind": "server", "concurrent_calls": 1}
        load = Load(scenario="multi-client", clients=4)
        assert self.explain(self.make(load, **server), at_a_time=7) == []
        assert "with up to 4 calls" in self.explain(self.make(load, **server), at_a_time=8)[0]
        assert self.explain(self.make(Load(scenario="server", rate_per_s=9.0), **server), at_a_time=9) == []

    def test_other_shapes(self, tmp_path: Path) -> None:
        stderr = run_code(self.make(), "call(9)", tmp_path).stderr
        assert "have other shapes" in stderr
        assert "ortune search -- COMMAND" in stderr
        assert "--shape" not in stderr


def test_a_record_of_a_busy_host_is_named(tmp_path: Path) -> None:
    """Of one of a quiet host, nothing is said: `test_the_measured_shapes_are_not`."""
    done = run_code(make_text_record((1, 8), regime="contended"), "call(8)", tmp_path)
    assert done.stderr.count("was measured while other processes used the CPUs") == 1


class TestWithoutRecord:
    def explain(self, *options: str) -> subprocess.CompletedProcess[str]:
        code = f"""
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        ort.InferenceSession({str(TINY_CNN)!r}, options)
        """
        command = (sys.executable, "-P", "-m", "ortune", "apply", *options, "--", sys.executable, "-c")
        return run(*command, textwrap.dedent(code))

    def test_sessions_are_explained_as_they_are(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        done = self.explain("--explain", "--explain-json", str(log))
        assert done.returncode == 0
        assert f"{TINY_CNN}: has the program's own options" in done.stderr
        assert "enable_cpu_mem_arena=False, session.intra_op.allow_spinning=0" in done.stderr
        (found,) = [json.loads(line) for line in log.read_text().splitlines()]
        assert not found["matched"]
        assert found["program_options"] == {"enable_cpu_mem_arena": False, "session.intra_op.allow_spinning": "0"}
        assert found["providers"] == ["CPUExecutionProvider"]
        assert "no session got tuned options" not in done.stderr

    def test_nothing_to_do(self, tmp_path: Path) -> None:
        done = run_ortune("apply", "--", "python", "app.py", cwd=tmp_path)
        assert done.returncode == 2
        assert "There is no CONFIG" in done.stderr
        assert "--explain shows the sessions as they are" in done.stderr


def test_sessions_of_programs_without_records_are_not_wrapped(tmp_path: Path) -> None:
    """The calls of programs for whose host there is no record take no time of ortune's."""
    code = f"import onnxruntime as o; o.InferenceSession({str(TINY_CNN)!r}); print(o.InferenceSession.run.__module__)"
    code += "; print(hasattr(o.InferenceSession.run, '__wrapped__'))"
    done = run(sys.executable, "-P", "-m", "ortune", "apply", "--explain", "--", sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "False"
    record = write(make_record(TINY_CNN, TUNED), tmp_path / "r.json")
    assert run(sys.executable, "-c", code, record=record).stdout.splitlines()[-1] == "True"
