"""Selects the right record for a model, a host and a load, and merges records into one file."""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.errors import ModelError, RecordError, ThreadsWarning
from ortune.file_kinds import name_special
from ortune.host import Host, HostClass, read_host
from ortune.host.host_class import describe_difference
from ortune.knobs.config import Config
from ortune.knobs.thread_limits import HostSize, limit_config
from ortune.model import compute_digest, hash_data_file, hash_file
from ortune.record.check import shorten
from ortune.record.files import decode_document, name_of_input, read_any
from ortune.record.gpus import find_gpu_difference, list_recorded_gpus
from ortune.record.schema import RECORD_SCHEMA, Bundle, Record
from ortune.worker.installed import find_installed_version
from ortune.workload import Load


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """A record and the file it was read from.

    Attributes:
        record: The record.
        source: The file, with the record's number if the file is a bundle.
        path: The file.
        is_picked: Whether it is already the one of several in the file that the user wants.
        shapes_vary: Whether a program that follows a plan makes calls of other shapes than those measured: it puts
            items together.
    """

    record: Record
    source: str
    path: str = ""
    is_picked: bool = False
    shapes_vary: bool = False


AnySourced = TypeVar("AnySourced", bound=Sourced)


class SelectedRecord(Sourced, frozen=True, kw_only=True):
    """The record that was selected for a model: where none fits this host, the one that comes closest.

    Attributes:
        fits: Whether it is for this class of host, or may be used on any.
        why: Why it was selected, or why it does not fit, as part of a sentence.
    """

    fits: bool
    why: str

    @property
    def applies(self) -> bool:
        """Whether to apply its settings to a program. Settings of a search that proved nothing are not applied."""
        return self.fits and self.record.is_proven

    @property
    def reason(self) -> str:
        """Why its settings are not applied, as part of a sentence."""
        if not self.fits:
            return self.why
        if (hosts := self.record.evidence.hosts) and self.record.is_slower:
            return f"it is slower over {hosts.n_hosts} hosts of this class"
        return "its search proved no gain"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that a record is selected by.

    Attributes:
        load: The expected load, or None if it is not known.
        pick: The point of the record's front, counted from 1; None for what the record recommends. Where a record is
            already picked, it has no effect.
        any_host: Whether a record for another class of host, or for another GPU, may be used.
        other_model: Whether a record for another model may be used. The model then only decides among records for
            several models.
        elsewhere: Whether its settings are not for this process or another one on this host: then numbers of threads
            are not limited to what this host can run.
    """

    load: Load | None = None
    pick: int | str | None = None
    any_host: bool = False
    other_model: bool = False
    elsewhere: bool = False


def read_sourced(given: Iterable[str | Path | Record], *, trust: bool = False) -> tuple[Sourced, ...]:
    """Read all records of some files. A `Record` stands for itself.

    Args:
        given: Paths and records.
        trust: Whether records may have settings that need trust; see `ortune.record.files.read_record`.

    Raises:
        RecordError: One of them holds no records, or has a setting that a record must not have.
    """
    found: list[Sourced] = []
    for source in given:
        if isinstance(source, Record):
            found.append(Sourced(record=source, source="the record"))
        else:
            found += decode_sourced(read_any(source), name_of_input(source), trust=trust)
    return tuple(found)


def decode_sourced(data: bytes, name: str, *, trust: bool = False) -> list[Sourced]:
    """Return the records that the content of a file holds; see `read_sourced`."""
    records = decode_document(data, name, trust=trust).records
    return [
        Sourced(record=record, source=f"{name}[{number}]" if len(records) > 1 else name, path=name)
        for number, record in enumerate(records, 1)
    ]


def select_record(records: Sequence[Sourced], wanted: Wanted, model: str | Path | None = None) -> SelectedRecord:
    """Select one record. All commands and the Python API use this function.

    Args:
        records: To select from.
        wanted: What it is needed for.
        model: Path of the model; None where all records are for one model, which need not be there.

    Raises:
        RecordError: No record is for the model, the records are for several models, or the front has no such point.
        ModelError: The model cannot be read.
    """
    is_for_one = len({sourced.record.model.digest for sourced in records}) == 1
    if model is not None and not (wanted.other_model and is_for_one):
        records = _for_model(records, model)
    (choice,) = select_per_model(records, wanted, one_model=True)
    if choice.fits or wanted.elsewhere:
        return choice
    # Commands that measure use it on this host all the same, and say how it differs.
    return limit_to_host(choice, read_host(memory=False))


def read_any_record(
    path: str | PathLike[str], model: str | None = None, load: Load | None = None, *, trust: bool = False
) -> SelectedRecord:
    """Read the record of a file. It may be for another model, such as an older version, or another host.

    Args:
        path: The file.
        model: Path of the model; it selects among records for several models.
        load: The load; it selects among those for one model.
        trust: Whether the record may have settings that need trust.

    Raises:
        RecordError: The file holds no records, or none for the model.
    """
    return select_record(
        read_sourced([fspath(path)], trust=trust), Wanted(load=load, any_host=True, other_model=True), model
    )


def select_per_model(
    records: Sequence[Sourced], wanted: Wanted, *, one_model: bool = False
) -> tuple[SelectedRecord, ...]:
    """Select a record for each model that there are records for.

    Args:
        records: To select from.
        wanted: What they are needed for. A point of a front can only be picked for a single model, unless records are
            already picked.
        one_model: Whether all records must be for the same model.

    Raises:
        RecordError: There are no records, they are for several models and must not be, or the front has no such point.
    """
    if not records:
        raise RecordError("There are no records.", "Pass at least one.")
    models: dict[str, list[Sourced]] = {}
    for sourced in records:
        models.setdefault(sourced.record.model.digest, []).append(sourced)
    must_pick = wanted.pick is not None and not all(sourced.is_picked for sourced in records)
    if len(models) > 1 and (one_model or must_pick):
        paths = ", ".join(found[0].record.model.path for found in models.values())
        raise RecordError(
            f"There are records for several models: {paths}.", "Name the model, or pass the records of one model alone."
        )
    here = read_host(memory=False)
    host = HostClass.of(here)
    chosen = [
        choose(of_model, host, wanted.load, any_host=wanted.any_host, pick=wanted.pick) for of_model in models.values()
    ]
    if wanted.elsewhere:
        return tuple(chosen)
    return tuple(limit_to_host(selected, here) if selected.fits else selected for selected in chosen)


def limit_to_host(found: AnySourced, host: Host) -> AnySourced:
    """Return a record that asks no more threads, processes and CPUs of a host than it has; warn if the file does.

    Args:
        found: The record.
        host: This host.
    """
    size = HostSize.of(host)
    numbers: dict[str, int] = {}
    affinities: set[str] = set()

    def limit(config: Config) -> Config:
        config, excess = limit_config(config, size)
        numbers.update(excess.numbers)
        affinities.update({excess.affinity} - {""})
        return config

    record = found.record.map_configs(limit)
    if not numbers and not affinities:
        return found
    if numbers:
        settings = shorten(", ".join(f"{name}={number}" for name, number in numbers.items()))
        n_usable = len(host.limits.usable)
        text = f"{settings} is more than {n_usable} usable CPUs can run; {size.most_threads} is used instead"
        warnings.warn(f"{found.source}: {text}", ThreadsWarning, stacklevel=2)
    if affinities:
        text = f"the affinity {shorten(min(affinities))} names CPUs that this host does not have; it is left out"
        warnings.warn(f"{found.source}: {text}", ThreadsWarning, stacklevel=2)
    return msgspec.structs.replace(found, record=record)


def _for_model(records: Sequence[Sourced], model: str | Path) -> tuple[Sourced, ...]:
    """Return the records that are for a model.

    Raises:
        RecordError: No record is for the model.
        ModelError: The model cannot be read.
    """
    fits: dict[str, bool] = {}
    fault: RecordError | None = None
    for sourced in records:
        digest = sourced.record.model.digest
        if digest not in fits:
            try:
                check_model(sourced.record, model)
                fits[digest] = True
            except RecordError as error:
                fault = fault or error
                fits[digest] = False
    found = tuple(sourced for sourced in records if fits[sourced.record.model.digest])
    if not found and fault:
        raise fault
    return found


def check_model(record: Record, model: str | Path) -> None:
    """Check that a file is the model that the record is for.

    Only the files that the record names are read, not the graph.

    Raises:
        RecordError: It is another model.
        ModelError: It cannot be read.
    """
    path = Path(model)
    hint = "Pass the path of the model that the record is for."
    try:
        if not path.is_file():
            special = name_special(path)
            raise ModelError(f"{path} is {special}, not a model." if special else f"There is no file {path}.", hint)
    except OSError as error:
        raise ModelError(f"Cannot read {shorten(str(path))}: {error.strerror}.", hint) from None
    files = record.model.files
    found = [hash_file(path.parent, path.name)]
    if files and found[0].sha256 == files[0].sha256:
        try:
            found += [hash_data_file(path.parent, file.name) for file in files[1:]]
        except ModelError as error:
            raise ModelError(error.message, "The record says that this file belongs to the model.") from None
    check_digest(record, path, compute_digest(found))


def check_digest(record: Record, path: str | Path, digest: str) -> None:
    """Check that a model's digest is that of the model that the record is for.

    Raises:
        RecordError: It is another model.
    """
    if digest != record.model.digest:
        raise RecordError(
            f"The record is for another model: {record.model.path} with {record.model.digest}; {path} has {digest}.",
            f"Pass that model, or tune this one: ortune search {path}.",
        )


def choose(
    records: Sequence[Sourced],
    host: HostClass,
    load: Load | None,
    *,
    any_host: bool = False,
    pick: int | str | None = None,
) -> SelectedRecord:
    """Select among records for the same model.

    Records for this class of host come first; of these, those for this GPU, if they need one; of these, those for the
    closest load; of these, those that proved something; of these, those for the installed onnxruntime; of these, the
    latest. If there are none for this class, records whose class differs in the fewest properties come first.

    Args:
        records: To select from, at least one.
        host: The class of host.
        load: The load to come; None where it is not known.
        any_host: Whether a record for another class of host, or for another GPU, may be used.
        pick: The point of the front that is used; see `Wanted`.

    Raises:
        RecordError: The front has no such point.
    """
    here = [sourced for sourced in records if sourced.record.host.includes(host)]
    left = [sourced for sourced in here if _fits_gpu(sourced, pick)] or here
    if not here:
        least = min(len(sourced.record.host.differences(host)) for sourced in records)
        left = [sourced for sourced in records if len(sourced.record.host.differences(host)) == least]
    wanted = load or Load()
    left = _sort_by_worth(left)
    best = min(left, key=lambda sourced: load_distance(sourced.record.workload.load, wanted))
    record = _find_point(best, pick)
    gpus = find_gpu_difference(record)
    return SelectedRecord(
        record=record,
        source=best.source,
        path=best.path,
        is_picked=best.is_picked,
        shapes_vary=best.shapes_vary,
        fits=any_host or (bool(here) and gpus is None),
        why=f"tuned on another GPU: {gpus.recorded}; here: {gpus.here}"
        if here and gpus
        else _explain(best, left, host, load, is_here=bool(here)),
    )


def _find_point(sourced: Sourced, pick: int | str | None) -> Record:
    """Return the record with the point of its front that is wanted, which may use another provider.

    Raises:
        RecordError: The front has no such point.
    """
    return sourced.record if pick is None or sourced.is_picked else sourced.record.point(pick)


def _fits_gpu(sourced: Sourced, pick: int | str | None) -> bool:
    """Return whether the GPU is the recorded one, if the wanted point uses one. Without such a point, it is unknown."""
    try:
        return find_gpu_difference(_find_point(sourced, pick)) is None
    except RecordError:
        return find_gpu_difference(sourced.record) is None


def _sort_by_worth(records: Sequence[Sourced]) -> list[Sourced]:
    """Return records of the same model and host with the most useful first."""
    # Evidence of other hosts may have been added to a copy of a record. Then the copy counts.
    refuted = {started(sourced) for sourced in records if sourced.record.is_slower}
    versions = {minor_version(sourced.record.runtime.onnxruntime) for sourced in records}
    installed = minor_version(find_installed_version()) if len(versions) > 1 else ""

    def find_worth(sourced: Sourced) -> tuple[bool, bool, datetime.datetime]:
        when = started(sourced)
        is_proven = sourced.record.is_proven and when not in refuted
        return is_proven, minor_version(sourced.record.runtime.onnxruntime) == installed, when

    return sorted(records, key=find_worth, reverse=True)


def minor_version(version: str) -> str:
    """Return the major and minor version of onnxruntime. Patch releases do not change defaults."""
    return ".".join(version.split(".")[:2])


def started(sourced: Sourced) -> datetime.datetime:
    """Return when the search began. A time without a zone is in UTC, on every host."""
    found = datetime.datetime.fromisoformat(sourced.record.search.started)
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def load_distance(one: Load, other: Load) -> float:
    """Return the distance between two loads: 0 for equal loads, 100 or more for different scenarios."""
    distance = 0.0 if one.scenario == other.scenario else 100.0
    if one.sessions != other.sessions:
        distance += 10 + abs(math.log(one.sessions / other.sessions))
    if one.processes != other.processes:
        distance += 10 + abs(math.log(one.processes / other.processes))
    if one.pinned != other.pinned:
        distance += 1
    if one.rate_per_s and other.rate_per_s:
        distance += abs(math.log(one.rate_per_s / other.rate_per_s))
    return distance + abs(math.log(one.clients / other.clients))


def _explain(best: Sourced, left: Sequence[Sourced], host: HostClass, load: Load | None, *, is_here: bool) -> str:
    record = best.record
    if not is_here:
        differences = [describe_difference(name, *both) for name, both in record.host.differences(host).items()]
        return f"tuned on another class of host: {'; '.join(differences)}"
    tuned_for = f"tuned for {record.workload.load}"
    if load is not None:
        return tuned_for if record.workload.load == load else f"{tuned_for}, the closest to {load}"
    others = {str(sourced.record.workload.load) for sourced in left} - {str(record.workload.load)}
    if others:
        return f"{tuned_for}; other records are for {', '.join(sorted(others))}"
    return f"{tuned_for}, on this class of host"


def merge(records: Sequence[Sourced]) -> tuple[Bundle, tuple[Sourced, ...]]:
    """Combine records into a bundle. Of equal searches on hosts of the same class, the latest is kept.

    A search that proved nothing does not replace one that did.

    Returns:
        The bundle, and the records that another one replaced.

    Raises:
        RecordError: There are none.
    """
    if not records:
        raise RecordError("There are no records to merge.", "Pass at least one: ortune merge A.json B.json -o FILE.")
    latest: dict[str, Sourced] = {}
    for sourced in records:
        key = msgspec.json.encode(_identity(sourced.record)).decode()
        if key not in latest or _replaces(sourced, latest[key]):
            latest[key] = sourced
    kept = {id(sourced) for sourced in latest.values()}
    dropped = tuple(sourced for sourced in records if id(sourced) not in kept)
    return Bundle(schema=RECORD_SCHEMA, records=tuple(sourced.record for sourced in latest.values())), dropped


def _replaces(new: Sourced, old: Sourced) -> bool:
    """Return whether a record replaces another one, which was given before it, of the same identity."""
    if started(new) == started(old):
        # The same search, to one of which evidence of other hosts may have been added.
        return new.record.evidence.hosts is not None or old.record.evidence.hosts is None
    return (new.record.is_proven, started(new)) >= (old.record.is_proven, started(old))


def _identity(record: Record) -> Mapping[str, object]:
    """Return a key that is equal for two records if the later one replaces the earlier."""
    workload, program = record.workload, record.workload.program
    return {
        "model": record.model.digest,
        "host": record.host.id,
        "gpus": list_recorded_gpus(record),
        "providers": record.tried.providers,
        "load": workload.load,
        "objectives": workload.objectives,
        "limits": workload.limits,
        "inputs": sorted((name, data.shapes) for name, data in workload.inputs.items()),
        "batches": workload.batches,
        "tolerance": workload.tolerance,
        "background_load": workload.background_load,
        "program": (program.kind, program.sha256, program.call, program.metric, program.url) if program else None,
        "onnxruntime": record.runtime.onnxruntime,
    }
