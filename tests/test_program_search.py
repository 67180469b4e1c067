"""Searches of real programs, whose speed depends on the settings of their sessions by much more than the noise."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import psutil
import pytest

from ortune import Config, HostError, UsageError
from ortune.errors import ProgramError, explain_lack, spell_as_flag
from ortune.measure.block_runner import SteadyCandidate
from ortune.options import make_request
from ortune.program import prepare as preparing
from ortune.program.candidates import are_replaced
from ortune.program.executor import ProgramExecutor
from ortune.program.http_load import find_free_port
from ortune.program.identity import describe_program_identity
from ortune.program.launcher import LaunchedProgram
from ortune.program.metric import parse_metric
from ortune.program.prepare import PreparedProgram, explain_endless, make_server, make_task, prepare_program
from ortune.program.process import Ended, ProgramProcess
from ortune.program.runner import Cpus
from ortune.program.search import ProgramResult, count_spent, launch_first, open_program, search_program
from ortune.program.server import Server
from ortune.program.task import ProgramTask
from ortune.record.files import read_records
from ortune.requests import ProgramSearchRequest
from ortune.tuning.open import open_search
from ortune.tuning.resume import make_begin
from ortune.worker import Block, BlockPlan, Failure, Runtime
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, TINY_ENCODER, long_params, run_ortune
from tests.environments import write_command
from tests.light_programs import light_sessions, open_uncalibrated
from tests.simulated import Scenario, simulate

PROGRAM = Path(__file__).parent / "programs" / "worker.py"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems"),
    pytest.mark.usefixtures("models_read_here"),
]

ONE_THREAD_ONLY = ("intra_op_num_threads",)


def prepare(*how: str, command: tuple[str, ...] = (), **options: Any) -> PreparedProgram:
    command = command or (sys.executable, str(PROGRAM), str(TINY_CNN), *how)
    values = {"only": ONE_THREAD_ONLY, "budget": scale_budget(40), **options}
    return prepare_program(make_request(ProgramSearchRequest, {"command": command, **values}, "python"))


@pytest.fixture
def light() -> Iterator[None]:
    """The sessions of programs are not the point."""
    with light_sessions():
        yield


def search(*how: str, **options: Any) -> ProgramResult:
    return search_program(prepare(*how, **options))


def is_one_thread(result: ProgramResult) -> bool:
    return result.outcome.config.session_options.get("intra_op_num_threads") == 1


class TestSearch:
    @pytest.mark.long
    def test_complete_runs(self, tmp_path: Path) -> None:
        path = tmp_path / "tuned.json"
        result = search("run", "20", output=path, budget=scale_budget(40))
        assert result.outcome.evidence.verdict == "faster"
        assert is_one_thread(result)
        (record,) = read_records(path)
        assert record.config.session_options == {"intra_op_num_threads": 1, "enable_cpu_mem_arena": False}
        assert record.workload.program
        assert record.workload.program.kind == "run"
        assert record.workload.program.program == Path(sys.executable).name
        assert record.workload.inputs["image"].origin == "the program"
        assert str(PROGRAM) not in path.read_text()

    @pytest.mark.long
    def test_calls_of_a_function(self) -> None:
        result = search("run", "60", call="__main__:work")
        assert result.outcome.evidence.verdict == "faster"
        assert is_one_thread(result)

    @pytest.mark.long
    def test_few_calls_of_a_function(self) -> None:
        prepared = prepare("run", "3", call="__main__:work")
        assert not prepared.keeps_running
        result = search_program(prepared)
        assert result.outcome.evidence.verdict == "faster"

    @pytest.mark.long
    def test_a_program_that_does_not_end(self) -> None:
        prepared = prepare("forever", "0", call="__main__:work")
        assert prepared.keeps_running
        result = search_program(prepared)
        assert is_one_thread(result)

    @pytest.mark.long
    def test_a_number_that_the_program_prints(self) -> None:
        result = search(
            "rate", "30", metric=r"([\d.]+) per second", maximize=True, ignore_outputs=True, budget=scale_budget(40)
        )
        evidence = result.outcome.evidence
        assert evidence.verdict == "faster"
        assert evidence.objective == "score"
        assert evidence.winner
        assert evidence.baseline
        assert (evidence.winner.metric or 0) > 2 * (evidence.baseline.metric or 0)

    @pytest.mark.parametrize("clients", long_params(1, 3))
    def test_a_server(self, clients: int) -> None:
        command = (sys.executable, str(PROGRAM), str(TINY_CNN), "serve", "{port}")
        result = search(
            command=command,
            url="http://127.0.0.1:{port}/",
            clients=clients,
            objective="mean",
            budget=scale_budget(30),
        )
        assert result.outcome.evidence.verdict == "faster"
        assert is_one_thread(result)

    @pytest.mark.long
    def test_a_server_with_a_fixed_port(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        result = search("serve", str(port), url=f"http://127.0.0.1:{port}/", budget=scale_budget(30))
        assert is_one_thread(result)
        assert result.outcome.evidence.noise.one_at_a_time
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections keep it for a while
            probe.bind(("127.0.0.1", port))

    @pytest.mark.long
    def test_two_models(self, tmp_path: Path) -> None:
        code = f"""
import sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import worker, numpy, onnxruntime
one = worker.make_session({str(TINY_CNN)!r})
other = onnxruntime.InferenceSession({str(TINY_ENCODER)!r})
feed = {{tensor.name: numpy.ones([size if isinstance(size, int) else 2 for size in tensor.shape],
         {{"tensor(int64)": "int64", "tensor(float)": "float32"}}[tensor.type]) for tensor in other.get_inputs()}}
for _ in range(40):
    worker.work(one)
    other.run(None, feed)
"""
        path = tmp_path / "bundle.json"
        result = search(
            command=(sys.executable, "-c", code),
            call="worker:work",
            output=path,
            only=(),
            budget=scale_budget(60),
            trials=6,
        )
        assert result.outcome.evidence.verdict == "faster"
        records = {Path(record.model.path).name: record for record in read_records(path)}
        assert set(records) == {"tiny_cnn.onnx", "tiny_encoder.onnx"}
        assert records["tiny_cnn.onnx"].base.session_options == {"enable_cpu_mem_arena": False}
        assert records["tiny_encoder.onnx"].base.session_options == {}
        assert records["tiny_cnn.onnx"].evidence.speedup == records["tiny_encoder.onnx"].evidence.speedup

    @pytest.mark.long
    def test_what_is_fixed_belongs_to_the_baseline(self) -> None:
        fixed = {"session.intra_op.allow_spinning": "0"}
        prepared = prepare("run", "60", call="__main__:work", fix=fixed)
        result = search_program(prepared)
        (record,) = result.records
        assert record.base.session_config == fixed
        assert record.config.session_config.items() >= fixed.items()
        assert not any(trial.failure for trial in result.outcome.trials)

    def test_the_own_setting_of_a_program_is_part_of_the_space(self, light: None) -> None:
        prepared = prepare("run", "3", only=())
        arena = next(dimension for dimension in prepared.space.dimensions if dimension.name == "enable_cpu_mem_arena")
        assert [choice.value for choice in arena.choices] == [None, True]
        assert prepared.models[0].own.session_options == {"enable_cpu_mem_arena": False}


class TestBudget:
    @pytest.mark.parametrize(("spent_s", "budget", "counted_s"), [(8.0, 60, 8.0), (50.0, 60, 30.0), (8.0, None, 0.0)])
    def test_the_first_run_counts(self, spent_s: float, budget: float | None, counted_s: float) -> None:
        prepared = cast("Any", SimpleNamespace(request=SimpleNamespace(budget=budget), spent_s=spent_s))
        assert count_spent(prepared) == counted_s

    def test_the_time_before_is_part_of_the_budget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        shutil.copy(TINY_CNN, "model.onnx")
        with simulate(Scenario(is_here=True)):
            prepared = prepare("run", "3")
            assert prepared.spent_s > 0
            begin = make_begin({}, free_bytes=None, spent_s=1000.0)
            with open_search(prepared.request, begin, functools.partial(open_program, prepared)) as running:
                assert running.opened.runner.now_s() - running.opened.start_s > 1000


class TestFailures:
    @pytest.mark.long
    def test_a_candidate_that_crashes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CRASH_WITH_ONE_THREAD", "1")
        result = search("run", "60", call="__main__:work")
        failed = [trial for trial in result.outcome.trials if trial.failure]
        assert failed
        assert all(trial.config.session_options.get("intra_op_num_threads") == 1 for trial in failed)
        assert {trial.failure.kind for trial in failed if trial.failure} == {"crash"}
        assert not is_one_thread(result)

    @pytest.mark.long
    def test_a_candidate_with_another_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WRONG_WITH_ONE_THREAD", "1")
        result = search("run", "5")
        kinds = {trial.failure.kind for trial in result.outcome.trials if trial.failure}
        assert kinds == {"wrong_output"}
        assert not is_one_thread(result)

    @pytest.mark.long
    def test_outputs_are_ignored_on_request(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WRONG_WITH_ONE_THREAD", "1")
        result = search("run", "15", ignore_outputs=True, budget=scale_budget(40))
        trials = result.outcome.trials
        with_one = [trial for trial in trials if trial.config.session_options.get("intra_op_num_threads") == 1]
        assert with_one
        assert not any(trial.failure for trial in with_one)

    @pytest.mark.long
    def test_a_check_of_the_user(self) -> None:
        accepted = search("run", "3", check_command="grep result", budget="8s")
        assert not any(trial.failure for trial in accepted.outcome.trials)
        with pytest.raises(ProgramError, match="rejects it"):
            search("run", "3", check_command="grep nothing", budget="8s")

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("pass", "did not import onnxruntime"),
            ("import onnxruntime", "created no session"),
            (f"import onnxruntime; onnxruntime.InferenceSession({str(TINY_CNN)!r})", "did not call them"),
            ("raise SystemExit('no license')", "status 1: no license"),
            ("import os; os.abort()", "SIGABRT"),
        ],
    )
    def test_programs_that_cannot_be_tuned(self, code: str, message: str) -> None:
        with pytest.raises(ProgramError, match=message):
            prepare(command=(sys.executable, "-c", code))

    def test_words_that_are_not_utf_8(self, light: None, tmp_path: Path) -> None:
        """They may be in names of files, and in what the program prints."""
        program = write_command(tmp_path / os.fsdecode(b"run\xff"))
        command = (str(program), str(PROGRAM), str(TINY_CNN), "run", "3")
        prepared = prepare(command=command, check_command="grep '\udcff'")
        assert msgspec.json.encode(prepared.describe_run())
        identity = describe_program_identity(prepared)
        assert msgspec.json.encode(identity)
        other = msgspec.structs.replace(prepared.task, check="grep '\udcfe'")
        assert describe_program_identity(msgspec.structs.replace(prepared, task=other)) != identity
        with pytest.raises(UsageError, match="not UTF-8"):
            parse_metric("\udcff: ([0-9]+)")

    def test_a_program_without_python(self) -> None:
        with pytest.raises(ProgramError, match="no Python"):
            prepare(command=("/bin/true",))

    def test_a_function_that_is_never_called(self, light: None) -> None:
        with pytest.raises(ProgramError, match="no call of __main__:missing"):
            prepare("run", "3", call="__main__:missing")

    def test_a_program_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preparing, "FIRST_RUN_DEADLINE_S", 0.2)
        with pytest.raises(ProgramError) as caught:
            prepare(command=(sys.executable, "-c", "import time; time.sleep(600)"))
        assert "did not end within 0.2 s." in caught.value.message
        assert re.search("--url http.* --call package", caught.value.render(spell_as_flag)[1])

    def test_a_program_that_does_not_end_and_makes_few_calls(self) -> None:
        error = explain_endless(ProgramTask(command=("x",), call="m:f"), 2)
        assert error.message == "x did not end within 900 s, and made fewer than 8 calls of m:f: 2."

    @pytest.mark.parametrize(("n_kills", "kind"), [(3, "crash"), (4, "out_of_memory")])
    def test_a_program_that_the_kernel_kills(
        self, n_kills: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is not launched again if memory has run out."""
        monkeypatch.setattr("ortune.program.launcher.count_oom_kills", lambda: 3)
        run = LaunchedProgram(cast("Any", None), tmp_path, 0)
        monkeypatch.setattr("ortune.worker.exit_status.count_oom_kills", lambda: n_kills)
        failure = run.explain_end(Ended(status=-9, wall_ns=1, cpu_ns=1, peak_bytes=1), "measure")
        assert failure.kind == kind
        assert failure.is_sudden == (kind == "crash")

    @pytest.mark.parametrize(("kind", "n_launches"), [("timeout", 1), ("crash", 3), ("exception", 1)])
    def test_a_first_run_that_hangs_is_not_repeated(self, kind: Any, n_launches: int) -> None:
        failure = Failure(kind=kind, stage="measure", message="no")
        launches: list[object] = []

        def launch(configs: object, *, deadline_s: float, independent: bool = True) -> list[Failure]:
            launches.append(configs)
            return [failure]

        executor = cast("Any", SimpleNamespace(launch=launch))
        with pytest.raises(ProgramError, match="does not work as it is"):
            launch_first(executor, ProgramTask(command=("x",)), Config())
        assert len(launches) == n_launches

    def test_a_number_that_is_never_printed(self) -> None:
        with (
            contextlib.closing(start_executor("pass", metric=r"speed: (\d+)")) as executor,
            pytest.raises(ProgramError, match="no number above 0"),
        ):
            launch_first(executor, executor.task, Config())

    def test_a_server_that_does_not_come_up(self, light: None) -> None:
        with pytest.raises(ProgramError, match="status 3"):
            prepare("die", "0", url="http://127.0.0.1:9/")

    def test_another_server_at_the_port(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(UsageError, match=f"port {port} already"):
                prepare("serve", str(port), url=f"http://127.0.0.1:{port}/")

    def test_another_server_takes_the_port(self) -> None:
        """The port was free when the search began."""
        port = find_free_port()
        with (
            contextlib.closing(start_executor("pass", Server(url=f"http://127.0.0.1:{port}/"))) as executor,
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(UsageError, match=f"port {port} already"),
        ):
            executor.launch([Config()], deadline_s=60)

    def test_nothing_is_left(self, light: None) -> None:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        prepared = prepare("forever", "0", call="__main__:work")
        with open_uncalibrated(prepared) as opened:
            lives = opened.runner.launch([candidate.config for candidate in prepared.space.candidates[:2]])
            assert {type(live) for live in lives} == {SteadyCandidate}
        assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


def start_executor(code: str, server: Server | None = None, **options: Any) -> ProgramExecutor:
    """Return an executor of a program that was not observed before."""
    task = ProgramTask(command=(sys.executable, "-c", code), **options)
    runtime = Runtime(onnxruntime="", providers=(), python="", ortune="")
    keeps_running = bool(task.call)
    return ProgramExecutor(task, (), runtime, Cpus(usable=()), server=server, keeps_running=keeps_running)


PLAN = BlockPlan(duration_ns=1_000_000, lead_in_ns=0, min_calls=1, deadline_s=1.0)

CALLS = "import time\ndef work(): time.sleep(0.01)\nwhile True: work()"

ANSWERS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""


class TestMissingFiles:
    """What removes files while a program is measured is no fault of the candidates."""

    @pytest.mark.parametrize("options", [{}, {"call": "__main__:work"}])
    def test_temporary_files(self, options: dict[str, Any]) -> None:
        with contextlib.closing(start_executor(CALLS if options else "pass", **options)) as executor:
            (live,) = executor.launch([Config()], deadline_s=60)
            assert not isinstance(live, Failure)
            shutil.rmtree(executor._folder.path)
            with pytest.raises(OSError) as caught:
                executor.launch([Config()], deadline_s=60)[0].measure(PLAN)  # type: ignore[union-attr]
            lack = explain_lack(caught.value)
            assert lack
            assert "something removed ortune's temporary files" in lack.message
            if options:
                with pytest.raises(HostError, match="something removed ortune's temporary files"):
                    live.measure(PLAN)

    def test_the_files_of_a_run(self) -> None:
        with contextlib.closing(start_executor("import sys; sys.stdin.read(); print(1)")) as executor:
            process = executor._process = ProgramProcess()
            run = executor.launcher.start(process, Config())
            assert isinstance(run, LaunchedProgram)
            ended = process.wait(60)
            assert ended
            run.stdout.unlink()
            with pytest.raises(FileNotFoundError) as caught:
                executor.check_end(run, ended, Config())
            assert explain_lack(caught.value)
            shutil.rmtree(run.folder)
            with pytest.raises(HostError, match="run-000001 is missing: something removed ortune's temporary files"):
                executor.check_end(run, ended, Config())

    def test_stdin(self, tmp_path: Path) -> None:
        stdin = tmp_path / "in.txt"
        with (
            contextlib.closing(start_executor("pass", stdin=stdin)) as executor,
            pytest.raises(HostError, match=r"in\.txt is missing: something removed it"),
        ):
            executor.launch([Config()], deadline_s=60)

    def test_bodies(self, tmp_path: Path) -> None:
        body = tmp_path / "a.txt"
        port = find_free_port()
        body.write_text("a")
        url = f"http://127.0.0.1:{port}/"
        request = make_request(ProgramSearchRequest, {"command": ("true",), "url": url, "body": (body,)}, "python")
        server = make_server(request, make_task(request))
        body.unlink()
        with (
            contextlib.closing(start_executor(ANSWERS.replace("PORT", str(port)), server)) as executor,
            pytest.raises(HostError, match=r"a\.txt is missing: something removed it"),
        ):
            executor.launch([Config()], deadline_s=60)


ARBITER = """
import http.server, os, signal, socket, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.1)
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", PORT), Handler)
def fork():
    worker = os.fork()
    if not worker:
        server.serve_forever()
    return worker
worker, last = fork(), time.monotonic()
while True:
    time.sleep(0.01)
    if time.monotonic() - last > TIMEOUT:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
        worker = fork()
    last = time.monotonic()
"""
"""A server with a worker, which it replaces if it was suspended for longer than a time, as gunicorn does."""


@pytest.mark.parametrize("timeout_s", [1.0, 1e9])
def test_a_server_that_replaces_its_workers_is_not_measured(timeout_s: float) -> None:
    port = find_free_port()
    server = Server(url=f"http://127.0.0.1:{port}/")
    code = ARBITER.replace("PORT", str(port)).replace("TIMEOUT", str(timeout_s))
    with contextlib.closing(start_executor(code, server, ignore_outputs=True)) as executor:
        (live,) = executor.launch([Config()], deadline_s=60)
        assert not isinstance(live, Failure)
        time.sleep(1.2)
        answer = live.measure(PLAN)
        if timeout_s > 1:
            assert isinstance(answer, Block)
        else:
            assert isinstance(answer, Failure)
            assert answer.is_sudden
            assert "workers were replaced" in answer.message


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1, 2}, {3, 4}, True),
        ({1, 2}, {2, 3}, False),  # one of them reached its maximum of requests
        ({1}, {1}, False),
        ({1, 2}, {3}, False),
        ({1}, set(), False),
        (set(), {1}, False),
    ],
)
def test_whether_workers_are_replaced(before: set[int], after: set[int], expected: bool) -> None:
    assert are_replaced(before, after) == expected


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"call": "f"}, "is not the name of a function"),
            ({"call": "a:b", "metric": "x"}, "contradict each other"),
            ({"metric": "("}, "is not a regular expression"),
            ({"metric": "(a)(b)"}, "has 2 groups"),
            ({"maximize": True}, "needs metric"),
            ({"clients": 2}, "needs url"),
            ({"url": "ftp://localhost/"}, "http"),
            ({"url": "http://example.com/"}, "loopback|this host"),
            ({"objective": "load-time"}, "create their sessions"),
            ({"stdin": "/missing"}, "is not a file"),
            ({"check_command": "x 'y"}, "no closing quotation"),
            ({"check_command": " "}, "is empty"),
            ({"url": "http://127.0.0.1:9/", "header": ("A: \udcff",)}, "Latin-1"),
            ({"url": "http://127.0.0.1:9/", "header": ("A: b\nC: d",)}, "control character"),
            ({"url": "http://127.0.0.1:9/", "header": ("Schl\xfcssel: 1",)}, "Schl.ssel: is not the name of a"),
            ({"url": "http://127.0.0.1:9/", "header": ("A b: 1",)}, "A b: is not the name of a header field"),
            ({"check_command": "no-such-program -x"}, "there is no program no-such-program"),
            ({"sessions": 2}, "sessions"),
            ({"processes": 2}, "start their own processes"),
            ({"provider": "cpu"}, "choose execution providers themselves"),
        ],
    )
    def test_options_that_are_not_valid(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            prepare("run", "1", **options)

    def test_a_program_that_does_not_exist(self) -> None:
        with pytest.raises(UsageError, match="There is no command"):
            prepare(command=("missing-program",))

    def test_messages_keep_placeholders(self) -> None:
        with pytest.raises(UsageError, match=re.escape("does not contain {port}")):
            prepare(command=(sys.executable, "-c", "pass", "{port}"), url="http://127.0.0.1/")

    def test_a_url_with_a_port_that_the_command_lacks(self) -> None:
        with pytest.raises(UsageError, match=re.escape("contains {port}, but COMMAND does not")):
            prepare(command=(sys.executable, "-c", "pass"), url="http://127.0.0.1:{port}/")

    def test_a_port_without_a_url(self) -> None:
        with pytest.raises(UsageError, match="needs a URL"):
            prepare(command=(sys.executable, "-c", "pass", "{port}"))


class TestCommand:
    @pytest.mark.long
    def test_a_search_and_its_use(self, tmp_path: Path) -> None:
        path = tmp_path / "tuned.json"
        command = [sys.executable, str(PROGRAM), str(TINY_CNN), "rate", "20"]
        only = [argument for name in ONE_THREAD_ONLY for argument in ("--only", name)]
        done = run_ortune(
            "search",
            "--budget",
            "6s",
            "--call",
            "__main__:work",
            *only,
            "--ignore-outputs",
            "-o",
            path,
            "--",
            *command,
            cwd=tmp_path,
        )
        # Whether there is time to prove that depends on what else the host does.
        assert done.returncode in {0, 3}, done.stderr
        (record,) = read_records(path)
        assert ("as the program as it is" in " ".join(done.stdout.split())) == (record.evidence.verdict == "faster")
        code = "import onnxruntime as o, sys; s = o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
        show = [sys.executable, "-c", f"{code}; print(s.get_session_options().intra_op_num_threads)", str(TINY_CNN)]
        apply = [sys.executable, "-m", "ortune", "apply", str(path), "--"]
        run = subprocess.run([*apply, *show], capture_output=True, text=True, check=True)
        assert int(run.stdout) == record.config.session_options.get("intra_op_num_threads", 0)

    @pytest.mark.long
    def test_json(self, tmp_path: Path) -> None:
        command = [sys.executable, str(PROGRAM), str(TINY_CNN), "run", "3"]
        done = run_ortune(
            "search", "--budget", "6s", "--only", "intra_op_num_threads", "-o", "-", "--", *command, cwd=tmp_path
        )
        assert done.returncode in {0, 3}, done.stderr
        assert json.loads(done.stdout)["workload"]["program"]["program"] == Path(sys.executable).name
