"""The sequential test of a gate: base, head and a second copy of base are measured until it is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ortune.compare.block_plan import RunPlan
from ortune.compare.block_runner import BlockRunner
from ortune.compare.evaluate import check_limit, compute_costs, compute_utilization, has_enough_calls
from ortune.compare.figures import required_calls, to_cost
from ortune.compare.limits import kept_all, name_limits
from ortune.compare.paired_run import PairedRun, Side, alternate
from ortune.gates.decision import (
    GATE_CONFIDENCE,
    MAX_PAIRS,
    MIN_LAUNCHES,
    MIN_PAIRS,
    combine_decisions,
    compare_copies,
    is_biased,
    judge_objective,
)
from ortune.gates.reporters.messages import describe_failure, percent
from ortune.gates.results import Blocks, Decision, InterimResult, Observe
from ortune.knobs import Config
from ortune.worker import Executor
from ortune.workload import Goal, Objective

BASE, HEAD, COPY = 0, 1, 2
"""Positions of the three sides."""

PAIRS_PER_LAUNCH = 4
MAX_PAIRS_PER_LAUNCH = 24
LAUNCH_TIME_SHARE = 1.0
"""Minimum and maximum of pairs per launch, and the time of launching as a multiple of the time of measuring: if
launching takes longer, each launch gets more pairs."""


class SequentialTest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the test.

    Attributes:
        goal: Load, objectives, limits.
        allowed: Allowed ratio of costs, head to base, by objective.
        plan: Blocks, and pairs per launch.
        start_s: When it began, on the runner's clock.
        end_s: When it ends at the latest, on the runner's clock.
        busy: Whether to decide even on a busy host.
        confidence: Confidence of the interval that must lie above what is allowed for a failure.
        seed: Random seed of the resampling.
    """

    goal: Goal
    allowed: dict[Objective, float]
    plan: RunPlan
    start_s: float
    end_s: float
    busy: bool = False
    confidence: float = GATE_CONFIDENCE
    seed: int = 0


def count_pairs(launch_s: float, round_s: float) -> int:
    """Return the pairs per launch, given the time to launch all three sides and the time of one round of them."""
    pairs = launch_s / (LAUNCH_TIME_SHARE * round_s)
    return min(max(PAIRS_PER_LAUNCH, 2 * math.ceil(pairs / 2)), MAX_PAIRS_PER_LAUNCH)


def run_test(
    test: SequentialTest,
    runner: BlockRunner,
    executors: Sequence[Executor],
    configs: Sequence[Config],
    observe: Observe = lambda interim: None,
) -> tuple[PairedRun, InterimResult]:
    """Measure until it is decided, time is up, or more pairs would not help.

    Args:
        test: Settings of the test.
        runner: Measures blocks.
        executors: Executors that launch base and head.
        configs: Settings of base and of head.
        observe: Called after each launch.

    Returns:
        All rounds, and the final result.

    Raises:
        MeasureError: One of the sides fails.
    """
    base, head = executors
    run = PairedRun(
        [
            Side(name="base", config=configs[0], is_required=True),
            Side(name="head", config=configs[1], is_required=True),
            Side(name="the second copy of base", config=configs[0], is_required=True),
        ],
        test.goal.load,
        seed=test.seed,
        executors=(base, head, base),
    )
    interim = evaluate_interim(run, test, runner.now_s())

    def is_done() -> bool:
        nonlocal interim
        interim = evaluate_interim(run, test, runner.now_s())
        if interim.findings:
            observe(interim)
        return bool(interim.reason) or (interim.pairs >= MAX_PAIRS and not interim.lacking)

    # Head is in the middle of each round, so that on average it is measured at the same time as base and its copy.
    run.measure(runner, test.plan, end_s=test.end_s, order=alternate, stop_within_launch=True, is_done=is_done)
    if not interim.reason:
        reason = explain_indecision(interim, test, time_is_up=runner.now_s() >= test.end_s)
        interim = msgspec.structs.replace(interim, reason=reason)
    return run, interim


def evaluate_interim(run: PairedRun, test: SequentialTest, now_s: float) -> InterimResult:
    """Return the state of the gate: findings, limits, and the decision they allow."""
    counting = run.in_one_regime()
    budget_s, spent_s = test.end_s - test.start_s, now_s - test.start_s
    if len(counting.launches) < 2:
        return InterimResult(is_void=True, pairs=0, launches=len(run.launches), spent_s=spent_s, budget_s=budget_s)
    few = [name for name in test.allowed if not has_enough_calls(counting, HEAD, name)]
    findings = [
        judge_objective(name, compute_log_ratios(counting, name), allowed, confidence=test.confidence, seed=test.seed)
        for name, allowed in test.allowed.items()
    ]
    checks = {name: compare_copies(compute_copy_ratios(counting, name), seed=test.seed) for name in test.allowed}
    limits = tuple(check_limit(counting, HEAD, limit, GATE_CONFIDENCE) for limit in test.goal.limits)
    in_doubt = [
        check.figure
        for check in limits
        if check.kept == "unsure" and not has_enough_calls(counting, HEAD, check.figure)
    ]
    base, head = (compute_utilization(counting, position, GATE_CONFIDENCE) for position in (BASE, HEAD))
    interim = InterimResult(
        # With too few calls, the blocks support only a lower percentile, which must not decide any gate.
        findings=tuple(
            msgspec.structs.replace(each, decision="inconclusive", p_value=1.0) if each.objective in few else each
            for each in findings
        ),
        self_check=checks[test.goal.objective],
        biased=tuple(name for name, check in checks.items() if is_biased(check, test.allowed[name])),
        lacking=tuple(dict.fromkeys((*few, *in_doubt))),
        limits=limits,
        utilization=(base, head) if base and head else None,
        pairs=counting.n_rounds,
        launches=len(counting.launches),
        contended=counting.contended,
        spent_s=spent_s,
        budget_s=budget_s,
    )
    decision, reason = decide(interim, test)
    is_void = _is_disturbed(interim, test) or _is_overloaded(interim)
    return msgspec.structs.replace(interim, decision=decision, reason=reason, is_void=is_void)


