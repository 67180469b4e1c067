"""What follows from the mean and the variation of calls about how long waits last, and how they come together."""

from __future__ import annotations

import math

import msgspec

from ortune.measure.clumps import Clumps
from ortune.queueing.theory import erlang_c
from ortune.workload.load import relaxation_services


class QueueMoments(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the mean duration of calls and of waits about the queue of each process.

    Attributes:
        utilization: Share of the callers' time that calls take, below 1.
        service_ns: Mean duration of a call, divided by the callers.
        variation: Sum of the squared coefficients of variation of the times between arrivals and of the calls.
        n_callers: Callers of each process.
    """

    utilization: float
    service_ns: float
    variation: float
    n_callers: int = 1

    @property
    def relaxation_ns(self) -> float:
        """Time after which the queue has forgotten its state, about."""
        return self.service_ns * relaxation_services(self.utilization, self.variation)

    def find_error(self, duration_ns: float) -> float:
        """Return the standard error of the mean wait over some time, in ns.

        Source: W. Whitt, "Planning queueing simulations", Management Science 35 (1989).
        """
        mean_ns = find_mean_wait(self.utilization, self.service_ns, self.variation, self.n_callers)
        return mean_ns * math.sqrt(self.relaxation_ns / duration_ns)

    @property
    def clumps(self) -> Clumps:
        """How requests wait for a long time together.

        One that waits long is followed by those of a busy period, which has 1 / (1 - u) requests. A queue that was long
        then returns to this length as often as a Brownian motion with its drift and variance does.

        Source: D. Aldous, "Probability Approximations via the Poisson Clumping Heuristic" (1989), chapter D, for the
        motion. J. F. C. Kingman, "Inequalities in the theory of queues", Journal of the Royal Statistical Society B 32
        (1970), for the decay.
        """
        spare = 1 - self.utilization
        return Clumps(
            size=1 / spare + self.utilization**2 * self.variation / 2 / spare**2,
            decay_ns=self.service_ns * self.variation / 2 / spare,
        )


def find_mean_wait(utilization: float, service_ns: float, variation: float, n_callers: int) -> float:
    """Return the mean wait in an M/G/c queue in ns, about, given the duration of a call divided by the callers."""
    return erlang_c(utilization, n_callers) * service_ns * variation / 2 / (1 - utilization)
