"""How many calls a percentile rests on, where it needs more: its interval then covers less than it says."""

from __future__ import annotations

from ortune.measure.compute_figures import is_pooled, required_calls
from ortune.record.schema import Record
from ortune.workload import Objective


def find_few_calls(record: Record) -> tuple[Objective, int] | None:
    """Return the first objective of a record that needs more calls, and those of each side; None if all have enough."""
    evidence = record.evidence
    sides = [evidence.baseline, evidence.winner, *(point.summary for point in evidence.front)]
    known = [side.n_calls for side in sides if side]
    lacking = [name for name in record.objectives if is_pooled(name) and known and min(known) < required_calls(name)]
    return (lacking[0], min(known)) if lacking else None


def describe_few_calls(record: Record) -> str:
    """Return the number of calls that a percentile rests on, and how many it needs; empty if it has enough."""
    found = find_few_calls(record)
    return spell_few_calls(*found) if found else ""


def spell_few_calls(name: Objective, n_calls: int) -> str:
    """Return the number of calls of each side, and how many a percentile needs."""
    return f"{n_calls} calls of each config, where {name} needs {required_calls(name)}"
