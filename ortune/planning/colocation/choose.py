"""Chooses the recommended way to share a host."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ortune.planning.choose import DEPLOYMENT_TIE, find_correction
from ortune.planning.colocation.result import PlannedSharing


def choose_sharing(rows: Sequence[PlannedSharing], scale: float) -> tuple[int | None, str]:
    """Return the place of the recommended sharing, or None, and the reason as a clause.

    It keeps all targets. Of several, it is one whose intervals prove that, then one with the fewest hosts, then the
    default, as nothing need be changed, then the one whose rates can be scaled most, then the one with less memory.

    Args:
        rows: What was measured.
        scale: By what the requested rates were multiplied.
    """
    at = "at the requested rates" if scale == 1 else f"at {scale:.3g} of the requested rates"
    candidates = [place for place, row in enumerate(rows) if row.is_estimated_to_keep]
    proven = [place for place in candidates if rows[place].verdict == "kept"]
    if not candidates:
        return None, f"no way to share this host meets all targets {at}"
    meets = f"meets all targets {at}" if proven else f"seems to meet all targets {at}, which its intervals do not prove"
    group = proven or candidates
    fewest = min(count_hosts(rows[place]) for place in group)
    group = [place for place in group if count_hosts(rows[place]) == fewest]
    for place in group:
        if rows[place].kind == "default":
            return place, f"the default deployment of each model {meets}"
    largest = max(find_scale(rows[place]) for place in group)
    equal = [place for place in group if find_scale(rows[place]) >= (1 - DEPLOYMENT_TIE) * largest]
    chosen = min(equal, key=lambda place: rows[place].memory_bytes)
    default = next((row for row in rows if row.kind == "default"), None)
    if default is None:
        return chosen, f"it {meets}"
    if default.verdict == rows[chosen].verdict and default.is_estimated_to_keep:
        return chosen, f"it {meets}, with fewer hosts than the default deployment of each model"
    lacks = "is not proven to" if default.is_estimated_to_keep else "does not"
    return chosen, f"it {meets}; the default deployment of each model {lacks}"


def correct_predictions(rows: Sequence[PlannedSharing], scale: float) -> list[PlannedSharing]:
    """Return the rows with predicted scales that are reduced as the measured ones turned out to be lower.

    What was measured would otherwise be displaced by what the same model predicts, if there is no time to measure it.
    The prediction for the default deployments stays, and none is reduced below a scale at which the targets were kept.

    Args:
        rows: What was measured.
        scale: By what the requested rates were multiplied.
    """
    ratio = find_correction((row.scale, row.predicted_scale) for row in rows)
    found = []
    for row in rows:
        own = row.scale
        if own and own.source == "predicted" and row.kind != "default":
            least = min(scale, own.estimate) if row.is_estimated_to_keep else 0.0
            reduced = max(ratio * own.estimate, least)
            own = msgspec.structs.replace(own, estimate=reduced, low=min(own.low, reduced))
        found.append(msgspec.structs.replace(row, scale=own))
    return found


def count_hosts(row: PlannedSharing) -> float:
    """Return the hosts that the requested rates need; infinite if no number is enough."""
    return math.inf if row.replicas is None else row.replicas


def find_scale(row: PlannedSharing) -> float:
    """Return by how much all rates can be multiplied; 0 if unknown."""
    return row.scale.estimate if row.scale else 0.0
