"""serving.properties of the Deep Java Library, which DJL Serving and OpenSearch read next to the model.

Source: `OrtModel.getSessionOptions` in engines/onnxruntime, and `BaseModelLoader.loadServingProperties` in api, of
https://github.com/deepjavalibrary/djl 0.37. ML Commons of OpenSearch unpacks the archive of a model into a folder that
DJL loads: `DLModel.loadModel` in ml-algorithms of https://github.com/opensearch-project/ml-commons.
"""

from __future__ import annotations

from ortune.export.target import Job, Target
from ortune.knobs import ids
from ortune.knobs.config import CPU, CUDA, TENSORRT

DEVICES = {TENSORRT: "TensorRT", "ROCMExecutionProvider": "ROCM", "CoreMLExecutionProvider": "CoreML"}
"""Values of `ortDevice`. Without it, DJL uses CUDA on a GPU."""

LEVELS = {
    "ORT_DISABLE_ALL": "NO_OPT",
    "ORT_ENABLE_BASIC": "BASIC_OPT",
    "ORT_ENABLE_EXTENDED": "EXTENDED_OPT",
    "ORT_ENABLE_ALL": "ALL_OPT",
}
MODES = {"ORT_SEQUENTIAL": "SEQUENTIAL", "ORT_PARALLEL": "PARALLEL"}

ONLY_ON = "DJL can only turn this on, which is the default"


def write(job: Job) -> str:
    """Return the file."""
    pending = job.pending
    options: dict[str, object] = {}
    intra, inter = (pending.take_option(name) for name in (ids.INTRA_OP_NUM_THREADS, ids.INTER_OP_NUM_THREADS))
    if intra is not None or inter is not None:
        # Until March 2025, DJL read the second one only together with the first one. 0 is ONNX Runtime's default.
        options |= {"interOpNumThreads": inter or 0, "intraOpNumThreads": intra or 0}
    if mode := pending.take_option(ids.EXECUTION_MODE):
        options["executionMode"] = MODES[str(mode)]
    if level := pending.take_option(ids.GRAPH_OPTIMIZATION_LEVEL):
        if level in LEVELS:
            options["optLevel"] = LEVELS[str(level)]
        else:
            pending.put_back(ids.GRAPH_OPTIMIZATION_LEVEL, "DJL does not have this level")
    for name in ("enable_mem_pattern", "enable_cpu_mem_arena"):
        if pending.take_option(name) is False:
            pending.put_back(name, ONLY_ON)
    _take_device(job, options)
    lines = ["engine=OnnxRuntime", *(f"option.{name}={value}" for name, value in options.items())]
    return "\n".join(lines)


def _take_device(job: Job, options: dict[str, object]) -> None:
    """Add the device. DJL sets no options of providers, and runs what they do not support on the CPU."""
    pending = job.pending
    for number, (name, _) in enumerate(pending.take_providers()):
        if name != CPU and (number > 0 or name not in {CUDA, *DEVICES}):
            pending.put_back_provider(name, "DJL does not add this provider" if number == 0 else "DJL adds only one")
            continue
        if name in DEVICES:
            options["ortDevice"] = DEVICES[name]
        pending.put_back_provider_options(name, "DJL sets no options of providers")


TARGET = Target(
    name="djl",
    summary="serving.properties of the Deep Java Library (DJL Serving, OpenSearch)",
    write=write,
    comment="#",
)
