"""Lists the devices that execution providers can use on this host.

A child process loads the library of each plugin package, because it may crash.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import msgspec

from ortune.interpreter import PYTHON
from ortune.knobs.config import PROVIDER_OF, PluginPackage
from ortune.replaceable import replaceable
from ortune.worker.child_process import make_environment
from ortune.worker.plugins import Device, describe_device, find_plugin_versions, register_plugin
from ortune.worker.runtime import explain_provider_fault

LIST_DEVICES = """
import sys, msgspec
from ortune.prctl import die_with_parent
die_with_parent()
from ortune.worker.devices import list_devices
sys.stdout.write("\\n" + msgspec.json.encode(list_devices(sys.argv[1] or None)).decode())
"""
LIST_DEVICES_TIMEOUT_S = 60.0


class InstalledPlugin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An installed plugin package.

    Attributes:
        package: Its name.
        version: Its version; empty if unknown.
        provider: ONNX Runtime's name of its execution provider.
        fault: Why its library cannot be used here; empty if it has a device.
    """

    package: PluginPackage
    version: str
    provider: str
    fault: str = ""


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this host, as ONNX Runtime and the installed plugin packages report them.

    Attributes:
        devices: Those of onnxruntime itself first.
        plugins: The installed plugin packages.
    """

    devices: tuple[Device, ...] = ()
    plugins: tuple[InstalledPlugin, ...] = ()


def list_devices(package: PluginPackage | None = None) -> list[Device]:
    """Return the devices of a plugin package, or those of onnxruntime itself. Call it in a child process.

    Raises:
        UsageError: The package is not installed, or this onnxruntime cannot load plugins.
        Exception: Any exception that onnxruntime raises for a library that it cannot load.
    """
    import onnxruntime

    if not hasattr(onnxruntime, "get_ep_devices"):
        return []
    if not package:
        return [describe_device(device) for device in onnxruntime.get_ep_devices()]
    register_plugin(package)
    provider = PROVIDER_OF[package]
    return [describe_device(device, package) for device in onnxruntime.get_ep_devices() if device.ep_name == provider]


@replaceable
def read_devices() -> Devices:
    """Return the devices of this host."""
    versions = find_plugin_versions()
    children = {package: _start_listing(package) for package in (None, *versions)}
    devices: list[Device] = []
    plugins = []
    for package, child in children.items():
        found, fault = _finish_listing(child)
        devices += found
        if package:
            plugins.append(
                InstalledPlugin(
                    package=package,
                    version=versions[package],
                    provider=PROVIDER_OF[package],
                    fault=fault or ("" if found else "it finds no device on this host"),
                )
            )
    return Devices(devices=tuple(devices), plugins=tuple(plugins))


def _start_listing(package: PluginPackage | None) -> subprocess.Popen[str] | None:
    command = [*PYTHON, "-c", LIST_DEVICES, package or ""]
    try:
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",  # libraries print what they like
            env=make_environment(),
        )
    except OSError:
        return None


def _finish_listing(child: subprocess.Popen[str] | None) -> tuple[Sequence[Device], str]:
    """Return the devices that a child lists, or why it lists none."""
    if child is None:
        return (), "no process can be started to load it"
    try:
        out, log = child.communicate(timeout=LIST_DEVICES_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return (), f"its library did not load within {LIST_DEVICES_TIMEOUT_S:.0f} s"
    if child.returncode == 0:
        try:
            return msgspec.json.decode(out.splitlines()[-1], type=tuple[Device, ...]), ""
        except (msgspec.DecodeError, IndexError):
            return (), "its devices cannot be read"
    return (), explain_provider_fault(log, child.returncode)
