"""A gate and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from ortune.host import HostClass
from ortune.knobs import Config
from ortune.measure.comparison import LimitCheck, Noise, Summary
from ortune.measure.interval import Interval
from ortune.measure.judge import Decision, compare
from ortune.model.identity import ModelIdentity
from ortune.worker import Runtime
from ortune.workload import Goal, InputOptions, Objective, Tolerance, Workload

USUAL_SLOWDOWN = 0.03

LARGEST_ALLOWED_SLOWDOWN = 10.0
"""Largest slowdown that may be allowed. A gate that only limits decide allows it."""

USUAL_GATE_BUDGET_S = 180.0

N_COPIES = 2
"""Processes of each side in a launch."""


class GateSide(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a gate.

    Attributes:
        text: The side as the user wrote it; for a program, its name.
        model: Path of the ONNX file; empty for a program.
        config: Its settings.
        record: File that they were read from; empty for ONNX Runtime's default.
        python: The Python that runs it, or None for this one.
        command: Program and arguments that start a worker; empty for ortune's own worker.
    """

    text: str
    model: str
    config: Config = Config()
    record: str = ""
    python: str | None = None
    command: tuple[str, ...] = ()


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One gate.

    Attributes:
        name: Its name in reports.
        base: The side that head is compared with.
        head: The side that must not be slower.
        goal: Load, objectives to check, and limits that head must keep to.
        slowdowns: Allowed slowdown of head by objective, as a share; negative if head must be better.
        budget_s: Wall time after which the gate ends, decided or not.
        inputs: Input data of both sides.
        tolerance: Allowed difference of head's outputs from base's that the command gives, or None.
        base_tolerance: That of the record of base, or None to choose it from the model.
        head_tolerance: That of the record of head, which counts where it is smaller; None without one.
        same_outputs: Whether outputs are compared at all.
        beside: Command of the background load, or None.
        busy: Whether to decide even on a busy host.
        seed: Random seed.
        n_further_limits: How many of the limits, the last ones, only the record of head has. They do not count among
            the claims of the gate, so that they make no other claim harder to prove.
        notes: What the record of head says about the measurement and has no effect, as sentences.
    """

    name: str = "gate"
    base: GateSide
    head: GateSide
    goal: Goal = Goal()
    slowdowns: Mapping[Objective, float] = {}
    budget_s: float = USUAL_GATE_BUDGET_S
    inputs: InputOptions = InputOptions()
    tolerance: Tolerance | None = None
    base_tolerance: Tolerance | None = None
    head_tolerance: Tolerance | None = None
    same_outputs: bool = True
    beside: str | None = None
    busy: bool = False
    seed: int = 0
    n_further_limits: int = 0
    notes: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a gate in one objective.

    Attributes:
        objective: The objective.
        allowed: Allowed ratio of costs, head to base: 1.03 for a slowdown of 3 %.
        slowdown: Ratio of costs; above 1, head is worse. Its interval holds at all checks of the gate at once.
        decision: What follows.
        p_value: Bound of the probability that any check shows a slowdown at least this significant if the true one is
            the allowed one; 1 between checks.
        bound: Upper bound of the ratio if some launches of head are up to twice as slow as usual, but too rare to have
            occurred. A figure that contains rare launches does not pass if it is above the allowed one. None for other
            figures, and where the interval is not below the allowed one.
    """

    objective: Objective
    allowed: float
    slowdown: Interval
    decision: Decision
    p_value: float
    bound: float | None = None

    @property
    def is_above(self) -> bool:
        """Whether the whole interval is above what is allowed. Among several claims, a failure needs a wider one."""
        return compare(self.slowdown, self.allowed) == "above"

    @property
    def may_have_slow_launches(self) -> bool:
        """Whether only launches that are too rare to have occurred could make it worse than allowed."""
        return self.bound is not None and self.bound >= self.allowed


