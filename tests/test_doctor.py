"""The doctor: each problem is found in a model that has it, and not in a model without it."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortune import InputsError, ModelError, UsageError
from ortune.doctor import checks, optimized_graph
from ortune.doctor.checks import CHECKS, Check, run_checks
from ortune.doctor.checks.graph import check_constants, check_layout, check_overhead
from ortune.doctor.checks.loading import check_creation, check_opset
from ortune.doctor.checks.placement import check_cuda_graphs, check_placement, check_providers
from ortune.doctor.checks.precision import check_float64
from ortune.doctor.examine import add_runtime_facts, examine, find_providers
from ortune.doctor.facts import Missing, ModelFacts
from ortune.doctor.findings import Diagnosis, DoctorFinding, ok, warn
from ortune.doctor.optimized_graph import AssignedNode
from ortune.errors import spell_as_flag
from ortune.model.graph import Graph, GraphInput, Node, Weight, read_graph
from ortune.requests import DoctorRequest
from ortune.worker import Failure, Runtime
from ortune.worker.failure import FailureKind
from tests.conftest import ROOT, TINY_CNN, run_ortune, run_program

pytestmark = pytest.mark.usefixtures("forked_children", "models_read_here")

FLOAT = TensorProto.FLOAT
MAKE = helper.make_node


def value(name: str, kind: int = FLOAT, shape: Sequence[Any] | None = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int, dtype: Any = np.float32, fill: float = 0.01) -> Any:
    return numpy_helper.from_array(np.full(shape, fill, dtype), name)


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Sequence[str] = (),
    functions: Sequence[Any] = (),
) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=list(functions))
    onnx.save(model, path)
    return path


def save_chain(
    path: Path, *nodes: Any, weights: Sequence[Any] = (), shape: Sequence[Any] = (1, 64), **more: Any
) -> Path:
    """Save a model whose input is x and whose output is y, both float32."""
    return save(path, nodes, [value("x", FLOAT, shape)], [value("y")], weights, **more)


def diagnose(path: Path, **options: Any) -> dict[str, DoctorFinding]:
    """Return the findings by the name of their check. Sessions are created, but not run."""
    facts = add_runtime_facts(
        ModelFacts(path=str(path), original=read_graph(path), **options), None, path.stat().st_size
    )
    return {finding.check: finding for finding in run_checks(CHECKS, facts)[0]}


TIMED = {"creation", "overhead"}
"""Checks whose results depend on how busy the host is. They have tests of their own."""


def severities(findings: dict[str, DoctorFinding]) -> dict[str, str]:
    """Return how bad each finding is that is not ok and does not rest on times."""
    return {
        name: finding.severity for name, finding in findings.items() if finding.severity != "ok" and name not in TIMED
    }


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return save_chain(
        tmp_path / "clean.onnx",
        MAKE("Gemm", ["x", "w", "b"], ["h"]),
        MAKE("Relu", ["h"], ["r"]),
        MAKE("MatMul", ["r", "w"], ["l"]),
        MAKE("Softmax", ["l"], ["y"]),
        weights=[weight("w", 64, 64), weight("b", 64)],
    )


RUNS_SHORT = """
import sys
from ortune.__main__ import main
from ortune.doctor import optimized_graph

optimized_graph.BLOCK_S = 0.001
optimized_graph.ask_child = lambda module, request, reply, *, deadline_s: (
    optimized_graph.optimize_model(request, lambda stage: None)
)
sys.argv[1:1] = ["doctor"]
main()
"""
"""A command that runs the model in its own process, for no longer than it must."""


@pytest.fixture
def optimized_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run models in this process, for no longer than it takes to know that they run."""

    def ask(module: str, request: Any, reply: type, *, deadline_s: float) -> Any:
        return optimized_graph.optimize_model(request, lambda stage: None)

    monkeypatch.setattr(optimized_graph, "ask_child", ask)
    monkeypatch.setattr(optimized_graph, "BLOCK_S", 0.001)


@pytest.fixture
def no_files_left(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Check that no temporary file is left."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_files_left", "optimized_here")
def test_a_clean_model_is_fine(clean: Path) -> None:
    diagnosis = examine(DoctorRequest(model=str(clean)))
    assert [finding for finding in diagnosis.findings if finding.severity != "ok"] == []
    assert diagnosis.skipped == ()
    assert {"loading", "initializers", "constants", "creation", "overhead"} <= {
        finding.check for finding in diagnosis.findings
    }
    assert (diagnosis.n_nodes, diagnosis.n_optimized) == (4, 3)


# The file.


def save_overridable(path: Path, ir_version: int) -> Path:
    return save(
        path,
        [MAKE("Add", ["w", "v"], ["sum"]), MAKE("MatMul", ["x", "sum"], ["y"])],
        [value("x", FLOAT, [1, 4]), value("w", FLOAT, [4, 4]), value("v", FLOAT, [4, 4])],
        [value("y")],
        [weight("w", 4, 4), weight("v", 4, 4)],
        ir_version=ir_version,
    )


