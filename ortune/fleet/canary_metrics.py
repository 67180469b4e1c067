"""The metrics that processes wrote under `ortune apply --canary --metrics FOLDER`, and the reading of their files.

`ortune.apply.inside.canary` writes these files inside programs, on any host of a fleet. They are not trusted: sizes and
numbers are limited, and a file that is malformed is left out, with a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ortune.apply.inside.canary import (
    FIRST_BUCKET,
    GROWTH,
    LAST_BUCKET,
    LONGEST_METRICS_TEXT,
    METRICS_FORMAT,
    MOST_COUNTED_MODELS,
)
from ortune.errors import UsageError
from ortune.limited import TooLargeError, read_limited
from ortune.numbers import Count

FILE = re.compile(r"canary-[0-9a-f]{1,64}-[0-9]{1,10}-[0-9]{1,20}\.json")

MOST_METRICS_BYTES = 1 << 20
"""Largest size of the file of one process. 16 models with all buckets have less."""

MOST_TOTAL_METRICS_BYTES = 512 << 20
MOST_METRICS_FILES = 100_000

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Text = Annotated[str, Meta(max_length=LONGEST_METRICS_TEXT)]
Name = Annotated[str, Meta(pattern="^[0-9a-f]{0,64}$")]
Digest = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
Bucket = Annotated[str, Meta(pattern="^[0-9]{1,4}$")]
N_BUCKETS = LAST_BUCKET - FIRST_BUCKET + 1


class ModelMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The calls of all sessions of one model in one process.

    Attributes:
        name: File name of the model.
        sha256: SHA-256 of its file; empty if it could not be read.
        n_tuned: Number of sessions with the tuned options.
        n_own: Number of sessions with the program's own options.
        reason: Why sessions of a canary have the program's own options; empty if none has.
        n_calls: Number of calls that succeeded.
        n_failed: Number of calls that raised an exception.
        total_ns: Time of those that succeeded.
        buckets: Their number by bucket; see `bound_bucket`.
    """

    name: Text
    sha256: Digest
    n_tuned: Count
    n_own: Count
    reason: Text
    n_calls: Count
    n_failed: Count
    total_ns: Number
    buckets: Annotated[dict[Bucket, Count], Meta(max_length=N_BUCKETS)]

    def __post_init__(self) -> None:
        """Check that the buckets are those that processes write, and hold the calls."""
        if any(not FIRST_BUCKET <= int(bucket) <= LAST_BUCKET for bucket in self.buckets):
            raise ValueError("there is no such bucket")
        if sum(self.buckets.values()) != self.n_calls:
            raise ValueError("the buckets do not hold all calls")
        least, most = bound_bucket(FIRST_BUCKET), bound_bucket(LAST_BUCKET + 1)
        if not self.n_calls * least <= self.total_ns <= self.n_calls * most:
            raise ValueError("the calls do not take this time")

    @property
    def counts(self) -> dict[int, int]:
        """The number of calls by bucket, in ascending order."""
        return {int(bucket): count for bucket, count in sorted(self.buckets.items(), key=lambda pair: int(pair[0]))}


class ProcessMetrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metrics of one process.

    Attributes:
        format: Version of the file.
        host: Name of its host, or of its container.
        host_class: Id of the class of hosts; empty if it is not known.
        pid: Its id.
        start_ns: When it began, in ns since 1970.
        arm: Whether its sessions get the tuned options (`canary`) or keep those of the program (`control`).
        decided_pid: Process that the arm follows from: this one, or the one that created the sessions before it forked.
        decided_ns: When that process began.
        share: Share of the processes that are canaries.
        config: Id of the configs.
        onnxruntime: Version of onnxruntime.
        written_ns: When this was written, in ns since 1970.
        wall_ns: Time from the first call until then.
        cpu_ns: CPU time of the process in this time.
        models: Its models.
    """

    format: Annotated[int, Meta(ge=METRICS_FORMAT, le=METRICS_FORMAT)]
    host: Text
    host_class: Name
    pid: Number
    start_ns: Number
    arm: Literal["canary", "control"]
    decided_pid: Number
    decided_ns: Number
    share: Annotated[float, Meta(ge=0, le=1)]
    config: Name
    onnxruntime: Text
    written_ns: Number
    wall_ns: Number
    cpu_ns: Number
    models: Annotated[tuple[ModelMetrics, ...], Meta(min_length=1, max_length=MOST_COUNTED_MODELS)]

    @property
    def n_calls(self) -> int:
        """Number of calls of all models."""
        return sum(model.n_calls for model in self.models)

    @property
    def unit(self) -> tuple[str, int, int]:
        """What was assigned to an arm: this process, or the one that created its sessions."""
        return self.host, self.decided_pid, self.decided_ns


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a rollout.

    Attributes:
        processes: The processes, in the order in which they started.
        faults: Files that could not be read, each as a sentence.
    """

    processes: tuple[ProcessMetrics, ...]
    faults: tuple[str, ...] = ()


def read_metrics(folder: Path) -> Metrics:
    """Read the files of all processes in a folder.

    Raises:
        UsageError: There is no such folder, or it cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if FILE.fullmatch(path.name))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is not a legal path"
        raise UsageError(
            f"{folder}: cannot be read: {reason}.", "Pass the folder of `ortune apply --metrics`.", option="folder"
        ) from None
    processes: list[ProcessMetrics] = []
    faults: list[str] = []
    left_bytes = MOST_TOTAL_METRICS_BYTES
    decoder = msgspec.json.Decoder(ProcessMetrics)
    for path in paths[:MOST_METRICS_FILES]:
        try:
            data = read_limited(path, min(MOST_METRICS_BYTES, left_bytes), only_regular=True)
            left_bytes -= len(data)
            processes.append(decoder.decode(data))
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            faults.append(f"{path.name} cannot be read: {error.strerror}.")
        except (TooLargeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            faults.append(f"{path.name} cannot be read: {error}.")
    if len(paths) > MOST_METRICS_FILES:
        faults.append(f"Only {MOST_METRICS_FILES} of {len(paths)} processes were read.")
    return Metrics(processes=tuple(sorted(processes, key=lambda process: process.start_ns)), faults=tuple(faults))


def bound_bucket(bucket: int) -> float:
    """Return the shortest duration of a bucket in ns, which is the longest of the one before it."""
    return float(GROWTH**bucket)


def add_buckets(several: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the number of calls by bucket in several processes."""
    found: dict[int, int] = {}
    for counts in several:
        for bucket, count in counts.items():
            found[bucket] = found.get(bucket, 0) + count
    return dict(sorted(found.items()))


def find_quantile(counts: Mapping[int, int], share: float) -> float:
    """Return a quantile of durations in ns. Within a bucket, their logarithms are taken to be spread evenly.

    Args:
        counts: Number of calls by bucket, in ascending order.
        share: Share of the calls below the quantile.

    Raises:
        ValueError: There are no calls.
    """
    wanted = share * sum(counts.values())
    below = 0
    for bucket, count in counts.items():
        if count and below + count >= wanted:
            return float(bound_bucket(bucket) * GROWTH ** ((wanted - below) / count))
        below += count
    raise ValueError("there are no calls")
