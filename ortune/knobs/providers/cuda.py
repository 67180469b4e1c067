"""The CUDA provider. An option that it does not know is an error."""

from __future__ import annotations

from functools import partial

from ortune.host import Host
from ortune.knobs.dimension import choose
from ortune.knobs.knob import Knob
from ortune.knobs.providers.interface import (
    ATTENTION,
    CONVOLUTIONS,
    ExecutionProvider,
    Found,
    bind,
    capture,
)
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

NAME = "CUDAExecutionProvider"
ALIAS = "cuda"
SOURCE = "https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html"

POINTER = "its value is an address inside the calling program"

_option = partial(Knob, where="provider_options", provider=NAME, alias=ALIAS, source=SOURCE)
_flag = partial(_option, kind="boolean", default="0")

OPTIONS: tuple[Knob, ...] = (
    # What is safe to try: the same kernels compute.
    _option(
        name="device_id",
        kind="integer",
        default="0",
        low=0,
        summary="Number of the GPU.",
    ),
    _option(
        name="gpu_mem_limit",
        kind="integer",
        default="",
        low=1,
        summary="Bytes that the arena on the GPU may grow to; unset, as much as there is.",
        note="CUDA and cuDNN take more beside it.",
    ),
    _option(
        name="arena_extend_strategy",
        tuned="with --provider cuda",
        kind="choice",
        default="kNextPowerOfTwo",
        values=("kNextPowerOfTwo", "kSameAsRequested"),
        summary="Whether the arena on the GPU grows in powers of two, or by what is asked for.",
    ),
    _flag(
        name="use_ep_level_unified_stream",
        tuned="with --provider cuda",
        summary="Runs all work of the session on one stream.",
    ),
    _flag(
        name="enable_cuda_graph",
        tuned="with --provider cuda",
        summary="Captures the work of the first call, and replays it later without launching kernels one by one.",
        note="It needs IO binding, sequential mode, fixed shapes, one caller, every node on CUDA, and no If, Loop or "
        "Scan.",
    ),
    # Other kernels: outputs may differ by rounding, and are to be compared.
    _option(
        name="cudnn_conv_algo_search",
        tuned="with --provider cuda",
        kind="choice",
        default="EXHAUSTIVE",
        values=("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        summary="How cuDNN picks the algorithm of a convolution: by timing all, by rules, or always the same one.",
        note="EXHAUSTIVE times again for every new shape, which is slow where shapes vary.",
    ),
    _flag(
        name="cudnn_conv_use_max_workspace",
        tuned="with --provider cuda",
        default="1",
        summary="Lets cuDNN use as much memory as it likes to find a fast algorithm, rather than 32 MB.",
        note="It may take gigabytes while algorithms are timed.",
    ),
    _flag(
        name="cudnn_conv1d_pad_to_nc1d",
        summary="Turns a convolution over one axis into one over [N,C,1,D], rather than [N,C,D,1].",
    ),
    _flag(
        name="prefer_nhwc",
        tuned="with --provider cuda",
        summary="Lays images out with the channels last, as tensor cores like them.",
        note="Operators without such a kernel need transposes.",
    ),
    _flag(
        name="fuse_conv_bias",
        tuned="with --provider cuda",
        summary="Computes a convolution, its bias and its activation in one kernel of cuDNN.",
        note="The kernel is compiled when the session is created, and is not always the faster one.",
    ),
    _option(
        name="sdpa_kernel",
        tuned="with --provider cuda",
        kind="integer",
        default="0",
        low=0,
        high=511,
        summary="Kernels that attention may use, added up: 1 flash, 2 memory-efficient, 4 TensorRT, 8 cuDNN, 16 plain; "
        "0 leaves the choice to ONNX Runtime.",
    ),
    _flag(
        name="enable_cudnn",
        default="",
        summary="Whether cuDNN is used where it is installed.",
        note="Without it, operators that only cuDNN has are refused.",
    ),
    _flag(
        name="tunable_op_enable",
        summary="Uses operators that can pick among several kernels.",
    ),
    _flag(
        name="tunable_op_tuning_enable",
        summary="Lets those operators time their kernels in the first calls.",
        note="It needs tunable_op_enable.",
    ),
    _option(
        name="tunable_op_max_tuning_duration_ms",
        kind="integer",
        default="0",
        low=0,
        summary="Milliseconds that an operator may spend on timing its kernels; 0 sets no bound.",
    ),
    _flag(
        name="enable_skip_layer_norm_strict_mode",
        summary="Computes SkipLayerNormalization with more precise sums, which is slower.",
    ),
    _flag(
        name="use_tf32",
        default="1",
        summary="Multiplies float32 in TF32, with 10 bits after the point, on GPUs that can.",
        numerics=True,
    ),
    # Loading of weights.
    _option(
        name="external_data_loader_reading_threads",
        kind="integer",
        default="4",
        low=0,
        high=64,
        summary="Threads that read external weights into pinned memory; 0 reads without.",
    ),
    _flag(
        name="external_data_loader_use_gds",
        summary="Reads external weights with GPUDirect Storage, on Linux.",
        note="Where it cannot, the weights come by way of the CPU, with a warning.",
    ),
    _flag(
        name="external_data_loader_use_directstorage",
        summary="Reads external weights with DirectStorage, on Windows.",
        note="Only builds with it can; others read by way of the CPU.",
    ),
    # What no search may try.
    _flag(
        name="do_copy_in_default_stream",
        default="1",
        summary="Copies inputs and outputs on the stream that computes.",
        untunable="with 0, outputs may be read before they are complete",
    ),
    _flag(
        name="has_user_compute_stream",
        summary="Whether the program gives a stream.",
        untunable=POINTER,
    ),
    _option(
        name="user_compute_stream",
        kind="integer",
        default="0",
        low=0,
        summary="The program's own stream to compute on.",
        untunable=POINTER,
    ),
    _option(
        name="gpu_external_alloc",
        kind="integer",
        default="0",
        low=0,
        summary="The program's own function that allocates memory on the GPU.",
        untunable=POINTER,
    ),
    _option(
        name="gpu_external_free",
        kind="integer",
        default="0",
        low=0,
        summary="The program's own function that frees memory on the GPU.",
        untunable=POINTER,
    ),
    _option(
        name="gpu_external_empty_cache",
        kind="integer",
        default="0",
        low=0,
        summary="The program's own function that gives unused memory of the GPU back.",
        untunable=POINTER,
    ),
)


def dimensions(host: Host, model: ModelInfo, wish: Wish) -> Found:
    """Yield what is worth trying."""
    yield bind()
    yield from capture(PROVIDER.option("enable_cuda_graph"), "1", model, wish)
    if CONVOLUTIONS & set(model.traits.ops):
        yield choose(
            PROVIDER.option("cudnn_conv_algo_search"),
            ("HEURISTIC", "algorithms by rules: no timing of each new shape"),
            ("DEFAULT", "one algorithm for all: nothing to look for"),
        )
        yield choose(PROVIDER.option("prefer_nhwc"), ("1", "tensor cores want channels last"))
        yield choose(PROVIDER.option("fuse_conv_bias"), ("1", "a convolution with its bias is one kernel"))
        yield choose(
            PROVIDER.option("cudnn_conv_use_max_workspace"), ("0", "a smaller workspace: less memory"), alone=True
        )
    if ATTENTION & set(model.traits.ops):
        yield choose(
            PROVIDER.option("sdpa_kernel"),
            ("1", "flash attention"),
            ("2", "memory-efficient attention"),
            ("8", "attention of cuDNN"),
        )
    yield choose(
        PROVIDER.option("use_ep_level_unified_stream"), ("1", "one stream: nothing to synchronise"), alone=True
    )
    if wish.of_memory:
        why = "memory by what is asked for, not in powers of two"
        yield choose(PROVIDER.option("arena_extend_strategy"), ("kSameAsRequested", why), alone=True)


PROVIDER = ExecutionProvider(
    name=NAME,
    alias=ALIAS,
    options=OPTIONS,
    package="onnxruntime-gpu[cuda,cudnn]",
    needs="an NVIDIA driver, CUDA and cuDNN",
    dimensions=dimensions,
)
