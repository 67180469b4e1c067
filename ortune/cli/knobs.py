"""`ortune knobs`: list all settings of ONNX Runtime, or show one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import UsageError, spell_as_flag, spell_options
from ortune.options import make_request
from ortune.requests import JsonOptions, KnobsRequest

if TYPE_CHECKING:
    from ortune.knobs.knob import Knob


@command(KnobsRequest, JsonOptions)
def knobs(values: Values, output: JsonOptions) -> None:
    """List all settings of ONNX Runtime, or show what one does, its values and its pitfalls."""
    found, exact = _find(" ".join(make_request(KnobsRequest, values, "cli").name))
    if output.json:
        import msgspec

        data = [{"id": knob.id, **msgspec.structs.asdict(knob)} for knob in found]
        for entry in data:
            entry |= {field: spell_options(entry[field], spell_as_flag) for field in ("tuned", "not_tunable")}
        print_json(data)
        return
    from ortune.console.knobs import show_knob, show_knobs
    from ortune.console.widgets import make_console

    if exact:
        show_knob(make_console(), found[0])
    else:
        show_knobs(make_console(), found)


def _find(text: str) -> tuple[list[Knob], bool]:
    """Return the knobs that match a text, and whether the text is the name of one.

    Raises:
        UsageError: No knob matches.
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
