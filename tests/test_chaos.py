"""The benchmark that kills searches and lets workers fail."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.chaos import FAILING, LANDSCAPE, ChaoticExecutor, fail_launches, report
from benchmarks.landscape import load_landscape, recorded_paths
from benchmarks.replay import ReplayExecutor
from ortune import Config
from ortune.worker import BlockPlan, Failure
from tests.conftest import long_params

PLAN = BlockPlan(duration_ns=10**7, lead_in_ns=0, min_calls=3, deadline_s=9.0)


def test_a_fifth_of_the_launches_fails_in_every_way() -> None:
    landscape = next(found for path in recorded_paths() if (found := load_landscape(path)).name == LANDSCAPE)
    executor = ChaoticExecutor(ReplayExecutor(landscape), FAILING, 0)
    kinds = Counter[str]()
    for _ in range(500):
        (answer,) = executor.launch([Config()], deadline_s=9)
        blocks = [answer if isinstance(answer, Failure) else answer.measure(PLAN) for _ in range(6)]
        kinds.update(
            {f"{block.kind} in {block.stage}" for block in blocks[-1:] + blocks[:5] if isinstance(block, Failure)}
        )
    assert {kind.split()[0] for kind in kinds} == {"crash", "exit", "timeout", "out_of_memory"}
    assert {kind.split()[2] for kind in kinds} == {"load", "measure"}
    assert 0.15 < executor.n_failed / 500 < 0.25


@pytest.mark.parametrize("seed", [14, *long_params(0)])
def test_the_right_winner_is_found_although_launches_fail(seed: int) -> None:
    row = fail_launches(seed)
    assert row["faults"] == []
    assert row["failing"]["right"] and row["undisturbed"]["right"]
    assert row["failing"]["n_relaunched"] > 5


def test_faults_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    good = {"kind": "workers", "seed": 1, "code": 0, "verdict": "faster", "n_relaunched": 3, "faults": []}
    assert report([good])
    assert not report([good, {**good, "faults": ["left: a worker"], "output": "what it printed"}])
    output = capsys.readouterr().out
    assert "left: a worker" in output and "what it printed" in output


def test_too_few_right_winners_are_a_failure() -> None:
    right = {"right": True, "n_relaunched": 1}
    rows = [{"kind": "launches", "seed": 0, "faults": [], "failing": right, "undisturbed": right}] * 19
    wrong = [{"kind": "launches", "seed": 0, "faults": [], "failing": {"right": False}, "undisturbed": right}]
    assert report(rows + wrong)
    assert not report(rows + 2 * wrong)
