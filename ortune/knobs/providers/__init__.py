"""The execution providers, one file each, behind the interface of `interface.py`."""

from __future__ import annotations

import difflib

from ortune.errors import UsageError
from ortune.knobs.config import CPU, CPU_PROVIDER, Provider, alias_of
from ortune.knobs.providers import cpu, cuda, nv_tensorrt_rtx, openvino, tensorrt
from ortune.knobs.providers.interface import ExecutionProvider

PROVIDERS = {
    each.name: each
    for each in (cpu.PROVIDER, cuda.PROVIDER, tensorrt.PROVIDER, nv_tensorrt_rtx.PROVIDER, openvino.PROVIDER)
}
"""Those that ortune knows well. Others can be used with options that the user gives."""

SUFFIX = "ExecutionProvider"


def find_provider(text: str) -> ExecutionProvider:
    """Return the provider of that name, or short name; one that is not known has no options that are checked.

    Raises:
        UsageError: It is neither known nor a name of ONNX Runtime's form.
    """
    for each in PROVIDERS.values():
        if text.lower() in {each.name.lower(), each.alias}:
            return each
    if text.endswith(SUFFIX) and text != SUFFIX:
        return ExecutionProvider(name=text, alias=alias_of(text), options=(), package="the onnxruntime that has it")
    names = [each.alias for each in PROVIDERS.values()]
    near = difflib.get_close_matches(text.lower(), names, n=1)
    raise UsageError(
        f"There is no execution provider {text}.",
        f"Did you mean {near[0]}?"
        if near
        else f"Known are {', '.join(names)}; others by their full name, as in DnnlExecutionProvider.",
    )


def chain_of(name: str) -> tuple[Provider, ...]:
    """Return the providers of a config that is meant for this one: itself, those behind it, and the CPU."""
    if name == CPU:
        return (CPU_PROVIDER,)
    return (name, {}), *((each, {}) for each in find_provider(name).behind), CPU_PROVIDER
