"""`ortune gate`: the rule on simulated ratios, the measuring on replays, the command on real workers."""

from __future__ import annotations

import importlib
import io
import json
import math
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from benchmarks.gate_power import SLOW_WORKER, gate_by_replay, landscapes
from ortune.compare.block_plan import RunPlan
from ortune.compare.block_runner import BlockRunner
from ortune.compare.interval import Interval
from ortune.console.gate import draw_finding, draw_interval
from ortune.console.report import show_history
from ortune.errors import InputsError, MeasureError, ModelError, RecordError, UsageError
from ortune.gate.decision import (
    combine_decisions,
    compute_p_value,
    holm,
    is_biased,
    judge_objective,
    strict_confidence,
)
from ortune.gate.file import KEYS, read_gates
from ortune.gate.prepare import Wish, make_gate, parse_slowdowns
from ortune.gate.reporters.github import render_annotations
from ortune.gate.reporters.history import append_history, read_history
from ortune.gate.reporters.junit import render_junit
from ortune.gate.reporters.markdown import render_markdown
from ortune.gate.reporters.messages import describe_finding, describe_interval, percent
from ortune.gate.reporters.plot import choose_entries, draw_history
from ortune.gate.results import Decision, Finding, Gate, GateError, GateResult, GateSide, InterimResult, Observe
from ortune.gate.run import exit_decision, judge_together, run_gate
from ortune.gate.sequential_test import SequentialTest, count_pairs, decide, explain_indecision, run_test
from ortune.gate.sides import check_python, read_side
from ortune.knobs import DEFAULT, Config
from ortune.worker import BlockPlan
from ortune.workload import Goal, InputOptions, Load, Objective, make_goal, make_load
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write
from tests.simulation import SimulatedExecutor

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})


def launches(mean: float, n: int = 8, spread: float = 0.004, seed: int = 0) -> list[list[float]]:
    """Return log-ratios of launches with a luck of their own."""
    rng = np.random.default_rng(seed)
    return [(mean + rng.normal(0, spread) + rng.normal(0, spread, 4)).tolist() for _ in range(n)]


def interval(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high, confidence=0.99)


class TestRule:
    @pytest.mark.parametrize(
        ("slowdown", "decision"),
        [(0.0, "pass"), (0.03, "inconclusive"), (0.05, "fail"), (0.10, "fail"), (-0.2, "pass")],
    )
    def test_what_the_interval_says(self, slowdown: float, decision: Decision) -> None:
        found = judge_objective("p50", launches(math.log(1 + slowdown)), 1.03)
        assert found.decision == decision
        assert found.slowdown.low <= 1 + slowdown <= found.slowdown.high

    def test_noise_decides_nothing(self) -> None:
        for slowdown in (0.0, 0.10):
            clusters = launches(math.log(1 + slowdown), n=5, spread=0.2)
            assert judge_objective("p50", clusters, 1.03).decision == "inconclusive"

    def test_more_launches_decide_what_few_cannot(self) -> None:
        few, many = (judge_objective("p50", launches(0.015, n=n, spread=0.02), 1.03) for n in (5, 60))
        assert (few.decision, many.decision) == ("inconclusive", "pass")

    def test_several_gates_must_be_surer_to_fail(self) -> None:
        clusters = launches(math.log(1.042), spread=0.007, seed=3)
        assert judge_objective("p50", clusters, 1.03).decision == "fail"
        assert judge_objective("p50", clusters, 1.03, confidence=strict_confidence(1000)).decision == "inconclusive"

    def test_a_gain_can_be_demanded(self) -> None:
        assert judge_objective("p50", launches(-math.log(3.5)), 3.7**-0.5).decision == "pass"
        assert judge_objective("p50", launches(-math.log(1.2)), 3.7**-0.5).decision == "fail"

    def test_p_values(self) -> None:
        assert compute_p_value(launches(0.10), math.log(1.03)) < 1e-6
        assert compute_p_value(launches(0.0), math.log(1.03)) > 0.999
        assert compute_p_value([[0.1]], 0.0) == 1.0
        assert compute_p_value([[0.1], [0.1]], 0.05) == 0.0
        assert compute_p_value([[0.1], [0.1]], 0.2) == 1.0

    def test_base_must_agree_with_itself(self) -> None:
        assert is_biased(interval(1.02, 1.03, 1.04), 1.03)
        assert is_biased(interval(0.95, 0.97, 0.98), 1.03)
        assert not is_biased(interval(1.001, 1.005, 1.01), 1.03)
        assert not is_biased(interval(0.9, 1.03, 1.2), 1.03)

    def test_one_failure_fails(self) -> None:
        def finding(decision: Decision) -> Finding:
            return Finding(objective="p50", allowed=1.03, slowdown=interval(1, 1, 1), decision=decision, p_value=0.5)

        assert combine_decisions([finding("pass"), finding("fail"), finding("inconclusive")]) == "fail"
        assert combine_decisions([finding("pass"), finding("inconclusive")]) == "inconclusive"
        assert combine_decisions([finding("pass")]) == "pass"

    def test_holm(self) -> None:
        assert holm({"a": 0.001, "b": 0.0024, "c": 0.5}, 0.005) == {"a", "b"}
        assert holm({"a": 0.002, "b": 0.4, "c": 0.5}, 0.005) == frozenset()
        assert holm({"a": 0.001, "b": 0.004}, 0.005) == {"a", "b"}

    def test_words(self) -> None:
        assert percent(1.03) == "3%"
        assert describe_interval(interval(0.99, 1.012, 1.03)) == "+1.2% [-1.0%, +3.0%]"

    @pytest.mark.parametrize(("launch_s", "block_s", "pairs"), [(0.1, 1.0, 4), (1.5, 0.2, 8), (100.0, 0.2, 24)])
    def test_long_launches_get_more_pairs(self, launch_s: float, block_s: float, pairs: int) -> None:
        assert count_pairs(launch_s, block_s) == pairs


