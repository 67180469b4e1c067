"""Batches: numbers of items in a call, as a dimension of searches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortune import Config, Goal, InputsError, OrtuneError, Record, Tolerance, UsageError, read_record
from ortune.apply.bench import cross_with_batches, prepare_bench
from ortune.apply.plan import describe_measured
from ortune.apply.verify import prepare_verification, recorded_inputs
from ortune.bounds import MOST_ITEMS
from ortune.export.pending_settings import PendingSettings
from ortune.gates.prepare import make_gate
from ortune.host import HostClass
from ortune.knobs import DEFAULT, SpaceOptions, build_space, describe
from ortune.measure.block_plan import estimate_growth, measure_pace
from ortune.measure.compute_figures import compute_figure
from ortune.measure.open import start_comparison
from ortune.measure.paired_run import Side
from ortune.model import InputInfo, ModelInfo, OutputInfo, read_model
from ortune.options import make_request
from ortune.record.files import encode_record, write_record
from ortune.requests import BenchRequest, GateRequest, SearchRequest, VerifyRequest
from ortune.tuning.additive import features_of
from ortune.tuning.hints import describe_search, recall, remember
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.worker import BlockPlan, Failure
from ortune.worker.batches import Batches, SplitError
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.process import WorkerProcess
from ortune.workload import Feed, InputOptions, make_feed, make_goal, make_load, parse_limit
from ortune.workload.batching import check_batch_axis
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import ONE_THREAD, make_local_record
from tests.simulated import SimulatedExecutor, make_host, make_model

PLAN = BlockPlan(duration_ns=20_000_000, lead_in_ns=2_000_000, min_calls=3, deadline_s=30)

EIGHT = Config(batch=8)


def batch_of(n: int) -> Config:
    return Config(batch=n)


class TestForming:
    ITEMS: ClassVar = [{"x": np.array([[number, 10 * number]])} for number in range(5)]

    def test_items_are_put_together_in_order(self) -> None:
        batches = Batches(self.ITEMS, [0] * 5, 2)
        assert [sample["x"][:, 0].tolist() for sample in batches.samples] == [[0, 1], [2, 3], [4, 0], [0, 1], [2, 3]]

    def test_one_item_is_repeated(self) -> None:
        batches = Batches(self.ITEMS[1:2], [0], 3)
        assert [sample["x"].tolist() for sample in batches.samples] == [[[1, 10]] * 3]

    def test_outputs_are_those_of_the_item(self) -> None:
        batches = Batches(self.ITEMS, [0] * 5, 2)
        calls = []

        def call(sample: dict[str, Any]) -> list[Any]:
            calls.append(sample)
            return [sample["x"] * 2, [f"{row[0]}" for row in sample["x"]]]

        found = batches.run_items(call, [0, 1, 3, 4])
        assert [outputs[0].tolist() for outputs in found] == [[[0, 0]], [[2, 20]], [[6, 60]], [[8, 80]]]
        assert [outputs[1] for outputs in found] == [["0"], ["1"], ["3"], ["4"]]
        assert len(calls) == 3  # items of the same call are taken from it together

    def test_kinds_of_items_stay_apart_and_as_frequent(self) -> None:
        items = [{"x": np.zeros((1, width))} for width in (2, 3, 2, 2)]
        batches = Batches(items, [0, 0, 0, 0], 2)
        assert [sample["x"].shape for sample in batches.samples] == [(2, 2), (2, 3), (2, 2), (2, 2)]
        cases = Batches(self.ITEMS[:4], [0, 1, 0, 1], 2)
        assert [sample["x"][:, 0].tolist() for sample in cases.samples] == [[0, 2], [1, 3], [0, 2], [1, 3]]

    def test_strings(self) -> None:
        items = [{"x": np.array([text], object)} for text in ("a", "bc")]
        (sample, _) = Batches(items, [0, 0], 2).samples
        assert sample["x"].tolist() == ["a", "bc"]
        assert sample["x"].dtype == object

    @pytest.mark.parametrize(
        ("output", "has"),
        [(np.zeros((3, 1)), "3 entries"), (np.float32(1), "no axis"), (np.zeros(()), "no axis"), ([1], "1 entries")],
    )
    def test_outputs_without_an_entry_for_each_item(self, output: Any, has: str) -> None:
        batches = Batches(self.ITEMS, [0] * 5, 2)
        with pytest.raises(SplitError, match=rf"{has} for a batch of 2"):
            batches.run_items(lambda sample: [output], [0])

    def test_shapes_of_outputs(self) -> None:
        (wide,) = Batches(self.ITEMS, [0] * 5, 4).widen([np.zeros((1, 7), np.float32)])
        assert wide.shape == (4, 7)
        assert wide.dtype == np.float32


def info(name: str, *shape: int | str | None) -> InputInfo:
    return InputInfo(name=name, dtype="float32", shape=shape)


def model_of(inputs: tuple[InputInfo, ...], *outputs: tuple[int | str | None, ...] | None) -> ModelInfo:
    made = tuple(OutputInfo(name=f"y{number}", shape=shape) for number, shape in enumerate(outputs))
    return msgspec.structs.replace(make_model(inputs=inputs), outputs=made)


class TestAxis:
    @pytest.mark.parametrize(
        "model",
        [
            model_of((info("x", "batch", 3),), ("batch", 10)),
            model_of((info("x", None, 3), info("z", "N")), (None, 10), None),
            model_of((info("x", "unk__12", 3), info("z", "unk__13")), ("unk__14",)),
            model_of((info("x", "rows", 3), info("z", "rows", "rows")), ("rows",)),
            model_of((info("x", "s0", "s1"),), ("s0", "s1")),
            model_of((info("x", "batch", "sequence"),), ("Softmaxy_dim_0", 4)),
        ],
    )
    def test_it_is_found_by_role(self, model: ModelInfo) -> None:
        check_batch_axis(model)

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (model_of((), ("N",)), "It has no inputs"),
            (model_of((info("x", 1, 3),), ("N",)), "That of input x is 1."),
            (model_of((info("x"),), ("N",)), "Input x has no axis"),
            (model_of((InputInfo(name="x", dtype="float32", shape=None),), ("N",)), "declares no shape of input x"),
            (model_of((InputInfo(name="x", dtype="", shape=None),), ("N",)), "declares no shape of input x"),
            (model_of((info("x", "N"), info("sr")), ("N",)), "Input sr has no axis"),
            (model_of((info("x", "N"),), (1, 10)), "That of output y0 is 1."),
            (model_of((info("x", "N"),), ()), "Output y0 has no axis"),
            (model_of((info("x", "batch", "tokens"),), ("tokens", 4)), "That of output y0 is tokens"),
            (model_of((info("x", "batch"),), ("detections", 4)), "That of output y0 is detections"),
            (model_of((info("x", "sequence", 8),), ("sequence", 8)), "That of input x is sequence"),
            (model_of((info("x", "nodes", 8), info("edges", "edges")), ("nodes",)), "That of input x is nodes"),
        ],
    )
    def test_what_is_missing_is_named(self, model: ModelInfo, message: str) -> None:
        with pytest.raises(UsageError, match=re.escape(message)) as caught:
            check_batch_axis(model)
        assert "{batch}" in caught.value.hint

    def test_the_user_may_name_it(self) -> None:
        check_batch_axis(model_of((info("x", "sequence", 8),), ("sequence", 8)), {"sequence"})
        model = model_of((info("x", "frames", 8),), ("frames", 8))
        for options in (InputOptions(dims={"frames": (1,)}), InputOptions(shapes={"x": (1, 8)})):
            assert make_feed(model, options, (1, 4)).tensors["x"].array.shape == (1, 8)


class TestFeed:
    def make(self, batches: tuple[int, ...] = (1, 8), **options: Any) -> Feed:
        return make_feed(read_model(TINY_ENCODER), InputOptions(**options), batches)

    @pytest.mark.usefixtures("models_read_here")
    def test_items_are_different_and_single(self) -> None:
        feed = self.make()
        assert len(feed.samples) == 8
        assert len({sample["input_ids"].array.tobytes() for sample in feed.samples}) == 8
        assert {sample["input_ids"].array.shape for sample in feed.samples} == {(1, 128)}
        # The first axis is no guess.
        assert feed.tensors["input_ids"].guessed == ("sequence=128",)
        assert len(self.make((1, 2)).samples) == 2
        assert len(self.make(()).samples) == 1

    @pytest.mark.usefixtures("models_read_here")
    def test_all_cases_come_in_turn(self) -> None:
        feed = self.make((1, 2), dims={"sequence": (4, 6)})
        assert feed.cases == (0, 1, 0, 1)
        assert [sample["input_ids"].array.shape for sample in feed.samples] == [(1, 4), (1, 6)] * 2

    @pytest.mark.usefixtures("models_read_here")
    def test_samples_of_several_items_are_rejected(self, tmp_path: Path) -> None:
        ids = np.ones((3, 5), np.int64)
        np.savez(tmp_path / "d.npz", input_ids=ids, attention_mask=ids)
        with pytest.raises(InputsError, match="input_ids has 3 entries along its first axis") as caught:
            self.make(data=str(tmp_path / "d.npz"))
        assert caught.value.option == "inputs"
        np.savez(tmp_path / "d.npz", input_ids=ids[:, None], attention_mask=ids[:, None])
        assert len(self.make(data=str(tmp_path / "d.npz")).samples) == 3
        with pytest.raises(InputsError, match="has 2 entries along its first axis"):
            self.make(shapes={"input_ids": (2, 5)})

    def test_batches_that_do_not_fit_into_memory_are_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = model_of((info("x", "N", 1000),), ("N",))
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 4_000_000)
        make_feed(model, InputOptions(), (1, 16))
        with pytest.raises(InputsError, match="batches of 1024 items take 4") as caught:
            make_feed(model, InputOptions(), (1, 1024))
        assert caught.value.option == "batch"


def save_model(path: Path, *nodes: onnx.NodeProto, y: tuple[int | str, ...] = ("N", 4)) -> ModelInfo:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(y))
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [0])
    graph = helper.make_graph(list(nodes), "g", [x], [out], [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return read_model(path)


Launch = Callable[..., WorkerProcess | Failure]


@pytest.mark.usefixtures("no_workers_left")
class TestWorkers:
    def run(
        self, model: ModelInfo, config: Config, base: Config = DEFAULT, **options: Any
    ) -> tuple[WorkerProcess | Failure, WorkerProcess | Failure]:
        """Launch the baseline and a candidate, and return both after their processes have ended."""
        feed = make_feed(model, InputOptions(), (base.batch, config.batch))
        with ProcessExecutor(model, feed, Tolerance(), usable=(), **options) as executor:
            first = launch_reference(executor, model, feed, base)
            assert isinstance(first, WorkerProcess)
            (second,) = executor.launch([config], deadline_s=60)
            assert isinstance(second, (WorkerProcess, Failure))
            self.blocks = [worker.measure(PLAN) for worker in (first, second) if isinstance(worker, WorkerProcess)]
            return first, second

    @pytest.mark.parametrize(
        ("base", "config"),
        [
            pytest.param(DEFAULT, batch_of(3), marks=pytest.mark.long),
            (DEFAULT, Config(batch=8, io_binding=True)),
            (batch_of(4), DEFAULT),
            (batch_of(2), msgspec.structs.replace(ONE_THREAD, batch=5)),
        ],
        ids=["1 and 3", "IO binding", "4 and 1", "2 and 5"],
    )
    def test_outputs_are_those_of_single_items(self, base: Config, config: Config) -> None:
        model = read_model(TINY_ENCODER)
        first, second = self.run(model, config, base)
        assert isinstance(second, WorkerProcess), second
        assert second.session_info.max_error is not None
        assert second.session_info.max_error < 1e-5
        assert first.session_info.deterministic  # type: ignore[union-attr]
        # Outputs are described as those of one item.
        assert second.session_info.outputs == {"embedding": "float32[1,16]"}
        for block, of in zip(self.blocks, (base, config), strict=True):
            assert not isinstance(block, Failure)
            assert block.batch == of.batch
            # A sample is a call, and throughput counts items.
            assert block.n_calls == len(block.samples_ns)
            calls_per_s = 1e9 * block.n_calls / block.wall_ns
            assert compute_figure("throughput", [block]) == pytest.approx(of.batch * calls_per_s)
            assert compute_figure("cpu", [block]) == pytest.approx(block.cpu_ns / block.n_calls / of.batch)

    def test_a_model_that_mixes_items_is_rejected(self, tmp_path: Path) -> None:
        mean = helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1)
        model = save_model(tmp_path / "m.onnx", mean, helper.make_node("Add", ["x", "m"], ["y"]))
        _, failure = self.run(model, batch_of(4))
        assert isinstance(failure, Failure)
        assert failure.kind == "wrong_output"
        assert failure.message.endswith("in a batch of 4")

    def test_an_output_without_a_batch_axis_is_rejected(self, tmp_path: Path) -> None:
        model = save_model(tmp_path / "m.onnx", helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1))
        _, failure = self.run(model, batch_of(4))
        assert isinstance(failure, Failure)
        assert failure.kind == "wrong_output"
        assert failure.message == "an output has 1 entries for a batch of 4: its first axis is not a batch axis"

    def test_random_outputs_are_compared_by_shape(self, tmp_path: Path) -> None:
        random = helper.make_node("RandomUniformLike", ["x"], ["r"])
        model = save_model(tmp_path / "m.onnx", random, helper.make_node("Add", ["x", "r"], ["y"]))
        first, second = self.run(model, batch_of(4))
        assert isinstance(first, WorkerProcess)
        assert isinstance(second, WorkerProcess), second
        assert not first.session_info.deterministic

    def test_a_batch_that_needs_too_much_memory_is_a_failure(self, tmp_path: Path) -> None:
        # A million times as many values as the input has.
        times = helper.make_node("Constant", [], ["k"], value_ints=[1, 10**6])
        first = helper.make_node("Constant", [], ["zero"], value_ints=[0, 0])
        model = save_model(
            tmp_path / "m.onnx",
            times,
            first,
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Tile", ["x", "k"], ["t"]),
            helper.make_node("Slice", ["t", "zero", "s"], ["y"]),
        )
        _, failure = self.run(model, batch_of(200), memory_limit_bytes=1_500_000_000)
        assert isinstance(failure, Failure)
        assert failure.kind == "out_of_memory"


BATCHES = (1, 2, 4, 8)

THREADS = ("intra_op_num_threads",)


def goal_of(objective: Any = None, *limits: str, batches: tuple[int, ...] = BATCHES, clients: int = 1) -> Goal:
    return make_goal(make_load(clients), objective, (), tuple(map(parse_limit, limits)), batches)


def search(
    executor: SimulatedExecutor, goal: Goal, *, seconds: float = 60, seed: int = 0, only: tuple[str, ...] = ()
) -> Outcome:
    space = build_space(make_host(2), make_model(), SpaceOptions(batches=goal.batches, figures=goal.figures, only=only))
    (first,) = executor.launch([space.base], deadline_s=1)
    assert not isinstance(first, Failure)
    return run_search(
        space,
        start_comparison(executor, first, goal, first_launch_s=executor.now_s(), seed=seed, free_bytes=8_000_000_000),
        SearchSettings(budget_s=seconds),
    )


def call_ns(config: Config) -> float:
    """A call costs 4 ms and 1 ms for each item, and a third less with one thread."""
    return (4e6 + 1e6 * config.batch) * (2 / 3 if config.session_options.get("intra_op_num_threads") == 1 else 1)


class TestSearch:
    def test_throughput_is_that_of_items(self) -> None:
        outcome = search(SimulatedExecutor(call_ns), goal_of(), only=THREADS)
        assert outcome.evidence.objective == "throughput"
        assert outcome.evidence.verdict == "faster"
        assert outcome.config == msgspec.structs.replace(ONE_THREAD, batch=8)
        speedup, winner, baseline = outcome.evidence.speedup, outcome.evidence.winner, outcome.evidence.baseline
        assert speedup and winner and baseline
        expected = (5e6 / 1) / ((12e6 * 2 / 3) / 8)
        assert speedup.low <= expected <= speedup.high
        assert winner.calls_per_s / baseline.calls_per_s == pytest.approx(expected, rel=0.1)
        # Latencies are those of calls.
        assert winner.p50_ns == pytest.approx(8e6, rel=0.15)

    def test_a_limit_on_latency_keeps_large_batches_out(self) -> None:
        outcome = search(SimulatedExecutor(call_ns), goal_of(None, "p50<6ms"), only=THREADS)
        assert outcome.config == msgspec.structs.replace(ONE_THREAD, batch=4)
        assert [check.kept for check in outcome.evidence.limits] == ["yes"]

    def test_latency_is_that_of_calls(self) -> None:
        outcome = search(SimulatedExecutor(call_ns), goal_of("p50"), only=THREADS)
        assert outcome.config == ONE_THREAD

    def test_cpu_time_is_that_of_items(self) -> None:
        outcome = search(SimulatedExecutor(lambda config: 5e6 * config.batch**0.5), goal_of("cpu"))
        assert outcome.config.batch == 8
        assert outcome.evidence.speedup is not None
        assert outcome.evidence.speedup.estimate == pytest.approx(8**0.5, rel=0.1)

    def test_the_baseline_has_the_first_number(self) -> None:
        outcome = search(SimulatedExecutor(call_ns), goal_of(batches=(4, 1, 8)), only=("batch",))
        assert outcome.evidence.baseline is not None
        assert outcome.evidence.baseline.config == batch_of(4)
        assert outcome.config == EIGHT

    def test_a_front_has_several_numbers(self) -> None:
        goal = make_goal(make_load(), None, ("p90", "throughput"), (), BATCHES)
        outcome = search(SimulatedExecutor(call_ns), goal, seconds=120, only=THREADS)
        assert outcome.evidence.verdict == "trade_off"
        found = [point.summary.config.batch for point in outcome.evidence.front]
        # The calls of eight items are clearly longer, so that fewer of them suffice.
        assert found == sorted(found) and {1, 8} <= {*found}

    def test_batches_that_fail_leave_the_others(self) -> None:
        lacking = Failure(kind="out_of_memory", stage="check", message="bad_alloc")
        executor = SimulatedExecutor(call_ns, fails_to_launch=lambda config: lacking if config.batch == 8 else None)
        outcome = search(executor, goal_of())
        assert outcome.config.batch == 4

    def test_where_items_gain_nothing_the_baseline_stays(self) -> None:
        outcome = search(SimulatedExecutor(lambda config: 5e6 * config.batch), goal_of())
        assert outcome.evidence.verdict in {"default_is_best", "nothing_found"}
        assert outcome.config == DEFAULT

    def test_a_budget_is_kept_if_calls_of_many_items_are_long(self) -> None:
        executor = SimulatedExecutor(lambda config: 50e6 * (1 + config.batch))
        search(executor, goal_of(batches=(1, 8, 32)), seconds=60)
        assert executor.time_s <= 1.15 * 60


class TestSpace:
    def test_sizes_are_an_ordered_dimension(self) -> None:
        space = build_space(make_host(4), make_model(), SpaceOptions(batches=(1, 2, 4, 8, 16)))
        first = space.dimensions[0]
        assert (first.name, first.labels) == ("batch", ["default", "2", "4", "8", "16"])
        # One column for each number, and one for each step from 1 to 16; the default counts as 1, not as threads.
        alone = msgspec.structs.replace(space, dimensions=space.dimensions[:1])
        main, _, _ = features_of(alone)
        assert main.shape == (5, 8)
        steps = main[:, 4:]
        numbers = [candidate.config.batch for candidate in alone.candidates]
        assert {n: int(row.sum()) for n, row in zip(numbers, steps, strict=True)} == {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}

    def test_only_and_fix(self) -> None:
        options = SpaceOptions(batches=(1, 4), only=("batch",))
        space = build_space(make_host(4), make_model(), options)
        assert [candidate.label for candidate in space.candidates] == ["default", "batch=4"]
        space = build_space(make_host(4), make_model(), msgspec.structs.replace(options, only=("execution_mode",)))
        assert "batch" in {dimension.name for dimension in space.dimensions}

    def test_a_single_size_is_that_of_all(self) -> None:
        space = build_space(make_host(2), make_model(), SpaceOptions(batches=(8,)))
        assert {candidate.config.batch for candidate in space.candidates} == {8}
        assert "batch" not in {dimension.name for dimension in space.dimensions}

    def test_configs_are_distinct_and_described(self) -> None:
        assert describe(EIGHT) == "batch=8"
        assert not EIGHT.is_default
        assert batch_of(1).key == DEFAULT.key != EIGHT.key
        for wrong in (0, -1, MOST_ITEMS + 1):
            with pytest.raises(ValueError, match="a batch of"):
                batch_of(wrong)

    def test_history_keeps_them_apart(self, tmp_path: Path) -> None:
        host, traits = HostClass.of(make_host(2)), make_model().traits
        with_batches, without = goal_of(), make_goal(make_load(), "throughput")
        remember(tmp_path / "h", describe_search(host, traits, with_batches, [EIGHT]))
        assert recall(tmp_path / "h", host, traits, with_batches) == (EIGHT,)
        assert recall(tmp_path / "h", host, traits, without) == ()


class TestPlan:
    def test_calls_grow_with_items_up_to_the_limits(self) -> None:
        assert estimate_growth(goal_of(batches=()), 1e6) == 1
        assert estimate_growth(goal_of(), 1e6) == 8
        assert estimate_growth(goal_of(batches=(4, 8, 2)), 1e6) == 2
        assert estimate_growth(goal_of(None, "p99<3ms", "memory<1GB"), 1e6) == 3
        assert estimate_growth(goal_of(None, "p99<1.5x"), 1e6) == 1.5
        assert estimate_growth(goal_of(None, "p99<0.1ms"), 1e6) == 1

    def test_a_long_call_of_many_items_is_a_block(self) -> None:
        executor = SimulatedExecutor(call_ns)
        (live,) = executor.launch([DEFAULT], deadline_s=1)
        assert not isinstance(live, Failure)
        block = live.measure(PLAN)
        assert not isinstance(block, Failure)
        pace = measure_pace(block, goal_of(), n_cases=1, quota=False, load_ns=1)
        assert pace.longest_call_ns == pytest.approx(8 * pace.call_ns)


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "batches"),
        [
            ("1, 2,4", (1, 2, 4)),
            (8, (8,)),
            ([1, "2"], (1, 2)),
            ("auto", (1, 2, 4, 8, 16, 32)),
            ((), ()),
        ],
    )
    def test_values(self, given: Any, batches: tuple[int, ...]) -> None:
        values = {"model": "m.onnx"} | ({"batch": given} if given != () else {})
        request = make_request(SearchRequest, values)
        assert request.batch == request.goal.batches == batches
        assert request.goal.objective == ("throughput" if batches else "p50")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch": "1,0"}, "batch 0: must be from 1 to 65536"),
            ({"batch": "1,x"}, "batch x: is not a whole number"),
            ({"batch": ""}, "must be 1 to 32 different numbers"),
            ({"batch": [2, 2]}, "batch 2,2: must be 1 to 32 different numbers"),
            ({"batch": list(range(1, 40))}, "must be 1 to 32 different numbers"),
            ({"batch": True}, "is not a whole number"),
            ({"batch": "1,4", "dim": {"batch": 8}}, "contradicts dim"),
            ({"batch": "1,4", "rate": 5}, "are not put together"),
            ({"batch": "1,4", "fix": {"batch": 8}}, "batch=8: is not a setting"),
            ({"batch": "1,4", "tune": {"batch": [8]}}, "a search cannot try this knob"),
        ],
    )
    @pytest.mark.parametrize("kind", [SearchRequest, BenchRequest])
    def test_bad_values_are_named(self, kind: type[Any], options: Mapping[str, Any], message: str) -> None:
        if kind is BenchRequest and {"fix", "tune"} & options.keys():
            return
        with pytest.raises(OrtuneError, match=message):
            make_request(kind, {"model": "m.onnx", **options})

    def test_an_item_has_size_one(self) -> None:
        make_request(SearchRequest, {"model": "m.onnx", "batch": "1,4", "dim": {"batch": 1, "sequence": (8, 16)}})


class TestBench:
    def test_configs_are_crossed_with_batches(self) -> None:
        sides = (Side(name="one", config=ONE_THREAD), Side(name="found", config=EIGHT))
        base, crossed = cross_with_batches(sides, (1, 4))
        assert base == DEFAULT
        assert [(side.name, side.config) for side in crossed] == [
            ("default, batch 4", batch_of(4)),
            ("one, batch 1", ONE_THREAD),
            ("one, batch 4", msgspec.structs.replace(ONE_THREAD, batch=4)),
            ("found", EIGHT),
        ]
        assert cross_with_batches(sides, ()) == (DEFAULT, sides)
        assert cross_with_batches((), (4,)) == (batch_of(4), ())

    @pytest.mark.usefixtures("models_read_here")
    def test_the_objective_is_throughput(self) -> None:
        for options in ({"batch": "1,4"}, {"set": "batch=4"}):
            setup, sides = prepare_bench(make_request(BenchRequest, {"model": str(TINY_ENCODER), **options}))
            assert setup.goal.objective == "throughput"
            assert setup.goal.batches == (1, 4)
            assert [side.config for side in sides] == [batch_of(4)]
            assert setup.describe_workload().batches == (1, 4)
        with pytest.raises(UsageError, match="That of input image is 1"):
            prepare_bench(make_request(BenchRequest, {"model": str(TINY_CNN), "batch": "1,4"}))


@pytest.fixture
def record() -> Record:
    """A record of a search with batches, whose winner has eight items in a call."""
    made = make_local_record(TINY_ENCODER, EIGHT)
    workload = msgspec.structs.replace(made.workload, objectives=("throughput",), batches=(1, 2, 8), n_samples=8)
    evidence = msgspec.structs.replace(made.evidence, objective="throughput", verdict="faster")
    return msgspec.structs.replace(made, workload=workload, evidence=evidence)


class TestRecord:
    def test_it_is_written_and_read(self, record: Record, tmp_path: Path) -> None:
        write_record(record, tmp_path / "r.json")
        found = read_record(tmp_path / "r.json")
        assert found.config == EIGHT
        assert found.workload.batches == (1, 2, 8)
        assert b'"config": {"batch": 8}' in encode_record(record)

    @pytest.mark.parametrize("batch", [b"0", b"-8", b"65537", b'"8"', b"true"])
    def test_illegal_numbers_are_rejected(self, record: Record, batch: bytes, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        for old, new in ((b'"config": {"batch": 8}', b'"config": {"batch": %s}'), (b"[1, 2, 8]", b"[1, %s]")):
            data = encode_record(record)
            assert old in data
            path.write_bytes(data.replace(old, new % batch))
            with pytest.raises(OrtuneError, match="batch"):
                read_record(path)

    @pytest.mark.usefixtures("models_read_here")
    def test_verification_measures_the_same_numbers(self, record: Record) -> None:
        setup = prepare_verification(record, VerifyRequest(config="r.json"))
        assert setup.goal.batches == (1, 8)
        assert setup.goal.objective == "throughput"
        assert (setup.base.batch, len(setup.feed.samples)) == (1, 8)
        single = msgspec.structs.replace(record, config=ONE_THREAD)
        assert prepare_verification(single, VerifyRequest(config="r.json")).goal.batches == ()

    def test_recorded_sizes_are_those_of_cases(self, record: Record) -> None:
        """Each of the items that were synthesized has an entry."""
        inputs = {
            name: msgspec.structs.replace(given, shapes=((1, 4), (1, 6)) * 8)
            for name, given in record.workload.inputs.items()
        }
        changed = msgspec.structs.replace(record, workload=msgspec.structs.replace(record.workload, inputs=inputs))
        assert [case["input_ids"] for case in recorded_inputs(changed, None).cases] == [(1, 4), (1, 6)]

    @pytest.mark.usefixtures("models_read_here")
    def test_gates_measure_the_same_numbers(self, record: Record, tmp_path: Path) -> None:
        write_record(record, tmp_path / "r.json")
        gate = make_gate(make_request(GateRequest, {"base": str(tmp_path / "r.json")}))
        assert (gate.base.config.batch, gate.head.config.batch) == (1, 8)
        assert gate.goal.batches == (1, 8)
        with pytest.raises(UsageError, match="are not put together"):
            make_gate(
                make_request(
                    GateRequest, {"base": str(tmp_path / "r.json"), "rate": 5, "objective": "p99", "max_slowdown": "3%"}
                )
            )

    def test_exports_say_that_the_caller_must_do_it(self) -> None:
        assert PendingSettings(EIGHT).remaining == ("batch=8 (the caller must put so many items into each call)",)

    def test_programs_are_expected_to_call_with_batches(self, record: Record) -> None:
        assert describe_measured(record)["shapes"]["input_ids"] == [(8, 128)]


class TestCommands:
    def test_a_search(self, tmp_path: Path) -> None:
        found = run_ortune(
            "search", TINY_ENCODER, "--batch", "1,2,8", "--budget", "30s", "-o", "r.json", cwd=tmp_path, simulate=True
        )
        assert found.returncode == 0, found.stderr
        assert "1, 2, 8 items per call" in found.stdout
        assert "the throughput of ONNX Runtime's default with single items" in found.stdout
        assert "items per call" in found.stdout and "CPU time per item" in found.stdout
        record = read_record(tmp_path / "r.json")
        assert record.config.batch == 8
        assert record.workload.batches == (1, 2, 8)
        assert "This config is for calls with 8 items each" in " ".join(found.stdout.split())
        exported = run_ortune("apply", "r.json", TINY_ENCODER, "--to", "triton", cwd=tmp_path)
        assert "batch=8 (the caller must put so many items into each call)" in exported.stdout
        code = run_ortune("apply", "r.json", TINY_ENCODER, "--to", "python", cwd=tmp_path).stdout
        items = [{"input_ids": np.full((1, 4), n), "attention_mask": np.ones((1, 4), np.int64)} for n in range(8)]
        names: dict[str, Any] = {"items": items}
        exec(compile(code, "r.py", "exec"), names)
        assert [output.shape for output in names["outputs"]] == [(8, 16)]

    def test_a_bench(self, tmp_path: Path) -> None:
        found = run_ortune("bench", TINY_ENCODER, "--batch", "1,8", cwd=tmp_path, simulate=True)
        assert found.returncode == 0, found.stderr
        assert "items/s" in found.stdout and "default, batch 8" in found.stdout

    def test_the_space(self, tmp_path: Path) -> None:
        found = run_ortune("space", TINY_ENCODER, "--batch", "1,2,8", cwd=tmp_path)
        assert "8 items in a call, instead of 1" in found.stdout

    def test_suggest_has_none(self, tmp_path: Path) -> None:
        found = run_ortune("suggest", TINY_ENCODER, "--batch", "1,8", cwd=tmp_path)
        assert found.returncode == 2
        assert "has no such option" in found.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((TINY_CNN, "--batch", "1,8"), "That of input image is 1."),
            ((TINY_ENCODER, "--batch", "1,8", "--rate", "5"), "--batch 1,8: requests that arrive at a rate"),
            ((TINY_ENCODER, "--batch", "1,8", "--dim", "batch=2"), "--batch 1,8: contradicts --dim batch=2"),
            ((TINY_ENCODER, "--batch", "1,8", "--shape", "input_ids=2x8"), "make the first one 1"),
        ],
    )
    def test_messages(self, arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
        found = run_ortune("search", *arguments, cwd=tmp_path)
        assert found.returncode == 2
        assert message in " ".join(found.stderr.split())
        assert "Traceback" not in found.stderr


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ORTUNE_HISTORY", "off")
    yield
