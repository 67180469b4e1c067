"""Runs a config with ONNX Runtime's profiler, in a child process, and keeps the trace that the profiler writes.

`python -m ortune.profile.record_trace ANSWER` is the child; see `ortune.worker.child_process`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from ortune.knobs.config import Config
from ortune.knobs.environment import variables_of
from ortune.worker.calls import make_call
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure
from ortune.worker.session import make_session, set_global_thread_pool

TRACE_DEADLINE_S = 1800.0

WARM_UP_S = 0.3
MIN_WARM_UPS, MAX_WARM_UPS = 2, 50
MIN_RUNS = 3


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to run.

    Attributes:
        model_path: The ONNX file.
        config: The settings.
        feed_path: Inputs, as `Feed.save` writes them.
        trace_prefix: Beginning of the trace's path; ONNX Runtime appends the time.
        n_runs: Runs after the warm-up, or None for as many as `duration_s` and `max_runs` allow.
        duration_s: Time to run for after the warm-up.
        max_runs: Runs that keep the trace to a manageable size.
    """

    model_path: str
    config: Config
    feed_path: str
    trace_prefix: str
    n_runs: int | None
    duration_s: float
    max_runs: int


class RecordedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was written.

    Attributes:
        path: The trace.
        n_warm_ups: Runs at its beginning that belong to the warm-up.
        n_runs: Runs after the warm-up.
        providers: Execution providers of the session.
    """

    path: str
    n_warm_ups: int
    n_runs: int
    providers: tuple[str, ...]


def record_in_child(request: TraceRequest) -> RecordedTrace | Failure:
    """Record a trace in a child process."""
    return ask_child(
        "ortune.profile.record_trace",
        request,
        RecordedTrace,
        environment=variables_of(request.config, os.environ),
        deadline_s=TRACE_DEADLINE_S,
    )


# The rest runs in the child.


def record_trace(request: TraceRequest, enter: Enter) -> RecordedTrace:
    """Create the session with the profiler on, run it, and close the trace.

    Raises:
        Exception: onnxruntime cannot load or run the model.
    """
    from ortune.worker.batches import Batches
    from ortune.workload.feed import load_feed

    samples, cases = load_feed(Path(request.feed_path))
    if request.config.batch > 1:
        samples = Batches(samples, cases, request.config.batch).samples
    enter("load")
    profiled = request.config.with_setting("session_options", "enable_profiling", True).with_setting(
        "session_options", "profile_file_prefix", request.trace_prefix
    )
    set_global_thread_pool(profiled)
    session = make_session(request.model_path, profiled.of_session(0))
    call = make_call([session], profiled, reference=None)
    enter("check")

    def run(number: int) -> None:
        call(samples[number % len(samples)])

    n_warm_ups = 0
    end = time.perf_counter() + WARM_UP_S
    while n_warm_ups < MIN_WARM_UPS or (n_warm_ups < MAX_WARM_UPS and time.perf_counter() < end):
        run(n_warm_ups)
        n_warm_ups += 1
    enter("measure")
    n_runs = 0
    end = time.perf_counter() + request.duration_s
    while n_runs < request.n_runs if request.n_runs is not None else _is_wanted(n_runs, end, request.max_runs):
        run(n_runs)
        n_runs += 1
    return RecordedTrace(
        path=session.end_profiling(),
        n_warm_ups=n_warm_ups,
        n_runs=n_runs,
        providers=tuple(session.get_providers()),
    )


def _is_wanted(n_runs: int, end: float, max_runs: int) -> bool:
    return n_runs < MIN_RUNS or (time.perf_counter() < end and n_runs < max_runs)


if __name__ == "__main__":
    answer_parent(TraceRequest, record_trace)
