"""The environment variables that a config needs."""

from __future__ import annotations

from collections.abc import Mapping

from ortune.host.allocators import LD_PRELOAD, SONAMES, preload
from ortune.knobs.config import Config


def variables_of(config: Config, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a config on this host, with the one that preloads its allocator.

    Args:
        config: The config.
        inherited: Environment to which the variables will be added.
    """
    return {**config.environment, **preload(config.allocator, inherited.get(LD_PRELOAD, ""))}


def portable_variables(config: Config) -> dict[str, str]:
    """Return the environment variables of a config on any host: the library of its allocator without its folder."""
    soname = SONAMES.get(config.allocator)
    return {**config.environment, **({LD_PRELOAD: soname} if soname else {})}
