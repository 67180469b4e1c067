"""`ortune gate`: whether a head is slower than its base, for CI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ortune.cli import options
from ortune.errors import ExitCode, OrtuneError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ortune.gate.prepare import Wish
    from ortune.gate.results import GateError, GateResult
    from ortune.workload import InputOptions, Load

USUAL_MAX_TIME = "3m"

FOR_CI = "For CI"
MANY = "Many gates"


def gate(
    base: Annotated[
        str | None,
        typer.Argument(
            metavar="BASE",
            help="MODEL.onnx, CONFIG.json or MODEL.onnx@CONFIG.json each; a single CONFIG.json gates its gain.",
            show_default=False,
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Argument(metavar="HEAD", help="What must not be slower than BASE.", show_default=False)
    ] = None,
    max_slowdown: Annotated[
        list[str] | None,
        typer.Option(
            "--max-slowdown",
            metavar="SHARE",
            help="How much worse head may be: 3%, or memory=5% for one objective; several times.",
            show_default="3%",
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(
            "--max-time",
            metavar="TIME",
            help="Wall time after which a gate ends, decided or not.",
            show_default=USUAL_MAX_TIME,
        ),
    ] = None,
    base_python: Annotated[
        str | None,
        typer.Option("--base-python", metavar="PATH", help="The Python that runs base: another onnxruntime."),
    ] = None,
    head_python: Annotated[
        str | None, typer.Option("--head-python", metavar="PATH", help="The Python that runs head.")
    ] = None,
    also: Annotated[
        str | None,
        typer.Option("--also", metavar="NAME,...", help="Gate these too, such as memory,load-time."),
    ] = None,
    objective: options.Objective = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="'FIGURE<BOUND'", help="What head must keep to, such as 'p99<20ms'."),
    ] = None,
    clients: options.Clients = None,
    sessions: options.Sessions = None,
    rate: options.Rate = None,
    arrivals: options.Arrivals = None,
    beside: options.Beside = None,
    dim: options.Dims = None,
    shape: options.Shapes = None,
    inputs: options.Inputs = None,
    rtol: Annotated[float | None, typer.Option("--rtol", metavar="X", help="How far outputs may lie apart.")] = None,
    atol: Annotated[
        float | None, typer.Option("--atol", metavar="X", help="The same, as a share of the output's largest value.")
    ] = None,
    ignore_outputs: Annotated[
        bool, typer.Option("--ignore-outputs", help="Do not compare outputs: head is meant to compute others.")
    ] = False,
    busy: Annotated[
        bool, typer.Option("--busy", help="Decide although other programs use the CPUs, for a host that is busy.")
    ] = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="Run all gates of ortune.toml or pyproject.toml.", rich_help_panel=MANY),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Run this gate of the file; several times.", rich_help_panel=MANY),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="The file with the gates.", rich_help_panel=MANY),
    ] = None,
    inconclusive: Annotated[
        str,
        typer.Option(
            "--inconclusive",
            metavar="pass|fail|3",
            help="What an inconclusive gate exits with: as a pass, as a failure, or with code 3.",
            rich_help_panel=FOR_CI,
            show_default="3",
        ),
    ] = "3",
    junit: Annotated[
        str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML.", rich_help_panel=FOR_CI)
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write everything, raw blocks too; - for stdout.", rich_help_panel=FOR_CI
        ),
    ] = None,
    markdown_file: Annotated[
        str | None,
        typer.Option(
            "--markdown",
            metavar="FILE",
            help="Write a summary; $GITHUB_STEP_SUMMARY gets it by itself.",
            rich_help_panel=FOR_CI,
        ),
    ] = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history",
            metavar="FILE",
            help="Add a line of JSON for each gate; ortune report draws it.",
            rich_help_panel=FOR_CI,
        ),
    ] = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Measure BASE and HEAD side by side, interleaved, until it is certain whether HEAD is slower."""
    if inconclusive not in {"pass", "fail", "3"}:
        raise UsageError(f"--inconclusive {inconclusive}: this is neither pass, fail nor 3.", "Write one of them.")
    given = {
        "max-slowdown": max_slowdown,
        "max-time": max_time,
        "base-python": base_python,
        "head-python": head_python,
        "also": also,
        "objective": objective,
        "limit": limit,
        "clients": clients,
        "sessions": sessions,
        "rate": rate,
        "arrivals": arrivals,
        "beside": beside,
        "dim": dim,
        "shape": shape,
        "inputs": inputs,
        "rtol": rtol,
        "atol": atol,
        "ignore-outputs": ignore_outputs,
        "busy": busy,
        "seed": seed,
    }
    from ortune.gate.results import GateError
    from ortune.gate.run import judge_together

    check_outputs(junit, json_file, markdown_file, history)
    if every or only or file:
        if base is not None:
            raise UsageError(f"{base}: --all, --only and --file take their gates from a file.", "Leave it out.")
        wishes = wishes_of_file(file, only or [], given)
    elif base is None:
        raise UsageError("There is nothing to gate.", "Pass BASE and HEAD, a CONFIG.json, or --all.")
    else:
        wishes = [make_wish("gate", {**given, "base": base, "head": head})]
    done: list[GateResult | GateError] = []
    try:
        results = run(wishes, done, quiet=quiet, to_stderr=json_file == "-")
    except BaseException as error:
        # CI is told of it, too; and of what was done before something ended the rest.
        if isinstance(error, OrtuneError):
            done.append(GateError(name=wishes[0].name, message=error.message, hint=error.hint))
        if done:
            tell(judge_together(done), junit, json_file, markdown_file, history, inconclusive=inconclusive)
        if isinstance(error, OrtuneError) and base is None:
            raise type(error)(f"gate {wishes[0].name}: {error.message}", error.hint) from None
        raise
    tell(results, junit, json_file, markdown_file, history, inconclusive=inconclusive)
    leave(results, inconclusive)


