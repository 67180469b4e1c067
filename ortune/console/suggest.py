"""Prints a suggestion, or why there is none, for `ortune suggest`."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ortune.console.header import add_goal, add_host, add_model
from ortune.console.warnings import warn_provider
from ortune.console.widgets import add_note, format_reason, make_grid, show_warning
from ortune.errors import spell_as_flag, spell_options
from ortune.host import HostClass
from ortune.model import ModelInfo
from ortune.numbers import format_ratio
from ortune.requests import SuggestRequest
from ortune.tuning.suggest import NoSuggestion, SuggestedConfig
from ortune.workload import Goal

SUGGESTION_INDENT = 2


def show_answer(
    console: Console,
    model: ModelInfo,
    host: HostClass,
    goal: Goal,
    request: SuggestRequest,
    answer: SuggestedConfig | NoSuggestion,
    commands: Mapping[str, str],
    faults: Mapping[str, str],
) -> None:
    """Print what the suggestion is for, the suggestion, and the commands that prove it.

    Args:
        console: Where to print.
        model: The model.
        host: The host.
        goal: The load, and what is optimized.
        request: The options of the user.
        answer: The suggestion, or why there is none.
        commands: Commands to copy: "prove", and "measure" if there is a suggestion.
        faults: Why execution providers do not work here, by name.
    """
    grid = make_grid()
    add_model(grid, model)
    add_host(grid, host)
    grid.add_row("load", add_note(str(goal.load), goal.load.scenario))
    if request.beside:
        grid.add_row("background", request.beside)
    add_goal(grid, goal)
    console.print(grid)
    for name, fault in faults.items():
        show_warning(console, warn_provider(name, fault))
    console.print()
    if isinstance(answer, SuggestedConfig):
        _show_suggestion(console, answer)
    else:
        console.print(Text("no suggestion", "bold"))
        _show_indented(console, Text(answer.why))
        if answer.hint:
            _show_indented(console, Text(spell_options(answer.hint, spell_as_flag)))
    console.print()
    console.print(Text("To prove the gain:" if "measure" in commands else "To find the best settings:", "dim"))
    # Never wrapped, so that they can be copied.
    for command in commands.values():
        console.print(Text(f"{'':{SUGGESTION_INDENT}}{command}", "cyan"), soft_wrap=True)


def _show_suggestion(console: Console, answer: SuggestedConfig) -> None:
    console.print(Text.assemble(("suggestion", "bold green"), ("  not proven: nothing was measured", "dim")))
    for name, value in answer.config.settings.items():
        _show_indented(console, Text(f"{name}={value}", "cyan"))
        _show_indented(console, Text(format_reason(answer.reasons[name])), indent=2 * SUGGESTION_INDENT)
    console.print()
    grid = make_grid()
    if answer.gain:
        gain = f"{format_ratio(answer.gain.low)} to {format_ratio(answer.gain.high)}"
        grid.add_row("expected", add_note(gain, f"{answer.gain.confidence:.0%} range of the speedup"))
    else:
        grid.add_row("expected", "faster than the default; by how much is unknown")
    grid.add_row("basis", answer.evidence)
    console.print(grid)


def _show_indented(console: Console, text: Text, indent: int = SUGGESTION_INDENT) -> None:
    console.print(Padding(text, (0, 0, 0, indent), expand=False))
