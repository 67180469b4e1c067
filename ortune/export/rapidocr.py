"""config.yaml of RapidOCR 3: the part for ONNX Runtime.

Source: config.yaml and inference_engine/onnxruntime of the package rapidocr 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortune.export.checks import NUMBER
from ortune.export.literals import YAML
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

UNSET = -1
"""The value that stands for ONNX Runtime's default thread count."""

PROVIDERS = {
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "CANNExecutionProvider": "cann",
    "CoreMLExecutionProvider": "coreml",
}
"""Providers with the word for them in the keys `use_...` and `..._ep_cfg`. All options reach ONNX Runtime."""

ONE_PROVIDER = "RapidOCR takes one provider: CUDA, DML, CANN, CoreML or the CPU"


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
    providers = pending.take_providers()
    chosen = next((name for name, _ in providers if name in PROVIDERS), CPU)
    lines += [f"    use_{word}: {YAML.literal(name == chosen)}" for name, word in PROVIDERS.items()]
    for name, options in providers:
        if name == chosen and name != CPU:
            lines += _option_lines(job, name, options)
        elif name != CPU:
            pending.put_back_provider(name, ONE_PROVIDER)
    return "\n".join(lines)


def _option_lines(job: Job, name: str, options: Mapping[str, str]) -> list[str]:
    """Return the options of a provider: a mapping, even if it is empty."""
    plain = {option: value for option, value in options.items() if "${" not in value}
    job.pending.put_back_provider_options(name, "RapidOCR reads ${...} in its files as a variable", supported=plain)
    key = f"    {PROVIDERS[name]}_ep_cfg:"
    if not plain:
        return [f"{key} {{}}"]
    values = {option: value if NUMBER.fullmatch(value) else YAML.quote(value) for option, value in plain.items()}
    return [key, *(f"      {option}: {value}" for option, value in values.items())]


TARGET = Target(name="rapidocr", summary="config.yaml of RapidOCR 3", write=write)
