"""The gain of a config over several hosts of one class.

Hosts of one class differ in how much a config gains, by more than repeated measurements on one of them. The hosts are
the sample: a claim about all hosts of the class rests on how much they differ, not on the number of measurements. Each
host counts the same. Weights by the errors of the hosts would be noisy, as each error rests on a few launches, and
would let a host that seems to be exact decide for all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ortune.measure.comparison import Speedup
from ortune.measure.host_speedup import MOST_HOSTS, HostsEvidence, HostSpeedup, WorstHost, judge_hosts
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.stats import estimate_random_effects, student_error, student_interval

FLEET_CONFIDENCE = 0.995
"""Confidence of the interval over hosts. Of configs that gain nothing on average, fewer than 1 % are then called
faster, even if a search on one of the hosts chose them: see `python -m benchmarks.fleet`."""

WIDEST = 1000.0
"""Largest ratio that an interval contains. Intervals over two hosts may be wider, which means nothing more."""


def can_pool(speedup: HostSpeedup | Speedup) -> bool:
    """Return whether a speedup has an error that can be computed."""
    ends = (speedup.low, speedup.estimate, speedup.high)
    return (
        all(math.isfinite(end) and 1 / WIDEST <= end <= WIDEST for end in ends)
        and speedup.low <= speedup.estimate <= speedup.high
        and 0.5 <= speedup.confidence < 1
        and speedup.n_launches >= 2
    )


def pool_hosts(speedups: Sequence[HostSpeedup], *, n_failed: int = 0) -> HostsEvidence:
    """Return what several hosts say about a config.

    Args:
        speedups: The speedup on each of at least two hosts, for all of which `can_pool` is true.
        n_failed: Further hosts, on which the config does not work.
    """
    n = len(speedups)
    logarithms = [host.log() for host in speedups]
    errors = [student_error(found, host.n_launches) for found, host in zip(logarithms, speedups, strict=True)]
    # All hosts count the same: with one error for all of them, that of an average host.
    usual_error = math.sqrt(float(np.mean(np.square(errors))))
    mean, error = estimate_random_effects([logarithm.estimate for logarithm in logarithms], np.full(n, usual_error))
    speedup = _to_ratios(student_interval(mean, error, n - 1, FLEET_CONFIDENCE))
    slower = find_slower(speedups)
    judged = [msgspec.structs.replace(host, slower=place in slower) for place, host in enumerate(speedups)]
    ordered = sorted(judged, key=lambda host: (host.estimate, host.host))
    return HostsEvidence(
        verdict=judge_hosts(speedup, len(slower) + n_failed),
        n_hosts=n,
        n_slower=len(slower),
        n_failed=n_failed,
        n_contended=sum(host.contended for host in ordered),
        speedup=speedup,
        # Another host differs from the mean as these do, and the mean has an error of its own.
        another=_to_ratios(student_interval(mean, error * math.sqrt(n + 1), n - 1, DEFAULT_CONFIDENCE)),
        worst=widen_for_choice(ordered[0], n),
        hosts=tuple(ordered[:MOST_HOSTS]),
    )


def widen_for_choice(speedup: HostSpeedup, n_hosts: int) -> WorstHost:
    """Return the interval of a host that was chosen for its figures.

    Of n intervals with the confidence 0.95 ** (1/n), all contain their true value with 95 % confidence: also the one
    of the host that is chosen.

    Source: Z. Sidak, "Rectangular confidence regions for the means of multivariate normal distributions", Journal of
    the American Statistical Association 62 (1967).
    """
    from scipy.special import stdtrit

    n_free = speedup.n_launches - 1
    wanted = float(stdtrit(n_free, (1 + DEFAULT_CONFIDENCE ** (1 / n_hosts)) / 2))
    factor = wanted / float(stdtrit(n_free, (1 + speedup.confidence) / 2))
    found = speedup.log()
    widened = Interval(
        estimate=found.estimate,
        low=found.estimate - factor * (found.estimate - found.low),
        high=found.estimate + factor * (found.high - found.estimate),
        confidence=DEFAULT_CONFIDENCE,
    )
    return WorstHost(**msgspec.structs.asdict(_to_ratios(widened)), host=speedup.host)


def find_slower(speedups: Sequence[HostSpeedup]) -> tuple[int, ...]:
    """Return the places of the hosts on which a config is proven to be worse than the baseline.

    With 95 % confidence, it is worse on all of them.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    p_values = np.array([_p_value(speedup) for speedup in speedups])
    found = []
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] * (len(speedups) - rank) > 1 - DEFAULT_CONFIDENCE:
            break
        found.append(int(place))
    return tuple(sorted(found))


def _p_value(speedup: HostSpeedup) -> float:
    """Return the probability of a speedup at most this large if the config is as good as the baseline."""
    from scipy.special import stdtr

    found = speedup.log()
    error = student_error(found, speedup.n_launches)
    return float(stdtr(speedup.n_launches - 1, found.estimate / error))


def _to_ratios(interval: Interval) -> Interval:
    """Return an interval of logarithms as one of ratios, not wider than `WIDEST`."""
    most = math.log(WIDEST)
    return msgspec.structs.replace(interval, low=max(interval.low, -most), high=min(interval.high, most)).exp()
