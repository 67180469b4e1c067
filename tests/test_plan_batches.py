"""Plans with batches: of callers, of servers that put requests together, and of items with different lengths."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

import ortune
from ortune import Config, Deployment, Limit, Load, MeasureError, Tolerance, UsageError
from ortune.console.plan import find_warnings
from ortune.console.plan_lengths import explain_grouping, show_lengths
from ortune.console.widgets import format_number
from ortune.host import place_processes
from ortune.host.placement import Unit
from ortune.host.topology import Cpus
from ortune.knobs import DEFAULT
from ortune.measure.open import open_comparison
from ortune.model import InputInfo, ModelInfo, OutputInfo, read_model
from ortune.options import make_request
from ortune.planning import dynamic_batching, run
from ortune.planning.call_times import list_points, measure_call_times
from ortune.planning.choose import rank_rows
from ortune.planning.deployment import Batching
from ortune.planning.dynamic_batching import (
    choose_batching,
    find_relative_error,
    make_times,
    predict_batched_capacity,
    predict_batched_latency,
    round_delay,
    with_batch,
)
from ortune.planning.files import decode_plan, encode_plan
from ortune.planning.length_policies import (
    LengthSample,
    choose_live,
    choose_policy,
    plan_lengths,
    plan_rounds,
    select_fitting,
)
from ortune.planning.measured_capacity import CapacityMeasurement
from ortune.planning.measuring import DeploymentRunner, Screened
from ortune.planning.options import PlanOptions
from ortune.planning.prepare import prepare_plan
from ortune.planning.proof import mark_proven
from ortune.planning.result import Estimate, LengthPlan, LengthPolicy
from ortune.planning.run import PlanOutcome, run_stages
from ortune.planning.space import make_deployment_space
from ortune.queueing.batching import make_batch_times
from ortune.queueing.interpolation import make_call_times
from ortune.queueing.length_batches import evaluate_policies
from ortune.requests import PlanRequest
from ortune.worker import BlockPlan, Failure
from ortune.worker.block import ItemGroup, ItemsJob, Memory
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.jobs import JobPreparation, cut_padding, pad_item
from ortune.worker.outputs import Difference
from ortune.workload import InputOptions, parse_limit
from ortune.workload.length_feed import find_length_axes, make_length_feed
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.simulated import SimulatedExecutor, make_host, make_model
from tests.test_planning import make_example, open_simulated

MS = 1_000_000
LENGTHS = (30, 8, 200, 29, 12, 64, 9, 31, 100, 40, 22, 17)


def token_ns(size: int, length: int) -> float:
    """Return the duration of a call that takes 1 ms and 10 us for each token."""
    return 1e6 + 1e4 * size * length


def make_request_of(**values: Any) -> PlanRequest:
    return make_request(PlanRequest, {"model": str(TINY_ENCODER), **values})


class TestOptions:
    def test_ways_exclude_each_other(self) -> None:
        with pytest.raises(UsageError, match="different ways to put items together"):
            make_request_of(batch="1,2", lengths="constant:8")
        with pytest.raises(UsageError, match="different ways"):
            make_request_of(dynamic_batching=True, slo="p99<9ms", lengths="constant:8")

    def test_dynamic_batching_needs_a_target(self) -> None:
        with pytest.raises(UsageError, match="needs a target"):
            make_request_of(dynamic_batching=True)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--lengths", "no/such/file"), "error: --lengths no/such/file: cannot be read"),
            (("--lengths", "uniform:9-3"), "lengths must be from 1"),
            (("--lengths", "constant:8", "--dim", "sequence=8"), "error: --lengths needs a model with an input"),
            (("--lengths", "constant:8", "--dim", "batch=1,2"), "several sizes cannot be combined with --lengths"),
            (("--batch", "1,2", "--lengths", "constant:8"), "different ways"),
            (("--dynamic-batching",), "Add --slo"),
            (("--batch", "1,2", "--dim", "batch=4"), "contradicts"),
        ],
    )
    def test_messages(self, arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
        done = run_ortune("plan", TINY_ENCODER, *arguments, cwd=tmp_path, simulate=True)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr

    def test_models_without_a_sequence_or_a_batch(self, tmp_path: Path) -> None:
        done = run_ortune("plan", TINY_CNN, "--lengths", "constant:8", cwd=tmp_path, simulate=True)
        assert done.returncode == 2
        assert "is a sequence of any size" in " ".join(done.stderr.split())
        done = run_ortune("plan", TINY_CNN, "--dynamic-batching", "--slo", "p99<9ms", cwd=tmp_path, simulate=True)
        assert done.returncode == 2
        assert "or leave --dynamic-batching out" in " ".join(done.stderr.split())


def info(name: str, *shape: int | str | None, dtype: str = "int64") -> InputInfo:
    return InputInfo(name=name, dtype=dtype, shape=shape)


def text_model(*inputs: InputInfo) -> ModelInfo:
    return msgspec.structs.replace(make_model(inputs=inputs), outputs=(OutputInfo(name="y", shape=("batch", 4)),))


class TestFeed:
    def test_items_have_their_lengths(self) -> None:
        model = text_model(
            info("input_ids", "batch", "seq"), info("attention_mask", "batch", "seq"), info("n", "batch")
        )
        axes = find_length_axes(model, InputOptions())
        assert axes == {"input_ids": (1,), "attention_mask": (1,)}
        feed = make_length_feed(model, InputOptions(), (5, 9), axes)
        assert [sample["input_ids"].array.shape for sample in feed.samples] == [(1, 5), (1, 9)]
        assert feed.samples[0]["n"].array.shape == (1,)
        assert feed.cases == (0, 0)

    def test_several_sequences_are_refused(self) -> None:
        model = text_model(info("src", "batch", "source_length"), info("tgt", "batch", "target_length"))
        with pytest.raises(UsageError, match=r"source_length, target_length\. An item has one length"):
            find_length_axes(model, InputOptions())
        assert find_length_axes(model, InputOptions(dims={"target_length": (4,)})) == {"src": (1,)}

    def test_data_and_several_sizes_are_refused(self) -> None:
        model = text_model(info("input_ids", "batch", "seq"), info("x", "batch", "k"))
        with pytest.raises(UsageError, match="cannot be combined with"):
            make_length_feed(model, InputOptions(data="x.npz"), (5,), {"input_ids": (1,)})
        with pytest.raises(UsageError, match="several sizes cannot be combined"):
            make_length_feed(model, InputOptions(dims={"k": (1, 2)}), (5,), {"input_ids": (1,)})

    def test_items_that_do_not_fit_into_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 10_000_000)
        model = text_model(info("input_ids", "batch", "seq"))
        with pytest.raises(ortune.OrtuneError, match="2 items padded to 1000000 take 64 MB"):
            make_length_feed(model, InputOptions(), (1_000_000, 3), {"input_ids": (1,)})


class TestPadding:
    def test_values_by_role(self) -> None:
        item = {
            "input_ids": np.array([[7, 8]]),
            "attention_mask": np.ones((1, 2), np.int64),
            "position_ids": np.array([[0, 1]]),
            "features": np.ones((1, 3, 2), np.float32),
            "words": np.array([["a", "b"]], object),
            "flag": np.array([1]),
        }
        axes = {**dict.fromkeys(("input_ids", "attention_mask", "position_ids", "words"), (1,)), "features": (2,)}
        padded = pad_item(item, axes, 4)
        assert padded["input_ids"].tolist() == [[7, 8, 0, 0]]
        assert padded["attention_mask"].tolist() == [[1, 1, 0, 0]]
        assert padded["position_ids"].tolist() == [[0, 1, 2, 3]]
        assert padded["features"].tolist() == [[[1, 1, 0, 0]] * 3]
        assert padded["words"].tolist() == [["a", "b", "", ""]]
        assert padded["flag"] is item["flag"]
        assert {name: array.dtype for name, array in padded.items()} == {n: a.dtype for n, a in item.items()}
        assert pad_item(item, axes, 2)["input_ids"] is item["input_ids"]

    def test_outputs_are_cut(self) -> None:
        assert cut_padding(np.arange(12).reshape(1, 4, 3), np.zeros((1, 2, 3))).tolist() == [[[0, 1, 2], [3, 4, 5]]]
        assert cut_padding(np.zeros((1, 2)), np.zeros((1, 2, 3))).shape == (1, 2)

    def test_outputs_are_compared_with_those_of_the_item_alone(self) -> None:
        samples = [{"x": np.full((1, length), length)} for length in (2, 3)]
        job = ItemsJob(groups=(ItemGroup(items=(1, 0), length=4),), axes={"x": (1,)}, is_checked=True)
        seen = []

        def compare(expected: Any, actual: Any) -> Difference:
            seen.append((expected[0].tolist(), actual[0].tolist()))
            return Difference(max_error=0.5)

        preparation = JobPreparation(samples, lambda sample: [sample["x"] * 2], compare)
        prepared = preparation.prepare(job)
        assert prepared.difference == Difference(max_error=0.5)
        assert seen == [([[6, 6, 6]], [[6, 6, 6]]), ([[4, 4]], [[4, 4]])]
        assert prepared.calls[0]["x"].tolist() == [[3, 3, 3, 0], [2, 2, 0, 0]]
        assert preparation.prepare(job) is prepared


def make_tagger(path: Path) -> Path:
    """Write the tiny encoder without its mean over the sequence, which ignores the mask."""
    model = onnx.load(TINY_ENCODER)
    last = model.graph.node[-1]
    hidden = last.input[0]
    model.graph.node.remove(last)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(hidden, TensorProto.FLOAT, ["batch", "sequence", 16]))
    onnx.save(model, path)
    return path


@pytest.mark.usefixtures("models_read_here")
class TestRealWorkers:
    def measure(self, path: Path) -> tuple[Any, Any]:
        model = read_model(path)
        axes = find_length_axes(model, InputOptions())
        feed = make_length_feed(model, InputOptions(), LENGTHS, axes)
        groups = (ItemGroup(items=(1, 6, 4), length=12), ItemGroup(items=(2, 0), length=200))
        job = ItemsJob(groups=groups, axes=axes, is_checked=True)
        plan = BlockPlan(duration_ns=MS, lead_in_ns=0, min_calls=2, deadline_s=60, job=job)
        single = msgspec.structs.replace(plan, load=Load(scenario="multi-client", clients=2), lead_in_ns=1)
        with ProcessExecutor(model, feed, Tolerance(), usable=(0, 1)) as executor:
            live = launch_reference(executor, model, feed)
            return live.measure(plan), live.measure(single)

    def test_outputs_of_padded_items_are_those_of_the_items(self, tmp_path: Path) -> None:
        for block in self.measure(make_tagger(tmp_path / "tagger.onnx")):
            assert block.output_fault == ""
            assert 0 <= block.output_error < 1e-5
            assert block.batch == 5
            assert block.cases is None

    def test_a_model_that_ignores_the_mask_is_found(self) -> None:
        """The tiny encoder ends with a mean over all tokens, also those of the padding."""
        block, _ = self.measure(TINY_ENCODER)
        assert "output embedding" in block.output_fault


class TestGrid:
    def test_linear_durations_need_the_ends_and_two_probes(self) -> None:
        times, measured = measure_call_times(token_ns, list_points(1, 32), list_points(8, 256))
        assert (times.sizes, times.lengths) == ((1, 32), (8, 256))
        assert len(measured) == 8
        assert times.time_ns(5, 100) == pytest.approx(token_ns(5, 100))

    def test_it_is_refined_where_durations_bend(self) -> None:
        def bent(size: int, length: int) -> float:
            return token_ns(size, length) + (2e4 * size * (length - 64) if length > 64 else 0)

        times, _ = measure_call_times(bent, list_points(1, 32), list_points(8, 256))
        assert 64 in times.lengths
        assert times.time_ns(16, 32) == pytest.approx(bent(16, 32), rel=0.05)
        assert times.time_ns(16, 200) == pytest.approx(bent(16, 200), rel=0.05)

    def test_without_time_only_the_ends_are_measured(self) -> None:
        times, measured = measure_call_times(lambda n, m: n**2 * m, (1, 2, 4), (8, 16, 32), lambda: False)
        assert (times.sizes, times.lengths, len(measured)) == ((1, 4), (8, 32), 4)

    def test_one_size_and_one_length(self) -> None:
        times, measured = measure_call_times(token_ns, (1,), (8,))
        assert measured == {(1, 8): token_ns(1, 8)}
        assert times.time_ns(1, 8) == token_ns(1, 8)


def test_batches_that_do_not_fit_into_memory_are_not_measured() -> None:
    """The peak of creating the session may hide what calls take, up to some size."""
    sizes, of_item = (1, 2, 4, 8), 50_000_000
    measured: list[int] = []

    def find(size: int, hidden: int = 0) -> Memory:
        measured.append(size)
        now = 100_000_000 + size * of_item
        return Memory(steady_bytes=now, peak_bytes=max(now, hidden))

    assert select_fitting(sizes, find, 310e6, of_item) == [1, 2, 4]
    assert max(measured) == 4
    # Lengths do not differ, so that calls with one item do not show what an item takes.
    assert select_fitting(sizes, find, 310e6, 0.0) == [1, 2, 4]
    assert select_fitting(sizes, lambda size: find(size, 280_000_000), 340e6, 0.0) == [1, 2]
    assert select_fitting(sizes, find, None, of_item) == [1, 2, 4, 8]
    measured.clear()
    assert select_fitting(sizes, find, 2e9, of_item) == [1, 2, 4, 8]
    assert measured == [1]


def find_job_ns(job: ItemsJob) -> float:
    return sum(token_ns(len(group.items), group.length) for group in job.groups)


def find_job_bytes(job: ItemsJob) -> int:
    return max(100_000 * len(group.items) * group.length for group in job.groups)


ON_ALL_CPUS = Deployment()


def plan_simulated_lengths(
    find_fault: Callable[[ItemsJob], str] = lambda job: "",
    deployment: Deployment = ON_ALL_CPUS,
    *,
    limit_bytes: float | None = None,
    **options: Any,
) -> tuple[LengthPlan, list[str]]:
    executor = SimulatedExecutor(
        lambda config: 5e6, find_job_ns=find_job_ns, find_job_bytes=find_job_bytes, find_fault=find_fault
    )
    opened = open_simulated(executor)
    used_cpus: set[tuple[Cpus, ...]] = set()

    def open_executor(load: Load, cpus: tuple[Cpus, ...] = ()) -> SimulatedExecutor:
        used_cpus.add(cpus)
        return executor

    opened = msgspec.structs.replace(opened, open_executor=open_executor)
    runner = DeploymentRunner(opened, Deployment())
    runner.limit_bytes = limit_bytes
    stages: list[str] = []
    sample = LengthSample(text="lengths.txt", lengths=LENGTHS, maximum=256, axes={"x": (1,)})
    found = plan_lengths(
        runner,
        sample,
        deployment,
        place=0,
        end_s=runner.now_s() + 60,
        observe=lambda stage, done, total: stages.append(stage),
        **options,
    )
    assert not executor.live
    assert used_cpus == {deployment.cpus}
    return found, stages


class TestPolicies:
    def test_the_fastest_one_is_recommended(self) -> None:
        found, stages = plan_simulated_lengths()
        assert stages[0] == "calls"
        assert stages[-1] == "lengths"
        measured = [policy for policy in found.policies if policy.items_per_s.source == "measured"]
        assert measured == list(found.policies[: len(measured)])
        assert {policy.policy for policy in measured} >= {"one at a time", "arrival", "sorted", "sorted by tokens"}
        for policy in measured:
            assert policy.items_per_s.estimate == pytest.approx(policy.predicted_per_s, rel=0.15)
            assert (policy.to_reference is None) == (policy is found.policies[found.reference])
            assert policy.max_error == 0.0
        times = make_call_times({(n, m): token_ns(n, m) for n in (1, 12) for m in (8, 256)})
        best = evaluate_policies(LENGTHS, times, maximum=256)[0]
        assert found.choice.predicted_per_s == pytest.approx(best.items_per_s, rel=0.06)
        reference = found.policies[found.reference]
        assert (reference.policy, reference.parameter) == ("arrival", 12)
        assert found.choice.to_reference
        assert found.choice.to_reference.low > 1

    def test_ratios_are_those_of_the_true_durations(self) -> None:
        found, _ = plan_simulated_lengths()
        (single,) = (policy for policy in found.policies if policy.policy == "one at a time")
        alone_ns = sum(token_ns(1, length) for length in LENGTHS)
        assert single.to_reference
        expected = token_ns(12, 200) / alone_ns
        assert single.to_reference.estimate == pytest.approx(expected, rel=0.03)
        assert single.to_reference.low < single.to_reference.estimate < (single.to_reference.high or math.inf)
        assert single.to_reference.estimate / single.to_reference.low < 1.05

    def test_wrong_outputs_are_not_recommended(self) -> None:
        found, _ = plan_simulated_lengths(lambda job: "they differ" if len(job.groups) < len(LENGTHS) else "")
        assert found.choice.policy == "one at a time"
        assert found.policies[found.reference].problem == "they differ"

    def test_what_is_said_of_the_choice(self) -> None:
        """It is the simplest of those within 1% of the fastest, and others were only predicted."""
        found, _ = plan_simulated_lengths()
        assert explain_grouping(found).startswith(
            "No other way with correct outputs that was measured is faster by more than 1%: "
        )
        wrong = msgspec.structs.replace(found.choice, problem="they differ")
        policies = tuple(wrong if policy is found.choice else policy for policy in found.policies)
        assert "correct outputs" not in explain_grouping(msgspec.structs.replace(found, policies=policies))

    def test_no_call_takes_longer_than_the_target(self) -> None:
        found, _ = plan_simulated_lengths(slo=parse_limit("p99<5ms"))
        assert all(policy.longest_call_ns <= 5e6 for policy in found.policies)
        assert len(found.policies) > 3
        found, _ = plan_simulated_lengths(slo=parse_limit("p99<2ms"))
        assert {policy.policy for policy in found.policies} == {"one at a time"}
        assert found.choice.to_reference is None

    def test_batches_that_do_not_fit_into_memory_are_named(self) -> None:
        found, _ = plan_simulated_lengths(limit_bytes=60e6 + 100_000 * 256 * 4.5)
        assert found.unfit_sizes == (8, 12)
        assert max(policy.parameter or 0 for policy in found.policies if policy.policy == "arrival") == 4
        console = Console(width=80, record=True, file=io.StringIO())
        show_lengths(console, found, 0.36)
        text = " ".join(console.export_text().split())
        assert "batches of 8, 12 items: the longest items do not fit into memory" in text
        price = 0.36 / 3600 * 1e6 / found.choice.items_per_s.estimate
        assert f"a million items cost {format_number(price)}." in text

    def test_without_a_limit_of_memory_all_batches_are_measured(self) -> None:
        found, _ = plan_simulated_lengths()
        assert found.unfit_sizes == ()

    def test_those_that_make_the_same_calls_are_measured_once(self) -> None:
        times = make_call_times({(n, m): token_ns(n, m) for n in (1, 2) for m in (8, 256)})
        chosen = choose_live(evaluate_policies([8, 8], times), 2)
        assert {(policy.policy, policy.parameter) for policy in chosen} == {("one at a time", None), ("arrival", 2)}

    @pytest.mark.parametrize(
        ("time_s", "expected"), [(100.0, (6, 8)), (30.0, (6, 4)), (10.0, (4, 2)), (1.0, (3, 2)), (-5.0, (3, 2))]
    )
    def test_rounds(self, time_s: float, expected: tuple[int, int]) -> None:
        assert plan_rounds(time_s, 0.5, 1.0) == expected

    def test_of_equal_ones_the_simplest_is_chosen(self) -> None:
        def make(policy: Any, per_s: float, problem: str = "") -> LengthPolicy:
            estimate = Estimate(estimate=per_s, low=per_s, high=per_s, confidence=0.95, source="measured")
            return LengthPolicy(
                policy=policy,
                parameter=None,
                items_per_s=estimate,
                predicted_per_s=per_s,
                padding=0.0,
                n_calls=1,
                longest_call_ns=1.0,
                problem=problem,
            )

        rows = [
            make("maximum", 200, "differs"),
            make("sorted, best cuts", 100),
            make("sorted", 99.5),
            make("arrival", 90),
        ]
        assert choose_policy(rows) == 2


class TestDocument:
    def test_round_trip(self) -> None:
        lengths, _ = plan_simulated_lengths()
        plan = msgspec.structs.replace(make_example(), lengths=lengths)
        assert decode_plan(encode_plan(plan)) == plan

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("recommended", 1000, "names others"),
            ("reference", -1, "names others"),
            ("place", 99, "groups items for another one"),
            ("lengths", [], "no lengths"),
            ("lengths", ["8"], "Expected `int`"),
            ("policies", [], "names others"),
            ("command", "ls", "unknown field"),
        ],
    )
    def test_hostile_documents(self, field: str, value: Any, message: str) -> None:
        lengths, _ = plan_simulated_lengths()
        document = json.loads(encode_plan(msgspec.structs.replace(make_example(), lengths=lengths)))
        document["lengths"][field] = value
        with pytest.raises(ortune.OrtuneError, match=message):
            decode_plan(json.dumps(document).encode())


@pytest.mark.parametrize("unit", ["cores", "nodes"])
def test_lengths_are_measured_on_the_cpus_of_the_deployment(unit: Unit) -> None:
    placement = place_processes(make_host(8, n_nodes=2), 2, unit=unit)
    assert placement
    found, _ = plan_simulated_lengths(deployment=Deployment(processes=2, placement=placement))
    assert found.choice.items_per_s.source == "measured"


TIMES = make_batch_times({1: 10e6, 2: 11e6, 4: 13e6, 8: 17e6})


def batch_latency(config: Config, load: Load) -> float:
    """Return durations of calls that take 9 ms and 1 ms for each item, whatever the threads are."""
    return (9e6 + 1e6 * config.batch) * max(load.n_callers, 1)


def plan_simulated(*, batches: tuple[int, ...] = (), n_cores: int = 1, **options: Any) -> PlanOutcome:
    executor = SimulatedExecutor(lambda config: 1, latency_under=batch_latency, launch_s=0.01)
    base = Config(batch=batches[0]) if batches else DEFAULT
    space = make_deployment_space(make_host(n_cores), base, batches=batches)
    outcome = run_stages(space, open_simulated(executor), PlanOptions(**options))
    assert not executor.live
    return outcome


class TestStaticBatches:
    def test_the_largest_is_best_without_a_target(self) -> None:
        outcome = plan_simulated(batches=(1, 2, 4, 8, 16))
        row = outcome.rows[outcome.recommended]
        assert row.deployment.config.batch == 16
        assert row.throughput.estimate == pytest.approx(16 / 25e-3, rel=0.15)
        assert row.ratio
        assert row.ratio.estimate == pytest.approx(16 / 25 * 10, rel=0.1)

    def test_the_target_is_one_for_calls_and_the_capacity_is_of_items(self) -> None:
        outcome = plan_simulated(batches=(1, 8, 64), slo=parse_limit("p90<40ms"), budget_s=300.0)
        row = outcome.rows[outcome.recommended]
        assert row.deployment.config.batch == 8
        assert row.capacity
        assert row.predicted_capacity
        # Calls take 17 ms, so that there are fewer than 59 per second. Those of 64 items take 73 ms.
        assert 59 < row.capacity.estimate < 8 * 59
        assert row.capacity.source == "measured"
        assert row.capacity.estimate == pytest.approx(row.predicted_capacity.estimate, rel=0.5)

    def test_the_space_has_the_given_batches_only(self) -> None:
        space = make_deployment_space(make_host(4), Config(batch=2), batches=(2, 4, 8))
        assert space.default.config.batch == 2
        found = space.list_first()
        for candidate in found[:4]:
            found += space.list_variants(space.find_shape(candidate))
        assert {candidate.config.batch for candidate in found} == {2, 4, 8}
        plain = make_deployment_space(make_host(4), DEFAULT)
        assert {candidate.config.batch for candidate in plain.list_first()} == {1}


@pytest.fixture(scope="module")
def outcome() -> PlanOutcome:
    """Return the outcome of a plan with dynamic batching on a simulated host."""
    slo = parse_limit("p99<60ms")
    return plan_simulated(slo=slo, dynamic_batching=True, rate_per_s=900.0, budget_s=600.0)


@pytest.fixture(scope="module")
def simulated_once() -> Iterator[None]:
    """Equal queues are simulated once: what depends only on its arguments takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("simulate_figure", "simulate_batched_tail"):
            patch.setattr(dynamic_batching, name, functools.cache(getattr(dynamic_batching, name)))
        yield


