"""A config: ONNX Runtime settings in the form that is written to a record and applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from ortune.bounds import MOST_ITEMS
from ortune.numbers import FEW, MANY

Allocator = Literal["", "mimalloc", "jemalloc", "tcmalloc"]

MOST_SETTINGS = msgspec.Meta(max_length=1000)
"""Number of settings in one place of a config. All knobs together are fewer."""

Attributes = Annotated[dict[str, int | bool | str], MOST_SETTINGS]
Entries = Annotated[dict[str, str], MOST_SETTINGS]
"""Settings by name: attributes of an object of ONNX Runtime, and texts."""

Provider = tuple[str, Entries]
"""An execution provider's name and its options."""

CPU = "CPUExecutionProvider"
CPU_PROVIDER: Provider = (CPU, {})

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
CUDA_BASED = frozenset({CUDA, TENSORRT, "NvTensorRTRTXExecutionProvider"})
"""Providers of NVIDIA's GPUs. If the libraries that they need come from NVIDIA's wheels, onnxruntime must load them."""

ALIASES: Mapping[str, str] = {
    CPU: "cpu",
    CUDA: "cuda",
    TENSORRT: "tensorrt",
    "NvTensorRTRTXExecutionProvider": "nv_tensorrt_rtx",
    "OpenVINOExecutionProvider": "openvino",
    "WebGpuExecutionProvider": "webgpu",
}
"""Short names of execution providers, for the command line and as a prefix of their options."""


def alias_of(provider: str) -> str:
    """Return the short name of an execution provider, derived from its name if ortune does not know it."""
    return ALIASES.get(provider, provider.removesuffix("ExecutionProvider").lower())


PLUGIN = "plugin"
"""Stands for the plugin of a provider among the settings of a config, after the provider's short name."""

CAPTURES = frozenset(
    {
        "enable_cuda_graph",
        "enable_hip_graph",
        "trt_cuda_graph_enable",
        "enableGraphCapture",
        "ep.dml.enable_graph_capture",
    }
)
"""Options of providers and entries of sessions that capture the work of a call and replay it. Inputs and outputs must
then stay in the same buffers on the device. Otherwise, a replay may read old inputs. The catalog marks them."""


def is_capture(name: str) -> bool:
    """Return whether a setting is one of these options, or an entry whose last part is the name of one."""
    return bool(CAPTURES & {name, name.rpartition(".")[2]})


ENTRY_PREFIXES: Mapping[str, str] = {"WebGpuExecutionProvider": "ep.webgpuexecutionprovider."}
"""Providers of onnxruntime itself that ignore options which are passed with their name. They read configuration entries
of the session with this prefix. Plugins get their options either way."""

OF_BOTH = frozenset({"logid", "log_severity_level", "log_verbosity_level"})
"""Attributes of both SessionOptions and RunOptions. The ids of those of RunOptions have the prefix "run."."""

BETWEEN_SESSIONS = " | "
"""Separates the values of an entry that differs between sessions, in the order in which they are created."""


MOST_WORKERS = 1024
"""Largest number of worker processes."""


PluginPackage = Literal[
    "onnxruntime-ep-mlx",
    "onnxruntime-ep-nv-tensorrt-rtx",
    "onnxruntime-ep-openvino",
    "onnxruntime-ep-webgpu",
    "onnxruntime-qnn",
]
"""Python packages with the library of an execution provider. A record can name no other package, and no library."""

PROVIDER_OF: Mapping[PluginPackage, str] = {
    "onnxruntime-ep-mlx": "MLXExecutionProvider",
    "onnxruntime-ep-nv-tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
    "onnxruntime-ep-openvino": "OpenVINOExecutionProvider",
    "onnxruntime-ep-webgpu": "WebGpuExecutionProvider",
    "onnxruntime-qnn": "QNNExecutionProvider",
}
"""ONNX Runtime's name of the execution provider of each plugin package."""

DeviceType = Literal["", "cpu", "gpu", "npu"]

MOST_VENDOR = 64
"""Length of the name of a vendor."""


class Plugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The package that contains the library of an execution provider, and the device that the provider uses.

    Attributes:
        package: The package. Its library is looked up where the config is applied.
        device_type: Type of the device; empty for any.
        vendor: Vendor of the device, as ONNX Runtime names it; empty for any.
    """

    package: PluginPackage
    device_type: DeviceType = ""
    vendor: str = ""

    def __post_init__(self) -> None:
        """Reject a vendor that is not a plain name."""
        if len(self.vendor) > MOST_VENDOR or not self.vendor.isprintable():
            raise ValueError(f"{self.vendor[:MOST_VENDOR]!r} is not the name of a vendor")

    def __str__(self) -> str:
        return " ".join(filter(None, (self.package, self.device_type, self.vendor)))


class ThreadPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the pool that all sessions of a process share, for `onnxruntime.set_global_thread_pool_sizes`.

    Attributes:
        intra_op_num_threads: Threads within an operator; 0 for one per physical core.
        inter_op_num_threads: Threads between operators; 0 for one per physical core.
    """

    intra_op_num_threads: int
    inter_op_num_threads: int


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for the sessions of one model of a program.

    Attributes:
        session_options: Attributes of SessionOptions.
        session_config: Entries for `SessionOptions.add_session_config_entry`.
    """

    session_options: Attributes = {}
    session_config: Entries = {}


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that differ from ONNX Runtime's default.

    Those of a candidate of a program differ from what the program sets itself, and may be ONNX Runtime's default.

    Attributes:
        session_options: Attributes of SessionOptions; enums by name ("ORT_PARALLEL").
        session_config: Entries for `SessionOptions.add_session_config_entry`.
        run_options: Attributes of RunOptions.
        run_config: Entries for `RunOptions.add_run_config_entry`.
        providers: Execution providers in order of priority, each with its options.
        plugins: Plugins that contain the libraries of providers, by the provider's name. onnxruntime itself contains
            all other providers.
        environment: Environment variables to set before the process starts.
        allocator: Library that replaces malloc; empty for none. Its path is looked up where the config is applied.
        io_binding: Whether calls use `run_with_iobinding`, with inputs and outputs that stay on their device.
        global_thread_pool: The pool that all sessions share, or None if each session has its own.
        per_session: Entries of `session_config` that differ between sessions, for each session in turn.
        workers: Worker processes of a server, for `{workers}` in its command; 0 for the number in the command.
        models: For candidates of a program: settings of single models, by the name of the model.
        batch: Items that the caller puts into each call, along the first axis of all inputs; 1 for calls as they are.
    """

    session_options: Attributes = {}
    session_config: Entries = {}
    run_options: Attributes = {}
    run_config: Entries = {}
    providers: Annotated[tuple[Provider, ...], FEW] = (CPU_PROVIDER,)
    plugins: Annotated[dict[str, Plugin], FEW] = {}
    environment: Entries = {}
    allocator: Allocator = ""
    io_binding: bool = False
    global_thread_pool: ThreadPool | None = None
    per_session: Annotated[tuple[Entries, ...], FEW] = ()
    workers: int = 0
    models: Annotated[dict[str, ModelSettings], MANY] = {}
    batch: int = 1

    def __post_init__(self) -> None:
        """Reject an empty chain of providers, plugins of others, illegal environment variables, and illegal numbers."""
        if not self.providers:
            raise ValueError("there are no providers")
        if stray := set(self.plugins) - {name for name, _ in self.providers if name != CPU}:
            raise ValueError(f"there is a plugin for {min(stray)[:MOST_VENDOR]!r}, which is not among the providers")
        for name, plugin in self.plugins.items():
            if name != PROVIDER_OF[plugin.package]:
                raise ValueError(
                    f"{plugin.package} is the plugin of {PROVIDER_OF[plugin.package]}, not of {name[:MOST_VENDOR]!r}"
                )
        if not 0 <= self.workers <= MOST_WORKERS:
            raise ValueError(f"{self.workers} workers: there must be 0 to {MOST_WORKERS}")
        if not 1 <= self.batch <= MOST_ITEMS:
            raise ValueError(f"a batch of {self.batch}: there must be 1 to {MOST_ITEMS} items in a call")
        for name, value in self.environment.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(f"{name!r}={value!r} is not a legal environment variable")

    @property
    def key(self) -> str:
        """A text that is the same for equal configs, independent of the order of entries."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @property
    def settings(self) -> dict[str, int | bool | str]:
        """All settings by the id of the knob, such as `cuda.device_id` for an option of a provider."""
        own: dict[str, int | bool | str] = {}
        if self.providers != (CPU_PROVIDER,):
            own["providers"] = ",".join(alias_of(name) for name, _ in self.providers)
        own |= {**self.session_options, **self.session_config}
        own |= {f"run.{name}" if name in OF_BOTH else name: value for name, value in self.run_options.items()}
        own |= self.run_config
        for name, options in self.providers:
            own |= {f"{alias_of(name)}.{option}": value for option, value in options.items()}
        own |= {f"{alias_of(name)}.{PLUGIN}": str(plugin) for name, plugin in self.plugins.items()}
        own |= self.environment
        if self.allocator:
            own["allocator"] = self.allocator
        if self.io_binding:
            own["io_binding"] = True
        if self.global_thread_pool:
            pool = self.global_thread_pool
            own["global_thread_pool"] = f"{pool.intra_op_num_threads},{pool.inter_op_num_threads}"
        for number, entries in enumerate(self.per_session, 1):
            own |= {f"{name} of session {number}": value for name, value in entries.items()}
        if self.workers:
            own["workers"] = self.workers
        if self.batch > 1:
            own["batch"] = self.batch
        for model, settings in self.models.items():
            own |= {f"{model}: {name}": value for name, value in settings.session_options.items()}
            own |= {f"{model}: {name}": value for name, value in settings.session_config.items()}
        return own

    def of_model(self, name: str) -> Config:
        """Return the config of the sessions of one model."""
        if not self.models:
            return self
        own = self.models.get(name, ModelSettings())
        return msgspec.structs.replace(
            self,
            session_options={**self.session_options, **own.session_options},
            session_config={**self.session_config, **own.session_config},
            models={},
        )

    def of_session(self, number: int) -> Config:
        """Return the config of one of several sessions, numbered from 0."""
        if not self.per_session:
            return self
        entries = {**self.session_config, **self.per_session[number % len(self.per_session)]}
        return msgspec.structs.replace(self, session_config=entries, per_session=())

    def with_plugins(self, known: Mapping[str, Plugin]) -> Config:
        """Return the config with the plugins of its providers.

        Args:
            known: Plugins by the provider's name. Those of other providers are ignored.
        """
        found = {name: known[name] for name, _ in self.providers if name in known and name not in self.plugins}
        return msgspec.structs.replace(self, plugins={**self.plugins, **found}) if found else self

    def without_captures(self) -> Config:
        """Return the config for callers whose inputs do not stay in the same buffers on the device."""
        return self.without_entries(is_capture)

    def without_entries(self, is_removed: Callable[[str], bool]) -> Config:
        """Return the config without some entries of sessions and options of providers.

        Args:
            is_removed: Returns whether to remove what has a name.
        """

        def keep(settings: dict[str, str]) -> dict[str, str]:
            return {name: value for name, value in settings.items() if not is_removed(name)}

        kept = msgspec.structs.replace(
            self,
            providers=tuple((name, keep(options)) for name, options in self.providers),
            session_config=keep(self.session_config),
            per_session=tuple(keep(entries) for entries in self.per_session),
            models={
                name: msgspec.structs.replace(own, session_config=keep(own.session_config))
                for name, own in self.models.items()
            },
        )
        return self if kept == self else kept

    @property
    def provider_entries(self) -> dict[str, str]:
        """The configuration entries of the session from which providers read their options."""
        return {
            f"{ENTRY_PREFIXES[name]}{option}": value
            for name, options in self.providers
            if name in ENTRY_PREFIXES and name not in self.plugins
            for option, value in options.items()
        }

    @property
    def provider(self) -> str:
        """The first execution provider: the one that is meant to run the model."""
        return self.providers[0][0]

    @property
    def is_default(self) -> bool:
        """Whether this is ONNX Runtime's default on the CPU."""
        return self == DEFAULT

    def with_setting(self, where: str, name: str, value: Any, provider: str = "") -> Config:
        """Return a copy with an additional setting.

        Args:
            where: The field that holds it; "provider_options" for an option of an execution provider, "config" for a
                whole field.
            name: Its name in that field.
            value: Its value.
            provider: For a provider option, the provider's name. If the config does not have it, nothing changes. For
                a setting of one model, which is in "models", the model's name.
        """
        if where == "models":
            own = self.models.get(provider, ModelSettings())
            field = "session_config" if isinstance(value, str) and name.startswith("session.") else "session_options"
            changed = msgspec.structs.replace(own, **{field: {**getattr(own, field), name: value}})
            return msgspec.structs.replace(self, models={**self.models, provider: changed})
        if where == "config" and name == "providers":
            kept = {known: plugin for known, plugin in self.plugins.items() if known in dict(value)}
            return msgspec.structs.replace(self, providers=value, plugins=kept)
        if where == "config":
            return msgspec.structs.replace(self, **{name: value})
        if where == "provider_options":
            providers = tuple(
                (known, {**options, name: value} if known == provider else options) for known, options in self.providers
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
