"""Reads what the user says about knobs: values to try, fixed values, and the only knobs to try.

`split_tune` and `split_fix` split texts of the command line. `check_tune`, `check_fix` and `check_only` check names and
values, typed or as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ortune.errors import UsageError
from ortune.knobs.catalogue import find_knob
from ortune.knobs.ids import BATCH
from ortune.knobs.knob import PLACES, Knob, Value

VALUE_SEPARATOR = "|"
"""Separates values that contain commas, such as affinity strings."""


def split_tune(texts: Sequence[str]) -> dict[str, list[Value]]:
    """Return values by the name of a knob from texts such as `knob=value,value` or `knob=value|value`.

    Values that contain commas are separated by `|`. Names and values are not checked; see `check_tune`.

    Raises:
        UsageError: A text is not a knob and values.
    """
    values: dict[str, list[Value]] = {}
    for text in texts:
        name, given = _split(text, "tune", example="intra_op_num_threads=1,2")
        parts = given.split(VALUE_SEPARATOR) if VALUE_SEPARATOR in given else given.split(",")
        values.setdefault(name, []).extend(part for part in parts if part.strip())
    return values


def split_fix(texts: Sequence[str]) -> dict[str, Value]:
    """Return a value by the name of a knob from texts such as `knob=value`, unchecked; see `check_fix`.

    Raises:
        UsageError: A text is not a knob and a value, or a knob is given twice.
    """
    values: dict[str, Value] = {}
    for text in texts:
        name, value = _split(text, "fix", example="intra_op_num_threads=1")
        if name in values:
            raise _given_twice(name)
        values[name] = value
    return values


def check_tune(
    values: Mapping[str, Value | Sequence[Value]], *, approximate: bool = False, providers: Sequence[str] = ()
) -> dict[str, tuple[Value, ...]]:
    """Return the values to try, by the id of the knob.

    Args:
        values: Values or a single value, by the name of the knob. Texts are read as on the command line.
        approximate: Whether knobs that may change outputs beyond rounding are allowed.
        providers: Execution providers that the user names; ortune may not know them.

    Raises:
        UsageError: A knob is unknown or cannot be tuned, or a value is not legal.
    """
    checked: dict[str, tuple[Value, ...]] = {}
    for name, given in values.items():
        knob = _find(name, "tune", providers)
        if knob.not_tunable or knob.where == "dynamic_options":
            why = knob.not_tunable or "it is set while a session runs"
            raise UsageError(
                f"{knob.id}: a search cannot try this knob: {why}.", f"See `ortune knobs {knob.id}`.", option="tune"
            )
        _check_numerics(knob, "tune", approximate=approximate)
        several = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        if not several:
            raise UsageError(f"{knob.id}: there are no values to try.", "Give at least one value.", option="tune")
        read = tuple(_read(knob, value, "tune") for value in several)
        checked[knob.id] = (*checked.get(knob.id, ()), *read)
    return checked


def check_fix(
    values: Mapping[str, Value], *, approximate: bool = False, providers: Sequence[str] = ()
) -> dict[str, Value]:
    """Return the fixed values, by the id of the knob; arguments as for `check_tune`.

    Raises:
        UsageError: A knob is unknown, cannot be fixed or is given twice, or a value is not legal.
    """
    checked: dict[str, Value] = {}
    for name, value in values.items():
        knob = _find(name, "fix", providers)
        if not knob.is_settable:
            raise UsageError(f"{knob.id}: ortune cannot set this knob ({PLACES[knob.where]}).", option="fix")
        if knob.id == BATCH:
            raise UsageError(f"{knob.id}={value}: is not a setting.", f"Write {{batch={value}}}.", option="fix")
        _check_numerics(knob, "fix", approximate=approximate)
        if knob.id in checked:
            raise _given_twice(knob.id)
        checked[knob.id] = _read(knob, value, "fix")
    return checked


def check_together(tune: Iterable[str], fix: Iterable[str], only: Sequence[str]) -> None:
    """Check that a search would try the values that the user names; the arguments are ids of knobs.

    Raises:
        UsageError: It would not.
    """
    for name in fix:
        if name in tune or name in only:
            other = "tune" if name in tune else "only"
            raise UsageError(
                f"{name}: would have this value in every candidate, but {{{other}}} names values to try.",
                "Leave one of the two out.",
                option="fix",
            )
    for name in tune:
        if only and name not in only:
            raise UsageError(
                f"{name}: is not among the knobs of {{only}}, so these values would not be tried.",
                f"Add it: {{only={name}}}",
                option="tune",
            )


def check_only(names: Iterable[str], *, providers: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the ids of the only knobs to try, without duplicates; `providers` as for `check_tune`.

    Raises:
        UsageError: A knob is unknown.
    """
    return tuple(dict.fromkeys(_find(name, "only", providers).id for name in names))


def _given_twice(name: str) -> UsageError:
    return UsageError(
        f"{name}: is given twice.", f"Give it one value, or let the search choose: {{tune={name}=V1,V2}}", option="fix"
    )


def _split(text: str, option: str, *, example: str) -> tuple[str, str]:
    name, equals, given = text.partition("=")
    if not equals or not name.strip() or not given.strip():
        raise UsageError(f"{text}: not a knob and a value.", f"Example: {{{option}={example}}}", option=option)
    return name.strip(), given


def _check_numerics(knob: Knob, option: str, *, approximate: bool) -> None:
    if knob.numerics and not approximate:
        raise UsageError(
            f"{knob.id}: this knob may change outputs beyond rounding.",
            "To allow that, add {allow_approximate}. The search reports how much they differ.",
            option=option,
        )


def _find(name: str, option: str, providers: Sequence[str]) -> Knob:
    try:
        knob = find_knob(name, providers)
    except UsageError as error:
        raise UsageError(
            error.message, f"{error.hint} ONNX Runtime silently accepts unknown names.", option=option
        ) from None
    knob.check_effect(option)
    return knob


def _read(knob: Knob, value: Value, option: str) -> Value:
    try:
        return knob.read(value)
    except UsageError as error:
        raise UsageError(error.message, error.hint, option=option) from None
