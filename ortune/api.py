"""The public Python functions that measure, such as `search`, `bench`, `plan` and `gate`.

Each takes the options of the command of the same name (`allow_approximate` for `--allow-approximate`). Signatures and
parameter descriptions are generated from `ortune.requests`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ortune.errors import spell_in_python, spell_options
from ortune.options import Request, accepted_options, make_request
from ortune.requests import (
    BenchRequest,
    GateRequest,
    HostPlanRequest,
    InspectRequest,
    PlanRequest,
    ProgramSearchRequest,
    SearchRequest,
    VerifyRequest,
)

if TYPE_CHECKING:
    from ortune.apply.verify import Verification
    from ortune.gates.results import GateResult, InterimResult
    from ortune.measure.bench import BenchResult
    from ortune.planning.colocation.result import HostPlan
    from ortune.planning.result import Plan
    from ortune.program.observation import Observation
    from ortune.record.schema import Record
    from ortune.tuning.outcome import Progress

Function = TypeVar("Function", bound=Callable[..., Any])

PROGRESS = "progress: Called between measurements with the state of the run."


def takes_options_of(request: type[Request]) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the signature and the documentation of a request's options.

    Args:
        request: A class of `ortune.requests`. The function already has its positional options as parameters.
    """

    def decorate(function: Function) -> Function:
        own = dict(inspect.signature(function).parameters)
        options = {
            name: declared
            for name, declared in accepted_options(request).items()
            if "python" in declared.option.interfaces
        }
        defaults = {name: getattr(request, name, None) for name in options}
        parameters = [
            parameter.replace(annotation=options[name].option.accepts) if name in options else parameter
            for name, parameter in own.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        progress = own.pop("progress", None)
        parameters = [parameter for parameter in parameters if parameter.name != "progress"]
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=declared.option.accepts
            )
            for name, declared in options.items()
            if name not in own
        ]
        if progress is not None:
            parameters.append(progress)
        signature = inspect.signature(function)
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        lines = [
            describe_parameter(name, declared.option.describe(), declared.option.default)
            for name, declared in options.items()
        ]
        lines += [textwrap.indent(PROGRESS, " " * 4)] if progress is not None else []
        document = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = document.replace("Args:", "Args:\n" + "\n".join(lines), 1)
        return function

    return decorate


