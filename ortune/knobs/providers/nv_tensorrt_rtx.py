"""The TensorRT RTX provider, a plugin. It and TensorRT exclude each other."""

from __future__ import annotations

from functools import partial

from ortune.host import Host
from ortune.knobs.knob import Knob
from ortune.knobs.providers.interface import ExecutionProvider, Found, bind, capture
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

NAME = "NvTensorRTRTXExecutionProvider"
ALIAS = "nv_tensorrt_rtx"
SOURCE = "https://nvidia.github.io/TensorRT-RTX-EP-ABI/_generated/provider-options.html"

POINTER = "its value is an address inside the calling program"
FILES = "it names or writes files"

_PROFILE = r"[^:,;\s]+:\d+(x\d+)*([,;][^:,;\s]+:\d+(x\d+)*)*"

_option = partial(Knob, where="provider_options", provider=NAME, alias=ALIAS, source=SOURCE)
_flag = partial(_option, kind="boolean", default="0")
_text = partial(_option, kind="text", default="")

OPTIONS: tuple[Knob, ...] = (
    _option(name="device_id", kind="integer", default="0", low=0, summary="Number of the GPU."),
    _flag(
        name="enable_cuda_graph",
        tuned="with --provider nv_tensorrt_rtx",
        summary="Captures the work of the first call, and replays it in later ones.",
        note="It needs fixed shapes and one caller.",
    ),
    _option(
        name="nv_max_workspace_size",
        kind="integer",
        default="0",
        low=0,
        summary="Bytes that kernels may use beside their tensors; 0 leaves it to TensorRT RTX.",
    ),
    _option(
        name="nv_max_shared_mem_size",
        kind="integer",
        default="0",
        low=0,
        summary="Bytes of shared memory that a kernel may use; 0 is all that the GPU has.",
    ),
    _option(
        name="nv_length_aux_stream_array",
        kind="integer",
        default="0",
        low=0,
        summary="Streams beside the main one.",
    ),
    _text(
        name="nv_profile_min_shapes",
        pattern=_PROFILE,
        summary="Smallest shapes of the inputs, as in ids:1x8,mask:1x8.",
        note="All three kinds of shapes must be given together.",
    ),
    _text(
        name="nv_profile_opt_shapes",
        pattern=_PROFILE,
        summary="Shapes of the inputs that engines are made fastest for.",
        note="All three kinds of shapes must be given together.",
    ),
    _text(
        name="nv_profile_max_shapes",
        pattern=_PROFILE,
        summary="Largest shapes of the inputs.",
        note="All three kinds of shapes must be given together.",
    ),
    _flag(
        name="nv_multi_profile_enable",
        summary="Allows several such ranges of shapes, of which each call names one.",
    ),
    _flag(
        name="nv_persistent_context_memory",
        summary="Keeps the memory of a call for the next one, rather than allocating it each time.",
        note="It stays as large as the largest shape needs.",
    ),
    _flag(
        name="nv_use_sync_gpu_allocator",
        summary="Allocates memory on the GPU with cudaMalloc, rather than cudaMallocAsync.",
    ),
    _text(
        name="nv_weight_streaming_budget",
        pattern=r"-1|\d+[BKMG]?|\d{1,3}%",
        summary="Bytes or percent of the weights that stay on the GPU while others stream; 0 is off, -1 automatic.",
    ),
    _text(
        name="nv_op_types_to_exclude",
        summary="Operators, separated by commas, that other providers run.",
    ),
    _flag(
        name="nv_use_external_data_initializer",
        summary="Takes large weights from the program's memory, rather than through the model.",
    ),
    _option(
        name="nv_multi_rotary_cache_concat_offset",
        kind="integer",
        default="0",
        low=0,
        summary="Position from which on the long table of rotary embeddings is used.",
        untunable="it belongs to the model",
    ),
    _text(name="nv_runtime_cache_path", summary="Folder that keeps compiled kernels.", untunable=FILES),
    _flag(
        name="nv_weight_stripped_engine_enable_experimental",
        summary="Keeps weights out of saved engines.",
        untunable=FILES,
    ),
    _flag(name="nv_enable_profiling", summary="Writes the time of each layer to a file.", untunable=FILES),
    _text(name="nv_profiling_output_file", summary="Where those times are written.", untunable=FILES),
    _flag(name="nv_dump_subgraphs", summary="Saves the parts of the graph.", untunable=FILES),
    _flag(
        name="nv_detailed_build_log",
        summary="Logs each step of building.",
        untunable="it is about messages, not about speed",
    ),
    _flag(name="has_user_compute_stream", summary="Whether the program gives a stream.", untunable=POINTER),
    *(
        _option(name=name, kind="integer", default="0", low=0, summary=summary, untunable=POINTER)
        for name, summary in {
            "user_compute_stream": "The program's own stream to compute on.",
            "user_aux_stream_array": "The program's own streams beside that one.",
            "VkExternalComputeQueueDataParamsNV_data": "The program's Vulkan queue to share the GPU with.",
        }.items()
    ),
)


def dimensions(host: Host, model: ModelInfo, wish: Wish) -> Found:
    """Yield what is worth trying."""
    yield bind()
    yield from capture(PROVIDER.option("enable_cuda_graph"), "1", model, wish)


def caches(folder: str) -> dict[str, str]:
    """Return the option that keeps compiled kernels in a folder."""
    return {"nv_runtime_cache_path": folder}


PROVIDER = ExecutionProvider(
    name=NAME,
    alias=ALIAS,
    options=OPTIONS,
    package="an onnxruntime that was built with it (the plugin package is not supported yet)",
    needs="an NVIDIA RTX GPU and its driver",
    builds=True,
    dimensions=dimensions,
    caches=caches,
)
