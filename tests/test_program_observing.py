"""What is seen of a program before its search, for how long, and what is said of models that it loads later."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ortune.console.warnings import warn_other_models
from ortune.program.prepare import find_observe_s
from ortune.program.search import describe_inputs
from ortune.worker import BlockPlan, Failure
from tests.conftest import TINY_ENCODER
from tests.light_programs import light_sessions, open_uncalibrated
from tests.test_program_outputs import ONE_THREAD, prepare, prepare_calls

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems")

SEEN_CALL, LATE_CALL = 20, 300
"""Calls of the function, of which 50 take a second without settings, and 500 with one thread."""


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    with light_sessions():
        yield


def test_a_model_that_is_loaded_after_some_calls_has_settings() -> None:
    prepared = prepare_calls("late", SEEN_CALL, arguments=(TINY_ENCODER,), budget=60.0)
    assert {model.name for model in prepared.models} == {"tiny_cnn.onnx", "tiny_encoder.onnx"}


def test_a_model_that_is_loaded_while_it_is_measured_is_named() -> None:
    prepared = prepare_calls("late", LATE_CALL, arguments=(TINY_ENCODER,))
    assert [model.name for model in prepared.models] == ["tiny_cnn.onnx"]
    others: set[str] = set()
    with open_uncalibrated(prepared, others=others) as opened:
        (live,) = opened.runner.launch([ONE_THREAD])
        assert not isinstance(live, Failure)
        live.measure(BlockPlan(duration_ns=10**8, lead_in_ns=0, min_calls=LATE_CALL, deadline_s=60))
        assert others == set()
        live.close()
    assert others == {"tiny_encoder.onnx"}
    assert "sessions of tiny_encoder.onnx" in warn_other_models(sorted(others))


def test_shapes_of_the_requests_of_all_bodies(tmp_path: Path) -> None:
    bodies = [tmp_path / str(length) for length in (3, 4, 5)]
    for path in bodies:
        path.write_text("x" * int(path.name))
    url = "http://127.0.0.1:{port}/"
    models = prepare("answers", "{port}", arguments=(TINY_ENCODER,), url=url, body=tuple(bodies)).models
    (model,) = (model for model in models if model.name == "tiny_encoder.onnx")
    assert set(describe_inputs(model)["input_ids"].shapes) == {(1, 3), (1, 4), (1, 5)}


def test_the_time_is_a_share_of_the_budget() -> None:
    times_s = [find_observe_s(budget_s) for budget_s in (1, 100, 1e6, None)]
    assert times_s == [1, 5, 20, 5]
