"""A config: ONNX Runtime settings in the form that is written to a record and applied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Provider = tuple[str, dict[str, str]]
"""An execution provider's name and its options."""

CPU = "CPUExecutionProvider"
CPU_PROVIDER: Provider = (CPU, {})

ALIASES: Mapping[str, str] = {
    CPU: "cpu",
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "nv_tensorrt_rtx",
    "OpenVINOExecutionProvider": "openvino",
}
"""Short names of execution providers, as they are written on the command line and before their options."""


def alias_of(provider: str) -> str:
    """Return the short name of an execution provider; one that ortune does not know keeps most of its name."""
    return ALIASES.get(provider, provider.removesuffix("ExecutionProvider").lower())


OF_BOTH = frozenset({"logid", "log_severity_level", "log_verbosity_level"})
"""Attributes that SessionOptions and RunOptions both have; those of RunOptions have "run." before their id."""

BETWEEN_SESSIONS = " | "
"""Separates the values of an entry that differs from session to session, in the order of their creation."""


class ThreadPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the pool that all sessions of a process share, for `onnxruntime.set_global_thread_pool_sizes`."""

    intra_op_num_threads: int
    inter_op_num_threads: int


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that differ from ONNX Runtime's default.

    Attributes:
        session_options: Attributes of SessionOptions; enums by name ("ORT_PARALLEL").
        session_config: Entries for `SessionOptions.add_session_config_entry`.
        run_options: Attributes of RunOptions.
        run_config: Entries for `RunOptions.add_run_config_entry`.
        providers: Execution providers in order of priority, each with its options.
        environment: Environment variables to be set before the process starts.
        io_binding: Whether calls go through `run_with_iobinding`, with inputs and outputs that stay where they are.
        global_thread_pool: The pool that all sessions share, or None where each has its own.
        per_session: Where several sessions run side by side: what `session_config` holds for each of them alone.
    """

    session_options: dict[str, int | bool | str] = {}
    session_config: dict[str, str] = {}
    run_options: dict[str, int | bool | str] = {}
    run_config: dict[str, str] = {}
    providers: tuple[Provider, ...] = (CPU_PROVIDER,)
    environment: dict[str, str] = {}
    io_binding: bool = False
    global_thread_pool: ThreadPool | None = None
    per_session: tuple[dict[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no process can be given."""
        if not self.providers:
            raise ValueError("there are no providers")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(f"{name!r}={value!r} is no environment variable")

    @property
    def key(self) -> str:
        """A text that is equal for equal configs, whatever the order of their entries."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @property
    def settings(self) -> dict[str, int | bool | str]:
        """All settings by the id of their knob; options of providers as in `cuda.device_id`."""
        own: dict[str, int | bool | str] = {}
        if self.providers != (CPU_PROVIDER,):
            own["providers"] = ",".join(alias_of(name) for name, _ in self.providers)
        own |= {**self.session_options, **self.session_config}
        own |= {f"run.{name}" if name in OF_BOTH else name: value for name, value in self.run_options.items()}
        own |= self.run_config
        for name, options in self.providers:
            own |= {f"{alias_of(name)}.{option}": value for option, value in options.items()}
        own |= self.environment
        if self.io_binding:
            own["io_binding"] = True
        if self.global_thread_pool:
            pool = self.global_thread_pool
            own["global_thread_pool"] = f"{pool.intra_op_num_threads},{pool.inter_op_num_threads}"
        for number, entries in enumerate(self.per_session, 1):
            own |= {f"{name} of session {number}": value for name, value in entries.items()}
        return own

    def of_session(self, number: int) -> Config:
        """Return the config of one of several sessions, counted from 0."""
        if not self.per_session:
            return self
        entries = {**self.session_config, **self.per_session[number % len(self.per_session)]}
        return msgspec.structs.replace(self, session_config=entries, per_session=())

    @property
    def provider(self) -> str:
        """The first execution provider: the one that is meant to run the model."""
        return self.providers[0][0]

    @property
    def is_default(self) -> bool:
        """Whether this is ONNX Runtime's default on the CPU."""
        return self == DEFAULT

    def with_setting(self, where: str, name: str, value: Any, provider: str = "") -> Config:
        """Return a copy with one more setting.

        Args:
            where: The field that it goes to; "provider_options" for an option of an execution provider, "config" for
                a whole field.
            name: Its name there.
            value: Its value.
            provider: For an option: the provider's name. Where the config does not have it, nothing changes.
        """
        if where == "config":
            return msgspec.structs.replace(self, **{name: value})
        if where == "provider_options":
            providers = tuple(
                (each, {**options, name: value} if each == provider else options) for each, options in self.providers
            )
            return msgspec.structs.replace(self, providers=providers)
        if where == "session_config" and BETWEEN_SESSIONS in value:
            return msgspec.structs.replace(
                self, per_session=tuple({name: part} for part in value.split(BETWEEN_SESSIONS))
            )
        entries: dict[str, Any] = {**getattr(self, where), name: value}
        return msgspec.structs.replace(self, **{where: entries})


DEFAULT = Config()
"""ONNX Runtime's default on the CPU."""
