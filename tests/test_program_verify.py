"""Verifying and gating the gain of a program: real programs, and records that were written for them by hand."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ortune import Config, OrtuneError, Record, Speedup
from ortune.errors import ProgramError
from ortune.export import render
from ortune.gates.programs import choose_goal, prepare_program_gate
from ortune.gates.run import run_gate
from ortune.knobs.config import ModelSettings, ThreadPool
from ortune.measure.comparison import Comparison, Row
from ortune.options import make_request
from ortune.program import prepare, verify
from ortune.program.prepare import ObservedRun, PreparedProgram, prepare_program
from ortune.program.server import Server
from ortune.program.space import ProgramModel
from ortune.program.task import ProgramTask
from ortune.program.tuned import (
    find_base,
    find_place,
    make_search_request,
    merge_configs,
    name_program,
    prepare_tuned,
    read_program_records,
)
from ortune.record.files import encode_record, read_records
from ortune.record.schema import RECORD_SCHEMA, Bundle, Tried
from ortune.requests import ProgramGateRequest, ProgramSearchRequest, ProgramVerifyRequest
from ortune.worker import Failure
from ortune.workload import make_load, parse_limit
from ortune.workload.program import ProgramRun, digest_command
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.light_programs import light_sessions
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_console import Terminal

PROGRAM = Path(__file__).parent / "programs" / "worker.py"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems"),
    pytest.mark.usefixtures("models_read_here"),
]

NO_ARENA = Config(session_options={"enable_cpu_mem_arena": False})
"""What the program sets itself."""

TUNED = Config(session_options={"intra_op_num_threads": 1, "enable_cpu_mem_arena": False})
"""Under these settings, a call of the program takes 10 ms instead of 40 ms."""


def command_of(*how: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAM), str(TINY_CNN), *how)


CALLS = command_of("forever", "0")


def make_program_record(
    model: Path = TINY_CNN,
    config: Config = TUNED,
    base: Config = NO_ARENA,
    *,
    command: Sequence[str] = CALLS,
    gain: float = 3.0,
    load: Any = None,
    limits: Sequence[str] = (),
    objective: str = "p50",
    **measured: Any,
) -> Record:
    """Return a record as a search of a program writes it."""
    record = make_local_record(model, config)
    kind = measured if measured else {"kind": "call", "call": "__main__:work"}
    run = ProgramRun(program=Path(command[0]).name, sha256=digest_command(command), **kind)
    workload = record.workload
    return msgspec.structs.replace(
        record,
        base=base,
        workload=msgspec.structs.replace(
            workload,
            load=load or workload.load,
            program=run,
            objectives=(objective,),
            limits=tuple(map(parse_limit, limits)),
        ),
        evidence=msgspec.structs.replace(
            record.evidence,
            speedup=Speedup(estimate=gain, low=0.9 * gain, high=1.1 * gain, confidence=0.95, n_pairs=20, n_launches=4),
        ),
    )


def make_request_for(config: Any, command: Sequence[str] = CALLS, **options: Any) -> ProgramVerifyRequest:
    return make_request(ProgramVerifyRequest, {"config": config, "command": command, **options}, "python")


def gate_request(config: Any, command: Sequence[str] = CALLS, **options: Any) -> ProgramGateRequest:
    return make_request(ProgramGateRequest, {"config": config, "command": command, **options}, "python")


def write_bundle(path: Path, *records: Record) -> Path:
    path.write_bytes(encode_record(Bundle(schema=RECORD_SCHEMA, records=records)))
    return path


def model_named(name: str, own: Config = Config()) -> ProgramModel:  # noqa: B008  (it is immutable)
    return ProgramModel(name=name, info=None, own=own, share=0.5)


OBSERVED: dict[tuple[object, ...], ObservedRun] = {}


@pytest.fixture(autouse=True)
def observed_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observe programs, which are the same here each time, once, and for a second instead of five."""
    observe = prepare.observe_program

    def observe_once(task: ProgramTask, server: Server | None, observe_s: float) -> ObservedRun:
        key = (task.command, task.call, "LIGHT_SESSIONS" in os.environ)
        if key not in OBSERVED:
            OBSERVED[key] = observe(task, server, observe_s)
        return OBSERVED[key]

    monkeypatch.setattr(prepare, "USUAL_OBSERVE_S", prepare.LEAST_OBSERVE_S)
    monkeypatch.setattr(prepare, "observe_program", observe_once)


