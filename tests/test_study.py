"""Files of Optuna's studies."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest

from ortune import UsageError
from ortune.tuning.study import StudyFile, check_study, find_search_id, open_study


def make_study(path: Path, search_id: str, n_trials: int) -> None:
    study = open_study(path, optuna.samplers.RandomSampler(seed=0), 1, search_id=search_id)
    for _ in range(n_trials):
        study.tell(study.ask(), 1.0)


@pytest.mark.parametrize("suffix", [".db", ".journal"])
def test_only_the_study_of_the_same_search_is_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"s{suffix}"
    make_study(path, "abc", 2)
    assert find_search_id(path) == "abc"
    check_study(path, "abc")
    with pytest.raises(UsageError, match="exists already"):
        check_study(path, "other")


@pytest.mark.parametrize("suffix", [".db", ".journal"])
def test_the_study_of_a_search_without_an_identifier_is_not_replaced(suffix: str, tmp_path: Path) -> None:
    """Searches that write no file have none. Their studies are complete."""
    path = tmp_path / f"s{suffix}"
    make_study(path, "", 2)
    with pytest.raises(UsageError, match="exists already"):
        check_study(path, "abc")


@pytest.mark.parametrize("suffix", [".db", ".journal"])
def test_a_study_without_trials_is_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"s{suffix}"
    make_study(path, "", 0)
    check_study(path, "abc")
    path.write_bytes(b"")
    check_study(path, "abc")


def test_another_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "books.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE books (title TEXT)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        check_study(path, "abc")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a?b.db", "a#b%41.db", "a{b}.db"])
def test_a_name_is_not_parsed_as_a_url(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    make_study(path, "abc", 1)
    assert find_search_id(path) == "abc"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_an_error_of_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search handles it in the same way for both kinds of files."""

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    study = open_study(tmp_path / "s.journal", optuna.samplers.RandomSampler(seed=0), 1)
    monkeypatch.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", fail)
    with pytest.raises(optuna.exceptions.StorageInternalError, match="No space left"):
        study.ask()
    with pytest.raises(UsageError, match=r"n\.journal: cannot be written: No space left"):
        open_study(tmp_path / "n.journal", optuna.samplers.RandomSampler(seed=0), 1)
    assert issubclass(StudyFile, optuna.storages.journal.JournalFileBackend)
