"""The benchmark of strategies compares with what Optuna really does, and constants are not chosen on its test sets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import optuna
import pytest

from benchmarks import regret, tune
from benchmarks.landscape import OUTLYING, Landscape, load_landscape, recorded_paths
from benchmarks.tpe import ChoiceTpe
from ortune.measure import block_plan
from ortune.tuning import plan

SIZES = (3, 5, 2, 4)


def cost(labels: list[int], effects: list[list[float]]) -> float:
    return sum(effect[label] for effect, label in zip(effects, labels, strict=True))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_fast_tpe_proposes_what_optuna_proposes(seed: int) -> None:
    """Irrational effects, so that no two proposals are worth the same to a rounding error."""
    rng = np.random.default_rng(seed)
    effects = [rng.normal(size=size).tolist() for size in SIZES]
    names = [f"dimension{number}" for number in range(len(SIZES))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    fast = ChoiceTpe(SIZES, seed)
    for _ in range(90):
        trial = study.ask()
        labels = [trial.suggest_categorical(name, list(range(size))) for name, size in zip(names, SIZES, strict=True)]
        assert fast.ask() == labels
        value = cost(labels, effects)
        study.tell(trial, value)
        fast.tell(labels, value)


class TestTuning:
    """Constants are chosen on development landscapes only."""

    @pytest.fixture(autouse=True)
    def no_test_landscapes(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Make it an error to read a landscape of the test sets."""

        def read(path: Path, *, outlying: float) -> Landscape:
            assert not regret.is_for_testing(path)
            return load_landscape(path, outlying=outlying)

        def refuse() -> list[Landscape]:
            raise AssertionError("a test landscape was read")

        monkeypatch.setattr(regret, "load_landscape", read)
        monkeypatch.setattr(regret, "all_held_out", refuse)
        regret.development_set.cache_clear()
        yield
        regret.development_set.cache_clear()

    def test_the_script_for_tuning_does_not_read_test_landscapes(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.argv", ["tune", "--sets=recorded", "--replays=1", "--budgets=5"])
        tune.main()
        assert "recorded, development" in capsys.readouterr().out
        names = {landscape.name for landscape in regret.development_set(regret.RECORDED_DEVELOPMENT)}
        assert "squeezenet" in names
        assert not any(regret.is_for_testing(Path(name)) for name in names)

    def test_a_constant_is_set_everywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (block_plan, plan):
            monkeypatch.setattr(module, "SHORT_BLOCK_NS", block_plan.SHORT_BLOCK_NS)
        tune.set_constant("measure.block_plan.SHORT_BLOCK_NS=123")
        assert [vars(module)["SHORT_BLOCK_NS"] for module in (block_plan, plan)] == [123, 123]

    @pytest.mark.parametrize(
        "text", ["tuning.plan.NONE=1", "tuning.plan.SCREENING_BATCH='8'", "tuning.plan.split_budget=1"]
    )
    def test_unknown_constants_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=text.partition("=")[0]):
            tune.set_constant(text)


def test_pruning_leaves_the_time_that_a_proof_needs() -> None:
    """Blocks take half of the time of a launch, so that three launches of four sides take longer than planned."""
    path = next(path for path in recorded_paths() if path.stem == "minilm_l6_int8_2_callers")
    landscape = load_landscape(path, outlying=OUTLYING)
    row = regret.replay(msgspec.structs.replace(landscape, speeds=regret.UNSTEADY), "ours", 60.0, 3)
    assert row["verdict"] == "faster"
    assert row["n_launches"] >= 5
