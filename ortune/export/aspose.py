"""C# code for Aspose.OCR for .NET, which takes six settings in a static class.

Source: https://docs.aspose.com/ocr/net/onnx_options/
"""

from __future__ import annotations

from ortune.export.pending_settings import Value
from ortune.export.target import Job, Target

CLASS = "Aspose.OCR.OnnxRuntimeSessionOptions"

PROPERTIES = {
    "intra_op_num_threads": "IntraOpNumThreads",
    "inter_op_num_threads": "InterOpNumThreads",
    "execution_mode": "ExecutionMode",
    "graph_optimization_level": "GraphOptimizationLevel",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
    "enable_mem_pattern": "EnableMemoryPattern",
}

TYPES = {
    "execution_mode": "Aspose.OCR.ExecutionModeOnnx",
    "graph_optimization_level": "Aspose.OCR.GraphOptimizationLevelOnnx",
}

LEVELS = frozenset({"ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"})


def write(job: Job) -> str:
    """Return the code. Settings hold for all models of the library."""
    sheet = job.sheet
    lines = []
    # Aspose's documentation says that its own default runs operators side by side.
    for name, default in (("execution_mode", "ORT_SEQUENTIAL"), *((each, None) for each in PROPERTIES)):
        value = sheet.take_option(name)
        if name == "execution_mode" and default is None:
            continue
        value = default if value is None else value
        if value is None:
            continue
        if name == "graph_optimization_level" and value not in LEVELS:
            sheet.leave(name, value, "Aspose.OCR has no such level")
            continue
        lines.append(f"{CLASS}.{PROPERTIES[name]} = {_literal(name, value)};")
    return "\n".join(["// before the first recognition; for all models of the library", *lines])


def _literal(name: str, value: Value) -> str:
    if name in TYPES:
        return f"{TYPES[name]}.{value}"
    return str(value).lower() if isinstance(value, bool) else str(value)


TARGET = Target(name="aspose", summary="C# code for Aspose.OCR for .NET", write=write, comment="//")
