"""What a gate accepts: under which load it measures what, within which limits, and how far outputs may differ.

The options of the command decide, then the record of base, then built-in defaults. The record of head may belong to the
change that the gate checks. It can only make the gate stricter, with a smaller tolerance and with further limits. What
else it says is reported. A gate on the gain of a single record measures what that record claims.
"""

from __future__ import annotations

import msgspec

from ortune.errors import UsageError
from ortune.gates.results import Gate
from ortune.host import read_host
from ortune.knobs import Config
from ortune.knobs.providers import multiplies_in_tf32
from ortune.measure.open import allow_tf32, choose_tolerance
from ortune.model import ModelInfo
from ortune.record.schema import Record
from ortune.requests import GateRequest
from ortune.workload import Goal, Limit, Load, Tolerance, make_goal
from ortune.workload.figures import OF_PROGRAMS


def choose_goal(request: GateRequest, record: Record | None, base: Config) -> Goal:
    """Return load, objectives and limits. Missing options come from a record where they are compatible.

    Args:
        request: The gate.
        record: The record that decides, or None without one.
        base: The config of base.

    Raises:
        UsageError: The record is for a program, or the options contradict each other.
    """
    load = request.given_load or (record.workload.load if record else Load())
    goal = make_goal(load, request.objective, (), request.limit).on_host(throttled=read_host().limits.throttled)
    if record is None or load != record.workload.load:
        return goal
    if request.objective is None:
        if found := OF_PROGRAMS.intersection(record.objectives):
            raise UsageError(
                f"The record's objective is the {min(found)} of a program, which sessions do not have.",
                "Name another one with {objective=FIGURE}, or gate the program: ortune gate ... -- COMMAND.",
                option="objective",
            )
        goal = msgspec.structs.replace(goal, objectives=record.objectives, why="")
    return goal if request.limit else msgspec.structs.replace(goal, limits=usable_limits(record, goal, base))


def usable_limits(record: Record, goal: Goal, base: Config) -> tuple[Limit, ...]:
    """Return the limits of a record that mean something in a gate.

    Under another load than that of the record, they may be out of reach. A relative limit refers to the baseline of the
    record, which base must be.
    """
    if record.workload.load != goal.load:
        return ()
    return tuple(
        limit
        for limit in record.workload.limits
        if limit.figure not in OF_PROGRAMS and (base == record.base or not limit.relative)
    )


def find_further_limits(request: GateRequest, head: Record, base: Config, goal: Goal) -> tuple[Limit, ...]:
    """Return the limits of the record of head that are tighter than those for the same figure, one for each figure.

    Args:
        request: The gate. Where it has limits, no record adds any.
        head: The record of head.
        base: The config of base.
        goal: What is measured.
    """
    if request.limit:
        return ()
    tightest: dict[tuple[str, bool], Limit] = {}
    for limit in (*goal.limits, *usable_limits(head, goal, base)):
        key = limit.figure, limit.relative
        # A bound that keeps another limit is tighter.
        if key not in tightest or tightest[key].excess(limit.bound) < 0:
            tightest[key] = limit
    return tuple(limit for limit in tightest.values() if limit not in goal.limits)


def settle_tolerance(gate: Gate, base: ModelInfo) -> Tolerance:
    """Return how far outputs may differ.

    It also allows for TF32, in which GPUs multiply, except where the tolerance was given or recorded for two sides that
    both multiply in it.

    Args:
        gate: The gate.
        base: The model of base.
    """
    if gate.tolerance:
        return gate.tolerance
    tolerance = gate.base_tolerance or choose_tolerance(base)
    if gate.head_tolerance:
        tolerance = tolerance.limit_to(gate.head_tolerance)
    chains = [gate.base.config.providers, gate.head.config.providers]
    if gate.base_tolerance and all(map(multiplies_in_tf32, chains)):
        return tolerance
    return allow_tf32(tolerance, chains)


def note_ignored(request: GateRequest, head: Record, base: Record | None, goal: Goal) -> tuple[str, ...]:
    """Return what the record of head says about the measurement and has no effect, as sentences.

    Args:
        request: The gate. What its options decide is not noted.
        head: The record of head.
        base: The record of base, or None without one.
        goal: What is measured.
    """
    why = "as the record of base says" if base else "as base has no record"
    workload = head.workload
    notes = []
    if request.given_load is None and workload.load != goal.load:
        notes.append(f"The record of head is for {workload.load}. The gate measures {goal.load}, {why}.")
    compared = tuple(dict.fromkeys((*goal.objectives, *request.also)))
    if request.objective is None and not set(head.objectives) <= set(compared):
        if base and base.workload.load != goal.load:
            why = "as the record of base is for another load"
        because = "" if request.also else f", {why}"
        names = ", ".join(compared)
        notes.append(f"The record of head optimizes {', '.join(head.objectives)}. The gate compares {names}{because}.")
    if base and request.given_inputs is None and _shapes(head) != _shapes(base):
        notes.append("The record of head has inputs of other sizes. The gate uses those of the record of base.")
    looser = [
        limit.text
        for limit in workload.limits
        for own in goal.limits
        if (own.figure, own.relative) == (limit.figure, limit.relative) and own.excess(limit.bound) > 0
    ]
    if looser and not request.limit:
        listed = ", ".join(dict.fromkeys(looser))
        notes.append(f"The record of head has looser limits, which do not count: {listed}.")
    return tuple(notes)


def _shapes(record: Record) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {name: data.shapes for name, data in record.workload.inputs.items()}


def list_notes(gate: Gate, tolerance: Tolerance) -> tuple[str, ...]:
    """Return what records say and has no effect in a gate, as sentences.

    Args:
        gate: The gate.
        tolerance: How far its outputs may differ.
    """
    wanted = gate.head_tolerance
    if gate.tolerance or not gate.same_outputs or wanted is None or not wanted.allows_more_than(tolerance):
        return gate.notes
    note = (
        f"The record of head allows outputs to differ by {_describe(wanted)}. The gate allows {_describe(tolerance)}. "
        "The record of head cannot allow more; options of the gate can."
    )
    return (*gate.notes, note)


def _describe(tolerance: Tolerance) -> str:
    return f"{tolerance.relative:g} of each value and {tolerance.absolute:g} of the largest one"
