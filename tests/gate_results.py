"""Results of gates for tests, without a gate."""

from __future__ import annotations

from typing import Any

import msgspec

from ortune import Config, GateResult
from ortune.gates.results import Blocks, Finding, GateError, SideResult
from ortune.host import HostClass, read_host
from ortune.measure.comparison import Noise
from ortune.measure.interval import Interval
from ortune.measure.judge import Decision
from tests.conftest import TINY_CNN
from tests.records import ONE_THREAD, installed, make_record


def make_interval(low: float, estimate: float, high: float) -> Interval:
    """Return a 99% interval."""
    return Interval(estimate=estimate, low=low, high=high, confidence=0.99)


def make_result(name: str = "a", decision: Decision = "pass", p_value: float = 1.0, **changes: Any) -> GateResult:
    """Return a result with one finding, like that of a gate of this host."""
    record, runtime = make_record(TINY_CNN, ONE_THREAD), installed()
    assert runtime
    base = SideResult(
        text="a|b.onnx", model=record.model, config=Config(), record="", runtime=runtime, summary=record.evidence.winner
    )
    interval = make_interval(0.99, 1.0, 1.01)
    result = GateResult(
        name=name,
        decision=decision,
        reason="p50 is not worse by 3%",
        findings=(Finding(objective="p50", allowed=1.03, slowdown=interval, decision=decision, p_value=p_value),),
        self_check=interval,
        pairs=40,
        launches=5,
        wall_s=12.0,
        base=base,
        head=msgspec.structs.replace(base, text="head.onnx", config=ONE_THREAD),
        noise=Noise(
            n_blocks=1,
            n_contended=0,
            n_repeated=0,
            foreign_share_mean=0,
            foreign_share_p90=0,
            regime="quiet",
            drift=None,
        ),
        workload=record.workload,
        host=HostClass.of(read_host()),
        blocks=Blocks(base={}, head={}, base_copy={}, head_copy={}, contended=()),
    )
    return msgspec.structs.replace(result, **changes)


ERROR = GateError(name="e", message="It is broken.", hint="Repair it.")
"""A gate that could not be measured."""


def make_results() -> tuple[GateResult | GateError, ...]:
    """Return a gate for each decision."""
    return make_result(), make_result("b", "fail"), make_result("c", "inconclusive"), ERROR