def test_initializers_among_the_inputs_prevent_folding(tmp_path: Path) -> None:
    path = save_overridable(tmp_path / "m.onnx", 8)
    findings = diagnose(path)
    assert severities(findings) == {"initializers": "problem"}
    assert "2 of 2 initializers" in findings["initializers"].what
    run_fix(findings["initializers"].command)
    assert severities(diagnose(tmp_path / "m.fixed.onnx")) == {}


def run_fix(command: str) -> None:
    parts = shlex.split(command)
    assert parts[0] == "python"
    subprocess.run([sys.executable, *parts[1:]], check=True, capture_output=True, timeout=120)


def test_onnx_runtime_folds_initializers_among_the_inputs_up_to_ir_version_3(tmp_path: Path) -> None:
    for ir_version, n_nodes in ((3, 1), (4, 2)):
        path = save_overridable(tmp_path / f"{ir_version}.onnx", ir_version)
        facts = add_runtime_facts(ModelFacts(path=str(path), original=read_graph(path)), None, 1000)
        assert facts.optimized is not None
        assert len(facts.optimized.nodes) == n_nodes
    assert severities(diagnose(tmp_path / "3.onnx")) == {}


@pytest.mark.parametrize(
    ("opset", "op", "severity"),
    [(6, "Relu", "advice"), (9, "Relu", "ok"), (12, "Erf", "advice"), (13, "Erf", "ok")],
)
def test_old_opsets(opset: int, op: str, severity: str) -> None:
    nodes = (Node(op=op, inputs=("x",), outputs=("h",)), Node(op=op, inputs=("h",), outputs=("y",)))
    graph = Graph(ir_version=8, opsets={"": opset}, nodes=nodes)
    found = check_opset(ModelFacts(path="m.onnx", original=graph))
    assert found.severity == severity
    assert f"opset {opset}" in found.what


def test_the_opset_of_trees_does_not_matter() -> None:
    nodes = (Node(op="TreeEnsembleRegressor", domain="ai.onnx.ml"),)
    graph = Graph(ir_version=8, opsets={"": 6, "ai.onnx.ml": 1}, nodes=nodes)
    assert check_opset(ModelFacts(path="m.onnx", original=graph)).severity == "ok"


def test_custom_operators_are_named(tmp_path: Path) -> None:
    path = save_chain(tmp_path / "m.onnx", MAKE("Foo", ["x"], ["y"], domain="my.ops"), domains=["my.ops"])
    findings = diagnose(path)
    assert severities(findings) == {"loading": "problem", "operators": "problem"}
    assert "my.ops" in findings["operators"].what
    assert "register_custom_ops_library" in findings["operators"].command
    assert "my.ops:Foo" in findings["loading"].why


def test_extensions_are_known_by_name(tmp_path: Path) -> None:
    node = MAKE("BertTokenizer", ["x"], ["y"], domain="ai.onnx.contrib")
    findings = diagnose(save_chain(tmp_path / "m.onnx", node, domains=["ai.onnx.contrib"]))
    assert "onnxruntime_extensions" in findings["operators"].command


def test_an_unknown_onnx_operator_is_named(tmp_path: Path) -> None:
    findings = diagnose(save_chain(tmp_path / "m.onnx", MAKE("Foo", ["x"], ["y"])))
    assert severities(findings) == {"loading": "problem", "operators": "problem"}
    assert "1 Foo" in findings["operators"].what


def test_a_missing_kernel_is_reported_with_onnx_runtimes_message(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [MAKE("Conv", ["x", "w"], ["y"])],
        [value("x", TensorProto.DOUBLE, [1, 1, 4, 4])],
        [value("y", TensorProto.DOUBLE)],
        [weight("w", 1, 1, 3, 3, dtype=np.float64)],
    )
    findings = diagnose(path)
    assert severities(findings) == {"loading": "problem", "float64": "advice"}
    assert "Could not find an implementation for Conv" in findings["loading"].why
    assert "float32" in findings["loading"].fix


