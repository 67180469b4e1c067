"""How options are declared, and how values from the command line, a file or Python become a request.

An option is a field of a request in `ortune.requests`, annotated with an `Option`. Everything else is derived from that
declaration: the flag, the key in `ortune.toml`, the Python parameter, the help text and the reference documentation.

Every program that starts under `ortune apply` loads this module first. It therefore imports little, and requests are
plain classes: creating 25 dataclasses would take longer than all other imports.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar, dataclass_transform

from ortune.errors import OrtuneError, UsageError

Interface = Literal["cli", "toml", "python"]
EVERYWHERE: frozenset[Interface] = frozenset({"cli", "toml", "python"})
CLI_ONLY: frozenset[Interface] = frozenset({"cli"})
CLI_AND_PYTHON: frozenset[Interface] = frozenset({"cli", "python"})

Names = Literal["nothing", "file", "host", "program", "settings"]
"""What the texts in a value can name: nothing outside of ortune, files to read, a host to connect to, a program to run,
or settings of ONNX Runtime. `ortune.file_values` decides which of them a file may have."""

OPTIONS = "Options"
LOAD = "Load"
OBJECTIVE = "Objective"
INPUTS = "Inputs"
SPACE = "Search space"
MEASURING = "Measuring"
OUTPUTS = "Output check"
WRITING = "Output"
PROGRAM = "With a command after --"
EXPORT = "With --to"
KUBERNETES = "For Kubernetes"
SLURM = "For Slurm"
SEVERAL = "Several gates"
CI = "Reports for CI"
PANELS = (
    OPTIONS,
    PROGRAM,
    EXPORT,
    KUBERNETES,
    SLURM,
    LOAD,
    OBJECTIVE,
    INPUTS,
    SPACE,
    MEASURING,
    OUTPUTS,
    SEVERAL,
    WRITING,
    CI,
)
"""Headings under which a command's help lists its options, in this order."""


class Option(NamedTuple):
    """How a user sets a field of a request.

    Attributes:
        help: Description of the option, in one or two sentences. `{budget}` refers to another option, and `{choices}`
            stands for what `choices` returns.
        metavar: Placeholder of the value on the command line; empty for a switch.
        parse: Turns any value that an interface can give into the value of the field. It raises a `UsageError`
            whose message begins with the value.
        accepts: Type of the Python parameter, as written in a stub.
        default: What happens without the option, for help texts; empty when `help` explains it.
        flags: Further spellings on the command line, such as `-o`.
        positional: Whether it is an argument and has no flag.
        repeatable: Whether it may be repeated.
        negatable: Whether there is a `--no-...` switch.
        interfaces: Interfaces that accept it.
        panel: Heading in the help of its command.
        names: What the texts in its value name. None for values without texts, such as numbers and switches. An option
            whose value has texts must say it if files may have the option.
        choices: Returns the values to choose from, where other code has them as rows. They are not known before, as
            requests must not import that code.
    """

    help: str
    metavar: str = ""
    parse: Callable[[Any], Any] = lambda value: value
    accepts: str = "str"
    default: str = ""
    flags: tuple[str, ...] = ()
    positional: bool = False
    repeatable: bool = False
    negatable: bool = False
    interfaces: frozenset[Interface] = EVERYWHERE
    panel: str = OPTIONS
    names: Names | None = None
    choices: Callable[[], Sequence[str]] | None = None

    def describe(self) -> str:
        """Return the description of the option, with the values to choose from."""
        if self.choices is None:
            return self.help
        *names, last = self.choices()
        return self.help.replace("{choices}", f"{', '.join(names)} or {last}")

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return not self.metavar


class DeclaredOption(NamedTuple):
    """An option of one command.

    Attributes:
        name: Name of the field, which is the Python parameter.
        option: Its declaration.
        required: Whether the field has no default.
    """

    name: str
    option: Option
    required: bool

    @property
    def flag(self) -> str:
        """Spelling on the command line; the placeholder of a positional argument."""
        return self.option.metavar if self.option.positional else f"--{self.key}"

    @property
    def key(self) -> str:
        """Key in `ortune.toml`."""
        return self.name.replace("_", "-")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Request:
    """Base class of requests. Annotated class attributes are fields, as in a frozen, keyword-only dataclass."""

    refused = frozenset[str]()  # options of bases that a request has only to say why it does not take them

    def __init__(self, **values: Any) -> None:
        names = field_names(type(self))
        for name in values:
            if name not in names:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
        for name in names:
            if name not in values and not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs {name!r}")
        self.__dict__.update({name: values.get(name, getattr(type(self), name, None)) for name in names})
        self.check()

    def check(self) -> None:
        """Check that the values go together.

        Raises:
            UsageError: They do not.
        """

    def replace(self, **values: Any) -> Self:
        """Return a copy with other values."""
        return type(self)(**{**self.__dict__, **values})

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({values})"


