"""Runs a config with ONNX Runtime's own profiler, in a child process, and keeps the trace that it writes.

`python -m ortune.profile.profiler ANSWER` is the child; see `ortune.worker.child_process`.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from ortune.knobs.config import Config
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure

DEADLINE_S = 1800.0

WARM_UP_S = 0.3
MIN_WARM_UPS, MAX_WARM_UPS = 2, 50
MIN_RUNS = 3


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        model_path: The ONNX file.
        config: Its settings.
        feed_path: Inputs, as `Feed.save` writes them.
        trace_prefix: Beginning of the trace's path; ONNX Runtime adds the time.
        runs: Runs after the warm-up, or None for as many as `duration_s` and `most_runs` allow.
        duration_s: Time to go on running for.
        most_runs: Runs that a trace of a handy size can hold.
    """

    model_path: str
    config: Config
    feed_path: str
    trace_prefix: str
    runs: int | None
    duration_s: float
    most_runs: int


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What was written.

    Attributes:
        trace_path: The trace.
        n_warm_ups: Runs at its beginning that do not count.
        n_runs: Runs after them.
        providers: Execution providers of the session.
    """

    trace_path: str
    n_warm_ups: int
    n_runs: int
    providers: tuple[str, ...]


def trace(request: TraceRequest) -> Traced | Failure:
    """Let a child run the config with the profiler on."""
    return ask_child(
        "ortune.profile.profiler",
        request,
        Traced,
        environment=request.config.environment,
        deadline_s=DEADLINE_S,
    )


def work(request: TraceRequest, enter: Enter) -> Traced:
    """Create the session, run it, and close the trace; in the child.

    Raises:
        Exception: Whatever onnxruntime raises.
    """
    from ortune.worker.calls import make_call
    from ortune.worker.session import make_session, set_global_thread_pool
    from ortune.workload.inputs import load_feed

    samples, _ = load_feed(Path(request.feed_path))
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
    while n_runs < request.runs if request.runs is not None else _goes_on(n_runs, end, request.most_runs):
        run(n_runs)
        n_runs += 1
    return Traced(
        trace_path=session.end_profiling(),
        n_warm_ups=n_warm_ups,
        n_runs=n_runs,
        providers=tuple(session.get_providers()),
    )


def _goes_on(n_runs: int, end: float, most_runs: int) -> bool:
    return n_runs < MIN_RUNS or (time.perf_counter() < end and n_runs < most_runs)


def main() -> None:
    """Answer the parent."""
    answer_parent(TraceRequest, work)


if __name__ == "__main__":
    main()
