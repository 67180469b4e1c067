"""Prepares a gate: reads the records and models of both sides, and fills in missing options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortune.apply.verify import HELD_SHARE, check_alone, recorded_inputs
from ortune.errors import UsageError
from ortune.gates.acceptance import choose_goal, find_further_limits, note_ignored, settle_tolerance
from ortune.gates.results import LARGEST_ALLOWED_SLOWDOWN, N_COPIES, USUAL_SLOWDOWN, Gate, GateSide
from ortune.gates.sides import NamedSide, check_inputs, check_outputs, make_side, read_side
from ortune.host import read_host
from ortune.knobs import DEFAULT
from ortune.measure.captures import check_captures
from ortune.measure.open import ComparisonSetup, Program, check_processes
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.record.select import check_model, read_sourced
from ortune.requests import GateRequest
from ortune.worker.executor import BASELINE_LOAD_DEADLINE_S
from ortune.workload import Goal, InputOptions, Limit, Objective, make_feed
from ortune.workload.batching import with_batches
from ortune.workload.workload import check_tolerance

MIN_LOAD_DEADLINE_S = 20.0
"""Time that creating a session may take even if the budget is smaller."""

N_SIDES = 2 * N_COPIES


def make_gate(request: GateRequest) -> Gate:
    """Read the records of both sides, and take missing options from that of base.

    Raises:
        OrtuneError: An option is not valid, or a file cannot be read.
    """
    if request.tolerance:
        check_tolerance(request.tolerance)
    if request.head is None:
        return _make_gain_gate(request)
    base = read_side(request.base, trust=request.trust, storage=request.storage)
    head = read_side(request.head, trust=request.trust, storage=request.storage)
    goal = choose_goal(request, base.record, base.config)
    notes: tuple[str, ...] = ()
    further: tuple[Limit, ...] = ()
    if head.record:
        notes = note_ignored(request, head.record, base.record, goal)
        further = find_further_limits(request, head.record, base.config, goal)
    goal = msgspec.structs.replace(goal, limits=(*goal.limits, *further))
    goal = _add_objectives(goal, request)
    sides = (
        make_side(request.base, base, request.base_python, "base_python"),
        make_side(request.head, head, request.head_python, "head_python"),
    )
    return msgspec.structs.replace(
        _fill_in(request, sides, goal, base.record),
        slowdowns=parse_slowdowns(request.max_slowdown, goal),
        base_tolerance=base.record.workload.tolerance if base.record else None,
        head_tolerance=head.record.workload.tolerance if head.record else None,
        n_further_limits=len(further),
        notes=notes,
    )


def _make_gain_gate(request: GateRequest) -> Gate:
    """Return a gate on the gain of a single config: on what its record claims, with outputs as close as without it."""
    if Path(request.base).suffix == ".json":
        check_alone_in(request.base, trust=request.trust)
    named = read_side(request.base, trust=request.trust, storage=request.storage)
    record = named.record
    goal = choose_goal(request, record, record.base if record else DEFAULT)
    # The gain of a config is the gain in its first objective, possibly at the expense of the others.
    goal = _add_objectives(msgspec.structs.replace(goal, objectives=goal.objectives[:1]), request)
    sides, slowdowns = _gate_gain(request, named, goal, parse_slowdowns(request.max_slowdown, goal))
    return msgspec.structs.replace(
        _fill_in(request, sides, goal, record),
        slowdowns=slowdowns,
        head_tolerance=record.workload.tolerance if record else None,
    )


def _add_objectives(goal: Goal, request: GateRequest) -> Goal:
    return msgspec.structs.replace(goal, objectives=tuple(dict.fromkeys((*goal.objectives, *request.also))))


def _fill_in(request: GateRequest, sides: tuple[GateSide, GateSide], goal: Goal, record: Record | None) -> Gate:
    """Return a gate with what is the same for all kinds of gates.

    Args:
        request: The gate.
        sides: Base and head.
        goal: What is measured.
        record: The record whose inputs are used if the command gives none, or None.
    """
    return Gate(
        name=request.name,
        base=sides[0],
        head=sides[1],
        goal=with_batches(goal, *(side.config.batch for side in sides)),
        budget_s=request.budget,
        inputs=request.given_inputs or (recorded_inputs(record, None, sides[0].model) if record else InputOptions()),
        tolerance=request.tolerance,
        same_outputs=not request.ignore_outputs,
        beside=request.beside,
        busy=request.busy,
        seed=request.seed,
    )


def check_alone_in(path: str, *, trust: bool) -> None:
    """Check that no record of a file was made with a program.

    Raises:
        RecordError: One was, or the file holds no records.
    """
    for sourced in read_sourced([path], trust=trust):
        check_alone(sourced.record, f"ortune gate {path} -- COMMAND")


def _gate_gain(
    request: GateRequest, named: NamedSide, goal: Goal, slowdowns: dict[Objective, float]
) -> tuple[tuple[GateSide, GateSide], dict[Objective, float]]:
    """Return the sides of a gate on a single config: its baseline, and the config itself, which must be better.

    Raises:
        UsageError: Only a model is given, or the config is the baseline.
        RecordError: The config is for another model.
    """
    record = named.record
    if record is None:
        raise UsageError(
            f"{request.base}: a gate has two sides.",
            "Pass BASE and HEAD, or a single CONFIG.json to gate its gain over ONNX Runtime's default.",
        )
    check_model(record, named.model)
    base = record.base
    if record.config == base:
        raise UsageError(
            f"{request.base} recommends ONNX Runtime's default, so there is no gain to gate.",
            "Gate a model: BASE HEAD.",
        )
    workload = record.workload
    if request.shares_slowdown or not replaces_gain(request.max_slowdown, goal.objective):
        if (goal.load, goal.objective) != (workload.load, record.objectives[0]):
            raise UsageError(
                f"{request.base}: its gain was recorded in {record.objectives[0]} for {workload.load}. Its gain in "
                f"{goal.objective} for {goal.load} is unknown.",
                "Omit load and objective, or give {max_slowdown=3%} for this gate: how much worse than the default it "
                "may be.",
            )
        slowdowns = require_gain(slowdowns, goal, record)
    if request.base_python and request.head_python and request.base_python != request.head_python:
        raise UsageError(
            f"{request.head_python}: the gain of a single config is gated in one Python.",
            "Give one of {base_python} and {head_python}.",
            option="head_python",
        )
    python = request.head_python or request.base_python
    head = make_side(request.base, named, python, "head_python")
    return (msgspec.structs.replace(head, text=f"{named.model}@default", config=base), head), slowdowns


def replaces_gain(texts: Sequence[str], objective: Objective) -> bool:
    """Return whether allowed slowdowns replace a recorded gain: one for all objectives does, or for this one."""
    return any(text.rpartition("=")[0] in {"", objective} for text in texts)


def require_gain(slowdowns: dict[Objective, float], goal: Goal, record: Record) -> dict[Objective, float]:
    """Return the allowed slowdowns of a gate on what a record claims.

    At least half of its gain must be left. If it claims only that the limits are kept, they decide, and the largest
    slowdown is allowed in the first objective.
    """
    if record.claims_limits and goal.limits:
        return {**slowdowns, goal.objective: LARGEST_ALLOWED_SLOWDOWN}
    recorded = record.gain
    if recorded is None or recorded.estimate <= 1:
        return slowdowns
    return {**slowdowns, goal.objective: recorded.estimate**-HELD_SHARE - 1}


def parse_slowdowns(texts: Sequence[str], goal: Goal) -> dict[Objective, float]:
    """Parse `3%`, `0.03`, `1.03x` and `memory=5%`: the allowed slowdown of head, by objective.

    Raises:
        UsageError: A text is not a share, or names an objective that is not gated.
    """
    usual, own = USUAL_SLOWDOWN, {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        value = _parse_slowdown(share)
        if value >= 1 and share[-1] not in "%x":
            raise UsageError(
                f"{text}: a share of 1 or more needs a unit.",
                f"Write {share}% for {share} percent, or {value + 1:g}x for {value + 1:g} times the time.",
                option="max_slowdown",
            )
        if not 0 < value <= LARGEST_ALLOWED_SLOWDOWN:
            raise UsageError(
                f"{text}: not a share above 0.", "Write it as 3%, as 1.03x, or as memory=5%.", option="max_slowdown"
            )
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


def _parse_slowdown(text: str) -> float:
    """Return the share by which head may be slower; not a number if the text is neither a share nor a factor."""
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text[:-1]) - 1 if text.endswith("x") else float(text)
    except ValueError:
        return math.nan


def prepare_gate(gate: Gate) -> ComparisonSetup:
    """Read both models, check that they can be compared, and make the inputs.

    Raises:
        OrtuneError: A model cannot be read, the two cannot be compared, or the inputs do not fit.
    """
    host = read_host()
    check_processes(gate.goal.load, host)
    base = read_model(gate.base.model)
    head = base if gate.head.model == gate.base.model else read_model(gate.head.model)
    check_inputs(base, head, gate.base.text, gate.head.text)
    if gate.same_outputs:
        check_outputs(base, head, gate.base.text, gate.head.text)
    setup = ComparisonSetup(
        program=Program(model=base, path=gate.base.model),
        other=Program(model=head, path=gate.head.model),
        feed=make_feed(base, gate.inputs, gate.goal.batches),
        goal=gate.goal,
        tolerance=settle_tolerance(gate, base),
        host=host,
        base=gate.base.config,
        beside=gate.beside,
        seed=gate.seed,
        n_sides=N_SIDES,
        compare_outputs=gate.same_outputs,
        load_deadline_s=min(max(gate.budget_s, MIN_LOAD_DEADLINE_S), BASELINE_LOAD_DEADLINE_S),
    )
    check_captures([(gate.base.text, gate.base.config)], setup)
    check_captures([(gate.head.text, gate.head.config)], msgspec.structs.replace(setup, program=setup.other))
    return setup
