"""The A/A check: measures the baseline against itself, to see whether a host is fit to share its measurements."""

from __future__ import annotations

import itertools
import math
import statistics

import msgspec

from ortune.measure.block_runner import BASELINE_NAME, raise_failure
from ortune.measure.compute_figures import to_cost
from ortune.measure.stats import robust_sigma
from ortune.storage import SharedRound
from ortune.storage.schema import MOST_ROUNDS, limit_log_ratio
from ortune.tuning.board import Board
from ortune.worker import Failure

N_LAUNCHES = 3
FEWEST_CHECK_ROUNDS = 2
"""Launches of the check, and the minimum of rounds in each."""

N_ATTEMPTS = 2
"""Checks until a host counts as unfit: something may have disturbed the first."""

MOST_NOISE = 0.25
"""Standard deviation of the log-ratios of rounds above which a host cannot rank candidates. A few may be far off."""

MOST_BIAS = 0.05
BIAS_ERRORS = 4.0
LEAST_LUCK = 0.02
"""Log-ratio of the baseline to itself that is clearly not 0: more than the first, and more than this many standard
errors, given the difference between launches, which is at least the last."""


class Fitness(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the check.

    Attributes:
        rounds: Its rounds.
        sigma: Standard deviation of their log-ratios.
        bias: Median over the launches of the median over their rounds.
        unfit: Why the host is not fit; empty if it is.
    """

    rounds: tuple[SharedRound, ...]
    sigma: float
    bias: float
    unfit: str


def check_fitness(board: Board) -> Fitness:
    """Measure the baseline against itself in fresh launches, again if the result is bad.

    Raises:
        MeasureError: The baseline fails.
    """
    for _ in range(N_ATTEMPTS):
        found = judge_fitness([measure_control(board) for _ in range(N_LAUNCHES)])
        if not found.unfit:
            break
    return found


def measure_control(board: Board) -> list[SharedRound]:
    """Launch the baseline twice, and return the log-ratios of its rounds."""
    runner, base = board.runner, board.space.base
    launched = board.start([base, base])
    lives = {position: live for position, live in enumerate(launched) if not isinstance(live, Failure)}
    rounds = []
    try:
        for failure in launched:
            if isinstance(failure, Failure):
                raise_failure(BASELINE_NAME, failure)
        n_rounds = max(FEWEST_CHECK_ROUNDS, board.plan.screening_rounds)
        measuring = runner.measure_rounds(lives, lambda: board.plan.block)
        for measured in itertools.islice(measuring, n_rounds):
            for failure in measured.failures.values():
                raise_failure(BASELINE_NAME, failure)
            rounds.append(
                SharedRound(
                    log_ratios=tuple(
                        limit_log_ratio(
                            math.log(to_cost(name, measured.figure(name, 1)) / to_cost(name, measured.figure(name, 0)))
                        )
                        for name in board.goal.objectives
                    ),
                    contended=measured.contended,
                )
            )
    finally:
        for live in lives.values():
            live.close()
    return rounds


def judge_fitness(launches: list[list[SharedRound]]) -> Fitness:
    """Return whether a host is fit, given the rounds of each launch."""
    rounds = [measured_round for launch in launches for measured_round in launch]
    medians = [statistics.median(measured_round.log_ratios[0] for measured_round in launch) for launch in launches]
    sigma = robust_sigma([measured_round.log_ratios[0] for measured_round in rounds])
    bias = statistics.median(medians)
    luck = max(statistics.stdev(medians) if len(medians) > 1 else 0.0, LEAST_LUCK)
    error = luck / math.sqrt(len(medians))
    unfit = ""
    if sigma > MOST_NOISE:
        unfit = f"the baseline compared with itself varies by {math.expm1(sigma):.0%} from round to round"
    elif abs(bias) > max(MOST_BIAS, BIAS_ERRORS * error):
        unfit = f"the baseline compared with itself differs by {math.expm1(bias):+.0%}"
    return Fitness(rounds=tuple(rounds[:MOST_ROUNDS]), sigma=sigma, bias=limit_log_ratio(bias), unfit=unfit)
