"""Legal settings: checks configs that come from a file, such as a record.

The catalog is the source. Reading its TOML files takes longer than everything else that `ortune apply -- PROGRAM`
does, so what this check needs is in `data/legal.json`, which `python -m docs.generate` writes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import Config
from ortune.knobs.knob import Knob, Value, Where

FILE = Path(__file__).with_name("data") / "legal.json"

FIELDS = ("name", "where", "provider", "alias", "kind", "values", "low", "high", "pattern", "unsafe")
"""Fields of knobs that the check needs."""

LARGEST_POOL = 9999

PROVIDER_NAME = re.compile(r"\w{1,60}ExecutionProvider", re.ASCII)

ENTRIES: tuple[Where, ...] = ("session_options", "session_config", "run_options", "run_config", "environment")
"""Fields of `Config` that hold settings by name."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that a config from a file must not have.

    Attributes:
        place: Where it is in the config, such as `environment.LD_PRELOAD`.
        setting: The setting, as `NAME=VALUE`.
        why: Why it must not be there, a clause.
        is_illegal: Whether the value itself is not legal. Otherwise a user who trusts the file may let it through.
    """

    place: str
    setting: str
    why: str
    is_illegal: bool = False


def encode_legal(knobs: Mapping[str, Knob]) -> bytes:
    """Return the content of `data/legal.json`, given the catalog: one knob per line."""
    lines = []
    for knob in knobs.values():
        if knob.where in {*ENTRIES, "provider_options"}:
            fields = {name: value for name in FIELDS if (value := getattr(knob, name)) not in (None, "", ())}
            lines.append(msgspec.json.encode(fields | {"default": knob.default, "summary": "", "source": ""}))
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


@functools.cache
def read_legal() -> Mapping[tuple[Where, str, str], Knob]:
    """Return the knobs by place, provider and name. Provider is empty except for options of a provider."""
    knobs = msgspec.json.decode(FILE.read_bytes(), type=list[Knob])
    return {(knob.where, knob.provider, knob.name): knob for knob in knobs}


def find_faults(config: Config) -> Iterator[Fault]:
    """Yield the settings that a config from a file must not have."""
    for where in ENTRIES:
        for name, value in getattr(config, where).items():
            yield from _check(where, "", name, value, f"{where}.{name}")
    for number, entries in enumerate(config.per_session):
        for name, value in entries.items():
            yield from _check("session_config", "", name, value, f"per_session[{number}].{name}")
    for number, (provider, options) in enumerate(config.providers):
        place = f"providers[{number}]"
        if not PROVIDER_NAME.fullmatch(provider):
            why = "not the name of an execution provider"
            yield Fault(place=f"{place}[0]", setting=provider, why=why, is_illegal=True)
            continue
        for name, value in options.items():
            yield from _check("provider_options", provider, name, value, f"{place}[1].{name}")
    if pool := config.global_thread_pool:
        for name in pool.__struct_fields__:
            if not 0 <= getattr(pool, name) <= LARGEST_POOL:
                yield Fault(
                    place=f"global_thread_pool.{name}",
                    setting=f"{name}={getattr(pool, name)}",
                    why=f"legal are 0 to {LARGEST_POOL}",
                    is_illegal=True,
                )


def _check(where: Where, provider: str, name: str, value: Value, place: str) -> Iterator[Fault]:
    setting = f"{name}={value}"
    knob = read_legal().get((where, provider, name))
    if knob is None:
        yield Fault(place=place, setting=setting, why="ortune does not know this setting")
        return
    try:
        knob.check(value)
    except UsageError:
        why = f"legal: {knob.describe_values()}"
        yield Fault(place=place, setting=setting, why=why, is_illegal=True)
        return
    if knob.unsafe:
        yield Fault(place=place, setting=setting, why=knob.unsafe)
