"""`ortune bench`: the default and other configs, head to head."""

from __future__ import annotations

from typing import Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode


def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG",
            help="Records that searches wrote; the word default stands for ONNX Runtime's default.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KNOB=VALUE,...",
            help="A config of these settings; may be given several times, once for each config.",
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="Wall time to spend, such as 60s.",
            show_default="20 s, longer for many configs, slow models and high percentiles",
        ),
    ] = None,
    clients: options.Clients = None,
    sessions: options.Sessions = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    objective: options.Objective = None,
    beside: options.Beside = None,
    allow_approximate: options.Approximate = False,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    inputs: options.Inputs = None,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare ONNX Runtime's default with records and settings, interleaved, under any load."""
    from ortune.apply.bench import read_sides
    from ortune.compare.bench import bench as run
    from ortune.compare.open import prepare_comparison
    from ortune.console.bench import show_bench, show_comparison
    from ortune.console.progress import ComparisonProgress
    from ortune.console.widgets import make_console
    from ortune.workload import make_goal, make_load

    time_s = options.parse_time_s(time)
    sides = read_sides(configs or [], settings or [])
    setup = prepare_comparison(
        model,
        make_goal(make_load(clients, rate, arrivals, sessions), objective),
        options.parse_inputs(dim, shape, inputs, seed),
        approximate=allow_approximate,
        beside=beside,
        seed=seed,
    )
    console = make_console(stderr=json)
    if not quiet:
        show_bench(console, setup, sides)
    with ComparisonProgress(console, quiet=quiet) as progress:
        comparison = run(setup, sides, progress, budget_s=time_s)
    if json:
        options.print_json(comparison)
    if not quiet:
        show_comparison(console, comparison)
    if any(row.failure for row in comparison.rows):
        raise typer.Exit(ExitCode.FAILED)
