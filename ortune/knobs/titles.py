"""Short descriptions of configs."""

from __future__ import annotations

from ortune.knobs import ids
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import PLUGIN, Config


def describe(config: Config) -> str:
    """Return a short description of a config, on one line."""
    if config.is_default:
        return "default"
    parts = []
    for name, value in config.settings.items():
        knob = KNOBS.get(name)
        text = str(value).removeprefix("ORT_").lower()
        if name == ids.ALLOCATOR:
            parts.append(text)
        elif name == ids.PROVIDERS:
            parts.append(text.partition(",")[0])
        elif name.endswith(f".{PLUGIN}"):
            # The package follows from the provider. The device may not.
            parts += text.split(" ", 1)[1:]
        else:
            parts.append(f"{knob.title if knob else name}={_elide(text)}")
    return " · ".join(parts)


def _elide(text: str, length: int = 24) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
