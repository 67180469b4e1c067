"""Makes the same calls of each candidate before its memory is read.

What a process takes depends on which inputs it has seen, and how often. After blocks, whose time is limited, a slow
candidate has seen fewer of them than a fast one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ortune.worker import cpu
from ortune.worker.block import Memory
from ortune.worker.window import Callers, RealClock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Sample = dict[str, NDArray[np.generic]]

PASSES_OF_SHAPES = 2
"""Calls with each shape. In the first one, ONNX Runtime records which buffers a call with these shapes needs, and from
the second one on it allocates them as one. An encoder took 90 MB after one pass over inputs of 24 lengths in mixed
order, and 105 MB after two to six."""

MOST_SHAPES = 64
"""Number of different shapes that calls are made with. Of more, these are evenly spread over their sizes."""


def fill_memory(call: Callable[[Sample], Any], samples: Sequence[Sample], n_callers: int) -> Memory:
    """Make calls with inputs of all shapes, and return the memory that the process has then.

    Args:
        call: Makes one call with one sample.
        samples: All samples, of which those are used that have another shape than the ones before.
        n_callers: Concurrent callers. Each makes all calls in the same order, so that they make those that need the
            most memory at the same time.

    Raises:
        Exception: Any exception that a call raises.
    """
    chosen = choose_shapes(samples)

    def run() -> None:
        for _ in range(PASSES_OF_SHAPES):
            for sample in chosen:
                call(sample)

    if n_callers == 1:
        run()
    else:
        Callers(RealClock(), [run] * n_callers).join()
    return cpu.read_memory()


def choose_shapes(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first sample of each shape, in their order; the smallest, the largest and some between of many."""
    firsts: dict[tuple[tuple[int, ...], ...], Sample] = {}
    for sample in samples:
        firsts.setdefault(tuple(array.shape for array in sample.values()), sample)
    chosen = list(firsts.values())
    if len(chosen) <= MOST_SHAPES:
        return chosen
    by_size = sorted(range(len(chosen)), key=lambda place: sum(array.size for array in chosen[place].values()))
    last = len(by_size) - 1
    kept = {by_size[round(number * last / (MOST_SHAPES - 1))] for number in range(MOST_SHAPES)}
    return [chosen[place] for place in sorted(kept)]