class InterimResult(msgspec.Struct, frozen=True, kw_only=True):
    """State of a gate after some launches.

    Attributes:
        decision: "inconclusive" until it is decided.
        reason: Why, as a sentence without its full stop; empty while the gate goes on.
        is_void: Whether nothing can be decided, whatever the figures are: the host is busy or biased, requests arrive
            faster than base can serve them, or fewer than two launches count.
        findings: Results by objective; empty while fewer than two launches count.
        self_check: Base compared with a second copy of itself in the first objective; None while fewer than two
            launches count.
        biased: Objectives in which base differs significantly from its copy, and by too much.
        lacking: Percentiles that rest on too few calls: objectives, and limits in doubt.
        limits: Whether head stays within each limit.
        utilization: With a request rate: the share of the callers' time that calls take, of base and of head.
        pairs: Pairs so far that count.
        launches: Launches of each side so far that count.
        n_checks: Checks so far that could have decided the gate.
        contended: Whether the pairs that count were measured while other processes used the CPUs.
        spent_s: Time since the start.
        budget_s: Time after which the gate ends.
    """

    decision: Decision = "inconclusive"
    reason: str = ""
    is_void: bool = False
    findings: tuple[Finding, ...] = ()
    self_check: Interval | None = None
    biased: tuple[Objective, ...] = ()
    lacking: tuple[Objective, ...] = ()
    limits: tuple[LimitCheck, ...] = ()
    utilization: tuple[Interval, Interval] | None = None
    pairs: int
    launches: int
    n_checks: int = 0
    contended: bool = False
    spent_s: float
    budget_s: float


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one side.

    Attributes:
        text: As the user wrote it; for a program, its name.
        model: Its identity; for a program, that of the model of the first record.
        config: Its settings.
        record: File that they were read from.
        runtime: The software that ran it.
        summary: Its figures, or None if there are none.
    """

    text: str
    model: ModelIdentity
    config: Config
    record: str
    runtime: Runtime
    summary: Summary | None = None


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The costs behind a decision, by objective: a row for each launch with a value for each pair.

    Attributes:
        base: Costs of base, in the unit of the figure.
        head: Costs of head.
        base_copy: Costs of base's second copy.
        head_copy: Costs of head's second copy.
        contended: Whether other processes used the CPUs during the pair.
    """

    base: dict[str, tuple[tuple[float, ...], ...]]
    head: dict[str, tuple[tuple[float, ...], ...]]
    base_copy: dict[str, tuple[tuple[float, ...], ...]]
    head_copy: dict[str, tuple[tuple[float, ...], ...]]
    contended: tuple[tuple[bool, ...], ...]


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a gate.

    Attributes:
        name: Name of the gate.
        decision: "pass", "fail" or "inconclusive".
        reason: Why, as a sentence without its full stop.
        is_void: Whether nothing could be decided, whatever the figures are: the host was busy or biased, or requests
            arrived faster than base can serve them.
        findings: Results by objective; empty if there was no time for two launches.
        limits: Whether head stays within each limit.
        self_check: Base compared with a second copy of itself, which differs by the noise of this host only.
        pairs: Pairs of blocks that the decision rests on.
        launches: Launches of each side, in two processes.
        n_slow_launches: Processes of head that were slow compared with base: in p50, if it is an objective, or else in
            the first one.
        wall_s: Time that it took.
        base: Result of base.
        head: Result of head.
        max_error: Largest difference of head's outputs from base's, as a share of the output's largest value; None if
            they were not compared.
        outputs_compared: Whether outputs were compared. Those of some programs cannot be.
        notes: What the record of head says about the measurement and had no effect, as sentences.
        noise: CPU use by other processes.
        workload: What was measured.
        host: Class of the host.
        blocks: The costs of all pairs.
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
    n_slow_launches: int = 0
    wall_s: float
    base: SideResult
    head: SideResult
    max_error: float | None = None
    outputs_compared: bool = True
    notes: tuple[str, ...] = ()
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
"""Called after each launch with the state of a gate. It is never called while a block is measured."""
