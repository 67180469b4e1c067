"""The benchmark of strategies compares with what Optuna really does."""

from __future__ import annotations

import warnings

import numpy as np
import optuna
import pytest

from benchmarks.tpe import ChoiceTpe

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
