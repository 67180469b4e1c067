"""config.pbtxt of Triton Inference Server's ONNX Runtime backend: the fields that hold settings of ONNX Runtime.

Source: README of triton-inference-server/onnxruntime_backend.
"""

from __future__ import annotations

from ortune.export.comments import make_comment
from ortune.export.literals import quote_protobuf
from ortune.export.serving import make_text_of_cpus, report_grouping, report_pinning, report_replicas
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
    lines = ["# Add this to the config.pbtxt of the model.", 'backend: "onnxruntime"']
    if job.picked:
        lines += _deployment_lines(job)
    lines += _optimization_lines(job)
    for key, text in parameters.items():
        lines.append(f"parameters {{ key: {quote_protobuf(key)} value: {{ string_value: {quote_protobuf(text)} }} }}")
    for name in pending.config.session_config:
        pending.explain(name, "Triton does not pass on session configuration entries")
    for name in pending.config.environment:
        pending.explain(name, "set it in the environment of tritonserver")
    pending.explain("allocator", "preload its library in the environment of tritonserver")
    return "\n".join(lines)


def _deployment_lines(job: Job) -> list[str]:
    """Return the instances and the batches of a deployment. Triton runs all instances in one process."""
    pending, deployment = job.pending, job.deployment
    kind = "KIND_GPU" if pending.config.provider in ACCELERATORS else "KIND_CPU"
    if deployment.processes > 1:
        pending.report("processes", deployment.processes, "Triton runs all instances in one process")
    if deployment.clients > 1:
        pending.report(
            "callers",
            deployment.clients,
            "each instance makes one call at a time, with a session and threads of its own",
        )
    report_replicas(job)
    report_grouping(job)
    lines = []
    if parts := job.cpus:
        options = [
            f"--host-policy=part_{number},cpu-cores={make_text_of_cpus(cpus)}" for number, cpus in enumerate(parts, 1)
        ]
        lines.append(make_comment("#", f"Start: tritonserver {' '.join(options)}"))
        groups = [f'count: {deployment.clients} kind: {kind} host_policy: "part_{n + 1}"' for n in range(len(parts))]
    else:
        report_pinning(job)
        groups = [f"count: {deployment.n_callers} kind: {kind}"]
    lines += [f"instance_group {{ {group} }}" for group in groups]
    if batching := deployment.batching:
        lines += [
            f"max_batch_size: {batching.max_batch}",
            f"dynamic_batching {{ max_queue_delay_microseconds: {batching.max_delay_us} }}",
        ]
    elif pending.config.batch > 1:
        lines.append(f"max_batch_size: {pending.config.batch}")
    else:
        lines += [
            "# Without max_batch_size, Triton puts up to 4 requests into a call if the model allows that. To prevent",
            "# it, start: tritonserver --backend-config=onnxruntime,default-max-batch-size=1",
        ]
    return lines


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
