"""The results of a storage, with what each host showed when it repeated the comparison of a result.

A search that several hosts share writes its result and the proofs of its hosts into its study. A record of another
search gets a study of its own as soon as a host verifies it. What is read was written by other hosts: it is untrusted.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.fleet.claim import digest_claim
from ortune.measure.host_speedup import FEWEST_HOSTS, HostsEvidence, HostSpeedup
from ortune.measure.hosts import can_pool, pool_hosts
from ortune.record.files import decode_document, encode_record
from ortune.record.rounding import round_hosts
from ortune.record.schema import WITHOUT_PROOF, Record
from ortune.storage import (
    FAILED,
    PROOF,
    RESULT,
    Location,
    Proof,
    SharedResult,
    hash_node,
    name_node,
    name_worker,
)
from ortune.storage.identity import StudyInfo, name_study

if TYPE_CHECKING:
    from ortune.storage import SharedStudy

KIND = "kind"
PROOFS_OF_A_RECORD = "proofs of a record"
"""Entry of the identity of a study that holds no search."""


class SharedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A result in a storage, and the proofs of it.

    Attributes:
        study: The study that holds it.
        digest: Identifies the result there.
        record: The record, with the evidence of the hosts.
        node: Name of the host that wrote it.
        proofs: The proofs that count, the latest of each host.
    """

    study: SharedStudy
    digest: str
    record: Record
    node: str
    proofs: tuple[Proof, ...]


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a storage that cannot be used.

    Attributes:
        study: Name of its study.
        reason: Why.
    """

    study: str
    reason: str


def read_claims(location: Location) -> tuple[list[SharedClaim], list[Unread]]:
    """Return all results of a storage with their proofs, and those that cannot be read.

    Raises:
        UsageError: A driver is not installed.
        StorageError: The storage does not answer.
    """
    claims: list[SharedClaim] = []
    unread: list[Unread] = []
    for study in open_studies(location):
        found = read_claim(study)
        if isinstance(found, SharedClaim):
            claims.append(found)
        elif found is not None:
            unread.append(found)
    return claims, unread


def read_claim(study: SharedStudy) -> SharedClaim | Unread | None:
    """Return the result of a study with its proofs, or why it cannot be used; None if there is none yet.

    Of several, those without proof come last: later searches did not end with them.

    Raises:
        StorageError: The storage does not answer.
    """
    results = study.read_all(RESULT, SharedResult).values()
    result = min(
        results,
        key=lambda result: (result.verdict in WITHOUT_PROOF, result.number, result.worker, result.digest),
        default=None,
    )
    if result is None:
        return None
    try:
        return _read_claim(study, result)
    except RecordError as error:
        return Unread(study=study.name, reason=error.message)


def open_studies(location: Location) -> Iterable[SharedStudy]:
    """Yield the studies of a storage whose name is that of their identity. Nothing is written."""
    from ortune.storage import SharedStudy, list_studies, open_storage

    storage = open_storage(location)
    for info in list_studies(location, storage):
        if is_genuine(info):
            yield SharedStudy(location, info.identity, storage=storage)


def is_genuine(study: StudyInfo) -> bool:
    """Return whether the name of a study is that of its identity. There may be no study of another name."""
    return name_study(study.identity) == study.name


def _read_claim(study: SharedStudy, result: SharedResult) -> SharedClaim:
    """Return a result with its proofs.

    Raises:
        RecordError: It holds no record that can be used.
    """
    document = decode_document(bytes(result.record), f"{study.location.title}, {study.name}")
    if document.is_bundle or len(document.records) != 1:
        raise RecordError(f"{study.location.title}, {study.name} holds several records.")
    proofs = read_proofs(study, result.digest)
    (record,) = document.records
    # A search that recommends its baseline was proven with a candidate that it rejected.
    if result.config.key == record.config.key:
        record = with_hosts(record, pool_proofs(proofs))
    return SharedClaim(study=study, digest=result.digest, record=record, node=result.node, proofs=proofs)


def read_proofs(study: SharedStudy, digest: str) -> tuple[Proof, ...]:
    """Return the proofs of a result that count: the latest of each host, by the names of the hosts."""
    latest: dict[str, Proof] = {}
    for proof in study.read_all(PROOF, Proof).values():
        if proof.digest != digest or proof.withdrawn:
            continue
        known = latest.get(proof.node)
        if known is None or (read_time(proof), proof.worker) > (read_time(known), known.worker):
            latest[proof.node] = proof
    return tuple(latest[node] for node in sorted(latest))


def read_time(proof: Proof) -> datetime.datetime:
    """Return when a proof was made by the clock of its host; the first of all times if that is not known."""
    try:
        return datetime.datetime.fromisoformat(proof.started).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return datetime.datetime.min.replace(tzinfo=datetime.UTC)


def pool_proofs(proofs: Sequence[Proof]) -> HostsEvidence | None:
    """Return what several hosts say together; None if fewer than two have a speedup."""
    speedups = [found for proof in proofs if (found := to_host_speedup(proof)) is not None]
    if len(speedups) < FEWEST_HOSTS:
        return None
    return round_hosts(pool_hosts(speedups, n_failed=sum(proof.verdict == FAILED for proof in proofs)))


def to_host_speedup(proof: Proof) -> HostSpeedup | None:
    """Return the speedup of a proof without the name of the host; None if there is none that can be pooled."""
    speedup = proof.speedup
    if speedup is None or proof.verdict == FAILED:
        return None
    found = HostSpeedup(
        host=hash_node(proof.node),
        estimate=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        confidence=speedup.confidence,
        n_launches=speedup.n_launches,
        started=proof.started,
        contended=proof.contended,
    )
    return found if can_pool(found) else None


def with_hosts(record: Record, hosts: HostsEvidence | None) -> Record:
    """Return a record with the evidence of several hosts. None leaves the record as it is."""
    if hosts is None:
        return record
    return msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, hosts=hosts))


def name_hosts(proofs: Iterable[Proof]) -> Mapping[str, str]:
    """Return the names of hosts by what stands for them in records."""
    return {hash_node(proof.node): proof.node for proof in proofs}


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a record's proofs in a storage.

    Attributes:
        study: The study.
        digest: Identifies the record there.
    """

    study: SharedStudy
    digest: str

    def add(self, proof: Proof) -> None:
        """Write a proof.

        Raises:
            StorageError: The storage does not answer.
        """
        self.study.write(f"{PROOF}{proof.worker}", proof)

    def read(self) -> tuple[Proof, ...]:
        """Return the proofs that count.

        Raises:
            StorageError: The storage does not answer.
        """
        return read_proofs(self.study, self.digest)


