"""Combine the execution providers of a record with those that the program requests, for one session."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

CPU = "CPUExecutionProvider"

ALIASES = {
    CPU: "cpu",
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "nv_tensorrt_rtx",
    "OpenVINOExecutionProvider": "openvino",
    "WebGpuExecutionProvider": "webgpu",
}
"""Short names of providers. They are prefixes of the options of providers."""

CUDA_BASED = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
"""Providers whose libraries onnxruntime may have to load from NVIDIA's wheels."""

DEVICE = "device_id"
"""Option of all CUDA-based providers: the GPU."""

REMOTE = ("AzureExecutionProvider",)
"""Providers that call a remote service. They run only operators that are made for them."""

LIBRARY = "shared_lib_path"
"""Option with which onnxruntime loads a provider that it does not have itself."""

Options = dict[str, str]


class Skip(Exception):  # noqa: N818  (not an error)
    """A session keeps the program's own options; the message says why."""


class ProviderChoice:
    """The execution providers of a session, and what became of those that the program requests.

    Providers that the program requests, but that run no part of a model here, stay where the program has them. Programs
    often request all providers that they know, or all that onnxruntime has.

    Args:
        wanted: Providers of the record's config, most important first, each with its options.
        requested: Providers that the program requests, as `read_requested` returns them.
        covered: Names of the providers that the record covers, in addition to the CPU.
        known: Names of the providers that onnxruntime has here.
        keep: Whether the program's own settings take precedence.

    Attributes:
        names: Names of the providers, most important first.
        options: Options of each provider.
        set: Tuned providers and options that the session has.
        replaced: Providers and options of the program that the session does not have.
        not_set: Tuned providers and options that the session does not have, each with the reason.
        dropped: Providers that the program requests and that the session does not have.
        reordered: Whether providers have a different order than in the program.

    Raises:
        Skip: The program requests a provider that the record does not cover. If `keep` is true: the program's first
            provider is not the record's.
    """

    def __init__(
        self,
        wanted: Sequence[Sequence[Any]],
        requested: dict[str, Options],
        covered: Collection[str],
        known: Collection[str],
        *,
        keep: bool,
    ) -> None:
        self._ours: dict[str, Options] = {name: dict(options) for name, options in wanted}
        self._theirs = requested
        self.set: dict[str, str] = {}
        self.replaced: dict[str, str] = {}
        self.not_set: list[str] = []
        self.dropped: list[str] = []
        self.reordered = False
        idle = [name for name in requested if name in REMOTE or not _is_there(name, requested[name], known)]
        active = [name for name in requested if name not in idle]
        uncovered = [name for name in active if name not in covered and name not in self._ours and name != CPU]
        if uncovered:
            raise Skip(f"the program requests {', '.join(uncovered)}, which the record does not cover")
        if keep and active:
            self._keep(active)
        else:
            self._tune(active)
        place = 0
        for name in requested:
            if name in self.names:
                place = self.names.index(name) + 1
            elif name in idle:
                self.names.insert(place, name)
                place += 1
        self.options: list[Options] = [self._combine(name, keep=keep) for name in self.names]
        self._note_options()

    def _keep(self, active: list[str]) -> None:
        """Use the providers that the program requests."""
        first = next(iter(self._ours))
        if active[0] != first:
            raise Skip(f"the program requests {active[0]}, but the record is for {first}")
        self.names = list(active)
        if _chain(active) != _chain(self._ours):
            self.not_set.append(f"providers={','.join(self._ours)} (the program's {','.join(active)} are kept)")
        elif _chain(active) != [CPU]:
            self.set["providers"] = ",".join(self.names)

    def _tune(self, active: list[str]) -> None:
        """Use the providers of the record's config."""
        self.names = list(self._ours)
        if _chain(self.names) != [CPU]:
            self.set["providers"] = ",".join(self.names)
        if not active or _chain(active) == _chain(self.names):
            return
        self.replaced["providers"] = ",".join(active)
        self.dropped = [name for name in active if name not in self._ours and name != CPU]
        common = [name for name in _chain(active) if name in self.names]
        self.reordered = common != [name for name in self.names if name in common]

    def _combine(self, name: str, *, keep: bool) -> Options:
        """Return the options of a provider."""
        theirs, ours = self._theirs.get(name, {}), self._ours.get(name, {})
        if name in CUDA_BASED and name not in self._theirs:
            # A program that runs on a GPU other than the first continues to run on that GPU.
            devices = [own[DEVICE] for other, own in self._theirs.items() if other in CUDA_BASED and DEVICE in own]
            theirs = {DEVICE: devices[0]} if devices else {}
        return {**ours, **theirs} if keep else {**theirs, **ours}

    def _note_options(self) -> None:
        """Note which options of the program and of the config took effect."""
        final = dict(zip(self.names, self.options, strict=True))
        for name, options in self._ours.items():
            for option, value in options.items():
                kept = final.get(name, {}).get(option)
                if kept == value:
                    self.set[show_option(name, option)] = value
                else:
                    reason = f"the program's {kept} is kept" if kept else "the program does not request the provider"
                    self.not_set.append(f"{show_option(name, option)}={value} ({reason})")
        for name, options in self._theirs.items():
            for option, value in options.items():
                if final.get(name, {}).get(option) != value:
                    self.replaced[show_option(name, option)] = value


