"""Plays a gate: base, head and a second copy of base, launched afresh again and again, until it is decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import msgspec

from ortune.compare.block_runner import BlockRunner, Round
from ortune.compare.figures import calls_needed, cost
from ortune.compare.limits import kept_all, names_of
from ortune.compare.paired_run import PairedRun, PairedStats
from ortune.errors import MeasureError
from ortune.gate.decision import (
    CONFIDENCE,
    FEWEST_LAUNCHES,
    FEWEST_PAIRS,
    MOST_PAIRS,
    PAIRS_PER_LAUNCH,
    find,
    is_biased,
    overall,
    self_check,
)
from ortune.gate.reporters.messages import describe_failure, percent
from ortune.gate.results import Blocks, Decision, InterimResult
from ortune.knobs import Config
from ortune.worker import BlockPlan, Failure, LiveCandidate
from ortune.workload import Goal, Objective

BASE, HEAD, COPY = 0, 1, 2
"""Positions of the three in a match."""

NAMES = {BASE: "base", HEAD: "head", COPY: "the second copy of base"}

LAUNCHING_SHARE = 1.0
"""Time that launching may take as a multiple of measuring: where it takes longer, each launch gets more pairs."""

MOST_PAIRS_PER_LAUNCH = 24


class Sides(Protocol):
    """Makes the sides of a gate live: as processes, or from a landscape."""

    def launch(self, position: int) -> LiveCandidate | Failure:
        """Make one of the three live."""

    def now_s(self) -> float:
        """Return the time on a clock that only goes forward, in seconds."""


class SequentialTest(msgspec.Struct, frozen=True, kw_only=True):
    """What is played for.

    Attributes:
        goal: Load, objectives, limits.
        allowed: By objective, how many times as costly head may be.
        block: How long a block is.
        pairs_per_launch: Pairs in each launch; even, so that each order comes up as often as its reverse.
        end_s: Time on the clock of the sides at which it ends.
        start_s: Time at which it began.
        busy: Whether to decide although others use the CPUs.
        confidence: Of the interval that a failure must clear.
        seed: Seed of resampling.
    """

    goal: Goal
    allowed: dict[Objective, float]
    block: BlockPlan
    pairs_per_launch: int
    start_s: float
    end_s: float
    busy: bool = False
    confidence: float = CONFIDENCE
    seed: int = 0


class SequentialResult(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended.

    Attributes:
        decision: What follows.
        reason: Why, a sentence.
        interim: The last interim, or None where there was no time for one.
        is_void: Whether it could not be decided whatever the figures are.
        tally: The pairs that count, or None where there is no interim.
        blocks: All pairs.
        launches: Launches of each side.
    """

    decision: Decision
    reason: str
    interim: InterimResult | None
    is_void: bool
    tally: PairedStats | None
    blocks: Blocks
    launches: int


def pairs_for(launch_s: float, round_s: float) -> int:
    """Return how many pairs a launch gets: more where launching all three takes long, against a round of them."""
    wanted = launch_s / (LAUNCHING_SHARE * round_s)
    return min(max(PAIRS_PER_LAUNCH, 2 * math.ceil(wanted / 2)), MOST_PAIRS_PER_LAUNCH)


def play(
    sides: Sides,
    meter: BlockRunner,
    contest: SequentialTest,
    configs: Sequence[Config],
    observe: Callable[[InterimResult], None],
) -> SequentialResult:
    """Measure until it is decided, time is up, or more would not help.

    Args:
        sides: Make base and head live.
        meter: Measures blocks.
        contest: What is played for.
        configs: Settings of base and head.
        observe: Is told after each launch where it stands.

    Raises:
        MeasureError: One of them fails.
    """
    match = PairedRun([configs[0], configs[1], configs[0]], contest.goal.load)
    tally: PairedStats | None = None
    interim: InterimResult | None = None
    decision: Decision = "inconclusive"
    reason = ""
    while True:
        _play_launch(sides, meter, contest, match)
        if len(match.launches) >= 2:
            tally = PairedStats(match, contest.goal, contest.seed)
            interim = interim_result(tally, contest, sides.now_s())
        if interim is not None:
            observe(interim)
            decision, reason = decide(interim, contest)
        if sides.now_s() >= contest.end_s or reason:
            break
        if interim is not None and interim.pairs >= MOST_PAIRS and not interim.lacking:
            break
    return SequentialResult(
        decision=decision,
        reason=reason or _explain(interim, contest, match, time_is_up=sides.now_s() >= contest.end_s),
        interim=interim,
        is_void=interim is None or _is_void(interim, contest),
        tally=tally if interim is not None else None,
        blocks=blocks_of(match, contest.goal),
        launches=len(match.launches),
    )


