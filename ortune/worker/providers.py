"""Chooses the execution providers that work on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import CPU, Config, DeviceType, Plugin
from ortune.knobs.plugins import PLUGIN_OF
from ortune.knobs.providers import chain_of, find_provider
from ortune.worker.installed import is_installed
from ortune.worker.plugins import find_plugins
from ortune.worker.runtime import (
    NOT_FOR_SEARCHES,
    find_provider_fault,
    read_installed_runtime,
    require_installed_runtime,
)

DEVICE_TYPES: tuple[str, ...] = tuple(filter(None, get_args(DeviceType)))


class ChosenProviders(msgspec.Struct, frozen=True, kw_only=True):
    """The execution providers that a search tries.

    Attributes:
        names: Those that work on this host.
        faults: The reason why others do not work, by name.
        plugins: Plugins that contain the providers that are not part of onnxruntime, by the provider's name.
    """

    names: tuple[str, ...]
    faults: Mapping[str, str] = {}
    plugins: Mapping[str, Plugin] = {}


def choose_providers(
    wanted: Sequence[str] | None, options: Mapping[str, Mapping[str, str]] | None = None
) -> ChosenProviders:
    """Return the execution providers to try, and the reasons why others do not work on this host.

    Args:
        wanted: Names or short names; None for the CPU and all others that work. A device of a plugin may follow after
            colons, as in `openvino:gpu` or `openvino:gpu:Intel`.
        options: Options that every session has, by the provider's name. Some providers do not work without any.

    Raises:
        UsageError: A name or a device is unknown, or none of the wanted providers works.
        HostError: onnxruntime is installed, but cannot be imported.
    """
    filters = dict(map(_parse_provider, wanted or ()))
    if wanted is not None and set(filters) == {CPU}:
        return ChosenProviders(names=(CPU,))
    if wanted is not None and len(filters) < len(set(wanted)):
        raise UsageError(f"{','.join(wanted)}: each provider can be given once.", option="provider")
    # Without the providers that it has, a search would silently try the CPU alone.
    if is_installed():
        known = require_installed_runtime().providers
        installed = "the installed onnxruntime does not have it"
        found = find_plugins(filters if wanted else PLUGIN_OF, known)
    else:
        known = ()
        installed = "onnxruntime is not installed"
        found = {}
    names = tuple(filters) if wanted else (CPU, *(name for name in known if name not in {CPU, *NOT_FOR_SEARCHES}))
    names = tuple(dict.fromkeys((*names, *found)))
    plugins, faults = {}, {}
    for name in names:
        if name == CPU:
            continue
        given = filters.get(name, {})
        if name in found:
            plugins[name] = msgspec.structs.replace(found[name], **given)
        elif given and name in known:
            device = " ".join(given.values())
            raise UsageError(
                f"{name}: the device {device} cannot be chosen, because onnxruntime itself has this provider.",
                "Choose the device with an option of the provider.",
                option="provider",
            )
        elif name not in known:
            packages = dict.fromkeys([find_provider(name).package, *filter(None, [PLUGIN_OF.get(name)])])
            faults[name] = f"{installed}; {' or '.join(packages)} has it"
            continue
        chain = tuple((provider, {**own, **(options or {}).get(provider, {})}) for provider, own in chain_of(name))
        if fault := find_provider_fault(Config(providers=chain).with_plugins(plugins)):
            faults[name] = fault
    working = tuple(name for name in names if name not in faults)
    if not working:
        reasons = "; ".join(f"{find_provider(name).alias}: {fault}" for name, fault in faults.items())
        needs = "; ".join(needs for name in names if (needs := find_provider(name).needs))
        raise UsageError(
            f"{','.join(wanted or ())}: none of these providers works here. {reasons}.",
            f"It needs {needs}." if needs else "`ortune host` lists the devices of this host.",
            option="provider",
        )
    return ChosenProviders(
        names=working, faults=faults, plugins={name: plugins[name] for name in working if name in plugins}
    )


def find_plugins_of(config: Config) -> Config:
    """Return a config with the plugins that are installed for those of its providers that onnxruntime does not have."""
    missing = [name for name, _ in config.providers if name in PLUGIN_OF and name not in config.plugins]
    if not missing:
        return config
    runtime = read_installed_runtime()
    return config.with_plugins(find_plugins(missing, runtime.providers)) if runtime else config


def _parse_provider(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of a provider, and the fields of `Plugin` that choose its device."""
    name, *filters = text.split(":")
    provider = find_provider(name).name
    given: dict[str, str] = {}
    for part in filters:
        field = "device_type" if part.lower() in DEVICE_TYPES else "vendor"
        if not part or field in given:
            raise UsageError(
                f"{text}: not a provider with a device.",
                "Write NAME:TYPE, NAME:VENDOR or NAME:TYPE:VENDOR, as in openvino:gpu. "
                f"Types are {', '.join(DEVICE_TYPES)}.",
                option="provider",
            )
        given[field] = part.lower() if field == "device_type" else part
    if given and provider not in PLUGIN_OF:
        known = ", ".join(find_provider(provider).alias for provider in PLUGIN_OF)
        raise UsageError(
            f"{text}: a device can be chosen only for providers of plugin packages.",
            f"These are {known}.",
            option="provider",
        )
    if given:
        try:
            Plugin(package=PLUGIN_OF[provider], **given)  # type: ignore[arg-type]
        except ValueError as error:
            raise UsageError(
                f"{text}: {error}.", "`ortune host` lists the devices of this host.", option="provider"
            ) from None
    return provider, given
