"""What a storage holds: searches and verified records, the hosts that take part, and the best configs so far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from ortune.fleet.proofs import KIND, SharedClaim, Unread, open_studies, pool_proofs, read_claim
from ortune.fleet.shared_metrics import METRICS_OF_CANARIES
from ortune.knobs.config import DEFAULT, Config
from ortune.measure.host_speedup import HostsEvidence
from ortune.storage import (
    Location,
    Measurement,
    NodeState,
    Proof,
    SharedSpeedup,
    SharedStudy,
    UnreadableError,
    hash_node,
)

LONGEST_SHOWN_IDENTITY = 1024
"""Number of characters of a text of a study's identity, which another host may have written."""


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The best config of a search so far. Nothing about it is proven.

    Attributes:
        config: Its settings.
        speedup: Its median speedup over the baseline, in the first objective.
        n_rounds: Rounds that it rests on.
    """

    config: Config
    speedup: float
    n_rounds: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a study.

    Attributes:
        node: Its name.
        host: What stands for it in records.
        stage: What it is doing, or did last; empty if it only verified.
        n_measured: Candidates that it measured.
        noise: Standard deviation of the ratios between its rounds, as a share; None if unknown.
        unfit: Why its measurements are not used; empty if they are.
        speedup: The speedup of the result on it; None if it was not verified there.
        verdict: What the verification there showed; empty without one.
        contended: Whether other processes used its CPUs during the verification.
        started: When it was verified there.
    """

    node: str
    host: str
    stage: str = ""
    n_measured: int = 0
    noise: float | None = None
    unfit: str = ""
    speedup: SharedSpeedup | None = None
    verdict: str = ""
    contended: bool = False
    started: str = ""


class StudyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A study of a storage.

    Attributes:
        study: Its name.
        model: Name of the model.
        host: Class of the hosts.
        load: The load.
        n_measurements: Measurements of a search.
        nodes: The hosts.
        best: The best config so far, if the search has no result yet.
        config: The config of the result; None without one.
        verdict: That of the result; empty without one.
        hosts: What several hosts say about the result.
        unread: Why the result or the measurements cannot be used; empty if they can, or if there are none.
    """

    study: str
    model: str = ""
    host: str = ""
    load: str = ""
    n_measurements: int = 0
    nodes: tuple[NodeStatus, ...] = ()
    best: Leader | None = None
    config: Config | None = None
    verdict: str = ""
    hosts: HostsEvidence | None = None
    unread: str = ""


def read_status(location: Location) -> list[StudyStatus]:
    """Return the state of all studies of a storage, those of one class of hosts next to each other.

    Raises:
        UsageError: A driver is not installed.
        StorageError: The storage does not answer.
    """
    found = [
        _describe(study, read_claim(study))
        for study in open_studies(location)
        if study.identity.get(KIND) != METRICS_OF_CANARIES
    ]
    return sorted(found, key=lambda status: (status.host, status.model, status.load, status.study))


def _describe(study: SharedStudy, found: SharedClaim | Unread | None) -> StudyStatus:
    claim = found if isinstance(found, SharedClaim) else None
    unread = found.reason if isinstance(found, Unread) else ""
    try:
        measurements = study.receive()
    except UnreadableError:
        measurements, unread = [], unread or "it holds a trial that Optuna cannot read"
    states = study.read_nodes()
    proofs = claim.proofs if claim else ()
    record = claim.record if claim else None
    identity = {name: text[:LONGEST_SHOWN_IDENTITY] for name, text in study.identity.items()}
    return StudyStatus(
        study=study.name,
        model=identity.get("model_name", ""),
        host=record.host.name if record else identity.get("host_name") or next((state.host for state in states), ""),
        load=str(record.workload.load) if record else identity.get("load", ""),
        n_measurements=len(measurements),
        nodes=describe_nodes(states, proofs),
        best=None if claim else find_leader(measurements),
        config=record.config if record else None,
        verdict=record.evidence.verdict if record else "",
        hosts=pool_proofs(proofs),
        unread=unread,
    )


def describe_nodes(states: Sequence[NodeState], proofs: Iterable[Proof]) -> tuple[NodeStatus, ...]:
    """Return the hosts of a study. Of several workers on one host, the last one counts."""
    found: dict[str, NodeStatus] = {}
    for state in states:
        known = found.get(state.node)
        found[state.node] = NodeStatus(
            node=state.node,
            host=hash_node(state.node),
            stage=state.stage,
            n_measured=state.n_measured + (known.n_measured if known else 0),
            noise=None if state.sigma is None else math.expm1(state.sigma),
            unfit=state.unfit,
        )
    for proof in proofs:
        known = found.get(proof.node) or NodeStatus(node=proof.node, host=hash_node(proof.node))
        found[proof.node] = msgspec.structs.replace(
            known,
            speedup=proof.speedup,
            verdict=proof.verdict,
            contended=proof.contended,
            started=proof.started,
        )
    return tuple(found[name] for name in sorted(found))


def find_leader(measurements: Iterable[Measurement]) -> Leader | None:
    """Return the config with the largest median speedup; None if none was measured."""
    ratios: dict[str, list[float]] = {}
    configs: dict[str, Config] = {}
    for measurement in measurements:
        configs[measurement.config.key] = measurement.config
        ratios.setdefault(measurement.config.key, []).extend(
            -measured_round.log_ratios[0] for measured_round in measurement.rounds
        )
    medians = {key: statistics.median(found) for key, found in ratios.items() if found and configs[key] != DEFAULT}
    if not medians:
        return None
    best = max(medians, key=lambda key: (medians[key], key))
    return Leader(config=configs[best], speedup=math.exp(medians[best]), n_rounds=len(ratios[best]))
