"""What a gate takes, tells on the way, and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from ortune.compare.interval import Interval
from ortune.compare.results import LimitCheck, Noise, Summary
from ortune.host import HostClass
from ortune.knobs import Config
from ortune.model.identity import ModelIdentity
from ortune.worker import Runtime
from ortune.workload import Goal, InputOptions, Objective, Tolerance, Workload

Decision = Literal["pass", "fail", "inconclusive"]

USUAL_SLOWDOWN = 0.03
USUAL_TIME_S = 180.0


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a gate, as it was named.

    Attributes:
        text: As the user wrote it.
        model: Path of the ONNX file.
        config: Its settings.
        record: Where they were read; empty for ONNX Runtime's default.
        python: The Python that runs it, or None for this one.
    """

    text: str
    model: str
    config: Config = Config()
    record: str = ""
    python: str | None = None


class GateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One gate.

    Attributes:
        name: As it is reported.
        base: What head is compared with.
        head: What must not be slower.
        goal: Load, objectives that are gated, and limits that head must keep to.
        slowdowns: How much worse head may be, by objective, as a share; negative where it must be better.
        max_time_s: Wall time after which it ends, decided or not.
        inputs: What is fed to both.
        tolerance: How far head's outputs may lie from base's, or None for what suits the model.
        same_outputs: Whether outputs are compared at all.
        beside: A command that runs beside the measurements, or None.
        busy: Whether to decide although others use the CPUs.
        seed: Seed of everything that is drawn.
    """

    name: str = "gate"
    base: Side
    head: Side
    goal: Goal = Goal()
    slowdowns: Mapping[Objective, float] = {}
    max_time_s: float = USUAL_TIME_S
    inputs: InputOptions = InputOptions()
    tolerance: Tolerance | None = None
    same_outputs: bool = True
    beside: str | None = None
    busy: bool = False
    seed: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one objective.

    Attributes:
        objective: Which.
        allowed: How much worse head may be, as a ratio of costs: 1.03 for 3 %.
        slowdown: How many times as costly head is, with its interval; above 1 it is worse.
        decision: What follows.
        p_value: Probability of a slowdown like this or a larger one if the true one were just what is allowed.
    """

    objective: Objective
    allowed: float
    slowdown: Interval
    decision: Decision
    p_value: float


class InterimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gate stands after some launches.

    Attributes:
        findings: By objective, so far.
        self_check: Base against a second copy of itself, in the first objective.
        biased: Objectives in which base differs from its copy, beyond doubt and by too much.
        lacking: Percentiles that rest on fewer calls than they should, of objectives and of limits in doubt.
        limits: Whether head keeps to each limit.
        utilization: The share of the callers' time that calls of base and of head take; None where they arrive at no
            rate.
        pairs: Pairs so far.
        launches: Launches of each side so far.
        contended: Whether the pairs that count were measured while others used the CPUs.
        spent_s: Time since the start.
        max_time_s: Time at which it ends at the latest.
    """

    findings: tuple[Finding, ...]
    self_check: Interval
    biased: tuple[Objective, ...] = ()
    lacking: tuple[Objective, ...] = ()
    limits: tuple[LimitCheck, ...] = ()
    utilization: tuple[Interval, Interval] | None = None
    pairs: int
    launches: int
    contended: bool
    spent_s: float
    max_time_s: float


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """One side, as it turned out.

    Attributes:
        text: As the user named it.
        model: Its identity.
        config: Its settings.
        record: Where they were read.
        runtime: The software that ran it.
        summary: Its figures, or None where there are none.
    """

    text: str
    model: ModelIdentity
    config: Config
    record: str
    runtime: Runtime
    summary: Summary | None = None


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The raw material of a decision: costs by objective, a row for each launch and a value for each pair.

    Attributes:
        base: Costs of base, in the unit of its figure.
        head: Costs of head.
        copy: Costs of base's second copy.
        contended: Whether others used the CPUs in the pair.
    """

    base: dict[str, tuple[tuple[float, ...], ...]]
    head: dict[str, tuple[tuple[float, ...], ...]]
    copy: dict[str, tuple[tuple[float, ...], ...]]
    contended: tuple[tuple[bool, ...], ...]


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate found.

    Attributes:
        name: The gate's name.
        decision: "pass", "fail" or "inconclusive".
        reason: Why, a sentence.
        is_void: Whether it could not be decided whatever the figures are: the host was busy, or it is biased, or
            requests arrived faster than base can serve them.
        findings: By objective; none where there was no time for two launches.
        limits: Whether head keeps to each limit.
        self_check: Base against a second copy of itself: what this host makes of no difference at all.
        pairs: Pairs of blocks that the decision rests on.
        launches: Launches of each side.
        wall_s: Time that it took.
        base: The one side.
        head: The other.
        max_error: Largest difference of head's outputs from base's, as a share of the output's largest value; None
            where they were not compared.
        noise: How quiet the host was.
        workload: What was measured.
        host: The class of host.
        blocks: The raw material.
    """

    name: str
    decision: Decision
    reason: str
    is_void: bool = False
    findings: tuple[Finding, ...]
    limits: tuple[LimitCheck, ...] = ()
    self_check: Interval | None = None
    pairs: int
    launches: int
    wall_s: float
    base: SideResult
    head: SideResult
    max_error: float | None = None
    noise: Noise
    workload: Workload
    host: HostClass
    blocks: Blocks


class GateError(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that could not be measured, among several.

    Attributes:
        name: Name of the gate.
        message: What failed.
        hint: What to do about it; may be empty.
    """

    name: str
    message: str
    hint: str = ""

    @property
    def decision(self) -> Literal["error"]:
        """The decision, as in `GateResult`."""
        return "error"

    @property
    def reason(self) -> str:
        """Message and hint."""
        return f"{self.message} {self.hint}".strip()


Observe = Callable[[InterimResult], None]
"""Is told after each launch where a gate stands. It is never called while a block is measured."""
