"""What is printed before measuring starts: the model, its inputs, the host and the load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from rich.console import Console
from rich.table import Table

from ortune.console.warnings import (
    warn_common_scale,
    warn_default_pool,
    warn_dropped_variables,
    warn_guessed_dimensions,
    warn_inherited_variables,
    warn_provider,
)
from ortune.console.widgets import add_note, format_bytes, format_count, show_warning
from ortune.host import HostClass
from ortune.host.default_pool import find_default_pool
from ortune.host.runtime_variables import list_runtime_variables
from ortune.knobs import describe
from ortune.measure.open import ComparisonSetup
from ortune.model import ModelInfo
from ortune.numbers import format_quota
from ortune.workload import FIGURES, Feed, Goal

DYNAMIC_QUANTIZATION = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
"""Operators that quantize all items of a call by one scale."""

MAX_LISTED_SHAPES = 4
"""Number of shapes of an input that are listed."""


def add_subject(grid: Table, setup: ComparisonSetup) -> None:
    """Add what is measured: the model, its inputs, the host and the load."""
    add_model(grid, setup.model)
    add_inputs(grid, setup.feed)
    add_host(grid, HostClass.of(setup.host))
    add_load(grid, setup.goal, setup.feed)
    if setup.beside:
        grid.add_row("background", setup.beside)
    base = msgspec.structs.replace(setup.base, batch=1)
    if not base.is_default:
        grid.add_row("fixed", add_note(describe(base), "in every candidate and in the baseline"))


def add_model(grid: Table, model: ModelInfo) -> None:
    """Add the model with its size and traits."""
    facts = [format_bytes(sum(file.size_bytes for file in model.files)), *list_traits(model)]
    grid.add_row("model", add_note(Path(model.path).name, ", ".join(facts)))


def list_traits(model: ModelInfo) -> list[str]:
    """Return the traits of a model in words."""
    traits = model.traits
    facts = [f"opset {traits.opset}", format_count(traits.n_nodes, "node")]
    if traits.width > 1:
        facts.append(f"up to {traits.width} in parallel")
    if traits.quantized:
        facts.append("quantized")
    if traits.control_flow:
        facts.append("control flow")
    return facts


def add_inputs(grid: Table, feed: Feed) -> None:
    """Add each input with its shapes and where its values come from."""
    for name in feed.tensors:
        data = feed.describe_input(name)
        shown = str(data) if len(data.shapes) <= MAX_LISTED_SHAPES else f"{data.dtype}, {len(data.shapes)} samples"
        grid.add_row("input", add_note(f"{name}  {shown}", data.origin))


def add_host(grid: Table, host: HostClass) -> None:
    """Add the host with the CPUs that may be used."""
    facts = [format_count(host.n_usable_cores, "core")]
    if host.n_usable != host.n_usable_cores:
        facts.append(format_count(host.n_usable, "hardware thread"))
    if host.n_numa_nodes > 1:
        facts.append(f"{host.n_numa_nodes} NUMA nodes")
    if host.n_usable < host.n_logical:
        facts.append(f"of {host.n_logical} CPUs on the host")
    facts.append(f"quota {format_quota(host.cpu_quota)}" if host.cpu_quota else "no quota")
    grid.add_row("host", add_note(host.cpu_name, ", ".join(facts)))


def add_load(grid: Table, goal: Goal, feed: Feed) -> None:
    """Add how calls arrive, and how many items they have."""
    load = goal.load
    facts: list[str] = [load.scenario]
    n_samples = len(feed.samples)
    if n_samples > 1:
        facts.append(f"{n_samples} {'samples' if feed.n_cases == 1 else 'shapes'} in turn")
    grid.add_row("load", add_note(str(load), ", ".join(facts)))
    if goal.batches:
        shown = f"{', '.join(map(str, goal.batches))} items per call"
        first = "the first in the baseline; " if len(goal.batches) > 1 else ""
        grid.add_row("batch", add_note(shown, f"{first}throughput and CPU time are per item"))
    if goal.sustained:
        grid.add_row("speed", add_note("what the host sustains", "each config alone, after a minute of calls"))


def add_goal(grid: Table, goal: Goal, budget_s: float | None = None) -> None:
    """Add what is optimized, and why if the user did not name it; within which limits, and in which time.

    Args:
        grid: The grid.
        goal: The goal.
        budget_s: The time in seconds, if the user gave one.
    """
    parts = [" and ".join(FIGURES[name].title for name in goal.objectives)]
    if goal.limits:
        title = "limit" if len(goal.limits) == 1 else "limits"
        parts.append(f"{title} {', '.join(limit.text for limit in goal.limits)}")
    if budget_s is not None:
        parts.append(f"budget {budget_s:g} s")
    subject = f"{goal.objective}: " if goal.why and len(parts) > 1 else ""
    grid.add_row("goal", add_note("; ".join(parts), f"{subject}{goal.why}"))


def show_header(
    console: Console, grid: Table, setup: ComparisonSetup, faults: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Print the grid, then warnings about the host, the execution providers and the inputs.

    Args:
        console: Where to print.
        grid: What is measured.
        setup: The same, as values.
        faults: Why execution providers do not work here, by name.
    """
    console.print(grid)
    for name, fault in faults.items():
        show_warning(console, warn_provider(name, fault))
    for fault in find_default_pool(setup.host).faults:
        show_warning(console, warn_default_pool(fault))
    show_variables(console)
    show_guesses(console, setup.feed)
    if setup.goal.batches and DYNAMIC_QUANTIZATION & setup.model.traits.ops.keys():
        show_warning(console, warn_common_scale())
    console.print()


def show_guesses(console: Console, feed: Feed) -> None:
    """Warn of dimensions that were guessed."""
    guessed = {name: tensor.guessed for name, tensor in feed.tensors.items() if tensor.guessed}
    if guessed:
        show_warning(console, warn_guessed_dimensions(guessed))


def show_variables(console: Console, *, of_program: bool = False) -> None:
    """Say which environment variables that change ONNX Runtime's default are set, and whether they count.

    Args:
        console: Where to print.
        of_program: Whether a program is measured, which gets them.
    """
    if names := list_runtime_variables(os.environ):
        show_warning(console, warn_inherited_variables(names) if of_program else warn_dropped_variables(names))