class KeptProviders:
    """The execution providers that a program requests, unchanged, for settings that apply with any provider.

    Its attributes are those of `ProviderChoice`.

    Args:
        requested: Providers that the program passes to InferenceSession, with their options.
    """

    reordered = False

    def __init__(self, requested: dict[str, Options]) -> None:
        self.names = list(requested) or None
        self.options = list(requested.values()) or None
        self.set: dict[str, str] = {}
        self.replaced: dict[str, str] = {}
        self.not_set: list[str] = []
        self.dropped: list[str] = []


def read_requested(providers: Any, options: Any) -> dict[str, Options]:
    """Return the providers that a program requests, with their options, as onnxruntime reads the two arguments.

    Args:
        providers: Names, or pairs of a name and options; None if the program requests none.
        options: Options of each provider, if `providers` has names only; else None.

    Raises:
        Skip: onnxruntime rejects the arguments.
    """
    if providers is None:
        return {}
    rejected = Skip("the program's providers are not valid")
    if not isinstance(providers, Sequence) or isinstance(providers, (str, bytes)):
        raise rejected
    pairs = [(provider, {}) if isinstance(provider, str) else provider for provider in providers]
    if options is not None:
        is_valid = isinstance(options, Sequence) and all(isinstance(provider, str) for provider in providers)
        if not is_valid or len(options) != len(providers):
            raise rejected
        pairs = list(zip(providers, options, strict=True))
    found: dict[str, Options] = {}
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], dict)):
            raise rejected
        # The first of several with the same name counts.
        found.setdefault(pair[0], {str(name): str(value) for name, value in pair[1].items()})
    return found


def list_known(onnxruntime: Any, requested: Collection[str]) -> set[str]:
    """Return the names of the providers that onnxruntime has. Plugins are listed only if one may be requested."""
    known = set(onnxruntime.get_available_providers())
    if not known.issuperset(requested) and hasattr(onnxruntime, "get_ep_devices"):
        known.update(device.ep_name for device in onnxruntime.get_ep_devices())
    return known


def show_option(provider: str, option: str) -> str:
    """Return the name of a provider's option, such as `cuda.device_id`."""
    alias = ALIASES.get(provider) or provider.replace("ExecutionProvider", "").lower()
    return f"{alias}.{option}"


def _is_there(name: str, options: Options, known: Collection[str]) -> bool:
    """Return whether onnxruntime has a provider. It warns about others, and creates the session without them."""
    return name in known or LIBRARY in options


def _chain(names: Collection[str]) -> list[str]:
    """Return names with the CPU at the end, which onnxruntime adds."""
    return [*names] if CPU in names else [*names, CPU]
