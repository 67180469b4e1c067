"""The settings that ortune tunes, each once, as data.

Source of all entries: onnxruntime 1.31 (`onnxruntime_session_options_config_keys.h` and the documentation pages
"Thread management" and "Graph optimizations"), checked by running them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Where = Literal["session_options", "session_config", "run_config", "environment"]


class Knob(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of ONNX Runtime.

    Attributes:
        name: ONNX Runtime's own spelling.
        where: The field of `Config` that it goes to.
        default: ONNX Runtime's default value.
        pattern: Regular expression of its values. ONNX Runtime takes others too, and reads "true" as false.
        short: How it is called in a table.
        summary: What it does, in a sentence.
    """

    name: str
    where: Where
    default: int | str
    pattern: str
    short: str
    summary: str


INTRA_OP_NUM_THREADS = Knob(
    name="intra_op_num_threads",
    where="session_options",
    default=0,
    pattern=r"\d{1,4}",
    short="intra threads",
    summary="Threads that share the work of one operator; 0 makes one per physical core of the machine, pinned.",
)
INTRA_OP_THREAD_AFFINITIES = Knob(
    name="session.intra_op_thread_affinities",
    where="session_config",
    default="",
    pattern=r"(\d+(-\d+|(,\d+)*))(;\d+(-\d+|(,\d+)*))*",
    short="affinity",
    summary="CPUs that each intra-op worker is pinned to, from 1, one group a worker, separated by semicolons.",
)
INTRA_OP_ALLOW_SPINNING = Knob(
    name="session.intra_op.allow_spinning",
    where="session_config",
    default="1",
    pattern=r"[01]",
    short="intra spinning",
    summary="Whether intra-op workers burn CPU while they wait for work, instead of sleeping.",
)
DYNAMIC_BLOCK_BASE = Knob(
    name="session.dynamic_block_base",
    where="session_config",
    default="0",
    pattern=r"\d{1,4}",
    short="dynamic block base",
    summary="Splits an operator's work into blocks that shrink, so that late threads take less; 0 is off.",
)
EXECUTION_MODE = Knob(
    name="execution_mode",
    where="session_options",
    default="ORT_SEQUENTIAL",
    pattern=r"ORT_SEQUENTIAL|ORT_PARALLEL",
    short="execution mode",
    summary="Whether operators that do not depend on each other run side by side.",
)
INTER_OP_NUM_THREADS = Knob(
    name="inter_op_num_threads",
    where="session_options",
    default=0,
    pattern=r"\d{1,4}",
    short="inter threads",
    summary="Threads that run operators side by side under ORT_PARALLEL; 0 makes one per physical core.",
)
INTER_OP_ALLOW_SPINNING = Knob(
    name="session.inter_op.allow_spinning",
    where="session_config",
    default="1",
    pattern=r"[01]",
    short="inter spinning",
    summary="Whether inter-op workers burn CPU while they wait for work, instead of sleeping.",
)
GRAPH_OPTIMIZATION_LEVEL = Knob(
    name="graph_optimization_level",
    where="session_options",
    default="ORT_ENABLE_ALL",
    pattern=r"ORT_DISABLE_ALL|ORT_ENABLE_(BASIC|EXTENDED|LAYOUT|ALL)",
    short="optimization level",
    summary="How far the graph is rewritten when the session is created.",
)

KNOBS = {
    knob.name: knob
    for knob in (
        INTRA_OP_NUM_THREADS,
        INTRA_OP_THREAD_AFFINITIES,
        INTRA_OP_ALLOW_SPINNING,
        DYNAMIC_BLOCK_BASE,
        EXECUTION_MODE,
        INTER_OP_NUM_THREADS,
        INTER_OP_ALLOW_SPINNING,
        GRAPH_OPTIMIZATION_LEVEL,
    )
}
"""All knobs by name, in the order in which they are shown."""
