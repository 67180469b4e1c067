"""Profiles: traces are read correctly, nothing is counted twice, and no foreign file is changed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from ortune import Config, InputsError, MeasureError, ModelError, RecordError, UsageError, read_record
from ortune.console.profile import make_ops_table, show_profile
from ortune.options import make_request
from ortune.profile.run import ConfigProfile, Profile, choose_inputs, count_sizes, profile
from ortune.profile.trace import Breakdown, EventArguments, TraceEvent, break_down, read_trace, split_runs
from ortune.record.files import encode_record
from ortune.requests import ProfileRequest
from ortune.workload import InputData, InputOptions
from tests.conftest import ROOT, TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record

pytestmark = pytest.mark.usefixtures("forked_children", "models_read_here")

EXAMPLE = ROOT / "tests" / "data" / "server.ortune.json"


def node(op: str, ts: int, dur: int, name: str = "", tid: int = 1) -> TraceEvent:
    return TraceEvent(
        "Node", f"{name or op.lower()}_kernel_time", tid, ts, dur, EventArguments(op, "CPUExecutionProvider")
    )


def executed(ts: int, dur: int, tid: int = 1) -> TraceEvent:
    return TraceEvent("Session", "SequentialExecutor::Execute", tid, ts, dur)


def run(ts: int, dur: int) -> TraceEvent:
    return TraceEvent("Session", "model_run", 1, ts, dur)


def ops_of(found: Breakdown) -> dict[str, tuple[float, float]]:
    return {share.op: (share.ns / 1000, share.calls) for share in found.ops}


def test_times_are_added_up_by_operator() -> None:
    events = [node("Conv", 1, 40, "a"), node("Conv", 41, 20, "b"), node("Relu", 61, 20), executed(0, 90), run(0, 100)]
    found = break_down(split_runs(events))
    assert ops_of(found) == {"Conv": (60, 2), "Relu": (20, 1)}
    assert (found.n_runs, found.run_ns, found.inside_ns, found.outside_ns) == (1, 100_000, 80_000, 20_000)
    assert [(share.name, share.share) for share in found.nodes] == [("a", 0.5), ("b", 0.25), ("relu", 0.25)]


def test_nested_nodes_are_not_counted_twice() -> None:
    events = [
        node("Abs", 0, 5),
        node("MatMul", 12, 30),  # the first iteration of the loop ...
        executed(11, 35),
        node("Relu", 50, 10),  # ... and a branch in the second
        executed(49, 12),
        node("If", 48, 15),
        executed(47, 20),
        node("Loop", 10, 70),
        node("Sin", 80, 10),
        executed(0, 95),
        run(0, 100),
    ]
    found = break_down(split_runs(events))
    assert ops_of(found) == {
        "MatMul": (30, 1),
        "Loop": (25, 1),  # 70 less 30 of the product and 15 of the branch
        "Sin": (10, 1),
        "Relu": (10, 1),
        "If": (5, 1),
        "Abs": (5, 1),
    }
    assert found.inside_ns == 85_000
    assert sum(share.ns for share in found.ops) == found.inside_ns


def test_consecutive_nodes_in_the_same_microsecond_are_not_nested() -> None:
    events = [node("Shape", 10, 0), node("Conv", 10, 7), executed(9, 9), run(9, 10)]
    assert ops_of(break_down(split_runs(events))) == {"Conv": (7, 1), "Shape": (0, 1)}


def test_parallel_operators_are_counted_once_in_the_time_inside_operators() -> None:
    events = [node("Conv", 10, 50, tid=2), node("MatMul", 30, 50, tid=3), executed(0, 95), run(0, 100)]
    found = break_down(split_runs(events))
    assert ops_of(found) == {"Conv": (50, 1), "MatMul": (50, 1)}
    assert (found.inside_ns, found.outside_ns) == (70_000, 30_000)


def test_medians_over_runs() -> None:
    events: list[TraceEvent] = []
    for number, took in enumerate((10, 1000, 12)):
        events += [node("Conv", 5000 * number, took), run(5000 * number, took + 3)]
    found = break_down(split_runs(events))
    assert ops_of(found) == {"Conv": (12, 1)}
    assert (found.run_ns, found.outside_ns) == (15_000, 3_000)


def test_incomplete_runs_are_ignored() -> None:
    events = [node("Conv", 0, 10), run(0, 12), node("Conv", 20, 10)]
    assert break_down(split_runs(events)).n_runs == 1
    with pytest.raises(MeasureError, match="no complete run"):
        break_down([])


def test_an_incomplete_trace_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"cat": "Session"')
    with pytest.raises(MeasureError, match="not a complete trace"):
        read_trace(path)


# Real traces.


def save_nested(path: Path) -> Path:
    """Save a model with a branch, then a loop of three iterations with a product each."""

    def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[Any] | None = None) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    make = helper.make_node
    then = helper.make_graph([make("Relu", ["x"], ["a"])], "then", [], [value("a")])
    other = helper.make_graph([make("Sigmoid", ["x"], ["b"])], "else", [], [value("b")])
    body = helper.make_graph(
        [make("Identity", ["c"], ["more"]), make("MatMul", ["s", "w"], ["product"])],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("s")],
        [value("more", TensorProto.BOOL, []), value("product")],
    )
    graph = helper.make_graph(
        [
            make("If", ["flag"], ["start"], then_branch=then, else_branch=other),
            make("Loop", ["rounds", "go", "start"], ["y"], body=body),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["batch", 64]), value("flag", TensorProto.BOOL, [])],
        [value("y")],
        [
            numpy_helper.from_array(np.full((64, 64), 0.01, np.float32), "w"),
            numpy_helper.from_array(np.array(3), "rounds"),
            numpy_helper.from_array(np.array(True), "go"),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_real_trace_with_a_loop(tmp_path: Path) -> None:
    request = ProfileRequest(model=str(save_nested(tmp_path / "m.onnx")), runs=5, output=tmp_path / "p")
    (found,) = profile(request).configs
    assert found.breakdown is not None
    assert found.breakdown.n_runs == 5
    calls = {share.op: share.calls for share in found.breakdown.ops}
    assert (calls["MatMul"], calls["Loop"], calls["If"], calls["Relu"]) == (3, 1, 1, 1)
    # The own times of all nodes of a run add up to the time of the nodes in the main graph.
    for traced_run in split_runs(read_trace(tmp_path / "p" / "default.json")):
        assert sum(traced_run.nodes_us.values()) == pytest.approx(
            traced_run.inside_us, abs=len(traced_run.nodes_us) + 3
        )
        assert traced_run.inside_us <= traced_run.total_us


def test_traces_replace_those_of_an_earlier_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = ProfileRequest(model=str(TINY_CNN), runs=2)
    (found,) = profile(request).configs
    folder = tmp_path / "tiny_cnn.profile"
    assert found.trace == str(Path("tiny_cnn.profile") / "default.json")
    first = (folder / "default.json").read_bytes()
    json.loads(first)
    (folder / "tuned.json").write_bytes(first)
    profile(request)
    assert [path.name for path in folder.iterdir()] == ["default.json"]
    assert (folder / "default.json").read_bytes() != first


@pytest.mark.parametrize("name", ["notes.txt", "default.json", "tuned.json"])
def test_foreign_files_are_not_changed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / name).write_text('{"my": "data"}')
    with pytest.raises(UsageError, match=rf"contains {name}, which was not written by ortune"):
        profile(ProfileRequest(model=str(TINY_CNN), runs=1, output=folder))
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text() == '{"my": "data"}'


def test_folders_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="there is a file of that name"):
        profile(ProfileRequest(model=str(TINY_CNN), output=tmp_path / "file"))
    with pytest.raises(UsageError, match="there is no folder"):
        profile(ProfileRequest(model=str(TINY_CNN), output=tmp_path / "a" / "b"))


def test_invalid_requests_are_rejected() -> None:
    with pytest.raises(UsageError, match="runs 0: must be at least 1"):
        make_request(ProfileRequest, {"model": str(TINY_CNN), "runs": "0"}, "cli")
    with pytest.raises(UsageError, match="batch=1,2: a profile covers one size"):
        profile(ProfileRequest(model=str(TINY_ENCODER), dim={"batch": (1, 2)}))
    record = read_record(EXAMPLE)
    other = msgspec.structs.replace(record.model, digest="sha256:" + "0" * 64)
    with pytest.raises(RecordError, match="for another model"):
        profile(ProfileRequest(model=str(TINY_CNN), config=msgspec.structs.replace(record, model=other)))


def test_a_model_that_does_not_run_leaves_no_folder(tmp_path: Path) -> None:
    target = numpy_helper.from_array(np.array([1, 77]), "target")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "target"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [target],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    folder = tmp_path / "p"
    with pytest.raises(InputsError, match="does not run"):
        profile(ProfileRequest(model=str(path), output=folder))
    assert not folder.exists()
    graph.node[0].op_type = "Foo"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(ModelError, match="cannot load"):
        profile(ProfileRequest(model=str(path), output=folder))
    assert not folder.exists()


# With a record.


def test_inputs_are_those_of_the_record_with_the_seed_of_the_user() -> None:
    record = read_record(EXAMPLE)
    inputs = {"x": InputData(dtype="int64", shapes=((1, 8), (1, 512)), origin="random")}
    workload = msgspec.structs.replace(record.workload, inputs=inputs)
    search = msgspec.structs.replace(record.search, seed=3)
    record = msgspec.structs.replace(record, workload=workload, search=search)
    for options, seed in (({}, 3), ({"seed": 0}, 0), ({"seed": 5}, 5)):
        request = make_request(ProfileRequest, {"model": "m.onnx", **options}, "cli")
        assert choose_inputs(request, record) == InputOptions(shapes={"x": (1, 8)}, seed=seed)
        assert choose_inputs(request, None).seed == options.get("seed", 0)
    given = make_request(ProfileRequest, {"model": "m.onnx", "shape": ["x=1x512"]}, "cli")
    assert choose_inputs(given, record) == InputOptions(shapes={"x": (1, 512)})
    assert count_sizes(record) == 2
    # There is an entry for each of several samples, which may have the same size.
    inputs["x"] = InputData(dtype="int64", shapes=((1, 8), (1, 512), (1, 8)), origin="random")
    inputs["y"] = InputData(dtype="int64", shapes=((1,),), origin="random")
    workload = msgspec.structs.replace(workload, inputs=inputs)
    assert count_sizes(msgspec.structs.replace(record, workload=workload)) == 2


@pytest.mark.parametrize("n_sizes", [1, 2])
def test_which_of_several_sizes_is_profiled(n_sizes: int) -> None:
    breakdown = break_down(split_runs([node("Conv", 1, 40), executed(0, 90), run(0, 100)]))
    inputs = {"x": InputData(dtype="int64", shapes=((1, 8),), origin="random")}
    configs = (ConfigProfile(name="default", config=Config(), breakdown=breakdown),)
    output = io.StringIO()
    console = Console(file=output, width=100)
    show_profile(console, Profile(model="m.onnx", inputs=inputs, configs=configs, n_sizes=n_sizes))
    note = "The record has 2 sizes of the inputs. This is the first one; --dim selects another."
    assert (note in output.getvalue()) == (n_sizes == 2)


def test_a_config_is_compared_with_the_default(tmp_path: Path) -> None:
    config = Config(
        session_options={"graph_optimization_level": "ORT_ENABLE_BASIC", "intra_op_num_threads": 1},
        environment={"ORTUNE_TEST_OF_PROFILE": "1"},
    )
    record = make_record(TINY_CNN, config)
    found = profile(ProfileRequest(model=str(TINY_CNN), config=record, runs=3, output=tmp_path / "p"))
    default, tuned = found.configs
    assert (default.name, default.config, tuned.name, tuned.config) == ("default", Config(), "tuned", config)
    assert default.breakdown is not None
    assert tuned.breakdown is not None
    # The basic level does not fuse Relu into convolutions.
    assert "Relu" in {share.op for share in tuned.breakdown.ops}
    assert "Relu" not in {share.op for share in default.breakdown.ops}
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["default.json", "tuned.json"]
    table = make_ops_table({"default": default.breakdown, "tuned": tuned.breakdown})
    assert [column.header for column in table.columns][-1] == "default/tuned"


def test_both_make_calls_with_as_many_items_as_the_record(tmp_path: Path) -> None:
    record = make_record(TINY_ENCODER, Config(batch=3, session_options={"intra_op_num_threads": 1}))
    request = ProfileRequest(
        model=str(TINY_ENCODER), config=record, runs=2, output=tmp_path / "p", dim={"batch": (1,), "sequence": (7,)}
    )
    found = profile(request).configs
    assert [config_profile.config.batch for config_profile in found] == [3, 3]
    for config_profile in found:
        assert config_profile.trace
        assert re.search(r'"input_type_shape" ?: ?\[\{"float":\[3,7,16\]', Path(config_profile.trace).read_text())


def test_items_are_not_put_together_twice(tmp_path: Path) -> None:
    record = make_record(TINY_ENCODER, Config(batch=3))
    with pytest.raises(InputsError):
        profile(ProfileRequest(model=str(TINY_ENCODER), config=record, output=tmp_path / "p", dim={"batch": (3,)}))


def test_a_model_that_does_not_run_is_an_error_beside_a_record_too(tmp_path: Path) -> None:
    record = make_record(TINY_ENCODER, Config(session_options={"intra_op_num_threads": 1}))
    request = ProfileRequest(
        model=str(TINY_ENCODER), config=record, output=tmp_path / "p", dim={"sequence": (999_999,)}
    )
    with pytest.raises((InputsError, ModelError)):
        profile(request)


def test_a_config_that_fails_is_a_value(tmp_path: Path) -> None:
    config = Config(
        session_options={"intra_op_num_threads": 2}, session_config={"session.intra_op_thread_affinities": "1;1"}
    )
    request = ProfileRequest(model=str(TINY_CNN), config=make_record(TINY_CNN, config), runs=2, output=tmp_path / "p")
    default, tuned = profile(request).configs
    assert default.breakdown is not None
    assert tuned.failure is not None
    assert tuned.failure.stage == "load"
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["default.json"]


# The command line.


def test_output_and_exit_codes(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(encode_record(make_record(TINY_CNN, Config(session_options={"intra_op_num_threads": 1}))))
    done = run_ortune("profile", TINY_CNN, path, "--runs", 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "default/tuned" in done.stdout
    assert "ui.perfetto.dev" in done.stdout
    assert (tmp_path / "tiny_cnn.profile" / "tuned.json").is_file()
    assert max(map(len, done.stdout.splitlines())) <= 100
    done = run_ortune("profile", TINY_CNN, "--runs", 3, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["configs"]
    assert found["breakdown"]["n_runs"] == 3


def test_a_config_that_fails_ends_with_exit_code_1(tmp_path: Path) -> None:
    config = Config(
        session_options={"intra_op_num_threads": 3}, session_config={"session.intra_op_thread_affinities": "1"}
    )
    path = tmp_path / "c.json"
    path.write_bytes(encode_record(make_record(TINY_CNN, config)))
    done = run_ortune("profile", TINY_CNN, path, "--runs", 2, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "tuned failed: exception" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "There is no file"),
        ([TINY_CNN, "nothing.json"], "There is no file"),
        ([TINY_CNN, "--runs", 0], "--runs 0"),
        ([TINY_CNN, "-o", "file"], "there is a file of that name"),
        ([TINY_CNN, "--dim", "batch=2"], "no dimension"),
    ],
)
def test_invalid_input_is_reported(tmp_path: Path, arguments: list[object], message: str) -> None:
    (tmp_path / "file").write_text("")
    done = run_ortune("profile", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
