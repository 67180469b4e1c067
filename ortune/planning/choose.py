"""Chooses the recommended deployment, and what it takes to serve a rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from ortune.planning.result import MOST_REPLICAS, Estimate, PlannedDeployment, Resource
from ortune.queueing.cost import count_replicas, price_of_million

DEFAULT_POSITION = 0

DEPLOYMENT_TIE = 0.01
"""Share by which two deployments may differ and still count as equal. Then the one that needs less is better."""


def add_cost(
    row: PlannedDeployment, rate_per_s: float | None, headroom: float, price_per_hour: float | None
) -> PlannedDeployment:
    """Return a row with the replicas that a rate needs, and the price of a million calls.

    Without a rate, one replica is as busy as the headroom allows.
    """
    sustained_per_s = row.sustained_per_s
    if sustained_per_s <= 0:
        return msgspec.structs.replace(row, replicas=None, price_of_million=None)
    replicas = count_replicas(rate_per_s, sustained_per_s, headroom) if rate_per_s else None
    if replicas and replicas > MOST_REPLICAS:
        return msgspec.structs.replace(row, replicas=None, price_of_million=None)
    price = None
    if price_per_hour is not None:
        served_per_s = rate_per_s or sustained_per_s * (1 - headroom)
        price = price_of_million(price_per_hour, served_per_s, replicas or 1)
    return msgspec.structs.replace(row, replicas=replicas, price_of_million=price)


def rank_rows(rows: Sequence[PlannedDeployment]) -> list[int]:
    """Return the places of the default and of what is proven to be better, the one to recommend first.

    That is the one with the fewest replicas where there is a rate, then the one that can take most. Of those that can
    take about as much, it is the one with the least memory, then with the fewest settings.
    """
    places = [place for place, row in enumerate(rows) if row.is_proven or place == DEFAULT_POSITION]
    ranked: list[int] = []
    while places:
        first = min(places, key=lambda place: (count_needed(rows[place]), -rows[place].sustained_per_s))
        least_per_s = (1 - DEPLOYMENT_TIE) * rows[first].sustained_per_s
        equal = [
            place
            for place in places
            if count_needed(rows[place]) == count_needed(rows[first]) and rows[place].sustained_per_s >= least_per_s
        ]
        first = min(equal, key=lambda place: (rows[place].memory_bytes, len(rows[place].deployment.config.settings)))
        ranked.append(first)
        places.remove(first)
    return ranked


def find_correction(pairs: Iterable[tuple[Estimate | None, Estimate | None]]) -> float:
    """Return the lowest ratio of what was measured to what had been predicted for it; 1 if none is lower.

    Args:
        pairs: What is known of each row, and what had been predicted if it was measured.
    """
    # An estimate of 0 says only that it is below the lowest one that was measured.
    known = [(one.estimate, other.estimate) for one, other in pairs if one and other]
    return min([1.0, *(measured / predicted for measured, predicted in known if min(measured, predicted) > 0)])


def correct_predictions(rows: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
    """Return the rows with predicted capacities that are reduced as the measured ones turned out to be lower.

    What was measured would otherwise be displaced by what the same model predicts, if there is no time to measure it.
    The prediction for the default deployment stays.
    """
    ratio = find_correction((row.capacity, row.predicted_capacity) for row in rows)
    found = []
    for place, row in enumerate(rows):
        capacity = row.capacity
        if capacity and capacity.source == "predicted" and place != DEFAULT_POSITION:
            capacity = msgspec.structs.replace(capacity, estimate=ratio * capacity.estimate, low=ratio * capacity.low)
        found.append(msgspec.structs.replace(row, capacity=capacity))
    return found


def count_needed(row: PlannedDeployment) -> float:
    """Return the replicas that a row needs for the rate: 1 if there is none, infinite if no number is enough."""
    return math.inf if row.sustained_per_s <= 0 else row.replicas or 1


def find_best(rows: Sequence[PlannedDeployment]) -> dict[Resource, int]:
    """Return the places of the best rows in each respect, among those that keep the target.

    Only what is proven to be better than the default can take most; all others are the default.
    """
    keeping = [place for place, row in enumerate(rows) if row.sustained_per_s > 0] or [DEFAULT_POSITION]
    proven = [place for place in keeping if rows[place].is_proven or place == DEFAULT_POSITION] or [DEFAULT_POSITION]
    return {
        "throughput": max(proven, key=lambda place: rows[place].sustained_per_s),
        "memory": min(keeping, key=lambda place: rows[place].memory_bytes),
        "cpu": min(keeping, key=lambda place: rows[place].cpu_ns_per_call),
    }


def explain_choice(rows: Sequence[PlannedDeployment], place: int, *, has_target: bool) -> str:
    """Return why a row is recommended, as a clause."""
    what = "the rate within the target" if has_target else "the throughput"
    if place == DEFAULT_POSITION:
        others = [row for row in rows[1:] if row.is_proven]
        if rows[DEFAULT_POSITION].sustained_per_s <= 0 and not others:
            return "no deployment was found to meet the target"
        if others and rows[DEFAULT_POSITION].replicas:
            return "the default deployment needs no more replicas than the others"
        if others:
            return "the default deployment serves about as many requests as the fastest one, and needs no more memory"
        return f"no deployment is proven to increase {what} of the default deployment"
    default, chosen = rows[DEFAULT_POSITION], rows[place]
    sources = {row.capacity.source for row in (default, chosen) if row.capacity}
    how = ", as predicted from the durations of calls" if "predicted" in sources else ""
    if default.sustained_per_s <= 0:
        return f"the default deployment was not found to meet the target, and this one does{how}"
    times = chosen.sustained_per_s / default.sustained_per_s
    return f"it increases {what} to {times:.2f} times that of the default deployment{how}"
