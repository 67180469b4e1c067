"""Reads the traces of ONNX Runtime's profiler: the time of each operator and node in a run.

A trace lists events in the order in which they ended. The nodes of a subgraph come before the If or Loop that contains
them, and its duration includes theirs. A node is therefore counted with its own time, without that of nodes inside it.

ONNX Runtime reports whole microseconds.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from ortune.errors import MeasureError

NAME_SUFFIX = "_kernel_time"
EXECUTED = "SequentialExecutor::Execute"
RUN = "model_run"

NS_PER_US = 1000


class EventArguments(msgspec.Struct, frozen=True):
    """The operator and the execution provider of a node's event."""

    op_name: str = ""
    provider: str = ""


class TraceEvent(msgspec.Struct, frozen=True):
    """An event of a trace: category, name, thread, begin and duration, both in µs. Names are those of the file."""

    cat: str
    name: str
    tid: int = 0
    ts: int = 0
    dur: int = 0
    args: EventArguments = EventArguments()


class TimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """The time of an operator or a node in a run.

    Attributes:
        name: Name of the operator or node.
        op: The operator.
        provider: Execution provider that runs it, without "ExecutionProvider".
        ns: Median time per run, without that of nodes inside it.
        share: Fraction of the time of all operators.
        calls: Mean calls per run.
    """

    name: str
    op: str
    provider: str
    ns: float
    share: float
    calls: float


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a run, by operator and by node.

    Attributes:
        n_runs: Runs after the warm-up.
        run_ns: Median time of a run, with the profiler on.
        inside_ns: Median time of a run in which at least one operator runs.
        outside_ns: The rest: overhead of ONNX Runtime.
        ops: Operators, the slowest first.
        nodes: Nodes, the slowest first.
    """

    n_runs: int
    run_ns: float
    inside_ns: float
    outside_ns: float
    ops: tuple[TimeShare, ...]
    nodes: tuple[TimeShare, ...]


class Span(msgspec.Struct):
    """Begin and duration of a node, in µs, and whether the graph that contains it has ended."""

    ts: int
    dur: int
    graph_ended: bool = False


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one run.

    Attributes:
        total_us: Time of the run.
        inside_us: Time in which at least one operator runs.
        nodes_us: Own time of each node, by operator, provider and name.
        calls: Calls of each node, by the same key.
    """

    total_us: int
    inside_us: int
    nodes_us: dict[tuple[str, str, str], int]
    calls: Counter[tuple[str, str, str]]


def read_trace(path: Path) -> list[TraceEvent]:
    """Read the events of a trace.

    Raises:
        MeasureError: The file is not a complete trace.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[TraceEvent])
    except (OSError, msgspec.MsgspecError) as error:
        raise MeasureError(f"{path} is not a complete trace of ONNX Runtime: {error}.") from None


def split_runs(events: Iterable[TraceEvent]) -> list[RunTimes]:
    """Return the times of each run that the trace contains completely."""
    runs: list[RunTimes] = []
    ended: dict[int, list[Span]] = defaultdict(list)
    times: dict[tuple[str, str, str], int] = defaultdict(int)
    calls: Counter[tuple[str, str, str]] = Counter()
    for event in events:
        spans = ended[event.tid]
        if event.cat == "Node" and event.args.op_name:
            inside = [span for span in spans if span.graph_ended and span.ts >= event.ts]
            if inside:
                spans[:] = [span for span in spans if not (span.graph_ended and span.ts >= event.ts)]
            key = (event.args.op_name, event.args.provider, event.name.removesuffix(NAME_SUFFIX))
            times[key] += max(event.dur - sum(span.dur for span in inside), 0)
            calls[key] += 1
            spans.append(Span(event.ts, event.dur))
        elif event.name == EXECUTED:
            # The end of a graph. If a node ends later but began earlier, the graph is a subgraph of that node.
            for span in reversed(spans):
                if span.ts < event.ts:
                    break
                span.graph_ended = True
        elif event.name == RUN:
            everything = [span for spans in ended.values() for span in spans]
            runs.append(RunTimes(total_us=event.dur, inside_us=_cover(everything), nodes_us=dict(times), calls=calls))
            ended.clear()
            times, calls = defaultdict(int), Counter()
    return runs


def _cover(spans: list[Span]) -> int:
    """Return the time that at least one span covers, in µs; with ORT_PARALLEL, spans overlap."""
    covered, end = 0, 0
    for span in sorted(spans, key=lambda span: span.ts):
        begin = max(span.ts, end)
        if span.ts + span.dur > begin:
            covered += span.ts + span.dur - begin
            end = span.ts + span.dur
    return covered


def break_down(runs: list[RunTimes]) -> Breakdown:
    """Return the medians over all runs.

    Raises:
        MeasureError: There are no runs.
    """
    if not runs:
        raise MeasureError("The trace contains no complete run after the warm-up.", "Profile fewer runs: {runs=3}.")
    run_ns = NS_PER_US * statistics.median(run.total_us for run in runs)
    inside_ns = NS_PER_US * statistics.median(run.inside_us for run in runs)
    ops = _medians(runs, "op")
    # One total for both: the medians of nodes do not add up to those of operators.
    total_ns = sum(ns for ns, _ in ops.values())
    return Breakdown(
        n_runs=len(runs),
        run_ns=run_ns,
        inside_ns=inside_ns,
        outside_ns=max(run_ns - inside_ns, 0.0),
        ops=_shares(ops, total_ns),
        nodes=_shares(_medians(runs, "node"), total_ns),
    )


def _medians(runs: list[RunTimes], by: Literal["op", "node"]) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return the median time per run, in ns, and the mean calls per run of each operator or node."""
    times: dict[tuple[str, ...], list[int]] = {}
    calls: Counter[tuple[str, ...]] = Counter()
    for number, run in enumerate(runs):
        for key, time in run.nodes_us.items():
            group = key[:2] if by == "op" else key
            times.setdefault(group, [0] * len(runs))[number] += time
            calls[group] += run.calls[key]
    return {
        group: (NS_PER_US * statistics.median(durations), calls[group] / len(runs))
        for group, durations in times.items()
    }


def _shares(medians: dict[tuple[str, ...], tuple[float, float]], total_ns: float) -> tuple[TimeShare, ...]:
    """Return the time shares, the largest first."""
    shares = [
        TimeShare(
            name=group[-1] if len(group) > 2 else group[0],
            op=group[0],
            provider=group[1].removesuffix("ExecutionProvider"),
            ns=ns,
            share=ns / (total_ns or 1.0),
            calls=calls,
        )
        for group, (ns, calls) in medians.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.ns, -share.calls, share.name)))
