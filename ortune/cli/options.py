"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ortune.errors import UsageError

if TYPE_CHECKING:
    from ortune.workload import InputOptions

Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Size of a symbolic dimension; may be given several times."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT=1x3x224x224", help="Shape of an input; may be given several times."),
]
Inputs = Annotated[
    str | None,
    typer.Option("--inputs", metavar="PATH", help="Real data: an .npz file, or a folder with input_*.pb files."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is drawn.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout; what people read goes to stderr.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

DURATION_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "": 1.0}


def parse_duration_s(text: str, option: str) -> float:
    """Parse `90`, `90s`, `1.5m`, `1m30s` or `1h`.

    Raises:
        UsageError: The text is no duration.
    """
    parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower().replace(" ", ""):
        raise UsageError(f"{option} {text}: this is not a duration.", "Write it as 90s, 2m or 1m30s.")
    return sum(float(number) * DURATION_UNITS_S[unit] for number, unit in parts)


def parse_inputs(dims: list[str] | None, shapes: list[str] | None, data: str | None, seed: int) -> InputOptions:
    """Return what the options say about inputs.

    Raises:
        UsageError: One of them is malformed.
    """
    from ortune.workload import InputOptions

    return InputOptions(dims=_parse_dims(dims or []), shapes=_parse_shapes(shapes or []), data=data, seed=seed)


def _parse_dims(dims: list[str]) -> dict[str, int]:
    sizes = {}
    for text in dims:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"\d{1,9}", size) or int(size) < 1:
            raise UsageError(f"--dim {text}: this is not a name and a size.", "Write it as --dim batch=4.")
        sizes[name] = int(size)
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