def test_functions_of_the_model_are_not_custom_operators(tmp_path: Path) -> None:
    body = helper.make_function(
        "own", "Twice", ["a"], ["b"], [MAKE("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    node = MAKE("Twice", ["x"], ["y"], domain="own")
    assert severities(diagnose(save_chain(tmp_path / "m.onnx", node, domains=["own"], functions=[body]))) == {}


@pytest.mark.usefixtures("no_files_left")
def test_missing_external_data_is_named_with_its_size(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load(TINY_CNN), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert "external data" not in severities(diagnose(path))
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-64])
    assert "has only" in diagnose(path)["external data"].what
    data.unlink()
    diagnosis = examine(DoctorRequest(model=str(path)))
    found = {finding.check: finding for finding in diagnosis.findings}
    assert diagnosis.has_problem
    assert re.search(r"weights\.bin \(at least \d+ \w+\) is missing", found["external data"].what)
    assert found["loading"].severity == "problem"
    assert found["initializers"].severity == "ok"
    assert {skipped.check for skipped in diagnosis.skipped} >= {"attention", "layout", "creation"}
    assert all("cannot load" in skipped.why for skipped in diagnosis.skipped)


class Ended(BaseException):
    """Ends the simulated child process."""


@pytest.mark.parametrize(
    ("stage", "kind", "why"),
    [
        ("_time_runs", "timeout", "the checks took longer than 900 s, and ended while ONNX Runtime ran the model"),
        ("_time_runs", "crash", "the process ended while ONNX Runtime ran the model: gone"),
        ("write_graph", "out_of_memory", "the process ended while ONNX Runtime wrote the optimized graph: gone"),
    ],
)
def test_a_model_that_was_loaded_is_not_called_broken_if_the_child_ends_later(
    stage: str, kind: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnosis = examine_until(stage, kind, monkeypatch)
    found = {finding.check: finding for finding in diagnosis.findings}
    assert not diagnosis.has_problem
    assert found["loading"].severity == "ok"
    assert found["providers"].severity == "ok"
    assert {skipped.why for skipped in diagnosis.skipped} == {why}
    skipped = {skipped.check for skipped in diagnosis.skipped}
    assert {"attention", "overhead"} <= skipped
    # What was known before is kept.
    assert ("creation" in skipped) == (stage == "_time_runs")


def test_a_provider_that_ends_the_process_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.doctor.examine.find_providers", lambda named, runtime: ("CUDAExecutionProvider",))
    diagnosis = examine_until("_place_nodes", "crash", monkeypatch)
    found = {finding.check: finding for finding in diagnosis.findings}
    assert "no session can be created with CUDA" in found["providers"].what
    assert "gone" in found["providers"].why
    assert {"loading", "creation", "layout", "overhead"} <= set(found)
    diagnosis = examine_until("_place_nodes", "timeout", monkeypatch)
    assert {skipped.check for skipped in diagnosis.skipped} == {"providers", "placement"}


def test_a_model_that_takes_too_long_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = examine_until("time_session_creation", "timeout", monkeypatch)
    (problem,) = [finding for finding in diagnosis.findings if finding.severity == "problem"]
    assert problem.what == "ONNX Runtime did not load the model: gone"
    assert "onnx.checker" not in problem.fix + problem.command
    assert {skipped.why for skipped in diagnosis.skipped} == {"ONNX Runtime did not load the model in time"}


def examine_until(stage: str, kind: FailureKind, monkeypatch: pytest.MonkeyPatch) -> Diagnosis:
    """Return the diagnosis of a model for which the child process ends in a stage."""

    def end(*arguments: Any, **options: Any) -> Any:
        raise Ended

    def ask(module: str, request: Any, reply: type, *, deadline_s: float) -> Any:
        with pytest.raises(Ended):
            optimized_graph.optimize_model(request, lambda name: None)
        return Failure(kind=kind, stage="load", message="gone")

    monkeypatch.setattr(optimized_graph, stage, end)
    monkeypatch.setattr(optimized_graph, "ask_child", ask)
    monkeypatch.setattr(optimized_graph, "BLOCK_S", 0.001)
    return examine(DoctorRequest(model=str(TINY_CNN)))


# The graph.


def save_nhwc(path: Path, n_convolutions: int) -> Path:
    """Save convolutions between products over the last axis, where NHWC has its channels."""
    nodes = []
    for number in range(n_convolutions):
        source = f"s{number}" if number else "x"
        target = f"s{number + 1}" if number + 1 < n_convolutions else "y"
        nodes += [
            MAKE("Transpose", [source], [f"a{number}"], perm=[0, 3, 1, 2]),
            MAKE("Conv", [f"a{number}", "w"], [f"b{number}"]),
            MAKE("Transpose", [f"b{number}"], [f"c{number}"], perm=[0, 2, 3, 1]),
            MAKE("MatMul", [f"c{number}", "product"], [target]),
        ]
    return save_chain(path, *nodes, weights=[weight("w", 4, 4, 1, 1), weight("product", 4, 4)], shape=[1, 8, 8, 4])


def test_transposes_between_layouts(tmp_path: Path) -> None:
    findings = diagnose(save_nhwc(tmp_path / "m.onnx", 3))
    assert severities(findings) == {"layout": "advice"}
    assert "6 transposes" in findings["layout"].what


def test_one_round_trip_between_layouts_is_fine(tmp_path: Path) -> None:
    assert severities(diagnose(save_nhwc(tmp_path / "m.onnx", 1))) == {}


@pytest.mark.parametrize(("extended_ns", "severity"), [(70, "advice"), (100, "ok"), (130, "ok")])
def test_reorders_are_reported_if_a_trial_is_faster_without_them(extended_ns: int, severity: str) -> None:
    nodes = (Node(op="ReorderInput"), Node(op="Conv"), Node(op="ReorderOutput"))
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=nodes)
    times = {"ORT_ENABLE_ALL": 100, "ORT_ENABLE_EXTENDED": extended_ns}
    found = check_layout(ModelFacts(path="m.onnx", original=graph, extended=graph, optimized=graph, run_ns=times))
    assert found is not None
    assert found.severity == severity
    assert "2 reorders" in found.what


def gelu(with_tanh: bool) -> list[Any]:
    if with_tanh:
        inner = [
            MAKE("Pow", ["m", "three"], ["cube"]),
            MAKE("Mul", ["cube", "k"], ["scaled"]),
            MAKE("Add", ["m", "scaled"], ["sum"]),
            MAKE("Mul", ["sum", "c"], ["t"]),
            MAKE("Tanh", ["t"], ["e"]),
        ]
    else:
        inner = [MAKE("Div", ["m", "root"], ["d"]), MAKE("Erf", ["d"], ["e"])]
    return [
        MAKE("MatMul", ["x", "w"], ["m"]),
        *inner,
        MAKE("Add", ["e", "one"], ["p"]),
        MAKE("Mul", ["m", "p"], ["q"]),
        MAKE("Mul", ["q", "half"], ["y"]),
    ]


CONSTANTS = {"root": 1.41421356, "one": 1.0, "half": 0.5, "three": 3.0, "k": 0.044715, "c": 0.7978845608}
GELU_WEIGHTS = [weight("w", 64, 64), *(weight(name, fill=number) for name, number in CONSTANTS.items())]


def test_a_gelu_that_onnx_runtime_fuses_is_fine(tmp_path: Path) -> None:
    findings = diagnose(save_chain(tmp_path / "m.onnx", *gelu(with_tanh=False), weights=GELU_WEIGHTS))
    assert severities(findings) == {}
    assert findings["GELU"].what == "1 GELU, all fused"


def test_a_gelu_that_is_not_fused(tmp_path: Path) -> None:
    findings = diagnose(save_chain(tmp_path / "m.onnx", *gelu(with_tanh=True), weights=GELU_WEIGHTS))
    assert severities(findings) == {"GELU": "advice"}
    assert "Tanh" in findings["GELU"].what


def test_a_gate_is_not_a_gelu(tmp_path: Path) -> None:
    nodes = [MAKE("Tanh", ["x"], ["t"]), MAKE("Sigmoid", ["x"], ["s"]), MAKE("Mul", ["t", "s"], ["y"])]
    assert "GELU" not in diagnose(save_chain(tmp_path / "m.onnx", *nodes))


def test_an_attention_block_that_is_not_fused(tmp_path: Path) -> None:
    nodes = [
        MAKE("MatMul", ["x", "q"], ["query"]),
        MAKE("MatMul", ["x", "w"], ["key"]),
        MAKE("Transpose", ["key"], ["turned"], perm=[0, 2, 1]),
        MAKE("MatMul", ["query", "turned"], ["scores"]),
        MAKE("Div", ["scores", "eight"], ["scaled"]),
        MAKE("Add", ["scaled", "mask"], ["masked"]),
        MAKE("Softmax", ["masked"], ["shares"]),
        MAKE("MatMul", ["shares", "x"], ["y"]),
    ]
    weights = [weight("q", 64, 64), weight("w", 64, 64), weight("eight", fill=8), weight("mask", 1, 16, 16)]
    findings = diagnose(save_chain(tmp_path / "m.onnx", *nodes, weights=weights, shape=[1, 16, 64]))
    assert severities(findings) == {"attention": "advice"}
    assert findings["attention"].what == "1 attention block not fused"


def quantize(name: str, source: str, scale: str = "scale", zero: str = "zero") -> list[Any]:
    return [
        MAKE("QuantizeLinear", [source, scale, zero], [f"{name}_q"]),
        MAKE("DequantizeLinear", [f"{name}_q", scale, zero], [name]),
    ]


def save_qdq(path: Path, *, whole: bool) -> Path:
    nodes = [
        *(quantize("in", "x") if whole else []),
        MAKE("DequantizeLinear", ["w", "wscale", "wzero"], ["wd"]),
        MAKE("Conv", ["in" if whole else "x", "wd"], ["c" if whole else "y"]),
        *(quantize("y", "c") if whole else []),
    ]
    weights = [
        weight("w", 4, 4, 1, 1, dtype=np.int8, fill=3),
        weight("wscale", fill=0.1),
        weight("wzero", dtype=np.int8, fill=0),
        weight("scale", fill=0.1),
        weight("zero", dtype=np.uint8, fill=128),
    ]
    return save_chain(path, *nodes, weights=weights, shape=[1, 4, 8, 8])


def test_a_quantized_graph_that_runs_in_float(tmp_path: Path) -> None:
    findings = diagnose(save_qdq(tmp_path / "m.onnx", whole=False))
    assert severities(findings) == {"quantization": "advice"}
    assert "1 Conv of a quantized graph" in findings["quantization"].what


def test_a_quantized_graph_that_runs_in_integers(tmp_path: Path) -> None:
    findings = diagnose(save_qdq(tmp_path / "m.onnx", whole=True))
    assert severities(findings) == {}
    assert "1 of 3" in findings["quantization"].what


def test_chains_of_casts(tmp_path: Path) -> None:
    nodes = []
    for number in range(3):
        target = f"r{number + 1}" if number < 2 else "y"
        nodes += [
            MAKE("Cast", [f"r{number}" if number else "x"], [f"a{number}"], to=TensorProto.FLOAT16),
            MAKE("Cast", [f"a{number}"], [f"b{number}"], to=FLOAT),
            MAKE("Sin", [f"b{number}"], [target]),
        ]
    findings = diagnose(save_chain(tmp_path / "m.onnx", *nodes))
    assert severities(findings) == {"casts": "advice"}
    assert "3 casts" in findings["casts"].what


def test_double_precision(tmp_path: Path) -> None:
    nodes = [
        MAKE("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
        MAKE("MatMul", ["d", "w"], ["m"]),
        MAKE("Cast", ["m"], ["y"], to=FLOAT),
    ]
    findings = diagnose(save_chain(tmp_path / "m.onnx", *nodes, weights=[weight("w", 64, 64, dtype=np.float64)]))
    assert severities(findings) == {"float64": "advice"}
    assert "1 MatMul" in findings["float64"].what


def test_a_model_without_nodes_has_none_in_float64() -> None:
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=())
    found = check_float64(ModelFacts(path="m.onnx", original=graph))
    assert (found.severity, found.what) == ("ok", "no nodes in float64")


def save_shapes(path: Path) -> Path:
    nodes = [
        MAKE("Shape", ["x"], ["shape"]),
        MAKE("Gather", ["shape", "first"], ["batch"]),
        MAKE("Mul", ["batch", "two"], ["doubled"]),
        MAKE("Unsqueeze", ["doubled", "axes"], ["list"]),
        MAKE("Concat", ["list", "rest"], ["target"], axis=0),
        MAKE("Expand", ["w", "target"], ["wide"]),
        MAKE("Gemm", ["wide", "v"], ["y"]),
    ]
    numbers = {"first": np.int64(0), "axes": np.array([0]), "rest": np.array([64]), "two": np.int64(2)}
    weights = [
        weight("w", 1, 64),
        weight("v", 64, 8),
        *(numpy_helper.from_array(np.asarray(v), name) for name, v in numbers.items()),
    ]
    return save_chain(path, *nodes, weights=weights, shape=["batch", 64])


@pytest.mark.usefixtures("optimized_here")
def test_shapes_that_are_computed_in_every_run(tmp_path: Path) -> None:
    path = save_shapes(tmp_path / "m.onnx")
    diagnosis = examine(DoctorRequest(model=str(path), dim={"batch": (3,)}))
    found = {finding.check: finding for finding in diagnosis.findings}
    assert found["shapes"].severity == "advice"
    assert "batch" in found["shapes"].what
    assert "--input_shape 3,64" in found["shapes"].command
    run_fix(found["shapes"].command)
    fixed = diagnose(tmp_path / "m.fixed.onnx")
    assert fixed["shapes"].what == "all input sizes are fixed"


def test_branches(tmp_path: Path) -> None:
    then = helper.make_graph([MAKE("Relu", ["x"], ["a"])], "then", [], [value("a")])
    other = helper.make_graph([MAKE("Sin", ["x"], ["b"]), MAKE("Cos", ["b"], ["c"])], "else", [], [value("c")])
    nodes = [MAKE("If", ["flag"], ["y"], then_branch=then, else_branch=other)]
    inputs = [value("x", FLOAT, [1, 4]), value("flag", TensorProto.BOOL, [])]
    findings = diagnose(save(tmp_path / "m.onnx", nodes, inputs, [value("y")]))
    assert severities(findings) == {"control flow": "advice"}
    assert findings["control flow"].what == "1 If with 3 nodes inside"
    # The fix: with a constant condition one branch is kept.
    constant = save(
        tmp_path / "c.onnx", nodes, inputs[:1], [value("y")], [numpy_helper.from_array(np.array(True), "flag")]
    )
    assert severities(diagnose(constant)) == {}


def test_weights_that_grow_when_folded(tmp_path: Path) -> None:
    nodes = [
        MAKE("Cast", ["w"], ["float"], to=FLOAT),
        MAKE("Mul", ["float", "scale"], ["scaled"]),
        MAKE("MatMul", ["x", "scaled"], ["y"]),
    ]
    weights = [weight("w", 1024, 6144, dtype=np.int8, fill=3), weight("scale", fill=0.1)]
    findings = diagnose(save_chain(tmp_path / "m.onnx", *nodes, weights=weights, shape=[1, 1024]))
    assert severities(findings) == {"constants": "advice"}
    assert "6.3 MB of weights into 25 MB" in findings["constants"].what
    assert "quantize" in findings["constants"].command


def test_large_constants_in_nodes() -> None:
    held = Weight(name="w", dtype="float32", shape=(5_000_000,), n_bytes=20_000_000, in_node=True)
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=(), weights=(held,))
    folded = msgspec.structs.replace(graph, weights=(msgspec.structs.replace(held, in_node=False),))
    assert check_constants(ModelFacts(path="m", original=graph, extended=folded)).severity == "advice"
    assert check_constants(ModelFacts(path="m", original=folded, extended=folded)).severity == "ok"


# Providers.


@pytest.mark.usefixtures("optimized_here")
def test_a_provider_that_takes_nothing(clean: Path) -> None:
    diagnosis = examine(DoctorRequest(model=str(clean), provider=("azure",)))
    found = {finding.check: finding for finding in diagnosis.findings}
    assert found["placement"].severity == "problem"
    assert "takes none of" in found["placement"].what


def facts_on_cuda(*nodes: tuple[str, str], **more: Any) -> ModelFacts:
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=tuple(Node(op=op) for _, op in nodes))
    assigned = tuple(AssignedNode(provider=f"{provider}ExecutionProvider", op=op) for provider, op in nodes)
    providers = ("CUDAExecutionProvider",)
    return ModelFacts(
        path="m.onnx",
        original=graph,
        optimized=graph,
        **{
            "providers": providers,
            "session_providers": providers,
            "assigned": assigned,
            "providers_named": True,
            **more,
        },
    )