@pytest.fixture
def light() -> Iterator[None]:
    """The sessions of programs are not the point."""
    with light_sessions():
        yield


class TestRecords:
    def test_a_record_of_a_model_alone(self, tmp_path: Path) -> None:
        path = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        with pytest.raises(OrtuneError, match="was not made with a program"):
            read_program_records(make_request_for(path))

    def test_records_of_different_programs(self, tmp_path: Path) -> None:
        one, other = make_program_record(), make_program_record(TINY_ENCODER, command=("uvicorn", "app:app"))
        path = write_bundle(tmp_path / "r.json", one, other)
        with pytest.raises(OrtuneError, match=r"different programs: python\S*, uvicorn"):
            read_program_records(make_request_for(path))

    def test_records_of_different_commands(self, tmp_path: Path) -> None:
        one, other = make_program_record(), make_program_record(TINY_ENCODER, command=(*CALLS, "more"))
        path = write_bundle(tmp_path / "r.json", one, other)
        with pytest.raises(OrtuneError, match=r"command [0-9a-f]{8}, call"):
            read_program_records(make_request_for(path))

    def test_records_of_different_searches(self, tmp_path: Path) -> None:
        path = write_bundle(tmp_path / "r.json", make_program_record(), make_program_record(TINY_ENCODER, gain=2.0))
        with pytest.raises(OrtuneError, match="of different searches"):
            read_program_records(make_request_for(path))

    def test_records_of_one_search(self, tmp_path: Path) -> None:
        records = (make_program_record(), make_program_record(TINY_ENCODER))
        assert len(read_program_records(make_request_for(write_bundle(tmp_path / "r.json", *records)))) == 2


class TestMeasure:
    """What is measured comes from the record."""

    def make(self, record: Record, **options: Any) -> ProgramSearchRequest:
        return make_search_request(record, make_request_for(record, **options))

    def test_calls(self) -> None:
        request = self.make(make_program_record(limits=("p99<50ms",)))
        assert (request.call, request.metric, request.url) == ("__main__:work", None, None)
        assert request.goal.objective == "p50"
        assert [limit.text for limit in request.goal.limits] == ["p99<50ms"]

    def test_complete_runs(self) -> None:
        request = self.make(make_program_record(objective="mean", kind="run"), ignore_outputs=True)
        assert request.goal.objective == "mean"
        assert request.ignore_outputs

    def test_a_number(self) -> None:
        record = make_program_record(objective="score", kind="metric", metric="(.*) fps", maximize=True)
        request = self.make(record)
        assert (request.metric, request.goal.objective) == ("(.*) fps", "score")

    def test_requests(self) -> None:
        url = "http://127.0.0.1:{port}/ocr"
        given = make_request(ProgramSearchRequest, {"command": CALLS, "url": url, "rate": "20/s", "clients": 3})
        record = make_program_record(objective="p99", kind="server", url=url, load=given.load)
        request = self.make(record, header="A: b")
        assert (request.url, request.header) == (url, ("A: b",))
        assert request.goal.load == given.load
        assert self.make(record, url=f"{url}?key=1").url == f"{url}?key=1"
        with pytest.raises(OrtuneError, match="the record is for http"):
            self.make(record, url="http://127.0.0.1:{port}/other")

    def test_options_of_a_server(self) -> None:
        with pytest.raises(OrtuneError, match="not for a server"):
            self.make(make_program_record(), url="http://127.0.0.1:1/")
        with pytest.raises(OrtuneError, match="needs url"):
            self.make(make_program_record(), header="A: b")


