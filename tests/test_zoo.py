"""A short search on each model of models/manifest.toml. Run it with `nox -s zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.build import GENERATED, build, find_search_options, read_manifest
from ortune.record.files import read_record, read_trials
from tests.conftest import run_ortune


@pytest.mark.zoo
@pytest.mark.parametrize("name", [*read_manifest(), *GENERATED])
def test_search_works_on_each_model(name: str, tmp_path: Path) -> None:
    try:
        path = build(name)
    except (RuntimeError, ImportError) as error:
        pytest.skip(str(error))
    done = run_ortune(
        "search", path, "-o", "c.json", "--budget", "8s", "--trials", "2", *find_search_options(name), cwd=tmp_path
    )
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    record = read_record(tmp_path / "c.json")
    assert record.evidence.output_check.compared == "values"
    assert any(trial.n_blocks for trial in read_trials(tmp_path / "c.json").trials)
