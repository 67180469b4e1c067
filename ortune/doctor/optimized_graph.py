"""Reads what ONNX Runtime makes of a model, in a child process: optimized graphs, node placement, and timings.

`python -m ortune.doctor.optimized_graph ANSWER` is the child; see `ortune.worker.child_process`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from ortune.knobs.config import CPU_PROVIDER, DEFAULT, Config
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure, make_failure
from ortune.worker.graphs import write_graph
from ortune.worker.session import make_session, time_session_creation

UNOPTIMIZED_LEVEL = "ORT_DISABLE_ALL"
EXTENDED_LEVEL = "ORT_ENABLE_EXTENDED"
DEFAULT_LEVEL = "ORT_ENABLE_ALL"

WRITTEN_LEVELS = (EXTENDED_LEVEL, DEFAULT_LEVEL)
"""Levels whose optimized graphs are read: without and with layouts for this CPU."""

REPEAT_BELOW_S = 10.0
"""A session that takes less than this to create is created twice, and the shorter time counts."""

BLOCK_S = 0.3
"""Time to run the model for, in each block."""

OPTIMIZE_DEADLINE_S = 900.0
"""Time for all that the child does."""

PROGRESS_FILE = "progress.json"
"""File in which the child records what it knows so far. If the child ends early, that is not lost."""

PLACING = "created a session with the providers"
"""What the child does last. A provider that ends the process then is one that does not work."""


class OptimizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is to do.

    Attributes:
        model_path: The ONNX file.
        model_bytes: Its size, including external data.
        folder: Where to write optimized graphs.
        feed_path: Inputs for runs, as `Feed.save` writes them; None to not run the model.
        providers: Execution providers to place the nodes with, besides the CPU's; empty to not place them.
    """

    model_path: str
    model_bytes: int
    folder: str
    feed_path: str | None = None
    providers: tuple[str, ...] = ()


class AssignedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node, and the execution provider that ONNX Runtime assigned it to."""

    provider: str
    op: str
    domain: str = ""
    name: str = ""


class OptimizedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What ONNX Runtime makes of a model.

    Attributes:
        graphs: Path of the optimized graph of each level, without most of its weights.
        creation_ns: Time to create a session, by level.
        run_ns: Median time of a run, by level; empty if the model was not run.
        session_providers: Providers of the session that was created with `OptimizeRequest.providers`.
        assigned: Where that session placed each node, or None.
        missing: Why something is not known, by attribute.
        activity: What the child did when it recorded this: a verb in the past tense, with its object.
        end: Why the child ended before it was done, else empty.
    """

    graphs: dict[str, str] = {}
    creation_ns: dict[str, int] = {}
    run_ns: dict[str, int] = {}
    session_providers: tuple[str, ...] = ()
    assigned: tuple[AssignedNode, ...] | None = None
    missing: dict[str, str] = {}
    activity: str = ""
    end: str = ""


def optimize_in_child(request: OptimizeRequest) -> OptimizedModel | Failure:
    """Optimize, run and place the model in a child process. A `Failure` says why ONNX Runtime cannot load it.

    If the child ends after the first session was created, the result is what it recorded until then.
    """
    found = ask_child("ortune.doctor.optimized_graph", request, OptimizedModel, deadline_s=OPTIMIZE_DEADLINE_S)
    path = Path(request.folder) / PROGRESS_FILE
    if not isinstance(found, Failure) or not path.is_file():
        return found
    recorded = msgspec.json.decode(path.read_bytes(), type=OptimizedModel)
    if recorded.activity == PLACING and found.kind != "timeout":
        return _add_missing(recorded, "assigned", found.message)
    if found.kind == "timeout":
        end = (
            f"the checks took longer than {OPTIMIZE_DEADLINE_S:.0f} s, and ended while ONNX Runtime {recorded.activity}"
        )
    else:
        end = f"the process ended while ONNX Runtime {recorded.activity}: {found.message}"
    return msgspec.structs.replace(recorded, end=end)


def _add_missing(optimized: OptimizedModel, attribute: str, why: str) -> OptimizedModel:
    return msgspec.structs.replace(optimized, missing={**optimized.missing, attribute: why})


# The rest runs in the child.


def _record(request: OptimizeRequest, optimized: OptimizedModel, activity: str) -> None:
    """Record what is known so far, and what comes next."""
    path = Path(request.folder) / PROGRESS_FILE
    new = path.with_suffix(".new")
    # Without space on the disk, the child goes on without a record.
    with contextlib.suppress(OSError):
        new.write_bytes(msgspec.json.encode(msgspec.structs.replace(optimized, activity=activity)))
        new.replace(path)


