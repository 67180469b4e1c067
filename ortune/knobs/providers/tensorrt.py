"""The TensorRT provider. Its booleans are True and False: "1" is an error. Building an engine takes minutes."""

from __future__ import annotations

from functools import partial

from ortune.host import Host
from ortune.knobs.dimension import choose
from ortune.knobs.knob import Knob
from ortune.knobs.providers.interface import ExecutionProvider, Found, bind, capture
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

NAME = "TensorrtExecutionProvider"
ALIAS = "tensorrt"
SOURCE = "https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html"

POINTER = "its value is an address inside the calling program"
CACHES = "it names or writes files; a search keeps a cache of its own for each candidate"
BOOLEANS = ("False", "True")

_PROFILE = r"[^:,\s]+:\d+(x\d+)*(,[^:,\s]+:\d+(x\d+)*)*"

_option = partial(Knob, where="provider_options", provider=NAME, alias=ALIAS, source=SOURCE)
_flag = partial(_option, kind="choice", default="False", values=BOOLEANS)
_text = partial(_option, kind="text", default="")

OPTIONS: tuple[Knob, ...] = (
    _option(name="device_id", kind="integer", default="0", low=0, summary="Number of the GPU."),
    # How engines are built.
    _option(
        name="trt_builder_optimization_level",
        tuned="with --provider tensorrt",
        kind="integer",
        default="3",
        low=0,
        high=5,
        summary="How long TensorRT looks for fast kernels; each level builds more slowly.",
    ),
    _option(
        name="trt_auxiliary_streams",
        tuned="with --provider tensorrt",
        kind="integer",
        default="-1",
        low=-1,
        summary="Streams beside the main one; -1 lets TensorRT choose, 0 needs the least memory.",
    ),
    _option(
        name="trt_max_workspace_size",
        kind="integer",
        default="0",
        low=0,
        summary="Bytes that kernels may use beside their tensors; 0 is all that the GPU has.",
    ),
    _option(
        name="trt_max_partition_iterations",
        kind="integer",
        default="1000",
        low=1,
        summary="Rounds in which the graph is split between TensorRT and other providers.",
        note="If the last round is not enough, the whole model runs on other providers.",
    ),
    _option(
        name="trt_min_subgraph_size",
        kind="integer",
        default="1",
        low=1,
        summary="Fewest nodes that are given to TensorRT together.",
    ),
    _flag(
        name="trt_cuda_graph_enable",
        tuned="with --provider tensorrt",
        summary="Captures the work of the first call, and replays it in later ones.",
        note="It needs IO binding, fixed shapes, one caller, and every node on TensorRT.",
    ),
    _flag(
        name="trt_context_memory_sharing_enable",
        tuned="with --provider tensorrt",
        summary="Lets the engines of one model share their memory.",
    ),
    _text(
        name="trt_tactic_sources",
        pattern=r"[+-][A-Z_]+(,[+-][A-Z_]+)*",
        summary="Libraries that kernels may come from, added with + and taken away with -, as in -CUDNN,+CUBLAS.",
    ),
    _flag(
        name="trt_build_heuristics_enable",
        summary="Finds kernels by rules rather than by timing them, which builds faster.",
    ),
    _text(
        name="trt_op_types_to_exclude",
        summary="Operators, separated by commas, that other providers run.",
    ),
    _text(
        name="trt_profile_min_shapes",
        pattern=_PROFILE,
        summary="Smallest shapes of the inputs, as in ids:1x8,mask:1x8.",
        note="All three kinds of shapes must be given together, for all inputs whose shapes vary.",
    ),
    _text(
        name="trt_profile_opt_shapes",
        pattern=_PROFILE,
        summary="Shapes of the inputs that engines are made fastest for.",
        note="All three kinds of shapes must be given together.",
    ),
    _text(
        name="trt_profile_max_shapes",
        pattern=_PROFILE,
        summary="Largest shapes of the inputs.",
        note="All three kinds of shapes must be given together.",
    ),
    _text(
        name="trt_preview_features",
        summary="Features of TensorRT that are not final, separated by commas.",
    ),
    _flag(
        name="trt_engine_hw_compatible",
        summary="Builds engines that run on other GPUs, from Ampere on, too.",
        note="They are slower.",
    ),
    _flag(
        name="trt_force_sequential_engine_build",
        summary="Builds engines one after another where several GPUs are used.",
    ),
    _flag(
        name="trt_load_user_initializer",
        summary="Keeps weights in memory while engines are built, rather than writing them to files.",
    ),
    # Types and formats that change outputs.
    _flag(
        name="trt_fp16_enable",
        tuned="with --provider tensorrt and --allow-approximate",
        summary="Allows float16.",
        numerics=True,
    ),
    _flag(
        name="trt_bf16_enable",
        tuned="with --provider tensorrt and --allow-approximate",
        summary="Allows bfloat16.",
        numerics=True,
    ),
    _flag(
        name="trt_int8_enable",
        summary="Allows int8.",
        numerics=True,
        note="A model without QuantizeLinear needs a table of calibration.",
    ),
    _text(
        name="trt_int8_calibration_table_name",
        summary="File with the ranges of the tensors, for int8.",
        numerics=True,
        untunable="it names a file that calibration writes",
    ),
    _flag(
        name="trt_int8_use_native_calibration_table",
        summary="Whether that file is TensorRT's own, rather than ONNX Runtime's.",
        numerics=True,
        untunable="it says what kind of file calibration wrote",
    ),
    _flag(
        name="trt_layer_norm_fp32_fallback",
        summary="Computes what surrounds layer normalisation in float32 where the rest is float16.",
        numerics=True,
    ),
    _flag(
        name="trt_sparsity_enable",
        summary="Allows kernels for weights of which two in four are zero.",
        numerics=True,
    ),
    # Deep-learning accelerators of Jetson boards.
    _flag(
        name="trt_dla_enable",
        summary="Runs what it can on a Jetson's deep-learning accelerator.",
        numerics=True,
    ),
    _option(
        name="trt_dla_core",
        kind="integer",
        default="0",
        low=0,
        summary="Number of the deep-learning accelerator.",
    ),
    # Caches, messages, and what belongs to the calling program.
    _flag(name="trt_engine_cache_enable", summary="Keeps built engines in files.", untunable=CACHES),
    _text(name="trt_engine_cache_path", summary="Folder of those files.", untunable=CACHES),
    _text(name="trt_engine_cache_prefix", summary="How the names of those files begin.", untunable=CACHES),
    _flag(name="trt_timing_cache_enable", summary="Keeps the times of kernels, to build faster.", untunable=CACHES),
    _text(name="trt_timing_cache_path", summary="Folder of the file with those times.", untunable=CACHES),
    _flag(
        name="trt_force_timing_cache",
        summary="Uses times that another GPU of the same architecture gave.",
        untunable=CACHES,
    ),
    _flag(
        name="trt_dump_ep_context_model",
        summary="Saves the model with its engines, so that later sessions need not build.",
        untunable=CACHES,
    ),
    _text(name="trt_ep_context_file_path", summary="Where that model is saved.", untunable=CACHES),
    _option(
        name="trt_ep_context_embed_mode",
        kind="choice",
        default="0",
        values=("0", "1"),
        summary="Whether that model holds its engines itself (1) or names their files (0).",
        untunable=CACHES,
    ),
    _flag(
        name="trt_weight_stripped_engine_enable",
        summary="Keeps weights out of engine files, and takes them from the model.",
        untunable=CACHES,
    ),
    _text(
        name="trt_onnx_model_folder_path",
        summary="Folder of the model that those weights are taken from.",
        untunable=CACHES,
    ),
    _flag(name="trt_engine_decryption_enable", summary="Reads engines that are encrypted.", untunable=CACHES),
    _text(name="trt_engine_decryption_lib_path", summary="Library that decrypts them.", untunable=CACHES),
    _text(
        name="trt_extra_plugin_lib_paths",
        summary="Libraries of plugins, separated by semicolons.",
        untunable="it names files that the model needs",
    ),
    _flag(name="trt_dump_subgraphs", summary="Saves the parts of the graph.", untunable="it writes files"),
    _flag(
        name="trt_detailed_build_log",
        summary="Logs each step of building.",
        untunable="it is about messages, not about speed",
    ),
    _option(
        name="has_user_compute_stream",
        kind="boolean",
        default="0",
        summary="Whether the program gives a stream.",
        untunable=POINTER,
    ),
    *(
        _option(name=name, kind="integer", default="0", low=0, summary=summary, untunable=POINTER)
        for name, summary in {
            "user_compute_stream": "The program's own stream to compute on.",
            "trt_onnx_bytestream": "The model's bytes in memory.",
            "trt_onnx_bytestream_size": "How many bytes those are.",
            "trt_external_data_bytestream": "The external weights' bytes in memory.",
            "trt_external_data_bytestream_size": "How many bytes those are.",
        }.items()
    ),
)


