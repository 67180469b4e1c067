"""Prints the catalog as a list, or everything about one knob, for `ortune knobs`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ortune.console.widgets import format_count, format_default
from ortune.errors import spell_as_flag, spell_options
from ortune.knobs.ids import ALLOCATOR
from ortune.knobs.knob import PLACES, Knob, Value

ID_WIDTH, DEFAULT_WIDTH = 44, 16
KNOB_INDENT = 4

OWN_PROGRAMS = {
    "providers": 'onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])',
    "allocator": "LD_PRELOAD=libmimalloc.so.2 python program.py",
    "batch": "session.run(None, {name: numpy.concatenate(items)})",
    "io_binding": "session.run_with_iobinding(binding)",
    "global_thread_pool": "onnxruntime.set_global_thread_pool_sizes(4, 1); options.use_per_session_threads = False",
}
"""Lines of programs for knobs that are not settings of ONNX Runtime, by id."""


def show_knobs(console: Console, knobs: Sequence[Knob]) -> None:
    """Print knobs, grouped by how they are set."""
    places = list(PLACES)
    for place, group in itertools.groupby(sorted(knobs, key=lambda knob: places.index(knob.where)), _place):
        console.print(Text(place, "bold"))
        for knob in group:
            _show_line(console, knob)
        console.print()
    console.print(Text(f"{format_count(len(knobs), 'knob')}. For details: ortune knobs NAME", "dim"))


def show_knob(console: Console, knob: Knob) -> None:
    """Print everything about one knob, including how to set, tune and fix it."""
    console.print(Text(knob.id, "bold cyan"))
    console.print(Padding(Text(_spell(knob.summary)), (0, 0, 1, KNOB_INDENT), expand=False))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim", min_width=10)
    grid.add_column(overflow="fold")
    for name, text in _facts(knob):
        grid.add_row(name, Text(text))
    console.print(grid)
    _show_whole(console, "source", knob.source)
    console.print()
    for name, text in _uses(knob):
        _show_whole(console, name, text)


def _show_whole(console: Console, name: str, text: str) -> None:
    """Print a text on one line, whatever its length, so that it can be copied."""
    console.print(Text.assemble((f"{name:<12}", "dim"), text), soft_wrap=True)


def _place(knob: Knob) -> str:
    place = PLACES[knob.where][:1].upper() + PLACES[knob.where][1:]
    return f"{place}: {knob.provider}" if knob.provider else place


def _spell(text: str) -> str:
    """Return a text of the catalog with options of ortune as flags."""
    return spell_options(text, spell_as_flag)


def _when(knob: Knob) -> str:
    """Return when a search tries a knob."""
    if knob.tuned:
        return f"tuned {_spell(knob.tuned)}"
    return "not tunable" if knob.not_tunable else "with --tune"


def _show_line(console: Console, knob: Knob) -> None:
    when = _when(knob)
    style = "green" if knob.tuned else "dim"
    head = Text(knob.id.ljust(ID_WIDTH), "cyan")
    if head.cell_len > ID_WIDTH:
        console.print(head, soft_wrap=True)
        head = Text(" " * ID_WIDTH)
    line = Text.assemble(head, " ", format_default(knob).ljust(DEFAULT_WIDTH), " ")
    below = Text(_spell(knob.summary))
    if knob.tuned and line.cell_len + len(when) > console.width:
        when = "tuned"
        below.append(f" Tuned {_spell(knob.tuned)}.", style)
    line.append(when, style)
    console.print(line, soft_wrap=True)
    console.print(Padding(below, (0, 0, 0, KNOB_INDENT), expand=False))


def _facts(knob: Knob) -> list[tuple[str, str]]:
    place = PLACES[knob.where] + (f" of {knob.provider}" if knob.provider else "")
    rows = [("where", place), ("values", knob.describe_values()), ("default", format_default(knob))]
    rows.append(("since", f"onnxruntime {knob.since}" if knob.since else "all supported versions"))
    rows.append(("outputs", "may change beyond rounding" if knob.numerics else "equal, up to rounding"))
    tuned = _spell(knob.tuned) or ("never" if knob.not_tunable else "only with --tune")
    rows.append(("tuned", f"{tuned}: {_spell(knob.not_tunable)}" if knob.not_tunable else tuned))
    if knob.unsafe:
        rows.append(("in records", f"only with --trust: {knob.unsafe}"))
    if knob.note:
        rows.append(("note", _spell(knob.note)))
    return rows


def _uses(knob: Knob) -> list[tuple[str, str]]:
    examples = _examples(knob)
    where = "in a shell" if knob.where == "environment" or knob.id == ALLOCATOR else "in Python"
    rows = [(where, _write_program(knob, examples[0]))]
    if not knob.not_tunable:
        rows.append(("to tune it", f"--tune {knob.id}={','.join(map(str, examples))}"))
    if knob.is_settable:
        rows.append(("to fix it", f"--fix {knob.id}={examples[0]}"))
    return rows


def _examples(knob: Knob) -> list[Value]:
    """Return one or two values other than the default, or a placeholder."""
    candidates: list[Value] = []
    if knob.kind == "boolean":
        candidates = [True, False] if knob.is_attribute else ["1", "0"]
    elif knob.kind == "choice":
        candidates = list(knob.values)
    elif knob.examples:
        candidates = list(knob.examples)
    elif knob.kind == "integer":
        default = int(knob.default or 0)
        near = (2 * default, default // 2) if default >= 100 else (2, 4, 1, 0)
        low, high = knob.low, knob.high
        fitting = [n for n in near if (low is None or n >= low) and (high is None or n <= high)]
        candidates = [n if knob.is_attribute else str(n) for n in fitting]
    others = [value for value in candidates if value not in {knob.default, ""}]
    return others[:2] or ["VALUE"]


def _write_program(knob: Knob, value: Value) -> str:
    """Return a line of Python, or of a shell, that sets a knob."""
    entry = f'"{knob.name}", "{value}"'
    pair = f'{{"{knob.name}": "{value}"}}'
    if knob.where == "session_config":
        return f"options.add_session_config_entry({entry})"
    if knob.where == "run_config":
        return f"run_options.add_run_config_entry({entry})"
    if knob.where == "provider_options":
        return f'onnxruntime.InferenceSession(model, options, providers=[("{knob.provider}", {pair})])'
    if knob.where == "dynamic_options":
        return f"session.set_ep_dynamic_options({pair})"
    if knob.where == "environment":
        return f"{knob.name}={value} python program.py"
    if knob.where == "config":
        return OWN_PROGRAMS.get(knob.name, knob.source)
    literal = repr(value)
    if knob.kind == "choice":
        enum = "".join(part.title() for part in knob.name.split("_"))
        literal = f"onnxruntime.{enum}.{value}"
    return f"{'options' if knob.where == 'session_options' else 'run_options'}.{knob.name} = {literal}"