def facts_on_two(*nodes: tuple[str, str], used: Sequence[str] = ("Tensorrt", "CUDA", "CPU")) -> ModelFacts:
    providers = ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    session_providers = tuple(f"{name}ExecutionProvider" for name in used)
    return facts_on_cuda(*nodes, providers=providers, session_providers=session_providers)


@pytest.mark.parametrize(
    ("facts", "severity", "what"),
    [
        (facts_on_cuda(("CUDA", "Conv"), ("CUDA", "Relu")), "ok", "CUDA takes 2 of 2"),
        (facts_on_cuda(("CUDA", "Conv"), ("CPU", "Shape")), "ok", "the CPU computes shapes"),
        (facts_on_cuda(("CUDA", "Conv"), ("CPU", "NonMaxSuppression")), "advice", "1 NonMaxSuppression"),
        (facts_on_cuda(("CPU", "Conv")), "problem", "takes none of 1 node"),
        (facts_on_cuda(("CPU", "Conv"), providers_named=False), "advice", "takes none of 1 node"),
        (facts_on_cuda(("CPU", "Conv"), session_providers=()), "problem", "does not work here"),
        (facts_on_cuda(provider_error="libcudnn.so.9: cannot open"), "problem", "no session can be created"),
        (facts_on_two(("CUDA", "Conv"), used=("CUDA", "CPU")), "problem", "Tensorrt does not work here"),
        (facts_on_two(("CPU", "Conv"), used=("CPU",)), "problem", "Tensorrt, CUDA do not work here"),
        (facts_on_two(("CUDA", "Conv")), "problem", "Tensorrt takes none of 1 node; CUDA takes 1"),
        (facts_on_two(("CPU", "Conv")), "problem", "Tensorrt, CUDA take none of 1 node"),
        (facts_on_two(("Tensorrt", "Conv")), "ok", "Tensorrt takes 1 of 1"),
        (facts_on_two(("Tensorrt", "Conv"), ("CUDA", "Relu")), "ok", "Tensorrt takes 1 and CUDA takes 1 of 2 nodes"),
        (facts_on_two(("Tensorrt", "Conv"), ("CPU", "NonMaxSuppression")), "advice", "instead of Tensorrt: "),
    ],
)
def test_where_nodes_run(facts: ModelFacts, severity: str, what: str) -> None:
    found = check_providers(facts) or check_placement(facts)
    assert found
    assert found.severity == severity
    assert what in found.what


