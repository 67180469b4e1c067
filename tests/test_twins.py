"""Settings that give the same optimized graph are one candidate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import ortune
from ortune.cli import app
from ortune.host import Host
from ortune.knobs import DEFAULT, SpaceOptions, build_space
from ortune.knobs.twins import list_graph_variants, merge_twins
from ortune.model import read_model
from ortune.worker.graphs import digest_graphs
from tests.conftest import TINY_CNN
from tests.simulated import Effect, Scenario, simulate

LEVEL = "graph_optimization_level"
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")

TRANSFORMER = dict(zip(LEVELS, "aabbb", strict=True))
"""Graphs as those of many transformers: fusions, but no layouts."""


def list_space(model: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["space", str(model), "--json", *options])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def levels_of(found: dict[str, Any]) -> set[str]:
    return {candidate["config"]["session_options"].get(LEVEL, LEVELS[-1]) for candidate in found["candidates"]}


def test_twins_are_one_candidate() -> None:
    with simulate(Scenario()):
        everything = list_space(TINY_CNN)
    with simulate(Scenario(graphs=TRANSFORMER)):
        merged = list_space(TINY_CNN)
    assert levels_of(everything) == set(LEVELS)
    # The one with the fewest settings, and then the one nearest to the default.
    assert levels_of(merged) == {"ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"}
    assert len(merged["candidates"]) * 5 == len(everything["candidates"]) * 2
    assert merged["twins"] == {
        "optimization level=enable_layout": "default",
        "optimization level=enable_extended": "default",
        "optimization level=disable_all": "optimization level=enable_basic",
    }


def test_a_knob_that_changes_nothing_is_not_tried() -> None:
    with simulate(Scenario(graphs=dict.fromkeys(LEVELS, "a"))):
        found = list_space(TINY_CNN)
    assert levels_of(found) == {"ORT_ENABLE_ALL"}
    assert LEVEL in {skipped["knob"]["name"] for skipped in found["skipped"]}


def test_graphs_that_are_not_known_are_not_merged() -> None:
    known = {level: graph for level, graph in TRANSFORMER.items() if level != "ORT_DISABLE_ALL"}
    with simulate(Scenario(graphs=known)):
        assert levels_of(list_space(TINY_CNN)) == {"ORT_ENABLE_ALL", "ORT_ENABLE_BASIC", "ORT_DISABLE_ALL"}


def test_what_the_user_asks_for_is_merged_too() -> None:
    with simulate(Scenario(graphs=TRANSFORMER)):
        found = list_space(TINY_CNN, "--tune", f"{LEVEL}=ORT_ENABLE_EXTENDED,ORT_ENABLE_BASIC")
    assert levels_of(found) == {"ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"}


def test_the_screen_says_what_was_merged() -> None:
    with simulate(Scenario(graphs=TRANSFORMER)):
        shown = CliRunner().invoke(app, ["space", str(TINY_CNN)]).stdout
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


def test_bench_says_which_configs_are_the_same_program() -> None:
    given = [f"{LEVEL}=ORT_ENABLE_EXTENDED", f"{LEVEL}=ORT_ENABLE_BASIC", "intra_op_num_threads=1"]
    options = [text for setting in given for text in ("--set", setting)]
    with simulate(Scenario(graphs=TRANSFORMER)):
        shown = CliRunner().invoke(app, ["bench", str(TINY_CNN), *options])
    assert shown.exit_code == 0, shown.output
    assert f"{given[0]} is the same program as default" in " ".join(shown.output.split())
    assert shown.output.count("the same program") == 1


def test_a_setting_that_needs_another_one_is_tried_only_with_it(quantized: Path, two_cores: Host) -> None:
    info = read_model(quantized)
    space = build_space(two_cores, info, SpaceOptions())
    needed, needing = "session.disable_quant_qdq", "session.disable_qdq_constant_folding"
    entries = [candidate.config.session_config for candidate in space.candidates]
    assert {needed, needing} <= {name for found in entries for name in found}
    assert all(needed in found for found in entries if needing in found)


def test_combinations_are_merged(quantized: Path, two_cores: Host) -> None:
    """A combination of settings is tried as fewer settings with the same graph, with all numbers of threads."""
    space = build_space(two_cores, read_model(quantized), SpaceOptions())
    variants = list_graph_variants(space)
    names = ["session.disable_quant_qdq", "session.disable_qdq_constant_folding"]

    def name_graph(config: ortune.Config) -> str:
        # Only the first entry changes the graph, and only with some optimizations.
        level = config.session_options.get(LEVEL, LEVELS[-1])
        return f"{level} {names[0] in config.session_config and level != LEVELS[0]}"

    merged = merge_twins(space, variants, [name_graph(variant.config) for variant in variants])
    assert len({name_graph(variant.config) for variant in variants}) == len(list_graph_variants(merged)) == 9
    configs = [candidate.config for candidate in merged.candidates]
    assert all(names[1] not in config.session_config for config in configs)
    assert not any(
        names[0] in config.session_config and config.session_options.get(LEVEL) == LEVELS[0] for config in configs
    )
    # What a user or an earlier search names is found as what is tried.
    twin = DEFAULT.with_setting("session_config", names[0], "1").with_setting("session_config", names[1], "1")
    assert (found := merged.find(twin)) and set(found.config.session_config) == {names[0]}
    assert len(configs) == len({config.key for config in configs})


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
    configs = [DEFAULT, DEFAULT, DEFAULT.with_setting("session_options", LEVEL, "ORT_DISABLE_ALL")]
    first = digest_graphs(info, configs)
    again = digest_graphs(info, configs)
    assert first == again
    assert first[0] == first[1] != first[2]
    assert all(first)


def test_a_model_that_cannot_be_optimized_is_not_merged(tmp_path: Path) -> None:
    info = read_model(make_branches(tmp_path / "branches.onnx"))
    (tmp_path / "branches.onnx").write_bytes(b"")
    assert digest_graphs(info, [DEFAULT, DEFAULT]) == ("", "")


@pytest.fixture
def two_cores() -> Host:
    return Scenario().read_host()


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
