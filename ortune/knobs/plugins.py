"""Plugin packages: Python packages with the library of an execution provider, for any package of onnxruntime.

ortune loads libraries of these packages only. A record is untrusted, and can name one of them, but no other package and
no file.

Sources: the packages on PyPI, as of November 2026, and
https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/usage.html
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ortune.knobs.config import PROVIDER_OF, PluginPackage


class PluginModule(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin package contains.

    Attributes:
        module: The module to import.
        function: The function of this module that returns the path of the library.
        variants: Packages that contain the module if the package itself only requires them.
    """

    module: str
    function: str = "get_library_path"
    variants: tuple[str, ...] = ()


PLUGIN_MODULES: Mapping[PluginPackage, PluginModule] = {
    "onnxruntime-ep-openvino": PluginModule(module="onnxruntime_ep_openvino"),
    "onnxruntime-ep-webgpu": PluginModule(module="onnxruntime_ep_webgpu"),
    "onnxruntime-ep-nv-tensorrt-rtx": PluginModule(
        module="onnxruntime_ep_nv_tensorrt_rtx",
        variants=("onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-ep-nv-tensorrt-rtx-cu12"),
    ),
    "onnxruntime-qnn": PluginModule(module="onnxruntime_qnn"),
    "onnxruntime-ep-mlx": PluginModule(module="onnxruntime_ep_mlx", function="library_path"),
}
"""The plugin packages that ortune knows."""

PLUGIN_OF: Mapping[str, PluginPackage] = {provider: package for package, provider in PROVIDER_OF.items()}
"""The plugin package of each execution provider that has one."""
