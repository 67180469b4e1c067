"""Durations of calls between measured sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray


def fit_increasing(values: ArrayLike) -> NDArray[np.float64]:
    """Return the values that do not decrease and are closest to the given ones (isotonic regression)."""
    from scipy.optimize import isotonic_regression

    return np.asarray(isotonic_regression(np.asarray(values, dtype=float)).x)


class CallTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call takes, given the size of the batch and the length that its items are padded to.

    Between the measured points, durations are bilinear: linear in the size and in the length, with a term for their
    product. So a fixed cost per call plus a cost per token is interpolated exactly, and so are costs per item and per
    position. Below the smallest measured size or length, the duration there is used, which is an upper bound.

    Attributes:
        sizes: Measured sizes of batches, increasing.
        lengths: Measured lengths, increasing.
        times_ns: Durations, sizes by lengths. They do not decrease along either axis.
    """

    sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    times_ns: tuple[tuple[float, ...], ...]

    def time_ns(self, sizes: ArrayLike, lengths: ArrayLike) -> NDArray[np.float64]:
        """Return durations in ns of calls with batches of these sizes and padded lengths.

        Raises:
            ValueError: One is larger than what was measured.
        """
        size, length = np.broadcast_arrays(np.asarray(sizes, dtype=float), np.asarray(lengths, dtype=float))
        if size.size and (size.max() > self.sizes[-1] or length.max() > self.lengths[-1]):
            raise ValueError(
                f"a batch of {size.max():g} with length {length.max():g} is not covered: calls were measured up to a "
                f"batch of {self.sizes[-1]} and a length of {self.lengths[-1]}"
            )
        row, part_of_row = _locate(self.sizes, size)
        column, part_of_column = _locate(self.lengths, length)
        times = np.array(self.times_ns)
        next_row = np.minimum(row + 1, len(self.sizes) - 1)
        next_column = np.minimum(column + 1, len(self.lengths) - 1)
        above = times[row, column] * (1 - part_of_column) + times[row, next_column] * part_of_column
        below = times[next_row, column] * (1 - part_of_column) + times[next_row, next_column] * part_of_column
        return np.asarray(above * (1 - part_of_row) + below * part_of_row)


def make_call_times(measured_ns: Mapping[tuple[int, int], float]) -> CallTimes:
    """Return the durations of calls from measurements on a grid.

    Noise may make a larger batch or a longer input seem faster. The result is the mean of the smallest increasing grid
    above the measurements and the largest one below, which changes nothing where they increase already.

    Args:
        measured_ns: Durations in ns by size of the batch and padded length, for all pairs of some sizes and lengths.

    Raises:
        ValueError: A point of the grid is missing, or a duration is not positive.
    """
    sizes = sorted({size for size, _ in measured_ns})
    lengths = sorted({length for _, length in measured_ns})
    missing = [(size, length) for size in sizes for length in lengths if (size, length) not in measured_ns]
    if missing or not sizes:
        raise ValueError(f"not measured: batch and length {missing[0] if missing else '(all)'}")
    if sizes[0] < 1 or lengths[0] < 1:
        raise ValueError("sizes and lengths must be at least 1")
    times = np.array([[measured_ns[size, length] for length in lengths] for size in sizes], dtype=float)
    if not (times > 0).all() or not np.isfinite(times).all():
        raise ValueError("durations must be positive and finite")
    upper, lower = times, times[::-1, ::-1]
    for axis in (0, 1):
        upper = np.maximum.accumulate(upper, axis=axis)
        lower = np.minimum.accumulate(lower, axis=axis)
    smooth = (upper + lower[::-1, ::-1]) / 2
    return CallTimes(
        sizes=tuple(sizes), lengths=tuple(lengths), times_ns=tuple(tuple(map(float, row)) for row in smooth)
    )


def _locate(points: Sequence[int], values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the position of the measured point at or below each value, and the part of the way to the next one."""
    grid = np.asarray(points, dtype=float)
    values = np.maximum(values, grid[0])
    position = np.searchsorted(grid, values, side="right") - 1
    following = np.minimum(position + 1, len(grid) - 1)
    width = np.where(following > position, grid[following] - grid[position], 1.0)
    return position, (values - grid[position]) / width
