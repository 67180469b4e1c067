"""Configs that capture graphs, and gates that compare one provider with another."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ortune import Config, Goal, Load, Tolerance, UsageError
from ortune.apply.bench import prepare_bench
from ortune.gates.acceptance import settle_tolerance
from ortune.gates.prepare import prepare_gate
from ortune.gates.results import Gate, GateSide
from ortune.knobs import CPU, DEFAULT, SpaceOptions, build_space
from ortune.knobs.captures import captures_graphs
from ortune.knobs.config import CUDA
from ortune.knobs.providers import chain_of
from ortune.measure.captures import check_captures, check_space_captures
from ortune.measure.open import prepare_comparison
from ortune.planning.prepare import check_no_captures
from ortune.requests import BenchRequest, PlanRequest
from ortune.workload import TF32_TOLERANCE, InputOptions
from ortune.workload.load import make_load
from tests.conftest import TINY_CNN
from tests.records import make_record

pytestmark = pytest.mark.usefixtures("models_read_here")

CAPTURED = Config(io_binding=True, providers=((CUDA, {"enable_cuda_graph": "1"}), (CPU, {})))


class TestCaptures:
    """A graph that each calling thread captures again is not what a program does."""

    @pytest.mark.parametrize(
        ("load", "why"),
        [
            (make_load(clients=4), "several callers"),
            (make_load(sessions=2), "several callers"),
            (make_load(rate_per_s=5.0), "requests come from several threads"),
        ],
    )
    def test_loads(self, load: Load, why: str) -> None:
        setup = prepare_comparison(str(TINY_CNN), Goal(load=load), InputOptions())
        with pytest.raises(UsageError, match=f"tuned.json captures a graph, .*{why}"):
            check_captures([("default", DEFAULT), ("tuned.json", CAPTURED)], setup)
        check_captures([("default", DEFAULT), ("plain", CAPTURED.without_captures())], setup)
        alone = msgspec.structs.replace(setup, goal=Goal())
        check_captures([("tuned.json", CAPTURED)], alone)

    def test_values_that_turn_it_off(self) -> None:
        for value, expected in (("1", True), ("True", True), ("0", False), ("False", False)):
            assert captures_graphs(Config(providers=((CUDA, {"enable_cuda_graph": value}), (CPU, {})))) == expected
        assert captures_graphs(Config(session_config={"ep.dml.enable_graph_capture": "1"}))
        assert not captures_graphs(DEFAULT)

    @pytest.mark.parametrize("providers", [(CUDA,), (CPU, CUDA)])
    @pytest.mark.parametrize(
        ("options", "is_refused"),
        [
            ({"fix": {"cuda.enable_cuda_graph": "1"}}, True),
            ({"tune": {"cuda.enable_cuda_graph": ("1",)}}, True),
            ({"fix": {"cuda.enable_cuda_graph": "0"}}, False),
            ({}, False),
        ],
    )
    def test_a_search(self, providers: tuple[str, ...], options: dict[str, Any], is_refused: bool) -> None:
        setup = prepare_comparison(str(TINY_CNN), Goal(load=make_load(clients=2)), InputOptions())
        space = build_space(setup.host, setup.model, SpaceOptions(providers=providers, clients=2, **options))
        if is_refused:
            with pytest.raises(UsageError, match="A candidate of this search captures a graph"):
                check_space_captures(space, setup)
        else:
            check_space_captures(space, setup)

    @pytest.mark.parametrize(
        ("options", "named"),
        [({"fix": {"cuda.enable_cuda_graph": "1"}}, "fix"), ({"tune": {"cuda.enable_cuda_graph": ("1",)}}, "tune")],
    )
    def test_a_plan(self, options: dict[str, Any], named: str) -> None:
        request = PlanRequest(model=str(TINY_CNN), provider=("cuda",), **options)
        base = Config(providers=((CUDA, {"enable_cuda_graph": "1"} if named == "fix" else {}), (CPU, {})))
        with pytest.raises(UsageError, match="Plans cannot use captured graphs") as caught:
            check_no_captures(base, request)
        assert caught.value.option == named

    def test_bench(self) -> None:
        with pytest.raises(UsageError, match="config 1 captures a graph"):
            prepare_bench(BenchRequest(model=str(TINY_CNN), configs=(CAPTURED,), clients=2))
        prepare_bench(BenchRequest(model=str(TINY_CNN), configs=(CAPTURED,)))

    def test_a_gate(self) -> None:
        sides = [
            GateSide(text=f"{name}.json", model=str(TINY_CNN), config=config)
            for name, config in (("plain", DEFAULT), ("tuned", CAPTURED))
        ]
        load = make_load(clients=2)
        gate = Gate(base=sides[0], head=sides[1], goal=Goal(load=load), slowdowns={"throughput": 0.5}, budget_s=9.0)
        with pytest.raises(UsageError, match=r"tuned\.json captures a graph"):
            prepare_gate(gate)


def test_a_gate_allows_for_tf32_on_one_side_only() -> None:
    """The record's tolerance may be that of a search on the CPU."""
    strict = make_record(TINY_CNN, DEFAULT).workload.tolerance
    on_cpu, on_gpu = (GateSide(text="", model="", config=Config(providers=chain_of(name))) for name in (CPU, CUDA))
    model = prepare_comparison(str(TINY_CNN), Goal(), InputOptions()).model

    def settle(base: GateSide, head: GateSide) -> Tolerance:
        gate = Gate(base=base, head=head, goal=Goal(), slowdowns={"p50": 0.5}, budget_s=9.0, base_tolerance=strict)
        return settle_tolerance(gate, model)

    assert settle(on_cpu, on_gpu) == TF32_TOLERANCE
    assert settle(on_cpu, on_cpu) == settle(on_gpu, on_gpu) == strict
