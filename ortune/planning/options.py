"""What a plan is for."""

from __future__ import annotations

import msgspec

from ortune.workload import Limit

USUAL_BUDGET_S = 120.0
USUAL_BUDGET_WITH_TARGET_S = 240.0


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for.

    Attributes:
        slo: The target for the latency, or None.
        rate_per_s: The asked rate, or None.
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a replica, or None.
        budget_s: Time to spend; None for the usual time.
    """

    slo: Limit | None = None
    rate_per_s: float | None = None
    headroom: float = 0.2
    price_per_hour: float | None = None
    budget_s: float | None = None

    @property
    def time_s(self) -> float:
        """Time to spend."""
        return self.budget_s or (USUAL_BUDGET_WITH_TARGET_S if self.slo else USUAL_BUDGET_S)
