"""How ONNX Runtime's C API accepts each execution provider. The APIs of C++ and C# pass its names on unchanged.

Source: onnxruntime/core/session/provider_registration.cc of onnxruntime 1.32, whose error for an unknown name lists all
names, and include/onnxruntime/core/session/onnxruntime_c_api.h.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ortune.knobs.config import CPU, Plugin

BY_NAME: Mapping[str, str] = {
    "AzureExecutionProvider": "AZURE",
    "CoreMLExecutionProvider": "CoreML",
    "DmlExecutionProvider": "DML",
    "JsExecutionProvider": "JS",
    "MIGraphXExecutionProvider": "MIGraphX",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "SNPEExecutionProvider": "SNPE",
    "VitisAIExecutionProvider": "VitisAI",
    "WebGpuExecutionProvider": "WebGPU",
    "WebNNExecutionProvider": "WEBNN",
    "XnnpackExecutionProvider": "XNNPACK",
}
"""Names for AppendExecutionProvider. All others are errors, even if they differ only in case."""

WITHOUT_OPTIONS = frozenset(
    {
        "ACLExecutionProvider",
        "ArmNNExecutionProvider",
        "NnapiExecutionProvider",
        "RknpuExecutionProvider",
        "TvmExecutionProvider",
        "VSINPUExecutionProvider",
    }
)
"""Providers that have neither a name nor a class of options, only their own functions in their builds."""

STRUCTURES = frozenset(
    {
        "CANNExecutionProvider",
        "CUDAExecutionProvider",
        "DnnlExecutionProvider",
        "ROCMExecutionProvider",
        "TensorrtExecutionProvider",
    }
)
"""Providers that have no name, but a class of options."""

PLUGIN_LIBRARY = "/path/to/the/library/of/the/provider"
"""Placeholder for the library of a plugin in exported code. Records do not name files."""


def is_plugin(provider: str, plugins: Collection[str] = ()) -> bool:
    """Return whether a provider is in a separate library, which programs must register.

    These are those of a config's plugins, all that ONNX Runtime does not know, and TensorRT RTX, which it contained
    only before 1.32.

    Args:
        provider: The provider.
        plugins: Providers whose libraries come from plugin packages, even if ONNX Runtime has one of the same name.
    """
    return provider in plugins or provider not in {CPU, *BY_NAME, *WITHOUT_OPTIONS, *STRUCTURES}


def describe_library(plugin: Plugin | None) -> str:
    """Return what a comment says about the path of a library.

    Args:
        plugin: Where the library comes from; None if that is not known.
    """
    return f"change the path: the library is in the Python package {plugin.package}" if plugin else "change the path"