def test_the_cpu_computes_shapes_only_if_it_has_nodes() -> None:
    found = check_placement(facts_on_cuda(("CUDA", "Conv")))
    assert found
    assert found.what == "CUDA takes 1 of 1 nodes"


def test_a_version_that_does_not_report_where_nodes_run() -> None:
    """Whether the session uses the provider is known then, too."""
    facts = facts_on_cuda(("CUDA", "Conv"), assigned=None, missing={"assigned": Missing("this version does not")})
    findings, skipped = run_checks(CHECKS, facts)
    assert not [finding for finding in findings if finding.check in {"providers", "placement", "CUDA graphs"}]
    assert [skip.check for skip in skipped if skip.why == "this version does not"] == ["placement"]


@pytest.mark.parametrize("facts", [{"session_providers": ()}, {"session_providers": (), "provider_error": "no driver"}])
def test_without_cuda_nothing_is_said_about_cuda_graphs(facts: dict[str, Any]) -> None:
    findings, skipped = run_checks(CHECKS, facts_on_cuda(assigned=(), **facts))
    assert [finding.check for finding in findings if finding.check in {"providers", "placement", "CUDA graphs"}] == [
        "providers"
    ]
    assert not {skip.check for skip in skipped} & {"placement", "CUDA graphs"}


