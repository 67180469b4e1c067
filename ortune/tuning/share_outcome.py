"""Opens the exchange of a search with other hosts, and shares its outcome with them."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortune.host import HostClass
from ortune.limited import STANDARD_STREAM
from ortune.record.files import is_special
from ortune.storage import FAILED, Proof, SharedResult, SharedSpeedup, SharedStudy
from ortune.storage.node import name_node
from ortune.storage.outbox import SUFFIX
from ortune.storage.schema import FORMAT, MOST_TEXT_BYTES
from ortune.tuning.outcome import Outcome
from ortune.tuning.prepare import PreparedSearch
from ortune.tuning.shared_exchange import SharedExchange

OF_ONE_HOST = frozenset({"budget", "trials", "until", "seed", "worker", "ortune", "Python", "numpy", "optuna", "scipy"})
"""What hosts need not have in common: it does not change what a measurement means."""


def name_identity(prepared: PreparedSearch, identity: Mapping[str, str]) -> dict[str, str]:
    """Return what all hosts of a search have in common, as text by name.

    Args:
        prepared: The search.
        identity: What must be the same to go on with a search on this host.
    """
    host = HostClass.of(prepared.host)
    common = {name: text for name, text in identity.items() if name not in OF_ONE_HOST}
    names = {"model_name": Path(prepared.program.path).name, "host": host.id, "host_name": host.name}
    return {**common, **names, "format": str(FORMAT)}


def open_exchange(prepared: PreparedSearch, identity: Mapping[str, str]) -> SharedExchange:
    """Open the exchange of a search.

    Raises:
        UsageError: A driver is not installed, or another search with this record runs.
        StorageError: The storage does not answer. Nothing would be shared, so the search does not begin.
    """
    location, output = prepared.location, prepared.request.output
    assert location
    common = name_identity(prepared, identity)
    has_file = output is not None and str(output) != STANDARD_STREAM and not is_special(output)
    return SharedExchange(
        lambda: SharedStudy(location, common, len(prepared.goal.objectives)),
        node=name_node(),
        outbox_path=output.with_name(output.name.removesuffix(".json") + SUFFIX) if output and has_file else None,
        host=HostClass.of(prepared.host).name,
        kernel=platform.release(),
    )


def share_outcome(
    exchange: SharedExchange,
    outcome: Outcome,
    *,
    record: bytes = b"null",
    started: str = "",
    host_class: HostClass | None = None,
    onnxruntime: str = "",
) -> None:
    """Write the result, if this node did racing and confirmation, and what the confirmation showed here.

    Args:
        exchange: The exchange.
        outcome: The outcome of the search.
        record: The record as JSON.
        started: When the search began on this host, in ISO 8601 with the time zone.
        host_class: The class of this host.
        onnxruntime: Version of onnxruntime on this host.
    """
    evidence = outcome.evidence
    if exchange.result is None:
        compact = msgspec.json.format(record, indent=-1)
        winner = evidence.winner.config if evidence.winner else outcome.config
        exchange.publish(
            SharedResult(
                node=exchange.state.node,
                worker=exchange.worker,
                number=exchange.state.number,
                verdict=evidence.verdict,
                config=winner,
                front=tuple(point.summary.config for point in evidence.front),
                digest=hashlib.sha256(record + winner.key.encode()).hexdigest(),
                record=msgspec.Raw(compact if len(compact) < MOST_TEXT_BYTES // 2 else b"null"),
                unfit={node: disagreement.reason for node, disagreement in exchange.unfit.items()},
            )
        )
    if exchange.own_result is None:
        return
    exchange.prove(
        Proof(
            node=exchange.state.node,
            worker=exchange.worker,
            digest=exchange.own_result.digest,
            speedup=SharedSpeedup.of(evidence.speedup) if evidence.speedup else None,
            verdict=FAILED if outcome.has_failed else evidence.verdict,
            contended=evidence.noise.regime == "contended",
            started=started,
            host_class=host_class,
            kernel=exchange.state.kernel,
            onnxruntime=onnxruntime,
        )
    )
