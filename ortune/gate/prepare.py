"""Prepares a gate: reads the records and models of both sides, and fills in what the user leaves open."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ortune.apply.verify import HELD_SHARE, recorded_inputs
from ortune.compare.open import ComparisonSetup, Program, choose_tolerance
from ortune.errors import UsageError
from ortune.gate.results import USUAL_SLOWDOWN, Gate, GateSide
from ortune.gate.sides import NamedSide, check_inputs, check_outputs, make_side, read_side
from ortune.host import read_host
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.record.select import check_model
from ortune.worker.executor import FIRST_LOAD_DEADLINE_S
from ortune.workload import Goal, InputOptions, Load, Objective, Tolerance, make_feed, make_goal

LARGEST_SLOWDOWN = 10.0

MIN_LOAD_DEADLINE_S = 20.0
"""Time that creating a session may take even if the budget is smaller."""

N_SIDES = 3


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for, before any file is read.

    Attributes:
        name: Name of the gate in reports.
        base: Base as it was written. Without a head, the config whose gain is gated.
        head: Head as it was written, or None.
        base_python: The Python that runs base, or None for this one.
        head_python: The Python that runs head, or None for this one.
        slowdowns: Allowed slowdowns as they were written: `3%`, `memory=5%`.
        load: How calls arrive; None for the record's load, or one caller.
        objective: The first objective; None for the record's, or what suits the load.
        limits: What head must keep to; empty for the limits of the record.
        also: Further objectives that are gated.
        budget_s: Wall time after which the gate ends.
        inputs: What is fed; None for the inputs of the record, or what suits the model.
        tolerance: Allowed difference of outputs, or None for what suits the model.
        same_outputs: Whether outputs are compared.
        beside: Command of the background load, or None.
        busy: Whether to decide even on a busy host.
        seed: Random seed.
    """

    name: str = "gate"
    base: str
    head: str | None = None
    base_python: str | None = None
    head_python: str | None = None
    slowdowns: tuple[str, ...] = ()
    load: Load | None = None
    objective: str | None = None
    limits: tuple[str, ...] = ()
    also: tuple[Objective, ...] = ()
    budget_s: float
    inputs: InputOptions | None = None
    tolerance: Tolerance | None = None
    same_outputs: bool = True
    beside: str | None = None
    busy: bool = False
    seed: int = 0


def make_gate(wish: Wish) -> Gate:
    """Read the records of both sides, and take from them what the user leaves open.

    Raises:
        OrtuneError: An option is not valid, or a file cannot be read.
    """
    if not wish.budget_s > 0:
        raise UsageError(f"{wish.budget_s:g}s: must be positive.", "Such as {budget=3m}.", option="budget")
    base = read_side(wish.base)
    head = base if wish.head is None else read_side(wish.head)
    record = head.record or base.record
    goal = _choose_goal(wish, record)
    # The gain of a config is the gain in its first objective. Others may have been traded for it.
    gated = goal.objectives if wish.head is not None else goal.objectives[:1]
    goal = msgspec.structs.replace(goal, objectives=tuple(dict.fromkeys((*gated, *wish.also))))
    slowdowns = parse_slowdowns(wish.slowdowns, goal)
    if wish.head is None:
        sides, slowdowns = _gate_gain(wish, base, goal, slowdowns)
    else:
        sides = (
            make_side(wish.base, base, wish.base_python, "base_python"),
            make_side(wish.head, head, wish.head_python, "head_python"),
        )
    usual_inputs = recorded_inputs(record, None, sides[0].model) if record else InputOptions()
    return Gate(
        name=wish.name,
        base=sides[0],
        head=sides[1],
        goal=goal,
        slowdowns=slowdowns,
        budget_s=wish.budget_s,
        inputs=wish.inputs or usual_inputs,
        tolerance=wish.tolerance or (record.workload.tolerance if record else None),
        same_outputs=wish.same_outputs,
        beside=wish.beside,
        busy=wish.busy,
        seed=wish.seed,
    )