class TestSettings:
    """Records become what they change of the program, as `ortune apply` does it."""

    def test_a_setting_that_the_record_drops_is_restored(self) -> None:
        record = make_program_record(config=ONE_THREAD)
        merged = merge_configs([record], [model_named("one", NO_ARENA)])
        assert merged.session_options == {"intra_op_num_threads": 1, "enable_cpu_mem_arena": True}

    def test_a_setting_that_was_tried_and_is_new_in_the_program_is_restored(self) -> None:
        record = make_program_record(config=ONE_THREAD, base=Config())
        untouched = merge_configs([record], [model_named("one", NO_ARENA)])
        assert untouched.session_options == {"intra_op_num_threads": 1}
        search = msgspec.structs.replace(record.search, tried=Tried(session_options=("enable_cpu_mem_arena",)))
        tried = msgspec.structs.replace(record, search=search)
        merged = merge_configs([tried], [model_named("one", NO_ARENA)])
        assert merged.session_options == {"intra_op_num_threads": 1, "enable_cpu_mem_arena": True}

    def test_what_differs_between_models(self) -> None:
        pool = ThreadPool(intra_op_num_threads=2, inter_op_num_threads=1)
        spinning = {"session.intra_op.allow_spinning": "0"}
        one = Config(session_config=spinning, global_thread_pool=pool, environment={"OMP_NUM_THREADS": "1"}, workers=2)
        other = msgspec.structs.replace(one, session_options={"intra_op_num_threads": 1})
        records = [make_program_record(config=one, base=Config()), make_program_record(TINY_ENCODER, other, Config())]
        merged = merge_configs(records, [model_named("one"), model_named("other")])
        assert merged == msgspec.structs.replace(
            one, models={"other": ModelSettings(session_options={"intra_op_num_threads": 1})}
        )
        assert [merged.of_model(name) for name in ("one", "other")] == [one, other]

    def test_a_process_has_one_environment(self) -> None:
        one, other = (Config(environment={"OMP_NUM_THREADS": value}) for value in "12")
        records = [make_program_record(config=one), make_program_record(TINY_ENCODER, other)]
        with pytest.raises(OrtuneError, match="different settings of the process"):
            merge_configs(records, [model_named("one"), model_named("other")])


ENABLED = Config(session_options={"enable_cpu_mem_arena": True})


def test_the_baseline_has_what_was_fixed() -> None:
    """The recorded gain is relative to it."""
    fixed = {"session.intra_op.allow_spinning": "0"}
    environment = {"OMP_NUM_THREADS": "1"}
    base = msgspec.structs.replace(NO_ARENA, session_config=fixed, environment=environment)
    config = msgspec.structs.replace(TUNED, session_config=fixed, environment=environment)
    record = make_program_record(config=config, base=base)
    found = find_base([record], [model_named("one", NO_ARENA)])
    assert found == Config(session_config=fixed, environment=environment)
    assert find_base([make_program_record()], [model_named("one", NO_ARENA)]) == Config()
    # A fixed setting that is ONNX Runtime's default is not in the record.
    tried = Tried(session_options=("enable_cpu_mem_arena",))
    search = msgspec.structs.replace(record.search, tried=tried)
    default = msgspec.structs.replace(record, base=Config(), search=search)
    assert find_base([default], [model_named("one", NO_ARENA)]) == ENABLED
    # The program has the setting by now.
    own = msgspec.structs.replace(NO_ARENA, session_config=fixed)
    assert find_base([record], [model_named("one", own)]) == Config(environment=environment)


@pytest.mark.parametrize("complete_runs", [True, False, None])
def test_calls_are_measured_as_in_the_search(light: None, complete_runs: bool | None) -> None:
    record = make_program_record()
    assert record.workload.program
    run = msgspec.structs.replace(record.workload.program, complete_runs=complete_runs)
    record = msgspec.structs.replace(record, workload=msgspec.structs.replace(record.workload, program=run))
    program = prepare_tuned([record], make_request_for(record)).program
    assert program.keeps_running == (complete_runs is not True)
    assert program.describe_run().complete_runs == (complete_runs is True)


