"""A study that several hosts share: each writes what it measured, and reads what the others did.

It is a study of Optuna. Each batch of measurements is a finished trial, written once in one transaction, whose values
are the lowest cost ratios of the batch. States of workers, and what else has one writer, are attributes of the study.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from ortune.storage.connect import guard, open_storage
from ortune.storage.errors import StorageError, UnreadableError
from ortune.storage.identity import PREFIX, StudyInfo, name_study
from ortune.storage.location import Location
from ortune.storage.schema import (
    MOST_MEASUREMENTS,
    RESULT,
    Batch,
    Measurement,
    NodeState,
    OneStruct,
    SharedResult,
    decode,
    encode,
)

BATCH_ATTRIBUTE = "ortune"
"""Attribute of a trial: the measurements of a batch."""

IDENTITY = "identity"
NODE = "node:"
"""Attributes of a study: what all its measurements have in common, and the state of each worker."""


class SharedStudy:
    """A study that several hosts share. Each method that reads or writes raises `StorageError` if that fails.

    Args:
        location: The storage.
        identity: What must be the same for all that take part.
        n_objectives: Number of objectives.
        storage: The open storage, which has the study; None to open it, and to create the study if there is none.

    Attributes:
        location: The storage.
        name: Name of the study.
        identity: What is the same for all that take part.

    Raises:
        UsageError: A driver is not installed.
        StorageError: The storage does not answer.
    """

    def __init__(
        self,
        location: Location,
        identity: Mapping[str, str],
        n_objectives: int = 1,
        *,
        storage: optuna.storages.BaseStorage | None = None,
    ) -> None:
        self.location = location
        self.name = name_study(identity)
        self.identity = dict(identity)
        self._storage = storage or open_storage(location)
        with guard(location):
            if storage is None:
                self._study = self._create(n_objectives)
            else:
                self._study = optuna.load_study(study_name=self.name, storage=storage)
        self._n_objectives = n_objectives
        self._n_read = 0
        self._known: dict[str, int] = {}
        self._received: list[Measurement] = []

    def _create(self, n_objectives: int) -> optuna.Study:
        """Return the study of the storage, which is created if there is none."""
        study = optuna.create_study(
            study_name=self.name,
            storage=self._storage,
            directions=["minimize"] * n_objectives,
            load_if_exists=True,
        )
        if IDENTITY not in study.user_attrs:
            study.set_user_attr(IDENTITY, msgspec.json.encode(self.identity).decode())
        return study

    def add(self, measurement: Measurement) -> int:
        """Write a measurement, and return the number of its trial."""
        self.add_all([measurement])
        number = self.find(measurement.id)
        if number is None:
            raise StorageError(f"{self.location.title}: it does not keep what is written to it.")
        return number

    def add_all(self, measurements: Sequence[Measurement]) -> None:
        """Write measurements, if possible in one transaction.

        Raises:
            ValueError: One is longer than a storage keeps.
        """
        trials = [self._make_trial(batch, text) for batch, text in split(measurements)]
        with guard(self.location):
            self._study.add_trials(trials)

    def _make_trial(self, batch: Sequence[Measurement], text: str) -> FrozenTrial:
        measured = [measurement for measurement in batch if measurement.rounds]
        values = None
        if measured:
            values = [min(ratio_of(found, place) for found in measured) for place in range(self._n_objectives)]
        return create_trial(
            state=TrialState.COMPLETE if values else TrialState.FAIL, values=values, user_attrs={BATCH_ATTRIBUTE: text}
        )

    def has(self, measurement_id: str) -> bool:
        """Return whether a measurement arrived, although the connection was lost while it was sent."""
        return self.find(measurement_id) is not None

    def find(self, measurement_id: str) -> int | None:
        """Return the number of the trial of a measurement, or None if it did not arrive."""
        self._read_trials()
        return self._known.get(measurement_id)

    def receive(self) -> list[Measurement]:
        """Return all measurements since the last call, also those that were written by this process."""
        self._read_trials()
        received, self._received = self._received, []
        return received

    def _read_trials(self) -> None:
        """Read the trials that were written since the last time. They are numbered in the order of writing."""
        with guard(self.location):
            trials = self._study.get_trials(deepcopy=False)
        for trial in trials[self._n_read :]:
            for measurement in read_measurements(trial):
                if measurement.id not in self._known:
                    self._known[measurement.id] = trial.number
                    self._received.append(measurement)
        self._n_read = len(trials)

    def announce(self, state: NodeState) -> None:
        """Write the state of a worker."""
        self.write(f"{NODE}{state.worker}", state)

    def read_nodes(self) -> list[NodeState]:
        """Return the states of all workers, in the order in which they joined."""
        return sort_nodes(self.read_all(NODE, NodeState))

    def read_progress(self) -> tuple[list[NodeState], dict[str, SharedResult]]:
        """Return the states of all workers, in the order in which they joined, and the results by worker."""
        attributes = self._read_attributes()
        return sort_nodes(select(attributes, NODE, NodeState)), select(attributes, RESULT, SharedResult)

    def write(self, name: str, value: msgspec.Struct) -> None:
        """Write an attribute of the study, which replaces its earlier value. Each has one writer."""
        self.write_text(name, encode(value))

    def write_text(self, name: str, text: str) -> None:
        """Write an attribute of the study as text."""
        with guard(self.location):
            self._study.set_user_attr(name, text)

    def delete(self) -> None:
        """Delete the study with all that it holds."""
        with guard(self.location):
            optuna.delete_study(study_name=self.name, storage=self._storage)

    def read_all(self, prefix: str, kind: type[OneStruct]) -> dict[str, OneStruct]:
        """Return all legal attributes of the study whose name has a prefix, by the rest of the name."""
        return select(self._read_attributes(), prefix, kind)

    def _read_attributes(self) -> dict[str, object]:
        """Return all attributes: Optuna reads them at a time."""
        with guard(self.location):
            attributes: dict[str, object] = self._study.user_attrs
        return attributes


def select(attributes: Mapping[str, object], prefix: str, kind: type[OneStruct]) -> dict[str, OneStruct]:
    """Return all legal attributes whose name has a prefix, by the rest of the name."""
    values = {
        name.removeprefix(prefix): decode(text, kind) for name, text in attributes.items() if name.startswith(prefix)
    }
    return {name: value for name, value in values.items() if value is not None}


def sort_nodes(states: Mapping[str, NodeState]) -> list[NodeState]:
    """Return the states of workers in the order in which they joined."""
    return sorted(states.values(), key=lambda state: (state.number, state.worker))


def ratio_of(measurement: Measurement, place: int) -> float:
    """Return the median cost ratio of a measurement in one objective."""
    return math.exp(statistics.median(measured_round.log_ratios[place] for measured_round in measurement.rounds))


def split(measurements: Sequence[Measurement]) -> Iterator[tuple[Sequence[Measurement], str]]:
    """Yield measurements in as few batches as a storage keeps, with the text of each.

    Raises:
        ValueError: A single one is longer than a storage keeps.
    """
    if len(measurements) <= MOST_MEASUREMENTS:
        try:
            text = encode(Batch(measurements=tuple(measurements)))
        except ValueError:
            if len(measurements) == 1:
                raise
        else:
            yield measurements, text
            return
    middle = len(measurements) // 2
    yield from split(measurements[:middle])
    yield from split(measurements[middle:])


def read_measurements(trial: FrozenTrial) -> tuple[Measurement, ...]:
    """Return the measurements that a trial holds; none if it holds no legal batch."""
    attributes = trial.user_attrs
    text = attributes.get(BATCH_ATTRIBUTE) if isinstance(attributes, dict) else None
    batch = decode(text, Batch)
    return batch.measurements if batch else ()


def list_studies(location: Location, storage: optuna.storages.BaseStorage | None = None) -> list[StudyInfo]:
    """Return all studies of ortune in a storage. Their trials, which any host may have written, are not read.

    Args:
        location: The storage.
        storage: The same, if it is open.

    Raises:
        UsageError: A driver is not installed.
        StorageError: The storage does not answer.
    """
    storage = storage or open_storage(location)
    with guard(location):
        names = [name for name in optuna.get_all_study_names(storage) if is_own(name)]
    found = []
    for name in names:
        try:
            with guard(location):
                # Summaries of Optuna would have all attributes at once, and read all trials.
                attributes = optuna.load_study(study_name=name, storage=storage).user_attrs
            identity = msgspec.json.decode(attributes.get(IDENTITY, ""), type=dict[str, str])
        except (UnreadableError, TypeError, ValueError):
            continue
        found.append(StudyInfo(name=name, identity=identity))
    return found


def is_own(name: object) -> bool:
    """Return whether a name is that of a study of ortune. In a journal that others wrote, it may be no text."""
    return isinstance(name, str) and name.startswith(f"{PREFIX}/")
