"""Opens Optuna's study, in memory or in a file."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import optuna

from ortune.errors import UsageError

STUDY_NAME = "ortune"

SEARCH_ID = "search"
"""Attribute of a study: the identifier of its search."""

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JOURNAL_SUFFIXES = (".log", ".journal")
"""File suffixes that select Optuna's storage."""

COMPANION_SUFFIXES = ("-journal", "-wal", "-shm", ".lock")
"""Suffixes of the files that SQLite and Optuna keep next to a study. SQLite would take what a killed process left for a
part of the new study, and Optuna would wait for its lock."""


def check_study(path: Path, replaced_id: str | None = None) -> None:
    """Check that a new study can be written to a file.

    Args:
        path: The file.
        replaced_id: Identifier of the search whose study may be replaced, or None.

    Raises:
        UsageError: It exists and is not the study of that search, or has an unknown suffix.
    """
    if path.suffix not in {*SQLITE_SUFFIXES, *JOURNAL_SUFFIXES}:
        raise UsageError(
            f"{path}: unknown suffix {path.suffix!r}.",
            "Use .db for SQLite, or .journal for Optuna's journal file.",
            option="study",
        )
    if path.exists() and not (replaced_id and find_search_id(path) in {replaced_id, ""}):
        raise UsageError(
            f"{path}: the file exists already.", "Choose a new file. Each search gets its own study.", option="study"
        )


def find_search_id(path: Path) -> str | None:
    """Return the identifier of the search whose study a file holds.

    It is "" for an empty file, which a search leaves that is killed at once, and None if it is not known.
    """
    if not path.stat().st_size:
        return ""
    try:
        # Optuna adds its tables to a database that has none.
        if path.suffix in SQLITE_SUFFIXES and not has_studies(path):
            return None
        study = optuna.load_study(study_name=STUDY_NAME, storage=open_storage(path))
        # Searches without a journal have no identifier. Their studies are not replaced.
        return study.user_attrs.get(SEARCH_ID) or (None if study.trials else "")
    except Exception:  # noqa: BLE001  (Optuna passes on the exceptions of its storages)
        return None


def has_studies(path: Path) -> bool:
    """Return whether an SQLite database has Optuna's tables. None are added to it.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True)) as database:
        names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {"studies", "version_info"} <= names


def open_storage(path: Path) -> Any:
    """Return Optuna's storage in a file."""
    if path.suffix in SQLITE_SUFFIXES:
        import sqlite3

        from sqlalchemy.pool import NullPool

        # A path may hold characters that have a meaning in a URL, or for Optuna. Connections that a pool keeps would be
        # closed by nobody.
        connect = functools.partial(sqlite3.connect, path.resolve(), check_same_thread=False)
        engine = {"creator": connect, "poolclass": NullPool}
        return optuna.storages.RDBStorage("sqlite:///study.db", engine_kwargs=engine)
    return optuna.storages.JournalStorage(StudyFile(str(path)))


class StudyFile(optuna.storages.journal.JournalFileBackend):  # type: ignore[misc]
    """Optuna's journal file, whose errors are the same as those of a database."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add logs to the file.

        Raises:
            StorageInternalError: They cannot be written.
        """
        try:
            super().append_logs(logs)
        except OSError as error:
            raise optuna.exceptions.StorageInternalError(error.strerror or str(error)) from error


def open_study(
    path: Path | None,
    sampler: optuna.samplers.BaseSampler,
    n_objectives: int,
    *,
    search_id: str = "",
    replaced_id: str = "",
) -> optuna.Study:
    """Return a new study: in memory, or in a file that Optuna and its dashboard can open later.

    Args:
        path: A file with a suffix of `SQLITE_SUFFIXES` or `JOURNAL_SUFFIXES`, or None.
        sampler: Proposes candidates.
        n_objectives: Number of objectives.
        search_id: Identifier of the search.
        replaced_id: Identifier of the search whose study is replaced; empty if there is none. The search that goes on
            repeats all of its trials.

    Raises:
        UsageError: The file exists, or has an unknown suffix.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage: Any = None
    if path is not None:
        check_study(path, replaced_id or None)
        if replaced_id:
            path.unlink(missing_ok=True)
        try:
            # Of two searches, one creates the file.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            raise UsageError(f"{path}: cannot be created: {error.strerror}.", option="study") from None
        for suffix in COMPANION_SUFFIXES:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        storage = open_storage(path)
    try:
        study = optuna.create_study(
            study_name=STUDY_NAME, storage=storage, sampler=sampler, directions=["minimize"] * n_objectives
        )
        study.set_user_attr(SEARCH_ID, search_id)
    except optuna.exceptions.StorageInternalError as error:
        raise UsageError(f"{path}: cannot be written: {error}.", option="study") from None
    return study