def test_what_prevents_cuda_graphs() -> None:
    capturable = check_cuda_graphs(facts_on_cuda(("CUDA", "Conv")))
    assert capturable is not None
    assert capturable.severity == "ok"
    with_shapes = check_cuda_graphs(facts_on_cuda(("CUDA", "Conv"), ("CPU", "Shape"), ("CPU", "Gather")))
    assert with_shapes is not None
    assert with_shapes.severity == "ok"
    sized_by_data = check_cuda_graphs(facts_on_cuda(("CUDA", "Conv"), ("CPU", "NonZero")))
    assert sized_by_data is not None
    assert sized_by_data.severity == "advice"
    blocked = check_cuda_graphs(facts_on_cuda(("CUDA", "If"), ("CPU", "NonMaxSuppression")))
    assert blocked is not None
    assert blocked.what.endswith("control flow and nodes on the CPU")
    assert check_cuda_graphs(facts_on_cuda(("CPU", "If"), providers=())) is None


def test_providers_are_found_by_short_names() -> None:
    runtime = Runtime(
        onnxruntime="1", python="3", ortune="0", providers=("CUDAExecutionProvider", "CPUExecutionProvider")
    )
    assert find_providers(("cuda", "CUDAExecutionProvider", "cpu"), runtime) == ("CUDAExecutionProvider",)
    assert find_providers((), runtime) == ("CUDAExecutionProvider",)
    with pytest.raises(UsageError, match="no such provider; it has CUDAExecutionProvider"):
        find_providers(("openvino",), runtime)


