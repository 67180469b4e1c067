"""The environment variables that a config needs."""

from __future__ import annotations

from collections.abc import Mapping

from ortune.host.allocators import LD_PRELOAD, preload
from ortune.knobs.config import Config


def variables_of(config: Config, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a config, with the one that preloads its allocator.

    Args:
        config: The config.
        inherited: Environment to which the variables will be added.
    """
    return {**config.environment, **preload(config.allocator, inherited.get(LD_PRELOAD, ""))}