AnyRequest = TypeVar("AnyRequest", bound=Request)


def field_names(request_type: type[Request]) -> tuple[str, ...]:
    """Return the names of all fields, those of bases first."""
    names: dict[str, None] = {}
    for base in reversed(request_type.__mro__):
        # The function for this in `inspect` is avoided: importing `inspect` takes as long as importing this module.
        names |= dict.fromkeys(base.__dict__.get("__annotations__", ()))  # noqa: RUF063
    return tuple(names)


def options_of(request_type: type[Request]) -> dict[str, DeclaredOption]:
    """Return the options of a request by name: arguments first, then by panel, then in the order of its fields.

    Fields without an `Option` are left out.
    """
    known = _options_by_type.get(request_type)
    if known is None:
        known = _options_by_type[request_type] = _find_options(request_type)
    return dict(known)


def accepted_options(request_type: type[Request]) -> dict[str, DeclaredOption]:
    """Return the options of a request by name, without those that it refuses."""
    return {name: option for name, option in options_of(request_type).items() if name not in request_type.refused}


_options_by_type: dict[type[Request], Mapping[str, DeclaredOption]] = {}
"""What `options_of` has found: evaluating annotations takes longer than parsing values."""


def _find_options(request_type: type[Request]) -> Mapping[str, DeclaredOption]:
    hints = typing.get_type_hints(request_type, include_extras=True)
    found = {}
    for name in field_names(request_type):
        declared = [option for option in getattr(hints[name], "__metadata__", ()) if isinstance(option, Option)]
        if declared:
            required = not hasattr(request_type, name)
            found[name] = DeclaredOption(name=name, option=declared[0], required=required)
    return sort_options(found)


def sort_options(declared: Mapping[str, DeclaredOption]) -> dict[str, DeclaredOption]:
    """Return options with arguments first, then by panel, otherwise in their original order."""

    def place(item: tuple[str, DeclaredOption]) -> tuple[bool, int]:
        option = item[1].option
        return not option.positional, PANELS.index(option.panel)

    return dict(sorted(declared.items(), key=place))


def make_request(
    request_type: type[AnyRequest], values: Mapping[str, Any], interface: Interface = "python"
) -> AnyRequest:
    """Return a request with the values that a user gave.

    Args:
        request_type: A class of `ortune.requests`.
        values: Values by option name. None means that the option is not set.
        interface: The interface that the values come from.

    Raises:
        UsageError: An option is unknown or missing, or a value is not valid. The error names the option.
    """
    options = {
        name: declared for name, declared in options_of(request_type).items() if interface in declared.option.interfaces
    }
    parsed = {}
    for name, value in values.items():
        if name not in options:
            if interface == "toml" and name in options_of(request_type):
                raise UsageError("cannot be in a file.", "Pass it on the command line.", option=name)
            import difflib

            near = difflib.get_close_matches(name, options, n=1)
            known = f"Did you mean {{{near[0]}}}?" if near else f"Known are {', '.join(options)}."
            raise UsageError("is not an option.", known, option=name)
        if value is not None:
            parsed[name] = parse_value(options[name], value)
    for name, declared in options.items():
        if declared.required and name not in parsed:
            raise UsageError("is missing.", declared.option.describe(), option=name)
    return request_type(**parsed)


def parse_value(declared: DeclaredOption, value: Any) -> Any:
    """Return the value of an option's field.

    Raises:
        OrtuneError: The value is not valid. The error names the option.
    """
    try:
        if declared.option.is_switch:
            return parse_switch(value)
        return declared.option.parse(value)
    except OrtuneError as error:
        error.option = error.option or declared.name
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # Such as an integer with more digits than Python converts to text.
        reason = str(error).partition(";")[0].rstrip(".") or type(error).__name__
        raise UsageError(f"cannot be read: {reason}.", declared.option.describe(), option=declared.name) from None


