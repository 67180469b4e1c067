"""Plans a search: how long a block is, and how the budget is split between the stages."""

from __future__ import annotations

import msgspec

from ortune.measure import BlockPlan

SHORTEST_BLOCK_NS = 50_000_000
LONGEST_BLOCK_NS = 1_000_000_000
CALLS_PER_BLOCK = 8
FEWEST_CALLS = 2
LEAD_IN_SHARE = 0.08
"""Part of a block that is called before it, unmeasured: after resuming, caches are cold and workers asleep."""

DUEL_SHARE = 0.42
RACE_SHARE = 0.18
"""Parts of the budget for the duel and the race; the rest goes to the screen."""

RESTARTS = 8
FEWEST_RESTARTS = 5
PAIRS_PER_RESTART = 8
FEWEST_PAIRS_PER_RESTART = 2
"""The duel's size: at least 60 pairs over at least 5 launches a side where the budget allows it. More launches
narrow the interval more than more pairs do, as each launch has its own luck with memory layout."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a search.

    Attributes:
        block: A block of the screen and the race.
        duel_block: A block of the duel; longer, so that foreign CPU use is seen more sharply.
        screen_s: Time for the screen.
        race_s: Time for the race.
        duel_s: Time for the duel.
        restarts: Launches of each side in the duel.
        pairs_per_restart: Pairs of blocks in each launch; even, so that each order comes up as often.
        max_live: Candidates that memory allows to be live at the same time.
        launch_s: Time that one launch takes.
    """

    block: BlockPlan
    duel_block: BlockPlan
    screen_s: float
    race_s: float
    duel_s: float
    restarts: int
    pairs_per_restart: int
    max_live: int
    launch_s: float

    @property
    def fits(self) -> bool:
        """Whether the budget allows the smallest duel that can prove anything."""
        return self.restarts >= FEWEST_RESTARTS


def block_plan(call_ns: float, shortest_ns: int = SHORTEST_BLOCK_NS) -> BlockPlan:
    """Return how long a block is for calls of about `call_ns`.

    At least 50 ms, and about eight calls unless that takes more than a second.
    """
    duration_ns = int(min(max(shortest_ns, CALLS_PER_BLOCK * call_ns), max(LONGEST_BLOCK_NS, FEWEST_CALLS * call_ns)))
    return BlockPlan(
        duration_ns=duration_ns,
        lead_in_ns=int(duration_ns * LEAD_IN_SHARE),
        min_calls=FEWEST_CALLS,
        # A candidate that is twenty times slower than the default is as good as one that hangs.
        deadline_s=5 + 20 * (duration_ns + 3 * call_ns) / 1e9,
    )


def make_plan(
    *, left_s: float, call_ns: float, launch_s: float, peak_bytes: int | None, free_bytes: int | None
) -> Plan:
    """Split the time that is left.

    Args:
        left_s: Time that is left of the budget.
        call_ns: Duration of one call of the default.
        launch_s: Time that it took to make the default live.
        peak_bytes: Largest resident memory of the default's worker.
        free_bytes: Memory that can be used.
    """
    duel_s = DUEL_SHARE * left_s
    block = block_plan(call_ns)
    restarts, pairs, duel_block = _size_duel(duel_s, call_ns, launch_s)
    max_live = 64
    if peak_bytes and free_bytes:
        max_live = max(2, int(0.6 * free_bytes / peak_bytes))
    return Plan(
        block=block,
        duel_block=duel_block,
        screen_s=left_s * (1 - DUEL_SHARE - RACE_SHARE),
        race_s=left_s * RACE_SHARE,
        duel_s=duel_s,
        restarts=restarts,
        pairs_per_restart=pairs,
        max_live=max_live,
        launch_s=launch_s,
    )


def _size_duel(duel_s: float, call_ns: float, launch_s: float) -> tuple[int, int, BlockPlan]:
    """Return launches, pairs in each, and the block: as many launches as fit, then pairs, then longer blocks."""
    for shortest_ns in (150_000_000, 100_000_000, SHORTEST_BLOCK_NS):
        block = block_plan(call_ns, shortest_ns)
        pair_s = 2 * _block_s(block, call_ns)
        for restarts in range(RESTARTS, FEWEST_RESTARTS - 1, -1):
            pairs = int((duel_s / restarts - 2 * launch_s) / pair_s) // 2 * 2
            if pairs * restarts >= 60:
                return restarts, min(pairs, 4 * PAIRS_PER_RESTART), block
    block = block_plan(call_ns)
    pair_s = 2 * _block_s(block, call_ns)
    for restarts in range(RESTARTS, 0, -1):
        pairs = int((duel_s / restarts - 2 * launch_s) / pair_s) // 2 * 2
        if pairs >= FEWEST_PAIRS_PER_RESTART:
            return restarts, pairs, block
    return 0, 0, block


def _block_s(block: BlockPlan, call_ns: float) -> float:
    """Return the wall time of a block with its lead-in, which is at least one call, and the last call's overrun."""
    lead_in_ns = max(block.lead_in_ns, call_ns)
    return (max(block.duration_ns, block.min_calls * call_ns) + lead_in_ns + call_ns / 2) / 1e9 + 0.002
