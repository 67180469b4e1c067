"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortune.errors import UsageError

if TYPE_CHECKING:
    from ortune.workload import InputOptions, Tolerance

Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="Size of a symbolic dimension, or several as batch=1,8; may be given several times.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT=1x3x224x224", help="Shape of an input; may be given several times."),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        "--inputs",
        metavar="PATH",
        help="Real data, one sample or many: an .npz file, or a folder of .npz or input_*.pb files.",
    ),
]
Clients = Annotated[
    int | None,
    typer.Option("--clients", metavar="N", help="Concurrent callers of the session.", show_default="1"),
]
Rate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="Requests that arrive, such as 50/s; latency counts from the arrival.",
        show_default="callers call back to back",
    ),
]
Sessions = Annotated[
    int | None,
    typer.Option(
        "--sessions",
        metavar="N",
        help="Sessions of the model side by side in one process, each with as many callers.",
        show_default="1",
    ),
]
Providers = Annotated[
    str,
    typer.Option(
        "--provider",
        metavar="NAME,...",
        help="Execution providers to choose from: cpu, cuda, tensorrt, openvino, others; auto takes what works here.",
    ),
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        "--tune",
        metavar="KNOB=V1,V2",
        help="Try these values of a knob, beside its default; several times. `ortune knobs` lists all.",
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix", metavar="KNOB=VALUE", help="Give every candidate this setting, the default too; several times."
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="KNOB,KNOB", help="Try these knobs and no others."),
]
Approximate = Annotated[
    bool,
    typer.Option("--allow-approximate", help="Also try what changes outputs beyond rounding; the error is reported."),
]
Arrivals = Annotated[
    str | None,
    typer.Option("--arrivals", metavar="poisson|periodic", help="How requests arrive.", show_default="poisson"),
]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="In which order candidates are tried: adaptive, tpe, random or exhaustive.",
    ),
]
History = Annotated[
    bool,
    typer.Option("--history/--no-history", help="Begin with what earlier searches of similar models found here."),
]
Objective = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAME",
        help="p50, p90, p95, p99, mean, throughput, cpu, memory or load-time.",
        show_default="p50; throughput with --clients; p99 with --rate",
    ),
]
Beside = Annotated[
    str | None,
    typer.Option("--beside", metavar="COMMAND", help="A command to run beside the measurements, as a background_load."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; what people read goes to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

DURATION_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def encode_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as indented JSON; `enc_hook` makes plain what msgspec does not know."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value, enc_hook=enc_hook), indent=2) + b"\n"


def print_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> None:
    """Print a value as indented JSON on stdout."""
    sys.stdout.buffer.write(encode_json(value, enc_hook))


def parse_providers(text: str) -> tuple[str, ...] | None:
    """Parse `auto` (None), or names separated by commas.

    Raises:
        UsageError: There is no name, or auto among others.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ("auto",):
        return None
    if not names or "auto" in names:
        raise UsageError(f"--provider {text}: this is not a list of execution providers.", "Write --provider cpu,cuda.")
    return names


def parse_duration_s(text: str, option: str) -> float:
    """Parse `90`, `90s`, `1.5m`, `1m30s` or `1h`.

    Raises:
        UsageError: The text is no duration.
    """
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower().replace(" ", ""):
        raise UsageError(f"{option} {text}: this is not a duration.", "Write it as 90s, 2m or 1m30s.")
    return sum(float(number) * DURATION_UNITS_S[unit] for number, unit in parts)


def parse_time_s(text: str | None) -> float | None:
    """Parse --time; None where it is left out.

    Raises:
        UsageError: The text is no duration, or none at all.
    """
    if text is None:
        return None
    time_s = parse_duration_s(text, "--time")
    if not time_s > 0:
        raise UsageError(f"--time {text}: comparing needs time.", "Leave it out for as long as it takes.")
    return time_s


def parse_tolerance(rtol: float | None, atol: float | None) -> Tolerance | None:
    """Return the tolerance that the options ask for, or None when they ask for none.

    Raises:
        UsageError: One of them is negative.
    """
    from ortune.workload import Tolerance

    for name, value in (("--rtol", rtol), ("--atol", atol)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} {value}: a tolerance is a number of at least 0.")
    if rtol is None and atol is None:
        return None
    default = Tolerance()
    return Tolerance(
        relative=default.relative if rtol is None else rtol,
        absolute=default.absolute if atol is None else atol,
    )


def parse_inputs(dims: list[str] | None, shapes: list[str] | None, data: str | None, seed: int) -> InputOptions:
    """Return what the options say about inputs.

    Raises:
        UsageError: One of them is malformed.
    """
    from ortune.workload import InputOptions

    return InputOptions(dims=_parse_dims(dims or []), shapes=_parse_shapes(shapes or []), data=data, seed=seed)


def _parse_dims(dims: list[str]) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {}
    for text in dims:
        name, equals, values = text.rpartition("=")
        parts = values.split(",")
        if not equals or not name or any(not re.fullmatch(r"\d{1,9}", part) or int(part) < 1 for part in parts):
            raise UsageError(
                f"--dim {text}: this is not a name and a size.", "Write it as --dim batch=4, or --dim batch=1,8."
            )
        sizes[name] = tuple(map(int, parts))
    return sizes


def _parse_shapes(shapes: list[str]) -> dict[str, tuple[int, ...]]:
    parsed = {}
    for text in shapes:
        name, equals, shape = text.rpartition("=")
        # An empty shape is a scalar.
        if not equals or not name or not re.fullmatch(r"(\d{1,9}([x,]\d{1,9})*)?", shape):
            raise UsageError(
                f"--shape {text}: this is not an input's name and a shape.",
                "Write it as --shape data=1x3x224x224.",
            )
        parsed[name] = tuple(int(size) for size in re.split("[x,]", shape) if size)
    return parsed
