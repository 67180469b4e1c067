"""Settings that give the same optimized graph are one candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import ortune
from ortune import Config
from ortune.model import read_model
from ortune.model.graph_digest import digest_graph
from ortune.worker.graphs import digest_graphs
from tests.conftest import TINY_CNN, run_ortune
from tests.simulated import Effect, Scenario, simulate

LEVEL = "graph_optimization_level"
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")

TRANSFORMER = dict(zip(LEVELS, "aabbb", strict=True))
"""Graphs as those of many transformers: fusions, but no layouts."""


def list_space(scenario: Scenario, folder: Path, model: Path = TINY_CNN, *options: str) -> dict[str, Any]:
    done = run_ortune("space", model, "--json", *options, cwd=folder, simulate=scenario)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def levels_of(found: dict[str, Any]) -> set[str]:
    return {candidate["config"]["session_options"].get(LEVEL, LEVELS[-1]) for candidate in found["candidates"]}


def test_twins_are_one_candidate(tmp_path: Path) -> None:
    everything = list_space(Scenario(), tmp_path)
    merged = list_space(Scenario(graphs=TRANSFORMER), tmp_path)
    assert levels_of(everything) == set(LEVELS)
    # The one with the fewest settings, and then the one nearest to the default.
    assert levels_of(merged) == {"ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"}
    assert len(merged["candidates"]) * 5 == len(everything["candidates"]) * 2
    assert merged["twins"] == {
        "optimization level=enable_layout": "default",
        "optimization level=enable_extended": "default",
        "optimization level=disable_all": "optimization level=enable_basic",
    }


def test_a_knob_that_changes_nothing_is_not_tried(tmp_path: Path) -> None:
    found = list_space(Scenario(graphs=dict.fromkeys(LEVELS, "a")), tmp_path)
    assert levels_of(found) == {"ORT_ENABLE_ALL"}
    assert LEVEL in {skipped["knob"]["name"] for skipped in found["skipped"]}


def test_graphs_that_are_not_known_are_not_merged(tmp_path: Path) -> None:
    known = {level: graph for level, graph in TRANSFORMER.items() if level != "ORT_DISABLE_ALL"}
    found = list_space(Scenario(graphs=known), tmp_path)
    assert levels_of(found) == {"ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"}


def test_what_the_user_asks_for_is_merged_too(tmp_path: Path) -> None:
    given = ("--tune", f"{LEVEL}=ORT_ENABLE_EXTENDED,ORT_ENABLE_BASIC")
    assert levels_of(list_space(Scenario(graphs=TRANSFORMER), tmp_path, TINY_CNN, *given)) == {
        "ORT_ENABLE_ALL",
        "ORT_ENABLE_BASIC",
    }


def test_the_screen_says_what_was_merged(tmp_path: Path) -> None:
    done = run_ortune("space", TINY_CNN, cwd=tmp_path, simulate=Scenario(graphs=TRANSFORMER))
    shown = " ".join(done.stdout.split())
    assert "optimization level=enable_layout: the same optimized graph as default" in shown
    assert "before those that are the same program were merged" in shown


def test_a_search_answers_with_the_setting_that_is_tried(tmp_path: Path) -> None:
    """A level that is the same program as another one cannot be the answer."""
    effects = (Effect(cpus=1.0), *(Effect(settings={LEVEL: level}, factor=0.5) for level in LEVELS[:2]))
    with simulate(Scenario(graphs=TRANSFORMER, effects=effects)):
        record = ortune.search(TINY_CNN, output=tmp_path / "tuned.json", history=False)
    assert record.evidence.verdict == "faster"
    assert record.config.session_options[LEVEL] == "ORT_ENABLE_BASIC"
    tried = {trial["config"]["session_options"].get(LEVEL) for trial in read_trials(tmp_path)}
    assert tried <= {None, "ORT_ENABLE_BASIC"}


def read_trials(folder: Path) -> list[dict[str, Any]]:
    import gzip

    lines = gzip.decompress((folder / "tuned.trials.jsonl.gz").read_bytes()).decode().splitlines()
    return [row["trial"] for line in lines if "trial" in (row := json.loads(line))]


def test_bench_says_which_configs_are_the_same_program(tmp_path: Path) -> None:
    given = [f"{LEVEL}=ORT_ENABLE_EXTENDED", f"{LEVEL}=ORT_ENABLE_BASIC", "intra_op_num_threads=1"]
    options = [text for setting in given for text in ("--set", setting)]
    done = run_ortune("bench", TINY_CNN, *options, cwd=tmp_path, simulate=Scenario(graphs=TRANSFORMER))
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert f"{given[0]} is the same program as default" in shown
    assert shown.count("the same program") == 1


NEEDED, NEEDING = "session.disable_quant_qdq", "session.disable_qdq_constant_folding"


def list_entries(scenario: Scenario, folder: Path, model: Path) -> list[dict[str, str]]:
    """Return the entries of all candidates."""
    return [candidate["config"]["session_config"] for candidate in list_space(scenario, folder, model)["candidates"]]


def test_a_setting_that_needs_another_one_is_tried_only_with_it(quantized: Path, tmp_path: Path) -> None:
    entries = list_entries(Scenario(), tmp_path, quantized)
    assert {NEEDED, NEEDING} <= {name for found in entries for name in found}
    assert all(NEEDED in found for found in entries if NEEDING in found)


def test_combinations_are_merged(quantized: Path, tmp_path: Path) -> None:
    """A combination of settings is tried as fewer settings with the same graph."""
    everything = list_space(Scenario(), tmp_path, quantized)["candidates"]
    scenario = Scenario(graphs=dict(zip(LEVELS, "abcde", strict=True)), idle=frozenset({NEEDING}))
    merged = list_space(scenario, tmp_path, quantized)["candidates"]
    assert {NEEDED} < {name for candidate in merged for name in candidate["config"]["session_config"]}
    kept = [candidate for candidate in everything if NEEDING not in candidate["config"]["session_config"]]
    assert [candidate["config"] for candidate in merged] == [candidate["config"] for candidate in kept]


def make_branches(path: Path) -> Path:
    """Write a model with four equal branches, whose nodes ONNX Runtime orders in another way each time."""
    weights = [helper.make_tensor(f"w{n}", TensorProto.FLOAT, [8, 8, 3, 3], [0.5 + n] * 576) for n in range(4)]
    nodes = [
        node
        for n in range(4)
        for node in (
            helper.make_node("Conv", ["x", f"w{n}"], [f"c{n}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{n}"], [f"r{n}"]),
        )
    ]
    joined = helper.make_node("Concat", [f"r{n}" for n in range(4)], ["y"], axis=1)
    shape, wide = [1, 8, 16, 16], [1, 32, 16, 16]
    graph = helper.make_graph(
        [*nodes, joined],
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, wide)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_digests_are_those_of_the_program(tmp_path: Path) -> None:
    """The order of nodes and their names do not count; operators, attributes and shapes do."""
    info = read_model(make_branches(tmp_path / "branches.onnx"))
    configs = [Config(), Config(), Config().with_setting("session_options", LEVEL, "ORT_DISABLE_ALL")]
    first = digest_graphs(info, configs)
    again = digest_graphs(info, configs)
    assert first == again
    assert first[0] == first[1] != first[2]
    assert all(first)


def test_a_model_that_cannot_be_optimized_is_not_merged(tmp_path: Path) -> None:
    info = read_model(make_branches(tmp_path / "branches.onnx"))
    (tmp_path / "branches.onnx").write_bytes(b"")
    assert digest_graphs(info, [Config(), Config()]) == ("", "")


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.1])
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [128])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "quantized", values[:1], values[1:], [scale, zero])
    path = tmp_path / "quantized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_graph(path: Path, nodes: list[onnx.NodeProto], outputs: list[str]) -> Path:
    """Write an optimized graph with the inputs `x` and `z`."""
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "z", *outputs)}
    graph = helper.make_graph(nodes, "graph", [values["x"], values["z"]], [values[name] for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_left_out_inputs_and_outputs_have_no_order(tmp_path: Path) -> None:
    """A node that leaves out an output says nothing of a node that leaves out an input."""
    make = helper.make_node
    nodes = [
        make("SkipLayerNormalization", ["x", "z", "x"], ["a", "", "", "s"], domain="com.microsoft"),
        make("Clip", ["z", "", "x"], ["b"]),
    ]
    first = digest_graph(save_graph(tmp_path / "a.onnx", nodes, ["a", "b"]))
    assert first == digest_graph(save_graph(tmp_path / "b.onnx", nodes[::-1], ["a", "b"]))


def test_optional_outputs_are_work(tmp_path: Path) -> None:
    make = helper.make_node
    few = make("LayerNormalization", ["x", "z"], ["a"])
    more = make("LayerNormalization", ["x", "z"], ["a", "mean", "deviation"])
    digests = {digest_graph(save_graph(tmp_path / "c.onnx", [node], ["a"])) for node in (few, more)}
    assert len(digests) == 2
