"""How plugins of execution providers spell options that the provider in a package of onnxruntime has, too.

OpenVINO's plugin ignores some options and reads OpenVINO's properties from the option `load_config` instead: JSON, with
an object of properties for each device. Configs have the options under both packages, so that they can be compared,
and a record needs no text that could name files.

Source: `advise_on_load_config_entries` in the plugin of onnxruntime-ep-openvino 1.8.1, whose warnings name the property
of each option, and the supported properties of OpenVINO's devices,
https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from ortune.knobs.config import Config, Plugin

OPENVINO = "OpenVINOExecutionProvider"

LOAD_CONFIG = "load_config"

ALL_DEVICES = ("CPU", "GPU", "NPU")

PROPERTIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cache_dir": ("CACHE_DIR", ALL_DEVICES),
    "model_priority": ("MODEL_PRIORITY", ALL_DEVICES),
    "num_of_threads": ("INFERENCE_NUM_THREADS", ("CPU",)),
    "num_streams": ("NUM_STREAMS", ("CPU", "GPU")),
}
"""By option: the property of OpenVINO, and the devices that have it."""


def spell_for_plugins(config: Config) -> Config:
    """Return a config whose provider options are spelled as the plugins of the config read them."""
    plugin = config.plugins.get(OPENVINO)
    if plugin is None:
        return config
    providers = tuple(
        (name, _to_properties(options, plugin) if name == OPENVINO else options) for name, options in config.providers
    )
    return config if providers == config.providers else msgspec.structs.replace(config, providers=providers)


def _to_properties(options: Mapping[str, str], plugin: Plugin) -> dict[str, str]:
    """Return options with their properties in `load_config`. Properties that it already has are kept.

    The plugin skips devices that the session does not use.
    """
    kept = {name: value for name, value in options.items() if name not in PROPERTIES}
    moved = {name: value for name, value in options.items() if name in PROPERTIES}
    try:
        properties: Any = json.loads(kept.get(LOAD_CONFIG) or "{}")
    except ValueError:
        properties = None
    if not moved or not isinstance(properties, dict):
        return dict(options)  # OpenVINO reports JSON that it cannot read
    for option, value in moved.items():
        name, devices = PROPERTIES[option]
        for device in devices:
            if plugin.device_type in {"", device.lower()}:
                own = properties.setdefault(device, {})
                if isinstance(own, dict):
                    own.setdefault(name, value)
    return kept | {LOAD_CONFIG: json.dumps(properties)}
