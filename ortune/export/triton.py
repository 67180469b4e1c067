"""config.pbtxt of Triton Inference Server's ONNX Runtime backend: the parts of it that ortune knows.

Source: README of triton-inference-server/onnxruntime_backend.
"""

from __future__ import annotations

import json

from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

PARAMETERS = {
    "intra_op_num_threads": "intra_op_thread_count",
    "inter_op_num_threads": "inter_op_thread_count",
    "execution_mode": "execution_mode",
    "enable_cpu_mem_arena": "enable_mem_arena",
    "enable_mem_pattern": "enable_mem_pattern",
}

ENTRIES = ("session.use_device_allocator_for_initializers",)
RUN_ENTRIES = ("memory.enable_memory_arena_shrinkage",)

LEVELS = {"ORT_ENABLE_BASIC": -1, "ORT_ENABLE_EXTENDED": 1, "ORT_DISABLE_ALL": 2}
"""Values of optimization.graph.level; anything else means all."""

ACCELERATORS = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}


def write(job: Job) -> str:
    """Return the text, to be added to a model's config.pbtxt."""
    sheet = job.sheet
    parameters: dict[str, str] = {}
    for name, key in PARAMETERS.items():
        value = sheet.take_option(name)
        if name == "execution_mode" and value is not None:
            value = 1 if value == "ORT_PARALLEL" else 0
        if value is not None:
            parameters[key] = str(int(value))
    for name in ENTRIES:
        if (text := sheet.take_entry(name)) is not None:
            parameters[name] = text
    for name in RUN_ENTRIES:
        if (text := sheet.take_run_entry(name)) is not None:
            parameters[name] = text
    lines = ['backend: "onnxruntime"']
    lines += _optimization(job)
    for key, text in parameters.items():
        lines.append(f"parameters {{ key: {json.dumps(key)} value: {{ string_value: {json.dumps(text)} }} }}")
    for name in sheet.config.session_config:
        sheet.explain(name, "Triton hands no configuration entries on")
    for name in sheet.config.environment:
        sheet.explain(name, "set it for tritonserver")
    return "\n".join(lines)


def _optimization(job: Job) -> list[str]:
    sheet = job.sheet
    inside: list[str] = []
    level = sheet.take_option("graph_optimization_level")
    if level in LEVELS:
        inside.append(f"  graph {{ level: {LEVELS[str(level)]} }}")
    elif level not in {None, "ORT_ENABLE_ALL"}:
        sheet.leave("graph_optimization_level", str(level), "Triton has no such level")
    accelerators = []
    for name, options in sheet.take_providers():
        if name in ACCELERATORS:
            texts = [
                f"        parameters {{ key: {json.dumps(option)} value: {json.dumps(value)} }}"
                for option, value in options.items()
            ]
            accelerators.append("\n".join(["      {", f'        name: "{ACCELERATORS[name]}"', *texts, "      }"]))
        elif name != CPU:
            sheet.leave_provider(name, "Triton has no such accelerator")
    if accelerators:
        inside += [
            "  execution_accelerators {",
            "    gpu_execution_accelerator: [",
            ",\n".join(accelerators),
            "    ]",
            "  }",
        ]
    return ["optimization {", *inside, "}"] if inside else []


TARGET = Target(name="triton", summary="config.pbtxt of Triton's ONNX Runtime backend", write=write)