@pytest.mark.long
def test_a_gate_and_a_verification_measure_the_baseline_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    base = msgspec.structs.replace(NO_ARENA, environment={"OMP_NUM_THREADS": "1"})
    config = msgspec.structs.replace(TUNED, environment={"OMP_NUM_THREADS": "1"})
    record = make_program_record(config=config, base=base)
    gate, tuned = prepare_program_gate(gate_request(record))
    assert tuned.program.space.base == tuned.base
    assert gate.base.config == tuned.base == Config(environment={"OMP_NUM_THREADS": "1"})
    assert any("OMP_NUM_THREADS=1" in note for note in tuned.notes)


@pytest.mark.parametrize(
    ("workers", "n_processes", "expected"), [(4, 2, (4, 2)), (0, 2, (2, 4)), (0, 1, (1, 8)), (64, 1, (64, 1))]
)
def test_exports_of_a_server_have_its_workers(workers: int, n_processes: int, expected: tuple[int, int]) -> None:
    load = make_load(clients=8)
    record = make_program_record(kind="server", url="http://127.0.0.1/", n_processes=n_processes, load=load)
    record = msgspec.structs.replace(record, config=msgspec.structs.replace(record.config, workers=workers))
    done = render("gunicorn", record, "m.onnx")
    assert f"workers = {expected[0]}\nthreads = {expected[1]}\n" in done.text
    assert not [line for line in done.unsupported if "workers" in line]
    many = msgspec.structs.replace(record, config=msgspec.structs.replace(record.config, workers=96))
    assert "workers=96 (this export starts 64)" in render("gunicorn", many, "m.onnx").unsupported


