"""`ortune inspect`, with real programs and real sessions."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

import ortune
from ortune import Observation
from ortune.apply.inside.observer import Observer, SessionWatch
from ortune.apply.inside.samples import Sampler, write_npz
from ortune.cli.inspect import is_observation
from ortune.console.inspect import show_observation
from ortune.model import read_model
from ortune.program.observation import ObservedProcess, group_sessions, name_models, read_processes, sum_models
from ortune.program.samples import UNSORTED, merge_samples
from ortune.workload import InputOptions
from ortune.workload.inputs import make_feed
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.observing import make_process, run_observed

PROGRAM = Path(__file__).parent / "programs" / "observed.py"
COMMAND = (sys.executable, "-W", "ignore", str(PROGRAM), str(TINY_CNN), str(TINY_ENCODER))


LIGHT = f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import light; light.install()\n"
"""Start of programs whose sessions are not the point: they get some that take next to no CPU time."""


@pytest.fixture
def light_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `PROGRAM` have such sessions."""
    monkeypatch.setenv("LIGHT_SESSIONS", "1")


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Observation:
    """A program with two models, a mix of lengths, and options, whose inputs are saved."""
    return inspect("mix", save_inputs=tmp_path_factory.mktemp("mix") / "inputs", max_samples=40)


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> Observation:
    """A program with two further processes, whose inputs are saved, by a user with the mask 0."""
    mask = os.umask(0)
    try:
        return inspect("spawned", save_inputs=tmp_path_factory.mktemp("spawned") / "new" / "inputs", max_samples=6)
    finally:
        os.umask(mask)


def inspect(*ways: str, **options: Any) -> Observation:
    observation = ortune.inspect_program([*COMMAND, *ways], **options)
    assert observation.status == 0
    assert observation.faults == ()
    return observation


