"""config.pbtxt of Triton Inference Server's ONNX Runtime backend: the fields that hold settings of ONNX Runtime.

Source: src/onnxruntime.cc of triton-inference-server/onnxruntime_backend (commit 00fd3e8), and its README.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ortune.export.checks import read_number
from ortune.export.comments import make_comment
from ortune.export.literals import quote_protobuf
from ortune.export.serving import (
    report_cpus,
    report_grouping,
    report_replicas,
    report_sharing,
)
from ortune.export.target import Job, Target
from ortune.host import Cpus
from ortune.host.topology import list_ranges
from ortune.knobs.config import CPU, CUDA, TENSORRT, alias_of
from ortune.knobs.plugin_options import OPENVINO

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


PRECISIONS = {"trt_int8_enable": "INT8", "trt_bf16_enable": "BF16", "trt_fp16_enable": "FP16"}
"""Options of TensorRT that are values of precision_mode. If several are set, the first is written: models with
quantized operators need INT8."""

BOOLEAN = re.compile("True|true|False|false|0|1")
INTEGER = re.compile(r"-?[0-9]{1,9}")
SIZE = re.compile(r"[0-9]{1,19}")
TEXT = re.compile(r"(?s:.*)")

TENSORRT_PARAMETERS: Mapping[str, tuple[str, re.Pattern[str]]] = {
    "trt_max_workspace_size": ("max_workspace_size_bytes", SIZE),
    "trt_int8_calibration_table_name": ("int8_calibration_table_name", TEXT),
    "trt_int8_use_native_calibration_table": ("int8_use_native_calibration_table", BOOLEAN),
    **{
        f"trt_{name}": (f"trt_{name}", INTEGER)
        for name in (
            "max_partition_iterations",
            "min_subgraph_size",
            "dla_core",
            "builder_optimization_level",
            "auxiliary_streams",
            "ep_context_embed_mode",
        )
    },
    **{
        f"trt_{name}": (f"trt_{name}", BOOLEAN)
        for name in (
            "dla_enable",
            "engine_cache_enable",
            "dump_subgraphs",
            "force_sequential_engine_build",
            "context_memory_sharing_enable",
            "layer_norm_fp32_fallback",
            "timing_cache_enable",
            "force_timing_cache",
            "detailed_build_log",
            "build_heuristics_enable",
            "sparsity_enable",
            "dump_ep_context_model",
        )
    },
    **{
        f"trt_{name}": (f"trt_{name}", TEXT)
        for name in (
            "engine_cache_path",
            "engine_cache_prefix",
            "timing_cache_path",
            "tactic_sources",
            "extra_plugin_lib_paths",
            "profile_min_shapes",
            "profile_max_shapes",
            "profile_opt_shapes",
            "ep_context_file_path",
        )
    },
}
"""Options of TensorRT, each with the parameter of the accelerator and the values that Triton accepts.

