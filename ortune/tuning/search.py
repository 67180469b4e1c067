"""A search from start to verdict: calibrate, screen, race, and the duel, or the match for a front."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from ortune.compare.block_runner import BlockRunner
from ortune.compare.calibrate import calibrate
from ortune.compare.figures import is_pooled
from ortune.compare.limits import kept_all, worst_excess
from ortune.compare.results import StageTime
from ortune.errors import BackgroundLoadError
from ortune.knobs import Config, SearchSpace
from ortune.record.schema import BestSoFar, Closest, Verdict
from ortune.tuning.budget import make_plan, shorten_confirmation, spread_rounds, too_few_calls, usual_budget_s
from ortune.tuning.confirmation import ConfirmationResult, judge, run_confirmation
from ortune.tuning.front import FrontResult, run_front
from ortune.tuning.outcome import Budget, Observe, Outcome, StrategyName
from ortune.tuning.racing import run_racing
from ortune.tuning.results import Entry
from ortune.tuning.sampler import make_sampler
from ortune.tuning.screening import run_screening
from ortune.tuning.state import Context
from ortune.tuning.study import open_study
from ortune.worker import Executor, LiveCandidate
from ortune.workload import Goal

AS_GOOD = 0.005
"""Log-ratio behind the best of the race within which a candidate counts as good as it."""

CLEARANCE = 0.03
"""Log-ratio below a limit from which on a candidate clearly keeps to it."""

LONGEST_RACING = 2.0
"""How many times its planned time the race may take, when the screen ended early."""


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a search begins with, beside the space and the budget.

    Attributes:
        goal: What it is for.
        n_cases: Cases of input data.
        quota: Whether a CPU quota holds here.
        free_bytes: Memory that can be used, or None.
        seed: Seed of proposals, orders, traffic and resampling.
        study_path: File for Optuna's study, or None to keep it in memory.
        strategy: In which order candidates are screened.
        hints: Configs to screen early: what earlier searches found.
    """

    goal: Goal = Goal()
    n_cases: int = 1
    quota: bool = False
    free_bytes: int | None = None
    seed: int = 0
    study_path: Path | None = None
    strategy: StrategyName = "adaptive"
    hints: tuple[Config, ...] = ()


def run_search(
    space: SearchSpace,
    executor: Executor,
    budget: Budget,
    basis: SearchSettings,
    *,
    first: LiveCandidate,
    start_s: float,
    observe: Observe = lambda progress: None,
    check: Callable[[], None] = lambda: None,
) -> Outcome:
    """Find the best candidate and prove it, or say that nothing beats the default.

    Args:
        space: What may be tried.
        executor: Makes candidates live.
        budget: What may be spent.
        basis: What else the search begins with.
        first: The default, launched before: its outputs are the reference. It is closed here.
        start_s: When the budget began, on the executor's clock.
        observe: Is told where the search stands, between blocks.
        check: Called before each block. It raises a BackgroundLoadError if the search cannot go on, which then ends as
            if the user had interrupted it.

    Raises:
        MeasureError: The default itself cannot be measured.
        UsageError: The study's file cannot be used.
    """
    goal = basis.goal
    sampler = make_sampler(basis.strategy, space, basis.seed)
    study = open_study(basis.study_path, sampler, len(goal.objectives))
    meter = BlockRunner(executor, np.random.default_rng(basis.seed), check)
    start = calibrate(meter, first, goal, n_cases=basis.n_cases, quota=basis.quota)
    budget_s = budget.seconds or usual_budget_s(goal, start.pace, start.launch_s)
    plan = make_plan(
        goal=goal,
        pace=start.pace,
        left_s=start_s + budget_s - executor.now_s(),
        launch_s=start.launch_s,
        peak_bytes=start.peak_bytes,
        free_bytes=basis.free_bytes,
    )
    if basis.strategy == "exhaustive":
        plan = spread_rounds(plan, len(space.candidates) - 1, start.launch_s)
    context = Context(
        meter=meter,
        space=space,
        goal=goal,
        plan=plan,
        budget=budget,
        end_s=start_s + budget_s,
        observe=observe,
        strategy=basis.strategy,
        hints=basis.hints,
    )
    if warning := too_few_calls(goal, plan, start.pace):
        context.note(warning)
    stages: list[StageTime] = []
    final: ConfirmationResult | FrontResult | None = None
    drift: float | None = None
    interrupted = ""
    fought: list[Entry] = []
    try:
        stages.append(run_screening(context, study))
        if len(context.ledger.challengers()) > 1:
            left_s = context.end_s - plan.confirmation_s - executor.now_s()
            stages.append(run_racing(context, min(max(left_s, 0.0), LONGEST_RACING * plan.racing_s)))
        ranked = finalists(context)
        if len(goal.objectives) == 1:
            context.plan = plan = shorten_confirmation(plan, goal, start.pace, context.end_s - executor.now_s())
        if len(goal.objectives) > 1 and ranked:
            final = run_front(context, ranked, seed=basis.seed)
            stages.append(final.time)
        else:
            for entry in ranked:
                before = entry.value
                final = run_confirmation(context, entry, seed=basis.seed)
                stages.append(final.time)
                fought.append(entry)
                # The race sees a lower percentile than the duel: the two do not compare.
                if final.speedup and before is not None and not is_pooled(goal.objective):
                    drift = round(math.exp(-before) / final.speedup.estimate, 4)
                is_out = final.failure is not None or kept_all(final.limits) == "no"
                if not is_out or executor.now_s() + 0.5 * plan.confirmation_s > context.end_s:
                    break
    except KeyboardInterrupt:
        interrupted = "the search was interrupted before anything was proven"
    except BackgroundLoadError as error:
        interrupted = error.message
    return conclude(
        context,
        final,
        stages,
        others_left=any(
            entry not in fought and not entry.excess and (entry.value or 0.0) < 0 for entry in finalists(context)
        ),
        drift=drift,
        interrupted=interrupted,
        budget_s=budget_s,
        deterministic=first.session_info.deterministic,
    )


