"""A session as ONNX Runtime created it, and the software that created it."""

from __future__ import annotations

import msgspec


class PoolThread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A thread that appeared while the session was created, and the CPUs that it is allowed on."""

    cpus: tuple[int, ...]


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session turned out to be, read back after it was created and run once.

    Attributes:
        load_ns: Time that creating the session took.
        providers: Execution providers that the session has.
        nodes: How many nodes each provider got, the CPU last; empty for the CPU alone, or where onnxruntime is too old.
        threads: Pool threads with the CPUs that they are allowed on; empty where the system does not tell.
        settings: SessionOptions, their entries and options of providers as the session has them, for those of the
            config.
        outputs: Each output's type and shape.
        max_error: Largest difference of an output from the default's, as a share of the output's largest value;
            for the first default, from its own second run.
        deterministic: Whether the default's second run agreed with its first. Where it did not, only types and
            shapes of outputs are compared.
        build_s: Time that the provider took to compile the model, before and apart from this session; None where it
            does not compile.
        preloaded: Libraries of the config's LD_PRELOAD that are in the process.
        log: What the worker printed while loading: ONNX Runtime's warnings and errors.
    """

    load_ns: int
    providers: tuple[str, ...]
    nodes: dict[str, int] = {}
    threads: tuple[PoolThread, ...] = ()
    settings: dict[str, int | bool | str] = {}
    outputs: dict[str, str] = {}
    max_error: float | None = None
    deterministic: bool = True
    build_s: float | None = None
    preloaded: tuple[str, ...] = ()
    log: tuple[str, ...] = ()


class Runtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The software that a worker runs."""

    onnxruntime: str
    providers: tuple[str, ...]
    python: str
    ortune: str
