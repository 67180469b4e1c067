"""Execution providers from plugin packages: finds the packages, and adds the providers to sessions.

ONNX Runtime loads the library of such a provider into the process when it is registered. A session then gets the
provider through a device. onnxruntime is imported by the functions, so that importing this module is cheap.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import CPU, PROVIDER_OF, Config, DeviceType, Plugin, PluginPackage
from ortune.knobs.plugin_options import spell_for_plugins
from ortune.knobs.plugins import PLUGIN_MODULES, PLUGIN_OF

if TYPE_CHECKING:
    import onnxruntime


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device that an execution provider can use on this host.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        vendor: Vendor of the device; empty if unknown.
        device_type: Type of the device.
        package: The plugin package of the provider; None if onnxruntime itself has the provider.
    """

    provider: str
    vendor: str
    device_type: DeviceType
    package: PluginPackage | None = None


def find_plugin_versions() -> dict[PluginPackage, str]:
    """Return the versions of the installed plugin packages, without importing them."""
    found: dict[PluginPackage, str] = {}
    for package, plugin in PLUGIN_MODULES.items():
        if not _has_module(plugin.module):
            continue
        found[package] = ""
        for name in (*plugin.variants, package):
            try:
                found[package] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def _has_module(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # None is a folder without a module


def find_plugins(names: Iterable[str], built_in: Collection[str]) -> dict[str, Plugin]:
    """Return the installed plugins for providers that onnxruntime does not have itself.

    Args:
        names: Names of providers.
        built_in: Names of the providers that onnxruntime has.
    """
    installed = find_plugin_versions()
    return {
        name: Plugin(package=package)
        for name in names
        if name not in built_in and (package := PLUGIN_OF.get(name)) in installed and package
    }


_registered: set[str] = set()
"""Providers whose libraries are registered in this process."""


def list_built_in() -> list[str]:
    """Return the names of the providers that the imported onnxruntime has itself."""
    import onnxruntime

    # Since 1.32, those of registered libraries are listed, too.
    return [name for name in onnxruntime.get_available_providers() if name not in _registered]


def register_plugin(package: PluginPackage) -> None:
    """Load the library of a plugin package into this process, and register it with ONNX Runtime, once.

    If the program has registered a library of this provider itself, that one is used.

    Raises:
        UsageError: The package is not installed, or this onnxruntime cannot load plugins.
        Exception: Any exception that onnxruntime raises for a library that it cannot load.
    """
    plugin, provider = PLUGIN_MODULES[package], PROVIDER_OF[package]
    if provider in _registered:
        return
    import onnxruntime

    register = getattr(onnxruntime, "register_execution_provider_library", None)
    if register is None:
        raise UsageError(
            f"This onnxruntime ({onnxruntime.__version__}) cannot load {package}.", "Install onnxruntime 1.23 or later."
        )
    if any(device.ep_name == provider for device in onnxruntime.get_ep_devices()):
        return
    if not _has_module(plugin.module):
        raise UsageError(f"{package} is not installed.", f"Install it alongside onnxruntime: pip install {package}")
    path = getattr(importlib.import_module(plugin.module), plugin.function)()
    # Some libraries name their provider after the registration.
    register(provider, str(path))
    _registered.add(provider)


def find_device(provider: str, plugin: Plugin) -> Any:
    """Return the first device that ONNX Runtime lists for a provider, as `OrtEpDevice`.

    Args:
        provider: The provider, whose library is registered.
        plugin: Which devices it may use.

    Raises:
        UsageError: There is none.
    """
    import onnxruntime

    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    for ep_device in found:
        device = describe_device(ep_device)
        if plugin.device_type in {"", device.device_type} and plugin.vendor.lower() in {"", device.vendor.lower()}:
            return ep_device
    if not found:
        raise UsageError(f"{plugin.package} finds no device for {provider} on this host.")
    others = ", ".join(f"{other.device_type} {other.vendor}".strip() for other in map(describe_device, found))
    wanted = f"{plugin.device_type} {plugin.vendor}".strip()
    raise UsageError(f"{provider} has no device {wanted} on this host. It has {others}.")


def add_providers(options: onnxruntime.SessionOptions, config: Config) -> None:
    """Add the providers of a config that has plugins to SessionOptions.

    Raises:
        UsageError: A plugin is not installed, or has no device.
        Exception: Any exception that onnxruntime raises.
    """
    for name, own in spell_for_plugins(config).providers:
        plugin = config.plugins.get(name)
        if plugin:
            register_plugin(plugin.package)
            options.add_provider_for_devices([find_device(name, plugin)], own)
        elif name != CPU or own:  # onnxruntime adds the CPU provider itself
            options.add_provider(name, own)


def describe_device(found: Any, package: PluginPackage | None = None) -> Device:
    """Return an `OrtEpDevice` as a device of ortune."""
    kind = str(found.device.type.name).lower()
    return Device(provider=found.ep_name, vendor=str(found.device.vendor), device_type=kind, package=package)  # type: ignore[arg-type]
