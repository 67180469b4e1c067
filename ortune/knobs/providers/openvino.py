"""The OpenVINO provider. An option that it does not know is an error; many values that it does not know are not."""

from __future__ import annotations

from functools import partial

from ortune.host import Host
from ortune.knobs.dimension import choose
from ortune.knobs.knob import Knob
from ortune.knobs.providers.interface import ExecutionProvider, Found
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

NAME = "OpenVINOExecutionProvider"
ALIAS = "openvino"
SOURCE = "https://onnxruntime.ai/docs/execution-providers/OpenVINO-ExecutionProvider.html"

BOOLEANS = ("False", "True")

_DEVICE = r"(CPU|GPU(\.\d+)?|NPU)"

_option = partial(Knob, where="provider_options", provider=NAME, alias=ALIAS, source=SOURCE)
_flag = partial(_option, kind="choice", default="False", values=BOOLEANS)
_text = partial(_option, kind="text", default="")

OPTIONS: tuple[Knob, ...] = (
    _text(
        name="device_type",
        pattern=rf"{_DEVICE}|AUTO|(AUTO|HETERO|MULTI):{_DEVICE}(,{_DEVICE})*",
        summary="Device, or several by preference, as in GPU or AUTO:GPU,CPU; unset, what the build was made for.",
    ),
    _option(
        name="precision",
        kind="choice",
        default="",
        values=("FP32", "FP16", "ACCURACY"),
        summary="Type to compute in; ACCURACY keeps that of the model.",
        numerics=True,
        note="The CPU takes FP32 and ACCURACY only.",
    ),
    _option(
        name="num_of_threads",
        tuned="with --provider openvino",
        kind="integer",
        default="",
        low=1,
        high=9999,
        summary="Threads on the CPU.",
        note="Newer versions want it as INFERENCE_NUM_THREADS in load_config.",
    ),
    _option(
        name="num_streams",
        tuned="with --provider openvino",
        kind="integer",
        default="1",
        low=1,
        high=8,
        summary="Calls that run side by side.",
        note="Newer versions want it as NUM_STREAMS in load_config.",
    ),
    _text(
        name="load_config",
        summary='Properties of OpenVINO by device, as JSON: {"CPU": {"INFERENCE_NUM_THREADS": 4, "NUM_STREAMS": 1}}.',
        numerics=True,
        note="INFERENCE_PRECISION_HINT in it changes outputs. A device without such a name is skipped, with a warning.",
    ),
    _option(
        name="model_priority",
        kind="choice",
        default="DEFAULT",
        values=("LOW", "MEDIUM", "HIGH", "DEFAULT"),
        summary="Rank of this model where several share a device.",
        note="Anything else is read as DEFAULT, with a warning.",
    ),
    _flag(
        name="disable_dynamic_shapes",
        summary="Compiles the model anew for each shape, rather than once for all.",
        note="Newer versions decide by the device.",
    ),
    _flag(
        name="enable_opencl_throttling",
        summary="Lets the CPU sleep while the GPU works.",
    ),
    _flag(
        name="enable_qdq_optimizer",
        summary="Drops QuantizeLinear and DequantizeLinear where the NPU does not need them.",
    ),
    _flag(
        name="enable_causallm",
        summary="Keeps the cache of a language model on the device from call to call.",
        untunable="it changes what a call takes and gives",
    ),
    _text(
        name="cache_dir",
        summary="Folder that keeps compiled models.",
        untunable="it names or writes files",
    ),
    _text(
        name="reshape_input",
        pattern=r"[^\[\],]+\[[^\[\]]+\](,[^\[\],]+\[[^\[\]]+\])*",
        summary="Shapes or ranges of shapes to compile for, as in data[1,3,60..80,60..80].",
    ),
    _text(
        name="layout",
        summary="Meaning of the axes of inputs and outputs, as in data[NCHW].",
        untunable="it belongs to the model",
    ),
    _option(
        name="device_id",
        kind="choice",
        default="",
        values=("CPU", "GPU", "NPU"),
        summary="Device, in the earlier way of device_type.",
        untunable="device_type has taken its place",
    ),
    _text(
        name="device_luid",
        summary="Identifiers of devices, where several of a kind are there.",
        untunable="it names a device of one machine",
    ),
    _option(
        name="context",
        kind="integer",
        default="0",
        low=0,
        summary="The program's own OpenCL context.",
        untunable="its value is an address inside the calling program",
    ),
)


def dimensions(host: Host, model: ModelInfo, wish: Wish) -> Found:
    """Yield what is worth trying. It has a pool of its own: the thread settings of the session are not for it."""
    n_cores = len(host.usable_cores)
    counts = sorted({1, max(1, n_cores // 2), n_cores})
    yield choose(PROVIDER.option("num_of_threads"), *((str(n), f"{n} threads of OpenVINO's own") for n in counts))
    if not wish.one_caller:
        streams = sorted({min(wish.clients, 8), min(max(2, n_cores), 8)})
        yield choose(PROVIDER.option("num_streams"), *((str(n), f"{n} calls side by side") for n in streams))


def caches(folder: str) -> dict[str, str]:
    """Return the option that keeps compiled models in a folder."""
    return {"cache_dir": folder}


PROVIDER = ExecutionProvider(
    name=NAME,
    alias=ALIAS,
    options=OPTIONS,
    package="onnxruntime-openvino",
    needs="an Intel CPU, GPU or NPU; the CPU part runs on others too",
    dimensions=dimensions,
    caches=caches,
)
