"""How many replicas a rate needs, and what an item costs."""

from __future__ import annotations

import math

ITEMS = 1_000_000
"""Items that prices are given for."""

SECONDS_PER_HOUR = 3600


def count_replicas(rate_per_s: float, capacity_per_s: float, headroom: float = 0.0) -> int:
    """Return how many replicas serve a rate.

    The rate is spread evenly over the replicas. That each has a queue of its own must be part of its capacity.

    Args:
        rate_per_s: Items that arrive per second at all replicas together.
        capacity_per_s: Highest rate of one replica.
        headroom: Share of the capacity that is left unused, such as 0.2, for peaks and for replicas that fail.

    Raises:
        ValueError: No number of replicas is enough, or a value makes no sense.
    """
    if not 0 <= rate_per_s < math.inf or not 0 < capacity_per_s < math.inf or not 0 <= headroom < 1:
        raise ValueError(
            f"a rate of {rate_per_s}/s, a capacity of {capacity_per_s}/s and a headroom of {headroom}: rates must be "
            "finite, the capacity positive, and the headroom at least 0 and below 1"
        )
    # Without the rounding, 3 x 0.1 / 0.3 would need two replicas.
    return max(1, math.ceil(round(rate_per_s / (capacity_per_s * (1 - headroom)), 9)))


def price_of_million(price_per_hour: float, rate_per_s: float, n_replicas: int = 1) -> float:
    """Return the price of a million items, in the unit of the price per hour.

    Args:
        price_per_hour: Price of one replica per hour, whether it is busy or not.
        rate_per_s: Items that all replicas together serve per second.
        n_replicas: Number of replicas.

    Raises:
        ValueError: Nothing is served, or a price is negative.
    """
    if not 0 < rate_per_s < math.inf or not 0 <= price_per_hour < math.inf or n_replicas < 1:
        raise ValueError(
            f"{n_replicas} replicas at {price_per_hour} per hour for {rate_per_s}/s: the rate and the number must be "
            "positive, and the price at least 0"
        )
    return price_per_hour * n_replicas * ITEMS / (rate_per_s * SECONDS_PER_HOUR)
