"""Measures how long calls take for sizes of the batch and padded lengths, at as few points as suffice.

Durations are close to linear in both over wide ranges, with bends where data no longer fits into a cache or where
kernels change. So the ends are measured first, and points between them where interpolation is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ortune.queueing.interpolation import CallTimes, make_call_times
from ortune.queueing.length_batches import powers_of_two

INTERPOLATION_TOLERANCE = 0.04
"""Error of an interpolated duration, as a share, that is not worth another row of measurements."""

Axis = Literal["size", "length"]


class _Gap(NamedTuple):
    """Two points of an axis that are next to each other in the grid."""

    axis: Axis
    low: int
    high: int


def list_points(low: int, high: int) -> tuple[int, ...]:
    """Return the points of an axis that may be measured: both ends, and the powers of two between them."""
    return tuple(sorted({low, *powers_of_two(low, high), high}))


def measure_call_times(
    measure: Callable[[int, int], float],
    sizes: Sequence[int],
    lengths: Sequence[int],
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[CallTimes, dict[tuple[int, int], float]]:
    """Measure the durations of calls on a grid that is refined where interpolation is wrong.

    Args:
        measure: Returns the duration of a call in ns, given the size of the batch and the padded length.
        sizes: Sizes that may be measured, in ascending order.
        lengths: The same for padded lengths.
        has_time: Whether there is time to refine the grid.

    Returns:
        The durations, and what was measured.
    """
    return _Grid(measure, sizes, lengths).run(has_time)


class _Grid:
    def __init__(self, measure: Callable[[int, int], float], sizes: Sequence[int], lengths: Sequence[int]) -> None:
        self.measure = measure
        self.candidates: dict[Axis, Sequence[int]] = {"size": sizes, "length": lengths}
        self.points: dict[Axis, list[int]] = {
            axis: sorted({points[0], points[-1]}) for axis, points in self.candidates.items()
        }
        self.measured: dict[tuple[int, int], float] = {}

    def run(self, has_time: Callable[[], bool]) -> tuple[CallTimes, dict[tuple[int, int], float]]:
        """Measure the ends, and then the middle of each gap in which interpolation is wrong."""
        self.fill()
        gaps = deque(_Gap(axis, points[0], points[-1]) for axis, points in self.points.items())
        while gaps and has_time():
            gap = gaps.popleft()
            inner = [candidate for candidate in self.candidates[gap.axis] if gap.low < candidate < gap.high]
            if not inner:
                continue
            middle = inner[len(inner) // 2]
            if self.find_error(gap.axis, middle) > INTERPOLATION_TOLERANCE:
                self.points[gap.axis] = sorted([*self.points[gap.axis], middle])
                self.fill()
                gaps += [_Gap(gap.axis, gap.low, middle), _Gap(gap.axis, middle, gap.high)]
        return self.times, dict(self.measured)

    @property
    def times(self) -> CallTimes:
        """The durations on the grid."""
        grid = {(size, length) for size in self.points["size"] for length in self.points["length"]}
        return make_call_times({point: self.measured[point] for point in grid})

    def fill(self) -> None:
        """Measure all points of the grid that are missing."""
        for size in self.points["size"]:
            for length in self.points["length"]:
                self.find_ns(size, length)

    def find_ns(self, size: int, length: int) -> float:
        """Return the duration at a point, which is measured once."""
        if (size, length) not in self.measured:
            self.measured[size, length] = self.measure(size, length)
        return self.measured[size, length]

    def find_error(self, axis: Axis, middle: int) -> float:
        """Return the largest relative error of interpolation at the ends of a row or column that is not in the grid."""
        times = self.times
        others = self.points["length" if axis == "size" else "size"]
        errors = []
        for other in dict.fromkeys((others[-1], others[0])):
            size, length = (middle, other) if axis == "size" else (other, middle)
            actual = self.find_ns(size, length)
            errors.append(abs(float(times.time_ns(size, length)) / actual - 1))
        return float(np.max(errors))
