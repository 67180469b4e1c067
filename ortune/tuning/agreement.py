"""Finds nodes whose measurements differ systematically from those of the others.

Nodes of one class measure the same candidates, each relative to its own control. Where a node's log-ratios are shifted
against those of the others, something is wrong with its control or with the node, and its measurements mislead all.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from ortune.compare.stats import robust_sigma
from ortune.storage import Measurement

FEWEST_COMMON = 3
"""Candidates that a node and others must have in common to be compared."""

SHIFT = 0.05
"""Shift, as a log-ratio, below which nodes do not disagree: hosts of one class differ by a few percent."""

STANDARD_ERRORS = 4.0
USUAL_DIFFERENCE = 0.03
"""How clear a shift must be, and the least standard deviation of a candidate's difference between two nodes. It is
estimated from the median absolute deviation: single launches may be far off."""

MEDIAN_ERROR = 1.2533
"""Standard error of a median, relative to that of a mean."""

WORST = 0.7
"""Limit of log-ratios. A candidate that fails counts as one that takes twice as long."""

Values = Mapping[str, Mapping[str, float]]
"""Log-ratio by node and candidate."""


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


def summarize_nodes(measurements: Iterable[Measurement], base_key: str) -> dict[str, dict[str, float]]:
    """Return the median log-ratio of the first objective over all launches, by node and key of the candidate.

    Candidates that only one node measured are left out.
    """
    measured: dict[str, dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for each in measurements:
        # A sudden failure may have nothing to do with the candidate.
        if each.config.key != base_key and not (each.failure and each.failure.is_sudden):
            measured[each.config.key][each.node].append(each)
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for key, by_node in measured.items():
        if len(by_node) > 1:
            for node, launches in by_node.items():
                values[node][key] = statistics.median(_summarize_launch(each) for each in launches)
    return values


def _summarize_launch(measurement: Measurement) -> float:
    if not measurement.rounds:
        return WORST
    quiet = [one for one in measurement.rounds if not one.contended] or measurement.rounds
    return min(max(statistics.median(one.log_ratios[0] for one in quiet), -WORST), WORST)


def find_disagreements(values: Values) -> dict[str, Disagreement]:
    """Return the nodes that differ systematically from the others.

    The node that differs most clearly is set apart first, and the others are then compared without it. If two nodes
    differ only from each other, both are returned.
    """
    found: dict[str, Disagreement] = {}
    by_key: dict[str, dict[str, float]] = defaultdict(dict)
    for node, of in values.items():
        for key, value in of.items():
            by_key[key][node] = value
    common = [of for of in by_key.values() if len(of) > 1]
    while True:
        shifts = compare_nodes(common)
        clear = {node: each for node, each in shifts.items() if abs(each[1]) > SHIFT and each[2] > STANDARD_ERRORS}
        if not clear:
            return found
        most = max(each[2] for each in clear.values())
        worst = sorted(node for node, each in clear.items() if each[2] >= most - 1e-9)
        for node in worst:
            n_common, shift, _ = clear[node]
            mutual = tuple(other for other in worst if other != node)
            found[node] = Disagreement(node=node, n_common=n_common, shift=shift, mutual=mutual)
            for of in common:
                of.pop(node, None)


def compare_nodes(common: Iterable[Mapping[str, float]]) -> dict[str, tuple[int, float, float]]:
    """Return for each node: its number of common candidates, its shift, and the shift in standard errors.

    Args:
        common: For each candidate, its log-ratio by node.
    """
    differences: dict[str, list[float]] = defaultdict(list)
    for of in common:
        for node, value in of.items():
            if others := [each for other, each in of.items() if other != node]:
                differences[node].append(value - statistics.median(others))
    found = {}
    for node, values in differences.items():
        if len(values) < FEWEST_COMMON:
            continue
        shift = statistics.median(values)
        error = MEDIAN_ERROR * max(robust_sigma(values), USUAL_DIFFERENCE) / math.sqrt(len(values))
        found[node] = (len(values), shift, abs(shift) / error)
    return found
