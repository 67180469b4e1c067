"""A search from start to verdict: calibrate, screen, race, duel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ortune.knobs import DEFAULT, SearchSpace
from ortune.measure import BlockPlan, Executor, Failure, Live
from ortune.trials.duel import DuelResult, judge, run_duel
from ortune.trials.ledger import Entry
from ortune.trials.meter import Meter, raise_default
from ortune.trials.plan import Plan, block_plan, make_plan
from ortune.trials.race import run_race
from ortune.trials.screen import open_study, run_screen
from ortune.trials.stage import Context
from ortune.trials.values import BestSoFar, Budget, Observe, Outcome, StageTime, Verdict

FIRST_BLOCK = BlockPlan(duration_ns=100_000_000, lead_in_ns=50_000_000, min_calls=2, deadline_s=300)
"""The block that calibrates: how long one call takes is not known yet."""

AS_GOOD = 0.005
"""Log-ratio behind the best of the race within which a candidate counts as good as it."""

LONGEST_RACE = 2.0
"""How many times its planned time the race may take, when the screen ended early."""


def run_search(
    space: SearchSpace,
    executor: Executor,
    budget: Budget,
    *,
    seed: int,
    free_bytes: int | None,
    study_path: Path | None,
    observe: Observe,
    first: Live,
    start_s: float,
) -> Outcome:
    """Find the best candidate and prove it, or say that nothing beats the default.

    Args:
        space: What may be tried.
        executor: Makes candidates live.
        budget: What may be spent.
        seed: Seed of proposals, orders and resampling.
        free_bytes: Memory that can be used, or None.
        study_path: File for Optuna's study, or None to keep it in memory.
        observe: Is told where the search stands, between blocks.
        first: The default, launched before: its outputs are the reference. It is closed here.
        start_s: When the budget began, on the executor's clock.

    Raises:
        MeasureError: The default itself cannot be measured.
        UsageError: The study's file cannot be used.
    """
    study = open_study(study_path, seed)
    meter = Meter(executor, np.random.default_rng(seed))
    plan = calibrate(meter, first, left_s=start_s + budget.seconds - executor.now_s(), free_bytes=free_bytes)
    context = Context(
        meter=meter, space=space, plan=plan, budget=budget, end_s=start_s + budget.seconds, observe=observe
    )
    stages: list[StageTime] = []
    duel: DuelResult | None = None
    interrupted = False
    before: float | None = None
    try:
        stages.append(run_screen(context, study))
        if len(context.ledger.challengers()) > 1:
            left_s = context.end_s - plan.duel_s - executor.now_s()
            stages.append(run_race(context, min(max(left_s, 0.0), LONGEST_RACE * plan.race_s)))
        for entry in finalists(context):
            before = entry.value
            duel = run_duel(context, entry, seed=seed)
            stages.append(duel.time)
            if duel.failure is None or executor.now_s() > context.end_s:
                break
    except KeyboardInterrupt:
        interrupted = True
    drift = None
    if duel and duel.speedup and before is not None:
        drift = round(math.exp(-before) / duel.speedup.estimate, 4)
    return conclude(
        context, duel, stages, drift=drift, interrupted=interrupted, deterministic=first.loaded.deterministic
    )


def calibrate(meter: Meter, first: Live, *, left_s: float, free_bytes: int | None) -> Plan:
    """Find out how long a call and a launch take, and plan the rest."""
    try:
        block = first.measure(FIRST_BLOCK)
        if isinstance(block, Failure):
            raise_default(block)
        call_ns = float(block.p50_ns)
        memory = first.memory()
    finally:
        first.close()
    start_s = meter.executor.now_s()
    (again,) = meter.launch([DEFAULT])
    launch_s = meter.executor.now_s() - start_s
    if isinstance(again, Failure):
        raise_default(again)
    try:
        # A second look: the first block of a fresh machine is often slower.
        block = again.measure(block_plan(call_ns))
        if not isinstance(block, Failure):
            call_ns = min(call_ns, float(block.p50_ns))
    finally:
        again.close()
    # A candidate whose loading takes ten times as long as the default's is as good as one that hangs.
    meter.load_deadline_s = 5 + 10 * launch_s
    return make_plan(
        left_s=left_s - launch_s,
        call_ns=call_ns,
        launch_s=launch_s,
        peak_bytes=memory.peak_bytes if memory else None,
        free_bytes=free_bytes,
    )


def finalists(context: Context) -> list[Entry]:
    """Return the candidates in the order in which they may challenge the default: those of the race first.

    Among those that are as good as the best, the one with fewest settings comes first: a setting that makes no
    difference here is one more thing to go wrong elsewhere.
    """
    ranked = context.ledger.challengers()
    raced = [entry for entry in ranked if entry.stage != "screen"]
    rest = [entry for entry in ranked if entry.stage == "screen"]
    if not raced:
        return rest
    best = raced[0].value or 0.0
    alike = [entry for entry in raced if (entry.value or 0.0) <= best + AS_GOOD]
    alike.sort(key=lambda entry: (len(entry.candidate.config.settings), entry.value, entry.number))
    return [*alike, *(entry for entry in raced if entry not in alike), *rest]


def conclude(
    context: Context,
    duel: DuelResult | None,
    stages: list[StageTime],
    *,
    drift: float | None,
    interrupted: bool,
    deterministic: bool,
) -> Outcome:
    """Draw the conclusion: the default, unless the duel proved that the challenger is faster."""
    n_candidates = len(context.candidates)
    finished = None if interrupted else duel
    verdict, reason = find_verdict(context, finished, n_candidates, interrupted=interrupted)
    winner = finished.challenger if finished else None
    return Outcome(
        verdict=verdict,
        reason=reason,
        config=winner.config if winner and verdict == "faster" else DEFAULT,
        speedup=finished.speedup if finished else None,
        baseline=finished.default if finished else None,
        winner=winner,
        best_so_far=find_best_so_far(context) if interrupted else None,
        interrupted=interrupted,
        noise=context.meter.noise(contended=bool(duel and duel.contended), drift=drift),
        trials=context.ledger.trials(),
        n_candidates=n_candidates,
        stages=tuple(stages),
        deterministic=deterministic,
    )


def find_verdict(
    context: Context, duel: DuelResult | None, n_candidates: int, *, interrupted: bool
) -> tuple[Verdict, str]:
    """Return the verdict, and the reason in a sentence without its full stop."""
    if interrupted:
        return "inconclusive", "the search was interrupted before anything was proven"
    if duel and duel.speedup:
        return judge(duel.speedup)
    if duel and duel.failure:
        return "inconclusive", "the challenger failed in the duel"
    if n_candidates == 1:
        return "default_is_best", "there is nothing else to try on this host"
    tried = [entry for entry in context.ledger if not entry.candidate.config.is_default]
    if tried and all(entry.failure for entry in tried):
        return "default_is_best", f"none of the {len(tried)} other candidates works here"
    return "inconclusive", "the budget is too small for a duel that could prove anything: give it more"


def find_best_so_far(context: Context) -> BestSoFar | None:
    """Return the best candidate of a search that was interrupted, or None when nothing was measured yet."""
    for entry in finalists(context):
        if entry.value is not None:
            return BestSoFar(config=entry.candidate.config, speedup=round(math.exp(-entry.value), 4))
    return None
