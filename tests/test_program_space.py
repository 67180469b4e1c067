"""Settings of single models in the space of a program."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec
import pytest

from ortune import Config, Goal
from ortune.knobs import DEFAULT, SpaceOptions
from ortune.measure.open import start_comparison
from ortune.options import make_request
from ortune.program.identity import describe_program_identity
from ortune.program.prepare import PreparedProgram, compare_options, prepare_program
from ortune.program.search import make_records
from ortune.program.space import ProgramModel, ProgramSpace, build_program_space
from ortune.program.tuned import find_base, merge_configs
from ortune.record.schema import Tried
from ortune.requests import ProgramSearchRequest
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.worker import Failure
from tests.conftest import TINY_CNN
from tests.records import make_local_record
from tests.simulated import SimulatedExecutor, make_host, make_model

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
    return simulate(two_models_want_one_thread, make_space(), seed)


def simulate(latency: Callable[[Config], float], space: ProgramSpace, seed: int) -> Outcome:
    executor = SimulatedExecutor(latency, seed=seed)
    (first,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(first, Failure)
    opened = start_comparison(
        executor, first, Goal(), first_launch_s=executor.now_s(), seed=seed, free_bytes=8_000_000_000
    )
    return run_search(space, opened, SearchSettings(budget_s=60))


@pytest.mark.parametrize("seed", range(3))
def test_settings_of_models_that_win_alone_are_combined(seed: int) -> None:
    outcome = search(seed)
    assert outcome.evidence.verdict == "faster"
    assert [is_alone(outcome.config, model) for model in MODELS] == [True, True, False]


def test_the_space_lists_settings_of_one_model_at_a_time() -> None:
    space = make_space()
    assert max(len(candidate.config.models) for candidate in space.candidates) == 1


def test_what_is_combined() -> None:
    space = make_space()
    alone = [number for number, candidate in enumerate(space.candidates) if len(candidate.config.settings) == 1]
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
    chosen = [({*candidate.config.models}, bool(candidate.config.session_config)) for candidate in joined]
    assert chosen == [
        ({"a.onnx", "b.onnx"}, True),
        ({*MODELS}, True),
        ({"a.onnx", "b.onnx"}, False),
        ({*MODELS}, False),
    ]
    extended = space.extend(joined)
    assert len(extended.candidates) == len(space.candidates) + 4
    assert all(extended.select(candidate.labels).config == candidate.config for candidate in joined)


PROGRAM = """
import sys
import numpy as np
import onnxruntime

def create(n_threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(sys.argv[1], options)

for session in (create(1), create(2)):
    session.run(None, {"image": np.zeros((1, 3, 32, 32), np.float32)})
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedProgram:
    """A program whose sessions of one model have different numbers of threads."""
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path), str(TINY_CNN)]
    found = prepare_program(make_request(ProgramSearchRequest, {"command": command}, "python"))
    return msgspec.structs.replace(found, space=build_program_space(make_host(), found.models, SpaceOptions()))


@pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems")
class TestSessionsOfOneModelThatDiffer:
    def test_the_program_itself_has_what_they_have_in_common(self, prepared: PreparedProgram) -> None:
        (model,) = prepared.models
        assert model.own == Config(session_options={"enable_cpu_mem_arena": False})
        assert model.varied == {"intra_op_num_threads": (1, 2)}
        (warning,) = [message for message in prepared.warnings if "differ" in message]
        assert warning.startswith("tiny_cnn.onnx: its sessions differ in intra_op_num_threads.")

    def test_a_default_that_is_set_is_no_difference(self) -> None:
        level = {"graph_optimization_level": "ORT_ENABLE_ALL"}
        assert compare_options([level, {}]) == (level, {})
        assert compare_options([{"intra_op_num_threads": 2}, {}]) == ({}, {"intra_op_num_threads": (0, 2)})
        # No candidate sets the name of a file, which may differ from run to run.
        assert compare_options([{"optimized_model_filepath": path} for path in ("a", "b")]) == ({}, {})

    def test_other_differences_are_another_search(self, prepared: PreparedProgram) -> None:
        (model,) = prepared.models
        other = msgspec.structs.replace(model, varied={"intra_op_num_threads": (2, 8)})
        one, changed = (
            describe_program_identity(msgspec.structs.replace(prepared, models=(variant,)))
            for variant in (model, other)
        )
        assert {name for name in one if one[name] != changed[name]} == {"own settings of tiny_cnn.onnx"}

    def test_what_was_fixed_at_the_default_is_restored_in_the_baseline(self, prepared: PreparedProgram) -> None:
        tried = Tried(session_options=("intra_op_num_threads",))
        record = make_local_record(TINY_CNN, Config(session_config={"session.intra_op.allow_spinning": "0"}))
        record = msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, tried=tried))
        found = find_base([record], prepared.models)
        assert found.session_options == {"intra_op_num_threads": 0}
        set_by_winner = msgspec.structs.replace(record, config=Config(session_options={"intra_op_num_threads": 1}))
        assert find_base([set_by_winner], prepared.models).session_options == {}

    @pytest.mark.parametrize("changed", ["intra_op_num_threads", "session.intra_op.allow_spinning"])
    def test_what_no_candidate_set_stays_as_it_is(self, prepared: PreparedProgram, changed: str) -> None:
        """A record says that a default is a result of the search only where it was set in all of them."""

        def latency(config: Config) -> float:
            settings = {**config.session_options, **config.session_config}
            return 5e6 * (0.7 if str(settings.get(changed)) in {"0", "1"} and settings.keys() == {changed} else 1.0)

        outcome = simulate(latency, prepared.space, seed=0)
        (record,) = make_records(prepared, outcome, "2026-01-01T00:00:00+00:00")
        has_threads = changed == "intra_op_num_threads"
        assert record.evidence.verdict == "faster"
        assert ("intra_op_num_threads" in record.search.tried.session_options) == has_threads
        assert "enable_cpu_mem_arena" in record.search.tried.session_options
        assert record.config.session_options["enable_cpu_mem_arena"] is False
        assert ("intra_op_num_threads" in record.config.session_options) == has_threads
        assert merge_configs([record], prepared.models) == msgspec.structs.replace(
            outcome.config,
            session_options={"enable_cpu_mem_arena": False, **outcome.config.session_options},
        )
