"""config.pbtxt of Triton Inference Server's ONNX Runtime backend: the fields that hold settings of ONNX Runtime.

Source: README of triton-inference-server/onnxruntime_backend.
"""

from __future__ import annotations

from ortune.export.literals import quote_protobuf
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
"""Values of optimization.graph.level. Any other value means ORT_ENABLE_ALL."""

ACCELERATORS = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}


def write(job: Job) -> str:
    """Return the text, to be added to a model's config.pbtxt."""
    pending = job.pending
    parameters: dict[str, str] = {}
    for name, key in PARAMETERS.items():
        value = pending.take_option(name)
        if name == "execution_mode" and value is not None:
            value = value == "ORT_PARALLEL"
        if value is not None:
            parameters[key] = str(int(value))
    for name in ENTRIES:
        if (text := pending.take_entry(name)) is not None:
            parameters[name] = text
    for name in RUN_ENTRIES:
        if (text := pending.take_run_entry(name)) is not None:
            parameters[name] = text
    lines = ["# Add this to the config.pbtxt of the model.", 'backend: "onnxruntime"', *_optimization_lines(job)]
    for key, text in parameters.items():
        lines.append(f"parameters {{ key: {quote_protobuf(key)} value: {{ string_value: {quote_protobuf(text)} }} }}")
    for name in pending.config.session_config:
        pending.explain(name, "Triton does not pass on session configuration entries")
    for name in pending.config.environment:
        pending.explain(name, "set it in the environment of tritonserver")
    pending.explain("allocator", "preload its library in the environment of tritonserver")
    return "\n".join(lines)


def _optimization_lines(job: Job) -> list[str]:
    pending = job.pending
    inside: list[str] = []
    level = pending.take_option("graph_optimization_level")
    if level in LEVELS:
        inside.append(f"  graph {{ level: {LEVELS[str(level)]} }}")
    elif level not in {None, "ORT_ENABLE_ALL"}:
        pending.put_back("graph_optimization_level", "Triton does not have this level")
    accelerators = []
    for name, options in pending.take_providers():
        if name in ACCELERATORS:
            parameters = [
                f"        parameters {{ key: {quote_protobuf(option)} value: {quote_protobuf(value)} }}"
                for option, value in options.items()
            ]
            accelerators.append("\n".join(["      {", f'        name: "{ACCELERATORS[name]}"', *parameters, "      }"]))
        elif name != CPU:
            pending.put_back_provider(name, "Triton does not have this accelerator")
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
