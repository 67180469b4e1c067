"""Shows what was seen of a program: a table of its models, then details of each."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ortune.console.widgets import (
    add_note,
    format_bytes,
    format_count,
    format_duration,
    make_grid,
    make_table,
    show_note,
    show_warning,
)
from ortune.program.observation import Observation, ObservedModel, SeenShapes

MOST_SHOWN_SHAPES = 5
"""Number of combinations of shapes that are shown for each model."""

MOST_FAULTS = 5

ENDED_BY_USER = (signal.SIGINT, signal.SIGTERM)
"""Signals with which users end servers."""

OUTSIDE = "outside ONNX Runtime"


def show_save_warning(console: Console, folder: Path) -> None:
    """Print that inputs will be saved."""
    show_warning(
        console,
        f"inputs of the models are saved in {folder}. They are data of the program, which may be private, such as "
        "images, texts or sound. Do not share the folder, and delete it when it is no longer needed.",
    )


def show_observation(console: Console, observation: Observation, lack: tuple[str, str] | None) -> None:
    """Print what was seen of a program.

    Args:
        console: Where to print.
        observation: What was seen.
        lack: Why nothing was observed, and what to do; None if calls were.
    """
    console.print()
    if observation.models:
        console.print(make_model_table(observation))
        for model in observation.models:
            console.print()
            console.print(Text(model.name, "bold"))
            console.print(make_model_grid(model))
        console.print()
    console.print(make_program_grid(observation))
    for fault in observation.faults[:MOST_FAULTS]:
        show_warning(console, fault)
    for saved in observation.saved:
        _left_out = f" ({format_count(saved.n_left_out, 'call')} could not be saved)" if saved.n_left_out else ""
        text = f"{format_count(saved.n_samples, 'sample')}, {format_bytes(saved.n_bytes)}{_left_out}"
        show_note(console, "saved", f"{saved.folder}: {text}", "green", fold=False)
    if observation.interrupted:
        show_note(console, "interrupted", "the figures are those until then.")
    elif observation.status:
        show_note(console, "failed", f"{observation.command[0]} {describe_status(observation.status)}.", "bold red")
    if lack:
        what, hint = lack
        show_note(console, "nothing observed", what, "bold red")
        console.print(Text(hint, "dim"))
    else:
        show_next_steps(console, observation)


def describe_status(status: int) -> str:
    """Return how a program ended, as the end of a sentence."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"


def make_model_table(observation: Observation) -> Table:
    """Return a row for each model, and one for the time outside of sessions."""
    table = make_table()
    table.add_column("model", overflow="fold", min_width=8)
    for name in ("calls", "mean", "share", "threads"):
        table.add_column(name, justify="right", no_wrap=True)
    for model in observation.models:
        table.add_row(
            model.name,
            str(model.n_calls),
            format_duration(model.mean_ns) if model.n_calls else "",
            f"{model.share:.1%}",
            "-".join(map(str, dict.fromkeys((model.n_threads[0], model.n_threads[-1])))),
        )
    if observation.n_calls:
        table.add_row(Text(OUTSIDE, "dim"), "", "", f"{observation.outside_share:.1%}", "")
    return table


