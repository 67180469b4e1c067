"""config.yaml of RapidOCR 3: its engine's part for ONNX Runtime.

Source: python/rapidocr/config.yaml and inference_engine/onnxruntime of https://github.com/RapidAI/RapidOCR.
"""

from __future__ import annotations

from ortune.export.literals import literal
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

UNSET = -1
"""What RapidOCR takes as ONNX Runtime's default thread count."""

CUDA_OPTIONS = (
    "device_id",
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "do_copy_in_default_stream",
    "gpu_mem_limit",
)


def write(job: Job) -> str:
    """Return the part of the file, to be put in place of the same part: RapidOCR wants the file whole."""
    sheet = job.sheet
    if sheet.config.session_options.get("graph_optimization_level") == "ORT_ENABLE_ALL":
        sheet.take_option("graph_optimization_level")  # that is what it always takes
    lines = [
        "# RapidOCR drops thread counts above os.cpu_count(), and optimises at ORT_ENABLE_ALL.",
        "EngineConfig:",
        "  onnxruntime:",
    ]
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        value = sheet.take_option(name)
        lines.append(f"    {name}: {UNSET if value is None else value}")
    # RapidOCR's own default is false.
    arena = sheet.take_option("enable_cpu_mem_arena")
    lines.append(f"    enable_cpu_mem_arena: {literal(True if arena is None else arena)}")
    lines += ["    cpu_ep_cfg:", '      arena_extend_strategy: "kNextPowerOfTwo"']
    (name, options), *others = sheet.take_providers()
    lines.append(f"    use_cuda: {literal(name == 'CUDAExecutionProvider')}")
    if name == "CUDAExecutionProvider":
        lines.append("    cuda_ep_cfg:")
        for option, value in {"device_id": "0", **options}.items():
            if option in CUDA_OPTIONS:
                lines.append(f"      {option}: {value if value.isdigit() else literal(value)}")
            else:
                sheet.leave(f"cuda.{option}", value, "not among RapidOCR's options of CUDA")
    elif name != CPU:
        sheet.leave_provider(name, "RapidOCR does not have it")
    for other, _ in others:
        if other != CPU:
            sheet.leave_provider(other, "RapidOCR takes one provider")
    for setting in sheet.config.settings:
        sheet.explain(setting, "RapidOCR has no key for it")
    return "\n".join(lines)


TARGET = Target(name="rapidocr", summary="config.yaml of RapidOCR 3", write=write)