def open_claim(location: Location, record: Record) -> OpenClaim:
    """Return the place of a record's proofs, which is created if the storage has none.

    Raises:
        UsageError: A driver is not installed, or the record is too large.
        StorageError: The storage does not answer.
    """
    from ortune.storage import SharedStudy

    digest = digest_claim(record)
    claims, _ = read_claims(location)
    for claim in claims:
        if digest_claim(claim.record) == digest:
            return OpenClaim(study=claim.study, digest=claim.digest)
    study = SharedStudy(
        location,
        {
            KIND: PROOFS_OF_A_RECORD,
            "record": digest,
            "model_name": record.model.path.replace("\\", "/").rpartition("/")[2],
            "model": record.model.digest,
            "host": record.host.id,
            "host_name": record.host.name,
            "load": str(record.workload.load),
        },
    )
    worker = name_worker()
    result = SharedResult(
        node=name_node(),
        worker=worker,
        number=0,
        verdict=record.evidence.verdict,
        config=record.config,
        digest=digest,
        record=msgspec.Raw(msgspec.json.format(encode_record(strip_record(record)), indent=-1)),
    )
    try:
        study.write(f"{RESULT}{worker}", result)
    except ValueError:
        raise UsageError(f"The record of {record.model.path} is too large for a storage.") from None
    return OpenClaim(study=study, digest=digest)


def strip_record(record: Record) -> Record:
    """Return a record without what belongs to one host: its trials file and later evidence."""
    return msgspec.structs.replace(
        record,
        evidence=msgspec.structs.replace(record.evidence, occasions=(), hosts=None),
        search=msgspec.structs.replace(record.search, trials=None),
    )
