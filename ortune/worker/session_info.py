"""A session as ONNX Runtime created it, and the software that created it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ortune.knobs.config import PluginPackage
from ortune.numbers import FEW, Count


class PoolThread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thread that started while the session was created, and the CPUs that it may run on."""

    cpus: tuple[Count, ...]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a session, read back after it was created and run once.

    Attributes:
        load_ns: Time that creating the session took.
        providers: Execution providers of the session.
        nodes: Number of nodes that each provider runs, the CPU provider last. Empty if the session runs on the CPU
            alone, or if this onnxruntime does not report it.
        threads: Threads of the session's pools; empty if the operating system does not report them.
        settings: Values that the session has for the settings of the config: attributes and entries of SessionOptions,
            and options of providers.
        outputs: Type and shape of each output.
        max_error: Largest difference between an output and the baseline's, as a fraction of the output's largest value.
            The first baseline is compared with a second run of itself. None if values are not compared.
        deterministic: Whether two runs of the baseline agreed. If not, only types and shapes of outputs are compared.
        outputs_compared: Whether outputs were compared with the baseline's; of the baseline, whether they can be. Those
            of some programs cannot.
        build_s: Time that the provider took to compile the model in an earlier launch, from whose files this session
            started; None if it does not compile models, or compiled this one again.
        preloaded: Libraries of the config's allocator that are mapped into the process.
        log: Warnings and errors that ONNX Runtime printed while the session was loaded.
    """

    load_ns: Count
    providers: tuple[str, ...]
    nodes: dict[str, Count] = {}
    threads: tuple[PoolThread, ...] = ()
    settings: dict[str, int | bool | str] = {}
    outputs: dict[str, str] = {}
    max_error: float | None = None
    deterministic: bool = True
    outputs_compared: bool = True
    build_s: float | None = None
    preloaded: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that a worker runs.

    Attributes:
        onnxruntime: Version of ONNX Runtime.
        providers: Execution providers that it has.
        python: Version of Python.
        ortune: Version of ortune.
        plugins: Versions of the installed plugin packages.
        gpus: Names of the NVIDIA GPUs that execution providers see, in their order; empty if there is none, if NVML
            does not work, if ONNX Runtime has no provider for them, or if different GPUs are numbered by their speed.
        gpu_driver: Version of the NVIDIA driver; empty in the same cases, except that there is no GPU.
    """

    onnxruntime: str
    providers: Annotated[tuple[str, ...], FEW]
    python: str
    ortune: str
    plugins: dict[PluginPackage, str] = {}
    gpus: Annotated[tuple[str, ...], FEW] = ()
    gpu_driver: str = ""
