"""`ortune apply --verify`: whether a recorded gain holds here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from ortune.apply.verify import judge, prepare, recorded_inputs, recorded_speedup, verify
from ortune.compare.comparison import LimitCheck, Speedup
from ortune.knobs import DEFAULT, Config
from ortune.model import read_model
from ortune.record.schema import Record
from ortune.worker import Failure
from ortune.worker.failure import FailureKind
from ortune.workload import InputData, make_feed
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import make_record, write

Kept = Literal["yes", "no", "unsure"]

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})


def speedup(low: float, estimate: float, high: float) -> Speedup:
    return Speedup(estimate=estimate, low=low, high=high, confidence=0.95, pairs=60, restarts=6)


@pytest.mark.parametrize(
    ("low", "high", "recorded", "answer"),
    [
        (3.2, 3.6, 3.7, "holds"),
        (1.95, 2.2, 3.7, "holds"),
        (1.8, 2.2, 3.7, "inconclusive"),
        (1.2, 1.4, 3.7, "does_not_hold"),
        (0.8, 0.9, 1.2, "does_not_hold"),
        (0.99, 1.01, 1.2, "does_not_hold"),
        (1.04, 1.06, 1.05, "holds"),
        (0.95, 1.2, 1.1, "inconclusive"),
        (1.01, 1.1, None, "holds"),
        (0.9, 0.99, None, "does_not_hold"),
        (0.9, 1.1, None, "inconclusive"),
    ],
)
def test_half_of_the_gain_must_be_here(low: float, high: float, recorded: float | None, answer: str) -> None:
    claim = speedup(recorded, recorded, recorded) if recorded else None
    found, reason = judge(speedup(low, (low + high) / 2, high), claim)
    assert found == answer
    assert reason


def here(config: Config = ONE_THREAD, gain: float = 1.05, **changes: object) -> Record:
    """Return a record for a single caller, which claims a gain."""
    from ortune.workload import make_load

    record = make_record(TINY_CNN, config, load=make_load())
    workload = msgspec.structs.replace(record.workload, objectives=("p50",), limits=())
    evidence = msgspec.structs.replace(
        record.evidence, verdict="faster", objective="p50", speedup=speedup(gain, gain, gain), baseline=None, limits=()
    )
    return msgspec.structs.replace(record, workload=workload, evidence=evidence, **changes)


def test_the_recorded_workload_is_set_up(tmp_path: Path) -> None:
    setting = prepare(here(), TINY_CNN)
    assert setting.request.goal.objectives == ("p50",)
    assert setting.feed.tensors["image"].array.shape == (1, 3, 32, 32)


def test_all_recorded_sizes_are_fed() -> None:
    record = make_record(TINY_ENCODER, ONE_THREAD)
    shapes = {name: given.shapes[0] for name, given in record.workload.inputs.items()}
    cases = {
        name: InputData(dtype=given.dtype, shapes=(shapes[name], (2, *shapes[name][1:])), origin="")
        for name, given in record.workload.inputs.items()
    }
    record = msgspec.structs.replace(record, workload=msgspec.structs.replace(record.workload, inputs=cases))
    feed = make_feed(read_model(TINY_ENCODER), recorded_inputs(record, None))
    assert feed.n_cases == 2
    for name, shape in shapes.items():
        assert [sample[name].array.shape for sample in feed.samples] == [shape, (2, *shape[1:])]


def test_a_default_has_no_gain_to_verify() -> None:
    record = here(DEFAULT)
    found = verify(record, prepare(record, TINY_CNN))
    assert found.answer == "holds"
    assert "no gain to verify" in found.reason
    assert found.comparison is None


def test_the_claim_is_that_of_the_config() -> None:
    assert recorded_speedup(here(gain=1.5)) == speedup(1.5, 1.5, 1.5)


class TestVerdict:
    """What is found, with the comparison replaced."""

    def found(
        self,
        monkeypatch: pytest.MonkeyPatch,
        record: Record,
        *,
        failure: FailureKind | None = None,
        kept: Kept | None = None,
    ) -> str:
        from ortune.apply import verify as module
        from ortune.compare.bench import Row

        check = LimitCheck(
            limit="p99<1ms", figure="p99", bound=1.0, relative=False, value=1.0, low=1.0, high=1.0, kept=kept or "yes"
        )
        row = Row(
            name="tuned",
            config=record.config,
            speedup=None if failure else speedup(2.0, 2.1, 2.2),
            failure=Failure(kind=failure, stage="load", message="no") if failure else None,
            limits=(check,) if kept else (),
        )

        class Found:
            rows = (row, row)
            objective = "p50"
            calls_needed = 0

        monkeypatch.setattr(module, "bench", lambda *args, **kwargs: Found())
        monkeypatch.setattr(module.Verification, "comparison", None, raising=False)
        return str(verify(record, prepare(record, TINY_CNN)).answer)

    def test_a_config_that_fails_does_not_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.found(monkeypatch, here(), failure="exception") == "does_not_hold"

    @pytest.mark.parametrize(
        ("kept", "answer"), [("yes", "holds"), ("no", "does_not_hold"), ("unsure", "inconclusive")]
    )
    def test_limits_count(self, monkeypatch: pytest.MonkeyPatch, kept: Kept, answer: str) -> None:
        assert self.found(monkeypatch, here(), kept=kept) == answer

    def test_a_limit_alone_can_be_what_was_won(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = here(gain=0.9)
        evidence = msgspec.structs.replace(record.evidence, verdict="within_limits")
        record = msgspec.structs.replace(record, evidence=evidence)
        assert self.found(monkeypatch, record, kept="yes") == "holds"


@pytest.mark.usefixtures("no_workers_left")
class TestCommand:
    def test_a_gain_that_is_not_here(self, tmp_path: Path) -> None:
        """One thread cannot be a hundred times as fast as the default."""
        path = write(here(gain=100.0), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "does not hold" in done.stdout
        assert "recorded" in done.stdout

    def test_json(self, tmp_path: Path) -> None:
        path = write(here(gain=1e-9), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", "--json", "-q", cwd=tmp_path)
        answer = json.loads(done.stdout)
        assert answer["answer"] in {"holds", "does_not_hold", "inconclusive"}
        assert done.returncode == {"holds": 0, "does_not_hold": 1, "inconclusive": 3}[answer["answer"]]
        assert answer["here"]["pairs"] > 0
        assert [row["name"] for row in answer["comparison"]["rows"]] == ["default", "tuned"]

    def test_a_config_that_does_not_work(self, tmp_path: Path) -> None:
        config = Config(
            session_options={"intra_op_num_threads": 2}, session_config={"session.intra_op_thread_affinities": "x"}
        )
        path = write(here(config), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 1
        assert "the config fails here" in " ".join(done.stdout.split())

    def test_a_default(self, tmp_path: Path) -> None:
        path = write(here(DEFAULT), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 0
        assert "no gain to verify" in " ".join(done.stdout.split())
