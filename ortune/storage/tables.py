"""Reads and writes many trials with few statements, in the tables of Optuna's databases.

Optuna writes one trial at a time, with three statements per parameter and two per attribute, while it holds a lock of
the study, and reads trials with all their parameters. Whatever is written here, Optuna reads like its own.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

SCHEMAS = frozenset({"v3.2.0.a"})
"""Versions of the tables that this module knows. For others, Optuna's own methods are used."""

PAGE = 1000
"""Trials that are read at a time."""


class TrialTables:
    """The trials of a study in the tables of a database.

    Args:
        storage: The database.
        study_id: Identifier of the study there.
    """

    def __init__(self, storage: RDBStorage, study_id: int) -> None:
        from optuna.storages._rdb import models

        self._engine = storage.engine
        self._study_id = study_id
        self._values = models.TrialValueModel
        self._study_attributes_table = models.StudyUserAttributeModel.__table__
        self._studies_table, self._trials_table, self._params_table, self._values_table, self._attributes_table = (
            model.__table__
            for model in (
                models.StudyModel,
                models.TrialModel,
                models.TrialParamModel,
                models.TrialValueModel,
                models.TrialUserAttributeModel,
            )
        )

    def add(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Write trials in one transaction, and return their numbers.

        Like Optuna, it locks the row of the study first. Trials are thus committed in the order of their identifiers,
        and nobody who has read one will find an earlier one later.
        """
        studies, table = self._studies_table, self._trials_table
        with self._engine.begin() as connection:
            connection.execute(
                sqlalchemy.select(studies.c.study_id).where(studies.c.study_id == self._study_id).with_for_update()
            ).one()
            last = connection.execute(
                sqlalchemy.select(table.c.trial_id, table.c.number)
                .where(table.c.study_id == self._study_id)
                .order_by(table.c.trial_id.desc())
                .limit(1)
            ).first()
            last_id, last_number = last or (-1, -1)
            numbers = list(range(last_number + 1, last_number + 1 + len(trials)))
            connection.execute(
                sqlalchemy.insert(table),
                [
                    {
                        "number": number,
                        "study_id": self._study_id,
                        "state": trial.state,
                        "datetime_start": in_utc(trial.datetime_start),
                        "datetime_complete": in_utc(trial.datetime_complete),
                    }
                    for number, trial in zip(numbers, trials, strict=True)
                ],
            )
            # MySQL does not return the identifiers of several rows.
            ids = connection.scalars(
                sqlalchemy.select(table.c.trial_id)
                .where(table.c.study_id == self._study_id, table.c.trial_id > last_id)
                .order_by(table.c.number)
            ).all()
            rows = list(zip(ids, trials, strict=True))
            for into, values in (
                (self._params_table, [row for trial_id, trial in rows for row in params_of(trial_id, trial)]),
                (self._values_table, [row for trial_id, trial in rows for row in self._values_of(trial_id, trial)]),
                (self._attributes_table, [row for trial_id, trial in rows for row in attributes_of(trial_id, trial)]),
            ):
                if values:
                    connection.execute(sqlalchemy.insert(into), values)
        return numbers

    def read(self, attribute: str, after: int) -> Iterator[tuple[int, int, object]]:
        """Yield an attribute of each trial that has it, after the identifier and the number of the trial.

        Args:
            attribute: Name of the attribute.
            after: Identifier of the last trial that is known.
        """
        trials, attributes = self._trials_table, self._attributes_table
        query = (
            sqlalchemy.select(trials.c.trial_id, trials.c.number, attributes.c.value_json)
            .join(
                attributes,
                sqlalchemy.and_(attributes.c.trial_id == trials.c.trial_id, attributes.c.key == attribute),
            )
            .where(trials.c.study_id == self._study_id)
            .order_by(trials.c.trial_id)
            .limit(PAGE)
        )
        n_rows = PAGE
        while n_rows == PAGE:
            with self._engine.connect() as connection:
                rows = connection.execute(query.where(trials.c.trial_id > after)).all()
            for trial_id, number, text in rows:
                after = trial_id
                yield trial_id, number, parse(text)
            n_rows = len(rows)

    def read_study(self, prefix: str) -> dict[str, object]:
        """Return all attributes of the study whose name has a prefix, by name."""
        table = self._study_attributes_table
        query = sqlalchemy.select(table.c.key, table.c.value_json).where(
            table.c.study_id == self._study_id, table.c.key.startswith(prefix, autoescape=True)
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return {key: parse(text) for key, text in rows}

    def _values_of(self, trial_id: int, trial: FrozenTrial) -> Iterator[dict[str, Any]]:
        for objective, value in enumerate(trial.values or ()):
            stored, kind = self._values.value_to_stored_repr(value)
            yield {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}


def open_tables(storage: optuna.storages.BaseStorage, study_id: int) -> TrialTables | None:
    """Return the tables of a study; None if the storage is no database, or its tables are of an unknown version."""
    backend = getattr(storage, "_backend", storage)
    if not isinstance(backend, RDBStorage) or backend.get_current_version() not in SCHEMAS:
        return None
    return TrialTables(backend, study_id)


def params_of(trial_id: int, trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    """Yield the rows of the parameters of a trial."""
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        yield {
            "trial_id": trial_id,
            "param_name": name,
            "param_value": distribution.to_internal_repr(value),
            "distribution_json": distribution_to_json(distribution),
        }


def attributes_of(trial_id: int, trial: FrozenTrial) -> Iterator[dict[str, Any]]:
    """Yield the rows of the attributes of a trial."""
    for key, value in trial.user_attrs.items():
        yield {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}


def in_utc(time: datetime.datetime | None) -> datetime.datetime | None:
    """Return a local time as Optuna keeps it."""
    return time.astimezone(datetime.UTC).replace(tzinfo=None) if time else None


def parse(text: object) -> object:
    """Return a value from JSON, or None if it is not legal."""
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
