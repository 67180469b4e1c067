"""Opens Optuna's study, in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from ortune.errors import UsageError

STUDY_NAME = "ortune"

SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
JOURNAL_SUFFIXES = (".log", ".journal")
"""File suffixes that select Optuna's storage."""


def check_study(path: Path) -> None:
    """Check that a new study can be written to a file.

    Raises:
        UsageError: It exists, or has an unknown suffix.
    """
    if path.exists():
        raise UsageError(
            f"{path}: the file exists already.", "Choose a new file. Each search gets its own study.", option="study"
        )
    if path.suffix not in {*SQLITE_SUFFIXES, *JOURNAL_SUFFIXES}:
        raise UsageError(
            f"{path}: unknown suffix {path.suffix!r}.",
            "Use .db for SQLite, or .journal for Optuna's journal file.",
            option="study",
        )


def open_study(path: Path | None, sampler: optuna.samplers.BaseSampler, n_objectives: int) -> optuna.Study:
    """Return a new study: in memory, or in a file that Optuna and its dashboard can open later.

    Args:
        path: A file with a suffix of `SQLITE_SUFFIXES` or `JOURNAL_SUFFIXES`, or None.
        sampler: Proposes candidates.
        n_objectives: Number of objectives.

    Raises:
        UsageError: The file exists, or has an unknown suffix.
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
