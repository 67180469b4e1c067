"""Percentiles of the latency of requests that wait for the same queue, where long waits come in clumps.

A percentile is exceeded while a queue is long, by many requests in a row, and then for a long time by none. How much
parts of a measurement differ says nothing about long queues that are not in it, so their size must be known.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

SHARE_IN_REACH = 0.1
"""Share of the requests above a latency of which short measurements have enough. Rarer ones follow from the decay."""


class Clumps(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that exceed a latency together.

    Attributes:
        size: How many do on average.
        decay_ns: Time after which the share of requests that wait longer is smaller by a factor of e, at most.
    """

    size: float
    decay_ns: float

    def bound_quantile(self, samples_ns: NDArray[np.int64], share: float, error: float) -> float:
        """Return a latency that a quantile does not exceed, in ns; infinite if there are too few requests.

        Either few requests exceed it, or so few exceed a shorter one that it follows from the decay.

        Args:
            samples_ns: Latencies in order of size.
            share: Share of the requests below the quantile.
            error: Probability that the quantile exceeds it all the same.
        """
        shares = {1 - share, max(1 - share, SHARE_IN_REACH)}
        return min(
            self._bound(samples_ns, above, error) + self.decay_ns * math.log(above / (1 - share)) for above in shares
        )

    def _bound(self, samples_ns: NDArray[np.int64], above: float, error: float) -> float:
        """Return the shortest latency that fewer than a share of all requests exceed."""
        n = len(samples_ns)
        # The most requests that may exceed it by chance: `low` may, `high` may not.
        low, high = -1, math.ceil(n * above)
        while high - low > 1:
            middle = (low + high) // 2
            if probability_of_at_most(middle, n * above, self.size) < error:
                low = middle
            else:
                high = middle
        return math.inf if low < 0 else float(samples_ns[n - 1 - low])


def probability_of_at_most(n: int, mean: float, size: float) -> float:
    """Return the probability that at most `n` requests exceed a latency if on average `mean` do.

    Their clumps are as many as in a Poisson distribution, and each is exponentially distributed in size.

    Source: D. Aldous, "Probability Approximations via the Poisson Clumping Heuristic" (1989).
    """
    from scipy.special import gammainc, gammaln

    n_clumps = mean / size
    k = np.arange(1, math.ceil(n_clumps + 10 * math.sqrt(n_clumps) + 10))
    masses = np.exp(k * math.log(n_clumps) - n_clumps - gammaln(k + 1))
    return math.exp(-n_clumps) + float(masses @ gammainc(k, n / size))