def wishes_of_file(path: str | None, only: list[str], given: dict[str, Any]) -> list[Wish]:
    """Return the gates of a file, or those of them that are named; options of the command line win.

    Raises:
        UsageError: The file or a name is wrong.
    """
    from ortune.gate.file import read_gates

    found, gates = read_gates(path)
    for name in only:
        if name not in gates:
            raise UsageError(f"--only {name}: {found} has no such gate; it has {', '.join(gates)}.")
    told = {key: value for key, value in given.items() if not _is_unsaid(key, value)}
    wishes = []
    for name, values in gates.items():
        if only and name not in only:
            continue
        try:
            wishes.append(make_wish(name, {**values, **told}))
        except OrtuneError as error:
            raise UsageError(f"{found}, gate {name}: {error.message}", error.hint) from None
    return wishes


def _is_unsaid(key: str, value: object) -> bool:
    """Return whether an option has its usual value, so that the file's is taken."""
    return value is None or value is False or (key == "seed" and value == 0)


def make_wish(name: str, values: dict[str, Any]) -> Wish:
    """Return what the values of options, or of a gate in a file, ask for.

    Raises:
        UsageError: One of them makes no sense.
    """
    from ortune.gate.prepare import Wish
    from ortune.workload import Load
    from ortune.workload.values import FIGURES, make_goal

    # What is wrong with them is told now, and not when their gate's turn comes.
    seed = int(values.get("seed") or 0)
    if seed < 0:
        raise UsageError(f"--seed {seed}: this is below 0.", "Write a whole number of at least 0.")
    make_goal(_load(values) or Load(), values.get("objective"), None, tuple(_texts(values.get("limit"))))
    also = _split(values.get("also"))
    for each in also:
        if each not in FIGURES:
            raise UsageError(f"--also {each}: there is no such figure.", f"There are {', '.join(FIGURES)}.")
    return Wish(
        name=name,
        base=values["base"],
        head=values.get("head"),
        base_python=values.get("base-python"),
        head_python=values.get("head-python"),
        slowdowns=tuple(_texts(values.get("max-slowdown"))),
        load=_load(values),
        objective=values.get("objective"),
        limits=tuple(_texts(values.get("limit"))),
        also=also,  # type: ignore[arg-type]
        budget_s=options.parse_duration_s(str(values.get("max-time") or USUAL_MAX_TIME), "--max-time"),
        inputs=_inputs(values),
        tolerance=options.parse_tolerance(values.get("rtol"), values.get("atol")),
        same_outputs=not values.get("ignore-outputs"),
        beside=values.get("beside"),
        busy=bool(values.get("busy")),
        seed=seed,
    )


