"""What a plan is for."""

from __future__ import annotations

import msgspec

from ortune.planning.length_policies import LengthSample
from ortune.workload import Limit, Objective

USUAL_PLAN_BUDGET_S = 120.0
USUAL_BUDGET_WITH_TARGET_S = 240.0
USUAL_BUDGET_FOR_LENGTHS_S = 120.0
USUAL_BUDGET_FOR_BATCHING_S = 60.0
"""Time to spend, and what lengths and dynamic batching add to it."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for.

    Attributes:
        slo: The target for the latency, or None.
        rate_per_s: The requested rate, or None.
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a replica, or None.
        budget_s: Time to spend; None for the usual time.
        lengths: Items of different lengths, or None.
        dynamic_batching: Whether to consider putting requests that wait together.
    """

    slo: Limit | None = None
    rate_per_s: float | None = None
    headroom: float = 0.2
    price_per_hour: float | None = None
    budget_s: float | None = None
    lengths: LengthSample | None = None
    dynamic_batching: bool = False

    @property
    def figure(self) -> Objective | None:
        """The figure of the target, or None."""
        return self.slo.figure if self.slo else None

    @property
    def usual_deployments_s(self) -> float:
        """Usual time for everything but lengths."""
        own_s = USUAL_BUDGET_WITH_TARGET_S if self.slo else USUAL_PLAN_BUDGET_S
        return own_s + (USUAL_BUDGET_FOR_BATCHING_S if self.dynamic_batching else 0.0)

    @property
    def longest_extension_s(self) -> float:
        """Time that may be added to measure capacities, if no budget is given."""
        is_fixed = self.budget_s is not None or self.dynamic_batching
        return USUAL_BUDGET_WITH_TARGET_S if self.slo and not is_fixed else 0.0

    @property
    def time_s(self) -> float:
        """Time to spend."""
        usual_s = self.usual_deployments_s + (USUAL_BUDGET_FOR_LENGTHS_S if self.lengths else 0.0)
        return self.budget_s or usual_s

    @property
    def deployments_s(self) -> float:
        """The part of it for everything but lengths."""
        share = self.usual_deployments_s / (self.usual_deployments_s + USUAL_BUDGET_FOR_LENGTHS_S)
        return self.time_s * share if self.lengths else self.time_s

    @property
    def lengths_s(self) -> float:
        """The part of it for lengths. They get at least half of that if the other stages take longer."""
        return self.time_s - self.deployments_s
