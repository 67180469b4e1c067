"""The sequential test of a gate: base, head and a second copy of each are measured until it is decided."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import partial

import msgspec

from ortune.gates.decision import (
    CHECKS,
    LAST_CHECK_LAUNCHES,
    check_alpha,
    combine_decisions,
    compare_copies,
    is_biased,
    judge_objective,
)
from ortune.gates.reporters.messages import describe_failures, describe_undecided, percent
from ortune.gates.results import LARGEST_ALLOWED_SLOWDOWN, Blocks, InterimResult, Observe
from ortune.knobs import Config
from ortune.measure.block_plan import RunPlan, fewest_rounds
from ortune.measure.block_runner import BlockRunner, Round
from ortune.measure.comparison import LimitCheck
from ortune.measure.compute_figures import is_pooled, is_total, required_calls, to_cost
from ortune.measure.evaluate import (
    check_limit,
    compare_percentiles,
    compute_costs,
    compute_utilization,
    has_enough_calls,
)
from ortune.measure.judge import Decision, Kept, judge_utilization
from ortune.measure.limits import kept_all, name_limits
from ortune.measure.paired_run import PairedRun, Side, alternate
from ortune.measure.stats import robust_sigma
from ortune.worker import Executor
from ortune.workload import Goal, Limit, Objective

BASE, HEAD, BASE_COPY, HEAD_COPY = 0, 1, 2, 3
"""Positions of the four sides. There are as many copies of head as of base. If the two models are alike, their ratio is
then as often above 1 as below by the same factor, also on a host where some launches are slow. Otherwise, the trimmed
mean would be biased."""

BASES, HEADS = (BASE, BASE_COPY), (HEAD, HEAD_COPY)

MAX_PAIRS_PER_LAUNCH = 24

USUAL_LAUNCH_SIGMA = 0.03
USUAL_PAIR_SIGMA = 0.04
PRIOR_VALUES = 8
"""Standard deviations of a log-ratio between launches, and between the pairs of a launch, before any is measured, and
how many measured values they count for."""


class SequentialTest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the test.

    Attributes:
        goal: Load, objectives, limits.
        allowed: Allowed ratio of costs, head to base, by objective.
        plan: Blocks, and pairs of each launch at least.
        launch_s: Time to launch all sides, in seconds.
        start_s: When it began, on the runner's clock.
        end_s: When it ends at the latest, on the runner's clock.
        busy: Whether to decide even on a busy host.
        n_claims: Objectives and limits of all gates that run together.
    """

    goal: Goal
    allowed: dict[Objective, float]
    plan: RunPlan
    launch_s: float
    start_s: float
    end_s: float
    busy: bool = False
    n_claims: int = 1


def choose_pairs(run: PairedRun, test: SequentialTest) -> int:
    """Return the pairs of the next launch: the number with which the interval becomes narrow in the shortest time.

    The more the pairs of a launch differ, compared with launches, and the longer launching takes, the more they are.

    Source: the optimum size of a subsample, W. G. Cochran, "Sampling Techniques" (1977), section 10.6.
    """
    block = test.plan.block
    ratios = [[find_log_ratio(measured, test.goal.objective) for measured in rounds] for rounds in run.launches]
    steps = [(after - before) / math.sqrt(2) for cluster in ratios for before, after in itertools.pairwise(cluster)]
    pair_variance = expect_variance(USUAL_PAIR_SIGMA, steps)
    means = [statistics.fmean(cluster) for cluster in ratios]
    of_pairs = pair_variance * statistics.fmean([1 / len(cluster) for cluster in ratios]) if ratios else 0.0
    launch_variance = expect_variance(USUAL_LAUNCH_SIGMA, means, of_pairs)
    round_s = len(run.sides) * (block.duration_ns + block.lead_in_ns) / 1e9
    pairs = math.sqrt(test.launch_s / round_s * pair_variance / launch_variance)
    fewest = fewest_rounds(block)
    return fewest if pairs <= fewest else min(2 * round(pairs / 2), MAX_PAIRS_PER_LAUNCH)


