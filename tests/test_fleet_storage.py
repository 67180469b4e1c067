"""Several hosts that share a storage: proofs of a record on each, `ortune fleet`, and gates against a storage."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import BenchResult, Config, Record, RecordError, Speedup, UsageError, Verification
from ortune.console.fleet_status import show_expired, show_status, show_unread
from ortune.console.safe_console import SafeConsole
from ortune.console.verify import show_verification
from ortune.fleet.claim import digest_claim
from ortune.fleet.collect import read_shared_records
from ortune.fleet.expire import VerificationFacts, find_expired, remove_expired
from ortune.fleet.proofs import KIND, open_claim, pool_proofs, read_claims
from ortune.fleet.status import read_status
from ortune.fleet.verify import SharedVerification, share_verification
from ortune.gates.sides import read_side
from ortune.host import HostClass, read_host
from ortune.measure.comparison import Row
from ortune.record.files import encode_record, read_records
from ortune.storage import (
    FAILED,
    PROOF,
    RESULT,
    Location,
    Measurement,
    NodeState,
    Proof,
    SharedResult,
    SharedRound,
    SharedSpeedup,
    SharedStudy,
    StorageError,
    hash_node,
    name_node,
    parse_location,
)
from ortune.worker import Failure
from ortune.workload.workload import BackgroundProgram
from tests.conftest import TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_local_record, write

NOW = datetime.datetime(2026, 6, 30, tzinfo=datetime.UTC)
CLASS = msgspec.structs.replace(HostClass.of(read_host(memory=False)), instructions="avx2", n_memory_channels=None)
HERE = VerificationFacts(host_class=CLASS, kernel="6.1", onnxruntime="1.20.0")
BAD_NAME = "db\x1b[2J\n::error::x"


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return parse_location(str(tmp_path / "fleet.journal"), "storage")


@pytest.fixture(scope="module")
def record() -> Record:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    gain = Speedup(estimate=1.3, low=1.2, high=1.4, confidence=0.95, n_pairs=60, n_launches=6)
    return msgspec.structs.replace(
        record, evidence=msgspec.structs.replace(record.evidence, verdict="faster", speedup=gain, baseline=None)
    )


def make_proof(node: str, estimate: float | None = 1.3, **changes: Any) -> Proof:
    speedup = None
    if estimate is not None:
        speedup = SharedSpeedup(
            estimate=estimate, low=estimate / 1.05, high=estimate * 1.05, confidence=0.95, n_launches=6
        )
    values: dict[str, Any] = {
        "node": node,
        "worker": f"w-{hash_node(node)}",
        "digest": "0" * 64,
        "speedup": speedup,
        "verdict": "holds",
        "started": "2026-06-29T12:00:00+00:00",
        "host_class": HERE.host_class,
        "kernel": HERE.kernel,
        "onnxruntime": HERE.onnxruntime,
    }
    return Proof(**{**values, **changes})


def prove(location: Location, record: Record, *proofs: Proof) -> None:
    claim = open_claim(location, record)
    for proof in proofs:
        claim.add(msgspec.structs.replace(proof, digest=claim.digest))


def render(show: Callable[..., None], *values: Any, **options: Any) -> str:
    console = SafeConsole(file=io.StringIO(), width=160)
    show(console, *values, **options)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestNames:
    def test_the_variable_names_this_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORTUNE_NODE", "db-7")
        assert name_node() == "db-7"
        monkeypatch.delenv("ORTUNE_NODE")
        assert name_node()

    @pytest.mark.parametrize(("value", "name"), [("a\nb ", "ab"), ("x" * 200, "x" * 128), ("\x1b[2J", "[2J")])
    def test_what_cannot_be_part_of_a_name(self, value: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORTUNE_NODE", value)
        assert name_node() == name

    def test_the_claim_stays_the_same_when_evidence_is_added(self, record: Record) -> None:
        evidence = pool_proofs([make_proof("a"), make_proof("b")])
        more = msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, hosts=evidence))
        assert digest_claim(more) == digest_claim(record)
        assert digest_claim(msgspec.structs.replace(record, config=Config())) != digest_claim(record)

    def test_the_background_load_is_part_of_the_claim(self, record: Record) -> None:
        beside = msgspec.structs.replace(record.workload, background_load=BackgroundProgram.of("stress --cpu 1"))
        assert digest_claim(msgspec.structs.replace(record, workload=beside)) != digest_claim(record)


class TestProofs:
    def test_they_meet_by_the_claim_of_the_record(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a"))
        prove(location, record, make_proof("b"))
        other = msgspec.structs.replace(record, config=Config(session_options={"intra_op_num_threads": 2}))
        prove(location, other, make_proof("c"))
        claims, unread = read_claims(location)
        assert unread == []
        assert sorted([proof.node for proof in claim.proofs] for claim in claims) == [["a", "b"], ["c"]]

    def test_those_of_a_shared_search_count(self, location: Location, record: Record) -> None:
        study = SharedStudy(location, {"model_name": "m.onnx", "host": "x"})
        result = SharedResult(
            node="a",
            worker="w",
            number=3,
            verdict="faster",
            config=record.config,
            digest="ab" * 32,
            record=msgspec.Raw(encode_record(record)),
        )
        study.write(f"{RESULT}w", result)
        study.write(f"{PROOF}w", make_proof("a", digest="ab" * 32))
        prove(location, record, make_proof("b"))
        (claim,) = read_claims(location)[0]
        assert claim.study.name == study.name
        assert [proof.node for proof in claim.proofs] == ["a", "b"]

    def test_the_latest_of_a_host_counts(self, location: Location, record: Record) -> None:
        early = make_proof("a", 2.0, worker="z", started="2026-06-29T13:00:00+02:00")
        late = make_proof("a", 1.1, worker="y", started="2026-06-29T12:30:00+00:00")
        prove(location, record, early, late, make_proof("a", 9.0, worker="x", started="soon"))
        (claim,) = read_claims(location)[0]
        assert [proof.worker for proof in claim.proofs] == ["y"]

    def test_names_of_hosts_do_not_reach_the_record(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("secret-host-1"), make_proof("secret-host-2"))
        (claim,) = read_claims(location)[0]
        assert claim.record.evidence.hosts
        assert "secret-host" not in encode_record(claim.record).decode()

    def test_a_host_on_which_the_config_fails_counts_as_worse(self) -> None:
        proofs = [*[make_proof(str(n), 1.5 + n / 100) for n in range(8)], make_proof("x", None, verdict=FAILED)]
        hosts = pool_proofs(proofs)
        assert hosts
        assert (hosts.verdict, hosts.n_failed, hosts.n_hosts) == ("faster_on_average", 1, 8)

    def test_one_host_is_not_several(self) -> None:
        assert pool_proofs([make_proof("a")]) is None
        assert pool_proofs([make_proof("a"), make_proof("b", None)]) is None

    @pytest.mark.parametrize(
        "speedup",
        [
            SharedSpeedup(estimate=1e9, low=1.0, high=1e9, confidence=0.95, n_launches=6),
            SharedSpeedup(estimate=1.0, low=0.0, high=2.0, confidence=0.95, n_launches=6),
            SharedSpeedup(estimate=1.0, low=1.5, high=2.0, confidence=0.95, n_launches=6),
            SharedSpeedup(estimate=1.0, low=0.9, high=2.0, confidence=0.95, n_launches=1),
            SharedSpeedup(estimate=1.0, low=0.9, high=2.0, confidence=1e-300, n_launches=6),
        ],
    )
    def test_absurd_speedups_are_left_out(self, speedup: SharedSpeedup) -> None:
        hosts = pool_proofs([make_proof("a"), make_proof("b"), make_proof("c", speedup=speedup)])
        assert hosts and hosts.n_hosts == 2


class TestHostileStorage:
    """What other hosts write is checked."""

    def write_result(self, location: Location, content: bytes, **identity: str) -> None:
        study = SharedStudy(location, {KIND: "x", **identity})
        result = SharedResult(
            node="a",
            worker="w",
            number=0,
            verdict="faster",
            config=ONE_THREAD,
            digest="ab" * 32,
            record=msgspec.Raw(content),
        )
        study.write(f"{RESULT}w", result)
        study._study.set_user_attr(f"{PROOF}x", '{"node": "a", "extra": 1}')
        study._study.set_user_attr(f"{PROOF}y", 3)

    @pytest.mark.parametrize("content", [b"null", b"[]", b'{"schema": 99}', b'{"records": []}', b"1e999"])
    def test_what_is_not_a_record_is_left_out(self, content: bytes, location: Location, record: Record) -> None:
        self.write_result(location, content)
        prove(location, record, make_proof("a"))
        claims, unread = read_claims(location)
        assert len(claims) == len(unread) == 1
        assert unread[0].reason in " ".join(render(show_unread, unread).split())
        assert len(read_shared_records(location)) == 1

    def test_settings_that_records_must_not_have(self, location: Location, record: Record) -> None:
        config = Config(environment={"LD_PRELOAD": "/tmp/x.so"})
        self.write_result(location, encode_record(msgspec.structs.replace(record, config=config)))
        claims, unread = read_claims(location)
        assert claims == []
        assert "LD_PRELOAD" in unread[0].reason
        with pytest.raises(RecordError, match="LD_PRELOAD"):
            read_shared_records(location)

    def test_names_are_shown_safely(self, location: Location, record: Record) -> None:
        prove(location, record, *[make_proof(f"{BAD_NAME}{n}", worker=f"w{n}") for n in range(3)])
        SharedStudy(location, {"model_name": BAD_NAME, "host_name": BAD_NAME}).announce(
            NodeState(node=BAD_NAME, worker="w", unfit=BAD_NAME)
        )
        text = render(show_status, location.title, read_status(location))
        assert "\x1b" not in text
        assert "\n::error" not in text

    def test_a_study_under_a_name_that_is_not_its_own(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a"))
        study = SharedStudy(location, {"model_name": "m"})
        study._study.set_user_attr("identity", '{"model_name": "other"}')
        assert len(read_status(location)) == 1
        assert len(read_status(location)) == 1  # none was created


class TestSharing:
    def verification(self, record: Record, estimate: float | None, failure: Failure | None = None) -> Verification:
        here = None
        if estimate is not None:
            here = Speedup(
                estimate=estimate, low=estimate * 0.97, high=estimate * 1.03, confidence=0.95, n_pairs=60, n_launches=6
            )
        comparison = BenchResult(
            objective="p50",
            rows=(
                Row(name="default", config=Config()),
                Row(name="tuned", config=record.config, speedup=here, failure=failure),
            ),
            calls_needed=10,
            noise=record.evidence.noise,
            workload=record.workload,
            model=record.model,
            host=record.host,
            runtime=record.runtime,
        )
        return Verification(answer="holds", reason="", recorded=record.gain, here=here, comparison=comparison)

    def share(
        self,
        location: Location,
        record: Record,
        node: str,
        estimate: float | None,
        monkeypatch: pytest.MonkeyPatch,
        failure: Failure | None = None,
    ) -> SharedVerification:
        monkeypatch.setenv("ORTUNE_NODE", node)
        claim = open_claim(location, record)
        return share_verification(claim, record, self.verification(record, estimate, failure), NOW)

    def test_the_gain_over_all_hosts(self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
        first = self.share(location, record, "node-0", 1.5, monkeypatch)
        assert first.hosts is None
        assert "No other host" in render(show_verification, first)
        for n in range(1, 8):
            found = self.share(location, record, f"node-{n}", 1.5 + n / 100, monkeypatch)
        assert found.hosts and found.record
        assert found.hosts.verdict == "faster"
        assert found.record.evidence.hosts == found.hosts
        text = render(show_verification, found)
        assert "Faster on average over 8 hosts, and not proven to be slower on any of them" in text
        assert "99.5%" in text
        assert "node-0, as the worst of 8" in text

    def test_a_loss_on_one_host(self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
        for n in range(11):
            self.share(location, record, f"node-{n}", 1.5 + n / 100, monkeypatch)
        found = self.share(location, record, "slow-node", 0.9, monkeypatch)
        text = render(show_verification, found)
        assert "Faster on average, slower on 1 of 12 hosts" in text
        assert "slow-node" in text
        assert found.record
        assert "slow-node" not in encode_record(found.record).decode()

    def test_a_config_that_fails_here(
        self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failure = Failure(kind="exception", stage="load", message="cannot load")
        self.share(location, record, "a", None, monkeypatch, failure)
        (claim,) = read_claims(location)[0]
        assert [proof.verdict for proof in claim.proofs] == [FAILED]

    def test_a_lost_connection_does_not_lose_the_result(
        self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lose(*_: object) -> None:
            raise StorageError("fleet.journal: the connection was lost.")

        claim = open_claim(location, record)
        monkeypatch.setattr("ortune.fleet.verify.PAUSES_S", (0.0, 0.0))
        monkeypatch.setattr(SharedStudy, "write", lose)
        verification = msgspec.structs.replace(self.verification(record, 1.5), record=record)
        found = share_verification(claim, record, verification, NOW)
        assert found.record == record
        assert found.here == verification.here
        text = " ".join(render(show_verification, found, "tuned.json", is_added=True).split())
        assert "the connection was lost" in text
        assert "added to tuned.json" in text

    def test_a_connection_that_comes_back(
        self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempts = []
        real = SharedStudy.write

        def lose_once(study: SharedStudy, name: str, value: msgspec.Struct) -> None:
            attempts.append(name)
            if len(attempts) == 1:
                raise StorageError("lost")
            real(study, name, value)

        claim = open_claim(location, record)
        monkeypatch.setattr("ortune.fleet.verify.PAUSES_S", (0.0,))
        monkeypatch.setattr(SharedStudy, "write", lose_once)
        assert share_verification(claim, record, self.verification(record, 1.5), NOW).fault == ""
        assert len(attempts) == 2
        assert attempts[0] == attempts[1]


class TestStatus:
    def test_searches_and_records(self, location: Location, record: Record) -> None:
        prove(location, record, *[make_proof(f"n{n}", 1.3 + n / 50, contended=n == 1) for n in range(3)])
        study = SharedStudy(location, {"model_name": "m.onnx", "host_name": "Zen 9"})
        study.announce(NodeState(node="n7", worker="w", stage="racing", n_measured=4, sigma=0.02, unfit="too noisy"))
        for number, (config, ratio) in enumerate([(Config(), -0.9), (ONE_THREAD, -0.5)]):
            measurement = Measurement(
                id=f"w:{number}",
                node="n7",
                worker="w",
                config=config,
                launch=0,
                rounds=(SharedRound(log_ratios=(ratio,)),),
            )
            study.add(measurement)
        proven, searched = sorted(read_status(location), key=lambda status: status.host == "Zen 9")
        assert proven.hosts and proven.hosts.n_contended == 1
        assert [node.node for node in proven.nodes] == ["n0", "n1", "n2"]
        assert searched.best and searched.best.config == ONE_THREAD
        assert searched.nodes[0].noise == pytest.approx(0.02, rel=0.02)
        text = render(show_status, location.title, [proven, searched])
        for part in ("n1", hash_node("n1"), "racing", "too noisy", "1.65x, not proven", "2.0%", "Zen 9", "(busy)"):
            assert part in text

    def test_nothing(self, location: Location) -> None:
        assert "nothing" in render(show_status, location.title, read_status(location))


class TestExpire:
    def expire(self, location: Location, **options: Any) -> list[tuple[str, str]]:
        claims, _ = read_claims(location)
        values = {"here": HERE, "models": {}, "older_than_s": None, "now": NOW, **options}
        found = find_expired(claims, **values)
        assert all(expired.study for expired in found)
        return [(expired.node, "; ".join(expired.reasons)) for expired in found]

    def test_nothing_has_expired(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a"), make_proof("b", kernel=""))
        assert self.expire(location, older_than_s=30 * 86400, models={"/other.onnx": "sha256:0"}) == []

    def test_this_host_changed(self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ORTUNE_NODE", "a")
        prove(location, record, make_proof("a"), make_proof("b"))
        other = msgspec.structs.replace(CLASS, id="2", instructions="avx2 vnni", cpu_quota=1.5)
        changed = msgspec.structs.replace(HERE, kernel="6.8", host_class=other)
        ((node, reason),) = self.expire(location, here=changed)
        assert node == "a"
        assert reason == ("instruction sets of the host: fewer, now vnni; kernel was 6.1, and is 6.8")

    def test_containers_of_several_classes(
        self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A host verifies records for different limits, and this command runs without these limits."""
        monkeypatch.setenv("ORTUNE_NODE", "here")
        for number, quota in enumerate((4.0, 8.0)):
            limited = msgspec.structs.replace(CLASS, id=str(number), cpu_quota=quota, n_usable=int(quota))
            proofs = (
                make_proof(node, host_class=limited, started=f"2026-06-29T0{number}:00:00+00:00")
                for node in ("here", "b")
            )
            prove(location, msgspec.structs.replace(record, host=limited), *proofs)
        assert len(read_claims(location)[0]) == 2
        assert self.expire(location) == []

    def test_a_driver_that_reports_the_memory(
        self, location: Location, record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory channels are known only while a driver is loaded. The host is the same."""
        monkeypatch.setenv("ORTUNE_NODE", "a")
        prove(location, record, make_proof("a"))
        loaded = msgspec.structs.replace(CLASS, id="2", n_memory_channels=8)
        assert self.expire(location, here=msgspec.structs.replace(HERE, host_class=loaded)) == []

    def test_another_host_changed(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a"))
        other = msgspec.structs.replace(record, config=Config(session_options={"intra_op_num_threads": 2}))
        prove(location, other, make_proof("a", started="2026-06-29T18:00:00+00:00", onnxruntime="1.21.0"))
        assert self.expire(location) == [("a", "onnxruntime was 1.20.0, and is 1.21.0")]

    @pytest.mark.parametrize(
        ("started", "reason"),
        [
            ("2026-05-01T00:00:00+00:00", "it is 60 days old"),
            ("2027-01-01T00:00:00+00:00", "its time, 2027-01-01T00:00:00+00:00, is in the future"),
            ("soon", "its time is unknown"),
        ],
    )
    def test_ages(self, started: str, reason: str, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a", started=started))
        assert self.expire(location, older_than_s=30 * 86400) == [("a", reason)]
        assert self.expire(location) == []

    def test_a_record_that_nobody_verified(self, location: Location, record: Record) -> None:
        prove(location, record)
        ((node, reason),) = self.expire(location, older_than_s=1.0, now=NOW + datetime.timedelta(days=9999))
        assert node == ""
        assert "no host has verified it" in reason

    def test_the_model_changed(self, location: Location, record: Record) -> None:
        prove(location, record, make_proof("a"))
        ((node, reason),) = self.expire(location, models={str(TINY_CNN): "sha256:1"})
        assert node == ""
        assert reason == f"the model was {record.model.digest}, and is sha256:1"

    def prove_models(self, location: Location, record: Record, *models: tuple[str, str]) -> None:
        for path, digest in models:
            model = msgspec.structs.replace(record.model, path=path, digest=digest)
            prove(location, msgspec.structs.replace(record, model=model), make_proof("a"))

    def test_another_model_has_the_same_file_name(self, location: Location, record: Record) -> None:
        self.prove_models(location, record, ("bert/model.onnx", "sha256:1"), ("resnet/model.onnx", "sha256:2"))
        bert, resnet = {"/m/bert/model.onnx": "sha256:1"}, {"/m/resnet/model.onnx": "sha256:2"}
        for models in (bert, resnet, bert | resnet, resnet | bert, {"/m/model.onnx": "sha256:3"}):
            assert self.expire(location, models=models) == []
        changed = bert | {"/m/resnet/model.onnx": "sha256:3"}
        assert self.expire(location, models=changed) == [("", "the model was sha256:2, and is sha256:3")]

    @pytest.mark.parametrize(
        ("path", "current", "has_expired"),
        [
            ("model.onnx", "/m/bert/model.onnx", True),
            ("./model.onnx", "/m/bert/model.onnx", True),
            ("bert/model.onnx", "/m/bert/model.onnx", True),
            ("C:\\m\\bert\\model.onnx", "/srv/bert/model.onnx", True),
            ("/home/ann/bert/model.onnx", "/srv/bert/model.onnx", True),
            ("bert/model.onnx", "/m/resnet/model.onnx", False),
            ("model.onnx", "/m/bert/other.onnx", False),
        ],
    )
    def test_paths(self, path: str, current: str, has_expired: bool, location: Location, record: Record) -> None:
        self.prove_models(location, record, (path, "sha256:1"))
        assert bool(self.expire(location, models={"/other.onnx": "sha256:2", current: "sha256:3"})) == has_expired

    def test_a_file_name_of_several_models_is_not_enough_to_remove_a_record(
        self, location: Location, record: Record
    ) -> None:
        self.prove_models(location, record, ("model.onnx", "sha256:1"), ("model.onnx", "sha256:2"))
        claims, _ = read_claims(location)
        (expired,) = find_expired(claims, HERE, {"/m/model.onnx": "sha256:1"}, None, NOW)
        shown = render(show_expired, [expired], n_records=2, removed=True)
        assert "not removed, because several models in the storage are named model.onnx" in " ".join(shown.split())
        assert "0 entries" in shown
        remove_expired(claims, [expired])
        assert len(read_claims(location)[0]) == 2

    def test_what_expired_is_removed(self, location: Location, record: Record) -> None:
        old = make_proof("a", started="2026-05-01T00:00:00+00:00")
        older = msgspec.structs.replace(old, worker="w2", started="2026-04-01T00:00:00+00:00")
        prove(location, record, old, older, make_proof("b"))
        claims, _ = read_claims(location)
        expired = find_expired(claims, HERE, {}, 30 * 86400, NOW)
        assert "60 days" in render(show_expired, expired, n_records=1, removed=True)
        remove_expired(claims, expired)
        (claim,) = read_claims(location)[0]
        assert [proof.node for proof in claim.proofs] == ["b"]
        remove_expired([claim], find_expired([claim], HERE, {str(TINY_CNN): "sha256:1"}, None, NOW))
        assert read_claims(location) == ([], [])


class TestGate:
    def test_the_base_is_in_the_storage(self, location: Location, record: Record, tmp_path: Path) -> None:
        prove(location, record, make_proof("a"), make_proof("b"))
        side = read_side(f"{TINY_CNN}@storage", storage=str(tmp_path / "fleet.journal"))
        assert side.record and side.record.config == ONE_THREAD
        assert side.record.evidence.hosts
        assert "fleet.journal" in side.source

    @pytest.mark.parametrize(("head", "code", "decision"), [("default", 1, "fail"), ("storage", 0, "pass")])
    def test_the_base_is_measured(
        self, head: str, code: int, decision: str, location: Location, record: Record, tmp_path: Path
    ) -> None:
        """On the simulated host, a single thread is faster than the default."""
        prove(location, record, make_proof("a"), make_proof("b"))
        sides = f"{TINY_CNN}@storage", f"{TINY_CNN}@{head}"
        done = run_ortune("gate", *sides, "--storage", "fleet.journal", "--json", cwd=tmp_path, simulate=True)
        assert done.returncode == code, done.stderr
        (result,) = json.loads(done.stdout)
        assert result["decision"] == decision
        assert result["base"]["config"]["session_options"] == ONE_THREAD.session_options
        assert result["base"]["record"].startswith("fleet.journal, ")
        assert result["launches"] >= 2

    def test_no_storage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("ORTUNE_STORAGE", raising=False)
        with pytest.raises(UsageError, match="No storage"):
            read_side(f"{TINY_CNN}@storage")

    def test_a_storage_without_records(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="no records"):
            read_side(f"{TINY_CNN}@storage", storage=str(tmp_path / "fleet.journal"))


@pytest.mark.usefixtures("no_workers_left")
class TestCommand:
    def test_two_hosts(self, location: Location, record: Record, tmp_path: Path) -> None:
        """Two nodes verify a record with real processes; the bundle and the second record say so."""
        limits = msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, speedup=None))
        path = write(limits, tmp_path / "tuned.json")
        options = ("--verify", "--update", "--budget", "6s", "--storage", "fleet.journal")
        for node in ("node-a", "node-b"):
            done = run_ortune(
                "apply", path, TINY_CNN, *options, cwd=tmp_path, simulate=True, environment={"ORTUNE_NODE": node}
            )
            assert done.returncode in {0, 1, 3}, done.stdout + done.stderr
        assert "node-a" in done.stdout
        (updated,) = read_records(path)
        assert updated.evidence.hosts and updated.evidence.hosts.n_hosts == 2
        assert len(updated.evidence.occasions) == 2
        assert "node-a" not in path.read_text()

        done = run_ortune("fleet", "status", "--storage", "fleet.journal", "--json", cwd=tmp_path)
        (status,) = json.loads(done.stdout)
        assert [entry["node"] for entry in status["nodes"]] == ["node-a", "node-b"]
        done = run_ortune("fleet", "collect", "--storage", "fleet.journal", "-o", "bundle.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        (collected,) = read_records(tmp_path / "bundle.json")
        assert collected.evidence.hosts == updated.evidence.hosts
        done = run_ortune(
            "fleet", "expire", TINY_CNN, "--storage", "fleet.journal", "--older-than", "30d", cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ("fleet", "status"),
            ("fleet", "collect", "-o", "bundle.json"),
            ("fleet", "expire"),
            ("apply", "tuned.json", "--verify"),
            ("gate", f"{TINY_CNN}@storage"),
        ],
    )
    def test_passwords_are_shown_nowhere(self, arguments: tuple[str, ...], record: Record, tmp_path: Path) -> None:
        write(record, tmp_path / "tuned.json")
        environment = {"ORTUNE_STORAGE": "postgresql://ann:geheim%21@127.0.0.1:1/tuning"}
        done = run_ortune(*arguments, cwd=tmp_path, environment=environment)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "ann@127.0.0.1" in done.stderr
        assert "geheim" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr

    def test_unknown_commands_of_the_group(self, tmp_path: Path) -> None:
        done = run_ortune("fleet", "stat", cwd=tmp_path)
        assert done.returncode == 2
        assert "fleet status" in done.stderr
        assert "collect" in run_ortune("fleet", "--help", cwd=tmp_path).stdout
