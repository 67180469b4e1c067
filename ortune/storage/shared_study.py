"""A study that several hosts share: each writes what it measured, and reads what the others did.

It is a study of Optuna. Each measurement is a finished trial, written once in one transaction, whose parameters are the
labels of the candidate and whose values are its cost ratios. States of workers, and what else has one writer, are
attributes of the study. Optuna's dashboard and its tools thus show such a study like any other.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence

import msgspec
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from ortune.storage.connect import guard, open_storage
from ortune.storage.location import Location
from ortune.storage.schema import FORMAT, Measurement, NodeState, OneStruct, decode, encode
from ortune.storage.tables import open_tables

PREFIX = f"ortune{FORMAT}"

MEASUREMENT = "ortune"
"""Attribute of a trial: the measurement."""

IDENTITY = "identity"
NODE = "node:"
"""Attributes of a study: what all its measurements have in common, and the state of each worker."""

LONGEST_NAME = 64


class StudyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A study of a storage.

    Attributes:
        name: Its name.
        identity: What all its measurements have in common, as text by name: model, class of host, load, and others.
    """

    name: str
    identity: dict[str, str]


def name_study(identity: Mapping[str, str]) -> str:
    """Return the name of the study of all searches with the same identity."""
    digest = hashlib.sha256(msgspec.json.encode(dict(identity), order="deterministic")).hexdigest()[:24]
    readable = re.sub(r"[^\w.-]+", "-", identity.get("model_name", ""), flags=re.ASCII)[:LONGEST_NAME].strip("-")
    return f"{PREFIX}/{readable or 'model'}/{digest}"


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
        with guard(location):
            if storage is None:
                self._study = self._create(open_storage(location), n_objectives)
            else:
                self._study = optuna.load_study(study_name=self.name, storage=storage)
            self._tables = open_tables(self._study._storage, self._study._study_id)
        self._n_objectives = n_objectives
        self._n_read = 0
        self._last_id = -1
        self._known: dict[str, int] = {}
        self._received: list[Measurement] = []

    def _create(self, storage: optuna.storages.BaseStorage, n_objectives: int) -> optuna.Study:
        """Return the study of a storage, which is created if there is none."""
        study = optuna.create_study(
            study_name=self.name,
            storage=storage,
            directions=["minimize"] * n_objectives,
            load_if_exists=True,
        )
        if IDENTITY not in study.user_attrs:
            study.set_user_attr(IDENTITY, msgspec.json.encode(self.identity).decode())
        return study

    def add(self, measurement: Measurement, labels: Mapping[str, str], choices: Mapping[str, tuple[str, ...]]) -> int:
        """Write a measurement in one transaction, and return the number of its trial.

        Args:
            measurement: The measurement.
            labels: The choice of the candidate in each dimension.
            choices: All choices of each dimension.
        """
        return self.add_all([(measurement, labels)], choices)[0]

    def add_all(
        self, measured: Sequence[tuple[Measurement, Mapping[str, str]]], choices: Mapping[str, tuple[str, ...]]
    ) -> list[int]:
        """Write measurements, and return the numbers of their trials.

        In a database, all are written in one transaction. Elsewhere, each is.

        Args:
            measured: The measurements, each with the choice of the candidate in each dimension.
            choices: All choices of each dimension.
        """
        trials = [self._make_trial(measurement, labels, choices) for measurement, labels in measured]
        with guard(self.location):
            if self._tables:
                return self._tables.add(trials)
            storage, study_id = self._study._storage, self._study._study_id  # add_trial() does not return the number
            return [int(storage.get_trial(storage.create_new_trial(study_id, trial)).number) for trial in trials]

    def _make_trial(
        self, measurement: Measurement, labels: Mapping[str, str], choices: Mapping[str, tuple[str, ...]]
    ) -> FrozenTrial:
        params = {name: label for name, label in labels.items() if label in choices.get(name, ())}
        values = [ratio_of(measurement, place) for place in range(self._n_objectives)] if measurement.rounds else None
        return create_trial(
            state=TrialState.COMPLETE if values else TrialState.FAIL,
            params=params,
            distributions={name: CategoricalDistribution(choices[name]) for name in params},
            values=values,
            user_attrs={MEASUREMENT: encode(measurement), "node": measurement.node},
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
            if self._tables:
                for trial_id, number, text in self._tables.read(MEASUREMENT, self._last_id):
                    self._last_id = trial_id
                    self._receive(number, decode(text, Measurement))
                return
            trials = self._study.get_trials(deepcopy=False)
        for trial in trials[self._n_read :]:
            self._receive(trial.number, read_measurement(trial))
        self._n_read = len(trials)

    def _receive(self, number: int, measurement: Measurement | None) -> None:
        if measurement is not None and measurement.id not in self._known:
            self._known[measurement.id] = number
            self._received.append(measurement)

    def announce(self, state: NodeState) -> None:
        """Write the state of a worker."""
        self.write(f"{NODE}{state.worker}", state)

    def read_nodes(self) -> list[NodeState]:
        """Return the states of all workers, in the order in which they joined."""
        return sorted(self.read_all(NODE, NodeState).values(), key=lambda state: (state.number, state.worker))

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
            self._study._storage.delete_study(self._study._study_id)

    def read_all(self, prefix: str, kind: type[OneStruct]) -> dict[str, OneStruct]:
        """Return all legal attributes of the study whose name has a prefix, by the rest of the name."""
        with guard(self.location):
            found = self._tables.read_study(prefix) if self._tables else self._study.user_attrs
        values = {
            name.removeprefix(prefix): decode(text, kind) for name, text in found.items() if name.startswith(prefix)
        }
        return {name: value for name, value in values.items() if value is not None}


def ratio_of(measurement: Measurement, place: int) -> float:
    """Return the median cost ratio of a measurement in one objective."""
    return math.exp(statistics.median(each.log_ratios[place] for each in measurement.rounds))


def read_measurement(trial: FrozenTrial) -> Measurement | None:
    """Return the measurement that a trial holds, or None if it holds none that is legal."""
    return decode(trial.user_attrs.get(MEASUREMENT), Measurement)


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
        studies = [each for each in storage.get_all_studies() if each.study_name.startswith(f"{PREFIX}/")]
    found = []
    for study in studies:
        try:
            identity = msgspec.json.decode(study.user_attrs.get(IDENTITY, ""), type=dict[str, str])
        except (TypeError, ValueError):
            continue
        found.append(StudyInfo(name=study.study_name, identity=identity))
    return found
