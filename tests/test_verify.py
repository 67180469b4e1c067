"""`ortune apply --verify`: whether a recorded gain holds here."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from ortune import Config, Record, Speedup, UsageError, Verification
from ortune.apply.check import run_once
from ortune.apply.fit import find_load_mismatch
from ortune.apply.verify import (
    add_occasion,
    judge_comparison,
    judge_speedup,
    list_speedups,
    pool_occasions,
    prepare_verification,
    recorded_inputs,
    verify,
)
from ortune.cli.apply import verify_here
from ortune.knobs import DEFAULT
from ortune.measure.comparison import Comparison, FewCalls, LimitCheck, Row
from ortune.model import read_model
from ortune.record.files import check_unchanged, encode_record, read_records
from ortune.record.rounding import round_record
from ortune.record.schema import RECORD_SCHEMA, Bundle, Occasion
from ortune.replaceable import replaced
from ortune.requests import ApplyRequest, VerifyRequest
from ortune.worker import Failure
from ortune.worker.executor import ProcessExecutor, open_workers
from ortune.worker.failure import FailureKind
from ortune.workload import InputData, make_feed, parse_limit
from ortune.workload.workload import BackgroundProgram
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import ONE_THREAD, claim_limits, make_local_record, make_record, write

Kept = Literal["yes", "no", "unsure"]


def speedup(low: float, estimate: float, high: float) -> Speedup:
    return Speedup(estimate=estimate, low=low, high=high, confidence=0.95, n_pairs=60, n_launches=6)


SLIGHTLY_FASTER = speedup(1.03, 1.05, 1.07)


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
def test_half_of_the_gain_must_be_left(low: float, high: float, recorded: float | None, answer: str) -> None:
    claim = speedup(recorded, recorded, recorded) if recorded else None
    assert judge_speedup(speedup(low, (low + high) / 2, high), claim)[0] == answer


class TestOccasions:
    def add(self, record: Record, *estimates: float) -> Record:
        for estimate in estimates:
            here = speedup(estimate * 0.95, estimate, estimate * 1.05)
            record = add_occasion(record, Occasion(started="2026-01-01T00:00:00+00:00", speedup=here))
        return record

    def test_three_are_pooled(self) -> None:
        record = self.add(here(gain=1.3), 1.31)
        assert pool_occasions(record) is None
        pooled = pool_occasions(self.add(record, 1.5))
        assert pooled is not None
        assert pooled.low < 1.25
        assert pooled.high > 1.55
        assert pooled.confidence == 0.95

    @pytest.mark.parametrize(
        "changes",
        [
            {"low": 0.0, "high": 81000.0, "n_launches": 2},
            {"low": -1.0},
            {"estimate": 0.0},
            {"high": 0.0},
            {"low": 1.4},
            {"confidence": 1e-300},
            {"n_launches": 1},
        ],
    )
    def test_those_without_a_usable_interval_do_not_count(self, changes: dict[str, float]) -> None:
        unusable = Occasion(
            started="2026-01-01T00:00:00+00:00", speedup=msgspec.structs.replace(SLIGHTLY_FASTER, **changes)
        )
        record = add_occasion(self.add(here(gain=1.3), 1.31), unusable)
        assert pool_occasions(record) is None
        assert len(list_speedups(record)) == 2
        assert pool_occasions(self.add(record, 1.5)) == pool_occasions(self.add(here(gain=1.3), 1.31, 1.5))

    def test_they_are_written_and_read(self, tmp_path: Path) -> None:
        record = self.add(here(gain=1.3), 1.31, 1.5)
        (found,) = read_records(write(record, tmp_path / "tuned.json"))
        assert len(found.evidence.occasions) == 2
        assert found.evidence == record.evidence


REQUEST = VerifyRequest(config=None, model=str(TINY_CNN))


def here(config: Config = ONE_THREAD, gain: float = 1.05, **changes: object) -> Record:
    """Return a record for a single caller, which claims a gain."""
    record = make_local_record(TINY_CNN, config)
    evidence = msgspec.structs.replace(
        record.evidence, verdict="faster", speedup=speedup(gain, gain, gain), baseline=None
    )
    return msgspec.structs.replace(record, evidence=evidence, **changes)


def test_the_recorded_workload_is_set_up(tmp_path: Path) -> None:
    setup = prepare_verification(here(), REQUEST)
    assert setup.goal.objectives == ("p50",)
    assert setup.feed.tensors["image"].array.shape == (1, 3, 32, 32)


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
    found = verify(record, prepare_verification(record, REQUEST))
    assert found.answer == "nothing_to_verify"
    assert "no gain to verify" in found.reason
    assert found.comparison is None


def test_the_claim_is_that_of_the_config() -> None:
    assert here(gain=1.5).gain == speedup(1.5, 1.5, 1.5)


class TestVerdict:
    """Judging a comparison."""

    def judge(
        self,
        record: Record,
        *,
        speedup_here: Speedup | None = SLIGHTLY_FASTER,
        failure: FailureKind | None = None,
        kept: Kept | None = None,
        n_calls: int = 100,
        few_calls: FewCalls | None = None,
        utilization: float | None = None,
    ) -> tuple[str, str]:
        evidence = record.evidence
        winner = evidence.winner or evidence.front[0].summary
        summary = msgspec.structs.replace(winner, n_calls=n_calls, utilization=utilization)
        check = LimitCheck(
            limit="p99<1ms", figure="p99", bound=1.0, relative=False, value=1.0, low=1.0, high=1.0, kept=kept or "yes"
        )
        baseline = Row(name="default", config=DEFAULT, summary=summary)
        tuned = Row(
            name="tuned",
            config=record.config,
            summary=None if failure else summary,
            speedup=None if failure else speedup_here,
            failure=Failure(kind=failure, stage="load", message="cannot load") if failure else None,
            limits=(check,) if kept else (),
            few_calls=few_calls,
        )
        comparison = Comparison(objective="p50", rows=(baseline, tuned), calls_needed=50, noise=evidence.noise)
        return judge_comparison(record, comparison, record.gain)

    def test_a_gain_that_is_left_holds(self) -> None:
        assert self.judge(here()) == ("holds", "at least half of the recorded gain is left")

    def test_a_gain_that_is_lost_does_not_hold(self) -> None:
        assert self.judge(here(gain=2.0))[0] == "does_not_hold"

    def test_a_config_that_fails_does_not_hold(self) -> None:
        answer, reason = self.judge(here(), failure="exception")
        assert answer == "does_not_hold"
        assert reason == "the config fails on this host: cannot load"

    @pytest.mark.parametrize(
        ("kept", "answer", "reason"),
        [
            ("yes", "holds", "at least half of the recorded gain is left"),
            ("no", "does_not_hold", "the config exceeds p99<1ms"),
            ("unsure", "inconclusive", "the config may exceed p99<1ms"),
        ],
    )
    def test_limits_count(self, kept: Kept, answer: str, reason: str) -> None:
        assert self.judge(here(), kept=kept) == (answer, reason)

    def test_only_limits_that_are_surely_exceeded_are_said_to_be(self) -> None:
        one = LimitCheck(limit="p99<1ms", figure="p99", bound=1.0, value=1.0, low=1.0, high=1.0, kept="no")
        other = msgspec.structs.replace(one, limit="p99<2ms", kept="unsure")
        record = here()
        summary = record.evidence.winner
        rows = (
            Row(name="default", config=DEFAULT, summary=summary),
            Row(name="tuned", config=record.config, summary=summary, speedup=SLIGHTLY_FASTER, limits=(one, other)),
        )
        comparison = Comparison(objective="p50", rows=rows, calls_needed=1, noise=record.evidence.noise)
        assert judge_comparison(record, comparison, record.gain) == ("does_not_hold", "the config exceeds p99<1ms")

    def test_a_limit_in_doubt_does_not_hide_a_lost_gain(self) -> None:
        assert self.judge(here(gain=2.0), kept="unsure")[0] == "does_not_hold"

    def test_a_limit_alone_can_be_the_gain(self) -> None:
        worse = speedup(0.85, 0.9, 0.95)
        for record in (claim_limits(here(gain=0.9)), claim_limits(here(), p50=worse, cpu=worse)):
            assert record.claims_limits
            assert self.judge(record, kept="yes", speedup_here=worse) == ("holds", "the config stays within all limits")
            assert self.judge(record, kept="unsure", speedup_here=speedup(0.9, 1.0, 1.1))[0] == "inconclusive"
            assert self.judge(record, kept="no")[0] == "does_not_hold"
            overloaded = self.judge(record, kept="yes", speedup_here=worse, utilization=1.2)
            assert overloaded == ("inconclusive", "requests may arrive faster than they are served")

    def test_a_point_of_a_front_with_a_gain_claims_it(self) -> None:
        record = claim_limits(here(), p50=speedup(0.85, 0.9, 0.95), cpu=speedup(1.4, 1.5, 1.6))
        assert not record.claims_limits
        assert self.judge(record, kept="yes", speedup_here=speedup(0.85, 0.9, 0.95))[0] == "does_not_hold"

    def test_too_few_calls_are_inconclusive_unless_their_interval_excludes_no_gain(self) -> None:
        few = FewCalls(n_calls=49, supported="mean", speedup=SLIGHTLY_FASTER, slowest_ns=1e6, one_in=16)
        shown = f"p50 needs 50 calls of each side, and there were 49: {few}"
        assert self.judge(here(), few_calls=few) == ("holds", f"at least half of the recorded gain is left; {shown}")
        unsure = speedup(0.9, 1.0, 1.1)
        few = msgspec.structs.replace(few, speedup=unsure)
        answer, reason = self.judge(here(), few_calls=few, speedup_here=unsure)
        assert answer == "inconclusive"
        assert reason.startswith("p50 needs 50 calls of each side, and there were 49: mean gains 1.000x [0.90, 1.10];")

    def test_overload_is_inconclusive(self) -> None:
        assert self.judge(here(), utilization=1.2) == (
            "inconclusive",
            "requests may arrive faster than they are served",
        )

    def test_a_single_launch_is_inconclusive(self) -> None:
        assert self.judge(here(), speedup_here=None) == (
            "inconclusive",
            "fewer than two launches count: use a larger budget or a quieter host",
        )


class TestChanged:
    """Records whose file changes while they are verified."""

    def test_a_file_that_holds_other_records(self, tmp_path: Path) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        path = write(record, tmp_path / "r.json")
        check_unchanged(path, [record], trust=False)
        both = Bundle(schema=RECORD_SCHEMA, records=(record, make_local_record(TINY_ENCODER, ONE_THREAD)))
        path.write_bytes(encode_record(both))
        check_unchanged(path, [record], trust=False)
        with pytest.raises(UsageError, match="was changed in the meantime"):
            check_unchanged(path, [record], trust=False, alone=True)
        write(make_local_record(TINY_ENCODER, ONE_THREAD), path)
        with pytest.raises(UsageError, match="was changed in the meantime"):
            check_unchanged(path, [record], trust=False)
        path.unlink()
        with pytest.raises(UsageError, match="is not a file"):
            check_unchanged(path, [record], trust=False)

    def test_a_new_record_is_not_overwritten(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The result of the verification is still shown."""
        record = make_local_record(TINY_CNN, ONE_THREAD)
        path = write(record, tmp_path / "r.json")
        other = make_local_record(TINY_ENCODER, ONE_THREAD)

        def verify(verified: Record, *arguments: object, **options: object) -> Verification:
            write(other, path)
            return Verification(answer="holds", reason="it does", record=verified)

        monkeypatch.setattr("ortune.apply.verify.verify", verify)
        monkeypatch.setattr("ortune.apply.verify.prepare_verification", lambda *arguments: None)
        request = ApplyRequest(verify=True, update=True, json=True, quiet=True)
        with pytest.raises(UsageError, match="was changed in the meantime"):
            verify_here(request, record, None, path)
        assert json.loads(capsys.readouterr().out)["answer"] == "holds"
        assert read_records(path) == (other,)

    def test_what_was_measured_is_written_before_it_is_shared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The storage may not answer for long. What it adds is written then."""
        record = here()
        path = write(record, tmp_path / "r.json")
        occasion = Occasion(started="2026-01-01T00:00:00+00:00", speedup=speedup(1.0, 1.1, 1.2))
        measured = add_occasion(record, occasion)
        shared = add_occasion(measured, occasion)

        def share(claim: object, verified: Record, verification: Verification, started: object) -> Verification:
            assert len(read_records(path)[0].evidence.occasions) == 1
            return msgspec.structs.replace(verification, record=shared)

        result = Verification(answer="holds", reason="it does", record=measured)
        monkeypatch.setattr("ortune.apply.verify.verify", lambda *arguments, **options: result)
        monkeypatch.setattr("ortune.apply.verify.prepare_verification", lambda *arguments: None)
        monkeypatch.setattr(sys.modules["ortune.cli.apply"], "open_shared", lambda *arguments: "a claim")
        monkeypatch.setattr("ortune.fleet.verify.share_verification", share)
        verify_here(ApplyRequest(verify=True, update=True, quiet=True), read_records(path)[0], None, path)
        assert len(read_records(path)[0].evidence.occasions) == 2


def test_another_background_load_is_a_mismatch() -> None:
    """What was measured beside another load is not another occasion of the same comparison."""
    alone = here()
    workload = msgspec.structs.replace(alone.workload, background_load=BackgroundProgram.of("stress --cpu 1"))
    beside = msgspec.structs.replace(alone, workload=workload)
    for record, command, shown in [
        (alone, None, None),
        (beside, "stress --cpu 1", None),
        (alone, "stress --cpu 1", ("none", "stress")),
        (beside, None, ("stress", "none")),
        (beside, "stress --cpu 2", ("stress", "another command")),
        (beside, "yes", ("stress", "yes")),
    ]:
        found = find_load_mismatch(record, command)
        assert [(mismatch.recorded, mismatch.here) for mismatch in found] == ([shown] if shown else [])


@pytest.mark.usefixtures("no_workers_left")
class TestCommand:
    def test_what_is_measured_beside_another_load_is_not_added(self, tmp_path: Path) -> None:
        path = write(here(), tmp_path / "r.json")
        before = path.read_bytes()
        options = ("--verify", "--update", "--budget", "6s", "--beside", "sleep 600")
        done = run_ortune("apply", path, TINY_CNN, *options, cwd=tmp_path, simulate=True)
        assert "background load: none in the record, sleep on this host" in done.stdout
        assert path.read_bytes() == before

    def test_a_gain_that_is_lost(self, tmp_path: Path) -> None:
        """One thread cannot be a hundred times as fast as the default."""
        path = write(here(gain=100.0), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", "--budget", "6s", cwd=tmp_path, simulate=True)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "does not hold" in done.stdout
        assert "recorded" in done.stdout

    def test_json(self, tmp_path: Path) -> None:
        """What was gained is a limit that every session keeps."""
        record = here()
        record = msgspec.structs.replace(
            record,
            evidence=msgspec.structs.replace(record.evidence, verdict="within_limits"),
            workload=msgspec.structs.replace(record.workload, limits=(parse_limit("memory<10GB"),)),
        )
        path = write(record, tmp_path / "r.json")
        options = ("--verify", "--update", "--budget", "6s", "--json", "-q")
        done = run_ortune("apply", path, TINY_CNN, *options, cwd=tmp_path, simulate=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (updated,) = read_records(path)
        (occasion,) = updated.evidence.occasions
        assert occasion.speedup.n_pairs > 0
        assert msgspec.structs.replace(updated.evidence, occasions=()) == round_record(record).evidence
        answer = json.loads(done.stdout)
        assert answer["answer"] == "holds"
        assert answer["reason"] == "the config stays within all limits"
        assert answer["here"]["n_pairs"] > 0
        assert [row["name"] for row in answer["comparison"]["rows"]] == ["default", "tuned"]

    def test_a_config_that_does_not_work(self, tmp_path: Path) -> None:
        config = Config(
            session_options={"intra_op_num_threads": 3}, session_config={"session.intra_op_thread_affinities": "1"}
        )
        path = write(here(config), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 1
        assert "config fails on this host" in " ".join(done.stdout.split())

    def test_a_default(self, tmp_path: Path) -> None:
        path = write(here(DEFAULT), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 0
        assert "no gain to verify" in " ".join(done.stdout.split())

    def test_an_inconclusive_record_has_no_gain_that_holds(self, tmp_path: Path) -> None:
        record = here(DEFAULT)
        evidence = msgspec.structs.replace(record.evidence, verdict="inconclusive")
        path = write(msgspec.structs.replace(record, evidence=evidence), tmp_path / "r.json")
        done = run_ortune("apply", path, TINY_CNN, "--verify", "--update", cwd=tmp_path)
        text = " ".join(done.stdout.split())
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Nothing to verify" in text and "not added nothing was measured" in text
        assert "holds" not in text


def test_a_worker_that_dies_once_does_not_show_that_a_config_does_not_work(tmp_path: Path) -> None:
    program, launches = tmp_path / "worker.py", tmp_path / "launches"
    program.write_text(
        "import os\n"
        "from ortune.worker.main import main\n"
        f"with open({str(launches)!r}, 'a') as launches:\n"
        "    launches.write('x')\n"
        f"if os.path.getsize({str(launches)!r}) == 2:\n"
        "    os.kill(os.getpid(), 9)\n"
        "main()\n"
    )
    command = (sys.executable, "-P", str(program))
    with replaced({open_workers: functools.partial(ProcessExecutor, command=command)}):
        found = run_once(make_local_record(TINY_CNN, ONE_THREAD), TINY_CNN)
    assert found.works
    assert launches.read_text() == "xxx"
