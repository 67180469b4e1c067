"""Writes knob-reference.md: all knobs of the catalog, as `ortune knobs` shows them."""

from __future__ import annotations

import itertools

from ortune.console.widgets import format_default
from ortune.errors import spell_as_flag, spell_options
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.knob import PLACES, Knob

HEAD = """# All knobs

Generated from `ortune/knobs/data/` by `python -m docs.generate`. `ortune knobs NAME` shows the same, with an example
for each knob. [Knobs](knobs.md) explains which of them a search tries, and what the documentation of ONNX Runtime does
not say.

- **Values** in bold are the default.
- **Tried** says when a search tries the knob by default. Others are tried with `--tune`.
- **Outputs** may change beyond rounding where the description says so.
"""


def render() -> str:
    """Return the page."""
    places = list(PLACES)
    knobs = sorted(KNOBS.values(), key=lambda knob: (places.index(knob.where), knob.provider))
    parts = [HEAD]
    for title, group in itertools.groupby(knobs, name_group):
        parts.append(f"\n## {title}\n\n| knob | values | meaning | tried |\n|---|---|---|---|\n")
        parts += [describe(knob) for knob in group]
    return "".join(parts)


def name_group(knob: Knob) -> str:
    """Return the heading under which a knob is listed."""
    place = PLACES[knob.where][:1].upper() + PLACES[knob.where][1:]
    return f"{place}: {knob.provider}" if knob.provider else place


def describe(knob: Knob) -> str:
    """Return the row of a knob."""
    meaning = [knob.summary]
    if knob.numerics:
        meaning.append("May change outputs beyond rounding.")
    if knob.since:
        meaning.append(f"Since onnxruntime {knob.since}.")
    if knob.unsafe:
        meaning.append(f"In records only with `--trust`: {knob.unsafe}.")
    if knob.note:
        meaning.append(knob.note)
    tried = knob.tuned or (f"never: {knob.not_tunable}" if knob.not_tunable else "with {tune}")
    cells = (f"`{knob.id}`", describe_values(knob), " ".join(meaning), tried)
    return "| " + " | ".join(escape(spell_options(cell, spell_as_flag)) for cell in cells) + " |\n"


def describe_values(knob: Knob) -> str:
    """Return the legal values of a knob, and its default in bold."""
    default = f"**{format_default(knob)}**"
    if knob.kind == "choice":
        return ", ".join(f"**{value}**" if value == knob.default else value or '""' for value in knob.values)
    return f"{default}; `{knob.describe_values()}`" if knob.kind == "text" else f"{default}; {knob.describe_values()}"


def escape(text: str) -> str:
    """Return a text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
