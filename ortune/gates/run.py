"""Runs gates: measures both sides until it is decided, and judges several gates together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Sequence

import msgspec

from ortune.errors import OrtuneError, spell_in_toml
from ortune.gates.acceptance import list_notes
from ortune.gates.decision import holm
from ortune.gates.prepare import N_SIDES, make_gate, prepare_gate
from ortune.gates.programs import open_programs
from ortune.gates.reporters.messages import describe_failures
from ortune.gates.results import Gate, GateError, GateResult, Observe, SideResult
from ortune.gates.sequential_test import (
    BASE,
    HEAD,
    SequentialTest,
    collect_blocks,
    compute_launches_of_head,
    run_test,
)
from ortune.gates.sides import open_models
from ortune.host import HostClass
from ortune.measure.block_plan import RunPlan, fewest_rounds, limit_warm_up_ns, plan_block
from ortune.measure.evaluate import summarize
from ortune.measure.judge import find_deciding
from ortune.measure.open import ComparisonSetup
from ortune.measure.providers import allow_for_providers
from ortune.measure.slow_launches import find_slow_launches
from ortune.program.tuned import TunedProgram
from ortune.requests import GateRequest
from ortune.times import read_clock_s
from ortune.workload import Objective

MIN_LAUNCH_DEADLINE_S = 60.0
LAUNCH_DEADLINE_FACTOR = 20
"""Time that a launch may take, and the same as a multiple of base's first launch, because head may load more slowly."""


def run_gate(
    gate: Gate,
    observe: Observe = lambda interim: None,
    *,
    setup: ComparisonSetup | TunedProgram | None = None,
    n_claims: int | None = None,
) -> GateResult:
    """Measure both sides until it is decided.

    Args:
        gate: The gate.
        observe: Called after each launch.
        setup: Its models and inputs, if they have been read; the program of a gate on a program.
        n_claims: Objectives and limits of all gates that run together; by default, those of this one. More of them
            require more confidence before one gate may fail.

    Raises:
        OrtuneError: A side does not load or run, or the two cannot be compared.
    """
    begin_s = read_clock_s()
    setup = setup or prepare_gate(gate)
    opening = open_programs(gate, setup) if isinstance(setup, TunedProgram) else open_models(gate, setup)
    with opening as sides:
        runner = sides.opened.runner
        launch_deadline_s = MIN_LAUNCH_DEADLINE_S + LAUNCH_DEADLINE_FACTOR * sides.opened.calibration.launch_s
        runner.load_deadline_s = min(runner.load_deadline_s, launch_deadline_s)
        opened = allow_for_providers(sides.opened, gate.base.config, [gate.head.config.provider])
        calibration = opened.calibration
        block = plan_block(calibration.pace, longest_warm_up_ns=limit_warm_up_ns(calibration.pace))
        start_s = runner.now_s() - (read_clock_s() - begin_s)
        test = SequentialTest(
            goal=gate.goal,
            allowed={name: 1 + share for name, share in gate.slowdowns.items()},
            plan=RunPlan(block=block, launches=None, rounds=fewest_rounds(block), call_pace=calibration.pace.call_pace),
            launch_s=N_SIDES * calibration.launch_s,
            start_s=start_s,
            end_s=start_s + gate.budget_s,
            busy=gate.busy,
            n_claims=n_claims or count_claims(gate),
        )
        run, interim = run_test(test, runner, sides.executors, (gate.base.config, gate.head.config), observe)
        noise = msgspec.structs.replace(
            runner.describe_noise(contended=interim.contended), n_left_out=run.in_one_regime().n_left_out
        )
    counting = run.in_one_regime() if interim.findings else None
    figure: Objective = "p50" if "p50" in gate.slowdowns else gate.goal.objective
    launches_of_head = compute_launches_of_head(counting, figure) if counting else None
    base, head = (
        SideResult(
            text=side.text,
            model=model,
            config=side.config,
            record=side.record,
            runtime=runtime,
            summary=summarize(counting, position, gate.goal.figures) if counting else None,
        )
        for side, model, runtime, position in zip(
            (gate.base, gate.head), sides.models, sides.runtimes, (BASE, HEAD), strict=True
        )
    )
    return GateResult(
        name=gate.name,
        decision=interim.decision,
        reason=interim.reason,
        is_void=interim.is_void,
        findings=interim.findings,
        limits=interim.limits,
        self_check=interim.self_check,
        pairs=interim.pairs,
        launches=interim.launches,
        n_slow_launches=sum(find_slow_launches(*launches_of_head)) if launches_of_head else 0,
        wall_s=read_clock_s() - begin_s,
        base=base,
        head=head,
        max_error=sides.max_error,
        outputs_compared=gate.same_outputs and any(loaded.outputs_compared for loaded in run.loaded[HEAD]),
        notes=list_notes(gate, sides.workload.tolerance),
        noise=noise,
        workload=sides.workload,
        host=HostClass.of(sides.host),
        blocks=collect_blocks(run, gate.goal),
    )


