"""Legal settings: checks configs that come from a file, such as a record.

The catalog is the source. Reading its TOML files takes longer than everything else that `ortune apply -- PROGRAM`
does, so what this check needs is in `data/legal.json`, which `python -m docs.generate` writes.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import Config
from ortune.knobs.knob import Knob, Value, Where

LEGAL_FILE = Path(__file__).with_name("data") / "legal.json"

FIELDS = (
    "name",
    "where",
    "provider",
    "alias",
    "kind",
    "values",
    "low",
    "high",
    "pattern",
    "unsafe",
    "threads",
    "instead",
)
"""Fields of knobs that the check needs, and the number of threads that the host allows."""

LARGEST_POOL = 9999

MOST_COMPARED = 100
"""Number of characters of an unknown name that is compared with known names."""

PROVIDER_NAME = re.compile(r"\w{1,60}ExecutionProvider", re.ASCII)

ENTRIES: tuple[Where, ...] = ("session_options", "session_config", "run_options", "run_config", "environment")
"""Fields of `Config` that hold settings by name."""


UNKNOWN_SETTING = "ortune does not know this setting"


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
            given = {name: getattr(knob, name) for name in FIELDS}
            fields = {
                name: value for name, value in given.items() if value not in (None, "", ()) and value is not False
            }
            lines.append(msgspec.json.encode(fields | {"default": knob.default, "summary": "", "source": ""}))
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


@functools.cache
def read_legal() -> Mapping[tuple[Where, str, str], Knob]:
    """Return the knobs by place, provider and name. Provider is empty except for options of a provider."""
    knobs = msgspec.json.decode(LEGAL_FILE.read_bytes(), type=list[Knob])
    return {(knob.where, knob.provider, knob.name): knob for knob in knobs}


def find_faults(config: Config) -> Iterator[Fault]:
    """Yield the settings that a config from a file must not have."""
    for where in ENTRIES:
        yield from _check_all(where, "", getattr(config, where), where)
    for number, entries in enumerate(config.per_session):
        yield from _check_all("session_config", "", entries, f"per_session[{number}]")
    for model, own in config.models.items():
        yield from _check_all("session_options", "", own.session_options, f"models.{model}.session_options")
        yield from _check_all("session_config", "", own.session_config, f"models.{model}.session_config")
    for number, (provider, options) in enumerate(config.providers):
        place = f"providers[{number}]"
        if not PROVIDER_NAME.fullmatch(provider):
            why = "not the name of an execution provider"
            yield Fault(place=f"{place}[0]", setting=provider, why=why, is_illegal=True)
            continue
        yield from _check_all("provider_options", provider, options, f"{place}[1]")
    if pool := config.global_thread_pool:
        for name in pool.__struct_fields__:
            if not 0 <= getattr(pool, name) <= LARGEST_POOL:
                yield Fault(
                    place=f"global_thread_pool.{name}",
                    setting=f"{name}={getattr(pool, name)}",
                    why=f"legal are 0 to {LARGEST_POOL}",
                    is_illegal=True,
                )


def _check_all(where: Where, provider: str, settings: Mapping[str, Value], place: str) -> Iterator[Fault]:
    for name, value in settings.items():
        yield from _check(where, provider, name, value, f"{place}.{name}")


def _check(where: Where, provider: str, name: str, value: Value, place: str) -> Iterator[Fault]:
    setting = f"{name}={value}"
    knob = read_legal().get((where, provider, name))
    if knob is None:
        yield _explain_unknown(where, provider, name, Fault(place=place, setting=setting, why=UNKNOWN_SETTING))
        return
    if knob.instead:
        why = f"ONNX Runtime ignores this entry in Python; did you mean {knob.instead} in session_options?"
        yield Fault(place=place, setting=setting, why=why, is_illegal=True)
        return
    try:
        knob.check(value)
    except UsageError:
        why = f"legal: {knob.describe_values()}"
        yield Fault(place=place, setting=setting, why=why, is_illegal=True)
        return
    if knob.unsafe:
        yield Fault(place=place, setting=setting, why=knob.unsafe)


def _explain_unknown(where: Where, provider: str, name: str, fault: Fault) -> Fault:
    """Return the fault of an unknown setting with what is known about its name.

    A setting in the place of others has no effect, or makes each session fail, whoever wrote it there.
    """
    others = [other for other, _, known in read_legal() if known == name and other in ENTRIES]
    if others and where != "provider_options":
        return msgspec.structs.replace(fault, why=f"did you mean {others[0]}.{name}?", is_illegal=True)
    names = [known for *own, known in read_legal() if own == [where, provider]]
    near = difflib.get_close_matches(name[:MOST_COMPARED], names, n=1)
    return msgspec.structs.replace(fault, why=f"{UNKNOWN_SETTING}; did you mean {near[0]}?") if near else fault
