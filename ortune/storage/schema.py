"""What hosts exchange through a storage. All of it is untrusted data, and is checked when it is read.

Only ratios to the control of the same host are exchanged, never times: hosts of one class differ in speed.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Annotated, Literal, TypeVar

import msgspec

from ortune.host import HostClass
from ortune.knobs.config import Config
from ortune.measure.comparison import Speedup
from ortune.numbers import Count
from ortune.worker.failure import Failure

FORMAT = 1
"""Version of the format. Studies of another one have other names, so that versions do not meet."""

RESULT = "result:"
PROOF = "proof:"
RACE = "race:"
"""Prefixes of the attributes of a study that hold results, proofs and races. The rest of their names is the worker."""

MOST_TEXT_BYTES = 60_000
"""Longest value as it is kept. MySQL keeps up to 65,535 bytes."""

MOST_PLAIN_BYTES = 1_000_000
"""Longest value before it is compressed."""

COMPRESSED_FROM = 1000
"""Values that are longer, in bytes, are compressed."""

COMPRESSED = "zlib:"
"""How compressed values begin. The rest is in Base64."""

MOST_MEASUREMENTS = 64
"""Most measurements of a batch."""

MOST_ROUNDS = 256
MOST_LOG_RATIO = 20.0

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
LogRatio = Annotated[float, msgspec.Meta(ge=-MOST_LOG_RATIO, le=MOST_LOG_RATIO)]
LogRatios = Annotated[tuple[LogRatio, ...], msgspec.Meta(max_length=32)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

Labels = Annotated[dict[Name, Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(max_length=256)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8,64}$")]
MOST_RATIO = 1e9
Ratio = Annotated[float, msgspec.Meta(gt=0, le=MOST_RATIO)]

Stage = Literal["joining", "screening", "racing", "confirmation", "waiting", "proof", "done", "failed"]


class SharedRound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One round of a candidate and its control.

    Attributes:
        log_ratios: For each objective: log(cost of the candidate / cost of the control).
        excesses: For each limit, and last for the request rate if there is one: by how much it is exceeded, as a
            log-ratio.
        contended: Whether other processes used the CPUs.
    """

    log_ratios: LogRatios
    excesses: LogRatios = ()
    contended: bool = False


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one launch of a candidate showed on a node. It is written once, and never changed.

    Attributes:
        id: Identifies it, also if it is sent again after a lost connection.
        node: Name of the host.
        worker: Identifier of the process: several may run on a host, one after another.
        config: Settings of the candidate. Those of the baseline are for the A/A check.
        labels: Its choice in each dimension of the search space.
        launch: Number of the launch of the worker. Candidates of one launch share the control.
        rounds: Its rounds; empty if it failed.
        failure: Why it failed, or None.
        spent_s: Share of the candidate in the wall time of its launch, in seconds.
        race: The worker whose race the launch belongs to; empty in screening.
    """

    id: Name
    node: Name
    worker: Name
    config: Config
    labels: Labels = {}
    launch: Count
    rounds: Annotated[tuple[SharedRound, ...], msgspec.Meta(max_length=MOST_ROUNDS)] = ()
    failure: Failure | None = None
    spent_s: Seconds = 0.0
    race: Annotated[str, msgspec.Meta(max_length=128)] = ""

    def __post_init__(self) -> None:
        """Check that it has either rounds or a failure, and the same objectives in each round."""
        if bool(self.rounds) == bool(self.failure):
            raise ValueError("a measurement has either rounds or a failure")
        if len({(len(measured_round.log_ratios), len(measured_round.excesses)) for measured_round in self.rounds}) > 1:
            raise ValueError("rounds have different numbers of values")
        if self.rounds and not self.rounds[0].log_ratios:
            raise ValueError("a round has no values")


class Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measurements that are written at the same time.

    Attributes:
        measurements: The measurements.
    """

    measurements: Annotated[tuple[Measurement, ...], msgspec.Meta(max_length=MOST_MEASUREMENTS)]


class NodeState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a worker on a node is doing. Each worker overwrites its own.

    No time of day is exchanged, as clocks of hosts may differ. A worker that runs raises `beat`: who sees no change for
    long, on an own clock, takes the worker for ended.

    Attributes:
        node: Name of the host.
        worker: Identifier of the process.
        number: Order in which workers joined.
        beat: Number of the update.
        stage: What it is doing.
        silent_s: Longest time until its next update, as it expects, in seconds.
        leased: Keys of the configs that it is measuring now.
        spent_s: Time of its screening so far, in seconds.
        n_measured: Candidates that it measured.
        sigma: Standard deviation of the log-ratios of its rounds; None if unknown.
        bias: Log-ratio of its control to itself in the A/A check; None if unknown.
        unfit: Why its measurements are not used; empty if they are.
        host: Name of the class of the host.
        kernel: Release of the operating system.
    """

    node: Name
    worker: Name
    number: Count = 0
    beat: Count = 0
    stage: Stage = "joining"
    silent_s: Seconds = 0.0
    leased: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=20_000)], ...], msgspec.Meta(max_length=64)] = ()
    spent_s: Seconds = 0.0
    n_measured: Count = 0
    sigma: Annotated[float, msgspec.Meta(ge=0, le=MOST_LOG_RATIO)] | None = None
    bias: LogRatio | None = None
    unfit: Text = ""
    host: Text = ""
    kernel: Text = ""


class SharedRace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The race of a worker, which others take part in. It overwrites it when candidates are dropped.

    Attributes:
        worker: Identifier of the process.
        configs: The candidates that are left; none if it is over.
    """

    worker: Name
    configs: Annotated[tuple[Config, ...], msgspec.Meta(max_length=64)] = ()


class SharedSpeedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many times faster the winner is than the baseline.

    Attributes:
        estimate: The estimate.
        low: Lower end of its interval.
        high: Upper end of its interval.
        confidence: Confidence of the interval.
        n_launches: Launches of each side.
    """

    estimate: Ratio
    low: Annotated[float, msgspec.Meta(ge=0, le=MOST_RATIO)]
    high: Ratio
    confidence: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    n_launches: Count

    @classmethod
    def of(cls, speedup: Speedup) -> SharedSpeedup:
        """Return a speedup within the bounds of the format."""
        return cls(
            estimate=speedup.estimate,
            low=max(speedup.low, 0.0),
            high=min(speedup.high, MOST_RATIO),
            confidence=speedup.confidence,
            n_launches=speedup.n_launches,
        )


class SharedResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the search found, as the worker that did racing and confirmation wrote it.

    Attributes:
        node: Name of its host.
        worker: Identifier of the process.
        number: Order in which it joined. Of several results, that with the lowest number counts, but those without
            proof come last.
        verdict: Verdict of its record.
        config: The config that was compared with the baseline in the confirmation, or the baseline's.
        front: With several objectives: the configs that were compared.
        digest: Identifies the result: the SHA-256 of the record.
        record: The record as JSON, or null. It is read like that of any file.
        unfit: Nodes that are set apart, with the reason.
    """

    node: Name
    worker: Name
    number: Count
    verdict: Name
    config: Config
    front: Annotated[tuple[Config, ...], msgspec.Meta(max_length=16)] = ()
    digest: Digest
    record: msgspec.Raw = msgspec.Raw(b"null")
    unfit: Annotated[dict[Name, Text], msgspec.Meta(max_length=64)] = {}


FAILED = "failed"
"""Verdict of a proof where the winner does not work."""


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The confirmation of a result on one host: winner against baseline, in fresh launches.

    Attributes:
        node: Name of the host.
        worker: Identifier of the process.
        digest: That of the result.
        speedup: The speedup there; None if it could not be measured.
        verdict: What the confirmation showed there; "failed" if the winner does not work there.
        contended: Whether other processes used the CPUs.
        started: When the command began on that host, by its own clock, in ISO 8601 with the time zone. It is shown, and
            never compared.
        host_class: The class of the host; None if unknown.
        kernel: Release of the operating system.
        onnxruntime: Version of onnxruntime.
        withdrawn: Whether it no longer counts. Attributes of a study cannot be removed.
    """

    node: Name
    worker: Name
    digest: Digest
    speedup: SharedSpeedup | None = None
    verdict: Name = "inconclusive"
    contended: bool = False
    started: Annotated[str, msgspec.Meta(max_length=64)] = ""
    host_class: HostClass | None = None
    kernel: Text = ""
    onnxruntime: Text = ""
    withdrawn: bool = False


OneStruct = TypeVar("OneStruct", bound=msgspec.Struct)


def encode(value: msgspec.Struct) -> str:
    """Return a value as JSON text, or compressed if it is long: lists of CPUs of large hosts repeat themselves.

    Raises:
        ValueError: It is longer than a storage keeps.
    """
    encoded = msgspec.json.encode(value)
    text = encoded.decode()
    if len(encoded) > COMPRESSED_FROM:
        text = COMPRESSED + base64.b64encode(zlib.compress(encoded)).decode()
    # Optuna keeps the text as a JSON string, in ASCII.
    if len(json.dumps(text)) > MOST_TEXT_BYTES or len(encoded) > MOST_PLAIN_BYTES:
        raise ValueError(f"a value of {len(encoded)} bytes does not fit into a storage")
    return text


def decode(text: object, kind: type[OneStruct]) -> OneStruct | None:
    """Return a value that another host wrote, or None if it is not legal."""
    if not isinstance(text, str) or len(text) > MOST_TEXT_BYTES:
        return None
    try:
        return msgspec.json.decode(_expand(text), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, zlib.error):
        return None


def _expand(text: str) -> bytes:
    if not text.startswith(COMPRESSED):
        return text.encode()
    decompressor = zlib.decompressobj()
    encoded = decompressor.decompress(base64.b64decode(text[len(COMPRESSED) :], validate=True), MOST_PLAIN_BYTES)
    if not decompressor.eof:
        raise ValueError("a value is longer than allowed, or not complete")
    return encoded


def limit_log_ratio(value: float) -> float:
    """Return a log-ratio within the bounds of the format."""
    if math.isnan(value):
        return MOST_LOG_RATIO
    return min(max(value, -MOST_LOG_RATIO), MOST_LOG_RATIO)