def run_gates(
    requests: Sequence[GateRequest],
    observe: Callable[[int], Observe],
    finished: Callable[[GateResult | GateError], None],
) -> tuple[GateResult | GateError, ...]:
    """Run several gates, and judge all of them with Holm's correction.

    Args:
        requests: The gates, each with a unique name.
        observe: Returns the observer of a gate, given its number.
        finished: Called with the result of each gate alone.
    """
    gates: list[Gate | GateError] = []
    for request in requests:
        with _as_result(request.name, gates.append):
            gates.append(make_gate(request))
    n_claims = sum(count_claims(gate) for gate in gates if isinstance(gate, Gate))
    results: list[GateResult | GateError] = []
    for number, gate in enumerate(gates):
        if isinstance(gate, GateError):
            results.append(gate)
        else:
            with _as_result(gate.name, results.append):
                results.append(run_gate(gate, observe(number), n_claims=n_claims))
        finished(results[-1])
    return judge_together(results)


@contextlib.contextmanager
def _as_result(name: str, add: Callable[[GateError], None]) -> Iterator[None]:
    """Turn an error of ortune into a result."""
    try:
        yield
    except OrtuneError as error:
        message, hint = error.render(spell_in_toml)
        add(GateError(name=name, message=message, hint=hint))


def count_claims(gate: Gate) -> int:
    """Return how many claims a gate makes: its objectives and its limits, each of which may fail it."""
    return len(gate.slowdowns) + len(gate.goal.limits) - gate.n_further_limits


def judge_together(results: Sequence[GateResult | GateError]) -> tuple[GateResult | GateError, ...]:
    """Return the results of gates that ran together. With Holm's correction over all claims, more gates may fail."""
    done = [result for result in results if isinstance(result, GateResult)]
    if len(done) < 2:
        return tuple(results)
    p_values: dict[tuple[str, str], float] = {}
    for result in done:
        # Gates that pass and limits count among the claims, but cannot fail here.
        can_fail = result.decision != "pass" and not result.is_void
        p_values |= {
            (result.name, finding.objective): finding.p_value if can_fail else 1.0 for finding in result.findings
        }
        p_values |= {(result.name, check.limit): 1.0 for check in result.limits}
    failing = holm(p_values)
    return tuple(_fail_with_others(result, failing) if isinstance(result, GateResult) else result for result in results)


def _fail_with_others(result: GateResult, failing: Container[tuple[str, str]]) -> GateResult:
    """Return the result of a gate, which fails if it was undecided alone, and one of its objectives fails.

    Args:
        result: The result of the gate alone.
        failing: Gates and objectives that fail with Holm's correction.
    """
    found = [finding for finding in result.findings if (result.name, finding.objective) in failing]
    if result.decision != "inconclusive" or not found:
        return result
    findings = tuple(
        msgspec.structs.replace(finding, decision="fail") if finding in found else finding
        for finding in result.findings
    )
    reason = f"{describe_failures(found)}, with Holm's correction over all gates"
    return msgspec.structs.replace(result, decision="fail", reason=reason, findings=findings)


def exit_decision(results: Sequence[GateResult | GateError]) -> str:
    """Return the overall result of all gates: "fail", "error", "inconclusive" or "pass"."""
    return find_deciding((result.decision for result in results), ("fail", "error", "inconclusive", "pass"))