def optimize_model(request: OptimizeRequest, enter: Enter) -> OptimizedModel:
    """Create sessions of the model, one after another.

    Raises:
        Exception: onnxruntime cannot load the model.
    """
    enter("load")
    session, first_ns = time_session_creation(request.model_path, DEFAULT)
    del session
    optimized = OptimizedModel()
    if request.feed_path is not None:
        enter("check")
        _record(request, optimized, "ran the model")
        try:
            run_ns = _time_runs(request.model_path, Path(request.feed_path))
            optimized = msgspec.structs.replace(optimized, run_ns=run_ns)
        except Exception as error:  # noqa: BLE001  (the model does not run on these inputs, which is reported)
            optimized = _add_missing(optimized, "run_ns", make_failure(error, "check").message)
    enter("load")
    _record(request, optimized, "created sessions with and without optimization")
    creation_ns = _time_creation(request.model_path, first_ns)
    optimized = msgspec.structs.replace(optimized, creation_ns=creation_ns)
    for level in WRITTEN_LEVELS:
        _record(request, optimized, "wrote the optimized graph")
        try:
            path = Path(request.folder) / f"{level}.onnx"
            write_graph(request.model_path, _at_level(level), path, model_bytes=request.model_bytes)
            graphs = {**optimized.graphs, level: str(path)}
            optimized = msgspec.structs.replace(optimized, graphs=graphs)
        except Exception as error:  # noqa: BLE001  (not every model can be written, which is reported)
            optimized = _add_missing(optimized, "graphs", make_failure(error, "load").message)
    if not request.providers:
        return optimized
    _record(request, optimized, PLACING)
    return _place_nodes(request, optimized)


def _at_level(level: str) -> Config:
    return DEFAULT.with_setting("session_options", "graph_optimization_level", level)


def _time_creation(model_path: str, first_ns: int) -> dict[str, int]:
    """Return the time to create a session, in ns, without and with optimization."""
    times: dict[str, int] = {}
    for level in (UNOPTIMIZED_LEVEL, DEFAULT_LEVEL):
        # Some models contain operators that have no kernel until they are fused.
        with contextlib.suppress(Exception):
            times[level] = time_session_creation(model_path, _at_level(level))[1]
            if first_ns < REPEAT_BELOW_S * 1e9:
                times[level] = min(times[level], time_session_creation(model_path, _at_level(level))[1])
    return times


def _time_runs(model_path: str, feed_path: Path) -> dict[str, int]:
    """Return the median time of a run at each level, in ns: the smaller of two blocks; the levels alternate."""
    times: dict[str, int] = {}
    for level in (DEFAULT_LEVEL, EXTENDED_LEVEL) * 2:
        # One session at a time: threads that spin while they wait for work slow down another session.
        session = make_session(model_path, _at_level(level))
        run_ns = _time_run(session, feed_path)
        del session
        times[level] = min(run_ns, times.get(level, run_ns))
    return times


def _time_run(session: Any, feed_path: Path) -> int:
    from ortune.workload.feed import load_feed

    samples, _ = load_feed(feed_path)
    sample: dict[str, Any] = samples[0]
    session.run(None, sample)
    times: list[int] = []
    end = time.perf_counter_ns() + int(BLOCK_S * 1e9)
    while not times or time.perf_counter_ns() < end:
        start = time.perf_counter_ns()
        session.run(None, sample)
        times.append(time.perf_counter_ns() - start)
    return int(statistics.median(times))


def _place_nodes(request: OptimizeRequest, optimized: OptimizedModel) -> OptimizedModel:
    """Add where the nodes run with the requested providers."""
    providers = (*((name, {}) for name in request.providers), CPU_PROVIDER)
    config = msgspec.structs.replace(DEFAULT, providers=providers)
    try:
        session = make_session(request.model_path, config, record_assignment=True)
    except Exception as error:  # noqa: BLE001  (a provider that does not work is a finding)
        return _add_missing(optimized, "assigned", make_failure(error, "load").message)
    optimized = msgspec.structs.replace(optimized, session_providers=tuple(session.get_providers()))
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return optimized
    try:
        assigned = tuple(
            AssignedNode(provider=part.ep_name, op=node.op_type, domain=node.domain, name=node.name)
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        )
    except Exception:  # noqa: BLE001  (the session works; only where its nodes run is not known)
        return optimized
    return msgspec.structs.replace(optimized, assigned=assigned)


if __name__ == "__main__":
    answer_parent(OptimizeRequest, optimize_model)