def _texts(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def _split(value: str | list[str] | None) -> tuple[str, ...]:
    return tuple(part.strip() for text in _texts(value) for part in text.split(",") if part.strip())


def _load(values: dict[str, Any]) -> Load | None:
    """Return the load, or None where nothing is said of it."""
    from ortune.apply.messages import load_of

    return load_of(*(values.get(name) for name in ("clients", "rate", "sessions", "arrivals")))


def _inputs(values: dict[str, Any]) -> InputOptions | None:
    dims, shapes, data = _texts(values.get("dim")), _texts(values.get("shape")), values.get("inputs")
    if not dims and not shapes and data is None:
        return None
    return options.parse_inputs(dims, shapes, data, int(values.get("seed") or 0))


def check_outputs(*paths: str | None) -> None:
    """Find out before the gates whether their files can be written.

    Raises:
        UsageError: One cannot.
    """
    from ortune.gate.reporters.history import is_history
    from ortune.gate.reporters.markdown import TITLE
    from ortune.record.files import check_writable

    ours: dict[str, Callable[[bytes], bool]] = {
        "junit": lambda content: b"<testsuite" in content,
        "json": lambda content: content.lstrip().startswith(b"["),
        "markdown": lambda content: content.startswith(TITLE.encode()),
        "history": is_history,
    }
    for path, (option, is_ours) in zip(paths, ours.items(), strict=True):
        if path is not None and path != "-":
            check_writable(Path(path), option, is_ours)


def run(
    wishes: Sequence[Wish], done: list[GateResult | GateError], *, quiet: bool, to_stderr: bool
) -> tuple[GateResult | GateError, ...]:
    """Run the gates, and show how they stand.

    Args:
        wishes: The gates.
        done: Of several, gets each that has ended.
        quiet: Whether to show nothing.
        to_stderr: Whether to show it there.

    Raises:
        OrtuneError: The only one of them could not be measured.
    """
    from ortune.console.gate import GateScreen
    from ortune.console.widgets import make_console
    from ortune.gate.prepare import make_gate, prepare_gate
    from ortune.gate.run import run_gate, run_gates

    screen = GateScreen(make_console(stderr=to_stderr), quiet=quiet)
    if len(wishes) == 1:
        gate = make_gate(wishes[0])
        setup = prepare_gate(gate)
        with screen.watch(gate, setup.feed) as observe:
            result = run_gate(gate, observe, setup=setup)
        screen.show(result)
        return (result,)

    def finished(result: GateResult | GateError) -> None:
        done.append(result)
        screen.finish(result)

    with screen:
        results = run_gates(wishes, lambda number: screen.observer(wishes[number].name), finished)
    screen.show_all(results)
    return results


def tell(
    results: Sequence[GateResult | GateError],
    junit_path: str | None,
    json_path: str | None,
    markdown_path: str | None,
    history_path: str | None,
    *,
    inconclusive: str,
) -> None:
    """Write what other programs read."""
    from ortune.record.files import write_atomically

    if junit_path is not None:
        from ortune.gate.reporters.junit import render_junit

        write_atomically(Path(junit_path), render_junit(results, inconclusive_fails=inconclusive == "fail"))
    if json_path is not None:
        if json_path == "-":
            options.print_json(results)
        else:
            write_atomically(Path(json_path), options.encode_json(results))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if markdown_path is not None or summary:
        from ortune.gate.reporters.markdown import render_markdown

        page = render_markdown(results)
        if markdown_path is not None:
            write_atomically(Path(markdown_path), page.encode())
        if summary:
            try:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(page + "\n")
            except OSError as error:
                sys.stderr.write(f"ortune: cannot write $GITHUB_STEP_SUMMARY ({summary}): {error.strerror}\n")
    if os.environ.get("GITHUB_ACTIONS") == "true" and json_path != "-":
        from ortune.gate.reporters.github import render_annotations

        sys.stdout.write(render_annotations(results))
    if history_path is not None:
        from ortune.gate.reporters.history import append_history

        append_history(Path(history_path), results)


def leave(results: Sequence[GateResult | GateError], inconclusive: str) -> None:
    """End with the exit code of what was decided."""
    from ortune.gate.run import exit_decision

    codes = {"pass": ExitCode.DONE, "fail": ExitCode.FAILED, "error": ExitCode.ERROR}
    codes["inconclusive"] = {"pass": ExitCode.DONE, "fail": ExitCode.FAILED}.get(inconclusive, ExitCode.INCONCLUSIVE)
    code = codes[exit_decision(results)]
    if code:
        raise typer.Exit(code)