# Times.


@pytest.mark.parametrize(
    ("plain_s", "total_s", "severity"), [(0.3, 1.0, "advice"), (0.6, 1.0, "ok"), (0.01, 0.2, "ok")]
)
def test_creation_that_is_mostly_optimization(plain_s: float, total_s: float, severity: str) -> None:
    times = {"ORT_DISABLE_ALL": int(plain_s * 1e9), "ORT_ENABLE_ALL": int(total_s * 1e9)}
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=())
    found = check_creation(ModelFacts(path="a b.onnx", original=graph, creation_ns=times))
    assert found.severity == severity
    if severity == "advice":
        assert "0.7 s of it" in found.what
        compile(found.command, "command", "exec")


@pytest.mark.parametrize(
    ("n_nodes", "op", "run_us", "severity"),
    [(400, "Add", 800, "advice"), (400, "Add", 8000, "ok"), (20, "Add", 40, "ok"), (400, "Loop", 800, "ok")],
)
def test_many_tiny_nodes(n_nodes: int, op: str, run_us: int, severity: str) -> None:
    graph = Graph(ir_version=8, opsets={"": 17}, nodes=(Node(op=op),) * n_nodes)
    times = {"ORT_ENABLE_ALL": run_us * 1000}
    found = check_overhead(ModelFacts(path="m.onnx", original=graph, optimized=graph, run_ns=times))
    assert found.severity == severity


# As a whole.


@pytest.mark.usefixtures("optimized_here")
def test_a_model_that_does_not_run_on_guessed_inputs_is_reported(tmp_path: Path) -> None:
    target = numpy_helper.from_array(np.array([1, 77], np.int64), "target")
    path = save_chain(tmp_path / "m.onnx", MAKE("Reshape", ["x", "target"], ["y"]), weights=[target], shape=["n", "m"])
    diagnosis = examine(DoctorRequest(model=str(path))).render(spell_as_flag)
    (skipped,) = diagnosis.skipped
    assert skipped.check == "overhead"
    assert "x 1x128" in skipped.why
    assert skipped.fix == "It runs with --dim m=77"
    right = examine(DoctorRequest(model=str(path), shape={"x": (7, 11)}))
    assert right.skipped == ()


