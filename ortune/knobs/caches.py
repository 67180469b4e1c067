"""The caches of execution providers that compile models.

Such a provider compiles the model whenever a session is created, which may take minutes, unless one of its options
names a folder for compiled models. A record never names a folder: the user specifies it when applying the record.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from ortune.knobs.config import Config, alias_of
from ortune.knobs.providers import PROVIDERS


def with_caches(config: Config, folder: str | os.PathLike[str]) -> Config:
    """Return a config whose providers keep compiled models in a folder. Nothing changes for other providers.

    One folder is enough for all models and settings, because the names of the files in it depend on both.
    """
    for name, _ in config.providers:
        provider = PROVIDERS.get(name)
        options = provider.cache_options(os.fspath(folder)) if provider else {}
        for option, value in options.items():
            config = config.with_setting("provider_options", option, value, name)
    return config


def list_cache_options(config: Config) -> tuple[str, ...]:
    """Return the options that name the folder of compiled models, such as `openvino.cache_dir`.

    Returns:
        Those of the config's providers; none if no provider of it keeps compiled models.
    """
    return tuple(
        f"{alias_of(name)}.{option}"
        for name, _ in config.providers
        if name in PROVIDERS
        for option in PROVIDERS[name].folder_options
    )


def list_folders(config: Config) -> tuple[str, ...]:
    """Return the folders of compiled models that a config names."""
    settings = config.settings
    return tuple(dict.fromkeys(str(settings[option]) for option in list_cache_options(config) if option in settings))


def check_cache_options(config: Config, options: Collection[str]) -> None:
    """Check options that a document names as those for the caches of a config. They are shown as advice.

    Raises:
        ValueError: One of them is something else.
    """
    if stray := set(options) - set(list_cache_options(config)):
        raise ValueError(f"{min(stray)[:40]!r} is not an option for the cache of a provider of the config")
