"""Inputs that a model runs on: guessed sizes, and the advice where a model does not run with them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from ortune import InputsError
from ortune.cli import make_advised_command
from ortune.model import InputInfo
from ortune.model.inspect import inspect_model
from ortune.worker.working_inputs import InputsResult, TryRequest, check_inputs, list_options, run_once, try_inputs
from ortune.workload import InputOptions, make_feed
from ortune.workload.working_sizes import RunAttempt, WorkingInputs, find_working_sizes, read_numbers
from tests.conftest import long_params, run_ortune
from tests.input_graphs import GRAPHS, make_graph
from tests.simulated import make_model

NEEDS_OPTIONS = {
    "flat": "--dim height=64 --dim width=64",
    "molecules": "--dim num_angles=256",
    "frames": "--dim n_samples=400",
    "reflection": "--shape x=1x512",
}
"""The generated models that need options, and the options that work."""


def try_here(path: Path, options: InputOptions | None = None) -> InputsResult:
    return try_inputs(TryRequest(model=inspect_model(path), options=options or InputOptions()), lambda stage: None)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_generated_model_runs_or_its_needs_are_found(name: str, tmp_path: Path) -> None:
    path = make_graph(name, tmp_path)
    tried = try_here(path)
    assert bool(tried.message) == (name in NEEDS_OPTIONS)
    assert (tried.found is None) == (name not in NEEDS_OPTIONS)
    if tried.found:
        advised = [f"--{option} {value}" for option, value in list_options(tried.found)]
        assert " ".join(advised) == NEEDS_OPTIONS[name]
        dims = {dimension: (size,) for dimension, size in tried.found.dims.items()}
        assert not try_here(path, InputOptions(dims=dims, shapes=tried.found.shapes)).message


def test_most_generated_models_run_without_options() -> None:
    assert len(GRAPHS) == 10
    assert len(NEEDS_OPTIONS) <= 4


@pytest.mark.parametrize("name", ["flat", "reflection", *long_params("molecules", "frames")])
def test_the_advice_can_be_pasted_and_works(name: str, tmp_path: Path) -> None:
    path = make_graph(name, tmp_path)
    failed = run_ortune("space", path.name, cwd=tmp_path)
    assert failed.returncode == 2
    assert "The model does not run on these inputs" in failed.stderr
    advised = failed.stderr.partition("This runs:\n")[2].strip()
    assert advised == f"ortune space {path.name} {NEEDS_OPTIONS[name]}"
    _, *words = shlex.split(advised)
    again = run_ortune(*words, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")


def test_what_the_user_gave_is_kept(tmp_path: Path) -> None:
    path = make_graph("molecules", tmp_path)
    tried = try_here(path, InputOptions(dims={"num_bonds": (64,)}))
    # As guessed, there are twice as many angles.
    assert not tried.message
    tried = try_here(path, InputOptions(dims={"num_bonds": (96,)}))
    assert tried.found
    # Nothing is left to guess.
    tried = try_here(path, InputOptions(dims={"num_bonds": (40,), "num_angles": (3,), "num_atoms": (2,)}))
    assert tried.message
    assert tried.found is None


def test_a_child_process_finds_them(tmp_path: Path) -> None:
    model = inspect_model(make_graph("reflection", tmp_path))
    with pytest.raises(InputsError) as caught:
        check_inputs(model, make_feed(model, InputOptions()))
    assert caught.value.advised == (("shape", "x=1x512"),)
    assert 'It runs with shape="x=1x512"' in str(caught.value)
    works = InputOptions(shapes={"x": (1, 512)})
    assert check_inputs(model, make_feed(model, works)) is None


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    from ortune.knobs import DEFAULT
    from ortune.worker.session import make_session

    path = make_graph("skips", tmp_path)
    model, session = inspect_model(path), make_session(path, DEFAULT)
    assert run_once(session, model, InputOptions(shapes={"x": (4, 3, 512, 512)}), limit_s=0.0)
    assert not run_once(session, model, InputOptions(), limit_s=None)


class TestSearch:
    """The search on models that are functions of their inputs."""

    def find(self, needed: dict[str, int], *, depth: bool = True, **shapes: Any) -> WorkingInputs | None:
        model = make_model(
            inputs=tuple(InputInfo(name=name, dtype="float32", shape=shape) for name, shape in shapes.items())
        )

        def run(options: InputOptions) -> RunAttempt:
            sizes = {name: size for name, (size,) in options.dims.items()}
            for number, (name, size) in enumerate(needed.items()):
                if sizes.get(name) != size:
                    return RunAttempt(f"{name}: Got: 7 Expected: {size}", number if depth else -1)
            return RunAttempt()

        return find_working_sizes(model, InputOptions(), run)

    def test_several_sizes_are_found_one_after_another(self) -> None:
        found = self.find({"a": 37, "b": 41, "c": 43}, x=("a", "b"), y=("c", 4))
        assert found == WorkingInputs(dims={"a": 37, "b": 41, "c": 43})

    def test_sizes_that_cannot_be_found(self) -> None:
        assert self.find({"a": 37, "b": 41}, depth=False, x=("a", "b")) is None
        assert self.find({"z": 37}, x=(3, 4)) is None

    def test_time_can_run_out(self) -> None:
        model = make_model(inputs=(InputInfo(name="x", dtype="float32", shape=("a",)),))
        assert find_working_sizes(model, InputOptions(), lambda options: None) is None

    def test_numbers_of_messages(self) -> None:
        message = "conv.cc:123 Name:'Conv_77' Status Message: index: 1 Got: 128 Expected: 64 {2,300} 99999999"
        assert list(read_numbers(message)) == [1, 128, 64, 2, 300]


def test_the_advised_command_is_quoted_and_comes_before_the_program() -> None:
    advised = [("shape", "a b=1x2")]
    assert make_advised_command(["ortune", "search", "m.onnx"], advised) == "ortune search m.onnx --shape 'a b=1x2'"
    assert make_advised_command(["x", "search", "--", "-m.onnx"], advised) == (
        "ortune search --shape 'a b=1x2' -- -m.onnx"
    )
