"""Shares a verification with other hosts, and computes the gain over all of them."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from datetime import datetime

from ortune.apply.verify import Verification
from ortune.fleet.proofs import OpenClaim, name_hosts, pool_proofs, with_hosts
from ortune.measure.host_speedup import HostsEvidence
from ortune.record.schema import Record
from ortune.storage import FAILED, Proof, StorageError, hash_node, name_node, name_worker
from ortune.storage.schema import SharedSpeedup

PAUSES_S = (1.0, 4.0)
"""Pauses before a lost connection is tried again."""


class SharedVerification(Verification, frozen=True, kw_only=True):
    """A verification that was shared with other hosts.

    Attributes:
        node: Name of this host.
        hosts: What all hosts say together; None for fewer than two.
        nodes: Names of all hosts, by what stands for them in records.
        fault: Why the verification is not in the storage; empty if it is.
    """

    node: str
    hosts: HostsEvidence | None = None
    nodes: Mapping[str, str] = {}
    fault: str = ""


def make_proof(verification: Verification, started: datetime, digest: str) -> Proof | None:
    """Return what a verification shows, for other hosts.

    Args:
        verification: Its result on this host.
        started: When it began.
        digest: Identifies the record in the storage.

    Returns:
        The proof; None if nothing was measured, or not on the recorded class of host with the recorded software and
        background load.
    """
    comparison = verification.comparison
    if comparison is None or verification.mismatches:
        return None
    return Proof(
        node=name_node(),
        worker=name_worker(),
        digest=digest,
        speedup=SharedSpeedup.of(verification.here) if verification.here else None,
        verdict=FAILED if comparison.rows[1].failure else verification.answer,
        contended=comparison.noise.regime == "contended",
        started=started.astimezone().isoformat(timespec="seconds"),
        host_class=comparison.host,
        kernel=platform.release(),
        onnxruntime=comparison.runtime.onnxruntime,
    )


def share_verification(
    claim: OpenClaim, record: Record, verification: Verification, started: datetime
) -> SharedVerification:
    """Write a verification to a storage, and add the gain over all hosts to it.

    A lost connection is tried again. If it stays lost, the verification is returned as it is, with the fault.

    Args:
        claim: The place of the record's proofs.
        record: The record.
        verification: Its result on this host.
        started: When it began.
    """
    proof = make_proof(verification, started, claim.digest)
    hosts, nodes, fault = None, dict[str, str](), ""
    for pause_s in (*PAUSES_S, None):
        try:
            if proof is not None:
                claim.add(proof)
            proofs = claim.read()
            hosts, nodes, fault = pool_proofs(proofs), dict(name_hosts(proofs)), ""
            break
        except StorageError as error:
            fault = error.message
            if pause_s is not None:
                time.sleep(pause_s)
    added = verification.record
    if proof is not None and hosts is not None:
        added = with_hosts(added or record, hosts)
    own = {name: getattr(verification, name) for name in Verification.__struct_fields__}
    node = name_node()
    return SharedVerification(
        **{**own, "record": added}, node=node, hosts=hosts, nodes={**nodes, hash_node(node): node}, fault=fault
    )