def _choose_goal(wish: Wish, record: Record | None) -> Goal:
    """Return load, objectives and limits. What the user leaves open is the record's, as far as that fits."""
    workload = record.workload if record else None
    load = wish.load or (workload.load if workload else Load())
    goal = make_goal(load, wish.objective, None, wish.limits)
    if record and workload and load == workload.load and wish.objective is None:
        goal = msgspec.structs.replace(goal, objectives=record.objectives)
    if workload and not wish.limits:
        goal = msgspec.structs.replace(goal, limits=workload.limits)
    return goal


def _gate_gain(
    wish: Wish, named: NamedSide, goal: Goal, slowdowns: dict[Objective, float]
) -> tuple[tuple[GateSide, GateSide], dict[Objective, float]]:
    """Return the sides of a gate on a single config: its baseline, and itself, which must be better.

    Raises:
        UsageError: There is only a model, or the config is the baseline.
        RecordError: The config is for another model.
    """
    record = named.record
    if record is None:
        raise UsageError(
            f"{wish.base}: a gate has two sides.",
            "Pass BASE and HEAD, or a single CONFIG.json to gate its gain over ONNX Runtime's default.",
        )
    check_model(record, named.model)
    base = record.base
    if record.config == base:
        raise UsageError(
            f"{wish.base} recommends ONNX Runtime's default, so there is no gain to gate.",
            "Gate a model: BASE HEAD.",
        )
    recorded = record.gain
    workload = record.workload
    if not wish.slowdowns and (goal.load, goal.objective) != (workload.load, record.objectives[0]):
        raise UsageError(
            f"{wish.base}: its gain was recorded in {record.objectives[0]} for {workload.load}. Its gain in "
            f"{goal.objective} for {goal.load} is unknown.",
            "Omit load and objective, or give {max_slowdown=3%}: how much worse than the default it may be.",
        )
    if recorded and recorded.estimate > 1 and not wish.slowdowns:
        slowdowns = {**slowdowns, goal.objective: recorded.estimate**-HELD_SHARE - 1}
    if wish.base_python and wish.head_python and wish.base_python != wish.head_python:
        raise UsageError(
            f"{wish.head_python}: the gain of a single config is gated in one Python.",
            "Give one of {base_python} and {head_python}.",
            option="head_python",
        )
    python = wish.head_python or wish.base_python
    return (
        make_side(f"{named.model}@default", named, python, "head_python", base),
        make_side(wish.base, named, python, "head_python"),
    ), slowdowns


def parse_slowdowns(texts: Sequence[str], goal: Goal) -> dict[Objective, float]:
    """Parse `3%`, `0.03` and `memory=5%`: the allowed slowdown of head, by objective.

    Raises:
        UsageError: A text is not a share, or names an objective that is not gated.
    """
    usual, own = USUAL_SLOWDOWN, {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        try:
            value = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if not 0 < value <= LARGEST_SLOWDOWN:
            raise UsageError(f"{text}: not a share above 0.", "Write it as 3%, or as memory=5%.", option="max_slowdown")
        if not equals:
            usual = value
        elif name in goal.objectives:
            own[name] = value
        else:
            raise UsageError(
                f"{text}: {name} is not gated. Gated are {', '.join(goal.objectives)}.",
                f"Add {{also={name}}}.",
                option="max_slowdown",
            )
    return {name: own.get(name, usual) for name in goal.objectives}


def prepare_gate(gate: Gate) -> ComparisonSetup:
    """Read both models, check that they can be compared, and make the inputs.

    Raises:
        OrtuneError: A model cannot be read, the two cannot be compared, or the inputs do not fit.
    """
    base, head = read_model(gate.base.model), read_model(gate.head.model)
    check_inputs(base, head, gate.base.text, gate.head.text)
    if gate.same_outputs:
        check_outputs(base, head, gate.base.text, gate.head.text)
    return ComparisonSetup(
        program=Program(model=base, path=gate.base.model),
        other=Program(model=head, path=gate.head.model),
        feed=make_feed(base, gate.inputs),
        goal=gate.goal,
        tolerance=gate.tolerance or choose_tolerance(base),
        host=read_host(),
        base=gate.base.config,
        beside=gate.beside,
        seed=gate.seed,
        n_sides=N_SIDES,
        compare_outputs=gate.same_outputs,
        load_deadline_s=min(max(gate.budget_s, MIN_LOAD_DEADLINE_S), FIRST_LOAD_DEADLINE_S),
    )