def _play_launch(sides: Sides, meter: BlockRunner, contest: SequentialTest, match: PairedRun) -> None:
    """Launch all three, and measure the pairs of one launch; stop in between when time is up."""
    measured: list[Round] = []
    lives: dict[int, LiveCandidate] = {}
    number = len(match.launches)
    try:
        for step in range(3):
            # Nobody is always the first to start.
            position = (step + number) % 3
            answer = sides.launch(position)
            if isinstance(answer, Failure):
                raise_failure(position, answer)
            lives[position] = answer
            match.loaded[position].append(answer.session_info)
        # Head is in the middle of each round, so that on average it is measured when base and its copy are.
        order = [BASE, HEAD, COPY] if number % 2 else [COPY, HEAD, BASE]
        for step in range(contest.pairs_per_launch):
            if sides.now_s() >= contest.end_s:
                break
            found = meter.sequence(lives, order[::-1] if step % 2 else order, contest.block)
            for position, failure in found.failures.items():
                raise_failure(position, failure)
            measured.append(found)
    finally:
        for live in lives.values():
            live.close()
    if measured:
        match.launches.append(measured)


def raise_failure(position: int, failure: Failure) -> NoReturn:
    """Raise that a side cannot be measured."""
    raise MeasureError(
        f"The session of {NAMES[position]} failed ({failure.kind.replace('_', ' ')}): {failure.message}",
        "Check that it loads and runs by itself, and that there is enough free memory.",
    )


