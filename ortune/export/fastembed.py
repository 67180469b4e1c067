"""Python code for fastembed, which takes the thread count, the providers, and whether the CPU memory arena is used."""

from __future__ import annotations

from ortune.export.literals import PYTHON
from ortune.export.python import providers_argument
from ortune.export.target import Job, Target
from ortune.knobs.config import ENTRY_PREFIXES


def write(job: Job) -> str:
    """Return the code."""
    pending = job.pending
    if pending.config.session_options.get("graph_optimization_level") == "ORT_ENABLE_ALL":
        pending.take_option("graph_optimization_level")  # fastembed always sets this level
    threads = pending.take_common_thread_count("fastembed gives both pools the same size")
    arena = pending.take_option("enable_cpu_mem_arena")
    providers = []
    for name, options in pending.take_providers():
        if name in ENTRY_PREFIXES:
            reason = "ONNX Runtime reads it from a configuration entry of the session, and fastembed sets none"
            pending.put_back_provider_options(name, reason)
        providers.append((name, {} if name in ENTRY_PREFIXES else options))
    lines = [
        "from fastembed import TextEmbedding  # or the class for your task",
        "",
        "model = TextEmbedding(",
        '    "MODEL",  # the name of the model in fastembed',
        *([f"    threads={threads},"] if threads is not None else []),
        f"    {providers_argument(providers)},",
        *([f"    enable_cpu_mem_arena={PYTHON.literal(arena)},"] if arena is not None else []),
        ")",
    ]
    return "\n".join(lines)


TARGET = Target(name="fastembed", summary="Python code for fastembed", write=write)