def describe_parameter(name: str, text: str, default: str) -> str:
    """Return the lines of a parameter in a docstring, at most 100 columns wide."""
    text = spell_options(text, spell_in_python)
    if default:
        text += f" Default: {spell_options(default, spell_in_python)}."
    return textwrap.fill(f"{name}: {text}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)


@takes_options_of(SearchRequest)
def search(model: str | PathLike[str], *, progress: Callable[[Progress], None] | None = None, **options: Any) -> Record:
    """Find the best settings for a model, its load and this host, and confirm the gain.

    Args:

    Returns:
        The record. Its config is ONNX Runtime's default unless a better one was confirmed.

    Raises:
        OrtuneError: An option is not valid, the model does not run, or the record cannot be written to its file. In
            the last case, the message states where the record is instead.

    Example:
        >>> import ortune
        >>> record = ortune.search("model.onnx", budget="8s", output="found.json", history=False)
        >>> record.config == ortune.read_record("found.json").config
        True
    """
    from ortune.tuning.prepare import prepare
    from ortune.tuning.search import search as run

    request = make_request(SearchRequest, {"model": model, **options})
    result = run(prepare(request), progress or ignore)
    if result.fault:
        raise result.fault
    return result.record


@takes_options_of(ProgramSearchRequest)
def search_program(
    command: Sequence[str], *, progress: Callable[[Progress], None] | None = None, **options: Any
) -> tuple[Record, ...]:
    """Find the best settings for the sessions of a program, and confirm the gain of the whole program.

    The program stays unmodified. By default, complete runs of the command are measured.

    Args:

    Returns:
        A record for each model that the program calls, all with the same evidence. Their configs are the settings that
        the program has already, unless better ones were confirmed.

    Raises:
        OrtuneError: An option is not valid, the program does not work, or the records cannot be written.

    Example:
        >>> import ortune, sys
        >>> records = ortune.search_program([sys.executable, "app.py"], call="__main__:answer", budget="8s")
        >>> [record.workload.program.call for record in records]
        ['__main__:answer']
    """
    from ortune.program.prepare import prepare_program
    from ortune.program.search import search_program as run

    request = make_request(ProgramSearchRequest, {"command": command, **options})
    return run(prepare_program(request), progress or ignore).records


@takes_options_of(BenchRequest)
def bench(
    model: str | PathLike[str],
    configs: Any = (),
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> BenchResult:
    """Compare ONNX Runtime's default with records, configs and settings in interleaved measurements.

    Args:

    Returns:
        All figures of each config, the default first, with speedups and their confidence intervals.

    Raises:
        OrtuneError: An option is not valid, or the model does not run.

    Example:
        >>> import ortune
        >>> comparison = ortune.bench("model.onnx", set={"intra_op_num_threads": 1}, budget="6s")
        >>> [row.name for row in comparison.rows]
        ['default', 'intra_op_num_threads=1']
    """
    from ortune.apply.bench import prepare_bench
    from ortune.measure.bench import bench as run

    request = make_request(BenchRequest, {"model": model, "configs": configs, **options})
    setup, sides = prepare_bench(request)
    return run(setup, sides, progress or ignore, budget_s=request.budget)


@takes_options_of(PlanRequest)
def plan(
    model: str | PathLike[str], *, progress: Callable[[str, int, int], None] | None = None, **options: Any
) -> Plan:
    """Find how to deploy a model on this host: processes, threads and callers of each, and settings.

    Args:

    Returns:
        The plan: deployments with their throughput, latency, CPU time and memory, and the recommended one.

    Raises:
        OrtuneError: An option is not valid, the model does not run, or the plan cannot be written to its file.

    Example:
        >>> import ortune
        >>> found = ortune.plan("model.onnx", processes=[1, 2], budget="40s")
        >>> found.choice.deployment.processes in (1, 2)
        True
    """
    from ortune.planning.files import save_plan
    from ortune.planning.prepare import prepare_plan
    from ortune.planning.run import plan_deployment

    request = make_request(PlanRequest, {"model": model, **options})
    found = plan_deployment(prepare_plan(request), progress or ignore)
    if request.output is not None and (fault := save_plan(found, request.output)):
        raise fault
    return found


@takes_options_of(HostPlanRequest)
def plan_host(
    models: Mapping[str, str | float] | Sequence[str],
    *,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> HostPlan:
    """Find how several models should share this host, each with the requests that it must serve.

    Args:

    Returns:
        The plan: ways to share the host, each measured with all models under load at the same time.

    Raises:
        OrtuneError: An option is not valid, a model does not run, or the plan cannot be written to its file. In
            the last case, the message states where the plan is instead.
    """
    from ortune.planning.colocation.prepare import prepare_host_plan
    from ortune.planning.colocation.run import make_host_plan
    from ortune.planning.files import save_plan

    request = make_request(HostPlanRequest, {"models": models, **options})
    found = make_host_plan(prepare_host_plan(request), progress or ignore)
    if request.output is not None and (fault := save_plan(found, request.output)):
        raise fault
    return found


@takes_options_of(VerifyRequest)
def verify(
    config: str | PathLike[str] | Record,
    model: str | PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Verification:
    """Measure whether the gain that a record claims holds on this host.

    The workload is that of the record.

    Args:

    Returns:
        The answer: "holds", "does_not_hold" or "inconclusive", with the figures of both configs. A record that
        recommends the baseline has "nothing_to_verify".

    Raises:
        OrtuneError: An option is not valid, the record is for another model, or the model does not run.

    Example:
        >>> import ortune
        >>> verification = ortune.verify("tuned.json", "model.onnx", budget="8s")
        >>> verification.answer in ("holds", "does_not_hold", "inconclusive")
        True
    """
    from ortune.apply.verify import prepare_verification
    from ortune.apply.verify import verify as run
    from ortune.record.schema import Record
    from ortune.record.select import Wanted, read_sourced, select_record
    from ortune.worker.installed import require_runtime

    require_runtime()
    request = make_request(VerifyRequest, {"config": config, "model": model, **options})
    wanted = Wanted(load=request.given_load, pick=request.pick, any_host=request.any_host)
    records = read_sourced([config if isinstance(config, Record) else Path(config)], trust=request.trust)
    record = select_record(records, wanted, request.model).record
    return run(record, prepare_verification(record, request), progress or ignore, budget_s=request.budget)


@takes_options_of(GateRequest)
def gate(
    base: str | PathLike[str],
    head: str | PathLike[str] | None = None,
    *,
    progress: Callable[[InterimResult], None] | None = None,
    **options: Any,
) -> GateResult:
    """Measure two models or configs side by side until it is decided whether the second is slower.

    Args:

    Returns:
        The decision: "pass", "fail" or "inconclusive", with the slowdown in each objective.

    Raises:
        OrtuneError: An option is not valid, or one of the two does not run.

    Example:
        >>> import ortune
        >>> result = ortune.gate("model.onnx", "model.onnx", budget="8s")
        >>> result.decision in ("pass", "fail", "inconclusive")
        True
    """
    from ortune.gates.prepare import make_gate
    from ortune.gates.run import run_gate

    request = make_request(GateRequest, {"base": base, "head": head, **options})
    return run_gate(make_gate(request), progress or ignore)


@takes_options_of(InspectRequest)
def inspect_program(command: str | Sequence[str], **options: Any) -> Observation:
    """Run a program once, and return what was seen of its sessions.

    The program has the stdin, stdout and stderr of this process.

    Args:

    Returns:
        Its models with their calls, times, shapes and options, and its processes.

    Raises:
        UsageError: An option is not valid, or there is no such program.

    Example:
        >>> import ortune
        >>> code = "import onnxruntime; onnxruntime.InferenceSession('model.onnx')"
        >>> observation = ortune.inspect_program(["python", "-c", code])
        >>> [model.name for model in observation.models]
        ['model.onnx']
    """
    from ortune.program.inspect import inspect_program as run

    return run(make_request(InspectRequest, {"command": command, **options}))


def ignore(*state: Any) -> None:
    """Do nothing with the state of a run."""