@pytest.mark.usefixtures("simulated_once")
class TestDynamicBatching:
    def test_batches_have_a_higher_capacity_within_the_target(self) -> None:
        slo = parse_limit("p99<60ms")
        batching, capacity = choose_batching(Deployment(), TIMES, slo, seed=0)
        single = predict_batched_capacity(Deployment(), TIMES, None, slo, seed=0)
        assert batching
        assert batching.max_batch == 8
        assert single.estimate < 100 < 2 * 100 < capacity.estimate < 8 / 17e-3
        two = predict_batched_capacity(Deployment(processes=2), TIMES, batching, slo, seed=0)
        assert two.estimate == pytest.approx(2 * capacity.estimate, rel=0.02)

    def test_the_error_of_the_durations_is_in_the_interval(self) -> None:
        slo = parse_limit("p99<60ms")
        _, exact = choose_batching(Deployment(), TIMES, slo, seed=0)
        _, wide = choose_batching(Deployment(), TIMES, slo, seed=0, error=0.2)
        assert exact.high
        assert wide.high
        assert wide.estimate == exact.estimate
        assert wide.low < 0.85 * wide.estimate < 0.95 * wide.estimate < exact.low
        assert exact.high < 1.05 * wide.estimate < 1.2 * wide.estimate < wide.high
        _, unknown = choose_batching(Deployment(), TIMES, slo, seed=0, error=find_relative_error(None))
        assert (unknown.low, unknown.high) == (0.0, None)

    @pytest.mark.long
    def test_batches_that_bring_nothing_are_not_chosen(self) -> None:
        times = make_batch_times({1: 10e6, 2: 20e6, 4: 40e6})
        batching, _ = choose_batching(Deployment(), times, parse_limit("p99<60ms"), seed=0)
        assert batching is None

    def test_the_latency_at_a_rate(self) -> None:
        batched = Deployment(batching=Batching(max_batch=8, max_delay_us=1000))
        found = predict_batched_latency(batched, TIMES, 200, "p90", seed=0)
        assert found
        assert found.target
        assert 10e6 < found.p50_ns < found.target.estimate < found.p99_ns < 60e6
        assert predict_batched_latency(batched, TIMES, 900, "p90", seed=0) is None

    @pytest.mark.parametrize(("delay_us", "expected"), [(0.4, 0), (1.4, 1), (37, 40), (990, 1000), (4321, 4000)])
    def test_delays_are_round(self, delay_us: float, expected: int) -> None:
        assert round_delay(delay_us) == expected

    def test_times_vary_as_measured_ones(self) -> None:
        screened = [
            Screened(
                deployment=Deployment(config=Config(batch=size)),
                samples_ns=np.array([9, 10, 11, 10]) * size * MS,
            )
            for size in (1, 2)
        ]
        times = make_times(screened)
        assert times.times_ns == (10e6, 20e6)
        assert times.variation == pytest.approx(0.005, rel=0.01)

    @pytest.mark.long
    def test_it_is_measured_and_recommended(self, outcome: PlanOutcome) -> None:
        row = outcome.rows[outcome.recommended]
        assert row.deployment.batching
        assert row.deployment.config.batch == 1
        assert row.capacity
        assert row.predicted_capacity
        assert row.at_rate
        assert row.capacity.source == "measured"
        assert row.capacity.low > 300
        default = outcome.rows[0].capacity
        assert default
        assert default.source == "measured"
        assert default.estimate < row.capacity.low
        assert row.capacity.estimate == pytest.approx(row.predicted_capacity.estimate, rel=0.25)
        assert row.at_rate.p99_ns < 60e6
        assert row.replicas == math.ceil(900 / (0.8 * row.capacity.estimate))

    @pytest.mark.long
    def test_the_default_misses_the_target_at_the_capacity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One measurement shows this if there is no time to measure the capacity of the default."""
        fit_into = CapacityMeasurement.fit_into
        monkeypatch.setattr(
            CapacityMeasurement,
            "fit_into",
            lambda self, time_s: self.row.deployment.batching is not None and fit_into(self, time_s),
        )
        outcome = plan_simulated(slo=parse_limit("p99<60ms"), dynamic_batching=True, rate_per_s=900.0, budget_s=600.0)
        row, default = outcome.rows[outcome.recommended], outcome.rows[0].capacity
        assert row.deployment.batching
        assert row.is_proven
        assert default
        assert default.source == "predicted"

    @pytest.mark.parametrize("failing", [(1, 2, 4), (1,)])
    def test_sizes_that_fail_after_the_confirmation(
        self, failing: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The deployments that were confirmed are in the plan."""

        def measure_sizes(runner: DeploymentRunner, deployment: Deployment, slo: Limit) -> list[Screened]:
            failure = Failure(kind="out_of_memory", stage="load", message="bad_alloc")
            return [
                Screened(deployment=with_batch(deployment, size), failure=failure)
                if size in failing
                else Screened(deployment=with_batch(deployment, size), samples_ns=np.full(9, (9 + size) * MS))
                for size in (1, 2, 4)
            ]

        monkeypatch.setattr(dynamic_batching, "measure_sizes", measure_sizes)
        found = plan_simulated(slo=parse_limit("p99<60ms"), dynamic_batching=True, budget_s=120.0)
        assert len(found.rows) > 1
        assert not any(row.deployment.batching for row in found.rows)

    def test_an_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The deployments that were confirmed are in the plan."""

        def interrupt(*arguments: Any) -> list[Screened]:
            raise KeyboardInterrupt

        monkeypatch.setattr(dynamic_batching, "measure_sizes", interrupt)
        found = plan_simulated(slo=parse_limit("p99<60ms"), dynamic_batching=True, budget_s=120.0)
        assert found.interrupted
        assert len(found.rows) > 1

    @pytest.mark.long
    def test_a_prediction_alone_does_not_recommend_it(self, outcome: PlanOutcome) -> None:
        rows = [msgspec.structs.replace(row, capacity=row.predicted_capacity or row.capacity) for row in outcome.rows]
        assert all(not row.is_proven for row in mark_proven(rows) if row.deployment.batching)
        assert not rows[rank_rows(mark_proven(rows))[0]].deployment.batching


@pytest.mark.usefixtures("models_read_here")
@pytest.mark.long
def test_real_calls_with_items_of_these_lengths(tmp_path: Path) -> None:
    """The stage with real workers: each policy is measured, and each item has its outputs."""
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, LENGTHS)))
    request = make_request(
        PlanRequest,
        {"model": str(make_tagger(tmp_path / "tagger.onnx")), "lengths": str(tmp_path / "lengths.txt")},
    )
    prepared = prepare_plan(request)
    assert prepared.options.lengths
    assert prepared.options.lengths.lengths == LENGTHS
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, Deployment())
        found = plan_lengths(runner, prepared.options.lengths, Deployment(clients=2), place=0, end_s=runner.now_s() + 4)
    measured = [policy for policy in found.policies if policy.items_per_s.source == "measured"]
    assert len(measured) >= 5
    assert all(not policy.problem and policy.max_error is not None for policy in measured)


@pytest.mark.usefixtures("models_read_here")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MeasureError("1 process fails (measure): the position 512 is out of bounds"), "position 512 is out of bounds"),
        (OSError(errno.ENOSPC, "No space left on device"), "Cannot write a temporary file: No space left on device"),
    ],
)
def test_deployments_are_kept_if_calls_with_several_items_fail(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some models accept only one item in a call, or no item as long as the longest one of a distribution."""

    def fail(*arguments: Any, **options: Any) -> LengthPlan:
        raise error

    monkeypatch.setattr(run, "plan_lengths", fail)
    executor = SimulatedExecutor(lambda config: 5e6)
    monkeypatch.setattr(run, "open_comparison", lambda setup: contextlib.nullcontext(open_simulated(executor)))
    options = {"model": str(TINY_ENCODER), "lengths": "lognormal:29,8-256", "budget": "60s"}
    plan = run.plan_deployment(prepare_plan(make_request(PlanRequest, options)))
    assert plan.lengths is None
    assert any(message in text for text in find_warnings(plan))
    assert decode_plan(encode_plan(plan)) == plan


@pytest.mark.parametrize("width", [60, 200])
def test_a_whole_command_with_lengths(width: int, tmp_path: Path) -> None:
    arguments = ("--lengths", "lognormal:29,8-256", "-o", "plan.json")
    done = run_ortune("plan", TINY_ENCODER, *arguments, cwd=tmp_path, simulate=True, columns=width)
    assert done.returncode == 0, done.stderr
    plan = ortune.read_plan(tmp_path / "plan.json")
    assert plan.lengths
    assert len(plan.lengths.lengths) == 64
    output = " ".join(done.stdout.split())
    assert "one at a time" in output
    assert plan.lengths.choice.title in output
    assert max(map(len, done.stdout.splitlines())) <= width


def test_a_whole_command_with_batches(tmp_path: Path) -> None:
    done = run_ortune("plan", TINY_ENCODER, "--batch", "1,4", "-o", "plan.json", cwd=tmp_path, simulate=True)
    assert done.returncode == 0, done.stderr
    plan = ortune.read_plan(tmp_path / "plan.json")
    assert plan.choice.deployment.config.batch == 4
    assert plan.workload.batches == (1, 4)
    assert "items/s" in done.stdout