class TestReplay:
    """The whole measurement, on recorded noise."""

    @pytest.mark.parametrize("seed", [0, 2])
    @pytest.mark.parametrize("number", range(len(landscapes())))
    def test_the_same_model_passes_and_one_that_is_ten_percent_slower_fails(self, number: int, seed: int) -> None:
        landscape = landscapes()[number]
        assert gate_by_replay(landscape, 1.0, seed)[0] == "pass"
        assert gate_by_replay(landscape, 1.10, seed)[0] == "fail"

    def test_a_slowdown_at_the_threshold_is_undecided(self) -> None:
        decisions = [gate_by_replay(landscape, 1.03, 0)[0] for landscape in landscapes()]
        assert decisions == ["inconclusive"] * len(decisions)


class TestSequentialTest:
    def run(
        self,
        objective: Objective,
        call_ns: float,
        factor: float = 1.0,
        *,
        load: Load | None = None,
        limits: tuple[str, ...] = (),
        time_s: float = 25,
        observe: Observe = lambda interim: None,
    ) -> InterimResult:
        """Run the test on two sides without processes. Head is ONE_THREAD, and takes `factor` times as long as base."""
        load = load or Load()
        executor = SimulatedExecutor(lambda config: call_ns * (factor if config == ONE_THREAD else 1))
        block = BlockPlan(load=load, duration_ns=50_000_000, lead_in_ns=5_000_000, min_calls=4, deadline_s=60)
        test = SequentialTest(
            goal=msgspec.structs.replace(make_goal(load, objective, None, limits), load=load),
            allowed={objective: 1.5},
            plan=RunPlan(block=block, launches=None, rounds=4),
            start_s=0,
            end_s=time_s,
        )
        runner = BlockRunner(executor, np.random.default_rng(0))
        _, interim = run_test(test, runner, (executor, executor), (Config(), ONE_THREAD), observe)
        assert not executor.live, "candidates are still live"
        return interim

    def test_a_percentile_of_few_calls_decides_nothing(self) -> None:
        """Blocks of 50 ms have forty calls of a model that takes 1 ms, and four of one that takes 20 ms."""
        assert self.run("p99", 1e6).decision == "pass"
        slow = self.run("p99", 20e6)
        assert slow.decision == "inconclusive"
        assert "p99 needs 1522 calls" in slow.reason
        assert self.run("p50", 20e6).decision == "pass"

    def test_a_percentile_of_few_calls_decides_nothing_among_other_gates(self) -> None:
        results: list[InterimResult] = []
        self.run("p99", 20e6, 3.0, observe=results.append)
        (finding,) = results[-1].findings
        assert (finding.decision, finding.p_value) == ("inconclusive", 1.0)

    def test_a_limit_is_measured_until_it_is_certain(self) -> None:
        """The objective is decided after 20 pairs, but a percentile with so few calls is not."""
        found = self.run("mean", 10e6, limits=("p99<30ms",), time_s=60)
        assert found.decision == "pass"
        assert found.pairs > 20
        assert [check.kept for check in found.limits] == ["yes"]
        soon = self.run("mean", 10e6, limits=("p99<30ms",), time_s=8)
        assert soon.decision == "inconclusive"
        assert "p99 needs 1522 calls" in soon.reason

    def test_a_limit_that_is_exceeded_fails(self) -> None:
        found = self.run("mean", 1e6, 1.2, limits=("mean<1.05ms",))
        assert (found.decision, found.reason) == ("fail", "head exceeds mean<1.05ms")

    def test_requests_that_arrive_too_fast_decide_nothing(self) -> None:
        """Latency then depends on how long they have been arriving, and hardly on the side that serves them."""
        load = make_load(rate=4000)
        found = self.run("p50", 1e6, 2.0, load=load)
        assert found.decision == "inconclusive"
        assert "faster than base can serve them" in found.reason
        assert found.is_void

    def test_a_head_that_cannot_serve_the_rate_fails(self) -> None:
        found = self.run("memory", 1e6, 2.0, load=make_load(rate=700))
        assert (found.decision, found.reason) == (
            "fail",
            "requests arrive faster than head can serve them, but not faster than base can",
        )

    def test_a_base_that_cannot_serve_the_rate_decides_nothing(self) -> None:
        found = self.run("memory", 1e6, load=make_load(rate=1000))
        assert (found.decision, found.is_void) == ("inconclusive", True)
        assert found.reason == "requests arrive faster than base can serve them: use a lower request rate"

    def test_a_budget_without_time_for_two_launches_is_no_error(self) -> None:
        found = self.run("p50", 1e6, time_s=0.3)
        assert (found.decision, found.findings, found.is_void) == ("inconclusive", (), True)
        assert "no time for two launches of each side in 0 s" in found.reason

    def test_it_stops_within_a_launch_when_time_is_up(self) -> None:
        """A launch takes 0.6 s, and a round 0.171 s: there is time for five launches of four rounds, and two rounds."""
        found = self.run("p99", 20e6, time_s=7.2)
        assert (found.launches, found.pairs) == (6, 22)
        assert found.spent_s == pytest.approx(6 * 0.6 + 22 * 0.171)

    def test_a_launch_without_time_for_a_round_does_not_count(self) -> None:
        found = self.run("p99", 20e6, time_s=7.0)
        assert (found.launches, found.pairs) == (5, 20)

    def test_a_gain_that_is_lost_fails(self) -> None:
        interim = TestDecide().interim(findings=(judge_objective("p50", launches(0.1), 0.5),))
        assert decide(interim, TestDecide().make_test()) == ("fail", "p50 is less than 2x as good")