def log_ratios(tally: PairedStats, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, head to base, by launch; base is what its two copies are on average."""
    clusters = []
    for rounds in tally.launches:
        base, head, copy = (tally.costs(rounds, position, name) for position in (BASE, HEAD, COPY))
        clusters.append(
            [math.log(h) - (math.log(a) + math.log(b)) / 2 for a, h, b in zip(base, head, copy, strict=True)]
        )
    return clusters


def copy_ratios(tally: PairedStats, name: Objective) -> list[list[float]]:
    """Return the log-ratios of costs, the copy of base to base, by launch."""
    return [
        [math.log(b / a) for a, b in zip(tally.costs(rounds, BASE, name), tally.costs(rounds, COPY, name), strict=True)]
        for rounds in tally.launches
    ]


def interim_result(tally: PairedStats, contest: SequentialTest, now_s: float) -> InterimResult | None:
    """Return where it stands, or None while there are fewer than two launches that count."""
    if len(tally.launches) < 2:
        return None
    few = [name for name in contest.allowed if not tally.has_calls(HEAD, name)]
    findings = [
        find(name, log_ratios(tally, name), allowed, confidence=contest.confidence, seed=contest.seed)
        for name, allowed in contest.allowed.items()
    ]
    checks = {name: self_check(copy_ratios(tally, name), seed=contest.seed) for name in contest.allowed}
    limits = tuple(tally.check(HEAD, limit, CONFIDENCE) for limit in contest.goal.limits)
    in_doubt = [check.figure for check in limits if check.kept == "unsure" and not tally.has_calls(HEAD, check.figure)]
    base, head = (tally.utilization(position, CONFIDENCE) for position in (BASE, HEAD))
    return InterimResult(
        # A percentile of too few calls is another percentile: it decides nothing, here or beside other gates.
        findings=tuple(
            msgspec.structs.replace(each, decision="inconclusive", p_value=1.0) if each.objective in few else each
            for each in findings
        ),
        self_check=checks[contest.goal.objective],
        biased=tuple(name for name, check in checks.items() if is_biased(check, contest.allowed[name])),
        lacking=tuple(dict.fromkeys((*few, *in_doubt))),
        limits=limits,
        utilization=(base, head) if base and head else None,
        pairs=sum(map(len, tally.launches)),
        launches=len(tally.launches),
        contended=tally.contended,
        spent_s=now_s - contest.start_s,
        max_time_s=contest.end_s - contest.start_s,
    )


def decide(interim: InterimResult, contest: SequentialTest) -> tuple[Decision, str]:
    """Return the decision that a look allows, and the reason; no reason where it may go on."""
    if interim.launches < FEWEST_LAUNCHES or interim.pairs < FEWEST_PAIRS:
        return "inconclusive", ""
    if _is_disturbed(interim, contest):
        return "inconclusive", ""
    kept = kept_all(interim.limits)
    if kept == "no":
        return "fail", f"head breaks {names_of(interim.limits, 'no')}"
    if _is_overloaded(interim):
        # How late calls are depends on how long requests have been arriving, and hardly on who serves them.
        return "inconclusive", "requests arrive faster than base can serve them: gate at a lower --rate"
    if interim.utilization and interim.utilization[0].high < 1 <= interim.utilization[1].low:
        return "fail", "requests arrive faster than head can serve them, and base can"
    decision = overall(interim.findings)
    told = [finding for finding in interim.findings if finding.decision == decision]
    if decision == "fail":
        return decision, "; ".join(f"{finding.objective} is {describe_failure(finding.allowed)}" for finding in told)
    if decision == "pass" and kept == "yes" and not _is_near_overload(interim):
        return decision, "; ".join(
            f"{finding.objective} is not worse by {percent(finding.allowed)}"
            if finding.allowed >= 1
            else f"{finding.objective} is at least {1 / finding.allowed:.3g}x as good"
            for finding in told
        )
    return "inconclusive", ""


def _is_overloaded(interim: InterimResult) -> bool:
    """Return whether requests arrive faster than base can serve them, beyond doubt."""
    return interim.utilization is not None and interim.utilization[0].low >= 1


def _is_near_overload(interim: InterimResult) -> bool:
    """Return whether either side seems to be overloaded, so that ratios are nearer to 1 than they are otherwise."""
    return interim.utilization is not None and any(each.estimate >= 1 for each in interim.utilization)


def _is_disturbed(interim: InterimResult, contest: SequentialTest) -> bool:
    """Return whether others use the CPUs, or base differs from itself."""
    return bool(interim.biased) or (interim.contended and not contest.busy)


def _is_void(interim: InterimResult, contest: SequentialTest) -> bool:
    """Return whether nothing can be decided, whatever the figures are."""
    return _is_disturbed(interim, contest) or _is_overloaded(interim)


def _explain(interim: InterimResult | None, contest: SequentialTest, match: PairedRun, *, time_is_up: bool) -> str:
    """Return why it could not be decided."""
    if interim is None:
        max_time = f"{contest.end_s - contest.start_s:.0f} s"
        if len(match.launches) < 2:
            return f"there was no time for two launches of each side in {max_time}: give it a larger --max-time"
        return f"other programs used the CPUs in most of {max_time}, and fewer than two launches of each side count"
    if interim.contended and not contest.busy:
        return "other programs used the CPUs most of the time; --busy decides all the same, for a busy host"
    if interim.biased:
        return f"base differs from a second copy of itself in {', '.join(interim.biased)}: this host cannot tell"
    if interim.lacking:
        told = ", ".join(f"{name} should rest on {calls_needed(name)} calls of each side" for name in interim.lacking)
        return f"{told}: give it a larger --max-time, or take a lower percentile"
    if interim.launches < FEWEST_LAUNCHES or interim.pairs < FEWEST_PAIRS:
        return f"there was time for {interim.pairs} pairs only: give it a larger --max-time"
    if _is_near_overload(interim):
        return "requests arrive about as fast as they can be served: gate at a lower --rate"
    more = "give it a larger --max-time, or " if time_is_up else ""
    undecided = ", ".join(finding.objective for finding in interim.findings if finding.decision == "inconclusive")
    if not undecided:
        return f"head may break {names_of(interim.limits, 'unsure')}: {more}set another bound, or take a quieter host"
    return f"the interval of {undecided} holds what is allowed: {more}allow more, or take a quieter host"


def blocks_of(match: PairedRun, goal: Goal) -> Blocks:
    """Return the costs of all pairs, those that do not count too."""

    def costs(position: int) -> dict[str, tuple[tuple[float, ...], ...]]:
        return {
            name: tuple(tuple(cost(name, each.figure(name, position)) for each in launch) for launch in match.launches)
            for name in goal.objectives
        }

    return Blocks(
        base=costs(BASE),
        head=costs(HEAD),
        copy=costs(COPY),
        contended=tuple(tuple(each.contended for each in launch) for launch in match.launches),
    )
