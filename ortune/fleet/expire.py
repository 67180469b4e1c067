"""Finds what has expired in a storage: old verifications, those on hosts that changed, and records of old models."""

from __future__ import annotations

import datetime
import itertools
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ortune.fleet.proofs import SharedClaim, read_time
from ortune.host import HostClass, read_host
from ortune.host.host_class import OF_LIMITS, PROPERTY_NAMES, format_difference
from ortune.model import compute_digest, read_model
from ortune.storage import PROOF, Proof, name_node
from ortune.worker.installed import find_installed_version

DAY_S = 86400.0

LARGEST_SKEW_S = 3600.0
"""How far the clock of another host may be ahead."""


class VerificationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification depends on, besides the record. Empty texts are unknown.

    Attributes:
        host_class: The class of the host; None if unknown.
        kernel: Release of the operating system.
        onnxruntime: Version of onnxruntime.
    """

    host_class: HostClass | None = None
    kernel: str = ""
    onnxruntime: str = ""


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """A record, or a verification of it, that has expired.

    Attributes:
        study: Name of the study that holds it.
        model: Path of the model, as the record has it.
        node: Name of the host; empty if the record itself has expired.
        reasons: Why.
        kept: Why it is not removed; empty if it can be.
    """

    study: str
    model: str
    node: str = ""
    reasons: tuple[str, ...]
    kept: str = ""


def read_facts() -> VerificationFacts:
    """Return what verifications on this host depend on now."""
    host = HostClass.of(read_host(memory=False))
    return VerificationFacts(host_class=host, kernel=platform.release(), onnxruntime=find_installed_version() or "")


def digest_models(paths: Iterable[str]) -> dict[str, str]:
    """Return the digests of models by their absolute paths.

    Raises:
        ModelError: A model cannot be read.
    """
    return {str(Path(path).absolute()): compute_digest(read_model(path).files) for path in paths}


def find_expired(
    claims: Sequence[SharedClaim],
    here: VerificationFacts,
    models: Mapping[str, str],
    older_than_s: float | None,
    now: datetime.datetime,
) -> list[Expired]:
    """Return what has expired.

    What is known of another host is what it wrote with its latest verification, of any record. Its CPUs and quota then
    may be those of another container: they are not compared.

    Args:
        claims: The records of the storage.
        here: What verifications on this host depend on now.
        models: Digests of the models in use, by their paths.
        older_than_s: Age from which a verification has expired; None for no limit.
        now: The time.
    """
    digests: defaultdict[str, set[str]] = defaultdict(set)
    for claim in claims:
        digests[split_path(claim.record.model.path)[-1]].add(claim.record.model.digest)
    latest = find_latest_facts(claims) | {name_node(): here}
    found: list[Expired] = []
    for claim in claims:
        path = claim.record.model.path
        of_age, of_model = explain_record_age(claim, older_than_s, now), explain_model(claim, models)
        if of_age or of_model:
            name, *folders = split_path(path)[::-1]
            unsure = not of_age and not folders and len(digests[name]) > 1
            kept = f"several models in the storage are named {name}" if unsure else ""
            found.append(Expired(study=claim.study.name, model=path, reasons=(*of_model, *of_age), kept=kept))
        for proof in claim.proofs:
            if reasons := [*compare_facts(proof, latest[proof.node]), *explain_age(proof, older_than_s, now)]:
                found.append(Expired(study=claim.study.name, model=path, node=proof.node, reasons=tuple(reasons)))
    return found


def find_latest_facts(claims: Sequence[SharedClaim]) -> dict[str, VerificationFacts]:
    """Return what is known of each host from its latest verification."""
    latest: dict[str, Proof] = {}
    for claim in claims:
        for proof in claim.proofs:
            if proof.node not in latest or read_time(proof) > read_time(latest[proof.node]):
                latest[proof.node] = proof
    return {
        node: VerificationFacts(host_class=proof.host_class, kernel=proof.kernel, onnxruntime=proof.onnxruntime)
        for node, proof in latest.items()
    }


def compare_facts(proof: Proof, now: VerificationFacts) -> list[str]:
    """Return what changed on a host since it verified a record."""
    reasons = []
    if proof.host_class and now.host_class:
        for name, (then, current) in proof.host_class.differences(now.host_class).items():
            if name in OF_LIMITS:
                continue
            before, after = format_difference(name, then, current)
            reasons.append(f"{PROPERTY_NAMES[name]} of the host: {before}, now {after}")
    for name, then, current in (
        ("kernel", proof.kernel, now.kernel),
        ("onnxruntime", proof.onnxruntime, now.onnxruntime),
    ):
        if then and current and then != current:
            reasons.append(f"{name} was {then}, and is {current}")
    return reasons


def explain_age(proof: Proof, older_than_s: float | None, now: datetime.datetime) -> list[str]:
    """Return why a verification is too old; empty if it is not."""
    if older_than_s is None:
        return []
    age_s = (now - read_time(proof)).total_seconds()
    if age_s < -LARGEST_SKEW_S:
        return [f"its time, {proof.started}, is in the future"]
    if read_time(proof).year == 1:
        return ["its time is unknown"]
    return [f"it is {age_s / DAY_S:.0f} days old"] if age_s > older_than_s else []


def explain_model(claim: SharedClaim, models: Mapping[str, str]) -> list[str]:
    """Return that a record is for an earlier version of a model in use; empty if it is not.

    It is if the folder and the name of the file are the same. Of a path without a folder, only the name is known.
    """
    model = claim.record.model
    if model.digest in models.values():
        return []
    recorded = split_path(model.path)
    n_common, path = max(((count_common_end(recorded, split_path(used)), used) for used in models), default=(0, ""))
    if n_common < min(len(recorded), 2):
        return []
    return [f"the model was {model.digest}, and is {models[path]}"]


def split_path(path: str) -> list[str]:
    """Return the parts of a path that are names. It may be of another system."""
    return [part for part in path.replace("\\", "/").split("/") if part not in {"", ".", ".."}] or [""]


def count_common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many of the last parts of two paths are the same."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def explain_record_age(claim: SharedClaim, older_than_s: float | None, now: datetime.datetime) -> list[str]:
    """Return that a record is old and no host has verified it; empty if that is not so."""
    if claim.proofs or older_than_s is None:
        return []
    started = datetime.datetime.fromisoformat(claim.record.search.started).astimezone(datetime.UTC)
    age_s = (now - started).total_seconds()
    if age_s <= older_than_s:
        return []
    return [f"its search is {age_s / DAY_S:.0f} days old, and no host has verified it"]


def remove_expired(claims: Sequence[SharedClaim], expired: Iterable[Expired]) -> None:
    """Withdraw what has expired and can be removed: verifications, and studies of records that have expired themselves.

    Raises:
        StorageError: The storage does not answer.
    """
    by_study = {claim.study.name: claim for claim in claims}
    deleted = set()
    for entry in sorted(expired, key=lambda entry: entry.node):
        claim = by_study[entry.study]
        if entry.kept or entry.study in deleted:
            continue
        if not entry.node:
            claim.study.delete()
            deleted.add(entry.study)
            continue
        for worker, proof in claim.study.read_all(PROOF, Proof).items():
            if proof.node == entry.node and proof.digest == claim.digest:
                claim.study.write(f"{PROOF}{worker}", msgspec.structs.replace(proof, withdrawn=True))
