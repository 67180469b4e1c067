"""Parses configs that are written as settings: `intra_op_num_threads=1,session.intra_op.allow_spinning=0`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ortune.errors import UsageError
from ortune.knobs import ids
from ortune.knobs.catalogue import find_knob
from ortune.knobs.config import CPU, DEFAULT, Config
from ortune.knobs.knob import PLACES, Value
from ortune.knobs.providers import chain_of, find_provider


def split_settings(text: str) -> dict[str, str]:
    """Return values by the name of a knob, from settings that are separated by commas.

    Raises:
        UsageError: A part is not a setting, or a knob is given twice.
    """
    pairs = {}
    # Affinity strings contain commas too: a new setting begins where a name and an equals sign follow.
    for part in re.split(r",(?=[A-Za-z0-9_.]+=)", text):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise UsageError(
                f"{text}: {part!r} is not a setting.", "Write it as {set=intra_op_num_threads=1}.", option="set"
            )
        if name.strip() in pairs:
            raise _given_twice(text, name.strip())
        pairs[name.strip()] = value
    return pairs


def make_config(settings: Mapping[str, Value], text: str) -> Config:
    """Return a config of settings.

    Args:
        settings: Values, typed or as text, by the name of a knob.
        text: The settings as the user wrote them, for messages.

    Raises:
        UsageError: A setting is unknown or given twice, or its value is not valid.
    """
    config, known = DEFAULT, set[str]()
    for name, value in settings.items():
        try:
            config = set_knob(config, name, value)
        except UsageError as error:
            raise UsageError(f"{text}: {error.message}", error.hint, option="set") from None
        if (knob := find_knob(name).id) in known:
            raise _given_twice(text, knob)
        known.add(knob)
    return config


def _given_twice(text: str, name: str) -> UsageError:
    return UsageError(f"{text}: {name} is given twice.", "To compare two values, repeat {set}.", option="set")


def set_knob(config: Config, name: str, value: Value) -> Config:
    """Return the config with one more setting. An option of a provider, or `providers`, adds the provider.

    Raises:
        UsageError: There is no such knob, or it has no such value.
    """
    knob = find_knob(name)
    if knob.id == ids.PROVIDERS:
        return with_provider(config, find_provider(str(value)).name)
    knob.check_effect()
    if not knob.is_settable:
        raise UsageError(f"{knob.id}: ortune cannot set it ({PLACES[knob.where]}).")
    if knob.provider:
        config = with_provider(config, knob.provider)
    return config.with_setting(knob.where, knob.name, knob.read(value), knob.provider)


def with_provider(config: Config, name: str) -> Config:
    """Return the config for a provider, with the options it already has for any of the chain."""
    if name in dict(config.providers) and name != CPU:
        return config
    known = dict(config.providers)
    return msgspec.structs.replace(
        config, providers=tuple((provider, known.get(provider, options)) for provider, options in chain_of(name))
    )
