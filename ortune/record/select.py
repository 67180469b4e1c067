"""Several records for several hosts, loads and models: put together in one file, and the right one picked."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ortune.errors import RecordError
from ortune.host import HostClass
from ortune.host.host_class import describe_difference
from ortune.record.files import proves_nothing, read_records
from ortune.record.schema import SCHEMA, Bundle, Record
from ortune.workload import Load


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """A record, and where it was read.

    Attributes:
        record: The record.
        source: The file, with the record's number if the file is a bundle.
        path: The file.
    """

    record: Record
    source: str
    path: str = ""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for one model.

    Attributes:
        record: The record that was picked; where none fits, the one that comes nearest.
        source: Where it was read: the file, with the record's number if the file is a bundle.
        path: The file.
        fits: Whether it is for this class of host.
        why: Why it was picked, or why it does not fit, part of a sentence.
    """

    record: Record
    source: str
    path: str = ""
    fits: bool
    why: str

    @property
    def applies(self) -> bool:
        """Whether a program is to have its settings; those of a search that proved nothing are as good as any."""
        return self.fits and not proves_nothing(self.record)


def read_sourced(paths: Iterable[str | Path]) -> tuple[Sourced, ...]:
    """Read all records of some files.

    Raises:
        RecordError: One of them holds no records.
    """
    found = []
    for path in paths:
        records = read_records(path)
        for number, record in enumerate(records, 1):
            found.append(
                Sourced(record=record, source=f"{path}[{number}]" if len(records) > 1 else str(path), path=str(path))
            )
    return tuple(found)


def merge(records: Sequence[Sourced]) -> tuple[Bundle, tuple[Sourced, ...]]:
    """Put records together. Of several for the same model, host, load and objective, the latest stays.

    Returns:
        The bundle, and what was left out for a later one.

    Raises:
        RecordError: There are none.
    """
    if not records:
        raise RecordError("There are no records to merge.", "Pass at least one: ortune merge A.json B.json -o FILE.")
    latest: dict[str, Sourced] = {}
    for each in records:
        key = msgspec.json.encode(
            (
                each.record.model.digest,
                each.record.host.id,
                each.record.workload.load,
                each.record.workload.objectives,
                each.record.workload.limits,
                sorted((name, given.shapes) for name, given in each.record.workload.inputs.items()),
                each.record.runtime.onnxruntime,
            )
        ).decode()
        if key not in latest or started(each) >= started(latest[key]):
            latest[key] = each
    kept = {id(each) for each in latest.values()}
    dropped = tuple(each for each in records if id(each) not in kept)
    return Bundle(schema=SCHEMA, records=tuple(each.record for each in latest.values())), dropped


def choose_all(
    records: Sequence[Sourced], host: HostClass, load: Load | None, *, any_host: bool = False
) -> tuple[Choice, ...]:
    """Pick a record for each model that there are records for.

    Args:
        records: To pick from.
        host: The class of the host here.
        load: How calls will arrive; None where that is not told.
        any_host: Whether a record for another class of host is good enough.
    """
    models: dict[str, list[Sourced]] = {}
    for each in records:
        models.setdefault(each.record.model.digest, []).append(each)
    return tuple(choose(each, host, load, any_host=any_host) for each in models.values())


def choose(records: Sequence[Sourced], host: HostClass, load: Load | None, *, any_host: bool = False) -> Choice:
    """Pick the record for this host and load, of some for one model.

    A record for this class of host goes before all others; then the load that comes nearest; then the latest search.
    """
    here = [each for each in records if each.record.host.id == host.id]
    left = here or list(records)
    nearest = min(left, key=lambda each: len(each.record.host.differences(host)))
    if not here:
        least = len(nearest.record.host.differences(host))
        left = [each for each in left if len(each.record.host.differences(host)) == least]
    wanted = load or Load()
    left = sorted(left, key=started, reverse=True)
    best = min(left, key=lambda each: load_distance(each.record.workload.load, wanted))
    fits = bool(here) or any_host
    return Choice(
        record=best.record,
        source=best.source,
        path=best.path,
        fits=fits,
        why=_explain(best, left, host, load, is_here=bool(here)),
    )


def started(each: Sourced) -> datetime.datetime:
    """Return when the search began; a time without its zone is taken as one of this host."""
    return datetime.datetime.fromisoformat(each.record.search.started).astimezone()


def load_distance(one: Load, other: Load) -> float:
    """Return how far two loads are apart: 0 for the same, 100 and more for scenarios that differ."""
    distance = 0.0 if one.scenario == other.scenario else 100.0
    if one.sessions != other.sessions:
        distance += 10 + abs(math.log(one.sessions / other.sessions))
    if one.rate_per_s and other.rate_per_s:
        distance += abs(math.log(one.rate_per_s / other.rate_per_s))
    return distance + abs(math.log(one.clients / other.clients))


def _explain(best: Sourced, left: Sequence[Sourced], host: HostClass, load: Load | None, *, is_here: bool) -> str:
    record = best.record
    if not is_here:
        told = [describe_difference(name, *both) for name, both in record.host.differences(host).items()]
        return f"tuned on another class of host: {'; '.join(told)}"
    tuned_for = f"tuned for {record.workload.load}"
    if load is not None:
        return tuned_for if record.workload.load == load else f"{tuned_for}, which comes nearest to {load}"
    loads = {str(each.record.workload.load) for each in left}
    if len(loads) > 1:
        return f"{tuned_for}; there are others, for {', '.join(sorted(loads - {str(record.workload.load)}))}"
    return f"{tuned_for}, on this class of host"
