"""Reads a trace of ONNX Runtime's: how much of each run every operator and every node took.

A trace lists what ended, in order. Nodes of a subgraph come before the If or Loop that they belong to, which took as
long as all of them together; so what is counted for a node is its own time, without that of nodes inside.

ONNX Runtime counts whole microseconds.
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

US = 1000
"""Nanoseconds in a microsecond."""


class Arguments(msgspec.Struct, frozen=True):
    """What a trace says about a node."""

    op_name: str = ""
    provider: str = ""


class Event(msgspec.Struct, frozen=True):
    """An entry of a trace: its kind, its thread, when it began and how long it took, in µs."""

    cat: str
    name: str
    tid: int = 0
    ts: int = 0
    dur: int = 0
    args: Arguments = Arguments()


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's, or a node's, part in a run.

    Attributes:
        name: The operator's or the node's name.
        op: The operator.
        provider: Execution provider that runs it, without "ExecutionProvider".
        ns: Median of its time in a run, without that of nodes inside it.
        share: Part of the time of all operators together.
        calls: Calls in a run, on average.
    """

    name: str
    op: str
    provider: str
    ns: float
    share: float
    calls: float


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run goes.

    Attributes:
        n_runs: Runs that it rests on, warm-up left out.
        run_ns: Median time of a run, with the profiler on.
        inside_ns: Median of the time in a run in which some operator was at work.
        outside_ns: The rest: what ONNX Runtime itself takes.
        ops: Parts of the operators, the largest first.
        nodes: Parts of the nodes, the largest first.
    """

    n_runs: int
    run_ns: float
    inside_ns: float
    outside_ns: float
    ops: tuple[Part, ...]
    nodes: tuple[Part, ...]


class Span(msgspec.Struct):
    """A node that has ended, as long as it is not known which node it is inside of."""

    ts: int
    dur: int
    wrapped: bool = False


class RunTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One run, in µs: its time, the time in which some operator was at work, and each node's own time and calls."""

    total: int
    inside: int
    nodes: dict[tuple[str, str, str], int]
    calls: Counter[tuple[str, str, str]]


def read_trace(path: Path) -> list[Event]:
    """Read the events of a trace.

    Raises:
        MeasureError: It is not one.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Event])
    except (OSError, msgspec.MsgspecError) as error:
        raise MeasureError(f"{path} is not a trace that ONNX Runtime wrote whole: {error}.") from None


def split_runs(events: Iterable[Event]) -> list[RunTimes]:
    """Return what each run was made of."""
    runs: list[RunTimes] = []
    ended: dict[int, list[Span]] = defaultdict(list)
    times: dict[tuple[str, str, str], int] = defaultdict(int)
    calls: Counter[tuple[str, str, str]] = Counter()
    for event in events:
        spans = ended[event.tid]
        if event.cat == "Node" and event.args.op_name:
            inside = [span for span in spans if span.wrapped and span.ts >= event.ts]
            if inside:
                spans[:] = [span for span in spans if not (span.wrapped and span.ts >= event.ts)]
            key = (event.args.op_name, event.args.provider, event.name.removesuffix(NAME_SUFFIX))
            times[key] += max(event.dur - sum(span.dur for span in inside), 0)
            calls[key] += 1
            spans.append(Span(event.ts, event.dur))
        elif event.name == EXECUTED:
            # A graph has been executed: if a node follows that began before it, the graph was inside that node.
            for span in reversed(spans):
                if span.ts < event.ts:
                    break
                span.wrapped = True
        elif event.name == RUN:
            everything = [span for spans in ended.values() for span in spans]
            runs.append(RunTimes(total=event.dur, inside=_cover(everything), nodes=dict(times), calls=calls))
            ended.clear()
            times, calls = defaultdict(int), Counter()
    return runs


def _cover(spans: list[Span]) -> int:
    """Return the time in which at least one of the spans was open; with ORT_PARALLEL they overlap."""
    covered, end = 0, 0
    for span in sorted(spans, key=lambda span: span.ts):
        begin = max(span.ts, end)
        if span.ts + span.dur > begin:
            covered += span.ts + span.dur - begin
            end = span.ts + span.dur
    return covered


def break_down(runs: list[RunTimes]) -> Breakdown:
    """Return the medians over runs.

    Raises:
        MeasureError: There are none.
    """
    if not runs:
        raise MeasureError("The trace holds no run after the warm-up.", "Take fewer runs: --runs 3.")
    run_ns = US * statistics.median(run.total for run in runs)
    inside_ns = US * statistics.median(run.inside for run in runs)
    ops = _medians(runs, "op")
    # One total for both: medians of nodes do not add up to those of operators.
    total = sum(ns for ns, _ in ops.values())
    return Breakdown(
        n_runs=len(runs),
        run_ns=run_ns,
        inside_ns=inside_ns,
        outside_ns=max(run_ns - inside_ns, 0.0),
        ops=_parts(ops, total),
        nodes=_parts(_medians(runs, "node"), total),
    )


def _medians(runs: list[RunTimes], by: Literal["op", "node"]) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return each group's median time in a run, in ns, and its calls."""
    times: dict[tuple[str, ...], list[int]] = {}
    calls: Counter[tuple[str, ...]] = Counter()
    for number, run in enumerate(runs):
        for key, time in run.nodes.items():
            group = key[:2] if by == "op" else key
            times.setdefault(group, [0] * len(runs))[number] += time
            calls[group] += run.calls[key]
    return {group: (US * statistics.median(each), calls[group] / len(runs)) for group, each in times.items()}


def _parts(medians: dict[tuple[str, ...], tuple[float, float]], total: float) -> tuple[Part, ...]:
    parts = [
        Part(
            name=group[-1] if len(group) > 2 else group[0],
            op=group[0],
            provider=group[1].removesuffix("ExecutionProvider"),
            ns=ns,
            share=ns / (total or 1.0),
            calls=calls,
        )
        for group, (ns, calls) in medians.items()
    ]
    return tuple(sorted(parts, key=lambda part: (-part.ns, -part.calls, part.name)))
