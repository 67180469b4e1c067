"""Compares configs with the baseline, for `ortune bench` and `ortune apply --verify`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ortune.errors import UsageError
from ortune.host import Cpus, HostClass, Topology
from ortune.measure.block_plan import plan_late_rounds, required_run_s
from ortune.measure.comparison import Comparison
from ortune.measure.evaluate import evaluate
from ortune.measure.open import ComparisonSetup, OpenComparison, fit_objective, open_comparison
from ortune.measure.paired_run import PairedRun, Side
from ortune.measure.providers import allow_for_providers
from ortune.model.identity import ModelIdentity
from ortune.worker import Runtime
from ortune.worker.graphs import find_twins
from ortune.workload import Workload

USUAL_BENCH_BUDGET_S = 20.0

MIN_BENCH_LAUNCHES = 2

BASELINE = "default"
"""Name of the baseline."""

Observe = Callable[[int, int], None]
"""Called with the number of rounds done and planned. It is never called while a block is measured."""


class BenchResult(Comparison, frozen=True, kw_only=True):
    """Result of comparing configs, and the workload that was measured.

    Attributes:
        workload: What was measured.
        model: Identity of the model.
        host: Class of the host.
        runtime: The software.
        topology: The CPUs of the host; None for programs.
        usable: Those that the comparison could use; empty for programs.
        twins: Configs that are the same program as an earlier one, by name: they differ only in settings that change
            nothing in the optimized graph.
    """

    workload: Workload
    model: ModelIdentity
    host: HostClass
    runtime: Runtime
    topology: Topology | None = None
    usable: Cpus = ()
    twins: Mapping[str, str] = {}


def bench(
    setup: ComparisonSetup,
    sides: Sequence[Side],
    observe: Observe = lambda done, total: None,
    *,
    budget_s: float | None = None,
) -> BenchResult:
    """Compare configs with the baseline.

    Args:
        setup: The model, its inputs, the goal and the baseline.
        sides: What is compared with the baseline.
        observe: Called with the progress.
        budget_s: Wall time to spend, or None for what the model and the goal need.

    Raises:
        OrtuneError: The model does not run, the baseline cannot be measured, the background load ends, or the budget is
            too small.
    """
    sides = (Side(name=BASELINE, config=setup.base), *sides)
    configs = {side.name: side.config for side in sides}
    twins = find_twins(setup.program.model, configs, setup.host.n_default_threads)
    with open_comparison(msgspec.structs.replace(setup, n_sides=len(sides))) as opened:
        opened = fit_objective(opened)
        comparison = compare(opened, sides, observe, budget_s=budget_s)
        return BenchResult(
            objective=comparison.objective,
            rows=comparison.rows,
            calls_needed=comparison.calls_needed,
            noise=comparison.noise,
            workload=msgspec.structs.replace(setup.describe_workload(), objectives=opened.goal.objectives),
            model=setup.program.describe(),
            host=HostClass.of(setup.host),
            runtime=opened.runtime,
            topology=setup.host.topology,
            usable=setup.host.limits.usable,
            twins=twins,
        )


def compare(
    opened: OpenComparison,
    sides: Sequence[Side],
    observe: Observe = lambda done, total: None,
    *,
    budget_s: float | None = None,
) -> Comparison:
    """Measure a paired run of all sides, the baseline first, and evaluate it.

    Raises:
        UsageError: The budget is too small.
        MeasureError: The baseline fails, or the background load ends.
    """
    opened = allow_for_providers(opened, sides[0].config, [side.config.provider for side in sides])
    runner, goal, calibration = opened.runner, opened.goal, opened.calibration
    needed_s = required_run_s(goal, calibration.pace, calibration.launch_s, len(sides))
    time_s = budget_s or max(USUAL_BENCH_BUDGET_S, needed_s)
    spent_s = runner.now_s() - opened.start_s
    left_s = time_s - spent_s if budget_s else time_s
    plan = plan_late_rounds(
        left_s,
        goal,
        calibration.pace,
        calibration.launch_s,
        len(sides),
        one_at_a_time=runner.one_at_a_time,
    )
    if (plan.launches or 0) < MIN_BENCH_LAUNCHES:
        # Add a tenth, because the next calibration may measure a slower model.
        enough_s = math.ceil(spent_s + 1.1 * needed_s)
        what = f"compare {len(sides)} configs" if len(sides) > 1 else "measure the baseline"
        raise UsageError(
            f"{time_s:g}s: too short to {what}.",
            f"Give {{budget={enough_s}s}} or more, or omit it.",
            option="budget",
        )
    run = PairedRun(sides, goal.load, seed=opened.seed)

    def report() -> bool:
        observe(run.n_rounds, plan.n_rounds + plan.late_rounds)
        return False

    run.measure(runner, plan, end_s=opened.start_s + 2 * time_s, is_done=report)
    return evaluate(run.in_one_regime(), goal, runner)