def dimensions(host: Host, model: ModelInfo, wish: Wish) -> Found:
    """Yield what is worth trying; each is an engine to be built, so these are few."""
    yield bind()
    yield from capture(PROVIDER.option("trt_cuda_graph_enable"), "True", model, wish)
    yield choose(
        PROVIDER.option("trt_builder_optimization_level"),
        ("5", "more tactics are timed: a longer build, sometimes a faster engine"),
        ("2", "fewer tactics are timed: a shorter build"),
    )
    yield choose(PROVIDER.option("trt_auxiliary_streams"), ("0", "no further streams: less memory"), alone=True)
    if wish.of_memory:
        why = "engines share the memory of their contexts"
        yield choose(PROVIDER.option("trt_context_memory_sharing_enable"), ("True", why), alone=True)
    if wish.approximate:
        yield choose(PROVIDER.option("trt_fp16_enable"), ("True", "half precision where TensorRT likes it"))
        yield choose(PROVIDER.option("trt_bf16_enable"), ("True", "bfloat16 where TensorRT likes it"))


def caches(folder: str) -> dict[str, str]:
    """Return the options that keep engines and timings in a folder."""
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": folder,
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": folder,
    }


PROVIDER = ExecutionProvider(
    name=NAME,
    alias=ALIAS,
    options=OPTIONS,
    behind=("CUDAExecutionProvider",),
    package="onnxruntime-gpu[cuda,cudnn] tensorrt",
    needs="an NVIDIA driver, CUDA, cuDNN and the libraries of TensorRT 10",
    builds=True,
    dimensions=dimensions,
    caches=caches,
)
