"""Fuzz targets with few examples, and with the findings of longer runs. `nox -s fuzz` runs more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune.gates.reporters.history import read_history
from tests.fuzz.run import NAMES
from tests.fuzz.target import pretending
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
"""Inputs that once ended in a traceback, a hang or too much memory, by target."""


pytestmark = pytest.mark.filterwarnings("ignore")
"""Warnings, such as those of records that are trusted, are no findings."""


@pytest.fixture(autouse=True, scope="module")
def pretend() -> Iterator[None]:
    with pretending():
        yield


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**63 - 1))
def test_changed_inputs(name: str, seed: int) -> None:
    target = TARGETS[name]
    target.run(target.make(Random(seed)))


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_were_not_changed(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


def test_seeds_of_histories_are_histories(tmp_path: Path) -> None:
    """Most changes of a file that is not read at all reach nothing."""
    path = tmp_path / "h.jsonl"
    for seed, n_entries in zip(TARGETS["histories"].seeds(), (3, 1), strict=True):
        path.write_bytes(seed)
        entries, broken = read_history(path)
        assert (len(entries), broken) == (n_entries, ())


def test_the_runner_has_all_targets() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_findings(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