@pytest.mark.skipif(sys.platform == "win32", reason="programs are not tuned there")
def test_workers_that_the_command_has_no_place_for_are_named(tmp_path: Path) -> None:
    record = make_program_record(kind="server", url="http://127.0.0.1/")
    speedup = msgspec.structs.replace(record.evidence, verdict="faster")
    config = msgspec.structs.replace(record.config, workers=3)
    path = write(msgspec.structs.replace(record, config=config, evidence=speedup), tmp_path / "r.json")
    for place, expected in ((), True), (("{workers}",), False):
        done = run_ortune("apply", path, "--", sys.executable, "-c", "pass", *place, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("the config is for 3 workers" in done.stderr) == expected


def test_arguments_of_a_program_are_not_its_name() -> None:
    assert name_program((sys.executable, str(PROGRAM), "secret")) == f"{Path(sys.executable).name} worker.py"
    assert name_program(("/bin/server", "--password=1")) == "server"
    assert name_program(("/bin/server", "secret")) == "server"


@pytest.fixture
def prepared(light: None) -> PreparedProgram:
    """The program after its first run."""
    options = {"command": CALLS, "call": "__main__:work", "only": ("intra_op_num_threads",)}
    return prepare_program(make_request(ProgramSearchRequest, options))


class TestProgram:
    def test_a_model_that_the_program_does_not_call(self, prepared: PreparedProgram) -> None:
        assert find_place(make_program_record(), prepared) == 0
        with pytest.raises(OrtuneError, match=r"does not call .*tiny_encoder\.onnx.*It calls tiny_cnn"):
            find_place(make_program_record(TINY_ENCODER), prepared)

    def test_another_command_is_noted(self, light: None) -> None:
        record = make_program_record(command=("uvicorn", "app:app"), base=Config())
        tuned = prepare_tuned([record], make_request_for(record))
        assert any("another command. It was uvicorn" in note for note in tuned.notes)
        assert any("sets other options for tiny_cnn" in note for note in tuned.notes)

    @pytest.mark.long
    def test_the_command(self, tmp_path: Path) -> None:
        """On a busy host, the gain may be uncertain."""
        path = write_bundle(tmp_path / "r.json", make_program_record())
        options = ("--verify", "--update", "--budget", f"{scale_budget(12)}s", "--json")
        done = run_ortune("apply", path, *options, "--", *CALLS, cwd=tmp_path)
        answer = json.loads(done.stdout)
        assert {"holds": 0, "inconclusive": 3}[answer["answer"]] == done.returncode, done.stderr
        assert answer["here"]["estimate"] > 1.5
        assert [row["name"] for row in answer["comparison"]["rows"]] == ["program as it is", "tuned"]
        assert answer["notes"] == []
        (record,) = read_records(path)
        assert [occasion.speedup.estimate for occasion in record.evidence.occasions] == [
            pytest.approx(answer["here"]["estimate"], rel=0.01)
        ]
        assert "added to" in done.stderr

    def test_no_gain(self, tmp_path: Path) -> None:
        path = write(make_program_record(config=NO_ARENA), tmp_path / "r.json")
        light = {"LIGHT_SESSIONS": "1"}
        done = run_ortune("apply", path, "--verify", "--", *CALLS, cwd=tmp_path, environment=light)
        assert done.returncode == 0, done.stderr
        assert "no gain to verify" in " ".join(done.stdout.split())


def test_a_check_that_does_not_run_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_program_record()
    failure = Failure(kind="exit", stage="check", message="the check 'x' cannot be started: No such file")
    rows = (Row(name="as it is", config=NO_ARENA), Row(name="tuned", config=TUNED, failure=failure))
    comparison = Comparison(objective="p50", rows=rows, calls_needed=50, noise=record.evidence.noise)
    monkeypatch.setattr(verify, "open_program", lambda program: contextlib.nullcontext())
    monkeypatch.setattr(verify, "compare", lambda *arguments, **options: comparison)
    program = SimpleNamespace(task=ProgramTask(command=("/bin/app",), check="x"))
    tuned = SimpleNamespace(record=record, program=program, base=NO_ARENA, config=TUNED)
    with pytest.raises(ProgramError, match=r"What app with its records prints cannot be checked.*cannot be started"):
        verify.verify_program(cast("Any", tuned))


class TestGate:
    def test_half_of_the_recorded_gain_must_be_left(self) -> None:
        record = make_program_record(gain=4.0, limits=("p99<1s",))
        goal, slowdowns = choose_goal(record, gate_request(record))
        assert goal.objectives == ("p50",)
        assert [limit.text for limit in goal.limits] == ["p99<1s"]
        assert slowdowns == {"p50": pytest.approx(-0.5)}

    def test_options(self) -> None:
        record = make_program_record()
        goal, slowdowns = choose_goal(record, gate_request(record, also="cpu", max_slowdown="10%", limit="p99<2s"))
        assert goal.objectives == ("p50", "cpu")
        assert [limit.text for limit in goal.limits] == ["p99<2s"]
        assert slowdowns == {"p50": 0.1, "cpu": 0.1}
        _, slowdowns = choose_goal(record, gate_request(record, also="cpu", max_slowdown="cpu=10%"))
        assert slowdowns["p50"] < 0 < slowdowns["cpu"]
        with pytest.raises(OrtuneError, match="create their sessions themselves"):
            choose_goal(record, gate_request(record, also="load-time"))

    def test_no_gain(self) -> None:
        with pytest.raises(OrtuneError, match="no gain to gate"):
            prepare_program_gate(gate_request(make_program_record(config=NO_ARENA)))

    @pytest.mark.long
    def test_calls_of_a_function(self, tmp_path: Path) -> None:
        """Within this budget, it need not be decided."""
        path = write_bundle(tmp_path / "tuned.json", make_program_record(gain=2.0))
        reports = ("--json", "--junit", "junit.xml", "--markdown", "page.md")
        options = ("--busy", "--budget", f"{scale_budget(12)}s")
        done = run_ortune("gate", path, *options, *reports, "--", *CALLS, cwd=tmp_path)
        (result,) = json.loads(done.stdout)
        assert {"pass": 0, "inconclusive": 3}[result["decision"]] == done.returncode, done.stderr
        for finding in result["findings"]:
            assert finding["allowed"] == pytest.approx(2**-0.5)
            assert finding["slowdown"]["estimate"] < 0.7
        assert result["base"]["text"].endswith("worker.py as it is")
        assert result["workload"]["program"]["call"] == "__main__:work"
        for page in ("junit.xml", "page.md"):
            text = (tmp_path / page).read_text().replace("\\", "")
            assert "worker.py as it is" in text
            assert "tuned.json" in text
            assert str(PROGRAM) not in text

    @pytest.mark.long
    def test_complete_runs(self) -> None:
        """Within this budget, it need not be decided."""
        command = command_of("run", "20")
        record = make_program_record(command=command, objective="mean", kind="run")
        gate, tuned = prepare_program_gate(gate_request(record, command, busy=True, budget="25s"))
        result = run_gate(gate, setup=tuned)
        assert result.decision in {"pass", "inconclusive"}
        assert result.workload.program
        assert result.workload.program.kind == "run"
        sides = (result.blocks.base, result.blocks.head, result.blocks.base_copy, result.blocks.head_copy)
        costs = [[cost for launch in side["mean"] for cost in launch] for side in sides]
        assert all(costs)
        assert sum(costs[1] + costs[3]) < sum(costs[0] + costs[2])

    @pytest.mark.parametrize(
        ("variable", "message"),
        [
            ("CRASH_WITH_ONE_THREAD", "does not work .*SIGABRT"),
            ("WRONG_WITH_ONE_THREAD", "differs from that of the program as it is"),
        ],
    )
    def test_records_under_which_the_program_fails(
        self, light: None, variable: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "1")
        command = command_of("run", "2")
        record = make_program_record(command=command, objective="mean", kind="run")
        gate, tuned = prepare_program_gate(gate_request(record, command))
        with pytest.raises(OrtuneError, match=message):
            run_gate(gate, setup=tuned)


class TestMessages:
    def test_no_command(self, tmp_path: Path) -> None:
        path = write_bundle(tmp_path / "r.json", make_program_record(), make_program_record(TINY_ENCODER))
        done = run_ortune("apply", path, "--verify", cwd=tmp_path)
        assert done.returncode == 2
        assert "ortune apply CONFIG --verify -- COMMAND" in done.stderr
        done = run_ortune("gate", path, cwd=tmp_path)
        assert done.returncode == 2
        assert f"ortune gate {path} -- COMMAND" in " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("apply", "--verify", "--", "python", "x.py"), "no CONFIG before --"),
            (("apply", "a.json", "b.json", "--verify", "--", "python"), "b.json: there is more than one CONFIG"),
            (("apply", "a.json", "--verify", "--"), "COMMAND is missing"),
            (("apply", "a.json", "--verify", "--", "python"), "no file a.json"),
            (("gate", "--", "python", "x.py"), "no CONFIG before --"),
            (("gate", "a.json", "b.json", "--", "python"), "b.json: there is more than one CONFIG"),
            (("gate", "a.json", "--", "python"), "no file a.json"),
        ],
    )
    def test_arguments(self, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
        done = run_ortune(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("name", ["search", "verify", "gate"])
def test_the_spinner_turns_while_a_program_runs_for_the_first_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not measured then, and may take long."""
    from ortune.cli.command import Command
    from ortune.cli.gate_program import gate_program
    from ortune.cli.search_program import search_program
    from ortune.cli.verify_program import verify_program

    terminal = Terminal()
    seen = ""

    def observe(task: object, server: object, observe_s: float) -> None:
        nonlocal seen
        end_s = time.monotonic() + 5
        before = len(terminal.getvalue())
        while len(terminal.getvalue()) <= before and time.monotonic() < end_s:
            time.sleep(0.01)
        seen = terminal.getvalue()[before:]
        raise ProgramError("It does not work.")

    monkeypatch.setattr("ortune.program.prepare.observe_program", observe)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    program = (sys.executable, "app.py")
    config = write(make_program_record(command=program), tmp_path / "tuned.json")
    commands: dict[str, Command] = {"search": search_program, "verify": verify_program, "gate": gate_program}
    given = {} if name == "search" else {"config": str(config)}
    monkeypatch.setattr("sys.argv", ["ortune", name, *given.values(), "--", *program])
    with pytest.raises(ProgramError):
        commands[name](command=program, **given)
    assert f"running {Path(sys.executable).name} once" in seen