class TestDecide:
    def interim(self, **changes: Any) -> InterimResult:
        found = judge_objective("p50", launches(0.0), 1.03)
        interim = InterimResult(
            findings=(found,),
            self_check=interval(0.99, 1.0, 1.01),
            pairs=32,
            launches=8,
            contended=False,
            spent_s=1,
            budget_s=60,
        )
        return msgspec.structs.replace(interim, **changes)

    def make_test(self, *, busy: bool = False) -> SequentialTest:
        block = BlockPlan(load=Load(), duration_ns=1, lead_in_ns=0, min_calls=1, deadline_s=1)
        return SequentialTest(
            goal=Goal(),
            allowed={"p50": 1.03},
            plan=RunPlan(block=block, launches=None, rounds=4),
            start_s=0,
            end_s=60,
            busy=busy,
        )

    def test_a_pass(self) -> None:
        assert decide(self.interim(), self.make_test()) == ("pass", "p50 is not worse by 3%")

    @pytest.mark.parametrize(
        "changes",
        [
            {"pairs": 19},
            {"launches": 4},
            {"contended": True},
            {"biased": ("p50",)},
        ],
    )
    def test_what_decides_nothing(self, changes: dict[str, Any]) -> None:
        assert decide(self.interim(**changes), self.make_test())[0] == "inconclusive"

    def test_near_overload_nothing_passes(self) -> None:
        near = self.interim(utilization=(interval(0.95, 1.0, 1.05), interval(0.95, 1.0, 1.05)))
        assert decide(near, self.make_test()) == ("inconclusive", "")
        reason = explain_indecision(near, self.make_test(), time_is_up=True)
        assert reason == "requests arrive about as fast as they can be served: use a lower request rate"

    def test_a_busy_host_can_be_taken_as_it_is(self) -> None:
        assert decide(self.interim(contended=True), self.make_test(busy=True))[0] == "pass"


