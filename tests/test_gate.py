"""`ortune gate`: its sides, several gates together, the file with gates, and the command on real workers."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
import venv
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

import ortune
from benchmarks.gate_power import SLOW_WORKER
from ortune import (
    Config,
    GateResult,
    Goal,
    InputsError,
    InterimResult,
    MeasureError,
    ModelError,
    Objective,
    RecordError,
    UsageError,
)
from ortune.cli.gate import check_outputs, write_reports
from ortune.gates.file import read_gates
from ortune.gates.prepare import make_gate, parse_slowdowns
from ortune.gates.reporters.history import read_history
from ortune.gates.results import LARGEST_ALLOWED_SLOWDOWN, Finding, Gate, GateSide
from ortune.gates.run import exit_decision, judge_together, run_gate
from ortune.gates.sides import check_head, check_python, read_side
from ortune.knobs import DEFAULT
from ortune.measure.block_runner import BlockRunner
from ortune.measure.interval import Interval
from ortune.options import make_request
from ortune.requests import GateReportOptions, GateRequest
from ortune.worker.interfaces import Executor
from ortune.workload import parse_limit
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.gate_results import ERROR, make_interval, make_result
from tests.records import ONE_THREAD, claim_limits, make_local_record, make_record, write
from tests.simulated import Scenario, simulate

pytestmark = pytest.mark.usefixtures("models_read_here")


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
        request = make_gate(GateRequest(base=str(write(record, tmp_path / "c.json")), budget=60))
        assert request.head.config == ONE_THREAD
        assert request.base.config != ONE_THREAD
        assert record.evidence.speedup
        (share,) = request.slowdowns.values()
        assert share == pytest.approx(record.evidence.speedup.estimate**-0.5 - 1)

    def test_a_single_model_gates_nothing(self) -> None:
        with pytest.raises(UsageError, match="a gate has two sides"):
            make_gate(GateRequest(base=str(TINY_CNN), budget=60))

    def test_a_default_has_no_gain_to_gate(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config())
        record = msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, baseline=None))
        with pytest.raises(UsageError, match="no gain to gate"):
            make_gate(GateRequest(base=str(write(record, tmp_path / "c.json")), budget=60))

    @pytest.mark.parametrize("text", ["x", "-3%", "0%", "nan", "5000%", "1x", "%", ""])
    def test_slowdowns_that_are_none(self, text: str) -> None:
        with pytest.raises(UsageError, match=r"max_slowdown .*: not a share above 0"):
            parse_slowdowns([text], Goal())

    @pytest.mark.parametrize("text", ["3", "1", "memory=3.0"])
    def test_a_number_above_1_may_mean_percent(self, text: str) -> None:
        goal = Goal(objectives=("p50", "memory"))
        with pytest.raises(UsageError, match="needs a unit"):
            parse_slowdowns([text], goal)

    def test_slowdowns(self) -> None:
        goal = Goal(objectives=("p50", "memory"))
        assert parse_slowdowns([], goal) == {"p50": 0.03, "memory": 0.03}
        assert parse_slowdowns(["5%", "memory=0.1"], goal) == {"p50": 0.05, "memory": 0.1}
        assert parse_slowdowns(["300%"], goal) == parse_slowdowns(["4x"], goal) == {"p50": 3.0, "memory": 3.0}
        with pytest.raises(UsageError, match="p99 is not gated"):
            parse_slowdowns(["p99=3%"], goal)

    def test_a_gate_needs_time(self) -> None:
        with pytest.raises(UsageError, match="budget 0: must be positive"):
            make_request(GateRequest, {"base": "a.onnx", "head": "b.onnx", "budget": 0})

    def test_a_gain_is_that_of_its_load_and_objective(self, tmp_path: Path) -> None:
        path = str(write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        for changes in ({"objective": "memory"}, {"clients": 2}):
            with pytest.raises(UsageError, match="its gain was recorded in"):
                make_gate(GateRequest(base=path, budget=60, **changes))
        limited = make_gate(GateRequest(base=path, budget=60, limit=(parse_limit("p99<20ms"),)))
        assert limited.goal.load.scenario == "server"
        assert [limit.text for limit in limited.goal.limits] == ["p99<20ms"]

    def test_limits_are_those_of_the_same_load(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, ONE_THREAD)
        workload = msgspec.structs.replace(record.workload, limits=(parse_limit("throughput>1/s"),))
        path = str(write(msgspec.structs.replace(record, workload=workload), tmp_path / "c.json"))
        side = f"{TINY_CNN}@{path}"
        same = make_gate(GateRequest(base=side, head=side, budget=60))
        assert [limit.text for limit in same.goal.limits] == ["throughput>1/s"]
        assert not make_gate(GateRequest(base=side, head=side, budget=60, clients=8)).goal.limits

    def test_the_objective_of_a_program_is_not_that_of_a_session(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, ONE_THREAD)
        workload = msgspec.structs.replace(record.workload, objectives=("metric",), limits=())
        path = str(write(msgspec.structs.replace(record, workload=workload), tmp_path / "c.json"))
        side = f"{TINY_CNN}@{path}"
        with pytest.raises(UsageError, match="objective is the metric of a program"):
            make_gate(GateRequest(base=side, head=side, budget=60))
        assert make_gate(GateRequest(base=side, head=side, budget=60, objective="p50")).goal.objectives == ("p50",)

    @pytest.mark.parametrize(
        ("options", "is_required"),
        [
            ({"max_slowdown": "memory=5%", "also": "memory"}, True),
            ({"max_slowdown": "3%"}, False),
            ({"max_slowdown": "p50=3%"}, False),
        ],
    )
    def test_a_slowdown_for_another_objective_does_not_replace_the_gain(
        self, options: dict[str, str], *, is_required: bool, tmp_path: Path
    ) -> None:
        path = str(write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        found = make_gate(make_request(GateRequest, {"base": path, **options}))
        assert (found.slowdowns["p50"] < 0) == is_required
        if is_required:
            with pytest.raises(UsageError, match="its gain was recorded in p50"):
                make_gate(make_request(GateRequest, {"base": path, "objective": "p99", **options}))

    def test_a_slowdown_for_all_gates_does_not_replace_the_gain(self, tmp_path: Path) -> None:
        path = str(write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        request = GateRequest(base=path, also=("memory",), max_slowdown=("5%", "p50=5%"), shares_slowdown=True)
        found = make_gate(request)
        assert found.slowdowns["p50"] < 0
        assert found.slowdowns["memory"] == pytest.approx(0.05)
        with pytest.raises(UsageError, match="its gain was recorded in p50"):
            make_gate(request.replace(objective="p99", max_slowdown=("5%",)))

    def test_a_recorded_limit_that_is_relative_to_the_default(self, tmp_path: Path) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        workload = msgspec.structs.replace(record.workload, limits=(parse_limit("cpu<0.5x"), parse_limit("p99<1s")))
        path = str(write(msgspec.structs.replace(record, workload=workload), tmp_path / "c.json"))
        tuned = f"{TINY_CNN}@{path}"

        def limits_of(base: str, head: str | None, **options: Any) -> list[str]:
            return [limit.text for limit in make_gate(GateRequest(base=base, head=head, **options)).goal.limits]

        assert limits_of(path, None) == limits_of(f"{TINY_CNN}@default", tuned) == ["cpu<0.5x", "p99<1s"]
        assert limits_of(tuned, tuned) == ["p99<1s"]
        assert limits_of(tuned, tuned, limit=(parse_limit("cpu<1.2x"),)) == ["cpu<1.2x"]

    def test_limits_decide_if_the_record_claims_nothing_else(self, tmp_path: Path) -> None:
        record = claim_limits(make_local_record(TINY_CNN, ONE_THREAD))
        path = str(write(record, tmp_path / "c.json"))
        found = make_gate(GateRequest(base=path, also=("memory",)))
        assert [limit.text for limit in found.goal.limits] == ["p99<1ms"]
        assert found.slowdowns == {"p50": LARGEST_ALLOWED_SLOWDOWN, "memory": pytest.approx(0.03)}
        assert make_gate(GateRequest(base=path, max_slowdown=("5%",))).slowdowns == {"p50": pytest.approx(0.05)}

    def test_one_config_has_one_python(self, tmp_path: Path) -> None:
        path = str(write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json"))
        with pytest.raises(UsageError, match="gated in one Python"):
            make_gate(GateRequest(base=path, budget=60, base_python="a", head_python="b"))

    def test_a_bundle_needs_a_model(self, tmp_path: Path) -> None:
        from ortune.record.select import Sourced, merge

        records = [make_record(TINY_CNN, ONE_THREAD), make_record(TINY_ENCODER, Config())]
        bundle, _ = merge([Sourced(record=record, source="") for record in records])
        path = tmp_path / "b.json"
        path.write_bytes(msgspec.json.encode(bundle))
        with pytest.raises(RecordError, match="records for several models"):
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

    @pytest.mark.skipif(sys.platform != "linux", reason="workers end with their parent on Linux only")
    def test_a_script_that_waits_for_python(self, tmp_path: Path) -> None:
        """Its workers would end at once, as their parent is the script."""
        for name, start in (("waits", ""), ("becomes", "exec ")):
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\n{start}{shlex.quote(sys.executable)} "$@"\nexit $?\n')
            path.chmod(0o755)
        with pytest.raises(UsageError, match="waits: it starts Python in another process") as caught:
            check_python(str(tmp_path / "waits"), "head_python")
        assert "write exec before" in caught.value.hint
        check_python(str(tmp_path / "becomes"), "head_python")

    def test_one_without_onnxruntime(self, tmp_path: Path) -> None:
        venv.create(tmp_path / "empty", with_pip=False)
        with pytest.raises(UsageError, match="onnxruntime is not installed") as caught:
            check_python(str(tmp_path / "empty" / "bin" / "python"), "head_python")
        assert "pip install onnxruntime" in caught.value.hint


def make_test_gate(
    head: Path = TINY_CNN,
    *,
    time_s: float = 40.0,
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


def write_dying_worker(folder: Path, *, n_deaths: int) -> tuple[tuple[str, ...], Path]:
    """Return the command of a worker that dies in its first launches, and a file with one byte for each launch."""
    program, launches = folder / "worker.py", folder / "launches"
    program.write_text(
        "import os\n"
        "from ortune.worker.main import main\n"
        f"with open({str(launches)!r}, 'a') as launches:\n"
        "    launches.write('x')\n"
        f"if os.path.getsize({str(launches)!r}) <= {n_deaths}:\n"
        "    os.kill(os.getpid(), 9)\n"
        "main()\n"
    )
    return (sys.executable, "-P", str(program)), launches


def load_open_ended() -> tuple[onnx.ModelProto, str]:
    """Return the tiny CNN with the name of its output, which a further node must make from `before`."""
    model = onnx.load(TINY_CNN)
    name = model.graph.output[0].name
    for node in model.graph.node:
        for place, output in enumerate(node.output):
            if output == name:
                node.output[place] = "before"
    return model, name


def scaled(path: Path, factor: float) -> Path:
    """Write a model like the tiny CNN whose outputs differ by a factor."""
    model, name = load_open_ended()
    model.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [factor]))
    model.graph.node.append(helper.make_node("Mul", ["before", "factor"], [name]))
    onnx.save(model, path)
    return path


@pytest.mark.usefixtures("forked_children", "no_workers_left")
class TestWorkers:
    """With real processes."""

    @pytest.mark.long
    def test_a_model_that_is_three_times_as_slow(self) -> None:
        command = (sys.executable, "-P", str(SLOW_WORKER), "2.0")
        results: list[InterimResult] = []
        found = run_gate(make_test_gate(command=command, busy=True, time_s=15), results.append)
        assert found.decision in {"fail", "inconclusive"}
        assert found.findings[0].slowdown.estimate > 1.5
        assert results and results[-1].pairs == found.pairs
        assert found.max_error == 0
        blocks = found.blocks
        sides = (blocks.base, blocks.head, blocks.base_copy, blocks.head_copy)
        assert {len(side["p50"]) for side in sides} == {len(blocks.contended)}

    def test_outputs_that_differ(self, tmp_path: Path) -> None:
        other = scaled(tmp_path / "other.onnx", 1.5)
        with pytest.raises(MeasureError, match="outputs of head differ from those of base"):
            run_gate(make_test_gate(other))
        found = run_gate(make_test_gate(other, same_outputs=False, busy=True, time_s=0.01))
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
        made = make_gate(GateRequest(base=f"{TINY_CNN}@{record}", head=f"{TINY_CNN}@{record}", budget=60))
        assert made.inputs.shapes == {}

    def test_a_side_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It ends when its time is up."""

        def check_soon(head: GateSide, runner: BlockRunner, executor: Executor) -> float | None:
            runner.load_deadline_s = 1.0  # base has been launched by then
            return check_head(head, runner, executor)

        monkeypatch.setattr("ortune.gates.sides.check_head", check_soon)
        hang = (sys.executable, "-c", "import time; time.sleep(600)")
        with pytest.raises(MeasureError, match="took too long"):
            run_gate(make_test_gate(time_s=1, command=hang))

    def test_a_head_whose_process_dies_once_is_launched_again(self, tmp_path: Path) -> None:
        command, _ = write_dying_worker(tmp_path, n_deaths=1)
        found = run_gate(make_test_gate(time_s=0.01, command=command))
        assert "no time for two launches of each side" in found.reason
        assert found.noise.n_relaunched == 1

    def test_a_head_whose_process_always_dies(self, tmp_path: Path) -> None:
        """That base works with the same config says nothing about it."""
        command, launches = write_dying_worker(tmp_path, n_deaths=999)
        with pytest.raises(ModelError, match=r"cannot load head \(crash\): ended by SIGKILL"):
            run_gate(make_test_gate(time_s=0.01, command=command))
        assert len(launches.read_text()) == 3

    def test_shapes_that_differ(self, tmp_path: Path) -> None:
        x = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 32])
        graph = helper.make_graph([helper.make_node("Relu", ["image"], ["y"])], "g", [x], [y])
        path = tmp_path / "m.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        with pytest.raises(InputsError, match="4 dimensions in base, 3 in head"):
            run_gate(make_test_gate(path))

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
        found_here = importlib.util.find_spec("onnxruntime")
        assert found_here and found_here.origin
        packages = Path(found_here.origin).parents[1]
        for name in ("onnxruntime", "numpy", "numpy.libs", "msgspec", "flatbuffers", "google", "packaging"):
            if (packages / name).exists():
                (site / name).symlink_to(packages / name)
        check_python(str(python), "head_python")
        head = GateSide(text="head", model=str(TINY_CNN), python=str(python))
        found = run_gate(msgspec.structs.replace(make_test_gate(busy=True, time_s=0.01), head=head))
        assert found.head.runtime.onnxruntime == found.base.runtime.onnxruntime
        assert found.head.runtime.ortune

    @pytest.mark.parametrize(("block_noise", "launch_noise"), [(0.08, 0.001), (0.005, 0.03)])
    def test_the_noise_decides_how_many_pairs_a_launch_has(self, block_noise: float, launch_noise: float) -> None:
        """More pairs where blocks differ, and only more launches where launches do."""
        with simulate(Scenario(block_noise=block_noise, launch_noise=launch_noise, drift=0.0)):
            found = ortune.gate(TINY_CNN, TINY_CNN, budget="180s")
        assert found.decision == "pass"
        pairs_per_launch = found.pairs / found.launches
        assert pairs_per_launch > 3 if block_noise > launch_noise else pairs_per_launch == 2

    def test_the_command(self, tmp_path: Path) -> None:
        """On a simulated host. Head exceeds its limit, which decides the gate when there are enough launches."""
        done = run_ortune(
            "gate",
            TINY_CNN,
            TINY_CNN,
            "--budget",
            "60s",
            "--busy",
            "--max-slowdown",
            "300%",
            "--limit",
            "p50<1us",
            "--json",
            "--junit",
            "junit.xml",
            "--markdown",
            "page.md",
            "--history",
            "h.jsonl",
            cwd=tmp_path,
            simulate=True,
        )
        assert done.returncode == 1, done.stdout + done.stderr
        (result,) = json.loads(done.stdout)
        assert result["decision"] == "fail"
        assert "head exceeds p50<1us" in result["reason"]
        assert 'name="gate"' in (tmp_path / "junit.xml").read_text()
        assert "| gate |" in (tmp_path / "page.md").read_text()
        ((entry,), _) = read_history(tmp_path / "h.jsonl")
        assert entry.decision == result["decision"]
        assert result["decision"] in done.stderr
        shown = run_ortune("report", "h.jsonl", cwd=tmp_path)
        assert entry.decision in shown.stdout

    @pytest.mark.long
    def test_many_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_text(
            f"""
            [gate]
            budget = "1s"
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
        done = run_ortune("gate", "--all", "--trust", "--json", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        same, broken = json.loads(done.stdout)
        assert same["decision"] in {"pass", "inconclusive"}
        assert "The inputs differ" in broken["message"]
        assert "2 gates" in done.stderr
        only = run_ortune("gate", "--only", "same", "--trust", "--inconclusive", "pass", "-q", cwd=tmp_path)
        assert (only.returncode, only.stdout) == (0, "")


class TestTogether:
    def test_holm_fails_what_was_not_sure_enough_alone(self) -> None:
        sure, unsure = make_result("sure", "fail", 1e-9), make_result("unsure", "inconclusive", 0.004)
        first, second = judge_together([sure, unsure])
        assert isinstance(second, GateResult)
        assert second.decision == "fail"
        assert second.reason == "p50 is worse by more than 3%, with Holm's correction over all gates"
        assert first is sure

    def test_only_the_objectives_that_fail_are_named(self) -> None:
        claims: tuple[tuple[Objective, float, Interval, float], ...] = (
            ("p50", 1.03, make_interval(0.98, 1.04, 1.1), 0.3),
            ("mean", 1.05, make_interval(1.06, 1.1, 1.14), 1e-5),
            ("cpu", 0.5, make_interval(0.6, 0.7, 0.8), 1e-5),
        )
        undecided, slower, lost = (
            Finding(objective=name, allowed=allowed, slowdown=interval, decision="inconclusive", p_value=p_value)
            for name, allowed, interval, p_value in claims
        )
        gate = make_result("a", "inconclusive", findings=(undecided, slower, lost))
        (found, _) = judge_together([gate, make_result("b")])
        assert isinstance(found, GateResult)
        assert found.reason == (
            "mean is worse by more than 5%; cpu is less than 2x as good, with Holm's correction over all gates"
        )
        assert [finding.decision for finding in found.findings] == ["inconclusive", "fail", "fail"]

    def test_a_gate_that_fails_with_others_is_shown_again(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """When it ended, it was not sure enough alone."""
        finding = Finding(
            objective="p50",
            allowed=1.03,
            slowdown=make_interval(1.04, 1.06, 1.08),
            decision="inconclusive",
            p_value=0.004,
        )
        results = {
            "sure": make_result("sure", "fail", 1e-9),
            "unsure": make_result("unsure", "inconclusive", findings=(finding,)),
        }
        module = importlib.import_module("ortune.gates.run")
        monkeypatch.setattr(module, "run_gate", lambda gate, observe, n_claims: results[gate.name])
        requests = [GateRequest(name=name, base=str(TINY_CNN), head=str(TINY_CNN)) for name in results]
        done: list[Any] = []
        found = importlib.import_module("ortune.cli.gate").run(requests, done, GateReportOptions())
        assert [result.decision for result in found] == ["fail", "fail"]
        shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
        assert shown == [["fail", "sure"], ["inconclusive", "unsure"], ["fail", "unsure"], ["2", "gates:"]]

    def test_what_is_void_stays_so(self) -> None:
        _, second = judge_together(
            [make_result("a", "fail", 1e-9), make_result("b", "inconclusive", 1e-9, is_void=True)]
        )
        assert isinstance(second, GateResult)
        assert second.decision == "inconclusive"

    def test_passing_gates_count_among_the_tests(self) -> None:
        gates = [make_result(str(number)) for number in range(9)]
        *_, last = judge_together([*gates, make_result("x", "inconclusive", 0.004)])
        assert isinstance(last, GateResult)
        assert last.decision == "inconclusive"

    def test_the_exit_code(self) -> None:
        passed, failed, unsure = make_result(), make_result(decision="fail"), make_result(decision="inconclusive")
        assert exit_decision([passed, failed, unsure, ERROR]) == "fail"
        assert exit_decision([passed, unsure, ERROR]) == "error"
        assert exit_decision([passed, unsure]) == "inconclusive"
        assert exit_decision([passed]) == "pass"


class TestFile:
    def read(self, text: str, tmp_path: Path, name: str = "ortune.toml") -> dict[str, GateRequest]:
        path = tmp_path / name
        path.write_text(text)
        return {gate.name: gate for gate in read_gates(str(path))}

    def test_what_is_shared_and_what_is_not(self, tmp_path: Path) -> None:
        gates = self.read(
            '[gate]\nmax-slowdown = "5%"\nclients = 2\n[gate.a]\nbase = "a"\n[gate."b c"]\nbase = "b"\nclients = 4\n',
            tmp_path,
        )
        assert gates == {
            "a": GateRequest(name="a", max_slowdown=("5%",), shares_slowdown=True, clients=2, base="a"),
            "b c": GateRequest(name="b c", max_slowdown=("5%",), shares_slowdown=True, clients=4, base="b"),
        }

    def test_a_slowdown_for_all_gates_is_not_that_of_one(self, tmp_path: Path) -> None:
        text = '[gate]\nmax_slowdown = "5%"\n[gate.a]\nbase = "a"\n[gate.b]\nbase = "b"\nmax-slowdown = "9%"\n'
        gates = self.read(text, tmp_path)
        assert [(gate.max_slowdown, gate.shares_slowdown) for gate in gates.values()] == [
            (("5%",), True),
            (("9%",), False),
        ]
        given = read_gates(str(tmp_path / "ortune.toml"), given={"max_slowdown": "1%"})
        assert [(gate.max_slowdown, gate.shares_slowdown) for gate in given] == 2 * [(("1%",), False)]

    def test_pyproject(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = '[project]\nname = "x"\n[tool.ortune.gate.a]\nbase = "a"\n'
        expected = GateRequest(name="a", base="a")
        assert self.read(text, tmp_path, "pyproject.toml") == {"a": expected}
        monkeypatch.chdir(tmp_path)
        assert read_gates(None) == [expected]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "has no gates"),
            ("[gate]\nbusy = true\n", "has no gates"),
            ("[gate.a\nbase = 3", "line 1"),
            ('gate = "x"', "line 1: gate is not a table"),
            ('[gate.a]\nbase = "a"\n\n[gate.b]\nhead = "b"\n', "line 4: base is missing"),
            ('[gate.a]\nbase = "a"\n# x\nmax-slowdwn = "3%"\n', "line 4: max-slowdwn is not an option"),
            ('[gate.a]\nbase = "a"\nclients = "two"\n', "line 3: clients two: is not a whole number"),
            ('[gate.a]\nbase = "a"\nclients = true\n', "line 3: clients true: is not a whole number"),
            ('[gate.a]\nbase = "a"\ndim = [1]\n', "line 3: dim 1: must be a text"),
            ("[gate]\nbusy = 1\n[gate.a]\nbase = 'a'\n", "line 2: busy 1: must be true or false"),
            ('[gate.a]\nbase = "a"\nclients = 3\nsessions = 2\n', "line 3: clients 3: must be a multiple of sessions"),
        ],
    )
    def test_faults_name_the_line(self, text: str, message: str, tmp_path: Path) -> None:
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


class TestFilesAreKept:
    @pytest.mark.parametrize("option", ["--junit", "--markdown", "--history"])
    def test_what_is_something_else_is_not_replaced(self, option: str, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(TINY_CNN.read_bytes())
        done = run_ortune("gate", TINY_CNN, TINY_CNN, option, path, cwd=tmp_path)
        assert done.returncode == 2
        assert f"{option} {path}: this file exists" in done.stderr
        assert path.read_bytes() == TINY_CNN.read_bytes()

    def test_what_a_gate_wrote_is_replaced(self, tmp_path: Path) -> None:
        junit, page, history = paths = [tmp_path / name for name in ("j.xml", "p.md", "h.jsonl")]
        reports = GateReportOptions(junit=str(junit), markdown=str(page), history=str(history))
        for name in ("first", "second"):
            check_outputs(reports)
            write_reports((make_result(name),), reports)
        for path in paths[:2]:
            assert "second" in path.read_text()
            assert "first" not in path.read_text()
        assert [entry.name for entry in read_history(history)[0]] == ["first", "second"]

    def test_finished_gates_are_reported_when_the_rest_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = importlib.import_module("ortune.cli.gate")
        (tmp_path / "ortune.toml").write_text('[gate.a]\nbase = "a"\n[gate.b]\nbase = "b"\n')
        monkeypatch.chdir(tmp_path)

        def run(requests: Any, done: list[Any], reports: Any) -> None:
            done.append(make_result("a"))
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "run", run)
        with pytest.raises(KeyboardInterrupt):
            module.gate(all=True, markdown="out.md", history="h.jsonl")
        assert "| a |" in (tmp_path / "out.md").read_text()
        assert len(read_history(tmp_path / "h.jsonl")[0]) == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "There is nothing to gate."),
            (["x.onnx", "y.onnx"], "there is no file x.onnx"),
            (["x.onnx", "--all"], "take gates from a file"),
            (["--all"], "There are no gates"),
            (["x.onnx", "y.onnx", "--inconclusive", "maybe"], "is not one of the choices"),
            (["x.onnx", "y.onnx", "--junit", "nowhere/x.xml"], "there is no folder"),
            (["x.onnx", "y.onnx", "--budget", "soon"], "is not a duration"),
            (["x.onnx", "y.onnx", "--also", "speed"], "is not a figure"),
            (["x.onnx", "y.onnx", "--rtol", "-1"], "must be a number of at least 0"),
        ],
    )
    def test_messages(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        done = run_ortune("gate", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr

    def test_an_error_is_reported_to_ci_too(self, tmp_path: Path) -> None:
        done = run_ortune("gate", TINY_CNN, TINY_ENCODER, "--junit", "j.xml", "--json", cwd=tmp_path)
        assert done.returncode == 2
        assert "The inputs differ" in done.stderr
        assert "<error " in (tmp_path / "j.xml").read_text()
        assert json.loads(done.stdout)[0]["message"].startswith("The inputs differ")

    def test_an_unknown_gate(self, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_text('[gate.a]\nbase = "a"\n')
        done = run_ortune("gate", "--only", "b", cwd=tmp_path)
        assert done.returncode == 2
        assert "has no such gate; it has a" in done.stderr


def test_inputs_of_a_record_are_fed(tmp_path: Path) -> None:
    record = write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "c.json")
    found = make_gate(GateRequest(base=f"{TINY_CNN}@{record}", head=str(TINY_CNN), budget=60))
    assert found.inputs.shapes == {"image": (1, 3, 32, 32)}
    assert found.goal.load.scenario == "server"
    own = make_gate(
        GateRequest(base=str(TINY_CNN), head=str(record), budget=60, inputs="x.npz", clients=1, also=("memory",))
    )
    assert own.goal.objectives == ("p50", "memory")
    assert (own.inputs.data, own.inputs.shapes) == ("x.npz", {})
