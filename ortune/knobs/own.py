"""Choices that are no setting of ONNX Runtime's: which provider, which way of calling, whose thread pool.

Each is a field of `Config`.
"""

from __future__ import annotations

from functools import partial

from ortune.knobs.knob import Knob

_own = partial(Knob, where="config", kind="text", default="")

PROVIDERS = _own(
    name="providers",
    short="provider",
    summary="Execution provider that runs the model; what it cannot run falls to the CPU.",
    tuned="with --provider, where several are there",
    untunable="--provider says which to try",
    source="https://onnxruntime.ai/docs/execution-providers/",
)
IO_BINDING = _own(
    name="io_binding",
    kind="boolean",
    default=False,
    short="IO binding",
    summary="Calls run_with_iobinding, with inputs and outputs that stay where they are, instead of run.",
    tuned="on GPUs",
    note="It is no setting: the program must call the session in this way.",
    source="https://onnxruntime.ai/docs/performance/tune-performance/iobinding.html",
)
GLOBAL_THREAD_POOL = _own(
    name="global_thread_pool",
    short="global pool",
    summary="One pool of threads that all sessions of the process share, instead of one for each session.",
    tuned="with --sessions",
    untunable="--sessions says how many sessions there are to share it",
    note="onnxruntime.set_global_thread_pool_sizes works once in a process, before its first session; no affinity, no "
    "spinning of its own.",
    source="https://onnxruntime.ai/docs/performance/tune-performance/threading.html",
)

KNOBS = (PROVIDERS, IO_BINDING, GLOBAL_THREAD_POOL)
