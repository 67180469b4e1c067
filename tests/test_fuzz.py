"""Fuzz targets with few examples, and with the findings of longer runs. `nox -s fuzz` runs more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.run import NAMES
from tests.fuzz.target import pretending
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
"""Inputs that once ended in a traceback, a hang or too much memory, by target."""


@pytest.fixture(autouse=True, scope="module")
def pretend() -> Iterator[None]:
    with pretending():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**63 - 1))
def test_changed_inputs(name: str, seed: int) -> None:
    target = TARGETS[name]
    target.run(target.make(Random(seed)))


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_were_not_changed(name: str) -> None:
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


def test_the_runner_has_all_targets() -> None:
    assert tuple(TARGETS) == NAMES


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_findings(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())
