"""Looks at what ONNX Runtime makes of a model, in a child process: the optimised graphs, and how long it all takes.

`python -m ortune.doctor.optimize ANSWER` is the child. It reads a request from stdin and writes its answer to the
file ANSWER: ONNX Runtime prints to stdout.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.knobs.config import CPU_PROVIDER, DEFAULT, Config
from ortune.worker.child_process import Enter, answer_parent, ask_child
from ortune.worker.failure import Failure, make_failure

if TYPE_CHECKING:
    import onnxruntime

UNOPTIMIZED = "ORT_DISABLE_ALL"
EXTENDED_LEVEL = "ORT_ENABLE_EXTENDED"
DEFAULT_LEVEL = "ORT_ENABLE_ALL"

LEVELS = (EXTENDED_LEVEL, DEFAULT_LEVEL)
"""Levels whose graphs are looked at: the one without, and the one with layouts for this very CPU."""

EXTERNAL_BYTES = "1024"
"""Weights from this size on are written beside an optimised graph, and thrown away at once."""

WEIGHTS_FILE = "weights"

REPEATED_S = 10.0
"""A session that is created within this time is created twice, and the shorter time counts."""

RUN_S = 0.3
"""Time to run the model for."""

DEADLINE_S = 900.0

SPARE_FACTOR = 1.5
"""Room on the disk that writing an optimised graph needs, as a multiple of the model's size: layouts pad weights."""


class OptimizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at.

    Attributes:
        model_path: The ONNX file.
        model_bytes: Its size, with external data.
        folder: Where optimised graphs may be written.
        feed_path: Inputs to run it with, as `Feed.save` writes them, or None.
        providers: Execution providers whose share of the nodes is to be told; none but the CPU by default.
    """

    model_path: str
    model_bytes: int
    folder: str
    feed_path: str | None = None
    providers: tuple[str, ...] = ()


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """Where ONNX Runtime placed a node."""

    provider: str
    op: str
    domain: str = ""
    name: str = ""


class Optimized(msgspec.Struct, frozen=True, kw_only=True):
    """What ONNX Runtime makes of a model.

    Attributes:
        graphs: Path of the optimised graph of each level, without most of its weights.
        creation_ns: Time to create a session at a level.
        run_ns: Median time of a run at a level; empty where it was not run.
        session_providers: Providers of the session that `providers` was asked for.
        assigned: Where it placed each node, or None.
        missing: Why something is not known, by attribute.
    """

    graphs: dict[str, str] = {}
    creation_ns: dict[str, int] = {}
    run_ns: dict[str, int] = {}
    session_providers: tuple[str, ...] = ()
    assigned: tuple[Assigned, ...] | None = None
    missing: dict[str, str] = {}


def optimize(request: OptimizeRequest) -> Optimized | Failure:
    """Let a child look at the model. A Failure says why ONNX Runtime cannot load it."""
    return ask_child("ortune.doctor.optimize", request, Optimized, deadline_s=DEADLINE_S)


# The rest runs in the child.


def look(request: OptimizeRequest, enter: Enter) -> Optimized:
    """Create sessions of the model, one after another.

    Raises:
        Exception: Whatever onnxruntime raises for a model that it cannot load.
    """
    enter("load")
    missing: dict[str, str] = {}
    session, first_ns = _create(request.model_path, DEFAULT)
    del session
    run_ns: dict[str, int] = {}
    if request.feed_path is not None:
        enter("check")
        try:
            run_ns = _time_runs(request.model_path, Path(request.feed_path))
        except Exception as error:  # noqa: BLE001  (that it does not run on these inputs is told, and the rest goes on)
            missing["run_ns"] = make_failure(error, "check").message
    enter("load")
    creation_ns = _time_creation(request.model_path, first_ns)
    graphs: dict[str, str] = {}
    for level in LEVELS:
        try:
            graphs[level] = _write_graph(request, level)
        except Exception as error:  # noqa: BLE001  (not every model can be written; the rest goes on)
            missing["graphs"] = make_failure(error, "load").message
    optimized = Optimized(graphs=graphs, creation_ns=creation_ns, run_ns=run_ns, missing=missing)
    return _place(request, optimized) if request.providers else optimized


def _at_level(level: str) -> Config:
    return DEFAULT.with_setting("session_options", "graph_optimization_level", level)


def _create(
    model_path: str, config: Config, *, record_assignment: bool = False
) -> tuple[onnxruntime.InferenceSession, int]:
    import onnxruntime  # noqa: F401  (so that importing it does not count)

    from ortune.worker.session import make_session

    start = time.perf_counter_ns()
    session = make_session(model_path, config, record_assignment=record_assignment)
    return session, time.perf_counter_ns() - start


def _time_creation(model_path: str, first_ns: int) -> dict[str, int]:
    """Return how long it takes to create a session with and without optimisation."""
    times: dict[str, int] = {}
    for level in (UNOPTIMIZED, DEFAULT_LEVEL):
        # Some models hold operators that have no kernel until they are fused.
        with contextlib.suppress(Exception):
            times[level] = _create(model_path, _at_level(level))[1]
            if first_ns < REPEATED_S * 1e9:
                times[level] = min(times[level], _create(model_path, _at_level(level))[1])
    return times


def _time_runs(model_path: str, feed_path: Path) -> dict[str, int]:
    """Return the median time of a run at each level: the smaller of two blocks, one of each level in turn."""
    times: dict[str, int] = {}
    for level in (DEFAULT_LEVEL, EXTENDED_LEVEL) * 2:
        # One session at a time: threads that wait for work would slow the other one down.
        session, _ = _create(model_path, _at_level(level))
        run_ns = _time_run(session, feed_path)
        del session
        times[level] = min(run_ns, times.get(level, run_ns))
    return times


def _time_run(session: onnxruntime.InferenceSession, feed_path: Path) -> int:
    import statistics

    from ortune.workload.inputs import load_feed

    samples, _ = load_feed(feed_path)
    sample: dict[str, Any] = samples[0]
    session.run(None, sample)
    times: list[int] = []
    end = time.perf_counter_ns() + int(RUN_S * 1e9)
    while not times or time.perf_counter_ns() < end:
        start = time.perf_counter_ns()
        session.run(None, sample)
        times.append(time.perf_counter_ns() - start)
    return int(statistics.median(times))


def _write_graph(request: OptimizeRequest, level: str) -> str:
    """Write the optimised graph of a level, without its large weights, and return its path.

    Raises:
        OSError: There is no room for it.
        Exception: Whatever onnxruntime raises.
    """
    folder = Path(request.folder)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < SPARE_FACTOR * request.model_bytes:
        raise OSError(f"{folder} has only {free_bytes / 1e6:.0f} MB free; set TMPDIR to a folder with more room")
    path = folder / f"{level}.onnx"
    config = (
        _at_level(level)
        .with_setting("session_options", "optimized_model_filepath", str(path))
        # Without it, ONNX Runtime warns that a graph of the highest level fits this CPU alone.
        .with_setting("session_options", "log_severity_level", 3)
        .with_setting("session_config", "session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
        .with_setting(
            "session_config", "session.optimized_model_external_initializers_min_size_in_bytes", EXTERNAL_BYTES
        )
    )
    try:
        _create(request.model_path, config)
    finally:
        (folder / WEIGHTS_FILE).unlink(missing_ok=True)
    return str(path)


def _place(request: OptimizeRequest, optimized: Optimized) -> Optimized:
    """Add where the nodes go when other providers are there."""
    providers = (*((name, {}) for name in request.providers), CPU_PROVIDER)
    config = msgspec.structs.replace(DEFAULT, providers=providers)
    try:
        session, _ = _create(request.model_path, config, record_assignment=True)
        if not hasattr(session, "get_provider_graph_assignment_info"):
            raise RuntimeError("this onnxruntime is too old to tell where it places nodes")
        assigned = tuple(
            Assigned(provider=part.ep_name, op=node.op_type, domain=node.domain, name=node.name)
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        )
    except Exception as error:  # noqa: BLE001  (what another provider refuses is a finding)
        missing = {**optimized.missing, "assigned": make_failure(error, "load").message}
        return msgspec.structs.replace(optimized, missing=missing)
    return msgspec.structs.replace(optimized, assigned=assigned, session_providers=tuple(session.get_providers()))


def main() -> None:
    """Answer the parent."""
    answer_parent(OptimizeRequest, look)


if __name__ == "__main__":
    main()
