"""Python code for fastembed, which takes threads, providers and whether there is an arena."""

from __future__ import annotations

from ortune.export.python import providers_text
from ortune.export.target import Job, Target


def write(job: Job) -> str:
    """Return the code."""
    sheet = job.sheet
    if sheet.config.session_options.get("graph_optimization_level") == "ORT_ENABLE_ALL":
        sheet.take_option("graph_optimization_level")  # that is what it always takes
    lines = ["from fastembed import TextEmbedding  # or the class for your task", ""]
    threads, inter = sheet.take_option("intra_op_num_threads"), sheet.take_option("inter_op_num_threads")
    if inter is not None and inter != threads:
        sheet.leave("inter_op_num_threads", inter, "fastembed gives both pools the same size")
    if threads is None:
        sheet.explain("inter_op_num_threads", "fastembed gives both pools the same size")
    arguments = [f"threads={threads}"] if threads is not None else []
    arguments.append(f"providers=[{providers_text(sheet.take_providers())}]")
    arena = sheet.take_option("enable_cpu_mem_arena")
    if arena is not None:
        arguments.append(f"enable_cpu_mem_arena={arena}")
    lines += ['model = TextEmbedding("MODEL",  # its name in fastembed', *(f"    {each}," for each in arguments), ")"]
    return "\n".join(lines)


TARGET = Target(name="fastembed", summary="Python code for fastembed", write=write)