def find_log_ratio(measured: Round, name: Objective) -> float:
    """Return the log-ratio of a figure in one round, both copies of head to both copies of base."""
    base, head = (statistics.fmean(math.log(measured.figure(name, side)) for side in sides) for sides in (BASES, HEADS))
    return head - base


def expect_variance(usual_sigma: float, values: Sequence[float], known: float = 0.0) -> float:
    """Return the variance of values of which a few may be far off, given what is usual.

    Args:
        usual_sigma: The usual standard deviation.
        values: The values.
        known: Variance that they have for another reason, which does not count.
    """
    n = max(len(values) - 1, 0)
    found = max(robust_sigma(values) ** 2 - known, 0.0) if n else 0.0
    return (PRIOR_VALUES * usual_sigma**2 + n * found) / (PRIOR_VALUES + n)


def run_test(
    test: SequentialTest,
    runner: BlockRunner,
    executors: Sequence[Executor],
    configs: Sequence[Config],
    observe: Observe = lambda interim: None,
) -> tuple[PairedRun, InterimResult]:
    """Measure until it is decided, time is up, or all checks are done.

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
            Side(name="the second copy of head", config=configs[1], is_required=True),
        ],
        test.goal.load,
        executors=(base, head, base, head),
    )
    interim = evaluate_interim(run, test, runner.now_s())

    is_checked = False

    def is_done() -> bool:
        nonlocal interim, is_checked
        n_checks = interim.n_checks
        interim = evaluate_interim(run, test, runner.now_s(), n_checks)
        is_checked = interim.n_checks > n_checks
        if interim.findings:
            observe(interim)
        return bool(interim.reason) or interim.n_checks == len(CHECKS)

    # Each round is followed by one in reverse order. On average, base and head are then measured at the same time.
    run.measure(
        runner,
        test.plan,
        end_s=test.end_s,
        order=alternate,
        stop_within_launch=True,
        count_rounds=partial(choose_pairs, run, test),
        is_done=is_done,
    )
    time_is_up = interim.n_checks < len(CHECKS)
    if not interim.reason and not is_checked:
        # The end of the budget does not depend on the ratios, so the next check may be used now.
        interim = evaluate_interim(run, test, runner.now_s(), interim.n_checks, is_last=True)
    if not interim.reason:
        reason = explain_indecision(interim, test, time_is_up=time_is_up)
        interim = msgspec.structs.replace(interim, reason=reason)
    return run, interim


def evaluate_interim(
    run: PairedRun, test: SequentialTest, now_s: float, n_checks: int = 0, *, is_last: bool = False
) -> InterimResult:
    """Return the state of the gate: findings, limits, and the decision they allow if a check is due.

    Args:
        run: All rounds so far.
        test: Settings of the test.
        now_s: Time on the runner's clock.
        n_checks: Checks so far.
        is_last: Whether no more launches follow, so that the next check is due now.
    """
    counting = run.in_one_regime()
    budget_s, spent_s = test.end_s - test.start_s, now_s - test.start_s
    if len(counting.launches) < 2:
        return InterimResult(
            is_void=True,
            pairs=0,
            launches=sum(1 for rounds in run.launches if rounds),
            n_checks=n_checks,
            spent_s=spent_s,
            budget_s=budget_s,
        )
    check = min(n_checks, len(CHECKS) - 1)
    is_due = is_check_due(counting, test, check, is_last=is_last)
    few = [name for name in test.allowed if not has_enough_calls(counting, HEAD, name)]
    findings = [
        judge_objective(
            name,
            compute_log_ratios(counting, name),
            allowed,
            check=check,
            n_claims=test.n_claims,
            over_all=partial(compare_percentiles, counting, HEADS, BASES, name) if is_pooled(name) else None,
            of_head=compute_launches_of_head(counting, name)[1] if is_due and is_total(name) else (),
        )
        for name, allowed in test.allowed.items()
    ]
    copies = {name: compare_copies(name, compute_copy_ratios(counting, name), check=check) for name in test.allowed}
    limits = tuple(_check_limit(counting, limit, check, test.n_claims) for limit in test.goal.limits)
    in_doubt = [
        limit.figure
        for limit in limits
        if limit.kept == "unsure" and not has_enough_calls(counting, HEAD, limit.figure)
    ]
    strict = 1 - 2 * check_alpha(check) / test.n_claims
    base, head = (compute_utilization(counting, position, strict) for position in (BASE, HEAD))
    interim = InterimResult(
        # Between checks, and with too few calls, nothing is decided. The blocks then support only a lower percentile.
        findings=tuple(
            finding
            if is_due and finding.objective not in few
            else msgspec.structs.replace(finding, decision="inconclusive", p_value=1.0)
            for finding in findings
        ),
        self_check=copies[test.goal.objective],
        biased=tuple(name for name, copy in copies.items() if is_biased(copy, test.allowed[name])),
        lacking=tuple(dict.fromkeys((*few, *in_doubt))),
        limits=limits,
        utilization=(base, head) if base and head else None,
        pairs=counting.n_rounds,
        launches=len(counting.launches),
        n_checks=n_checks + is_due,
        contended=counting.contended,
        spent_s=spent_s,
        budget_s=budget_s,
    )
    decision, reason = decide(interim, test) if is_due else ("inconclusive", "")
    is_void = _is_disturbed(interim, test) or _is_overloaded(interim)
    return msgspec.structs.replace(interim, decision=decision, reason=reason, is_void=is_void)


def is_check_due(run: PairedRun, test: SequentialTest, check: int, *, is_last: bool) -> bool:
    """Return whether a check is due. This depends on the amount of measurements, and never on the ratios.

    Args:
        run: The rounds that count.
        test: Settings of the test.
        check: Number of the check, from 0.
        is_last: Whether no more launches follow.
    """
    if run.contended and not test.busy:
        return False
    names = set(test.allowed)
    if check == len(CHECKS) - 1:
        # After the last check, more calls for a limit would be useless.
        names |= {limit.figure for limit in test.goal.limits}
    if not is_last and not all(has_enough_calls(run, HEAD, name) for name in names):
        return False
    return len(run.launches) >= (LAST_CHECK_LAUNCHES if is_last else CHECKS[check])


def _check_limit(run: PairedRun, limit: Limit, check: int, n_claims: int) -> LimitCheck:
    """Return whether head stays within a limit. A violation needs more confidence if there are several claims."""
    alpha = check_alpha(check)
    usual = check_limit(run, HEAD, limit, 1 - 2 * alpha)
    if usual.kept != "no" or n_claims == 1:
        return usual
    strict = check_limit(run, HEAD, limit, 1 - 2 * alpha / n_claims)
    return msgspec.structs.replace(usual, kept=strict.kept)


def compute_log_ratios(run: PairedRun, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, both copies of head to both copies of base, by launch."""
    clusters = []
    for rounds in run.launches:
        base, head = ([compute_costs(rounds, position, name) for position in positions] for positions in (BASES, HEADS))
        clusters.append([math.log(h1 * h2 / (b1 * b2)) / 2 for b1, b2, h1, h2 in zip(*base, *head, strict=True)])
    return clusters


