"""The catalog: every setting of ONNX Runtime, once, and how to find one by name.

The settings are data, in `ortune/knobs/data/`. `tests/test_catalogue.py` checks them against the installed onnxruntime.
If documentation and runtime disagree, the runtime is right. A default of "" means that the setting is not set.

Options of execution providers that ortune does not know are knobs, too. Their ids begin with the full name of the
provider, such as `DnnlExecutionProvider.use_arena`, and their values are any text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from ortune.errors import UsageError
from ortune.knobs.config import alias_of
from ortune.knobs.data_files import FILES, PROVIDER_FILES, read_file
from ortune.knobs.knob import Knob
from ortune.knobs.legal import PROVIDER_NAME

_NAMES = (*FILES, *(f"providers/{name}" for name in PROVIDER_FILES))

KNOBS: Mapping[str, Knob] = {knob.id: knob for name in _NAMES for knob in read_file(name).knobs}
"""All knobs by id, in the order in which they are shown."""

LIST_ALL = "`ortune knobs` lists all knobs."
NAME_PROVIDER = (
    "Options of other execution providers begin with the provider's full name: DnnlExecutionProvider.use_arena."
)

OPTION_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
"""Names of options of execution providers that ortune does not know."""

_ALIASES = {knob.provider.lower(): knob.alias for knob in KNOBS.values() if knob.provider}
"""Short names of providers by their full names in lowercase."""


def knob_of(name: str) -> Knob:
    """Return the knob of an id: one of the catalog, or an option of a provider that ortune does not know."""
    if name in KNOBS:
        return KNOBS[name]
    provider, _, option = name.partition(".")
    return Knob(
        name=option,
        where="provider_options",
        provider=provider,
        alias=provider,
        kind="text",
        default="",
        summary=f"An option of {provider} that is not in the catalog: its value is passed on unchecked.",
        source="the documentation of the provider",
    )


def find_knob(text: str, providers: Collection[str] = ()) -> Knob:
    """Return the knob that a text names: its id, or an ending of its id that only one knob has.

    The short name of an execution provider may be in uppercase. Its full name may be used instead.

    Args:
        text: The name.
        providers: Full names of execution providers whose options may have the short name as a prefix, although ortune
            does not know them.

    Raises:
        UsageError: There is no such knob, or there are several.
    """
    name = text.strip()
    prefix, dot, option = name.partition(".")
    short = _ALIASES.get(prefix.lower(), prefix.lower())
    for spelling in (name, f"{short}{dot}{option}"):
        if spelling in KNOBS:
            return KNOBS[spelling]
    ending = [knob for knob in KNOBS.values() if name and (knob.name == name or knob.id.endswith(f".{name}"))]
    if len(ending) == 1:
        return ending[0]
    if ending:
        suggestion = _suggest([knob.id for knob in ending])
        raise UsageError(f"{name}: several knobs have this name.", f"{suggestion} {LIST_ALL}")
    full = {alias_of(provider): provider for provider in providers}.get(prefix.lower(), prefix)
    is_option = short not in _ALIASES.values() and OPTION_NAME.fullmatch(option)
    if is_option and PROVIDER_NAME.fullmatch(full):
        return knob_of(f"{full}.{option}")
    near = _find_near(f"{short}{dot}{option}")
    if near:
        hint = f"{_suggest(near)} {LIST_ALL}"
    elif is_option:
        hint = f"{LIST_ALL} {NAME_PROVIDER}"
    else:
        hint = LIST_ALL
    raise UsageError(f"{name}: there is no such knob.", hint)


def search_knobs(text: str) -> list[Knob]:
    """Return the knobs whose id and summary contain all words of a text, in the order of the catalog."""
    words = text.lower().split()
    return [knob for knob in KNOBS.values() if all(word in f"{knob.id} {knob.summary}".lower() for word in words)]


def _find_near(name: str) -> list[str]:
    """Return ids that are similar to a name, or whose last part is."""
    by_spelling: dict[str, str] = {}
    for knob in KNOBS.values():
        for spelling in (knob.id, knob.name, knob.id.rpartition(".")[2]):
            by_spelling.setdefault(spelling.lower(), knob.id)
    near = difflib.get_close_matches(name.lower(), by_spelling, n=6)
    return list(dict.fromkeys(by_spelling[spelling] for spelling in near))[:3]


def _suggest(ids: list[str]) -> str:
    return f"Did you mean {', '.join(ids[:-1])}{' or ' if len(ids) > 1 else ''}{ids[-1]}?"