def parse_switch(value: Any) -> bool:
    """Return True or False.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(value, bool):
        return value
    raise UsageError(f"{show(value)}: must be true or false.")


def parse_text(value: Any) -> str:
    """Return a string, or a path as a string.

    Raises:
        UsageError: The value is neither.
    """
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return str(value)
    raise UsageError(f"{show(value)}: must be a text.")


def parse_duration_s(value: Any) -> float:
    """Parse `90`, `"90s"`, `"1.5m"`, `"1m30s"` or `"1h"`.

    Returns:
        Seconds, above 0.

    Raises:
        UsageError: The value is not a duration, or not above 0.
    """
    hint = "Write a duration such as 90s, 2m or 1m30s."
    text = _number_as_text(value)
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        raise UsageError(f"{show(value)}: is not a duration.", hint)
    units_s = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}
    seconds = sum(float(number) * units_s[unit] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise UsageError(f"{show(value)}: must be positive.", hint)
    return seconds


def parse_count(low: int, high: int | None = None) -> Callable[[Any], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not isinstance(value, (int, str)) or not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise UsageError(f"{show(value)}: is not a whole number.")
        if int(text) < low or (high is not None and int(text) > high):
            wanted = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UsageError(f"{show(value)}: must be {wanted}.")
        return int(text)

    return parse


def parse_number(value: Any) -> float:
    """Return a number that is at least 0.

    Raises:
        UsageError: The value is not such a number.
    """
    try:
        number = float(_number_as_text(value))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{show(value)}: must be a number of at least 0.")
    return number


def parse_share(value: Any) -> float:
    """Parse a share: `0.2` or `"20%"`.

    Returns:
        A number from 0 to 1.

    Raises:
        UsageError: It is not a share.
    """
    text = str(value).strip()
    share = parse_number(text[:-1]) / 100 if text.endswith("%") else parse_number(value)
    if share > 1:
        raise UsageError(f"{show(value)}: must be a share from 0 to 1.", f"Write {text}%." if share <= 100 else "")
    return share


def parse_choice(*choices: str) -> Callable[[Any], str]:
    """Return a parser that accepts one of some words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise UsageError(f"{show(value)}: is not one of the choices.", f"Choose one of {', '.join(choices)}.")
        return str(value)

    return parse


def parse_texts(value: Any) -> tuple[str, ...]:
    """Return several strings as a tuple; a single string becomes a tuple of one.

    Raises:
        UsageError: The value is neither a string nor several strings.
    """
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return (str(value),)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        return tuple(parse_text(entry) for entry in value)
    raise UsageError(f"{show(value)}: must be a text or a list of texts.")


def parse_names(value: Any) -> tuple[str, ...]:
    """Return names from strings, each of which may contain several names separated by commas."""
    names = [part.strip() for text in parse_texts(value) for part in text.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def parse_dims(value: Any) -> dict[str, tuple[int, ...]]:
    """Parse `{"batch": 4}`, `{"batch": [1, 8]}`, `"batch=4"` or `["batch=1,8", ...]`.

    Returns:
        Sizes, all positive, by name of the dimension.

    Raises:
        UsageError: A text or a size is malformed.
    """
    pairs = _pairs(value, "is not a name and a size.", "Write {dim=batch=4} or {dim=batch=1,8}.")
    sizes = {}
    for name, given in pairs:
        if isinstance(given, str):
            parts: Sequence[Any] = given.split(",")
        elif isinstance(given, Sequence):
            parts = given
        else:
            parts = [given]
        texts = [str(part).strip() for part in parts]
        if not texts or any(not re.fullmatch(r"\d{1,9}", text) or int(text) < 1 for text in texts):
            raise UsageError(f"{name}={show(given)}: a size is a positive whole number.", "Write {dim=batch=4}.")
        sizes[name] = tuple(map(int, texts))
    return sizes


def parse_shapes(value: Any) -> dict[str, tuple[int, ...]]:
    """Parse `{"data": (1, 3, 224, 224)}`, `"data=1x3x224x224"` or several of these texts.

    Returns:
        Shapes by name of the input. An empty shape is a scalar.

    Raises:
        UsageError: A text or a shape is malformed.
    """
    hint = "Write {shape=data=1x3x224x224}."
    shapes = {}
    for name, given in _pairs(value, "is not an input and a shape.", hint):
        if isinstance(given, str):
            text = given.strip()
        elif _is_list(given):
            text = "x".join(map(str, given))
        else:
            text = "?"
        if not re.fullmatch(r"(\d{1,9}([x,]\d{1,9})*)?", text):
            raise UsageError(f"{name}={show(given)}: is not a shape.", hint)
        shapes[name] = tuple(int(size) for size in re.split("[x,]", text) if size)
    return shapes


def _pairs(value: Any, fault: str, hint: str) -> list[tuple[str, Any]]:
    """Return names and their values, from a mapping or from strings with an equals sign."""
    if isinstance(value, Mapping):
        return [(parse_text(name), given) for name, given in value.items()]
    pairs: list[tuple[str, Any]] = []
    for text in parse_texts(value):
        name, equals, given = text.rpartition("=")
        if not equals or not name:
            raise UsageError(f"{text}: {fault}", hint)
        if name in dict(pairs):
            raise UsageError(f"{text}: {name} is given twice.", hint)
        pairs.append((name, given))
    return pairs


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _number_as_text(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    return value.strip().lower() if isinstance(value, str) else ""


def show(value: Any) -> str:
    """Return a value as text for a message, cut to 200 characters."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = repr(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