class TestSessions:
    def test_models_options_and_shapes(self, mix: Observation) -> None:
        observation = mix
        models = {model.name: model for model in observation.models}
        image, text = models[TINY_CNN.name], models[TINY_ENCODER.name]
        assert (image.n_calls, text.n_calls) == (100, 100)
        assert image.options == ({},)
        assert text.options == (
            {
                "intra_op_num_threads": 1,
                "graph_optimization_level": "ORT_ENABLE_ALL",
                "session.intra_op.allow_spinning": "0",
            },
        )
        assert text.other_methods == ("add_free_dimension_override_by_name",)
        assert text.requested == (("CPUExecutionProvider",),)
        assert image.requested == ((),)
        assert image.providers == (("CPUExecutionProvider",),)
        assert [
            (seen.count, [(model_input.name, model_input.dtype, model_input.shape) for model_input in seen.inputs])
            for seen in text.shapes
        ] == [
            (75, [("input_ids", "int64", (1, 8)), ("attention_mask", "int64", (1, 8))]),
            (25, [("input_ids", "int64", (1, 32)), ("attention_mask", "int64", (1, 32))]),
        ]
        assert text.n_threads == (0,)
        assert image.path == str(TINY_CNN)
        assert image.sha256 == read_model(TINY_CNN).files[0].sha256
        assert sum(model.share for model in observation.models) + observation.outside_share == pytest.approx(1)
        assert all(0 < model.share < 1 for model in observation.models)
        assert all(0 < model.mean_ns < model.total_ns < observation.wall_ns for model in observation.models)

    def test_all_methods_that_run_a_model(self, tmp_path: Path) -> None:
        done = run_observed(tmp_path, *COMMAND, "methods")
        assert done.stdout.splitlines() == ["[(1, 'own', '')]", "InvalidArgument"], done.stderr
        (process,) = read_processes(tmp_path).processes
        (session,) = process.sessions
        assert session.n_calls == {
            "run": 3,
            "run_with_ort_values": 1,
            "run_with_iobinding": 1,
            "run_async": 1,
        }
        assert session.n_failed == 1
        (model,) = sum_models(group_sessions((process,)), 0)
        (shapes,) = model.shapes
        assert (shapes.count, shapes.inputs[0].dtype, shapes.inputs[0].shape) == (5, "float32", (1, 3, 32, 32))

    @pytest.mark.usefixtures("light_sessions")
    def test_calls_that_overlap(self) -> None:
        (model,) = inspect("threads").models
        assert model.n_calls == 60
        assert 1 <= model.most_concurrent <= 3  # whether they overlap depends on how busy the host is

    def test_calls_in_progress_at_a_time(self, tmp_path: Path) -> None:
        watch = SessionWatch(Observer({"observe": str(tmp_path)}), {}, None)
        first, second = watch.begin(), watch.begin()
        watch.end(first, "run", None)
        third = watch.begin()
        for start_ns in (second, third):
            watch.end(start_ns, "run", None)
        assert watch.describe()["most_concurrent"] == 2
        assert watch.describe()["n_calls"] == {"run": 3}

    @pytest.mark.usefixtures("light_sessions")
    def test_processes_that_are_forked(self) -> None:
        self.check_processes(inspect("forked"))

    def test_processes_that_are_spawned(self, spawned: Observation) -> None:
        self.check_processes(spawned)

    def check_processes(self, observation: Observation) -> None:
        """Check that both processes of a program were seen, which make 3 and 5 calls."""
        (model,) = observation.models
        assert (model.n_processes, model.n_sessions, model.n_calls) == (2, 2, 8)
        assert observation.n_python >= 3

    @pytest.mark.usefixtures("light_sessions")
    def test_a_child_that_uses_a_session_of_its_parent(self) -> None:
        observation = inspect("left")
        (model,) = observation.models
        assert (model.n_processes, model.n_sessions, model.n_calls) == (2, 1, 11)
        assert {len(process.sessions) for process in observation.processes} == {1}
        assert sorted(sum(process.sessions[0].n_calls.values()) for process in observation.processes) == [4, 7]

    def test_a_model_that_is_passed_as_bytes_is_the_same(self) -> None:
        (model,) = inspect("by_bytes").models
        assert (model.n_sessions, model.n_calls) == (2, 2)

    @pytest.mark.usefixtures("light_sessions")
    def test_more_sessions_than_are_described(self) -> None:
        observation = inspect("many")
        (model,) = observation.models
        assert (model.n_sessions, model.n_calls) == (260, 260)
        assert len(observation.processes[0].sessions) == 256

    def test_a_process_that_is_killed(self, tmp_path: Path) -> None:
        code = f"{LIGHT}import onnxruntime, numpy, os, time; s = onnxruntime.InferenceSession({str(TINY_CNN)!r})\n"
        code += "image = {'image': numpy.ones((1, 3, 32, 32), numpy.float32)}\n"
        code += "end = time.monotonic() + 1\nwhile time.monotonic() < end:\n"
        code += "    s.run(None, image)\n    time.sleep(0.05)\n"
        code += "import subprocess; subprocess.run(['kill', '-9', str(os.getpid())])"
        done = run_observed(tmp_path, sys.executable, "-c", code)
        assert done.returncode == -signal.SIGKILL
        (process,) = read_processes(tmp_path).processes
        assert process.sessions[0].n_calls["run"] > 0

    @pytest.mark.parametrize(
        "end",
        [
            "os._exit(0)",
            "os.abort()",
            "os.kill(os.getpid(), signal.SIGKILL)",
            "signal.raise_signal(signal.SIGTERM)",  # as workers of uvicorn end
        ],
    )
    def test_a_process_that_ends_itself(self, end: str, tmp_path: Path) -> None:
        code = f"{LIGHT}import onnxruntime, numpy, os, signal; s = onnxruntime.InferenceSession({str(TINY_CNN)!r})\n"
        code += "image = {'image': numpy.ones((1, 3, 32, 32), numpy.float32)}\n"
        code += f"for _ in range(40): s.run(None, image)\n{end}"
        run_observed(tmp_path, sys.executable, "-c", code)
        (process,) = read_processes(tmp_path).processes
        assert process.sessions[0].n_calls == {"run": 40}

    def test_outputs_and_tracebacks_are_the_programs_own(self, tmp_path: Path) -> None:
        code = "import onnxruntime; onnxruntime.InferenceSession('missing.onnx', enable_fallback=0)"
        plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        done = run_observed(tmp_path, sys.executable, "-c", code)
        assert done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
        assert "During handling" not in done.stderr

    def test_a_folder_that_is_removed_meanwhile(self, tmp_path: Path) -> None:
        observed = tmp_path / "observed"
        observed.mkdir()
        code = f"{LIGHT}import shutil, onnxruntime; shutil.rmtree({str(observed)!r})\n"
        code += f"print(onnxruntime.InferenceSession({str(TINY_CNN)!r}).get_providers())"
        done = run_observed(observed, sys.executable, "-c", code)
        assert (done.stdout, done.stderr) == ("['CPUExecutionProvider']\n", "")


