"""The race: the best of the screen and the default, launched afresh in each heat, until the worse are out."""

from __future__ import annotations

import math

import numpy as np

from ortune.compare.block_runner import Round
from ortune.compare.figures import cost
from ortune.compare.results import StageTime
from ortune.compare.stats import t_interval
from ortune.tuning.pareto import Vector
from ortune.tuning.results import Entry
from ortune.tuning.state import Context

FINALISTS = 8
WORTH_RACING = 0.25
"""Log-ratio behind the best of the screen within which a candidate is worth racing: the best was lucky, and under
several callers by as much as 15 %."""

HEATS = 5
FEWEST_HEATS = 2
"""How often the finalists are launched afresh, and how often at least, however little time there is: under several
callers, two launches of one config were seen to differ by ten percent, which no number of rounds in one launch takes
out. On replayed hosts, five heats of two rounds chose better than three of four."""

ROUNDS_BEFORE_ELIMINATION = 4
FEWEST_ROUNDS = 2
MOST_ROUNDS = 20
ELIMINATION_CONFIDENCE = 0.98
LUCK_MARGIN = 0.05
"""Log-ratio by which a launch may be slower than another one of the same config: within it nobody is beaten yet."""


def run_racing(context: Context, racing_s: float) -> StageTime:
    """Race the finalists in some heats, each of which launches those that are left afresh."""
    start_s, inference_s = context.now_s(), context.meter.inference_s
    racing = choose_finalists(context, affordable(context, racing_s))
    for entry in racing:
        entry.enter("racing")
    rounds: dict[int, list[Vector]] = {entry.number: [] for entry in racing}
    for heat in range(HEATS):
        if not racing or (heat >= FEWEST_HEATS and context.now_s() >= start_s + racing_s):
            break
        heat_end_s = start_s + racing_s * (heat + 1) / HEATS
        racing = run_heat(context, racing, rounds, heat_end_s, start_s + racing_s)
    return context.meter.stage_time("racing", start_s, inference_s)


def run_heat(
    context: Context, racing: list[Entry], rounds: dict[int, list[Vector]], end_s: float, race_end_s: float
) -> list[Entry]:
    """Run one heat until `end_s`, and return who is left.

    Args:
        context: The search.
        racing: Who takes part.
        rounds: Logarithms of the costs in each round so far, by candidate; extended here.
        end_s: When the heat ends, after some rounds at least.
        race_end_s: When the race ends, for the screen.
    """
    start_s = context.now_s()
    default = context.launch_default()
    lives = context.launch(racing)
    n_rounds = 0
    try:
        while lives and n_rounds < MOST_ROUNDS and (context.now_s() < end_s or n_rounds < FEWEST_ROUNDS):
            measured = context.meter.round([default, *(live for _, live in lives)], context.plan.block)
            n_rounds += 1
            context.ledger.post([context.default, *(entry for entry, _ in lives)], measured)
            for position, failure in measured.failures.items():
                context.fail(lives[position - 1][0], failure)
            for position in measured.blocks:
                if position:
                    rounds[lives[position - 1][0].number].append(log_costs(context, measured, position))
            lives = [(entry, live) for entry, live in lives if not entry.failure]
            done = max(len(values) for values in rounds.values())
            if done >= ROUNDS_BEFORE_ELIMINATION:
                beaten = find_beaten({entry.number: rounds[entry.number] for entry, _ in lives if not entry.excess})
                for entry, live in lives:
                    if entry.number in beaten:
                        live.close()
                lives = [(entry, live) for entry, live in lives if entry.number not in beaten]
            left = {entry.number for entry, _ in lives}
            standing = [entry for entry in context.ledger.challengers() if entry.number in left]
            total = done + context.estimate_total(n_rounds, start_s, race_end_s) - n_rounds
            context.report("racing", done, max(total, HEATS * FEWEST_ROUNDS), standing[0] if standing else None)
            if len(lives) <= 1 and n_rounds >= FEWEST_ROUNDS:
                break
    finally:
        default.close()
        for _, live in lives:
            live.close()
    return [entry for entry, _ in lives]


def affordable(context: Context, racing_s: float) -> int:
    """Return how many can race in the fewest heats within that time; at least two."""
    plan = context.plan
    block_s = (plan.block.duration_ns + plan.block.lead_in_ns) / 1e9
    # Launched side by side, each takes about half of what a launch by itself does.
    each_s = FEWEST_HEATS * (plan.launch_s / 2 + FEWEST_ROUNDS * block_s)
    return max(2, int(racing_s / each_s) - 1)


def choose_finalists(context: Context, most: int = FINALISTS) -> list[Entry]:
    """Return the best of the screen that are worth it: up to eight, and as many as memory and time allow.

    Worth it is who keeps to the limits and is near the best in any objective; where nobody keeps to them, all are.
    """
    ranked = context.ledger.challengers()
    keeping = [entry for entry in ranked if not entry.excess] or ranked
    vectors = {entry.number: entry.vector or () for entry in keeping}
    if context.expected and len(context.goal.objectives) == 1:
        # Part of what makes the best of many look good is luck, and more so where others like it look worse.
        vectors = {entry.number: (context.expected[entry.candidate.config.key],) for entry in keeping}
        keeping.sort(key=lambda entry: (entry.excess, vectors[entry.number]))
    bests = [min(values) for values in zip(*vectors.values(), strict=True)]
    worth = [
        entry
        for entry in keeping
        if any(value <= best + WORTH_RACING for value, best in zip(vectors[entry.number], bests, strict=True))
    ]
    return worth[: min(FINALISTS, most, context.plan.max_live - 1)]


def log_costs(context: Context, measured: Round, position: int) -> Vector:
    """Return the logarithm of each objective's cost of one candidate in a round."""
    return tuple(math.log(cost(name, measured.figure(name, position))) for name in context.goal.objectives)


def find_beaten(rounds: dict[int, list[Vector]]) -> set[int]:
    """Return the candidates that another one betters beyond doubt, in every objective.

    Args:
        rounds: Logarithms of the costs in each round, by candidate. All have been through the same rounds, so that
            what a round did to all of them cancels in the differences.
    """
    if len(rounds) < 2:
        return set()
    best = min(rounds, key=lambda number: float(np.mean(rounds[number], axis=0).sum()))
    beaten = set()
    for number, values in rounds.items():
        if number == best:
            continue
        n = min(len(values), len(rounds[best]))
        behind = np.asarray(values[-n:]) - np.asarray(rounds[best][-n:])
        if all(t_interval(column, ELIMINATION_CONFIDENCE).low > LUCK_MARGIN for column in behind.T):
            beaten.add(number)
    return beaten
