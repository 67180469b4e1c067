"""Add execution providers from plugin packages to the sessions of a program, and find those that it adds itself."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortune.apply.inside.options_log import ADDS_PROVIDER, OptionsLog
from ortune.apply.inside.providers import CPU, Options, ProviderChoice, Skip

BY_POLICY = ("set_provider_selection_policy", "set_provider_selection_policy_delegate")
"""Methods of SessionOptions with which ONNX Runtime itself selects devices."""

ASSIGNMENT_ENTRY = "session.record_ep_graph_assignment_info"
"""Configuration entry of a session that records which nodes each provider runs."""

MISCOUNTED = ("WebGpuExecutionProvider",)
"""Providers whose nodes ONNX Runtime does not record completely, because it changes their layout."""

REGISTER, UNREGISTER = "register_execution_provider_library", "unregister_execution_provider_library"


class PluginLibraries:
    """The libraries of providers that the hook has registered in this process.

    A program may register a library under the same name later, which would be an error. It then gets the registered
    library, and cannot unload it while sessions use it.

    Args:
        say: Writes a message.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._paths: dict[str, str] = {}
        self._lock = threading.RLock()
        self._register: Callable[..., Any] | None = None

    def patch(self, *modules: Any) -> None:
        """Replace the functions that register and unregister libraries, in all modules that have them."""
        for module in modules:
            register, unregister = getattr(module, REGISTER, None), getattr(module, UNREGISTER, None)
            if register is not None and unregister is not None:
                self._register = self._register or register
                setattr(module, REGISTER, self._wrap_register(register))
                setattr(module, UNREGISTER, self._wrap_unregister(unregister))

    def _wrap_register(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def call(name: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            known = self._paths.get(name) if isinstance(name, str) else None
            if known is None:
                return register(name, path, *args, **kwargs)
            if not Path(path).exists() or not Path(path).samefile(known):
                self._say(f"the program registers {path} as {name}, but {known} is already registered, and is kept.")
            return None

        return call

    def _wrap_unregister(self, unregister: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(unregister)
        def call(name: Any, *args: Any, **kwargs: Any) -> Any:
            return None if name in self._paths else unregister(name, *args, **kwargs)

        return call

    def find_device(self, onnxruntime: Any, provider: str, plugin: dict[str, str]) -> Any:
        """Return the device of a provider, and register the library of the provider if the program has not done so.

        Args:
            onnxruntime: The module.
            provider: Name of the provider.
            plugin: Its library and its device; see `ortune.apply.plan.describe_plugin`.

        Raises:
            Skip: The library cannot be loaded, or there is no such device.
        """
        package = plugin["package"]
        if self._register is None:
            raise Skip(f"the installed onnxruntime {onnxruntime.__version__} cannot load {package}")
        with self._lock:
            found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
            if not found and provider not in self._paths:
                try:
                    path = str(getattr(importlib.import_module(plugin["module"]), plugin["function"])())
                    self._register(provider, path)
                except ImportError:
                    raise Skip(f"{package} is not installed") from None
                except Exception as error:  # noqa: BLE001  (packages and onnxruntime may raise anything)
                    raise Skip(f"{package} cannot be loaded: {str(error).strip().partition(chr(10))[0]}") from None
                self._paths[provider] = path
                found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
        device_type, vendor = plugin["device_type"], plugin["vendor"]
        for device in found:
            is_type = device_type in ("", device.device.type.name.lower())
            if is_type and vendor.lower() in ("", str(device.device.vendor).lower()):
                return device
        wanted = f"{device_type} {vendor}".strip()
        raise Skip(f"{package} finds no device{f' {wanted}' if wanted else ''} on this host")


class OwnDevices:
    """The providers of a program that adds them to SessionOptions itself. They are kept.

    Its attributes are those of `ProviderChoice`.

    Args:
        selected: Providers that the program adds, as `read_selected` returns them.
        wanted: Providers of the record's config, most important first, each with its options.

    Raises:
        Skip: The program's first provider is not the record's.
    """

    names = None
    options = None
    reordered = False

    def __init__(self, selected: dict[str, Options], wanted: list[tuple[str, Options]]) -> None:
        ours, theirs = wanted[0][0], next(iter(selected), CPU)
        if ours != theirs:
            raise Skip(f"the program selects {theirs} by device, but the record is for {ours}")
        self.set: dict[str, str] = {}
        self.replaced: dict[str, str] = {}
        self.dropped: list[str] = []
        self.not_set = [
            f"{option}={value} of {name} (the program selects the provider by device, with its own options)"
            for name, options in wanted
            for option, value in options.items()
            if selected.get(name, {}).get(option) != value
        ]


def has_providers(options: Any) -> bool:
    """Return whether a program adds providers to SessionOptions, instead of passing them to InferenceSession."""
    return hasattr(options, "has_providers") and bool(options.has_providers())


def read_selected(options: Any, log: OptionsLog) -> dict[str, Options] | None:
    """Return the providers that a program adds to SessionOptions, with their options; None if it adds none.

    Args:
        options: SessionOptions of the program, or None.
        log: Log of SessionOptions.

    Raises:
        Skip: ONNX Runtime selects them, or they are not known.
    """
    if not has_providers(options):
        return None
    if not log.is_complete(options):
        raise Skip("the program selects execution providers by device")
    selected: dict[str, Options] = {}
    for method, args, kwargs in log.calls_of(options):
        if method in BY_POLICY:
            raise Skip("the program lets ONNX Runtime select execution providers by a policy")
        if method in ADDS_PROVIDER:
            first, given = [*args, *kwargs.values(), {}, {}][:2]
            name = first if isinstance(first, str) else str(first[0].ep_name)
            selected.setdefault(name, {str(key): str(value) for key, value in dict(given or {}).items()})
    return selected


def add_providers(options: Any, providers: ProviderChoice, devices: dict[str, Any], known: set[str]) -> None:
    """Add providers to SessionOptions, as sessions with a plugin require.

    Args:
        options: SessionOptions.
        providers: The providers, with their options.
        devices: Devices of those that come from plugins, by the provider's name.
        known: Names of the providers that onnxruntime has. It ignores others.
    """
    for name, own in zip(providers.names, providers.options, strict=True):
        if name in devices:
            options.add_provider_for_devices([devices[name]], own)
        elif name in known and (name != CPU or own):  # onnxruntime adds the CPU provider itself
            options.add_provider(name, own)


def find_unapplied(session: Any, provider: str) -> str:
    """Return why a session does not use a provider, as a clause; "" if it does, or if that is unknown.

    ONNX Runtime creates sessions whose provider runs nothing, without an error.
    """
    if provider not in session.get_providers():
        return f"ONNX Runtime created the session without {provider}"
    read = getattr(session, "get_provider_graph_assignment_info", None)
    parts = list(read()) if read and provider not in MISCOUNTED else []
    if parts and not any(part.ep_name == provider and part.get_nodes() for part in parts):
        return f"{provider} runs none of the nodes"
    return ""