class TestSides:
    def test_forms(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json")
        plain, config, both, default = (
            read_side(text) for text in (f"{TINY_CNN}", f"{record}", f"{TINY_ENCODER}@{record}", f"{TINY_CNN}@default")
        )
        assert (plain.model, plain.record) == (str(TINY_CNN), None)
        assert config.model == str(TINY_CNN) and config.record and config.record.config == ONE_THREAD
        assert (both.model, both.source) == (str(TINY_ENCODER), str(record))
        assert (default.model, default.record) == (str(TINY_CNN), None)

    def test_files_that_are_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"there is no file nothing.onnx"):
            read_side("nothing.onnx")
        with pytest.raises(RecordError, match="There is no file"):
            read_side(f"{TINY_CNN}@nothing.json")
        record = make_record(TINY_CNN, ONE_THREAD)
        moved = msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, path="gone.onnx"))
        with pytest.raises(UsageError, match="the model of"):
            read_side(str(write(moved, tmp_path / "c.json")))

    def test_a_single_config_gates_its_gain(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, ONE_THREAD)
        request = make_gate(Wish(base=str(write(record, tmp_path / "c.json")), budget_s=60))
        assert request.head.config == ONE_THREAD
        assert request.base.config != ONE_THREAD
        assert record.evidence.speedup
        (share,) = request.slowdowns.values()
        assert share == pytest.approx(record.evidence.speedup.estimate**-0.5 - 1)

    def test_a_single_model_gates_nothing(self) -> None:
        with pytest.raises(UsageError, match="a gate has two sides"):
            make_gate(Wish(base=str(TINY_CNN), budget_s=60))

    def test_a_default_has_no_gain_to_gate(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config())
        record = msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, baseline=None))
        with pytest.raises(UsageError, match="no gain to gate"):
            make_gate(Wish(base=str(write(record, tmp_path / "c.json")), budget_s=60))

    @pytest.mark.parametrize("text", ["x", "-3%", "0%", "nan", "5000%"])
    def test_slowdowns_that_are_none(self, text: str) -> None:
        with pytest.raises(UsageError, match=r"max_slowdown .*: not a share above 0"):
            parse_slowdowns([text], Goal())

    def test_slowdowns(self) -> None:
        goal = Goal(objectives=("p50", "memory"))
        assert parse_slowdowns([], goal) == {"p50": 0.03, "memory": 0.03}
        assert parse_slowdowns(["5%", "memory=0.1"], goal) == {"p50": 0.05, "memory": 0.1}
        with pytest.raises(UsageError, match="p99 is not gated"):
            parse_slowdowns(["p99=3%"], goal)

    def test_a_gate_needs_time(self) -> None:
        with pytest.raises(UsageError, match="budget 0s: must be positive"):
            make_gate(Wish(base=str(TINY_CNN), head=str(TINY_CNN), budget_s=0))

    def test_a_gain_is_that_of_its_load_and_objective(self, tmp_path: Path) -> None:
        path = str(write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        for changes in ({"objective": "memory"}, {"load": Load(scenario="multi-client", clients=2)}):
            with pytest.raises(UsageError, match="its gain was recorded in"):
                make_gate(Wish(base=path, budget_s=60, **changes))
        limited = make_gate(Wish(base=path, budget_s=60, limits=("p99<20ms",)))
        assert limited.goal.load.scenario == "server"
        assert [limit.text for limit in limited.goal.limits] == ["p99<20ms"]

    def test_one_config_has_one_python(self, tmp_path: Path) -> None:
        path = str(write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        with pytest.raises(UsageError, match="gated in one Python"):
            make_gate(Wish(base=path, budget_s=60, base_python="a", head_python="b"))

    def test_a_bundle_needs_a_model(self, tmp_path: Path) -> None:
        from ortune.record.select import Sourced, merge

        records = [make_record(TINY_CNN, ONE_THREAD), make_record(TINY_ENCODER, Config())]
        bundle, _ = merge([Sourced(record=each, source="") for each in records])
        path = tmp_path / "b.json"
        path.write_bytes(msgspec.json.encode(bundle))
        with pytest.raises(UsageError, match="bundle for several models"):
            read_side(str(path))
        named = read_side(f"{TINY_CNN}@{path}")
        assert named.record and named.record.config == ONE_THREAD


class TestPythons:
    def test_one_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match="no such program"):
            check_python("/nowhere/python", "base_python")

    def test_one_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="not a Python interpreter"):
            check_python("true", "base_python")

    def test_one_without_onnxruntime(self, tmp_path: Path) -> None:
        venv.create(tmp_path / "empty", with_pip=False)
        with pytest.raises(UsageError, match="onnxruntime is not installed") as caught:
            check_python(str(tmp_path / "empty" / "bin" / "python"), "head_python")
        assert "pip install onnxruntime" in caught.value.hint


def make_test_gate(
    head: Path = TINY_CNN,
    *,
    time_s: float = 120.0,
    config: Config = DEFAULT,
    command: tuple[str, ...] = (),
    **changes: Any,
) -> Gate:
    return Gate(
        base=GateSide(text="base", model=str(TINY_CNN)),
        head=GateSide(text="head", model=str(head), config=config, command=command),
        slowdowns={"p50": 0.5},
        budget_s=time_s,
        **changes,
    )


def scaled(path: Path, factor: float) -> Path:
    """Write a model like the tiny CNN whose outputs differ by a factor."""
    model = onnx.load(TINY_CNN)
    name = model.graph.output[0].name
    for node in model.graph.node:
        for place, output in enumerate(node.output):
            if output == name:
                node.output[place] = "before"
    model.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [factor]))
    model.graph.node.append(helper.make_node("Mul", ["before", "factor"], [name]))
    onnx.save(model, path)
    return path


