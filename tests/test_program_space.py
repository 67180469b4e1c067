"""Settings of single models in the space of a program."""

from __future__ import annotations

import pytest

from ortune.compare.open import start_comparison
from ortune.knobs import DEFAULT, Config, SpaceOptions
from ortune.program.space import ProgramModel, ProgramSpace, build_program_space
from ortune.tuning.outcome import Outcome
from ortune.tuning.stages import SearchSettings, run_search
from ortune.worker import Failure
from ortune.workload import Goal
from tests.simulation import SimulatedExecutor, make_host, make_model

MODELS = ("a.onnx", "b.onnx", "c.onnx")


def make_space() -> ProgramSpace:
    models = [ProgramModel(name=name, info=make_model(), own=DEFAULT, share=0.3) for name in MODELS]
    return build_program_space(make_host(), models, SpaceOptions())


def is_alone(config: Config, model: str) -> bool:
    """Return whether one thread is set for a model alone."""
    return model in config.models and config.models[model].session_options.get("intra_op_num_threads") == 1


def two_models_want_one_thread(config: Config) -> float:
    """The third one, and the program as a whole, are slower with it."""
    changes = {"a.onnx": 0.85, "b.onnx": 0.85, "c.onnx": 1.1}
    latency = 5e6
    for model, change in changes.items():
        latency *= change if is_alone(config, model) else 1.0
    return latency * (1.3 if config.session_options.get("intra_op_num_threads") == 1 else 1.0)


def search(seed: int) -> Outcome:
    executor = SimulatedExecutor(two_models_want_one_thread, seed=seed)
    (first,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(first, Failure)
    opened = start_comparison(
        executor, first, Goal(), first_launch_s=executor.now_s(), seed=seed, free_bytes=8_000_000_000
    )
    return run_search(make_space(), opened, SearchSettings(budget_s=60))


@pytest.mark.parametrize("seed", range(3))
def test_settings_of_models_that_win_alone_are_combined(seed: int) -> None:
    outcome = search(seed)
    assert outcome.evidence.verdict == "faster"
    assert [is_alone(outcome.config, model) for model in MODELS] == [True, True, False]


def test_the_space_lists_settings_of_one_model_at_a_time() -> None:
    space = make_space()
    assert max(len(each.config.models) for each in space.candidates) == 1


def test_what_is_combined() -> None:
    space = make_space()
    alone = [number for number, each in enumerate(space.candidates) if len(each.config.settings) == 1]
    of = {
        model: next(number for number in alone if is_alone(space.candidates[number].config, model)) for model in MODELS
    }
    best = next(
        number
        for number in alone
        if space.candidates[number].config.session_config == {"session.intra_op.allow_spinning": "0"}
    )
    assert space.join(best, dict.fromkeys(of.values(), 0.0)) == []
    assert space.join(best, {of["a.onnx"]: 0.2}) == []
    joined = space.join(best, {of["a.onnx"]: 0.2, of["b.onnx"]: 0.1, of["c.onnx"]: 0.05})
    chosen = [({*each.config.models}, bool(each.config.session_config)) for each in joined]
    assert chosen == [
        ({"a.onnx", "b.onnx"}, True),
        ({*MODELS}, True),
        ({"a.onnx", "b.onnx"}, False),
        ({*MODELS}, False),
    ]
    extended = space.extend(joined)
    assert len(extended.candidates) == len(space.candidates) + 4
    assert all(extended.select(each.labels).config == each.config for each in joined)
