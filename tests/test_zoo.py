"""The models of models/manifest.toml: their guessed inputs, and a short search. Run it with `nox -s zoo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.guessed_inputs import check_model
from models.build import GENERATED, build, find_search_options, read_manifest
from ortune import read_record
from ortune.record.files import read_trials
from tests.conftest import run_ortune


@pytest.mark.zoo
@pytest.mark.parametrize("name", [*read_manifest(), *GENERATED])
def test_search_works_on_each_model(name: str, tmp_path: Path) -> None:
    try:
        path = build(name)
    except (RuntimeError, ImportError) as error:
        pytest.skip(str(error))
    done = run_ortune(
        "search", path, "-o", "c.json", "--budget", "20s", "--trials", "2", *find_search_options(name), cwd=tmp_path
    )
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    record = read_record(tmp_path / "c.json")
    assert record.evidence.output_check.compared == "values"
    assert any(trial.n_blocks for trial in read_trials(tmp_path / "c.json").trials)


NEED_OPTIONS = {"silero_vad", "ppocrv4_rec"}
"""The models that need options. All others run on guessed inputs."""


@pytest.mark.zoo
@pytest.mark.parametrize("name", [*read_manifest(), *GENERATED])
def test_each_model_runs_without_options_or_its_advice_works(name: str, tmp_path: Path) -> None:
    try:
        path = build(name)
    except (RuntimeError, ImportError) as error:
        pytest.skip(str(error))
    checked = check_model(path, tmp_path)
    assert checked.runs == (name not in NEED_OPTIONS), checked.message
    if not checked.runs:
        assert checked.advised.startswith(f"ortune space {path.name} --"), checked.message
        assert checked.advised_runs, checked.advised