def test_inputs_that_the_user_asks_for_must_fit(clean: Path) -> None:
    with pytest.raises(InputsError, match="no dimension"):
        examine(DoctorRequest(model=str(clean), dim={"batch": (1,)}))


@pytest.mark.usefixtures("optimized_here")
def test_inputs_that_cannot_be_made_are_reported(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    nodes = [MAKE("ConcatFromSequence", ["s"], ["y"], axis=0)]
    path = save(tmp_path / "m.onnx", nodes, [sequence], [value("y")])
    (skipped,) = examine(DoctorRequest(model=str(path))).render(spell_as_flag).skipped
    assert skipped.check == "overhead"
    assert "--inputs" in skipped.fix


def test_a_new_check_is_a_function_and_a_line() -> None:
    facts = ModelFacts(
        path="m.onnx", original=Graph(ir_version=8, opsets={}, nodes=()), missing={"run_ns": Missing("no time")}
    )
    findings, skipped = run_checks(
        [
            Check("one", lambda model_facts: ok("well")),
            Check("two", lambda model_facts: warn("ill", "why", "fix")),
            Check("three", lambda model_facts: None),
            Check("four", lambda model_facts: ok("not asked"), ("run_ns",)),
        ],
        facts,
    )
    assert [(finding.check, finding.severity) for finding in findings] == [("two", "problem"), ("one", "ok")]
    assert [(skip.check, skip.why) for skip in skipped] == [("four", "no time")]


def test_the_documentation_lists_all_checks() -> None:
    """The docstrings of checks begin with what they find, such as `Find casts.`"""
    finds = [(check.name, (check.run.__doc__ or "").splitlines()[0]) for check in CHECKS]
    rows = [f"| {name} | {text.removeprefix('Find ').removesuffix('.')} |" for name, text in finds]
    page = (ROOT / "docs" / "doctor.md").read_text()
    table = page.split("<!-- checks -->")[1].split("<!-- end -->")[0]
    assert table.strip().splitlines() == ["| check | finds |", "|---|---|", *rows]


def test_every_tool_that_is_recommended_is_installed() -> None:
    source = "".join(path.read_text() for path in Path(checks.__file__).parent.glob("*.py"))
    modules = set(re.findall(r'tool_command\(\s*facts, "([\w.]+)"', source))
    assert len(modules) >= 4
    for module in modules:
        assert importlib.util.find_spec(f"onnxruntime.{module}"), module


def test_graphs_keep_subgraphs_and_types(tmp_path: Path) -> None:
    inner = helper.make_graph([MAKE("Relu", ["x"], ["a"])], "then", [], [value("a")])
    other = helper.make_graph([MAKE("Sin", ["x"], ["b"])], "else", [], [value("b")])
    path = save(
        tmp_path / "m.onnx",
        [MAKE("If", ["flag"], ["h"], name="choice", then_branch=inner, else_branch=other), MAKE("Abs", ["h"], ["y"])],
        [value("x", FLOAT, ["n", 4]), value("flag", TensorProto.BOOL, [])],
        [value("y", FLOAT, None)],
    )
    graph = read_graph(path)
    assert {(node.op, node.scope) for node in graph.nodes[:2]} == {("Relu", "choice"), ("Sin", "choice")}
    assert [(node.op, node.scope) for node in graph.nodes[2:]] == [("If", ""), ("Abs", "")]
    assert graph.inputs[0] == GraphInput(name="x", dtype="float32", shape=("n", 4))
    assert graph.dtypes["h"] == "float32"
    with pytest.raises(ModelError, match="no file"):
        read_graph(tmp_path / "nothing.onnx")


# The command line.


def test_output_and_exit_codes(clean: Path, tmp_path: Path) -> None:
    done = run_program(RUNS_SHORT, str(clean), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ok" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    path = save_overridable(tmp_path / "m.onnx", 8)
    done = run_program(RUNS_SHORT, str(path), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "problem  initializers: 2 of 2" in done.stdout
    assert "remove_initializer_from_input" in done.stdout
    done = run_program(RUNS_SHORT, str(path), "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["check"] == "initializers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.onnx"], "There is no file"),
        (["text.onnx"], "not an ONNX model"),
        ([TINY_CNN, "--provider", "nonsense"], "no such provider"),
        ([TINY_CNN, "--dim", "batch=2"], "no dimension"),
        ([TINY_CNN, "--shape", "image"], "is not an input and a shape"),
    ],
)
def test_invalid_input_is_reported(tmp_path: Path, arguments: list[object], message: str) -> None:
    (tmp_path / "text.onnx").write_text("hello, this is text")
    done = run_ortune("doctor", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
