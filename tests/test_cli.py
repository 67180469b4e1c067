"""The command line, run as a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ortune
from ortune import Config, Record, RecordError, read_record
from ortune.record.files import encode_record, read_trials
from ortune.record.schema import RECORD_SCHEMA
from ortune.workload.workload import BackgroundProgram
from tests.conftest import TINY_CNN, TINY_ENCODER, long_params, run_ortune, run_program
from tests.records import ONE_THREAD, make_local_record, make_record, write
from tests.simulated import Scenario, simulate

pytestmark = pytest.mark.usefixtures("no_workers_left")

FAST = ("--budget", "8s", "--trials", "3")
SHORT = ("--budget", "2s", "--trials", "1")
"""Searches that confirm a candidate, and that only end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def searched(folder: Path) -> subprocess.CompletedProcess[str]:
    return run_ortune("search", TINY_CNN, "-o", "found.json", *FAST, cwd=folder, simulate=True)


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    """A record for this host and a single caller."""
    return write(make_local_record(TINY_CNN, ONE_THREAD), folder / "tuned.json")


@pytest.fixture(scope="module")
def answer(folder: Path, tuned: Path) -> dict[str, Any]:
    """What `ortune apply` says of the record, as JSON."""
    done = run_ortune("apply", tuned, TINY_CNN, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "command", ["search {} -o found.json --budget 8s --trials 3", "bench {} --set intra_op_num_threads=1 --budget 4s"]
)
def test_variables_of_onnxruntime_do_not_count(command: str, tmp_path: Path) -> None:
    arguments = [argument.format(TINY_CNN) for argument in command.split()]
    variables = {"ORT_INTRA_OP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    done = run_ortune(*arguments, cwd=tmp_path, environment=variables, columns=200, simulate=True)
    assert "The environment sets ORT_INTRA_OP_NUM_THREADS. Nothing is measured with it" in done.stdout, done.stderr
    done = run_ortune(*arguments, cwd=tmp_path, columns=200, simulate=True)
    assert "The environment sets" not in done.stdout


def test_a_program_has_variables_of_onnxruntime(tmp_path: Path) -> None:
    shutil.copy(TINY_CNN, tmp_path / "model.onnx")
    done = run_ortune(
        *("search", "--budget", "8s", "--trials", "3", "--", "python", "app.py"),
        cwd=tmp_path,
        environment={"ORT_INTRA_OP_NUM_THREADS": "1"},
        columns=200,
        simulate=True,
    )
    assert "The environment sets ORT_INTRA_OP_NUM_THREADS, and the program gets it." in done.stdout, done.stderr


def test_search_output(searched: subprocess.CompletedProcess[str]) -> None:
    assert searched.returncode in {0, 3}, searched.stderr
    text = " ".join(searched.stdout.split())
    assert "tiny_cnn.onnx" in text
    assert "float32[1,3,32,32]" in text
    assert "candidates" in text
    assert re.search(r"screening \d+ of \d+", text)
    assert re.search(r"confirmation \d+ of \d+ rounds", text)
    assert re.search(r"as fast|default is best|Inconclusive", text)
    assert "paired blocks in" in text
    assert re.search(r"p50 .*(µs|ms)", text)
    assert "found.json" in text
    assert searched.stderr == ""


@pytest.mark.usefixtures("searched")
def test_the_record_holds_the_evidence(folder: Path) -> None:
    record = read_record(folder / "found.json")
    evidence = record.evidence
    assert (record.config.is_default) == (evidence.verdict != "faster")
    assert evidence.speedup is not None
    assert evidence.baseline is not None
    assert evidence.winner is not None
    for side in (evidence.baseline, evidence.winner):
        assert 0 < side.p50_ns <= side.p90_ns <= side.p95_ns <= side.p99_ns
        assert side.calls_per_s > 0
        assert side.cpu_ns_per_call > 0
        assert side.peak_bytes is not None
    # On a busy host, fewer than requested.
    trials = read_trials(folder / "found.json")
    assert 2 <= len(trials.trials) == record.search.n_tried + 1 <= 7
    # Racing is left out if there is no time for two candidates.
    assert {trial_round.stage for trial_round in trials.rounds} - {"racing"} == {"screening", "confirmation"}
    assert trials.session_of(evidence.baseline.config) is not None
    assert record.runtime.onnxruntime == onnxruntime.__version__
    assert record.workload.inputs["image"].shapes == ((1, 3, 32, 32),)


def test_apply_reads_back_what_took_effect(folder: Path, tuned: Path, answer: dict[str, Any]) -> None:
    done = run_ortune("apply", tuned, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(match|identical to) the default's", done.stdout)
    assert "import onnxruntime as ort" in done.stdout
    assert answer["fits"] is True


def test_the_snippet_runs_as_it_is(answer: dict[str, Any]) -> None:
    code = answer["snippet"] + "\nprint(session.get_session_options().intra_op_num_threads)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = answer["config"]["session_options"].get("intra_op_num_threads", 0)
    assert done.stdout.strip() == str(expected)


def with_config(tuned: Path, path: Path, **config: Any) -> Path:
    document = json.loads(tuned.read_text())
    document["config"].update(config)
    path.write_text(json.dumps(document))
    return path


def test_sessions_from_python(folder: Path, tuned: Path) -> None:
    path = with_config(
        tuned,
        folder / "two.json",
        session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL"},
        session_config={"session.intra_op.allow_spinning": "0"},
    )
    session = ortune.create_session(TINY_CNN, path)
    options = session.get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert session.run(None, {"image": np.zeros((1, 3, 32, 32), np.float32)})[0].shape == (1, 10)
    assert ortune.session_options(str(path)).intra_op_num_threads == 2
    with pytest.raises(RecordError, match=r"sha256:.*sha256:"):
        ortune.create_session(TINY_ENCODER, path)
    assert ortune.create_session(TINY_ENCODER, path, any_model=True) is not None


def test_a_session_that_needs_an_environment_warns(folder: Path, tuned: Path) -> None:
    path = with_config(tuned, folder / "environment.json", environment={"OMP_DYNAMIC": "true"})
    with pytest.warns(UserWarning, match="OMP_DYNAMIC=true"):
        ortune.create_session(TINY_CNN, path)


def test_search_from_python(tmp_path: Path) -> None:
    with simulate(Scenario(is_here=True)):
        record = ortune.search(
            TINY_ENCODER, budget=2, trials=1, dim={"batch": (1, 4), "sequence": 16}, output=tmp_path / "c.json"
        )
    assert record.workload.inputs["input_ids"].shapes == ((1, 16), (4, 16))
    assert read_record(tmp_path / "c.json") == record


def test_json_goes_to_stdout_and_other_output_to_stderr(tmp_path: Path) -> None:
    """With a background load, of which the record holds only the name and the digest."""
    done = run_ortune("search", TINY_CNN, "--json", "--beside", "sleep 600", *SHORT, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 3}, done.stderr
    record = json.loads(done.stdout)
    assert record["schema"] == RECORD_SCHEMA
    assert "tiny_cnn.onnx" in done.stderr
    path = tmp_path / "tiny_cnn.ortune.json"
    assert path.read_text() == done.stdout
    assert read_record(path).workload.background_load == BackgroundProgram.of("sleep 600")
    assert "sleep 600" not in done.stdout


def test_space_gives_reasons(tmp_path: Path) -> None:
    done = run_ortune("space", TINY_CNN, cwd=tmp_path)
    assert done.returncode == 0
    for word in ("intra_op_num_threads", "graph_optimization_level", "distinct candidates"):
        assert word in done.stdout
    data = json.loads(run_ortune("space", TINY_CNN, "--json", cwd=tmp_path).stdout)
    assert data["candidates"][0]["config"]["session_options"] == {}
    assert all(candidate["why"] for candidate in data["candidates"][1:])


def test_several_clients_and_a_record_on_stdout(tmp_path: Path) -> None:
    options = ("-o", "-", "--clients", "2", "--limit", "memory<10GB")
    done = run_ortune("search", TINY_CNN, *options, *FAST, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 3}, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "confirmation" in done.stderr
    assert "2 clients, back to back" in done.stderr
    assert "throughput" in done.stderr
    assert "memory<10GB" in done.stderr
    record = msgspec.json.decode(done.stdout, type=Record)
    assert encode_record(record).decode() == done.stdout
    assert record.search.trials is None
    assert record.workload.load.clients == 2
    assert record.evidence.objective == "throughput"
    assert [check.kept for check in record.evidence.limits] == ["yes"]


def test_a_rate_and_a_limit_that_no_candidate_keeps(tmp_path: Path) -> None:
    done = run_ortune(
        "search",
        TINY_CNN,
        "-o",
        "c.json",
        "--rate",
        "200/s",
        "--objective",
        "cpu",
        "--limit",
        "memory<1MB",
        *FAST,
        cwd=tmp_path,
        simulate=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No candidate was found within the limits" in done.stdout
    assert "Closest" in done.stdout
    assert "between calls" in done.stdout
    assert "utilization" in done.stdout
    record = read_record(tmp_path / "c.json")
    assert record.evidence.closest is not None
    assert record.workload.load.rate_per_s == 200
    assert record.evidence.baseline is not None
    assert record.evidence.baseline.cpu_ns_between_calls is not None
    assert record.evidence.baseline.utilization is not None
    assert 0 < record.evidence.baseline.utilization < 1


def test_more_than_can_be_served_is_overload_and_exit_code_1(tmp_path: Path) -> None:
    done = run_ortune("search", TINY_CNN, "-o", "c.json", "--rate", "500000/s", *FAST, cwd=tmp_path, simulate=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Overload" in done.stdout
    assert read_record(tmp_path / "c.json").evidence.verdict == "overload"


def test_a_front_and_a_pick(tmp_path: Path) -> None:
    done = run_ortune(
        "search",
        TINY_CNN,
        "-o",
        "c.json",
        "--pareto",
        "p50,cpu",
        "--budget",
        "20s",
        "--trials",
        "4",
        "-q",
        cwd=tmp_path,
        simulate=True,
    )
    assert done.returncode in {0, 3}, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    front = read_record(tmp_path / "c.json").evidence.front
    assert front
    answer = json.loads(run_ortune("apply", "c.json", "--pick", "1", "--json", cwd=tmp_path).stdout)
    assert answer["config"]["session_options"] == front[0].summary.config.session_options
    options = ortune.session_options(tmp_path / "c.json", pick=1)
    assert options.intra_op_num_threads == front[0].summary.config.session_options.get("intra_op_num_threads", 0)
    done = run_ortune("apply", "c.json", "--pick", "99", cwd=tmp_path)
    assert done.returncode == 2
    assert "--pick 99: the front has points 1 to" in done.stderr


def test_bench_of_the_default_twice(tmp_path: Path, tuned: Path) -> None:
    done = run_ortune(
        "bench",
        TINY_CNN,
        "default",
        tuned,
        "--set",
        "intra_op_num_threads=1",
        "--json",
        "--budget",
        "10s",
        cwd=tmp_path,
        simulate=True,
    )
    assert done.returncode == 0, done.stderr
    comparison = json.loads(done.stdout)
    names = [row["name"] for row in comparison["rows"]]
    assert names == ["default", "default", str(tuned), "intra_op_num_threads=1"]
    same = comparison["rows"][1]["speedup"]
    # A 95% interval may exclude 1, so only that it is near 1 is tested.
    assert same["low"] < 1.25
    assert same["high"] > 0.8
    assert comparison["rows"][0]["speedup"] is None
    assert all(row["summary"]["p99_ns"] >= row["summary"]["p50_ns"] > 0 for row in comparison["rows"])
    for word in ("p50 ratio", "calls/s", "paired blocks in"):
        assert word in " ".join(done.stderr.split())


def test_bench_reports_a_config_that_fails(tmp_path: Path) -> None:
    done = run_ortune(
        "bench",
        TINY_CNN,
        "--set",
        "intra_op_num_threads=2,session.intra_op_thread_affinities=999",
        "--json",
        "--budget",
        "12s",
        cwd=tmp_path,
    )
    assert done.returncode == 1
    row = json.loads(done.stdout)["rows"][1]
    assert row["failure"]["kind"] == "not_applied"
    assert row["summary"] is None


def test_code_can_be_copied_from_a_narrow_terminal(tmp_path: Path, tuned: Path) -> None:
    done = run_ortune("apply", tuned, TINY_CNN, cwd=tmp_path, columns=40, simulate=True)
    code = done.stdout[done.stdout.index("import onnxruntime") :]
    compile(code, "code", "exec")
    assert "session = ort.InferenceSession(" in code


@pytest.mark.skipif(sys.platform != "linux", reason="named pipes, and a simulated host")
def test_stdout_that_is_closed_during_a_search(tmp_path: Path) -> None:
    """The record is still written, and the exit code is that of the search."""
    os.mkfifo(tmp_path / "pipe")
    seen: list[str] = []

    def read_a_line() -> None:
        with (tmp_path / "pipe").open() as pipe:
            seen.append(pipe.readline())

    reader = threading.Thread(target=read_a_line, daemon=True)
    reader.start()
    code = "from tests.surroundings import run_command; run_command(streams={1: 'pipe'})"
    arguments = ("search", str(TINY_CNN), "-o", "c.json", *FAST)
    done = run_program(code, *arguments, cwd=tmp_path, simulate=True)
    reader.join(30)
    assert seen and not reader.is_alive()
    assert done.returncode in {0, 3}
    assert (done.stdout, done.stderr) == ("", "")
    assert read_trials(tmp_path / "c.json").trials


def test_stdout_that_is_closed_early() -> None:
    """Also when Python writes what is left, at its end."""
    command = [sys.executable, "-P", "-m", "ortune", "knobs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.wait(timeout=120) == 0
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ortune", "knobs"], stdout=full, stderr=subprocess.PIPE, check=False, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: Cannot write to stdout: No space left on device.\n"


def test_a_model_is_not_replaced_by_its_record(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(TINY_CNN.read_bytes())
    done = run_ortune("search", path, "-o", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "this file exists" in done.stderr
    assert path.read_bytes() == TINY_CNN.read_bytes()


def test_the_record_of_another_model_of_the_same_name(tmp_path: Path, tuned: Path) -> None:
    path = tmp_path / "m" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(TINY_CNN.read_bytes())
    (tmp_path / "model.ortune.json").write_bytes(tuned.read_bytes())
    done = run_ortune("search", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "model.ortune.json exists: it is the record of " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["python", "app.py"], "python is a command. Put it after --: ortune apply"),
        (["--budget", "5s"], "nothing is measured without --verify"),
        (["--update"], "--update needs --verify: without a measurement, there is nothing to add"),
        (["--to", "python", "--json"], "--to python: cannot be combined with --json"),
        (["--verify", "--budget", "0s"], "--budget 0s: must be positive"),
    ],
)
def test_options_that_apply_rejects(arguments: list[str], message: str, tmp_path: Path, tuned: Path) -> None:
    done = run_ortune("apply", tuned, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_apply_can_be_quiet(tmp_path: Path, tuned: Path) -> None:
    done = run_ortune("apply", tuned, TINY_CNN, "-q", cwd=tmp_path, simulate=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="a simulated host")
def test_a_background_load_that_dies_ends_the_search_and_loses_nothing(tmp_path: Path) -> None:
    load = "sh -c 'while [ ! -e die ]; do sleep 0.05; done; touch dead; exit 5'"
    death = "touch die; while [ ! -e dead ]; do sleep 0.05; done; sleep 0.2"
    code = f"from tests.surroundings import run_command; run_command(before_block=(60, {death!r}))"
    arguments = ("search", str(TINY_CNN), "-o", "tuned.json", "--budget", "120s", "--beside", load)
    done = run_program(code, *arguments, cwd=tmp_path, simulate=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "exited with status 5" in done.stderr
    assert "Traceback" not in done.stderr
    record = read_record(tmp_path / "tuned.json")
    assert record.search.interrupted
    assert record.evidence.best_so_far is not None
    assert record.config.is_default


def test_several_shapes_and_samples(tmp_path: Path) -> None:
    shapes = ("--dim", "batch=1,4", "--dim", "sequence=16")
    done = run_ortune("bench", TINY_ENCODER, *shapes, "--budget", "4s", cwd=tmp_path, simulate=True)
    assert done.returncode == 0, done.stderr
    assert "2 shapes in turn" in done.stdout
    np.savez(
        tmp_path / "many.npz",
        input_ids=np.arange(5 * 16).reshape(5, 1, 16) % 50,
        attention_mask=np.ones((5, 1, 16), np.int64),
    )
    options = ("--inputs", "many.npz", "--budget", "3s", "--json")
    done = run_ortune("bench", TINY_ENCODER, *options, cwd=tmp_path, simulate=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"]["n_samples"] == 5


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of invalid models."""
    path = tmp_path_factory.mktemp("bad")
    (path / "text.onnx").write_text("not a model")
    (path / "truncated.onnx").write_bytes(TINY_CNN.read_bytes()[:5000])
    onnx.save(
        onnx.load(TINY_CNN), path / "external.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (path / "w.bin").unlink()
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")], "g", [x], [y])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path / "unknown.onnx")
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "nothing.onnx"], "There is no file nothing.onnx"),
        (["search", "text.onnx"], "not an ONNX model"),
        (["search", "truncated.onnx"], "truncated"),
        (["search", "external.onnx"], "w.bin is missing"),
        (["search", "unknown.onnx"], "Frobnicate"),
        (
            ["search", TINY_ENCODER, "--shape", "attention_mask=1x7", "--shape", "input_ids=1x8"],
            "does not run on these inputs",
        ),
        (["search", TINY_CNN, "--shape", "pixels=1x3x32x32"], "no input of that name"),
        (["search", TINY_CNN, "--shape", "image=axb"], "--shape image=axb"),
        (["search", TINY_ENCODER, "--dim", "width=3"], "no dimension of that name"),
        (["search", TINY_ENCODER, "--dim", "batch=0"], "--dim batch=0"),
        (["search", TINY_CNN, "--inputs", "nothing.npz"], "no such file or folder"),
        (["search", TINY_CNN, "-o", "no/such/folder/c.json"], "no folder"),
        (["search", TINY_CNN, "-o", "."], "is a folder"),
        (["search", TINY_CNN, "--budget", "0"], "--budget 0"),
        (["search", TINY_CNN, "--budget", "soon"], "not a duration"),
        (["search", TINY_CNN, "--trials", "0"], "--trials 0"),
        (["search", TINY_CNN, "--rtol", "-1"], "--rtol"),
        (["search", TINY_CNN, "--study", "study.xml"], ".xml"),
        (["search", TINY_CNN, "--strategy", "hope"], "adaptive, tpe, random, exhaustive"),
        (["search", TINY_CNN, "--study", "no/such/folder/study.db"], "Create it, or name another file"),
        (["search", TINY_CNN, "--clients", "0"], "--clients 0"),
        (["search", TINY_CNN, "--rate", "0"], "--rate 0"),
        (["search", TINY_CNN, "--objective", "speed"], "is not a figure. Choose one of p50, p90"),
        (["search", TINY_CNN, "--limit", "p99<fast"], "--limit p99<fast: is not a limit"),
        (["search", TINY_CNN, "--pareto", "p99"], "two or three"),
        (["search", TINY_CNN, "--beside", "no-such-program"], "there is no program no-such-program"),
        (["search", TINY_CNN, "--beside", "sh -c 'exit 4'"], "exited with status 4"),
        (["search", TINY_ENCODER, "--dim", "batch=1,"], "--dim batch=1,"),
        (["bench", TINY_CNN, "nothing.json"], "There is no file nothing.json"),
        (["bench", TINY_CNN, "--set", "intra_op_num_thread=1"], "Did you mean intra_op_num_threads"),
        (["bench", TINY_CNN, "--set", "intra_op_num_threads=many"], "Legal values: an integer from 0 to 9999"),
        (["bench", TINY_CNN, "--set", "global_thread_pool=2"], "ortune cannot set it"),
        (["bench", TINY_CNN, "--set", "ep.dynamic.workload_type=Efficient"], "ortune cannot set it"),
        (["bench", TINY_CNN, "--set", "intra_op_num_threads=1,session.x64quantprecision=x"], "x64quantprecision=x"),
        (
            ["bench", TINY_CNN, "--set", "session.intra_op.allow_spinning=true"],
            'value except "1" as off, including "true"',
        ),
        (["bench", TINY_CNN, "--budget", "0.1s"], "--budget 0.1s: too short to measure"),
        (["bench", TINY_CNN, "--budget", "0"], "--budget 0: must be positive"),
        (["search", TINY_CNN, "--rate", "1/min"], "--rate 1/min: too few requests"),
        (["search"], "Missing argument"),
        (["apply", "nothing.json"], "There is no file nothing.json"),
        (["apply", "text.onnx"], "is a model, and there is no CONFIG"),
        (["space", "text.onnx"], "not an ONNX model"),
        (["frobnicate"], "frobnicate: there is no such command"),
    ],
    ids=lambda value: " ".join(map(str, value)).replace(str(TINY_CNN.parent), "") if isinstance(value, list) else "",
)
def test_bad_input_has_a_message_and_exit_code_2(bad: Path, arguments: list[Any], message: str) -> None:
    before = set(bad.iterdir())
    done = run_ortune(*arguments, cwd=bad)
    assert done.returncode == 2
    assert message in re.sub(r"[│\s]+", " ", done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    assert set(bad.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"schema": 2}, 2, "has schema 2"),
        ({"extra": 1}, 2, "unknown field `extra`"),
        ({"model": {"path": "m.onnx", "digest": "sha256:0", "files": []}}, 2, "for another model"),
        ({"host": {"n_cores": 4096}}, 1, "physical cores: 4096 in the record"),
        ({"runtime": {"onnxruntime": "1.2.3"}}, 1, "pip install onnxruntime==1.2.3"),
        ({"config": {"session_config": {"session.dynamic_block_base": "x"}}}, 2, "must not set session.dynamic_block"),
        (
            {
                "config": {
                    "session_options": {"intra_op_num_threads": 3},
                    "session_config": {"session.intra_op_thread_affinities": "1"},
                }
            },
            1,
            "does not work",
        ),
        ({"config": {"providers": [["NoExecutionProvider", {}]]}}, 1, "NoExecutionProvider"),
    ],
    ids=[
        "newer schema",
        "unknown field",
        "other model",
        "other host",
        "other runtime",
        "bad value",
        "fault",
        "no provider",
    ],
)
def test_records_that_do_not_fit(tuned: Path, tmp_path: Path, change: dict[str, Any], code: int, message: str) -> None:
    document = json.loads(tuned.read_text())
    for name, value in change.items():
        if isinstance(value, dict) and name != "model":
            document[name].update(value)
        else:
            document[name] = value
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    # Only a real session shows that its options do not work.
    is_real = message in {"does not work", "NoExecutionProvider"}
    done = run_ortune("apply", path, TINY_CNN, cwd=tmp_path, simulate=not is_real)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert "Traceback" not in done.stderr + done.stdout


def test_apply_names_the_model_that_is_missing(tuned: Path, tmp_path: Path) -> None:
    document = json.loads(tuned.read_text())
    document["model"]["path"] = "gone.onnx"
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    done = run_ortune("apply", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "gone.onnx" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_sigterm_writes_the_best_so_far(tmp_path: Path) -> None:
    process = start_search(tmp_path)
    wait_for(process, "x [")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "Interrupted" in output
    assert "not proven" in output
    assert "Traceback" not in errors
    record = read_record(tmp_path / "tuned.json")
    assert record.search.interrupted
    assert record.evidence.verdict == "inconclusive"
    assert record.evidence.best_so_far is not None
    assert record.config.is_default


def test_an_interrupt_with_fixed_settings_keeps_a_proven_record(tmp_path: Path) -> None:
    proven = make_record(TINY_CNN, Config(session_options={"enable_mem_pattern": False}))
    assert proven.is_proven
    write(proven, tmp_path / "tuned.json")
    command = ("search", TINY_CNN, "-o", "tuned.json", "--budget", "60s", "--fix", "intra_op_num_threads=1")
    done = run_ortune(*command, cwd=tmp_path, simulate=Scenario(is_here=True, interrupt_at=100))
    assert done.returncode == 130, done.stdout + done.stderr
    assert "The search was interrupted" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
    record = read_record(tmp_path / "tuned.json")
    assert record.config == record.base == Config(session_options={"intra_op_num_threads": 1})
    assert record.search.interrupted
    assert record.evidence.verdict == "nothing_found"
    assert not record.is_proven
    assert read_record(tmp_path / "tuned.before.json") == proven


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("module", ["typer.main", "numpy", *long_params("rich.console", "rich.progress", "optuna")])
def test_an_interrupt_before_anything_is_measured_ends_at_once(tmp_path: Path, module: str) -> None:
    process = start_search(tmp_path, python=("-X", "importtime"))
    assert process.stderr
    for line in process.stderr:
        if line.rstrip().endswith(f" {module}"):
            break
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode in {130, -signal.SIGINT}, output + errors
    assert "Traceback" not in errors


def start_search(folder: Path, *options: str, python: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [sys.executable, *python, "-u", "-P", "-m", "ortune", "search", str(TINY_CNN), "-o", "tuned.json"]
    return subprocess.Popen(
        [*command, "--budget", "120s", "--only", "intra_op_num_threads", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
        # A background job of a script ignores SIGINT, and its child processes inherit that.
        preexec_fn=None if sys.platform == "win32" else restore_interrupts,
    )


def restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"did not print {text!r}")


def test_the_version(tmp_path: Path) -> None:
    assert run_ortune("--version", cwd=tmp_path).stdout == f"ortune {ortune.__version__}\n"


def test_a_record_is_written_as_it_is_encoded(tuned: Path) -> None:
    assert encode_record(read_record(tuned)) == tuned.read_bytes()
