"""Options of commands."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.target import FREE_BYTES, Target, attempt
from tests.simulated import make_host, make_model

OPTION_SEEDS = tuple(
    text.encode()
    for text in (
        "search\nmodel=m.onnx\nbudget=1m30s\nclients=8\nlimit=p99<20ms\nlimit=memory<500MB\ndim=batch=1,8\nseed=7",
        "search\nmodel=m.onnx\nrate=50/s\narrivals=periodic\nobjective=p99\nshape=image=1x3x32x32\ndim=n=4\nrtol=1e-3",
        "search\nmodel=m.onnx\ntune=intra_op_num_threads=1,2\nfix=session.intra_op.allow_spinning=0\nonly=intra_op_num_threads",
        "search\nmodel=m.onnx\ntune=session.intra_op_thread_affinities=1;2-3|1,2;3\ntune=intra_op_num_threads=3",
        "search\nmodel=m.onnx\nfix=session.intra_op_thread_affinities=2-4\nfix=intra_op_num_threads=2\nsessions=2",
        "search\nmodel=m.onnx\npareto=p99,cpu\nstrategy=tpe\ntrials=30\ndim=batch=2\ndim=width=7\nshape=s=",
        "search\nmodel=m.onnx\ntune=session.dynamic_block_base=4,8\ntune=graph_optimization_level=ORT_ENABLE_BASIC\n"
        "allow_approximate",
        "bench\nmodel=m.onnx\nconfigs=r.json\nset=intra_op_num_threads=1,session.intra_op.allow_spinning=0\nbudget=6s",
        "bench\nmodel=m.onnx\nset=providers=cuda,cuda.device_id=0,session.intra_op_thread_affinities=1,2;3",
        "gate\nbase=a.onnx\nhead=b.onnx@default\nmax_slowdown=3%\nmax_slowdown=memory=5%\nalso=memory,load-time",
        "verify\nconfig=r.json\nclients=2\nbudget=90\npick=1",
        "space\nmodel=m.onnx\nprovider=cpu\nrate=30/min\nlimit=p99<1.3x\nlimit=throughput>100/s",
        "doctor\nmodel=m.onnx\ndim=batch=999999999\nshape=ids=9999x9999",
    )
)
OPTION_WORDS = tuple(
    text.encode()
    for text in (
        "\nlimit=",
        "\ndim=batch=",
        "\nshape=image=",
        "\ntune=",
        "\nfix=",
        "\nset=",
        "\nonly=",
        "\nbudget=",
        "\nrate=",
        "\nclients=",
        "\nseed=",
        "p99<",
        "<20ms",
        ">1/s",
        "x",
        ",",
        "|",
        ";",
        "-",
        "=",
        "ms",
        "min",
        "GB",
        "%",
        "/s",
        "1-999999999",
        "1-2;" * 300,
        "999999999x999999999",
        "0x5",
        "batch=1," + "2," * 200,
        "1e308",
        "٣",
        "1__0",
        "session.intra_op_thread_affinities",
        "intra_op_num_threads",
        "session.dynamic_block_base",
        "providers",
        "cuda.gpu_mem_limit",
        "OMP_PLACES",
        "{0:999999999}",
        "tensorrt.trt_profile_min_shapes",
        "run.logid",
        "execution_mode",
    )
)


@functools.cache
def request_types() -> Mapping[str, Any]:
    from ortune import requests

    names = ("Search", "Bench", "Gate", "Verify", "Space", "Suggest", "Doctor", "Profile")
    return {name.lower(): getattr(requests, f"{name}Request") for name in names}


@functools.cache
def small_model() -> Any:
    from ortune.model import InputInfo

    return make_model(
        inputs=(
            InputInfo(name="image", dtype="float32", shape=("batch", 3, 8, "width")),
            InputInfo(name="ids", dtype="int64", shape=("batch", "n"), index_size=9),
            InputInfo(name="position", dtype="int32", shape=("n",)),
            InputInfo(name="s", dtype="string", shape=("batch",), strings=("a", "b" * 100)),
        )
    )


def make_small_feed(options: Any) -> Any:
    """Make the inputs of a small model. At most a quarter of `FREE_BYTES` may be allocated."""
    from ortune.workload import make_feed

    feed = make_feed(small_model(), options)
    total = sum(tensor.array.nbytes for sample in feed.samples for tensor in sample.values())
    assert total <= FREE_BYTES, f"{total} bytes"
    return feed


def run_options(data: bytes) -> None:
    """Parse options as on the command line, and use them up to where files are read."""
    from ortune.options import make_request, options_of

    first, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    kind = request_types().get(first)
    if kind is None:
        kind = request_types()["search"]
    declared = options_of(kind)
    values: dict[str, Any] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        option = declared[name].option if name in declared else None
        if option is not None and option.repeatable:
            values.setdefault(name, []).append(value)
        elif name:
            values[name] = value if equals else True
    request = attempt(make_request, kind, values, "cli")
    if request is not None:
        use_request(request)


def use_request(request: Any) -> None:
    from ortune.gates.prepare import parse_slowdowns
    from ortune.knobs.parse_config import make_config, split_settings

    attempt(lambda: getattr(request, "load", None))
    attempt(lambda: getattr(request, "tolerance", None))
    goal = attempt(lambda: getattr(request, "goal", None))
    inputs = attempt(lambda: getattr(request, "input_options", None))
    if goal is not None and hasattr(request, "max_slowdown"):
        attempt(parse_slowdowns, request.max_slowdown, goal)
    if inputs is not None and (inputs.dims or inputs.shapes):
        attempt(make_small_feed, msgspec.structs.replace(inputs, data=None))
    for text in getattr(request, "set", ()):
        if settings := attempt(lambda text=text: text if isinstance(text, Mapping) else split_settings(text)):
            attempt(make_config, settings, str(text))
    if hasattr(request, "tune") and (request.tune or request.fix or request.only):
        attempt(make_space, request)


def make_space(request: Any) -> None:
    from ortune.knobs import SpaceOptions, build_space

    options = SpaceOptions(
        clients=request.clients or 1,
        sessions=request.sessions or 1,
        tune=request.tune,
        fix=request.fix,
        only=request.only,
    )
    build_space(make_host(4, smt=2), make_model(), options)


OPTION_VALUES = (
    "60s",
    "1m30s",
    "3%",
    "memory=5%",
    "8",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "",
    "x",
    "50/s",
    "periodic",
    "p99<20ms",
    "p99<1.3x",
    "memory<1GB",
    "throughput>1/s",
    "batch=1,8",
    "batch=999999999",
    "n=5",
    "width=0",
    "image=1x3x9x9",
    "ids=2x3",
    "s=999999999",
    "image=",
    "memory,load-time",
    "p99",
    "cpu",
    "tpe",
    "random",
    "1e400",
    "1024",
    "cuda,cpu",
    "intra_op_num_threads=1,2",
    "session.intra_op.allow_spinning=0",
    "session.dynamic_block_base=4|8",
    "only=x",
    "session.intra_op_thread_affinities=1;2|1-9999999",
    "graph_optimization_level=ORT_ENABLE_BASIC",
    "auto",
    "position=99999",
    "n=100000",
    "batch=" + ",".join(map(str, range(1, 400))),
    "n=" + ",".join("123456789"),
)


def mutate_options(data: bytes, random: Random) -> bytes:
    """Change bytes of a command line, or write one of some options and values."""
    if random.random() < 0.6:
        return mutate_bytes(data, random, OPTION_WORDS, OPTION_SEEDS)
    kind = random.choice(list(request_types()))
    lines = [kind, *(f"{name}=m.onnx" for name in ("model", "base", "config") if name in names_of_options(kind))]
    for name in random.choices(names_of_options(kind), k=int(random.random() * 5)):
        value = random.choice(OPTION_VALUES)
        if random.random() < 0.2:
            value = mutate_bytes(value.encode(), random).decode("utf-8", "replace")
        lines.append(f"{name}={value}")
    return "\n".join(lines).encode(errors="replace")


@functools.cache
def names_of_options(kind: str) -> list[str]:
    from ortune.options import options_of

    return list(options_of(request_types()[kind]))


OPTIONS = Target(run_options, lambda: OPTION_SEEDS, mutate_options)
