"""config.yaml of RapidOCR 3: the part for ONNX Runtime.

Source: python/rapidocr/config.yaml and inference_engine/onnxruntime of https://github.com/RapidAI/RapidOCR.
"""

from __future__ import annotations

from ortune.export.checks import NUMBER
from ortune.export.literals import YAML
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

UNSET = -1
"""The value that stands for ONNX Runtime's default thread count."""

CUDA = "CUDAExecutionProvider"
CUDA_OPTIONS = (
    "device_id",
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "do_copy_in_default_stream",
    "gpu_mem_limit",
)

ONE_PROVIDER = "RapidOCR takes one provider: CUDA or the CPU"


def write(job: Job) -> str:
    """Return the part of the file."""
    pending = job.pending
    if pending.config.session_options.get("graph_optimization_level") == "ORT_ENABLE_ALL":
        pending.take_option("graph_optimization_level")  # RapidOCR always sets this level
    lines = [
        "# Replace this part of RapidOCR's config.yaml: RapidOCR needs the complete file.",
        "# RapidOCR ignores thread counts above os.cpu_count(), and always uses ORT_ENABLE_ALL.",
        "EngineConfig:",
        "  onnxruntime:",
    ]
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        value = pending.take_option(name)
        lines.append(f"    {name}: {UNSET if value is None else value}")
    # The default of RapidOCR is false.
    arena = pending.take_option("enable_cpu_mem_arena")
    lines.append(f"    enable_cpu_mem_arena: {YAML.literal(True if arena is None else arena)}")
    lines += ["    cpu_ep_cfg:", '      arena_extend_strategy: "kNextPowerOfTwo"']
    (name, options), *others = pending.take_providers()
    lines.append(f"    use_cuda: {YAML.literal(name == CUDA)}")
    if name == CUDA:
        lines.append("    cuda_ep_cfg:")
        for option, value in {"device_id": "0", **options}.items():
            if option in CUDA_OPTIONS:
                lines.append(f"      {option}: {value if NUMBER.fullmatch(value) else YAML.quote(value)}")
        pending.put_back_provider_options(name, "RapidOCR does not have this option of CUDA", supported=CUDA_OPTIONS)
    elif name != CPU:
        pending.put_back_provider(name, ONE_PROVIDER)
    for other, _ in others:
        if other != CPU:
            pending.put_back_provider(other, ONE_PROVIDER)
    return "\n".join(lines)


TARGET = Target(name="rapidocr", summary="config.yaml of RapidOCR 3", write=write)
