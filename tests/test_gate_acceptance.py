"""What a gate accepts is decided by the command and the base. The record of head can only make it stricter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper

import ortune
from ortune import Config, Load, MeasureError, RecordError, Tolerance, UsageError
from ortune.bounds import MOST_TOLERANCE
from ortune.gates.acceptance import list_notes
from ortune.gates.prepare import make_gate, prepare_gate
from ortune.gates.reporters.github import render_annotations
from ortune.gates.reporters.junit import render_junit
from ortune.gates.reporters.markdown import render_markdown
from ortune.gates.results import Gate
from ortune.gates.run import count_claims
from ortune.knobs import CPU
from ortune.measure.open import ComparisonSetup
from ortune.options import options_of
from ortune.requests import GateRequest, SearchRequest
from ortune.workload import QUANTIZED_TOLERANCE, TF32_TOLERANCE, make_load, parse_limit
from tests.conftest import TINY_CNN, run_ortune
from tests.gate_results import make_result
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_gate import load_open_ended, scaled

pytestmark = pytest.mark.usefixtures("models_read_here")

LOOSE = Tolerance(relative=MOST_TOLERANCE, absolute=MOST_TOLERANCE)
STRICT = Tolerance(relative=1e-5, absolute=1e-6)
TWO_CLIENTS = make_load(2)
CUDA = Config(providers=(("CUDAExecutionProvider", {}), (CPU, {})))


def write_record(path: Path, *, config: Config = ONE_THREAD, **workload: Any) -> Path:
    """Write a record for the tiny CNN whose workload differs from the usual one."""
    record = make_local_record(TINY_CNN, config)
    return write(msgspec.structs.replace(record, workload=msgspec.structs.replace(record.workload, **workload)), path)


@pytest.fixture
def sides(tmp_path: Path) -> Any:
    """Return base and head, each a model with a record or, for None, without one."""

    def make(base: dict[str, Any] | None, head: dict[str, Any] | None) -> tuple[str, str]:
        texts = []
        for name, changes in (("base", base), ("head", head)):
            if changes is None:
                texts.append(f"{TINY_CNN}@default")
            else:
                texts.append(f"{TINY_CNN}@{write_record(tmp_path / f'{name}.json', **changes)}")
        return texts[0], texts[1]

    return make


def prepare(base: str, head: str | None, **options: Any) -> tuple[Gate, ComparisonSetup]:
    gate = make_gate(GateRequest(base=base, head=head, **options))
    return gate, prepare_gate(gate)


class TestTolerance:
    @pytest.mark.parametrize(
        ("base", "head", "expected"),
        [
            ({"tolerance": STRICT}, {"tolerance": LOOSE}, STRICT),
            ({"tolerance": LOOSE}, {"tolerance": STRICT}, STRICT),
            ({"tolerance": LOOSE}, {"tolerance": LOOSE}, LOOSE),
            ({"tolerance": LOOSE}, None, LOOSE),
            (
                {"tolerance": Tolerance(relative=1e-5, absolute=0.05)},
                {"tolerance": Tolerance(relative=0.05, absolute=1e-6)},
                STRICT,
            ),
            (None, {"tolerance": LOOSE}, Tolerance()),
            (None, {"tolerance": QUANTIZED_TOLERANCE}, Tolerance()),
            (None, {"tolerance": STRICT}, STRICT),
            (None, None, Tolerance()),
        ],
    )
    def test_head_can_only_make_it_smaller(self, base: Any, head: Any, expected: Tolerance, sides: Any) -> None:
        _, setup = prepare(*sides(base, head))
        assert setup.tolerance == expected

    def test_the_command_decides(self, sides: Any) -> None:
        gate, setup = prepare(*sides({"tolerance": STRICT}, {"tolerance": STRICT}), rtol=0.05, atol=0.01)
        assert setup.tolerance == Tolerance(relative=0.05, absolute=0.01)
        assert list_notes(gate, setup.tolerance) == ()

    def test_the_record_of_a_gain_does_not_decide(self, tmp_path: Path) -> None:
        """It says what it claims, not how wrong its outputs may be."""
        path = str(write_record(tmp_path / "r.json", tolerance=LOOSE))
        gate, setup = prepare(path, None)
        assert setup.tolerance == Tolerance()
        (note,) = list_notes(gate, setup.tolerance)
        assert "allows outputs to differ by 0.1 of each value" in note
        assert note.endswith("The record of head cannot allow more; options of the gate can.")
        _, setup = prepare(path, None, rtol=0.05, atol=0.05)
        assert setup.tolerance == Tolerance(relative=0.05, absolute=0.05)

    @pytest.mark.parametrize(
        ("base", "head", "expected"),
        [
            ({}, {"config": CUDA, "tolerance": LOOSE}, TF32_TOLERANCE),
            (None, {"config": CUDA, "tolerance": STRICT}, TF32_TOLERANCE),
            ({"config": CUDA, "tolerance": TF32_TOLERANCE}, {}, TF32_TOLERANCE),
            ({"config": CUDA, "tolerance": STRICT}, {"config": CUDA, "tolerance": LOOSE}, STRICT),
        ],
    )
    def test_tf32_is_a_default(self, base: Any, head: Any, expected: Tolerance, sides: Any) -> None:
        """Where one side multiplies in it, ortune allows for it, and not for more."""
        _, setup = prepare(*sides(base, head))
        assert setup.tolerance == expected

    @pytest.mark.parametrize("name", ["relative", "absolute"])
    @pytest.mark.parametrize("value", [1e308, 0.11, -1e-3])
    def test_a_record_with_another_tolerance_is_refused(self, name: str, value: float, tmp_path: Path) -> None:
        path = write_record(tmp_path / "r.json")
        document = json.loads(path.read_text())
        document["workload"]["tolerance"] = {name: value}
        path.write_text(json.dumps(document))
        with pytest.raises(RecordError) as caught:
            make_gate(GateRequest(base=f"{TINY_CNN}@{path}", head=str(TINY_CNN)))
        assert f"$.workload.tolerance.{name}" in str(caught.value)

    @pytest.mark.parametrize(("option", "flag"), [("rtol", "--rtol"), ("atol", "--atol")])
    def test_options_are_limited_too(self, option: str, flag: str, tmp_path: Path) -> None:
        given: dict[str, Any] = {option: 0.5}
        with pytest.raises(UsageError) as caught:
            make_gate(GateRequest(base=str(TINY_CNN), head=str(TINY_CNN), **given))
        assert (caught.value.option, caught.value.hint) == (option, "Use at most 0.1.")
        for command in (("gate", TINY_CNN, TINY_CNN), ("search", TINY_CNN)):
            done = run_ortune(*command, flag, "1e300", cwd=tmp_path)
            assert done.returncode == 2
            assert f"{flag} 1e+300: with such a tolerance, wrong outputs could pass." in done.stderr

    def test_the_limit_of_the_options_is_that_of_records(self) -> None:
        make_gate(GateRequest(base=str(TINY_CNN), head=str(TINY_CNN), rtol=MOST_TOLERANCE, atol=MOST_TOLERANCE))

    @pytest.mark.parametrize("request_type", [GateRequest, SearchRequest])
    @pytest.mark.parametrize("name", ["rtol", "atol"])
    def test_the_help_states_the_limit(self, request_type: Any, name: str) -> None:
        assert options_of(request_type)[name].option.help.endswith(f": at most {MOST_TOLERANCE:g}.")


def write_dequantized(path: Path, scale: float) -> Path:
    """Write a model with the outputs of the tiny CNN, quantized in steps of a size, and dequantized at the end."""
    model, name = load_open_ended()
    model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [], [scale]))
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT8, [], [0]))
    model.graph.node.append(helper.make_node("QuantizeLinear", ["before", "scale", "zero"], ["steps"]))
    model.graph.node.append(helper.make_node("DequantizeLinear", ["steps", "scale", "zero"], [name]))
    onnx.save(model, path)
    return path


@pytest.mark.usefixtures("no_workers_left")
class TestWorkers:
    """With real processes."""

    def test_weights_that_are_wrong_do_not_pass(self, sides: Any, tmp_path: Path) -> None:
        """The outputs differ by 5%. The record of head allows 10%."""
        base, head = sides({}, {"tolerance": LOOSE})
        broken = scaled(tmp_path / "broken.onnx", 1.05)
        with pytest.raises(MeasureError, match="differ from those of base"):
            ortune.gate(base, head.replace(str(TINY_CNN), str(broken)), budget=1, busy=True)

    def test_the_last_step_of_head_allows_nothing(self, tmp_path: Path) -> None:
        """A model that is dequantized at the end may differ by a step, which it must not choose itself."""
        broken = write_dequantized(tmp_path / "broken.onnx", 1e6)
        with pytest.raises(MeasureError, match="differ from those of base"):
            ortune.gate(TINY_CNN, broken, budget=1, busy=True)


class TestGoal:
    def test_head_decides_neither_load_nor_objective(self, sides: Any) -> None:
        gate, _ = prepare(*sides({}, {"load": TWO_CLIENTS, "objectives": ("p99",)}))
        assert (gate.goal.load, gate.goal.objectives) == (Load(), ("p50",))
        assert gate.notes == (
            "The record of head is for 2 clients, back to back. The gate measures one client, back to back, as the "
            "record of base says.",
            "The record of head optimizes p99. The gate compares p50, as the record of base says.",
        )

    def test_without_a_record_of_base_the_defaults_decide(self, sides: Any) -> None:
        gate, _ = prepare(*sides(None, {"load": TWO_CLIENTS, "objectives": ("memory",)}))
        assert gate.goal.load == Load()
        assert "memory" not in gate.goal.objectives
        assert len(gate.notes) == 2
        assert all(note.endswith(", as base has no record.") for note in gate.notes)

    def test_an_objective_is_said_to_be_of_a_record_only_if_it_is(self, sides: Any) -> None:
        """Under another load than that of the record of base, it is the default of this load."""
        texts = sides({"objectives": ("throughput",)}, {"objectives": ("p99",)})
        gate, _ = prepare(*texts, clients=2)
        (note,) = gate.notes
        compared = f"The gate compares {', '.join(gate.goal.objectives)}, as the record of base is for another load."
        assert note == f"The record of head optimizes p99. {compared}"

    def test_what_options_add_is_compared_too(self, sides: Any) -> None:
        texts = sides(None, {"objectives": ("p99",)})
        gate, _ = prepare(*texts, also=("p99",))
        assert gate.notes == ()
        gate, _ = prepare(*texts, also=("cpu",))
        assert gate.notes == ("The record of head optimizes p99. The gate compares p50, cpu.",)

    def test_the_record_of_base_decides(self, sides: Any) -> None:
        gate, _ = prepare(*sides({"load": TWO_CLIENTS, "objectives": ("throughput",)}, None))
        assert (gate.goal.load, gate.goal.objectives) == (TWO_CLIENTS, ("throughput",))
        assert gate.notes == ()

    def test_what_the_command_decides_is_not_noted(self, sides: Any) -> None:
        texts = sides(None, {"load": TWO_CLIENTS, "objectives": ("p99",)})
        gate, _ = prepare(*texts, clients=4, objective="mean")
        assert (gate.goal.load, gate.goal.objectives) == (make_load(4), ("mean",))
        assert gate.notes == ()

    def test_inputs_of_other_sizes(self, sides: Any) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        inputs = {
            name: msgspec.structs.replace(data, shapes=tuple((2, *shape[1:]) for shape in data.shapes))
            for name, data in record.workload.inputs.items()
        }
        gate, _ = prepare(*sides({}, {"inputs": inputs}))
        assert gate.inputs.shapes == {"image": (1, 3, 32, 32)}
        assert gate.notes == (
            "The record of head has inputs of other sizes. The gate uses those of the record of base.",
        )


class TestLimits:
    @pytest.mark.parametrize(
        ("base", "head", "expected", "n_claims"),
        [
            (["p99<10ms"], ["p99<1s"], ["p99<10ms"], 2),
            (["p99<10ms"], ["p99<1ms"], ["p99<10ms", "p99<1ms"], 2),
            (["p99<10ms"], ["p99<10ms"], ["p99<10ms"], 2),
            (["p99<10ms"], [], ["p99<10ms"], 2),
            ([], ["p99<10ms"], ["p99<10ms"], 1),
            (["throughput>10/s"], ["throughput>1/s"], ["throughput>10/s"], 2),
            (["throughput>10/s"], ["throughput>100/s"], ["throughput>10/s", "throughput>100/s"], 2),
            ([], ["p99<9ms", "p99<3ms", "p99<5ms", "memory<1GB"], ["p99<3ms", "memory<1GB"], 1),
        ],
    )
    def test_head_can_only_add_limits(
        self, base: list[str], head: list[str], expected: list[str], n_claims: int, sides: Any
    ) -> None:
        """They do not count among the claims: many of them would make a slowdown harder to prove."""
        texts = sides(*({"limits": tuple(map(parse_limit, limits))} for limits in (base, head)))
        gate, _ = prepare(*texts)
        assert [limit.text for limit in gate.goal.limits] == expected
        assert count_claims(gate) == n_claims

    def test_looser_limits_are_noted(self, sides: Any) -> None:
        gate, _ = prepare(*sides({"limits": (parse_limit("p99<10ms"),)}, {"limits": (parse_limit("p99<1s"),)}))
        assert gate.notes == ("The record of head has looser limits, which do not count: p99<1s.",)

    def test_limits_of_another_load_do_not_count(self, sides: Any) -> None:
        gate, _ = prepare(*sides(None, {"load": TWO_CLIENTS, "limits": (parse_limit("p99<1ms"),)}))
        assert gate.goal.limits == ()

    def test_a_limit_without_a_bound_is_refused(self, tmp_path: Path) -> None:
        path = write_record(tmp_path / "r.json", limits=(parse_limit("p99<1ms"),))
        document = json.loads(path.read_text())
        document["workload"]["limits"][0]["bound"] = 0
        path.write_text(json.dumps(document))
        with pytest.raises(RecordError, match=r"\$\.workload\.limits\[0\]\.bound"):
            make_gate(GateRequest(base=f"{TINY_CNN}@{path}", head=str(TINY_CNN)))


class TestReports:
    NOTE = "The record of head optimizes p99. The gate compares p50, as base has no record."

    def test_notes_are_in_all_reports(self) -> None:
        result = make_result(notes=(self.NOTE,))
        assert self.NOTE in render_markdown([result])
        assert self.NOTE.encode() in render_junit([result], inconclusive_fails=False)
        (line,) = render_annotations([result]).splitlines()
        assert line.endswith(f". {self.NOTE.removesuffix('.')}")

    def test_the_command_prints_them(self, sides: Any, tmp_path: Path) -> None:
        """On a simulated host."""
        base, head = sides({"tolerance": Tolerance()}, {"tolerance": LOOSE, "objectives": ("p99",)})
        limits = ("--budget", "60s", "--busy", "--max-slowdown", "300%", "--limit", "p50<1us")
        done = run_ortune("gate", base, head, *limits, "--json", cwd=tmp_path, simulate=True, columns=400)
        assert done.returncode == 1, done.stdout + done.stderr
        (result,) = json.loads(done.stdout)
        assert len(result["notes"]) == 2
        for note in result["notes"]:
            assert f"warning: {note}" in " ".join(done.stderr.split())
        (tmp_path / "gates.toml").write_text(
            "[gate]\nbusy = true\nmax-slowdown = '300%'\nlimit = ['p50<1us']\n"
            f"[gate.a]\nbase = '{base}'\nhead = '{head}'\n[gate.b]\nbase = '{base}'\nhead = '{base}'\n"
        )
        several = run_ortune(
            "gate", "--file", "gates.toml", "--trust", "--json", cwd=tmp_path, simulate=True, columns=400
        )
        for note in result["notes"]:
            assert f"warning: a: {note}" in " ".join(several.stderr.split())