class TestCommand:
    def run(self, tmp_path: Path, *arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
        return run_ortune("inspect", *arguments, cwd=tmp_path, **how)

    def test_the_report(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--", *COMMAND, "mix", columns=80)
        assert done.returncode == 0, done.stderr
        self.check_report(done.stderr, 80)

    @pytest.mark.parametrize("columns", [45, 200])
    def test_the_report_on_other_terminals(self, columns: int, mix: Observation) -> None:
        output = io.StringIO()
        without_folders = msgspec.structs.replace(mix, saved=())  # paths may be longer than a line
        show_observation(Console(file=output, width=columns), without_folders, None)
        self.check_report(output.getvalue(), columns)

    def check_report(self, report: str, columns: int) -> None:
        """Check what is shown of the program with a mix of calls."""
        lines = [line for line in report.splitlines() if not line.startswith("  ortune search")]
        assert max(map(len, lines)) <= columns
        text = "".join(report.split())
        for part in (
            f"{TINY_CNN.name}100",
            "outsideONNX",
            "session.intra_op.allow_spinning=0",
            "image=1x3x32x32float32100%",
            "input_ids=1x8int64,attention_mask=1x8int6475%",
            "add_free_dimension_override_by_name",
            "".join(str(TINY_ENCODER).split()),
            "ONNXRuntime,",
        ):
            assert part in text, (part, report)
        assert f"ortune search -- {shlex.join([*COMMAND, 'mix'])}" in report
        assert "…" not in report

    def test_a_file_of_the_user_is_not_replaced(self, tmp_path: Path) -> None:
        for name, content in (("notes.txt", "Buy milk."), ("pypi.json", '{"command": [], "models": []}')):
            (tmp_path / name).write_text(content)
            done = self.run(tmp_path, "-o", name, "--", "true")
            assert done.returncode == 2
            assert "was not written by ortune" in " ".join(done.stderr.split())
            assert (tmp_path / name).read_text() == content

    def test_json_goes_to_stdout_and_the_programs_output_does_not(self, tmp_path: Path) -> None:
        code = f"{LIGHT}import onnxruntime; print('of the program')"
        done = self.run(tmp_path, "--json", "-o", "seen.json", "--", sys.executable, "-c", code)
        assert done.returncode == 1
        assert "of the program" in done.stderr
        found = json.loads(done.stdout)
        assert found["models"] == []
        assert found == json.loads((tmp_path / "seen.json").read_text())
        assert is_observation((tmp_path / "seen.json").read_bytes())

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("print(1)", "does not import onnxruntime"),
            (f"{LIGHT}import onnxruntime", "imports onnxruntime, but creates no session"),
            (
                f"{LIGHT}import onnxruntime as o; o.InferenceSession({str(TINY_CNN)!r})",
                "creates 1 session, but does not call it",
            ),
            ("raise SystemExit(4)", "ended with exit status 4"),
            ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ],
        ids=["no import", "no session", "no call", "exit", "killed"],
    )
    def test_nothing_is_observed(self, code: str, message: str, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--", sys.executable, "-c", code)
        assert done.returncode == 1
        assert message in " ".join(done.stderr.split())

    def test_a_program_that_is_not_python(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--", "sh", "-c", "echo own")
        assert done.returncode == 1
        assert done.stdout == "own\n"
        assert "sh runs no Python that can be observed" in done.stderr

    @pytest.mark.usefixtures("light_sessions")
    def test_a_program_that_fails_after_calls(self, tmp_path: Path) -> None:
        code = f"import sys, runpy; sys.argv = {['x', *COMMAND[4:], 'left']!r}\n"
        code += f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        code += f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__'); sys.exit(3)"
        done = self.run(tmp_path, "--", sys.executable, "-c", code)
        assert done.returncode == 1
        assert TINY_CNN.name in done.stderr
        assert "ended with exit status 3" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "There is no COMMAND"),
            (("--",), "There is no COMMAND"),
            (("python", "app.py", "--port", "1"), "Write: ortune inspect -- python app.py --port 1."),
            (("--", "no-such-program"), "There is no command no-such-program"),
            (("--max-samples", "0", "--", "python"), "must be from 1 to 10000"),
            (("--save-inputs", ".", "--", "python"), "is not empty"),
            (("--output", "no/such/file", "--", "python"), "no/such/file"),
        ],
    )
    def test_usage(self, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
        (tmp_path / "other").touch()
        done = self.run(tmp_path, *arguments)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())

    def test_interrupting_the_program_keeps_what_was_seen(self, tmp_path: Path) -> None:
        script = tmp_path / "server.py"
        script.write_text(
            f"{LIGHT}import onnxruntime, numpy, time\ns = onnxruntime.InferenceSession({str(TINY_CNN)!r})\n"
            "for _ in range(6):\n"
            "    s.run(None, {'image': numpy.ones((1, 3, 32, 32), numpy.float32)})\n"
            "    time.sleep(0.3)\n"  # what was seen is written from time to time
            "print('ready', flush=True)\ntime.sleep(60)\n"
        )
        command = [
            sys.executable,
            "-P",
            "-m",
            "ortune",
            "inspect",
            "-o",
            "seen.json",
            "--",
            sys.executable,
            str(script),
        ]
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        assert TINY_CNN.name in stderr
        assert json.loads((tmp_path / "seen.json").read_text())["models"][0]["n_calls"] >= 1

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_for_ortune_alone_ends_the_program(self, number: signal.Signals) -> None:
        """In the foreground of a terminal, too, where only Ctrl-C reaches both."""
        child = "import time; print('ready', flush=True); time.sleep(600)"
        code = (
            "import os, signal, sys\n"
            "from ortune.interrupts import raise_interrupts\n"
            "from ortune.program import run\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell or nohup may ignore them
            "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
            "run._is_in_foreground = lambda: True\n"
            "raise_interrupts()\n"
            f"print(run.run_to_end(sys.executable, [sys.executable, '-c', {child!r}], os.environ))"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            try:
                stdout, _ = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # the second interrupt kills the program
                raise
        assert re.match(r"EndedRun\(status=-2, wall_ns=\d+, interrupted=True\)", stdout)


class TestSavedInputs:
    def test_a_search_takes_them(self, mix: Observation) -> None:
        saved = {Path(inputs.folder).name: inputs for inputs in mix.saved}
        assert set(saved) == {TINY_CNN.stem, TINY_ENCODER.stem}
        assert {inputs.n_samples for inputs in mix.saved} == {40}
        info = read_model(TINY_ENCODER)
        feed = make_feed(info, InputOptions(data=saved[TINY_ENCODER.stem].folder))
        lengths = Counter(sample["input_ids"].array.shape[1] for sample in feed.samples)
        assert lengths.total() == 40
        # 75 of 100 calls have length 8. The chance of a sample outside of these bounds is below 1e-9.
        assert 15 < lengths[8] < 40

    def test_samples_of_several_processes_are_merged(self, spawned: Observation) -> None:
        (saved,) = spawned.saved
        assert saved.n_samples == 6
        assert len(list(Path(saved.folder).iterdir())) == 6

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
    def test_only_the_user_may_read_them(self, spawned: Observation) -> None:
        """Inputs may be private data."""
        (saved,) = spawned.saved
        folder = Path(saved.folder)
        modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert modes == {0o600}
        assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]

    def test_every_call_has_the_same_chance(self, tmp_path: Path) -> None:
        sampler = Sampler(str(tmp_path), 200, 1 << 30)
        reservoir = sampler.add_session()
        for number in range(2000):
            sampler.offer(reservoir, {"x": np.zeros(1 + (number >= 500), np.float32)}, number)
        assert len(reservoir.entries) == len(list(tmp_path.iterdir())) == 200
        n_short = sum(entry.n_bytes == 4 for entry in reservoir.entries)
        assert 20 < n_short < 85  # 50 are expected, with a standard deviation of 6

    def test_the_size_is_limited(self, tmp_path: Path) -> None:
        sampler = Sampler(str(tmp_path), 20, 1000)
        small, large = sampler.add_session(), sampler.add_session()
        for number in range(50):
            sampler.offer(small, {"x": np.zeros(2, np.float32)}, number)
            sampler.offer(large, {"x": np.zeros(100, np.float32)}, number)
            sampler.offer(large, {"x": np.zeros(1000, np.float32)}, number)
        assert small.n_bytes + large.n_bytes <= 1000
        assert len(large.entries) == 2
        assert len(small.entries) == 20
        assert len(list(tmp_path.iterdir())) == 22

    @pytest.mark.parametrize(
        "array",
        [
            np.float32(1.5),
            np.zeros((0, 3), np.int64),
            np.arange(6).reshape(2, 3).T,
            np.array(["a", "längere"], object),
            np.array([True, False]),
            np.ones(3, np.float16),
        ],
    )
    def test_files_are_those_of_numpy(self, array: Any, tmp_path: Path) -> None:
        sampler = Sampler(str(tmp_path), 1, 1000)
        reservoir = sampler.add_session()
        sampler.offer(reservoir, {"a/b": array}, 0)
        with np.load(tmp_path / reservoir.entries[0].file) as found:
            np.testing.assert_array_equal(found["a/b"], array)

    @pytest.mark.parametrize("value", [np.array([None]), np.zeros(1, "datetime64[s]"), object()])
    def test_inputs_that_cannot_be_saved(self, value: Any, tmp_path: Path) -> None:
        sampler = Sampler(str(tmp_path), 1, 1000)
        reservoir = sampler.add_session()
        sampler.offer(reservoir, {"x": value}, 0)
        assert (reservoir.n_left_out, list(tmp_path.iterdir())) == (1, [])

    def test_a_full_disk_does_not_stop_the_program(self, tmp_path: Path) -> None:
        code = f"import onnxruntime, numpy; s = onnxruntime.InferenceSession({str(TINY_CNN)!r})\n"
        code += "for _ in range(3): s.run(None, {'image': numpy.zeros((1, 3, 32, 32), numpy.float32)})\nprint('done')"
        missing = {"folder": str(tmp_path / "missing"), "max_samples": 3, "max_bytes": 10**6}
        done = run_observed(tmp_path, sys.executable, "-c", code, plan={"save_inputs": missing})
        assert done.stdout == "done\n"
        assert done.stderr.count("inputs cannot be saved") == 1


