"""`ortune search`: find the best settings, prove them, write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ortune.cli import options
from ortune.errors import ExitCode, UsageError


def search(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The ONNX file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write the record to; - for stdout.",
            show_default="MODEL.ortune.json",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="TIME",
            help="Wall time to spend, such as 60s or 5m.",
            show_default="a minute, longer for slow models and high percentiles",
        ),
    ] = None,
    clients: options.Clients = None,
    sessions: options.Sessions = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    objective: options.Objective = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="FIGURE<BOUND",
            help="What a winner must keep to, such as 'p99<20ms', 'memory<500MB', 'throughput>100/s'; several times.",
        ),
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(
            "--pareto",
            metavar="A,B",
            help="Find the trade-offs between objectives, such as p99,cpu, instead of one winner.",
        ),
    ] = None,
    beside: options.Beside = None,
    provider: options.Providers = "auto",
    tune: options.Tune = None,
    fix: options.Fix = None,
    only: options.Only = None,
    allow_approximate: options.Approximate = False,
    build_timeout: Annotated[
        str,
        typer.Option(
            "--build-timeout", metavar="TIME", help="Time that a provider may take to compile the model, each time."
        ),
    ] = "10m",
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", help="Candidates to screen at most.", show_default=False),
    ] = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    inputs: options.Inputs = None,
    rtol: Annotated[
        float | None,
        typer.Option("--rtol", metavar="X", help="Allowed difference of outputs, relative to each value."),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option("--atol", metavar="X", help="Allowed difference, relative to the output's largest value."),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option("--study", metavar="FILE", help="Keep Optuna's study: a .db file (SQLite), or a .journal file."),
    ] = None,
    strategy: options.Strategy = "adaptive",
    history: options.History = True,
    seed: options.Seed = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the settings that are best for MODEL, a load and this host, prove them, and write them as JSON."""
    from ortune.console.progress import SearchProgress
    from ortune.console.search import show_search
    from ortune.console.verdict import show_verdict
    from ortune.console.widgets import make_console
    from ortune.knobs.parse_knobs import parse_fix, parse_only, parse_tune
    from ortune.record.files import STANDARD_STREAM, encode_record
    from ortune.tuning.hints import history_path
    from ortune.tuning.prepare import SearchRequest, prepare
    from ortune.tuning.search import search as run
    from ortune.tuning.strategy import parse_strategy
    from ortune.workload import make_goal, make_load

    path = output or Path(f"{Path(model).stem}.ortune.json")
    request = SearchRequest(
        model=model,
        output=path,
        goal=make_goal(make_load(clients, rate, arrivals, sessions), objective, pareto, tuple(limit or ())),
        beside=beside,
        budget_s=None if budget is None else options.parse_duration_s(budget, "--budget"),
        n_trials=trials,
        seed=seed,
        inputs=options.parse_inputs(dim, shape, inputs, seed),
        tolerance=options.parse_tolerance(rtol, atol),
        study=study,
        strategy=parse_strategy(strategy),
        history=history_path() if history else None,
        providers=options.parse_providers(provider),
        tune=parse_tune(tune or [], approximate=allow_approximate),
        fix=parse_fix(fix or [], approximate=allow_approximate),
        only=parse_only(only or []),
        approximate=allow_approximate,
        build_deadline_s=options.parse_duration_s(build_timeout, "--build-timeout"),
    )
    if output is None:
        check_default_path(path, model)
    setting = prepare(request)
    to_stdout = str(path) == STANDARD_STREAM
    console = make_console(stderr=json or to_stdout)
    if not quiet:
        show_search(console, setting)
    with SearchProgress(console, quiet=quiet) as progress:
        result = run(setting, progress)
    if not quiet:
        show_verdict(console, result.record, None if to_stdout else path, result.kept)
    if json and not to_stdout:
        sys.stdout.buffer.write(encode_record(result.record))
    if result.outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if result.outcome.verdict == "inconclusive":
        raise typer.Exit(ExitCode.INCONCLUSIVE)
    if result.outcome.verdict in {"infeasible", "overload"}:
        raise typer.Exit(ExitCode.FAILED)


def check_default_path(path: Path, model: str) -> None:
    """Check that the file that nobody named holds no record of another model: many are called model.onnx.

    Raises:
        UsageError: It does.
    """
    from ortune.errors import RecordError
    from ortune.record.files import read_record

    if not path.is_file():
        return
    try:
        other = read_record(path).model.path
    except RecordError:
        return
    if Path(other).resolve() != Path(model).resolve():
        raise UsageError(f"{path} is there already: the record of {other}.", "Name another file with -o.")