@pytest.mark.usefixtures("no_workers_left")
class TestWorkers:
    """With real processes."""

    def test_a_model_that_is_three_times_as_slow(self) -> None:
        command = (sys.executable, "-P", str(SLOW_WORKER), "2.0")
        results: list[InterimResult] = []
        found = run_gate(make_test_gate(command=command, busy=True), results.append)
        assert found.decision in {"fail", "inconclusive"}
        assert found.findings[0].slowdown.estimate > 1.5
        assert results and results[-1].pairs == found.pairs
        assert found.max_error == 0
        blocks = found.blocks
        assert len(blocks.base["p50"]) == len(blocks.head["p50"]) == len(blocks.copy["p50"]) == len(blocks.contended)

    def test_outputs_that_differ(self, tmp_path: Path) -> None:
        other = scaled(tmp_path / "other.onnx", 1.5)
        with pytest.raises(MeasureError, match="outputs of head differ from those of base"):
            run_gate(make_test_gate(other))
        found = run_gate(make_test_gate(other, same_outputs=False, busy=True))
        assert found.max_error is None

    def test_inputs_that_differ(self) -> None:
        with pytest.raises(InputsError, match="The inputs differ: base takes image"):
            run_gate(make_test_gate(TINY_ENCODER))

    def test_outputs_of_other_names(self, tmp_path: Path) -> None:
        model = onnx.load(TINY_CNN)
        name = model.graph.output[0].name
        model.graph.node.append(helper.make_node("Identity", [name], ["renamed"]))
        model.graph.output[0].name = "renamed"
        path = tmp_path / "renamed.onnx"
        onnx.save(model, path)
        with pytest.raises(MeasureError, match="head returns renamed"):
            run_gate(make_test_gate(path))

    def test_a_config_of_a_model_with_other_inputs(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_ENCODER, ONE_THREAD), tmp_path / "e.json")
        made = make_gate(Wish(base=f"{TINY_CNN}@{record}", head=f"{TINY_CNN}@{record}", budget_s=60))
        assert made.inputs.shapes == {}

    def test_a_side_that_hangs(self, tmp_path: Path) -> None:
        """It ends when its time is up, and at least what loading is allowed to take."""
        hang = (sys.executable, "-c", "import time; time.sleep(600)")
        with pytest.raises(MeasureError, match="took too long"):
            run_gate(make_test_gate(time_s=5, command=hang))

    def test_shapes_that_differ(self, tmp_path: Path) -> None:
        x = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 32])
        graph = helper.make_graph([helper.make_node("Relu", ["image"], ["y"])], "g", [x], [y])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        with pytest.raises(InputsError, match="4 dimensions in base, 3 in head"):
            run_gate(make_test_gate(path))

    def test_a_limit_that_is_broken_fails(self) -> None:
        goal = make_goal(Load(), "p50", None, ("p50<1us",))
        found = run_gate(make_test_gate(busy=True, goal=goal))
        assert found.decision == "fail"
        assert "head exceeds p50<1us" in found.reason

    def test_a_head_that_does_not_load(self, tmp_path: Path) -> None:
        config = Config(
            session_options={"intra_op_num_threads": 2}, session_config={"session.intra_op_thread_affinities": "x"}
        )
        with pytest.raises(ModelError, match="cannot load head"):
            run_gate(make_test_gate(config=config))

    def test_too_little_time(self) -> None:
        found = run_gate(make_test_gate(time_s=0.01))
        assert found.decision == "inconclusive"
        assert found.is_void
        assert "no time for two launches of each side" in found.reason
        assert (found.findings, found.self_check, found.base.summary) == ((), None, None)

    def test_another_python(self, tmp_path: Path) -> None:
        """One that has onnxruntime and msgspec, and no ortune of its own."""
        venv.create(tmp_path / "env", with_pip=False, symlinks=True)
        python = tmp_path / "env" / "bin" / "python"
        (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
        ours = subprocess.run(
            [sys.executable, "-c", "import onnxruntime; print(onnxruntime.__path__[0])"],
            capture_output=True,
            text=True,
            check=True,
        )
        packages = Path(ours.stdout.strip()).parent
        for name in ("onnxruntime", "numpy", "numpy.libs", "msgspec", "flatbuffers", "google", "packaging"):
            if (packages / name).exists():
                (site / name).symlink_to(packages / name)
        check_python(str(python), "head_python")
        found = run_gate(
            msgspec.structs.replace(
                make_test_gate(busy=True), head=GateSide(text="head", model=str(TINY_CNN), python=str(python))
            )
        )
        assert found.head.runtime.onnxruntime == found.base.runtime.onnxruntime
        assert found.head.runtime.ortune

    def test_the_command(self, tmp_path: Path) -> None:
        done = run_ortune(
            *("gate", TINY_CNN, TINY_CNN, "--max-time", "40s", "--busy", "--max-slowdown", "300%"),
            *("--json", "all.json", "--junit", "junit.xml", "--markdown", "page.md", "--history", "h.jsonl"),
            cwd=tmp_path,
        )
        assert done.returncode in {0, 3}, done.stdout + done.stderr
        (result,) = json.loads((tmp_path / "all.json").read_text())
        assert result["decision"] == {0: "pass", 3: "inconclusive"}[done.returncode]
        assert 'name="gate"' in (tmp_path / "junit.xml").read_text()
        assert "| gate |" in (tmp_path / "page.md").read_text()
        ((entry,), _) = read_history(tmp_path / "h.jsonl")
        assert entry.decision == result["decision"]
        assert result["decision"] in done.stdout
        shown = run_ortune("report", "h.jsonl", cwd=tmp_path)
        assert entry.decision in shown.stdout

    def test_many_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_text(
            f"""
            [gate]
            max-time = "40s"
            busy = true
            max-slowdown = "300%"
            [gate.same]
            base = "{TINY_CNN}"
            head = "{TINY_CNN}"
            [gate.broken]
            base = "{TINY_CNN}"
            head = "{TINY_ENCODER}"
            """
        )
        done = run_ortune("gate", "--all", "--json", "-", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        same, broken = json.loads(done.stdout)
        assert same["decision"] in {"pass", "inconclusive"}
        assert "The inputs differ" in broken["message"]
        assert "2 gates" in done.stderr
        only = run_ortune("gate", "--only", "same", "--inconclusive", "pass", "-q", cwd=tmp_path)
        assert (only.returncode, only.stdout) == (0, "")


def result(name: str = "a", decision: Decision = "pass", p: float = 1.0, **changes: Any) -> GateResult:
    """Return a result as a run would give it."""
    found = RESULT
    (finding,) = found.findings
    finding = msgspec.structs.replace(finding, p_value=p, decision=decision)
    return msgspec.structs.replace(found, name=name, decision=decision, findings=(finding,), **changes)


def make_result() -> GateResult:
    from ortune.compare.comparison import Noise
    from ortune.gate.results import Blocks, SideResult
    from ortune.host import HostClass, read_host
    from tests.records import installed

    record = make_record(TINY_CNN, ONE_THREAD)
    runtime = installed()
    assert runtime
    side = SideResult(
        text="a|b.onnx", model=record.model, config=Config(), record="", runtime=runtime, summary=record.evidence.winner
    )
    return GateResult(
        name="a",
        decision="pass",
        reason="p50 is not worse by 3%",
        findings=(
            Finding(objective="p50", allowed=1.03, slowdown=interval(0.99, 1.0, 1.01), decision="pass", p_value=1.0),
        ),
        self_check=interval(0.99, 1.0, 1.01),
        pairs=40,
        launches=5,
        wall_s=12.0,
        base=side,
        head=msgspec.structs.replace(side, text="head.onnx", config=ONE_THREAD),
        noise=Noise(
            blocks=1, contended=0, repeated=0, foreign_share_mean=0, foreign_share_p90=0, regime="quiet", drift=None
        ),
        workload=record.workload,
        host=HostClass.of(read_host()),
        blocks=Blocks(base={}, head={}, copy={}, contended=()),
    )


RESULT = make_result()
ERROR = GateError(name="e", message="It is broken.", hint="Mend it.")


class TestTogether:
    def test_holm_fails_what_was_not_sure_enough_alone(self) -> None:
        sure, unsure = result("sure", "fail", 1e-9), result("unsure", "inconclusive", 0.004)
        first, second = judge_together([sure, unsure])
        assert isinstance(second, GateResult)
        assert second.decision == "fail"
        assert "Holm" in second.reason
        assert first is sure

    def test_what_is_void_stays_so(self) -> None:
        _, second = judge_together([result("a", "fail", 1e-9), result("b", "inconclusive", 1e-9, is_void=True)])
        assert isinstance(second, GateResult)
        assert second.decision == "inconclusive"

    def test_passing_gates_count_among_the_tests(self) -> None:
        gates = [result(str(number)) for number in range(9)]
        *_, last = judge_together([*gates, result("x", "inconclusive", 0.004)])
        assert isinstance(last, GateResult)
        assert last.decision == "inconclusive"

    def test_the_exit_code(self) -> None:
        passed, failed, unsure = result(), result(decision="fail"), result(decision="inconclusive")
        assert exit_decision([passed, failed, unsure, ERROR]) == "fail"
        assert exit_decision([passed, unsure, ERROR]) == "error"
        assert exit_decision([passed, unsure]) == "inconclusive"
        assert exit_decision([passed]) == "pass"


class TestTold:
    RESULTS = (result(), result("b", "fail"), result("c", "inconclusive"), ERROR)

    def test_junit(self) -> None:
        from xml.etree import ElementTree

        (suite,) = ElementTree.fromstring(render_junit(self.RESULTS, inconclusive_fails=False))
        assert [suite.get(each) for each in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
        (suite,) = ElementTree.fromstring(render_junit(self.RESULTS, inconclusive_fails=True))
        assert [suite.get(each) for each in ("tests", "failures", "errors", "skipped")] == ["4", "2", "1", "0"]
        assert all(case.get("classname") == "ortune.gate" for case in suite)

    def test_markdown(self) -> None:
        page = render_markdown(self.RESULTS)
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert len(rows) == 2 + 4
        # A bar in a name breaks no table.
        assert all(line.replace("\\|", "").count("|") == 7 for line in rows)
        assert "intra threads=1" in page
        assert "💥 e: It is broken. Mend it." in page

    def test_a_gate_without_a_single_look(self) -> None:
        bare = msgspec.structs.replace(RESULT, findings=(), self_check=None, decision="inconclusive", reason="why")
        assert "why" in render_markdown([bare])
        assert "why" in render_annotations([bare])
        assert b"why" in render_junit([bare], inconclusive_fails=False)

    def test_characters_that_xml_does_not_have(self) -> None:
        from xml.etree import ElementTree

        odd = msgspec.structs.replace(RESULT, name="a\x01b", reason="c\x00", decision="fail")
        (suite,) = ElementTree.fromstring(render_junit([odd], inconclusive_fails=False))
        assert suite[0].get("name") == "ab"

    def test_throughput_is_told_as_its_cost(self) -> None:
        """Where head serves less, the ratio of costs is above 1: that must not read as a gain."""
        slower = judge_objective("throughput", launches(math.log(1.7)), 1.03)
        assert describe_finding(slower).startswith("1/throughput +69")
        assert draw_finding(slower).plain.strip().startswith("1/throughput")

    def test_findings_fit_into_80_columns(self) -> None:
        wide = Finding(
            objective="throughput", allowed=1.03, slowdown=interval(1.368, 1.719, 2.307), decision="fail", p_value=0.0
        )
        assert len(draw_finding(wide).plain) <= 80

    def test_annotations(self) -> None:
        lines = render_annotations(self.RESULTS).splitlines()
        assert [line.split(" ")[0] for line in lines] == ["::notice", "::error", "::warning", "::error"]
        assert lines[0].startswith("::notice title=ortune gate%3A a::p50 +0.0%25 [-1.0%25, +1.0%25], allowed +3%25.")

    def test_github_is_told_by_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        from ortune.cli.gate import tell

        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
        tell(self.RESULTS, None, None, None, None, inconclusive="3")
        assert (tmp_path / "summary.md").read_text().startswith("### ortune gate")
        assert "::error" in capsys.readouterr().out

    def test_history(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, self.RESULTS)
        append_history(path, [result()])
        entries, _ = read_history(path)
        assert [entry.name for entry in entries] == ["a", "b", "c", "e", "a"]
        assert [entry.name for entry in choose_entries(entries, ["a"])] == ["a", "a"]
        with pytest.raises(UsageError, match="no such gate"):
            choose_entries(entries, ["x"])

    def test_a_line_that_was_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, [result()])
        path.write_bytes(path.read_bytes() + b'\n{"time": "2026-')
        append_history(path, [result("b")])
        entries, broken = read_history(path)
        assert [entry.name for entry in entries] == ["a", "b"]
        assert broken == (3,)
        done = run_ortune("report", path, cwd=tmp_path)
        assert done.returncode == 0
        assert "line 3 is not an entry" in done.stderr

    def test_a_history_on_a_narrow_terminal(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, [result("detector"), ERROR])
        console = Console(width=80, file=io.StringIO())
        show_history(console, read_history(path)[0], None)
        page = console.file.getvalue()  # type: ignore[attr-defined]
        assert "pass" in page and "error" in page and "+0.0% [-1.0%, +1.0%]" in page
        assert "…" not in page

    @pytest.mark.parametrize("entry", ['{"time": "abc", "name": "a", "decision": "pass", "reason": ""}', "[]"])
    def test_entries_that_are_none(self, entry: str, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        path.write_text(entry)
        with pytest.raises(RecordError, match=r"h.jsonl is not a history of gates"):
            read_history(path)

    @pytest.mark.parametrize("content", [b"", b"{}\n", b"nonsense\n"])
    def test_a_history_that_is_none(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        path.write_bytes(content)
        with pytest.raises(RecordError, match=r"h.jsonl"):
            read_history(path)

    def test_a_history_is_drawn(self, tmp_path: Path) -> None:
        append_history(tmp_path / "h.jsonl", self.RESULTS)
        entries, _ = read_history(tmp_path / "h.jsonl")
        with pytest.raises(UsageError, match="must be one of"):
            draw_history(entries, tmp_path / "x.txt")
        pytest.importorskip("matplotlib")
        draw_history(entries, tmp_path / "x.svg")
        assert (tmp_path / "x.svg").read_text().startswith("<?xml")

    def test_intervals_are_drawn(self) -> None:
        text = draw_interval(interval(0.99, 1.0, 1.01), 1.03).plain
        assert text.count("●") == 1
        assert text.index("●") == len(text) // 2
        assert "¦" in text[len(text) // 2 :]
        far = draw_interval(interval(5, 6, 7), 1.03).plain
        assert far.endswith("●")


class TestFile:
    def read(self, text: str, tmp_path: Path, name: str = "ortune.toml") -> dict[str, dict[str, Any]]:
        path = tmp_path / name
        path.write_text(text)
        return read_gates(str(path))[1]

    def test_what_is_shared_and_what_is_not(self, tmp_path: Path) -> None:
        gates = self.read(
            '[gate]\nmax-slowdown = "5%"\nclients = 2\n[gate.a]\nbase = "a"\n[gate."b c"]\nbase = "b"\nclients = 4\n',
            tmp_path,
        )
        assert gates == {
            "a": {"max-slowdown": "5%", "clients": 2, "base": "a"},
            "b c": {"max-slowdown": "5%", "clients": 4, "base": "b"},
        }

    def test_pyproject(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = '[project]\nname = "x"\n[tool.ortune.gate.a]\nbase = "a"\n'
        assert self.read(text, tmp_path, "pyproject.toml") == {"a": {"base": "a"}}
        monkeypatch.chdir(tmp_path)
        assert read_gates(None)[1] == {"a": {"base": "a"}}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no gates"),
            ("[gate]\nbusy = true\n", "has no gates"),
            ("[gate.a\nbase = 3", "line 1"),
            ('gate = "x"', "line 1: gate is no table"),
            ('[gate.a]\nbase = "a"\n\n[gate.b]\nhead = "b"\n', "line 4: gate b has no base"),
            ('[gate.a]\nbase = "a"\n# x\nmax-slowdwn = "3%"\n', "line 4: max-slowdwn is not known"),
            ('[gate.a]\nbase = "a"\nclients = "two"\n', "line 3: clients = 'two' is not a whole number"),
            ('[gate.a]\nbase = "a"\nclients = true\n', "line 3: clients = true is not a whole number"),
            ('[gate.a]\nbase = "a"\ndim = [1]\n', "line 3: dim = [1] is not a text or a list of texts"),
            ("[gate]\nbusy = 1\n[gate.a]\nbase = 'a'\n", "line 2: busy = 1 is not true or false"),
        ],
    )
    def test_faults_tell_the_line(self, text: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            self.read(text, tmp_path)
        assert message in str(caught.value)

    def test_near_misses(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as caught:
            self.read('[gate.a]\nbase = "a"\nmax-slowdwn = "3%"\n', tmp_path)
        assert caught.value.hint == "Did you mean max-slowdown?"

    def test_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UsageError, match=r"neither ortune.toml nor"):
            read_gates(None)
        with pytest.raises(UsageError, match=r"There is no file x.toml"):
            read_gates("x.toml")

    def test_the_file_knows_all_options_of_the_command(self) -> None:
        help_text = run_ortune("gate", "--help", cwd=Path.cwd()).stdout
        for key in set(KEYS) - {"base", "head"}:
            assert f"--{key}" in help_text, key


class TestFilesAreKept:
    @pytest.mark.parametrize("option", ["--json", "--junit", "--markdown", "--history"])
    def test_what_is_something_else_is_not_replaced(self, option: str, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(TINY_CNN.read_bytes())
        done = run_ortune("gate", TINY_CNN, TINY_CNN, option, path, cwd=tmp_path)
        assert done.returncode == 2
        assert f"{option} {path}: this file is there already" in done.stderr
        assert path.read_bytes() == TINY_CNN.read_bytes()

    def test_what_a_gate_wrote_is_replaced(self, tmp_path: Path) -> None:
        from ortune.cli.gate import check_outputs, tell

        paths = [str(tmp_path / name) for name in ("j.xml", "r.json", "p.md", "h.jsonl")]
        for _ in range(2):
            check_outputs(*paths)
            tell((RESULT,), *paths, inconclusive="3")

    def test_what_is_done_is_told_when_the_rest_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module("ortune.cli.gate")
        (tmp_path / "ortune.toml").write_text('[gate.a]\nbase = "a"\n[gate.b]\nbase = "b"\n')
        monkeypatch.chdir(tmp_path)

        def run(wishes: Any, done: list[Any], **how: Any) -> None:
            done.append(result("a"))
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "run", run)
        with pytest.raises(KeyboardInterrupt):
            module.gate(every=True, json_file="out.json", history="h.jsonl")
        (told,) = json.loads((tmp_path / "out.json").read_text())
        assert told["name"] == "a"
        assert len(read_history(tmp_path / "h.jsonl")[0]) == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "There is nothing to gate."),
            (["x.onnx", "y.onnx"], "there is no file x.onnx"),
            (["x.onnx", "--all"], "take their gates from a file"),
            (["--all"], "There are no gates"),
            (["x.onnx", "y.onnx", "--inconclusive", "maybe"], "neither pass, fail nor 3"),
            (["x.onnx", "y.onnx", "--junit", "nowhere/x.xml"], "there is no folder"),
            (["x.onnx", "y.onnx", "--max-time", "soon"], "this is not a duration"),
            (["x.onnx", "y.onnx", "--also", "speed"], "there is no such figure"),
            (["x.onnx", "y.onnx", "--rtol", "-1"], "a tolerance is a number of at least 0"),
        ],
    )
    def test_messages(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        done = run_ortune("gate", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr

    def test_an_error_is_told_to_ci_too(self, tmp_path: Path) -> None:
        done = run_ortune("gate", TINY_CNN, TINY_ENCODER, "--junit", "j.xml", "--json", "g.json", cwd=tmp_path)
        assert done.returncode == 2
        assert "The inputs differ" in done.stderr
        assert "<error " in (tmp_path / "j.xml").read_text()
        assert json.loads((tmp_path / "g.json").read_text())[0]["message"].startswith("The inputs differ")

    def test_an_unknown_gate(self, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_text('[gate.a]\nbase = "a"\n')
        done = run_ortune("gate", "--only", "b", cwd=tmp_path)
        assert done.returncode == 2
        assert "has no such gate; it has a" in done.stderr


def test_inputs_of_a_record_are_fed(tmp_path: Path) -> None:
    record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json")
    found = make_gate(Wish(base=str(TINY_CNN), head=f"{TINY_CNN}@{record}", budget_s=60))
    assert found.inputs.shapes == {"image": (1, 3, 32, 32)}
    assert found.goal.load.scenario == "server"
    own = make_gate(
        Wish(base=str(TINY_CNN), head=str(record), budget_s=60, inputs=InputOptions(), load=Load(), also=("memory",))
    )
    assert own.goal.objectives == ("p50", "memory")
    assert own.inputs.shapes == {}