def make_model_grid(model: ObservedModel) -> Table:
    """Return what else was seen of a model."""
    grid = make_grid()
    if model.package:
        grid.add_row("package", model.package)
    grid.add_row("file", add_note(model.path or "passed as bytes", format_bytes(model.size_bytes)))
    sessions = format_count(model.n_sessions, "session")
    where = f" in {format_count(model.n_processes, 'process', 'processes')}" if model.n_processes > 1 else ""
    grid.add_row("sessions", f"{sessions}{where}, created in {format_duration(model.create_ns)}")
    grid.add_row("options", _format_options(model))
    providers = "; ".join(", ".join(names) for names in model.providers)
    grid.add_row("providers", providers)
    if model.records:
        grid.add_row("record", ", ".join(model.records))
    if model.most_concurrent > 1:
        grid.add_row("at a time", f"up to {model.most_concurrent} calls of a session")
    if model.n_failed:
        grid.add_row("failed", format_count(model.n_failed, "call"))
    n_shapes = sum(seen.count for seen in model.shapes) + model.n_other_shapes
    for number, seen in enumerate(model.shapes[:MOST_SHOWN_SHAPES]):
        share = f"{seen.count / n_shapes:.0%}" if n_shapes else ""
        grid.add_row("shapes" if number == 0 else "", add_note(format_shapes(seen), share))
    n_others = len(model.shapes) - MOST_SHOWN_SHAPES
    if n_others > 0 or model.n_other_shapes:
        count = n_shapes - sum(seen.count for seen in model.shapes[:MOST_SHOWN_SHAPES])
        share = f"{count / n_shapes:.0%}"
        grid.add_row("", add_note(f"{max(n_others, 0) or 'others'}{' others' if n_others > 0 else ''}", share))
    return grid


def _format_options(model: ObservedModel) -> str:
    """Return the options that the program sets, for each kind of session."""
    texts = [", ".join(f"{name}={value}" for name, value in options.items()) or "none set" for options in model.options]
    others = f"; also calls {', '.join(model.other_methods)}" if model.other_methods else ""
    return "; or ".join(texts) + others


def format_shapes(seen: SeenShapes) -> str:
    """Return shapes as the option --shape has them, with the types."""
    return ", ".join(
        f"{info.name}={'?' if info.shape is None else format_shape(info.shape)} {info.dtype}".rstrip()
        for info in seen.inputs
    )


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape such as `1x3x224x224`."""
    return "x".join(map(str, shape)) or "scalar"


def make_program_grid(observation: Observation) -> Table:
    """Return what was seen of the whole program."""
    grid = make_grid()
    grid.add_row("program", add_note(shlex.join(observation.command), format_duration(observation.wall_ns)))
    if observation.n_calls:
        grid.add_row("start", f"{format_duration(observation.start_ns)} until the first call")
        outside = f"{format_duration(observation.outside_ns)} between the first and the last call, with waiting"
        grid.add_row("outside", outside)
    if observation.processes:
        with_sessions = sum(bool(process.sessions) for process in observation.processes)
        processes = f"{with_sessions} with sessions, of {observation.n_python} that run Python"
        grid.add_row("processes", f"{processes}; up to {format_count(observation.peak_threads, 'thread')} in one")
        grid.add_row("thread pools", ", ".join(("ONNX Runtime", *observation.libraries)))
    return grid


def show_next_steps(console: Console, observation: Observation) -> None:
    """Print the commands that tune the program, and the model that takes most of the time.

    A search waits until a program ends, unless it is a server whose URL it knows.
    """
    console.print()
    command = shlex.join(observation.command)
    ran_on = observation.interrupted or -observation.status in ENDED_BY_USER
    steps = [f"ortune search {'--url http://127.0.0.1:8000/ ' if ran_on else ''}-- {command}"]
    model = observation.models[0]
    if model.path and model.n_calls:
        saved = next((saved for saved in observation.saved if saved.model == model.name and saved.n_samples), None)
        inputs = f" --inputs {shlex.quote(saved.folder)}" if saved else "".join(make_shape_options(model))
        steps.append(f"ortune search {shlex.quote(model.path)}{inputs}")
    console.print(Text("To tune the program, or the model that takes most of the time alone:", "dim"))
    if ran_on:
        text = "The program was ended while it ran. If it is a server, replace the URL with that of its requests. "
        console.print(Text(text + "If it is not, leave out --url, and let the program end.", "dim"))
    for step in steps:
        # Never wrapped, so that it can be copied.
        console.print(Text(f"  {step}", "cyan"), soft_wrap=True)


def make_shape_options(model: ObservedModel) -> list[str]:
    """Return the options with which a search uses the most frequent shapes."""
    if not model.shapes:
        return []
    known = [info for info in model.shapes[0].inputs if info.shape]
    return [f" --shape {shlex.quote(f'{info.name}={format_shape(info.shape or ())}')}" for info in known]
