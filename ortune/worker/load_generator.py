"""Generates the load of a block: calls back to back, from several callers, or at a rate.

Each of the three generators first makes unmeasured calls, the lead-in. Then comes the window, without a pause. The
generators return what happened in the window. Where several processes are measured together, each of them generates its
part of the load, and all have the same window. Between two calls they only read the clock and append to a list. What
takes longer is read before the lead-in and after the window. `run()` releases the interpreter lock, so that callers do
not wait for each other in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ortune.worker.barrier import Barrier, Exchange
from ortune.worker.block import BlockPlan
from ortune.worker.closed_loop import back_to_back, closed_loop
from ortune.worker.open_loop import RequestStream
from ortune.worker.window import Clock, RealClock, Window

S = TypeVar("S")
R = TypeVar("R")


def generate_load(
    call: Callable[[S], Any],
    samples: Sequence[S],
    plan: BlockPlan,
    read: Callable[[], R],
    clock: Clock | None = None,
    stream: RequestStream | None = None,
    exchange: Exchange | None = None,
    own_ns: Callable[[], int] | None = None,
) -> Window[R]:
    """Generate the load of a plan, and return what happened in the window.

    Args:
        call: Makes one call with one sample.
        samples: Samples of the calls, used in turn, or drawn at random if requests arrive at a rate. The plan's seed
            determines which.
        plan: The load, and for how long.
        read: Called before the lead-in and after the window.
        clock: The clock; None for the real one.
        stream: The requests of earlier blocks of this launch, which the block continues. It has no effect unless
            requests arrive at a rate.
        exchange: Exchanges numbers with the other processes of a group, whose window is the same; None for a process
            that is alone.
        own_ns: Returns how much of the last call of this thread was the caller's own time; None if it is not wanted.

    Raises:
        Exception: Any exception that a call raises.
    """
    clock = clock or RealClock()
    if plan.load.scenario == "single-stream":
        return back_to_back(call, samples, plan, read, clock, own_ns)
    barrier = Barrier(clock, exchange)
    if plan.load.scenario == "multi-client":
        return closed_loop(call, samples, plan, read, clock, barrier, own_ns)
    return (stream or RequestStream(plan.load)).measure(call, samples, plan, read, clock, barrier, own_ns)