def compute_log_ratios(run: PairedRun, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, head to the mean of base and its copy, by launch."""
    clusters = []
    for rounds in run.launches:
        base, head, copy = (compute_costs(rounds, position, name) for position in (BASE, HEAD, COPY))
        clusters.append(
            [math.log(h) - (math.log(a) + math.log(b)) / 2 for a, h, b in zip(base, head, copy, strict=True)]
        )
    return clusters


def compute_copy_ratios(run: PairedRun, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, the copy of base to base, by launch."""
    return [
        [
            math.log(copy / base)
            for base, copy in zip(compute_costs(rounds, BASE, name), compute_costs(rounds, COPY, name), strict=True)
        ]
        for rounds in run.launches
    ]


def decide(interim: InterimResult, test: SequentialTest) -> tuple[Decision, str]:
    """Return the decision that the findings allow, and the reason; an empty reason if the gate goes on."""
    if interim.launches < MIN_LAUNCHES or interim.pairs < MIN_PAIRS:
        return "inconclusive", ""
    if _is_disturbed(interim, test):
        return "inconclusive", ""
    kept = kept_all(interim.limits)
    if kept == "no":
        return "fail", f"head exceeds {name_limits(interim.limits, 'no')}"
    if _is_overloaded(interim):
        # Latency then depends on how long requests have been arriving, and hardly on the side that is measured.
        return "inconclusive", "requests arrive faster than base can serve them: use a lower request rate"
    if interim.utilization and interim.utilization[0].high < 1 <= interim.utilization[1].low:
        return "fail", "requests arrive faster than head can serve them, but not faster than base can"
    decision = combine_decisions(interim.findings)
    deciding = [finding for finding in interim.findings if finding.decision == decision]
    if decision == "fail":
        return decision, "; ".join(f"{each.objective} is {describe_failure(each.allowed)}" for each in deciding)
    if decision == "pass" and kept == "yes" and not _is_near_overload(interim):
        return decision, "; ".join(
            f"{each.objective} is not worse by {percent(each.allowed)}"
            if each.allowed >= 1
            else f"{each.objective} is at least {1 / each.allowed:.3g}x as good"
            for each in deciding
        )
    return "inconclusive", ""


def explain_indecision(interim: InterimResult, test: SequentialTest, *, time_is_up: bool) -> str:
    """Return why the gate could not be decided."""
    if not interim.findings:
        if interim.launches < 2:
            return f"there was no time for two launches of each side in {interim.budget_s:.0f} s: use a larger budget"
        return (
            f"other processes used the CPUs during most of {interim.budget_s:.0f} s, and fewer than two launches of "
            "each side count"
        )
    if interim.contended and not test.busy:
        return "other processes used the CPUs most of the time: use a quieter host, or decide even on a busy one"
    if interim.biased:
        differing = ", ".join(interim.biased)
        return f"base differs from a second copy of itself in {differing}: the host is too noisy to decide"
    if interim.lacking:
        needed = ", ".join(f"{name} needs {required_calls(name)} calls of each side" for name in interim.lacking)
        return f"{needed}: use a larger budget or a lower percentile"
    if interim.launches < MIN_LAUNCHES or interim.pairs < MIN_PAIRS:
        return f"there was time for only {interim.pairs} pairs: use a larger budget"
    if _is_near_overload(interim):
        return "requests arrive about as fast as they can be served: use a lower request rate"
    more = "use a larger budget, " if time_is_up else "use "
    undecided = ", ".join(finding.objective for finding in interim.findings if finding.decision == "inconclusive")
    if not undecided:
        return f"head may exceed {name_limits(interim.limits, 'unsure')}: {more}another limit or a quieter host"
    return (
        f"the confidence interval of {undecided} includes the allowed slowdown: {more}a larger allowed slowdown or a "
        "quieter host"
    )


def _is_overloaded(interim: InterimResult) -> bool:
    """Return whether requests certainly arrive faster than base can serve them."""
    return interim.utilization is not None and interim.utilization[0].low >= 1


def _is_near_overload(interim: InterimResult) -> bool:
    """Return whether either side seems to be overloaded, which moves ratios closer to 1."""
    return interim.utilization is not None and any(each.estimate >= 1 for each in interim.utilization)


def _is_disturbed(interim: InterimResult, test: SequentialTest) -> bool:
    """Return whether other processes use the CPUs, or base differs from itself."""
    return bool(interim.biased) or (interim.contended and not test.busy)


def collect_blocks(run: PairedRun, goal: Goal) -> Blocks:
    """Return the costs of all pairs, including those that do not count."""

    def costs(position: int) -> dict[str, tuple[tuple[float, ...], ...]]:
        return {
            name: tuple(tuple(to_cost(name, each.figure(name, position)) for each in launch) for launch in run.launches)
            for name in goal.objectives
        }

    return Blocks(
        base=costs(BASE),
        head=costs(HEAD),
        copy=costs(COPY),
        contended=tuple(tuple(each.contended for each in launch) for launch in run.launches),
    )
