"""Reads what the user says of knobs: `--tune`, `--fix` and `--only`."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.errors import UsageError
from ortune.knobs.catalogue import find_knob
from ortune.knobs.knob import PLACES, Knob, Value

BETWEEN = "|"
"""Separates values that hold commas, as affinity strings do."""


def parse_tune(texts: Sequence[str], *, approximate: bool = False) -> dict[str, tuple[Value, ...]]:
    """Parse `knob=value,value` or `knob=value|value`, several times.

    Args:
        texts: What was given.
        approximate: Whether knobs that change outputs beyond rounding are allowed.

    Raises:
        UsageError: A knob is not known or cannot be tried, or a value is not one of its.
    """
    asked: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        knob, given = _split("--tune", text)
        if knob.untunable or knob.where == "dynamic_options":
            why = knob.untunable or "it is changed while a session runs"
            raise UsageError(f"--tune {knob.id}: no search can try it: {why}.", f"See ortune knobs {knob.id}")
        _check_numerics("--tune", knob, approximate=approximate)
        values = given.split(BETWEEN) if BETWEEN in given else given.split(",")
        parsed = tuple(_parse("--tune", knob, value) for value in values if value.strip())
        asked[knob.id] = (*asked.get(knob.id, ()), *parsed)
    return asked


def parse_fix(texts: Sequence[str], *, approximate: bool = False) -> dict[str, Value]:
    """Parse `knob=value`, several times; `approximate` as in `parse_tune`.

    Raises:
        UsageError: A knob is not known or cannot be fixed, or the value is not one of its.
    """
    fixed: dict[str, Value] = {}
    for text in texts:
        knob, given = _split("--fix", text)
        if not knob.is_settable:
            raise UsageError(f"--fix {knob.id}: ortune cannot set it ({PLACES[knob.where]}).")
        _check_numerics("--fix", knob, approximate=approximate)
        fixed[knob.id] = _parse("--fix", knob, given)
    return fixed


def parse_only(texts: Sequence[str]) -> tuple[str, ...]:
    """Parse `knob,knob`, several times.

    Raises:
        UsageError: A knob is not known.
    """
    names = [name for text in texts for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(_find("--only", name).id for name in names))


def _check_numerics(option: str, knob: Knob, *, approximate: bool) -> None:
    if knob.numerics and not approximate:
        raise UsageError(
            f"{option} {knob.id}: it may change the outputs beyond rounding.",
            "If that is fine, say --allow-approximate; the error that it brings is reported.",
        )


def _split(option: str, text: str) -> tuple[Knob, str]:
    name, equals, given = text.partition("=")
    if not equals or not name.strip() or not given.strip():
        example = f"{option} intra_op_num_threads={'1,2' if option == '--tune' else '1'}"
        raise UsageError(f"{option} {text}: this is not a knob and a value.", f"Write it as {example}.")
    return _find(option, name), given


def _find(option: str, name: str) -> Knob:
    try:
        return find_knob(name)
    except UsageError as error:
        raise UsageError(
            f"{option} {name.strip()}: {error.message[0].lower()}{error.message[1:]}",
            f"{error.hint} ONNX Runtime would take a name that it does not know without a word.",
        ) from None


def _parse(option: str, knob: Knob, value: str) -> Value:
    try:
        return knob.parse(value)
    except UsageError as error:
        raise UsageError(f"{option} {error.message}", error.hint) from None
