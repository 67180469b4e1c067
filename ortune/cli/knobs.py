"""`ortune knobs`: show all settings of ONNX Runtime that ortune knows, or one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ortune.cli import options
from ortune.errors import UsageError, spell_as_flag, spell_options

if TYPE_CHECKING:
    from ortune.knobs.knob import Knob


def knobs(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="A knob, or words to search for.", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the settings of ONNX Runtime, or show one: what it does, its legal values, its pitfalls."""
    found, exact = _find(" ".join(name or []))
    if json:
        import msgspec

        data = [{"id": knob.id, **msgspec.structs.asdict(knob)} for knob in found]
        for entry in data:
            entry |= {field: spell_options(entry[field], spell_as_flag) for field in ("tuned", "not_tunable")}
        options.print_json(data)
        return
    from ortune.console.knobs import show_knob, show_knobs
    from ortune.console.widgets import make_console

    if exact:
        show_knob(make_console(), found[0])
    else:
        show_knobs(make_console(), found)


def _find(text: str) -> tuple[list[Knob], bool]:
    """Return the knobs that a text names or matches, and whether it is the name of one.

    Raises:
        UsageError: The text neither names nor matches a knob.
    """
    from ortune.knobs.catalogue import find_knob, search_knobs

    if not text.strip():
        return search_knobs(""), False
    try:
        return [find_knob(text)], True
    except UsageError:
        found = search_knobs(text)
        if not found:
            raise
        return found, False
