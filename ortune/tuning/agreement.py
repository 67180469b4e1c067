"""Finds nodes whose measurements differ systematically from those of the others.

Nodes of one class measure the same candidates, each relative to its own control. Where a node's log-ratios are shifted
against those of the others, something is wrong with its control or with the node, and its measurements mislead all.

The question is which node is unlike the others, and not what nodes have in common. The shift is therefore a median, on
which the node in question and single launches that are far off have little influence, and no random-effects estimate.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ortune.measure.stats import ERROR_OF_MEDIAN, robust_sigma
from ortune.storage import Measurement
from ortune.tuning.additive import WORST_LOG_RATIO

FEWEST_COMMON = 3
"""Candidates that two nodes must have in common to be compared, and launches of each in which they were measured."""

SHIFT = 0.05
"""Shift, as a log-ratio, below which nodes do not disagree: hosts of one class differ by a few percent."""

DISAGREEMENT_ERRORS = 4.0
USUAL_DIFFERENCE = 0.03
"""How clear a shift must be, and the least standard deviation of a candidate's difference between two nodes. It is
estimated from the median absolute deviation: single launches may be far off."""

FEW_VALUES = 4.0
"""By how much, divided by their number, the standard deviation of a few values is enlarged, because it is uncertain."""

Launches = Mapping[str, float]
"""Log-ratio of a candidate in each launch of a node. Candidates of one launch share its control, and the luck of it."""


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A node that disagrees with others.

    Attributes:
        node: Its name.
        n_common: Candidates that others measured, too.
        shift: Median difference of its log-ratios from those of the others.
        mutual: The nodes that it disagrees with if nobody can know which of them is right; else empty.
    """

    node: str
    n_common: int
    shift: float
    mutual: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The reason in words."""
        text = f"its ratios of {self.n_common} candidates differ from those of others by {math.expm1(self.shift):+.0%}"
        return f"{text}, and nobody can know which of the two is right" if self.mutual else text


def find_disagreements(measurements: Iterable[Measurement], base_key: str) -> dict[str, Disagreement]:
    """Return the nodes that differ systematically from the others.

    The node that differs most clearly is set apart first, and the others are then compared without it. If two nodes
    differ only from each other, both are returned.

    Args:
        measurements: What all nodes measured.
        base_key: Key of the baseline, which is left out.
    """
    common = list_common(measurements, base_key)
    found: dict[str, Disagreement] = {}
    while True:
        shifts = compare_nodes(common)
        clear = {
            node: comparison
            for node, comparison in shifts.items()
            if abs(comparison[1]) > SHIFT and comparison[2] > DISAGREEMENT_ERRORS
        }
        if not clear:
            return found
        most = max(comparison[2] for comparison in clear.values())
        worst = sorted(node for node, comparison in clear.items() if comparison[2] >= most - 1e-9)
        for node in worst:
            n_common, shift, _ = clear[node]
            mutual = tuple(other for other in worst if other != node)
            found[node] = Disagreement(node=node, n_common=n_common, shift=shift, mutual=mutual)
            for of in common:
                of.pop(node, None)


def list_common(measurements: Iterable[Measurement], base_key: str) -> list[dict[str, dict[str, float]]]:
    """Return the launches of each candidate that several nodes measured, by node."""
    measured: dict[str, dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for measurement in measurements:
        if measurement.config.key != base_key and (not measurement.failure or measurement.failure.is_of_candidate):
            measured[measurement.config.key][measurement.node].append(measurement)
    return [
        {
            node: {
                f"{measurement.worker}:{measurement.launch}": _summarize_launch(measurement) for measurement in launches
            }
            for node, launches in by_node.items()
        }
        for by_node in measured.values()
        if len(by_node) > 1
    ]


def _summarize_launch(measurement: Measurement) -> float:
    """Return the log-ratio of a launch in the first objective."""
    if not measurement.rounds:
        return WORST_LOG_RATIO
    quiet = [one for one in measurement.rounds if not one.contended] or measurement.rounds
    return min(max(statistics.median(one.log_ratios[0] for one in quiet), -WORST_LOG_RATIO), WORST_LOG_RATIO)


def compare_nodes(common: Sequence[Mapping[str, Launches]]) -> dict[str, tuple[int, float, float]]:
    """Return for each node: its number of common candidates, its shift, and the shift in standard errors.

    Differences of one launch share its luck, be it one of this node or of another. They are thus averaged by the
    launches of the node and by those of the others, and the larger of the two errors counts.

    Args:
        common: For each candidate, its launches by node.
    """
    pairs = find_comparable(common)
    n_common: dict[str, int] = defaultdict(int)
    by_own: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    by_other: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for of in common:
        medians = {node: statistics.median(launches.values()) for node, launches in of.items()}
        for node, launches in of.items():
            others = [other for other in of if (node, other) in pairs]
            if not others:
                continue
            n_common[node] += 1
            expected = statistics.median(medians[other] for other in others)
            for launch, value in launches.items():
                by_own[node][launch].append(value - expected)
            for launch in (launch for other in others for launch in of[other]):
                by_other[node][launch].append(medians[node] - expected)
    found = {}
    for node, n in n_common.items():
        own, other = (
            [statistics.median(differences) for differences in by[node].values()] for by in (by_own, by_other)
        )
        shift = statistics.median(own)
        found[node] = (n, shift, abs(shift) / max(_error_of(own), _error_of(other)))
    return found


def find_comparable(common: Sequence[Mapping[str, Launches]]) -> set[tuple[str, str]]:
    """Return the pairs of nodes that have enough candidates in common, in enough launches of each."""
    launches: dict[tuple[str, str], set[str]] = defaultdict(set)
    n_common: dict[tuple[str, str], int] = defaultdict(int)
    for of in common:
        for pair in itertools.permutations(of, 2):
            n_common[pair] += 1
            launches[pair].update(of[pair[0]])
    return {
        (node, other)
        for (node, other), n in n_common.items()
        if min(n, len(launches[node, other]), len(launches[other, node])) >= FEWEST_COMMON
    }


def _error_of(values: Sequence[float]) -> float:
    """Return the standard error of the median of a few values."""
    n = len(values)
    sigma = max(robust_sigma(values), USUAL_DIFFERENCE) * (1 + FEW_VALUES / n)
    return ERROR_OF_MEDIAN * sigma / math.sqrt(n)
