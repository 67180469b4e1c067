"""The catalog: every setting of ONNX Runtime, once, and how to find one by name.

The settings are data, in `ortune/knobs/data/`. `tests/test_catalogue.py` checks them against the installed onnxruntime.
If documentation and runtime disagree, the runtime is right. A default of "" means that the setting is not set.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from ortune.errors import UsageError
from ortune.knobs.data_files import FILES, PROVIDER_FILES, read_file
from ortune.knobs.knob import Knob

_NAMES = (*FILES, *(f"providers/{name}" for name in PROVIDER_FILES))

KNOBS: Mapping[str, Knob] = {knob.id: knob for name in _NAMES for knob in read_file(name).knobs}
"""All knobs by id, in the order in which they are shown."""

LIST_ALL = "`ortune knobs` lists all knobs."


def find_knob(text: str) -> Knob:
    """Return the knob that a text names: its id, or an ending of its id that only one knob has.

    The short name of an execution provider may be in capitals.

    Raises:
        UsageError: There is no such knob, or there are several.
    """
    name = text.strip()
    alias, dot, option = name.partition(".")
    for spelling in (name, f"{alias.lower()}{dot}{option}"):
        if spelling in KNOBS:
            return KNOBS[spelling]
    ending = [knob for knob in KNOBS.values() if name and (knob.name == name or knob.id.endswith(f".{name}"))]
    if len(ending) == 1:
        return ending[0]
    if ending:
        suggestion = _suggest([knob.id for knob in ending])
        raise UsageError(f"{name}: several knobs have this name.", f"{suggestion} {LIST_ALL}")
    near = _find_near(name)
    raise UsageError(f"{name}: there is no such knob.", f"{_suggest(near)} {LIST_ALL}" if near else LIST_ALL)


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
