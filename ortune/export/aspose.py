"""C# code for Aspose.OCR for .NET, which has six settings in a static class.

Source: https://docs.aspose.com/ocr/net/onnx_options/
"""

from __future__ import annotations

from ortune.export.csharp import PROPERTIES, TYPES
from ortune.export.literals import CSHARP, LEVELS_WITHOUT_LAYOUT
from ortune.export.target import Job, Target

CLASS = "Aspose.OCR.OnnxRuntimeSessionOptions"

OPTIONS = (
    "execution_mode",
    "intra_op_num_threads",
    "inter_op_num_threads",
    "graph_optimization_level",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)
"""Options whose properties and types are named as in Microsoft.ML.OnnxRuntime."""


def write(job: Job) -> str:
    """Return the code."""
    pending = job.pending
    lines = ["// Set these before the first recognition. They apply to all models of Aspose.OCR."]
    for name in OPTIONS:
        value = pending.take_option(name)
        if name == "execution_mode" and value is None:
            # According to its documentation, the default of Aspose.OCR is ORT_PARALLEL.
            value = "ORT_SEQUENTIAL"
        if value is None:
            continue
        if name == "graph_optimization_level" and value not in LEVELS_WITHOUT_LAYOUT:
            pending.put_back(name, "Aspose.OCR does not have this level")
            continue
        text = f"Aspose.OCR.{TYPES[name]}Onnx.{value}" if name in TYPES else CSHARP.literal(value)
        lines.append(f"{CLASS}.{PROPERTIES[name]} = {text};")
    return "\n".join(lines)


TARGET = Target(name="aspose", summary="C# code for Aspose.OCR for .NET", write=write, comment="//")
