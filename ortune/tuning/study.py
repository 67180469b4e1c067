"""Optuna's study: in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from ortune.errors import UsageError

if TYPE_CHECKING:
    pass


SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JOURNAL_SUFFIXES = (".log", ".journal")
"""What Optuna's study can be kept in, by the file's suffix."""


def check_study(path: Path) -> None:
    """Check that a file can take a new study.

    Raises:
        UsageError: It exists, or has another suffix.
    """
    if path.exists():
        raise UsageError(f"--study {path}: the file exists.", "Name a new file; each search gets its own study.")
    if path.suffix not in {*SQLITE_SUFFIXES, *JOURNAL_SUFFIXES}:
        raise UsageError(
            f"--study {path}: the suffix {path.suffix!r} is not known.",
            "Use .db for SQLite, or .journal for Optuna's journal file.",
        )


STUDY_NAME = "ortune"


def open_study(path: Path | None, sampler: optuna.samplers.BaseSampler, n_objectives: int) -> optuna.Study:
    """Return a new study: in memory, or in a file that Optuna and its dashboard can open later.

    Args:
        path: A file whose suffix says its kind: .db, .sqlite or .sqlite3 for SQLite, .log or .journal for Optuna's
            journal; or None.
        sampler: Proposes candidates.
        n_objectives: How many objectives there are.

    Raises:
        UsageError: The file exists, or has another suffix.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage: Any = None
    if path is not None:
        check_study(path)
        if path.suffix in SQLITE_SUFFIXES:
            storage = f"sqlite:///{path.resolve()}"
        else:
            backend = optuna.storages.journal.JournalFileBackend(str(path))
            storage = optuna.storages.JournalStorage(backend)
    return optuna.create_study(
        study_name=STUDY_NAME, storage=storage, sampler=sampler, directions=["minimize"] * n_objectives
    )