def finalists(context: Context) -> list[Entry]:
    """Return the candidates in the order in which they may challenge the default: those of the race first.

    Among those that are as good as the best, the one with fewest settings comes first: a setting that makes no
    difference here is one more thing to go wrong elsewhere.
    """
    ranked = context.ledger.challengers()
    raced = [entry for entry in ranked if entry.stage != "screening"]
    rest = [entry for entry in ranked if entry.stage == "screening"]
    if len(context.goal.objectives) > 1:
        return raced or rest
    if not raced:
        return rest
    # What clearly keeps to the limits comes before what is near them: a duel that ends in "too near" proves nothing.
    raced.sort(key=lambda entry: (entry.excess, is_near(entry)))
    first = raced[0]
    best = first.value or 0.0
    alike = [
        entry
        for entry in raced
        if (entry.value or 0.0) <= best + AS_GOOD and entry.excess <= first.excess and is_near(entry) <= is_near(first)
    ]
    alike.sort(key=lambda entry: (len(entry.candidate.config.settings), entry.value, entry.number))
    return [*alike, *(entry for entry in raced if entry not in alike), *rest]


def is_near(entry: Entry) -> bool:
    """Return whether a candidate is so near to a limit that a duel may not tell whether it keeps to it."""
    return max(entry.excesses, default=-math.inf) > -CLEARANCE


def conclude(
    context: Context,
    final: ConfirmationResult | FrontResult | None,
    stages: list[StageTime],
    *,
    others_left: bool,
    drift: float | None,
    interrupted: str,
    budget_s: float,
    deterministic: bool,
) -> Outcome:
    """Draw the conclusion: the default, unless it was proven that something else is better."""
    finished = None if interrupted else final
    verdict, reason = find_verdict(context, finished, interrupted, others_left=others_left)
    outcome = Outcome(
        verdict=verdict,
        reason=reason,
        config=context.space.base,
        best_so_far=find_best_so_far(context) if interrupted else None,
        interrupted=bool(interrupted),
        budget_s=budget_s,
        noise=context.meter.noise(contended=bool(final and final.contended), drift=drift),
        trials=context.ledger.trials(),
        rounds=tuple(context.ledger.rounds),
        n_candidates=len(context.candidates),
        stages=tuple(stages),
        deterministic=deterministic,
        ended_early=context.ended_early,
    )
    if isinstance(finished, FrontResult):
        recommended = [point for point in finished.front if point.recommended]
        outcome = msgspec.structs.replace(
            outcome,
            front=finished.front,
            closest=finished.closest,
            baseline=finished.default,
            config=recommended[0].summary.config if recommended else context.space.base,
        )
    elif finished is not None and finished.challenger is not None:
        outcome = msgspec.structs.replace(
            outcome,
            config=finished.challenger.config if verdict in {"faster", "within_limits"} else context.space.base,
            speedup=finished.speedup,
            baseline=finished.default,
            winner=finished.challenger,
            limits=finished.limits,
            baseline_limits=finished.default_limits,
            closest=find_closest(context, finished) if verdict == "infeasible" else None,
        )
    return outcome


def find_verdict(
    context: Context, final: ConfirmationResult | FrontResult | None, interrupted: str, *, others_left: bool
) -> tuple[Verdict, str]:
    """Return the verdict, and the reason in a sentence without its full stop."""
    if interrupted:
        return "inconclusive", interrupted
    if isinstance(final, FrontResult):
        return final.verdict, final.reason
    if final and final.speedup:
        return judge(context.goal, final, others_left=others_left)
    if final and final.failure:
        return "inconclusive", "the challenger failed in the duel"
    if len(context.candidates) == 1:
        return "default_is_best", "there is nothing else to try on this host"
    tried = [entry for entry in context.ledger if entry is not context.default]
    if tried and all(entry.failure for entry in tried):
        return "default_is_best", f"none of the {len(tried)} other candidates works here"
    return "inconclusive", "the budget is too small for a duel that could prove anything: give it more"


def find_closest(context: Context, duel: ConfirmationResult) -> Closest:
    """Return which of the two sides comes closest to keeping to all limits; the challenger was chosen for it."""
    assert duel.challenger and duel.default
    sides = ((duel.challenger.config, duel.limits), (duel.default.config, duel.default_limits))
    config, checks = min(sides, key=lambda side: worst_excess(context.goal, side[1]))
    return Closest(config=config, limits=checks)


def find_best_so_far(context: Context) -> BestSoFar | None:
    """Return the best candidate of a search that was interrupted, or None when nothing was measured yet."""
    for entry in finalists(context):
        if entry.value is not None:
            return BestSoFar(config=entry.candidate.config, speedup=round(math.exp(-entry.value), 4))
    return None
