"""The execution providers that ortune supports, and how to find one by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from ortune.errors import UsageError
from ortune.knobs.config import CPU, CPU_PROVIDER, CUDA_BASED, Provider, alias_of
from ortune.knobs.data_files import PROVIDER_FILES, ExecutionProvider, read_file
from ortune.knobs.plugins import PLUGIN_OF

PROVIDERS: Mapping[str, ExecutionProvider] = {
    provider.name: provider for name in PROVIDER_FILES if (provider := read_file(f"providers/{name}").provider)
}
"""Supported providers by name. Others can be used, but their options are not checked."""

PROVIDER_SUFFIX = "ExecutionProvider"


OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "gpu": ("cuda", "tensorrt"),
    "nvidia": ("cuda", "tensorrt"),
    "trt": ("tensorrt",),
    "intel": ("openvino",),
    "npu": ("openvino", "qnn"),
    "ov": ("openvino",),
    "amd": ("migraphx",),
    "directml": ("dml",),
    "apple": ("coreml",),
    "qualcomm": ("qnn",),
    "ryzen": ("vitisai",),
    "x86": ("cpu",),
}
"""What users call providers."""


def find_provider(text: str) -> ExecutionProvider:
    """Return the provider of that name or short name. An unknown provider has no options that are checked.

    Raises:
        UsageError: The text is not the name of a known provider and does not have the form of one.
    """
    for known in PROVIDERS.values():
        if text.lower() in {known.name.lower(), known.alias}:
            return known
    for name, package in PLUGIN_OF.items():
        if text.lower() in {name.lower(), alias_of(name)}:
            return ExecutionProvider(name=name, alias=alias_of(name), package=package)
    if text.endswith(PROVIDER_SUFFIX) and text != PROVIDER_SUFFIX:
        return ExecutionProvider(name=text, alias=alias_of(text), package="another build of onnxruntime")
    names = [*(known.alias for known in PROVIDERS.values()), *(alias_of(name) for name in PLUGIN_OF)]
    names = list(dict.fromkeys(names))
    near = OTHER_NAMES.get(text.lower(), ()) or difflib.get_close_matches(text.lower(), names, n=1)
    raise UsageError(
        f"{text}: there is no such execution provider.",
        f"Did you mean {' or '.join(near)}?"
        if near
        else f"Known providers: {', '.join(names)}. Give others by their full name, such as DnnlExecutionProvider.",
    )


def chain_of(name: str) -> tuple[Provider, ...]:
    """Return the providers of a config for this provider: the provider itself, its fallbacks, and the CPU."""
    if name == CPU:
        return (CPU_PROVIDER,)
    return (name, {}), *((fallback, {}) for fallback in find_provider(name).fallback), CPU_PROVIDER


def multiplies_in_tf32(providers: Iterable[Provider]) -> bool:
    """Return whether one of these providers multiplies float32 in TF32, as those for NVIDIA GPUs do by default."""
    return any(
        name in CUDA_BASED and options.get("use_tf32", "1").lower() not in {"0", "false"} for name, options in providers
    )
