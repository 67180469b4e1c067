"""The batching server: the same batches as the simulated queue, and the same outputs as single calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.simulated_clock import SimulatedClock
from ortune import Load, Tolerance
from ortune.model import read_model
from ortune.queueing.batching import BatchedQueue, make_batch_times, schedule_batches
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.batches import SplitError
from ortune.worker.batching_server import BatchingServer, RequestQueue
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.worker.open_loop import RequestStream, draw_arrivals, plan_warm_up
from ortune.workload import InputOptions, make_feed, make_load
from tests.conftest import TINY_ENCODER

MS = 1_000_000

TIMES = make_batch_times({1: 10 * MS, 4: 16 * MS, 8: 24 * MS})


class SleepingModel:
    """Takes as long for a batch as the table says."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.table = np.rint(TIMES.table(8)).astype(int)
        self.sizes: list[int] = []

    def __call__(self, requests: Sequence[int]) -> None:
        self.sizes.append(len(requests))
        self.clock.sleep_ns(int(self.table[len(requests)]))


def measure(load: Load, **fields: Any) -> tuple[Any, SleepingModel]:
    clock = SimulatedClock()
    model = SleepingModel(clock)
    plan = BlockPlan(load=load, duration_ns=3000 * MS, lead_in_ns=0, min_calls=1, deadline_s=9, **fields)
    window = RequestStream(load).measure(model, range(7), plan, lambda: None, clock)
    return window, model


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(("max_batch", "delay_ns"), [(8, 0), (8, 5 * MS), (3, 20 * MS), (2, 0)])
@pytest.mark.parametrize("rate", [30.0, 240.0])
def test_batches_are_those_of_the_simulated_queue(max_batch: int, delay_ns: int, clients: int, rate: float) -> None:
    load = make_load(clients=clients, rate_per_s=rate)
    window, model = measure(load, max_batch=max_batch, max_delay_ns=delay_ns, seed=4)
    arrivals = draw_arrivals(load, 0, 3000 * MS, 4)
    queue = BatchedQueue(times=TIMES, max_batch=max_batch, max_delay_ns=delay_ns, n_servers=clients)
    schedule = schedule_batches(queue, arrivals[:, None])
    in_window = schedule.starts_ns[:, 0] < 3000 * MS
    latencies = (schedule.end_of_requests()[:, 0] - arrivals)[: int(schedule.sizes[in_window].sum())]
    assert model.sizes[1:] == schedule.sizes[in_window, 0].tolist()  # the first call wakes the threads
    assert sorted(window.latencies_ns.tolist()) == sorted(latencies.tolist())
    if rate > 100:
        assert max(model.sizes) == max_batch or clients == 2


def test_work_is_counted_in_requests() -> None:
    """Two instances of a model are full at 667 requests per second; here, calls take 0.45 of their time."""
    window, model = measure(make_load(clients=2, rate_per_s=300), max_batch=8, max_delay_ns=10 * MS)
    n_requests = len(window.latencies_ns)
    assert n_requests == pytest.approx(900, rel=0.1)
    assert window.n_calls == pytest.approx(n_requests, rel=0.02)
    busy_ns = sum(int(model.table[size]) for size in model.sizes[1:])
    assert window.service_ns * n_requests == pytest.approx(busy_ns, rel=0.02)


def test_requests_that_wait_are_served_in_the_next_block() -> None:
    """The queue continues over blocks: with more requests than full batches can take, latencies grow."""
    clock = SimulatedClock()
    model = SleepingModel(clock)
    load = make_load(rate_per_s=500)
    stream = RequestStream(load)
    medians = []
    for seed in range(3):
        plan = BlockPlan(
            load=load, duration_ns=500 * MS, lead_in_ns=0, min_calls=1, deadline_s=9, max_batch=8, seed=seed
        )
        medians.append(np.median(stream.measure(model, range(7), plan, lambda: None, clock).latencies_ns))
    # In half a second, 250 requests arrive, and 167 are served. The others wait for the next block.
    assert medians[1] > medians[0] + 100 * MS
    assert medians[2] > medians[1] + 100 * MS


def test_the_warm_up_of_full_batches() -> None:
    durations = np.full(16, 24 * MS)
    load = make_load(rate_per_s=200)
    # 24 ms for 8 requests are 3 ms each, so that single calls of 24 ms say nothing about the queue.
    assert plan_warm_up(durations, load, 10_000 * MS) == 0
    assert plan_warm_up(durations, load, 10_000 * MS, 8) == 240 * MS
    assert plan_warm_up(durations, load, 100 * MS, 8) == 100 * MS


def test_a_queue_without_requests() -> None:
    queue = RequestQueue([], SimulatedClock(), 4, 0)
    assert not queue.take()


class TestServing:
    ITEMS = tuple({"x": np.array([[number, 10 * number]])} for number in range(5))

    def test_outputs_are_those_of_each_request(self) -> None:
        calls = []

        def call(sample: dict[str, Any]) -> list[Any]:
            calls.append(len(sample["x"]))
            return [sample["x"] * 2, [f"{row[0]}" for row in sample["x"]]]

        served = BatchingServer(call).serve(self.ITEMS)
        assert [outputs[0].tolist() for outputs in served] == [[[2 * n, 20 * n]] for n in range(5)]
        assert [outputs[1] for outputs in served] == [[f"{n}"] for n in range(5)]
        assert BatchingServer(call).serve(self.ITEMS[2:3])[0][0].tolist() == [[4, 40]]
        assert calls == [5, 1]

    def test_outputs_without_an_entry_for_each_request(self) -> None:
        with pytest.raises(SplitError, match="1 entries for a batch of 5"):
            BatchingServer(lambda sample: [sample["x"].sum(axis=0)[None]]).serve(self.ITEMS)


@pytest.mark.usefixtures("models_read_here")
def test_real_workers_serve_batches() -> None:
    """A worker puts requests together, checks the outputs, and measures the latency of each request."""
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"sequence": (16,)}), (1, 4))
    load = make_load(rate_per_s=400, clients=2)
    plan = BlockPlan(
        load=load, duration_ns=300 * MS, lead_in_ns=0, min_calls=1, deadline_s=60, max_batch=4, max_delay_ns=20 * MS
    )
    with ProcessExecutor(model, feed, Tolerance(), usable=(0, 1)) as executor:
        live = launch_reference(executor, model, feed)
        block = live.measure(plan)
    assert isinstance(block, Block)
    assert len(block.samples_ns) > 0
    assert block.n_calls > 0
    assert block.batch == 1


@pytest.mark.usefixtures("models_read_here")
def test_a_server_whose_outputs_differ_is_refused(tmp_path: Path) -> None:
    """The model subtracts the mean over all requests of a batch."""
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]
    nodes = [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["y"])]
    graph = helper.make_graph(nodes, "mixing", sides[:1], sides[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    model = read_model(tmp_path / "m.onnx")
    feed = make_feed(model, InputOptions(), (1, 4))
    load = make_load(rate_per_s=400)
    plan = BlockPlan(load=load, duration_ns=100 * MS, lead_in_ns=0, min_calls=1, deadline_s=60, max_batch=4)
    with ProcessExecutor(model, feed, Tolerance(), usable=(0, 1)) as executor:
        failure = launch_reference(executor, model, feed).measure(plan)
    assert isinstance(failure, Failure)
    assert failure.kind == "wrong_output"
    assert "in a batch of 4 requests" in failure.message
