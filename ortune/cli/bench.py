"""`ortune bench`: compare the default with other configs."""

from __future__ import annotations

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode
from ortune.options import make_request
from ortune.requests import BenchRequest, ExplainOptions


@command(BenchRequest, ExplainOptions, has_steps=True)
def bench(values: Values, console_options: ExplainOptions) -> None:
    """Compare ONNX Runtime's default with records and settings in interleaved measurements, under any load."""
    from ortune.apply.bench import prepare_bench
    from ortune.console.bench import show_bench, show_changed_objective, show_comparison
    from ortune.console.explain import explain_bench, show_explanations
    from ortune.console.progress import ComparisonProgress
    from ortune.console.widgets import make_console
    from ortune.measure.bench import bench as run

    request = make_request(BenchRequest, values, "cli")
    setup, sides = prepare_bench(request)
    console = make_console(stderr=console_options.json)
    if not console_options.quiet:
        show_bench(console, setup, sides)
    with ComparisonProgress(console, quiet=console_options.quiet) as progress:
        comparison = run(setup, sides, progress, budget_s=request.budget)
    if console_options.json:
        print_json(comparison)
    if not console_options.quiet:
        show_changed_objective(console, setup.goal, comparison)
        show_comparison(console, comparison)
        if console_options.explain:
            show_explanations(console, explain_bench(comparison))
    if any(row.failure for row in comparison.rows):
        raise typer.Exit(ExitCode.FAILED)