def compute_launches_of_head(run: PairedRun, name: Objective) -> tuple[list[float], list[float]]:
    """Return the log-cost of each process of head, and its log-ratio to base's processes of the same launch."""
    levels, ratios = [], []
    for rounds in run.launches:
        base, head = (
            [statistics.fmean(map(math.log, compute_costs(rounds, position, name))) for position in positions]
            for positions in (BASES, HEADS)
        )
        levels += head
        ratios += [level - statistics.fmean(base) for level in head]
    return levels, ratios


def compute_copy_ratios(run: PairedRun, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, the copy of base to base, by launch."""
    return [
        [
            math.log(copy / base)
            for base, copy in zip(
                compute_costs(rounds, BASE, name), compute_costs(rounds, BASE_COPY, name), strict=True
            )
        ]
        for rounds in run.launches
    ]


def decide(interim: InterimResult, test: SequentialTest) -> tuple[Decision, str]:
    """Return the decision of a check, and the reason; an empty reason if the gate goes on."""
    if _is_disturbed(interim, test):
        return "inconclusive", ""
    kept = kept_all(interim.limits)
    if kept == "no":
        return "fail", f"head exceeds {name_limits(interim.limits, 'no')}"
    if _is_overloaded(interim):
        # Latency then depends on how long requests have been arriving, and hardly on the side that is measured.
        return "inconclusive", "requests arrive faster than base can serve them: use a lower request rate"
    if _served_all(interim) == ("yes", "no"):
        return "fail", "requests arrive faster than head can serve them, but not faster than base can"
    decision = combine_decisions(interim.findings)
    deciding = [finding for finding in interim.findings if finding.decision == decision]
    if decision == "fail":
        return decision, describe_failures(deciding)
    if decision == "pass" and kept == "yes" and not _is_near_overload(interim):
        deciding = [
            finding for finding in deciding if not interim.limits or finding.allowed < 1 + LARGEST_ALLOWED_SLOWDOWN
        ]
        if not deciding:
            return decision, f"head stays within {name_limits(interim.limits, 'yes')}"
        return decision, "; ".join(
            f"{finding.objective} is not worse by {percent(finding.allowed)}"
            if finding.allowed >= 1
            else f"{finding.objective} is at least {1 / finding.allowed:.3g}x as good"
            for finding in deciding
        )
    return "inconclusive", ""


def explain_indecision(interim: InterimResult, test: SequentialTest, *, time_is_up: bool) -> str:
    """Return why the gate could not be decided."""
    if not interim.findings:
        if interim.launches < 2:
            return f"there was no time for two launches of each side in {interim.budget_s:.0f} s: use a larger budget"
        return (
            "other processes used the CPUs during some blocks, so that fewer than two launches of each side count: use "
            "a quieter host or a larger budget"
        )
    if interim.contended and not test.busy:
        return "other processes used too much CPU time: use a quieter host, or decide even on a busy one"
    if interim.biased:
        differing = ", ".join(interim.biased)
        return f"base differs from a second copy of itself in {differing}: the host is too noisy to decide"
    if interim.lacking:
        needed = ", ".join(f"{name} needs {required_calls(name)} calls of each side" for name in interim.lacking)
        return f"{needed}: use a larger budget or a lower percentile"
    if interim.launches < LAST_CHECK_LAUNCHES:
        return f"there was time for only {interim.launches} launches of each side: use a larger budget"
    if _is_near_overload(interim):
        return "requests arrive about as fast as they can be served: use a lower request rate"
    more = "use a larger budget, " if time_is_up else "use "
    undecided = [finding for finding in interim.findings if finding.decision == "inconclusive"]
    if not undecided:
        return f"head may exceed {name_limits(interim.limits, 'unsure')}: {more}another limit or a quieter host"
    return f"{describe_undecided(undecided, test.n_claims)}: {more}a larger allowed slowdown or a quieter host"


def _served_all(interim: InterimResult) -> tuple[Kept, Kept]:
    """Return whether base, and whether head, serves requests as fast as they arrive."""
    if interim.utilization is None:
        return "yes", "yes"
    base, head = (judge_utilization(share.low, share.high) for share in interim.utilization)
    return base, head


def _is_overloaded(interim: InterimResult) -> bool:
    """Return whether requests certainly arrive faster than base can serve them."""
    return _served_all(interim)[0] == "no"


def _is_near_overload(interim: InterimResult) -> bool:
    """Return whether either side seems to be overloaded, which moves ratios closer to 1."""
    return interim.utilization is not None and any(share.estimate >= 1 for share in interim.utilization)


def _is_disturbed(interim: InterimResult, test: SequentialTest) -> bool:
    """Return whether other processes use the CPUs, or base differs from itself."""
    return bool(interim.biased) or (interim.contended and not test.busy)


def collect_blocks(run: PairedRun, goal: Goal) -> Blocks:
    """Return the costs of all pairs, including those that do not count."""

    def costs(position: int) -> dict[str, tuple[tuple[float, ...], ...]]:
        return {
            name: tuple(
                tuple(to_cost(name, measured_round.figure(name, position)) for measured_round in launch)
                for launch in run.launches
            )
            for name in goal.objectives
        }

    return Blocks(
        base=costs(BASE),
        head=costs(HEAD),
        base_copy=costs(BASE_COPY),
        head_copy=costs(HEAD_COPY),
        contended=tuple(tuple(measured_round.contended for measured_round in launch) for launch in run.launches),
    )