@pytest.mark.parametrize(
    ("end", "url"),
    [
        ({}, ""),
        ({"status": -signal.SIGSEGV}, ""),
        ({"interrupted": True}, "--url http://127.0.0.1:8000/ "),
        ({"status": -signal.SIGTERM}, "--url http://127.0.0.1:8000/ "),
    ],
)
def test_a_program_that_was_ended_while_it_ran_may_be_a_server(end: dict[str, Any], url: str, tmp_path: Path) -> None:
    """Without a URL, its search would wait until it ends."""
    (tmp_path / "process-0.json").write_text(json.dumps(make_process()))
    processes = read_processes(tmp_path).processes
    values: dict[str, Any] = {"status": 0, "wall_ns": 1, "n_python": 1, "outside_ns": 1, "outside_share": 0.5}
    observation = Observation(
        command=("uvicorn", "app:app"),
        models=sum_models(group_sessions(processes), 60),
        start_ns=1,
        processes=processes,
        **{**values, **end},
    )
    output = io.StringIO()
    show_observation(Console(file=output, width=100), observation, None)
    assert f"  ortune search {url}-- uvicorn app:app\n" in output.getvalue()
    assert ("that of its requests" in output.getvalue()) == bool(url)


class TestReading:
    """Files that a program wrote are not trusted."""

    def read(self, folder: Path, *processes: dict[str, Any]) -> tuple[ObservedProcess, ...]:
        for number, process in enumerate(processes):
            (folder / f"process-{number}.json").write_text(json.dumps(process))
        reading = read_processes(folder)
        assert reading.faults == ()
        return reading.processes

    @pytest.mark.parametrize(
        "change",
        [
            {"format": 2},
            {"pid": -1},
            {"wall_ns": 1 << 63},
            {"busy_ns": 1.5},
            {"unknown": 1},
            {"argv": ["x" * 5000]},
            {"argv": ["x"] * 100},
            {"sessions": [{}]},
            {"session": {"sha256": "../../etc"}},
            {"session": {"options": {"x": []}}},
            {"session": {"samples": {"threshold": 2.0, "entries": [], "n_left_out": 0}}},
            {
                "session": {
                    "samples": {
                        "threshold": 1.0,
                        "entries": [{"priority": 0.5, "offset_ns": 1, "n_bytes": 1, "file": "../x.npz"}],
                        "n_left_out": 0,
                    }
                }
            },
        ],
        ids=str,
    )
    def test_malformed_files_are_left_out(self, change: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "process-1.json").write_text(json.dumps(make_process(**change)))
        reading = read_processes(tmp_path)
        assert reading.processes == ()
        assert len(reading.faults) == 1

    @pytest.mark.parametrize("data", [b"", b"[", b"\xff", b"[" * 100_000, b'{"format": 1}'])
    def test_what_is_not_json(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "process-1.json").write_bytes(data)
        assert len(read_processes(tmp_path).faults) == 1

    def test_other_files(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "process-1.json")
        (tmp_path / "process-2.json").mkdir()
        (tmp_path / "process-x.json").touch()
        (tmp_path / "pids.txt").write_text("1\n2\n2\n")
        reading = read_processes(tmp_path)
        assert len(reading.faults) == 2
        assert reading.n_python == 2

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        with (tmp_path / "process-1.json").open("wb") as file:
            file.truncate(17 << 20)
        assert "has more than" in read_processes(tmp_path).faults[0]

    def test_shares(self, tmp_path: Path) -> None:
        """One process has calls for 60 of 100 ns. The other creates a session for 20 ns between its calls."""
        late = make_process(pid=8, session={"sha256": "1" * 64, "created_ns": 150})
        processes = self.read(tmp_path, make_process(), late)
        assert [process.outside_ns for process in processes] == [40, 20]
        models = sum_models(group_sessions(processes), 60)
        assert [model.share for model in models] == pytest.approx([60 / 180, 60 / 180])

    def test_outside_is_never_negative(self, tmp_path: Path) -> None:
        (process,) = self.read(tmp_path, make_process(busy_ns=1 << 60))
        assert process.outside_ns == 0

    def test_a_device_is_not_hashed(self, tmp_path: Path) -> None:
        processes = self.read(tmp_path, make_process(session={"sha256": "", "path": "/dev/zero"}))
        assert list(group_sessions(processes)) == ["/dev/zero"]

    def test_models_of_the_same_name(self, tmp_path: Path) -> None:
        paths = ("/a/model.onnx", "/b/model.onnx", "/c/b/model.onnx", "/c/other.onnx", "")
        processes = self.read(
            tmp_path,
            *(
                make_process(pid=n, start_ns=n, session={"sha256": str(n) * 64, "path": path})
                for n, path in enumerate(paths)
            ),
        )
        names = name_models({key: group[0][1] for key, group in group_sessions(processes).items()})
        assert list(names.values()) == [
            "a/model.onnx",
            "b/model.onnx",
            "b/model.onnx (2)",
            "other.onnx",
            "model of m.onnx",
        ]

    def test_samples_that_are_not_there_or_links_are_left_out(self, tmp_path: Path) -> None:
        unsorted = tmp_path / UNSORTED
        unsorted.mkdir()
        write_npz(unsorted / "7-1.npz", {"x": np.zeros(3, np.float32)})
        (unsorted / "7-2.npz").symlink_to("/etc/passwd")
        with (unsorted / "7-4.npz").open("wb") as file:
            file.truncate(1 << 20)
        entries = [{"priority": 0.1 * n, "offset_ns": n, "n_bytes": 12, "file": f"7-{n}.npz"} for n in (1, 2, 3, 4)]
        samples = {"threshold": 1.0, "entries": [*entries, entries[0]], "n_left_out": 0}
        processes = self.read(tmp_path, make_process(session={"samples": samples, "path": "/x/../.."}))
        groups = group_sessions(processes)
        (saved,) = merge_samples(tmp_path, groups, dict.fromkeys(groups, "../../x"), 20)
        assert saved.n_samples == 1
        assert Path(saved.folder) == tmp_path / "x"