A model with any other parameter, or with another value, does not load.
"""

CUDA_NUMBERS: Mapping[str, Mapping[str, str]] = {
    "cudnn_conv_algo_search": {"EXHAUSTIVE": "0", "HEURISTIC": "1", "DEFAULT": "2"},
    "arena_extend_strategy": {"kNextPowerOfTwo": "0", "kSameAsRequested": "1"},
}
"""Options of CUDA that Triton takes as numbers."""

OWN_CUDA_PARAMETERS = (*CUDA_NUMBERS, "gpu_mem_limit", "do_copy_in_default_stream")
"""Options of CUDA that must be parameters of the model. Triton replaces those of the accelerator with defaults."""


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
    optimization = _optimization_lines(job, parameters)
    device = _take_device(job)
    # The CPU needs a group, too: without one, Triton uses all GPUs.
    lines += _deployment_lines(job, device) if job.picked else [f"instance_group {{ {device} }}"]
    lines += optimization
    for key, text in parameters.items():
        lines.append(f"parameters {{ key: {quote_protobuf(key)} value: {{ string_value: {quote_protobuf(text)} }} }}")
    for name in pending.config.session_config:
        pending.explain(name, "Triton does not pass on session configuration entries")
    pending.explain(
        "global_thread_pool",
        "start tritonserver with --backend-config=onnxruntime,NAME=VALUE: enable-global-threadpool=1, "
        "intra_op_thread_count and inter_op_thread_count; this applies to all models",
    )
    for name in pending.config.environment:
        pending.explain(name, "set it in the environment of tritonserver")
    pending.explain("allocator", "preload its library in the environment of tritonserver")
    return "\n".join(lines)


def _take_device(job: Job) -> str:
    """Return the fields of an instance group that select the device. Accelerators have no such parameter."""
    providers = [(name, options) for name, options in job.pending.config.providers if name in {CUDA, TENSORRT}]
    if job.pending.config.provider not in {CUDA, TENSORRT}:
        return "kind: KIND_CPU"
    name, options = providers[0]
    device = read_number(f"{alias_of(name)}.device_id", options.get("device_id", "0"))
    for other, own in providers[1:]:
        if own.get("device_id", str(device)) != str(device):
            job.pending.put_back(f"{alias_of(other)}.device_id", "all providers of an instance run on its GPU")
    return f"kind: KIND_GPU gpus: [{device}]"


def _deployment_lines(job: Job, device: str) -> list[str]:
    """Return the instances and the batches of a deployment. Triton runs all instances in one process.

    Args:
        job: The export.
        device: Fields that select the device.
    """
    pending, deployment = job.pending, job.deployment
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
    report_sharing(job)
    lines = []
    if parts := job.cpus:
        options = [
            f"--host-policy=part_{number},cpu-cores={make_text_of_ranges(cpus)}" for number, cpus in enumerate(parts, 1)
        ]
        lines.append(make_comment("#", f"Start: tritonserver {' '.join(options)}"))
        groups = [f'count: {deployment.clients} {device} host_policy: "part_{n + 1}"' for n in range(len(parts))]
    else:
        report_cpus(job)
        groups = [f"count: {deployment.n_callers} {device}"]
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


def make_text_of_ranges(cpus: Cpus) -> str:
    """Return CPUs as Triton reads them: in ranges only, such as `0-1,4-4`.

    Source: `SetNumaThreadAffinity` in `src/numa_utils.cc` of triton-inference-server/core.
    """
    return ",".join(f"{first}-{last}" for first, last in list_ranges(sorted(cpus)))


def _optimization_lines(job: Job, parameters: dict[str, str]) -> list[str]:
    """Return the field `optimization`, and add to the parameters of the model."""
    pending = job.pending
    inside: list[str] = []
    level = pending.take_option("graph_optimization_level")
    if level in LEVELS:
        inside.append(f"  graph {{ level: {LEVELS[str(level)]} }}")
    elif level not in {None, "ORT_ENABLE_ALL"}:
        pending.put_back("graph_optimization_level", "Triton does not have this level")
    on_gpu: list[str] = []
    on_cpu: list[str] = []
    for name, options in pending.take_providers():
        if name in {CUDA, TENSORRT} and on_cpu:
            pending.put_back_provider(name, "Triton adds GPU providers before OpenVINO")
        elif name == TENSORRT:
            on_gpu.append(_make_accelerator("tensorrt", _take_tensorrt(job, options)))
        elif name == CUDA:
            own = _take_cuda(job, options, parameters)
            # An instance on a GPU has CUDA anyway. Older releases do not have this accelerator.
            on_gpu += [_make_accelerator("cuda", own)] if own else []
        elif name == OPENVINO and options.get("device_type", "CPU") == "CPU":
            reason = "Triton passes only the device CPU to OpenVINO"
            pending.put_back_provider_options(name, reason, supported={"device_type"})
            on_cpu.append(_make_accelerator("openvino", {}))
        elif name == OPENVINO:
            pending.put_back_provider(name, "Triton runs OpenVINO on the CPU only")
        elif name != CPU:
            pending.put_back_provider(name, "Triton does not have this accelerator")
    groups = [
        line
        for kind, accelerators in (("gpu", on_gpu), ("cpu", on_cpu))
        if accelerators
        for line in (f"    {kind}_execution_accelerator: [", ",\n".join(accelerators), "    ]")
    ]
    if groups:
        inside += ["  execution_accelerators {", *groups, "  }"]
    return ["optimization {", *inside, "}"] if inside else []


def _make_accelerator(name: str, parameters: Mapping[str, str]) -> str:
    lines = [
        f"        parameters {{ key: {quote_protobuf(key)} value: {quote_protobuf(value)} }}"
        for key, value in parameters.items()
    ]
    return "\n".join(["      {", f'        name: "{name}"', *lines, "      }"])


def _take_tensorrt(job: Job, options: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of TensorRT. There is at least one: without any, Triton runs it on the first GPU."""
    pending, alias = job.pending, alias_of(TENSORRT)
    enabled = [name for name in PRECISIONS if options.get(name) in {"1", "True", "true"}]
    parameters = {"precision_mode": PRECISIONS[enabled[0]] if enabled else "FP32"}
    for name, value in options.items():
        if name in enabled[1:]:
            pending.put_back(
                f"{alias}.{name}", f"Triton accepts one precision, and {parameters['precision_mode']} is set"
            )
        elif name in TENSORRT_PARAMETERS and TENSORRT_PARAMETERS[name][1].fullmatch(value):
            parameters[TENSORRT_PARAMETERS[name][0]] = value
        elif name in TENSORRT_PARAMETERS or (name in PRECISIONS and not BOOLEAN.fullmatch(value)):
            pending.put_back(f"{alias}.{name}", "Triton does not accept this value")
        elif name not in {*PRECISIONS, "device_id"}:
            pending.put_back(f"{alias}.{name}", "Triton does not have this option of TensorRT")
    return parameters


def _take_cuda(job: Job, options: Mapping[str, str], parameters: dict[str, str]) -> dict[str, str]:
    """Return the parameters of CUDA, and add to those of the model what must be there."""
    own: dict[str, str] = {}
    for name, value in options.items():
        if name in CUDA_NUMBERS and value not in CUDA_NUMBERS[name]:
            job.pending.put_back(f"{alias_of(CUDA)}.{name}", "Triton does not accept this value")
        elif name in OWN_CUDA_PARAMETERS:
            parameters[name] = CUDA_NUMBERS.get(name, {}).get(value, value)
        elif name == "use_ep_level_unified_stream" and not BOOLEAN.fullmatch(value):
            job.pending.put_back(f"{alias_of(CUDA)}.{name}", "Triton does not accept this value")
        elif name != "device_id":
            own[name] = value
    return own


TARGET = Target(name="triton", summary="config.pbtxt of Triton's ONNX Runtime backend", write=write)
