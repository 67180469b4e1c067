"""Simulate rollouts, and count how often the interval of `ortune fleet compare` contains the true effect.

    python -m benchmarks.canary_coverage [--rollouts 1000] [--seed 0] [--json FILE]

The value of a process is simulated as its host's, plus the effect if it is a canary, plus its own luck, all normally
distributed on a log scale. Arms are drawn as `ortune apply --canary` does: each process on its own; draws without a
process in one of the arms are drawn again. "proven" counts intervals that exclude no effect, "wrong" those that lie on
the wrong side of it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.host import describe_run, write_header
from ortune.fleet.mixed_model import Unit, estimate_effect


class Rollout(NamedTuple):
    """A kind of rollout.

    Attributes:
        n_hosts: Number of hosts.
        n_processes: Processes of each.
        share: Share of the processes that are canaries.
        luck: Standard deviation of the logarithm between processes of a host.
        hosts: The same between hosts.
        effects: The same of the effect between hosts.
        by_host: Whether all processes of a host are in the same arm.
        canary_luck: How many times as large the luck of canaries is.
    """

    n_hosts: int
    n_processes: int
    share: float
    luck: float
    hosts: float = 0.0
    effects: float = 0.0
    by_host: bool = False
    canary_luck: float = 1.0


ROLLOUTS = {
    "one host, 4 processes": Rollout(1, 4, 0.5, 0.03),
    "one host, 8 processes": Rollout(1, 8, 0.5, 0.03),
    "one host, 16 processes, 10%": Rollout(1, 16, 0.1, 0.05),
    "2 hosts of 4": Rollout(2, 4, 0.5, 0.03, hosts=0.1),
    "2 hosts of 4, effects differ by 1.5%": Rollout(2, 4, 0.5, 0.03, hosts=0.1, effects=0.015),
    "2 hosts of 4, effects differ by 3%": Rollout(2, 4, 0.5, 0.03, hosts=0.1, effects=0.03),
    "5 hosts of 2": Rollout(5, 2, 0.5, 0.03, hosts=0.1),
    "5 hosts of 4, effects differ by 1.5%": Rollout(5, 4, 0.5, 0.03, hosts=0.1, effects=0.015),
    "5 hosts of 4, effects differ by 3%": Rollout(5, 4, 0.5, 0.03, hosts=0.1, effects=0.03),
    "20 hosts of 4, 10%": Rollout(20, 4, 0.1, 0.05, hosts=0.1),
    "20 hosts of 4, effects differ by 3%": Rollout(20, 4, 0.5, 0.03, hosts=0.1, effects=0.03),
    "20 containers of 1, 20%": Rollout(20, 1, 0.2, 0.05, hosts=0.05),
    "4 hosts of 4, arms by host": Rollout(4, 4, 0.5, 0.03, hosts=0.1, by_host=True),
    "10 hosts of 4, arms by host": Rollout(10, 4, 0.5, 0.02, hosts=0.1, by_host=True),
    "one host, 8 processes, canaries vary 1.5x": Rollout(1, 8, 0.5, 0.03, canary_luck=1.5),
    "one host, 20 processes, 10%, canaries vary 1.5x": Rollout(1, 20, 0.1, 0.03, canary_luck=1.5),
}

EFFECT = -0.05
"""The true effect: canaries take 5% less time."""


def draw(rollout: Rollout, rng: np.random.Generator) -> list[Unit]:
    """Return the processes of a simulated rollout."""
    while True:
        arms = rng.random((rollout.n_hosts, 1 if rollout.by_host else rollout.n_processes)) < rollout.share
        if arms.any() and not arms.all():
            break
    arms = np.broadcast_to(arms, (rollout.n_hosts, rollout.n_processes))
    return list(_draw_units(rollout, arms, rng))


def _draw_units(rollout: Rollout, arms: np.ndarray, rng: np.random.Generator) -> Iterator[Unit]:
    for host, own in enumerate(arms):
        level, effect = rng.normal(0, rollout.hosts), EFFECT + rng.normal(0, rollout.effects)
        for is_canary in map(bool, own):
            luck = rng.normal(0, rollout.luck * (rollout.canary_luck if is_canary else 1))
            yield Unit(host=str(host), is_canary=is_canary, value=float(level + is_canary * effect + luck))


def count(rollout: Rollout, n: int, seed: int, confidence: float = 0.95) -> dict[str, float]:
    """Return the shares of intervals that contain the effect, exclude 0, and lie above 0; and their median width."""
    rng = np.random.default_rng(seed)
    found = [estimate_effect(draw(rollout, rng), confidence) for _ in range(n)]
    intervals = [interval for interval in found if interval]
    return {
        "coverage": sum(interval.low <= EFFECT <= interval.high for interval in intervals) / len(intervals),
        "proven": sum(interval.high < 0 for interval in intervals) / len(intervals),
        "wrong": sum(interval.low > 0 for interval in intervals) / len(intervals),
        "width": math.expm1(float(np.median([interval.high - interval.low for interval in intervals])) / 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(write_header())
    print(f"{options.rollouts} rollouts of each kind, true effect {EFFECT:+.0%}, intervals of 95%")
    print(f"{'rollout':<50} coverage  proven   wrong  half width")
    results = {}
    for name, rollout in ROLLOUTS.items():
        results[name] = found = count(rollout, options.rollouts, options.seed)
        shares = "  ".join(f"{found[key]:7.1%}" for key in ("coverage", "proven", "wrong"))
        print(f"{name:<50} {shares}  {found['width']:9.1%}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({**describe_run(), "rollouts": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
