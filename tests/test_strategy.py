"""Strategies, the additive model, landscapes and their replay, and hints from earlier searches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import msgspec
import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import cores, regret, synthetic
from benchmarks.held_out import BEST_GAIN, N_INSTANCES, make_held_out
from benchmarks.landscape import (
    IMPOSSIBLE,
    LANDSCAPES,
    N_QUANTILES,
    About,
    Graphs,
    Landscape,
    Recording,
    fit,
    load_landscape,
    merge_space,
    pool_twins,
    recorded_paths,
)
from benchmarks.replay import ReplayExecutor, open_replay
from ortune import Config, Goal, Objective, Progress, UsageError
from ortune.host import HostClass, read_host
from ortune.knobs import DEFAULT, Candidate, SearchSpace, SpaceOptions, build_space
from ortune.knobs.thread_dimensions import counts_between, thread_counts
from ortune.measure.compute_figures import compute_block_figure
from ortune.model import read_model
from ortune.options import make_request
from ortune.record.trials import TrialRound
from ortune.requests import SearchRequest, StrategyName
from ortune.tuning.additive import BASELINE_NUMBER, SLOW_SIGMA, AdditiveModel, ObservedLaunch, features_of
from ortune.tuning.board import ScreeningResult
from ortune.tuning.hints import (
    describe_search,
    history_path,
    measure_similarity,
    read_past_searches,
    recall,
    remember,
)
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.noise import RoundNoise, split_variance
from ortune.tuning.outcome import Outcome
from ortune.tuning.outliers import limit_rounds
from ortune.tuning.plan import SCREENING_BATCH
from ortune.tuning.prepare import prepare
from ortune.tuning.racing import Standing, choose_candidates, rank_finalists, take_turns
from ortune.tuning.results import CandidateResult, Results, Score
from ortune.tuning.sampler import CONFIG, CandidateSampler, Observed, ThompsonSampler, make_sampler
from ortune.tuning.screening import FEWEST_SHARE
from ortune.tuning.search import MAX_REMEMBERED, best_configs
from ortune.worker import BlockPlan, Failure, Runtime
from ortune.workload import make_goal, make_load
from tests.conftest import TINY_CNN, long_params
from tests.simulated import make_host, make_model

PLAN = BlockPlan(duration_ns=50_000_000, lead_in_ns=4_000_000, min_calls=2, deadline_s=30)


def small_space(width: int = 1) -> SearchSpace:
    return build_space(make_host(4), make_model(width))


def effects_of(space: SearchSpace, seed: int = 0) -> Callable[[Candidate], float]:
    """Return an additive log-cost of candidates."""
    rng = np.random.default_rng(seed)
    effects = {
        (dimension.name, choice.label): float(rng.normal(0, 0.1))
        for dimension in space.dimensions
        for choice in dimension.choices[1:]
    }
    return lambda candidate: sum(effects.get(item, 0.0) for item in candidate.labels.items())


def additive_landscape(space: SearchSpace, *, noise: float = 0.01, gain: float = 1.0, seed: int = 0) -> Landscape:
    log_cost = effects_of(space, seed)
    rng = np.random.default_rng(seed)
    n = len(space.candidates)
    return Landscape(
        name="additive",
        space=space,
        goal=Goal(),
        log_costs=math.log(2e6) + gain * np.array([log_cost(candidate) for candidate in space.candidates]),
        lucks=rng.normal(0, noise / 2, 100),
        quiet=synthetic.make_pool(rng, 0.0, noise, (0.0, 0.03), n),
        contended=synthetic.make_pool(rng, 0.3, 0.1, (0.1, 0.4), n),
        contended_share=0.1,
        drift=0.02 * np.sin(np.arange(100) / 10),
        drift_step_s=0.5,
        launch_s=0.1,
        start_s=0.1,
    )


def make_score(log_ratio: float, launch: int) -> Score:
    return Score(log_ratios=(log_ratio,), excesses=(), contended=False, launch=launch, blocks=None)


def make_state(measured: Mapping[int, tuple[float, bool]]) -> Any:
    """Return a search after screening: the log-ratio of each candidate, and whether the host was busy, by number."""
    space = small_space()
    results = Results(Goal())
    for number in range(1 + max(measured)):
        result = results.get_or_add(space.candidates[number])
        if number in measured:
            log_ratio, contended = measured[number]
            result.scores.append(msgspec.structs.replace(make_score(log_ratio, 1), contended=contended))
    plan = SimpleNamespace(max_live=64)
    return cast(
        "Any",
        SimpleNamespace(results=results, goal=Goal(), plan=plan, space=space, screened=ScreeningResult(luck=0.003)),
    )


def search(
    landscape: Landscape,
    strategy: StrategyName = "adaptive",
    *,
    budget_s: float = 60,
    seed: int = 0,
    hints: tuple[Config, ...] = (),
    reports: list[Progress] | None = None,
) -> Outcome:
    return run_search(
        landscape.first_space,
        open_replay(landscape, seed=seed),
        SearchSettings(budget_s=budget_s, strategy=strategy, hints=hints),
        (lambda progress: None) if reports is None else reports.append,
    )


class TestAdditiveModel:
    def test_the_default_has_no_features(self) -> None:
        main, shares, pairs = features_of(small_space(width=4))
        assert not main[BASELINE_NUMBER].any()
        assert not pairs[BASELINE_NUMBER].any()
        assert len(shares) == main.shape[1]
        assert all(column.any() for column in (*main.T, *pairs.T))

    def test_candidates_are_predicted_from_those_that_were_measured(self) -> None:
        space = small_space(width=4)
        truth = np.array([effects_of(space)(candidate) for candidate in space.candidates])
        rng = np.random.default_rng(1)
        seen = rng.choice(np.arange(1, len(truth)), 60, replace=False)
        model = AdditiveModel(space, rng)
        model.fit(
            [
                ObservedLaunch(int(number), float(truth[number] + rng.normal(0, 0.01)), 0.01**2, place // 8)
                for place, number in enumerate(seen)
            ]
        )
        unseen = np.setdiff1d(np.arange(len(truth)), seen)
        assert np.corrcoef(model.mean()[unseen], truth[unseen])[0, 1] > 0.95
        draws = model.draw(400)
        assert draws[BASELINE_NUMBER].tolist() == [0.0] * 400
        assert np.abs(draws.mean(axis=1) - model.mean()).max() < 0.05
        assert np.quantile(draws[unseen].std(axis=1), 0.1) > draws[seen].std(axis=1).mean()

    def test_the_effect_of_one_candidate_alone_does_not_change_the_others(self) -> None:
        space = small_space()
        rng = np.random.default_rng(0)
        numbers = np.arange(1, len(space.candidates))
        y = rng.normal(0, 0.1, len(numbers))
        model = AdditiveModel(space, rng)
        model.fit([ObservedLaunch(int(number), float(y[number - 1]), 1e-6, int(number)) for number in numbers])
        better = y < 0
        assert np.abs(model.mean()[numbers] - y)[better].max() < 0.02
        # How slow a slow candidate is matters less.
        assert (model.mean()[numbers] - y)[~better].min() > -2 * SLOW_SIGMA * y.max()
        assert model.mean()[numbers][~better].min() > -0.005

    @pytest.mark.parametrize(("luck", "expected"), [(0.002, 0.003), (0.08, 0.08)])
    def test_how_much_launches_differ_is_estimated(self, luck: float, expected: float) -> None:
        """The launch of the baseline shifts all candidates of a batch, and each launch the candidate itself."""
        space = small_space(width=2)
        truth = np.array([0.3 * effects_of(space)(candidate) for candidate in space.candidates])
        rng = np.random.default_rng(3)
        shifts = rng.normal(0, luck, 10)
        observations = [
            ObservedLaunch(
                number, float(truth[number] + shifts[place // 8] + rng.normal(0, luck)), 0.001**2, place // 8
            )
            for place, number in enumerate(rng.choice(np.arange(1, len(truth)), 80, replace=False).tolist())
        ]
        model = AdditiveModel(space, rng)
        model.fit(observations)
        assert model.baseline_luck == expected
        # That of candidates cannot be distinguished from effects of their own, but is usually the same.
        assert expected / 3 < model.luck <= expected

    def test_a_launch_of_the_baseline_that_stalled_does_not_make_its_batch_promising(self) -> None:
        """All candidates cost the same. In one batch of six, the baseline was 15 % slower than usual."""
        space = small_space(width=2)
        rng = np.random.default_rng(4)
        numbers = rng.choice(np.arange(1, len(space.candidates)), 48, replace=False).tolist()
        observations = [
            ObservedLaunch(number, float(rng.normal(-0.15 if place // 8 == 3 else 0.0, 0.003)), 0.003**2, place // 8)
            for place, number in enumerate(numbers)
        ]
        model = AdditiveModel(space, rng)
        model.fit(observations)
        assert np.abs(model.mean()).max() < 0.05
        assert model.luck <= 0.01

    @pytest.mark.parametrize(("spread", "most"), [(0.45, 0.5), (0.0, 0.08)])
    def test_launches_of_the_baseline_may_differ_more_than_others(self, spread: float, most: float) -> None:
        """In three of five batches, the baseline is slow, and all candidates seem to take 60 % less time than it.

        That is not believed if its cost is the same in all batches.
        """
        space = small_space(width=2)
        rng = np.random.default_rng(6)
        numbers = rng.choice(np.arange(1, len(space.candidates)), 40, replace=False).tolist()
        observations = [
            ObservedLaunch(number, float((-0.9, 0.0)[place // 8 % 2] + rng.normal(0, 0.003)), 0.003**2, place // 8)
            for place, number in enumerate(numbers)
        ]
        model = AdditiveModel(space, rng)
        model.most_baseline_luck = max(0.08, spread * 1.5)
        model.fit(observations)
        assert model.baseline_luck == most
        believed = -float(model.mean()[numbers].min())
        assert believed < 0.4 if spread else believed > 0.7

    def test_noisy_blocks_of_the_baseline_do_not_make_a_batch_promising(self) -> None:
        """All candidates of the second batch seem to gain 10 %, but its rounds differ by as much."""
        space = small_space(width=2)
        rng = np.random.default_rng(5)
        numbers = rng.choice(np.arange(1, len(space.candidates)), 16, replace=False).tolist()
        expected = []
        for sigma in (0.003, 0.1):
            observations = [
                *(ObservedLaunch(number, float(rng.normal(0, 0.003)), 0.003**2, 0) for number in numbers[:8]),
                *(ObservedLaunch(number, float(rng.normal(-0.1, 0.003)), sigma**2, 1) for number in numbers[8:]),
            ]
            model = AdditiveModel(space, np.random.default_rng(0))
            model.fit(observations)
            expected.append(float(model.mean()[numbers[8:]].mean()))
        assert expected[1] > 0.5 * expected[0]

    def test_a_model_of_an_extended_space_keeps_what_it_learned(self) -> None:
        space = build_space(make_host(24), make_model(1))
        rng = np.random.default_rng(0)
        model = AdditiveModel(space, rng)
        observations = [
            ObservedLaunch(number, float(rng.normal(0, 0.05)), 1e-6, number // 8)
            for number in rng.choice(np.arange(1, len(space.candidates)), 30, replace=False).tolist()
        ]
        model.fit(observations)
        extended = space.extend(space.refine(0))
        after = AdditiveModel(extended, rng, model)
        assert after.luck == model.luck
        after.fit(observations)
        assert after.mean()[: len(space.candidates)] == pytest.approx(model.mean(), abs=0.03)
        assert len(after.mean()) == len(extended.candidates) > len(space.candidates)

    def test_pairs_of_choices_that_were_not_measured_are_counted(self) -> None:
        space = small_space()
        model = AdditiveModel(space, np.random.default_rng(0))
        alone = [space.numbers[space.select(labels).config.key] for labels in space.one_factor()]
        quick = [ObservedLaunch(number, 0.0, 1e-4, 0) for number in alone]
        model.fit(quick)
        counts = model.count_new_pairs(np.array(alone), 0.1)
        assert not counts[[BASELINE_NUMBER, *alone]].any()
        assert counts.max() > 3
        # A candidate that is about to be measured leaves fewer to the next one.
        chosen = int(np.argmax(counts))
        after = model.count_new_pairs(np.array([*alone, chosen]), 0.1)
        assert not after[chosen]
        assert (after <= counts).all()
        # A pair with a choice that is slow on its own does not count.
        slow = {"session.dynamic_block_base": "4"}
        number = space.numbers[space.select(slow).config.key]
        with_slow = [n for n, candidate in enumerate(space.candidates) if slow.items() <= candidate.labels.items()]
        others = [n for n in range(1, len(space.candidates)) if n not in with_slow][:30]
        launches = [ObservedLaunch(number, 0.5, 1e-6, 0) for _ in range(3)]
        model.fit([*(ObservedLaunch(other, 0.0, 1e-4, 0) for other in others), *launches])
        counts = model.count_new_pairs(np.array([number, *others]), 0.1)
        assert not counts[with_slow].any()
        assert counts.any()
        # Once all candidates are measured, there is none.
        everything = np.arange(1, len(space.candidates))
        model.fit([ObservedLaunch(number, 0.0, 1e-4, 0) for number in everything.tolist()])
        assert not model.count_new_pairs(everything, 0.1).any()

    def test_several_launches_of_a_candidate_are_averaged(self) -> None:
        space = small_space()
        model = AdditiveModel(space, np.random.default_rng(0))
        others = [ObservedLaunch(number, 0.0, 1e-4, 99) for number in range(2, 12)]
        model.fit([*others, ObservedLaunch(1, -0.3, 1e-4, 1)])
        alone = model.mean()[1]
        model.fit([*others, *(ObservedLaunch(1, -0.3, 1e-4, batch) for batch in (1, 2, 3, 4))])
        assert -0.3 <= model.mean()[1] < alone < 0

    def test_without_measurements_the_prediction_is_zero(self) -> None:
        model = AdditiveModel(small_space(), np.random.default_rng(0))
        assert not model.mean().any()
        assert model.draw(50)[1:].std() > 0.05

    def test_a_space_of_one(self) -> None:
        space = build_space(make_host(1), make_model())
        alone = msgspec.structs.replace(space, dimensions=())
        model = AdditiveModel(alone, np.random.default_rng(0))
        assert model.draw(3).tolist() == [[0.0, 0.0, 0.0]]
        assert model.mean().tolist() == [0.0]


class TestNeighbors:
    def test_they_differ_in_one_choice(self) -> None:
        space = small_space(width=3)
        for number in (0, 1, len(space.candidates) - 1):
            own = space.candidates[number].labels
            neighbors = space.neighbors(number)
            assert len(neighbors)
            assert number not in neighbors
            for neighbor in neighbors:
                other = space.candidates[int(neighbor)].labels
                assert sum(own[name] != other[name] for name in own.keys() & other.keys()) == 1

    def test_every_second_proposal_is_a_neighbor_of_a_leader(self) -> None:
        space = small_space(width=3)
        sampler = ThompsonSampler(space, seed=0)
        study = optuna.create_study(sampler=sampler)
        leader = len(space.candidates) // 2
        sampler.observed = [Observed(leader, (-0.2,), 1e-4, 0.0, True, 1)]
        sampler.leaders = [leader]
        untried = np.array([number for number in range(1, len(space.candidates)) if number != leader])
        chosen = [sampler.choose(study, untried) for _ in range(20)]
        assert set(chosen[1::2]) <= set(space.neighbors(leader).tolist())
        assert not set(chosen[::2]) <= set(space.neighbors(leader).tolist())


def falls_then_rises(rest: float, weight: float, step: float) -> Callable[[float, float], float]:
    """Return a cost by number of threads and best number: work that is divided, what threads add, and a step."""
    return lambda n, best: (rest / best + 1 / n + weight * n / best**2) * (1 + step * (n > best))


CURVES: dict[str, Callable[[float, float], float]] = {
    "overhead": falls_then_rises(0.3, 1.0, 0.0),
    "cliff": falls_then_rises(0.0, 0.0, 0.5),
    "bandwidth": lambda n, best: 0.4 / n + 0.6 / min(n, best) + 0.7 * n / best**2,
}


class TestRefinement:
    def test_thread_counts_between_those_of_the_space(self) -> None:
        space = build_space(make_host(96), make_model(1))
        threads = next(dimension for dimension in space.dimensions if dimension.name == "intra_op_num_threads")
        assert {"5", "20", "23", "37", "56", "80"} <= {choice.label for choice in threads.between}
        assert {"24", "48", "64", "96"} <= {choice.label for choice in threads.choices}
        assert not {choice.label for choice in threads.choices} & {choice.label for choice in threads.between}

    @settings(max_examples=100, deadline=None)
    @given(st.integers(4, 256), st.sampled_from([1, 2, 4]), st.data())
    def test_a_count_within_two_percent_of_the_best_can_be_tried(
        self, n_cores: int, n_nodes: int, data: st.DataObject
    ) -> None:
        counts = thread_counts(make_host(n_cores, n_nodes=n_nodes))
        tried = sorted(counts | counts_between(counts))
        assert all(after <= max(1.02 * before, before + 1) for before, after in itertools.pairwise(tried))
        best = data.draw(st.integers(1, n_cores))
        for curve in CURVES.values():
            lowest = min(curve(n, best) for n in range(1, n_cores + 1))
            assert min(curve(n, best) for n in tried) <= 1.02 * lowest

    @pytest.mark.parametrize("n_cores", [24, 48, 96, 192])
    @pytest.mark.parametrize("shape", list(CURVES))
    def test_the_best_count_is_next_to_the_best_listed_one(self, n_cores: int, shape: str) -> None:
        space = build_space(make_host(n_cores, n_nodes=2), make_model(1))
        name = "intra_op_num_threads"
        listed = [
            number for number, candidate in enumerate(space.candidates) if set(candidate.config.settings) == {name}
        ]
        for best in range(2, n_cores + 1, 1 if n_cores < 96 else 7):

            def cost(candidate: Candidate, best: int = best) -> float:
                return CURVES[shape](int(candidate.config.session_options[name]), best)

            first = min(listed, key=lambda number: cost(space.candidates[number]))
            lowest = min(CURVES[shape](n, best) for n in range(1, n_cores + 1))
            assert min(map(cost, space.refine(first))) <= 1.02 * lowest

    def test_candidates_next_to_a_candidate(self) -> None:
        space = build_space(make_host(96), make_model(1))
        labels = {"intra_op_num_threads": "32", "session.dynamic_block_base": "4"}
        number = space.numbers[space.select(labels).config.key]
        found = space.refine(number)
        counts = [candidate.config.session_options["intra_op_num_threads"] for candidate in found]
        assert counts[0] == 32
        assert sorted(counts) == list(range(24, 49))
        assert all(candidate.labels["session.dynamic_block_base"] == "4" for candidate in found)
        extended = space.extend(found)
        assert extended.candidates[: len(space.candidates)] == space.candidates
        assert extended.extend(extended.refine(number)).candidates == extended.candidates
        # Next to a new candidate are those of the same interval.
        new = extended.numbers[space.select({**labels, "intra_op_num_threads": "37"}).config.key]
        assert new >= len(space.candidates)
        assert {candidate.labels["intra_op_num_threads"] for candidate in extended.refine(new)} == {
            str(n) for n in range(32, 49)
        }

    def test_a_count_is_combined_with_all_other_settings(self) -> None:
        space = build_space(make_host(48, n_nodes=2), make_model(3))
        name = "intra_op_num_threads"

        def others(count: str, found: Iterable[Candidate]) -> set[tuple[tuple[str, str], ...]]:
            return {
                tuple((key, label) for key, label in candidate.labels.items() if key != name)
                for candidate in found
                if candidate.labels.get(name) == count
            }

        found = space.combine({name: "37"})
        assert {candidate.config.session_options[name] for candidate in found} == {37}
        assert len({candidate.config.key for candidate in found}) == len(found)
        assert others("37", found) == others("32", space.candidates)
        assert space.combine({name: "32"}) == space.combine({}) == []

    def test_configs_of_earlier_searches_may_have_any_count(self) -> None:
        space = build_space(make_host(96), make_model(1))
        config = Config(
            session_options={"intra_op_num_threads": 37}, session_config={"session.dynamic_block_base": "4"}
        )
        assert config.key not in space.numbers
        found = space.find(config)
        assert found
        assert found.config == config
        assert space.find(DEFAULT) == space.candidates[0]
        assert space.find(Config(session_options={"intra_op_num_threads": 97})) is None
        landscape = additive_landscape(synthetic.list_between(space))
        landscape = msgspec.structs.replace(landscape, unrefined=space)
        assert search(landscape, budget_s=5, hints=(config,)).trials[1].config == config

    @pytest.mark.parametrize("strategy", ["tpe", "random"])
    def test_other_strategies_try_listed_counts_only(self, strategy: StrategyName) -> None:
        listed = build_space(make_host(24), make_model(1))
        outcome = search(additive_landscape(listed), strategy, budget_s=10)
        assert len(outcome.trials) > 10
        assert not any(trial.failure for trial in outcome.trials)

    def test_the_default_has_as_many_threads_as_there_are_cores(self) -> None:
        space = build_space(make_host(96), make_model(1))
        counts = {candidate.config.session_options.get("intra_op_num_threads", 0) for candidate in space.refine(0)}
        assert {0, 96, 95, 80, 64} <= counts
        assert min(counts - {0}) == 64

    def test_the_smallest_hosts_have_all_counts(self) -> None:
        space = small_space()
        assert not any(dimension.between for dimension in space.dimensions)
        assert space.refine(0) == [space.candidates[0]]

    def test_values_that_the_user_names_are_not_refined(self) -> None:
        options = SpaceOptions(tune={"intra_op_num_threads": (8, 64)})
        space = build_space(make_host(96), make_model(1), options)
        assert not any(dimension.between for dimension in space.dimensions)

    def test_a_search_finds_a_count_that_the_space_does_not_list(self) -> None:
        """The best of 96 counts is 37, which is 5 to 8 % faster than the next ones that the space lists."""
        listed = build_space(make_host(96), make_model(1))
        space = synthetic.list_between(listed)
        counts = [
            int(candidate.config.session_options.get("intra_op_num_threads", 96)) for candidate in space.candidates
        ]
        landscape = msgspec.structs.replace(
            additive_landscape(space, gain=0.0, noise=0.005),
            unrefined=listed,
            log_costs=math.log(2e6) + 0.3 * np.abs(np.log(np.array(counts) / 37)),
        )
        found = [search(landscape, budget_s=60, seed=seed) for seed in range(3)]
        regrets = [
            landscape.log_speedup(landscape.best) - landscape.log_speedup(space.numbers[outcome.config.key])
            for outcome in found
        ]
        assert sorted(regrets)[1] < 0.02
        assert all(outcome.n_candidates > len(listed.candidates) for outcome in found)

    def test_landscapes_of_the_benchmark_have_every_count(self) -> None:
        landscape = cores.make_landscape("cliff", 20, 1, 0)
        counts = cores.make_counts(20, 1)
        assert set(counts.n_threads) == set(range(1, 21))
        assert counts.listable.all()
        assert cores.find_regret(landscape, np.arange(len(landscape.log_costs))) == 0
        again = cores.make_landscape("cliff", 20, 1, 0)
        assert (again.log_costs == landscape.log_costs).all()
        development, test = (set(hosts) for hosts, _ in cores.SETS.values())
        assert not development & test


class TestPairs:
    def test_the_best_settings_are_tried_in_pairs(self) -> None:
        """Each of three settings gains 5 to 12 %, and all others cost as much."""
        space = small_space(width=2)
        gains = {("intra_op_num_threads", "2"): 0.12, ("session.dynamic_block_base", "4"): 0.05}
        gains["graph_optimization_level", "ORT_ENABLE_BASIC"] = 0.08

        def cost(candidate: Candidate) -> float:
            return sum(-gains.get(item, -0.05) for item in candidate.chosen.items())

        costs = np.array([cost(candidate) for candidate in space.candidates])
        landscape = synthetic.assemble("pairs", space, costs + math.log(5e6), np.random.default_rng(0), luck=0.002)
        outcome = search(landscape, budget_s=25)
        tried = [space.candidates[space.numbers[trial.config.key]].chosen for trial in outcome.trials[1:]]
        pairs = [place for place, labels in enumerate(tried) if len(labels) == 2 and labels.items() <= gains.keys()]
        assert len(pairs) == 3
        # They follow the settings alone, and what the sampler had proposed for the same batch.
        n_alone = sum(len(dimension.choices) - 1 for dimension in space.dimensions)
        assert max(pairs) < n_alone + 2 * SCREENING_BATCH


class TestNoise:
    def test_rounds_that_differ_count_less(self) -> None:
        """The squares of a launch are those of its rounds around their mean; with several objectives, the noisiest."""
        result = CandidateResult(small_space().candidates[1], 1, Goal())
        result.scores += [make_score(0.1, 1), make_score(0.3, 1), make_score(0.2, 2)]
        noise = RoundNoise()
        noise.update([result])
        assert noise.squares[1][0] == pytest.approx(0.02)
        assert noise.squares[1][1] == 1
        assert noise.squares[2] == (0.0, 0)

    @pytest.mark.parametrize("factor", [1, 100])
    def test_a_block_that_stalled_does_not_count_in_full(self, factor: float) -> None:
        """The median of the rounds does not depend on it, and its error hardly does."""
        rng = np.random.default_rng(3)
        noise = RoundNoise()
        results = [CandidateResult(candidate, n, Goal()) for n, candidate in enumerate(small_space().candidates[:9])]
        for result in results[1:]:
            ratios = rng.normal(0, 0.02, 6)
            ratios[0] *= factor
            result.scores += [make_score(float(ratio), 1) for ratio in ratios]
        noise.update(results[1:])
        assert 0.015 < math.sqrt(noise.variance) < 0.06

    @pytest.mark.parametrize(("of_baseline", "share"), [(0.5, 0.98), (0.05, 0.5), (0.0, 0)])
    def test_the_share_of_the_baseline_is_estimated(self, of_baseline: float, share: float) -> None:
        """The noise of its blocks is the same for all candidates of a round."""
        rng = np.random.default_rng(2)
        noise = RoundNoise()
        results = [CandidateResult(candidate, n, Goal()) for n, candidate in enumerate(small_space().candidates[:9])]
        for launch in range(1, 41):
            for _ in range(4):
                shift = rng.normal(0, of_baseline)
                for result in results:
                    log_ratio = shift + rng.normal(0, 0.05) if result.number else 0.0
                    result.scores.append(make_score(log_ratio, launch))
            noise.update(results)
        assert noise.baseline_share == pytest.approx(share, abs=0.1)

    def test_one_candidate_alone_shows_nothing_of_the_baseline(self) -> None:
        result = CandidateResult(small_space().candidates[1], 1, Goal())
        result.scores += [make_score(0.1, 1), make_score(0.3, 1)]
        assert split_variance([[score.log_ratios for score in result.scores]]) is None
        assert split_variance([]) is None

    def test_how_much_the_baseline_differs_between_launches(self) -> None:
        results = Results(Goal())
        assert results.spread_baseline() == 0
        for launch, cost_ns in enumerate((1e6, 1.2e6, 3e6, 1.44e6)):  # one is slow
            results.rounds += [
                TrialRound(stage="screening", launch=launch, values={0: (factor * cost_ns,), 1: (1e6,)}, at_s=0.0)
                for factor in (0.9, 1, 1.3)
            ]
        results.rounds.append(TrialRound(stage="confirmation", launch=0, values={0: (1e9,)}, at_s=0.0))
        assert results.spread_baseline() == pytest.approx(math.log(1.2) / math.sqrt(2))

    def test_a_noisy_host_gets_more_rounds(self) -> None:
        """Blocks of a candidate in screening, by the noise of the host."""
        n_blocks = []
        for noise in (0.005, 0.15):
            outcome = search(additive_landscape(small_space(), gain=0.0, noise=noise), budget_s=30)
            n_blocks.append(max(trial.n_blocks for trial in outcome.trials[1:] if trial.stage == "screening"))
        assert n_blocks[1] > n_blocks[0]


class TestRacing:
    def test_candidates_that_lag_by_more_than_chance_are_dropped(self) -> None:
        rng = np.random.default_rng(1)
        levels = np.array([-0.30, -0.29, -0.10, 0.0])
        # The launch of the baseline shifts all candidates alike.
        shifts = rng.normal(0, 0.2, 3)
        values = levels[:, None, None] + shifts[None, :, None] + rng.normal(0, 0.005, (4, 3, 1))
        assert Standing.estimate(values, luck=0.01).find_slower().tolist() == [False, False, True, True]

    def test_after_few_launches_the_expected_luck_counts(self) -> None:
        """Two launches that happen to agree prove little if launches usually differ."""
        values = np.array([[[-0.10], [-0.10]], [[-0.05], [-0.05]]])
        assert Standing.estimate(values, luck=0.001).find_slower().tolist() == [False, True]
        assert Standing.estimate(values, luck=0.08).find_slower().tolist() == [False, False]

    def test_a_candidate_with_lucky_launches_does_not_drop_the_others(self) -> None:
        """Seen in a race of a search on magika: the true gain of the fourth candidate is 0."""
        gains = np.array([[3.1, 3.7, 2.8], [3.0, 3.6, 2.3], [0.1, 1.1, 0.4], [9.5, -0.1, 13.8], [2.9, 3.5, 2.5]])
        values = -gains[:, :, None] / 100
        assert not Standing.estimate(values, luck=0.003).find_slower()[[0, 1, 4]].any()
        assert not Standing.estimate(values[[2, 3]], luck=0.003).excludes_relevant_gain()
        assert Standing.estimate(values[[2]], luck=0.003).excludes_relevant_gain()

    def test_a_candidate_with_lucky_launches_is_not_confirmed_first(self) -> None:
        launches = {1: (3.1, 3.7, 2.8, 3.2), 2: (9.5, -0.1, 10.8, -0.4), 3: (2.9, 3.5, 2.5, 2.8)}
        state = make_state(dict.fromkeys(launches, (0.0, False)))
        for number, gains in launches.items():
            result = state.results.get_or_add(state.space.candidates[number])
            result.enter("racing")
            result.replace_scores([make_score(-gain / 100, launch) for launch, gain in enumerate(gains)])
        assert [result.number for result in rank_finalists(state)][:2] == [1, 3]

    def test_one_stalled_round_does_not_drop_the_best_candidate(self) -> None:
        """The median of two rounds is their mean, so one stalled round made a whole launch of the best look slow."""
        rng = np.random.default_rng(2)
        state = make_state(dict.fromkeys((1, 2, 3), (0.0, False)))
        for number, gain in ((1, 0.08), (2, 0.05), (3, 0.0)):
            result = state.results.get_or_add(state.space.candidates[number])
            result.enter("racing")
            values = rng.normal(-gain, 0.005, (8, 2))
            if number == 1:
                values[3, 1] += 0.7
            result.replace_scores([make_score(float(value), launch) for launch in range(8) for value in values[launch]])
        assert rank_finalists(state)[0].number == 1

    def test_limited_rounds_keep_what_a_launch_has_in_common(self) -> None:
        """A stalled baseline makes all candidates of a launch look faster: their differences are not touched."""
        rng = np.random.default_rng(3)
        levels = np.array([-0.3, -0.2, 0.0])
        rounds = levels[:, None, None] + rng.normal(0, 0.004, (3, 6, 2))
        rounds[:, 2] -= 0.5
        rounds[1, 4, 0] += 0.6
        limited = limit_rounds([[launch[:, None] for launch in of] for of in rounds], 0.003)[0][:, :, 0]
        assert limited[:, 2] == pytest.approx(rounds[:, 2].mean(axis=1), abs=1e-9)
        assert limited.mean(axis=1) - limited.mean() == pytest.approx(levels - levels.mean(), abs=0.006)
        assert abs(rounds.mean(axis=(1, 2))[1] - rounds.mean() - (levels[1] - levels.mean())) > 0.02

    @pytest.mark.parametrize("gain", [1.0, 0.0])
    def test_if_racing_was_wrong_the_next_candidate_is_confirmed(
        self, monkeypatch: pytest.MonkeyPatch, gain: float
    ) -> None:
        """It is called faster with a higher confidence only, and what was not promising is not confirmed."""
        right = rank_finalists
        wrong: list[Config] = []

        def rank(state: Any) -> list[CandidateResult]:
            ranked = right(state)
            if not wrong:
                wrong.append(ranked[-1].candidate.config)
            return sorted(ranked, key=lambda result: result.candidate.config not in wrong)

        monkeypatch.setattr("ortune.tuning.job.rank_finalists", rank)
        landscape = additive_landscape(small_space(), gain=gain, noise=0.005)
        outcome = search(landscape, budget_s=200)
        confirmed = [trial.config for trial in outcome.trials if trial.stage == "confirmation"]
        if gain:
            assert wrong[0] in confirmed
            assert len(confirmed) == 2
            assert outcome.evidence.verdict == "faster"
            assert outcome.config not in wrong
            assert outcome.evidence.speedup and outcome.evidence.speedup.confidence == 0.99
        else:
            (config,) = confirmed
            assert config.settings.items() <= wrong[0].settings.items()  # some may have been dropped
            assert outcome.evidence.verdict != "faster"

    def test_a_race_without_a_relevant_gain_is_hopeless(self) -> None:
        gains = np.array([0.004, 0.002, 0.0])[:, None, None]
        for noise, hopeless in ((0.002, True), (0.05, False)):
            values = -gains + np.random.default_rng(1).normal(0, noise, (3, 4, 1))
            standing = Standing.estimate(values, 0.01 if hopeless else noise)
            assert standing.excludes_relevant_gain() == hopeless
        assert not Standing.estimate(-gains - 0.05 + np.zeros((3, 4, 1)), 0.003).excludes_relevant_gain()

    def test_a_candidate_that_is_best_in_one_objective_stays(self) -> None:
        values = np.array([[[-0.3, 0.0]] * 3, [[0.0, -0.3]] * 3, [[0.1, 0.1]] * 3])
        assert Standing.estimate(values, luck=0.01).find_slower().tolist() == [False, False, True]

    def test_a_lead_on_a_busy_host_does_not_exclude_the_others(self) -> None:
        """The default was slowed down while one candidate was measured, which seems to be twice as fast."""
        state = make_state({1: (-0.7, True), 2: (-0.3, False), 3: (-0.28, False), 4: (0.1, False)})
        assert [result.number for result in choose_candidates(state)] == [1, 2, 3]

    def test_a_candidate_that_racing_dropped_is_not_a_finalist(self) -> None:
        """What it showed in two launches, on a busy host, looks like what the others showed in ten."""
        state = make_state({1: (-0.26, True), 2: (-0.25, False), 3: (-0.1, False)})
        for result in state.results:
            if result.number in {1, 2}:
                scores = result.scores
                result.enter("racing")
                log_ratio = scores[0].log_ratios[0]
                result.scores += [make_score(log_ratio, launch) for launch in range(2 if result.number == 1 else 10)]
        assert [result.number for result in rank_finalists(state)] == [2, 1, 3]

    def test_places_are_given_in_turn(self) -> None:
        space = small_space()
        results = [CandidateResult(candidate, number, Goal()) for number, candidate in enumerate(space.candidates[:6])]
        a, b, c, d, e, _ = results
        assert take_turns([a, b, c], [c, d], [e, a]) == [a, c, e, b, d]

    def test_a_single_choice_that_measures_best_is_raced_although_the_model_expects_others(self) -> None:
        """A plateau of combinations with 80 % of the gain of the best, which is one choice alone."""
        landscape = make_held_out("plateau_80", 0)
        found = [search(landscape, seed=seed) for seed in range(3)]
        gains = [landscape.log_speedup(landscape.space.numbers[outcome.config.key]) for outcome in found]
        assert sum(gain > 0.98 * BEST_GAIN for gain in gains) >= 2


class TestStrategies:
    @pytest.mark.parametrize("name", ["adaptive", "exhaustive"])
    def test_every_candidate_is_proposed_once(self, name: StrategyName) -> None:
        space = build_space(make_host(1), make_model())
        assert len(space.candidates) > 20
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=make_sampler(name, space, seed=0))
        sampler = study.sampler
        keys: list[str] = []
        for _ in space.candidates:
            trial = study.ask()
            candidate = space.draw(
                lambda dimension, trial=trial: trial.suggest_categorical(  # type: ignore[misc]
                    dimension.name, [choice.label for choice in dimension.choices]
                )
            )
            trial.set_user_attr(CONFIG, candidate.config.key)
            keys.append(candidate.config.key)
            study.tell(trial, 0.0)
            if isinstance(sampler, ThompsonSampler):
                number = space.numbers[candidate.config.key]
                sampler.observed.append(Observed(number, (0.0,), 1e-4, 0.0, True, len(keys) // 8))
        assert sorted(keys) == sorted(candidate.config.key for candidate in space.candidates)
        assert isinstance(sampler, CandidateSampler)
        if isinstance(sampler, ThompsonSampler):
            assert sampler.expected_gain(study) == 0.0

    def test_the_adaptive_strategy_finds_the_best_of_many_with_few_trials(self) -> None:
        landscape = additive_landscape(build_space(make_host(32, smt=2, n_nodes=2), make_model(4)))
        assert len(landscape.space.candidates) > 500
        outcome = search(landscape, budget_s=120)
        number = landscape.space.numbers[outcome.config.key]
        assert outcome.evidence.verdict == "faster"
        assert landscape.log_speedup(landscape.best) - landscape.log_speedup(number) < 0.03
        assert len(outcome.trials) < 400

    @pytest.mark.parametrize("strategy", get_args(StrategyName))
    def test_each_strategy_ends_with_a_proof(self, strategy: StrategyName) -> None:
        outcome = search(additive_landscape(small_space()), strategy, budget_s=20)
        assert outcome.evidence.verdict == "faster"
        assert outcome.evidence.speedup
        assert outcome.evidence.speedup.low > 1

    @pytest.mark.parametrize("strategy", get_args(StrategyName))
    def test_the_same_seed_gives_the_same_search(self, strategy: StrategyName) -> None:
        landscape = additive_landscape(small_space(width=2))
        one, other = (msgspec.json.encode(search(landscape, strategy, budget_s=10, seed=3)) for _ in range(2))
        assert one == other
        assert one != msgspec.json.encode(search(landscape, strategy, budget_s=10, seed=4))

    def test_screening_ends_early_when_no_gain_is_expected(self) -> None:
        reports: list[Progress] = []
        landscape = additive_landscape(small_space(), gain=0.0, noise=0.003)
        outcome = search(landscape, budget_s=300, reports=reports)
        assert outcome.evidence.verdict == "nothing_found"
        assert "no pair of settings is expected to gain" in outcome.ended_early
        assert any("screening ended early" in note for report in reports for note in report.notes)
        assert len(outcome.trials) < len(landscape.space.candidates)

    def test_two_settings_that_gain_only_together_are_found_before_screening_ends_early(self) -> None:
        """Nothing gains on its own, so that nothing points to the pair."""
        space = small_space()
        landscape = additive_landscape(space, gain=0.0, noise=0.005)
        pair = {("session.dynamic_block_base", "4"), ("graph_optimization_level", "ORT_ENABLE_EXTENDED")}
        for number, candidate in enumerate(space.candidates):
            if pair <= set(candidate.labels.items()):
                landscape.log_costs[number] -= 0.25
        found = [search(landscape, budget_s=60, seed=seed) for seed in range(2)]
        assert [outcome.evidence.verdict for outcome in found] == ["faster"] * 2

    def test_the_default_is_not_called_best_because_the_model_does_not_expect_a_single_better_candidate(self) -> None:
        landscape = additive_landscape(small_space(), gain=0.0, noise=0.003)
        number = len(landscape.space.candidates) // 2
        best = landscape.space.candidates[number]
        landscape.log_costs[number] -= 0.3
        found = [search(landscape, budget_s=300, seed=seed) for seed in range(2)]
        missed = [outcome for outcome in found if best.config.key not in {trial.config.key for trial in outcome.trials}]
        assert missed
        assert {outcome.evidence.verdict for outcome in missed} == {"nothing_found"}

    def test_with_more_time_more_is_tried_before_screening_ends_early(self) -> None:
        landscape = additive_landscape(small_space(), gain=0.0, noise=0.005)
        outcome = search(landscape, budget_s=300)
        screening = next(stage for stage in outcome.stages if stage.stage == "screening")
        assert "no pair of settings" in outcome.ended_early
        assert screening.wall_s > 0.9 * FEWEST_SHARE * 300

    def test_the_exhaustive_strategy_screens_all_if_there_is_time_for_a_round_of_each(self) -> None:
        landscape = additive_landscape(small_space())
        outcome = search(landscape, "exhaustive", budget_s=240)
        assert len(outcome.trials) == len(landscape.space.candidates)
        assert not outcome.ended_early

    def test_hints_are_tried_first(self) -> None:
        landscape = additive_landscape(small_space())
        hint = landscape.space.candidates[-1].config
        outcome = search(landscape, hints=(hint, Config(session_options={"intra_op_num_threads": 99})))
        assert outcome.trials[1].config == hint

    def test_rules_are_tried_before_single_choices(self) -> None:
        landscape = additive_landscape(small_space())
        outcome = search(landscape)
        rules = {landscape.space.select(rule.labels).config.key for rule in landscape.space.rules}
        assert {trial.config.key for trial in outcome.trials[1 : 1 + len(rules)]} == rules

    def test_an_unknown_strategy(self) -> None:
        with pytest.raises(UsageError, match="strategy hope: is not one of the choices"):
            make_request(SearchRequest, {"model": "m.onnx", "strategy": "hope"})


class TestReplay:
    def test_blocks_average_to_the_truth(self) -> None:
        landscape = additive_landscape(small_space(), noise=0.02)
        landscape = msgspec.structs.replace(landscape, contended_share=0.0, drift=np.zeros(0))
        executor = ReplayExecutor(landscape, seed=1)
        number = landscape.best
        values = []
        for _ in range(60):
            (live,) = executor.launch([landscape.space.candidates[number].config], deadline_s=9)
            assert not isinstance(live, Failure)
            block = live.measure(PLAN)
            assert not isinstance(block, Failure)
            values.append(math.log(compute_block_figure("p50", block, 0)))
        assert abs(np.mean(values) - landscape.log_costs[number]) < 0.01

    def test_the_clock_advances_with_each_step(self) -> None:
        landscape = additive_landscape(small_space())
        executor = ReplayExecutor(landscape)
        (live,) = executor.launch([DEFAULT], deadline_s=9)
        assert executor.now_s() == pytest.approx(0.202)  # the first launch makes another call
        assert not isinstance(live, Failure)
        live.measure(PLAN)
        assert executor.now_s() == pytest.approx(0.258, abs=0.01)

    def test_a_recorded_failure_is_replayed(self) -> None:
        landscape = additive_landscape(small_space())
        failure = Failure(kind="crash", stage="load", message="ended by SIGSEGV")
        landscape.log_costs[3] = math.nan
        landscape = msgspec.structs.replace(landscape, failures={3: failure})
        answers = ReplayExecutor(landscape).launch(
            [landscape.space.candidates[3].config, Config(session_options={"intra_op_num_threads": 99})], deadline_s=9
        )
        assert answers[0] == failure
        assert isinstance(answers[1], Failure)

    def test_busy_spells_take_their_share_of_the_time(self) -> None:
        landscape = additive_landscape(small_space())
        executor = ReplayExecutor(landscape, seed=2)
        (live,) = executor.launch([DEFAULT], deadline_s=9)
        assert not isinstance(live, Failure)
        blocks = [live.measure(PLAN) for _ in range(4000)]
        share = np.mean([block.contended for block in blocks if not isinstance(block, Failure)])
        assert 0.03 < share < 0.25

    @pytest.mark.parametrize(("clients", "objective"), [(None, "p50"), (None, "mean"), (2, "throughput")])
    def test_the_objective_of_a_block_is_the_drawn_cost(self, clients: int | None, objective: Objective) -> None:
        goal = make_goal(make_load(clients), objective)
        landscape = msgspec.structs.replace(
            additive_landscape(small_space(), noise=0.0), goal=goal, contended_share=0.0, drift=np.zeros(0)
        )
        if clients:
            landscape = msgspec.structs.replace(landscape, log_costs=landscape.log_costs - math.log(1e9))
        (live,) = ReplayExecutor(landscape).launch([DEFAULT], deadline_s=9)
        assert not isinstance(live, Failure)
        block = live.measure(msgspec.structs.replace(PLAN, load=goal.load))
        assert not isinstance(block, Failure)
        expected = 1 / math.exp(landscape.log_costs[0]) if clients else math.exp(landscape.log_costs[0])
        assert compute_block_figure(goal.objective, block, 0) == pytest.approx(expected, rel=1e-6)


def make_recording(
    seed: int = 0, *, contended: float = 0.1, digests: tuple[str, ...] = ()
) -> tuple[Recording, np.ndarray]:
    """Return a recording of known levels under drift and busy spells, and these levels.

    Levels of optimization with the same digest are twins.
    """
    rng = np.random.default_rng(seed)
    space = small_space()
    n = len(space.candidates)
    about = About(
        name="made",
        model="m sha256:0",
        traits=make_model().traits,
        host=HostClass.of(make_host(4)),
        host_text="Simulated",
        goal=Goal(),
        runtime=Runtime(onnxruntime="1", providers=(), python="3", ortune="0"),
        recorded="2026-01-01",
        space=space,
        launch_s=0.1,
        start_s=0.1,
        block_ns=50_000_000,
    )
    if digests:
        about = msgspec.structs.replace(about, graphs=Graphs(host=about.host, runtime="1", digests=digests))
    merged, programs = merge_space(about)
    levels = rng.normal(0, 0.2, len(merged.candidates))[programs]
    rows = []
    launch = turn = 0
    for _ in range(5):
        order = rng.permutation(np.arange(1, n))
        for first in range(0, n - 1, 7):
            members = [0, *order[first : first + 7]]
            launches = {number: launch + place for place, number in enumerate(members)}
            luck = {number: rng.normal(0, 0.01) for number in members}
            launch += len(members)
            for _ in range(4):
                drift = 0.3 * math.sin(turn / 20)
                for number in rng.permutation(members):
                    busy = bool(rng.random() < contended)
                    value = 14 + levels[number] + luck[number] + drift + rng.normal(0, 0.01) + 0.5 * busy
                    rows.append((number, launches[number], turn, turn * 0.5, value, 0.3 * busy, busy))
                turn += 1
    columns = dict(zip(list(Recording.COLUMNS)[:7], map(np.array, zip(*rows, strict=True)), strict=True))
    profile = np.tile(np.linspace(0.98, 1.04, N_QUANTILES), (len(rows), 1))
    return Recording(about, **columns, profile=profile, load_ns=np.full(launch, 1e7)), levels


TWINS = ("a", "b", "b", "a", "a")
"""Digests of the graphs of the levels of optimization: of the default, then from the lowest to the second highest."""


class TestLandscapes:
    def test_levels_are_separated_from_drift_and_busy_spells(self) -> None:
        recording, levels = make_recording()
        landscape = fit(recording)
        found = landscape.log_costs - landscape.log_costs[0]
        assert np.abs(found - (levels - levels[0])).max() < 0.04
        assert landscape.lucks.std() == pytest.approx(0.01, abs=0.005)
        assert landscape.contended_share == pytest.approx(0.1, abs=0.03)
        assert landscape.contended is not None
        assert landscape.contended.residuals.mean() == pytest.approx(0.5, abs=0.1)
        assert landscape.quiet.residuals.std() == pytest.approx(0.01, abs=0.005)

    def test_a_recording_survives_its_file(self, tmp_path: Path) -> None:
        recording, _ = make_recording(contended=0.0)
        recording.save(tmp_path / "made.npz")
        again = Recording.load(tmp_path / "made.npz")
        assert again.about == recording.about
        assert all((getattr(again, name) == getattr(recording, name)).all() for name in Recording.COLUMNS)
        assert load_landscape(tmp_path / "made.npz").contended is None

    def test_a_recording_of_another_schema_is_rejected(self, tmp_path: Path) -> None:
        recording, _ = make_recording()
        recording.about = msgspec.structs.replace(recording.about, schema=99)
        recording.save(tmp_path / "made.npz")
        with pytest.raises(ValueError, match="the schema is 99"):
            Recording.load(tmp_path / "made.npz")

    def test_twins_have_one_cost(self, tmp_path: Path) -> None:
        """That of a program which has the launches and blocks of all of them."""
        recording, levels = make_recording(digests=TWINS)
        recording.save(tmp_path / "made.npz")
        landscape = load_landscape(tmp_path / "made.npz")
        tried = {candidate.labels["graph_optimization_level"] for candidate in landscape.space.candidates}
        assert tried == {"default", "ORT_ENABLE_BASIC"}
        assert 5 * len(landscape.space.candidates) == 2 * len(levels)
        _, programs = merge_space(recording.about)
        found = landscape.log_costs[programs] - landscape.log_costs[0]
        assert np.abs(found - (levels - levels[0])).max() < 0.04
        n_blocks = np.bincount(programs[recording.candidate[~recording.contended]])
        assert (landscape.quiet.last - landscape.quiet.first == n_blocks).all()

    def test_a_recording_of_merged_candidates_survives_its_file(self, tmp_path: Path) -> None:
        recording = pool_twins(make_recording(digests=TWINS)[0])
        recording.save(tmp_path / "made.npz")
        again = Recording.load(tmp_path / "made.npz").about
        assert again == recording.about
        assert again.space.twins
        assert again.space.candidates == load_landscape(tmp_path / "made.npz").space.candidates

    def test_a_program_fails_if_all_of_its_twins_failed(self) -> None:
        recording, _ = make_recording(digests=TWINS)
        _, programs = merge_space(recording.about)
        failure = Failure(kind="exception", stage="load", message="")
        failures = {number: failure for number, program in enumerate(programs.tolist()) if program == 2}
        failures[next(number for number, program in enumerate(programs.tolist()) if program == 1)] = failure
        recording.about = msgspec.structs.replace(recording.about, failures=failures)
        assert list(pool_twins(recording).about.failures) == [2]

    def test_a_replay_of_a_recording_can_be_searched(self) -> None:
        recording, _ = make_recording()
        landscape = fit(recording)
        outcome = search(landscape)
        number = landscape.space.numbers[outcome.config.key]
        assert outcome.evidence.verdict == "faster"
        assert landscape.log_speedup(landscape.best) - landscape.log_speedup(number) < 0.05

    @pytest.mark.parametrize("kind", ["cliffs", *long_params("additive", "interacting", "rugged")])
    def test_synthetic_landscapes_are_reproducible(self, kind: synthetic.Kind) -> None:
        landscape = synthetic.make_landscape("64", kind, seed=5)
        again = synthetic.make_landscape("64", kind, seed=5)
        assert (landscape.log_costs == again.log_costs).all()
        assert len(landscape.space.candidates) == len(landscape.log_costs) > 500
        assert landscape.log_speedup(0) == 0.0
        assert 0 < landscape.log_speedup(landscape.best) < 3

    def test_the_committed_recordings_can_be_read(self) -> None:
        paths = recorded_paths()
        assert paths
        for path in paths:
            landscape = load_landscape(path)
            graphs = Recording.load(path).about.graphs
            assert graphs is None or all(graphs.digests)
            assert np.isfinite(landscape.log_costs).mean() > 0.9
            assert landscape.log_speedup(landscape.best) >= 0
            # Where most blocks of a launch hang, its other blocks must not seem to take a fraction of their time.
            assert landscape.quiet.residuals.min() >= IMPOSSIBLE
            # On average, a search must measure the true cost.
            for lucks in (landscape.lucks, *landscape.own_lucks.values()):
                assert lucks.mean() == pytest.approx(0.0, abs=1e-9)


class TestRegret:
    @pytest.mark.parametrize("method", [*regret.OURS, *regret.OTHERS])
    def test_each_method_gives_an_answer(self, method: str) -> None:
        landscape = additive_landscape(small_space())
        row = regret.replay(landscape, method, 12.0, 0)
        assert row["regret"] >= -1e-9
        assert row["n_tried"] > 1
        assert row == regret.replay(landscape, method, 12.0, 0) | {"wall_s": row["wall_s"]}

    def test_summaries(self) -> None:
        rows = [
            {
                "regret": regret_,
                "excess": 1.0,
                "worse": regret_ > 5,
                "missed": regret_ > 5,
                "spent_s": 1,
                "n_tried": 2,
                "wall_s": 0,
                "covered": regret_ < 5,
                "n_settings": 2,
                "n_useless": int(regret_ > 5),
                "n_harmful": 0,
            }
            for regret_ in (0.0, 1.5, 3.0, 10.0)
        ]
        figures = regret.summarize(rows)
        assert figures["within_1"] == 0.25
        assert figures["within_2"] == 0.5
        assert figures["coverage"] == 0.75
        assert figures["worse"] == 0.25
        assert figures["missed"] == 0.25


class TestHints:
    HOST = HostClass.of(make_host(4))

    def test_the_best_config_is_recalled_for_a_similar_model(self, tmp_path: Path) -> None:
        path = tmp_path / "folder" / "history.jsonl"
        config = Config(session_options={"intra_op_num_threads": 1})
        remember(path, describe_search(self.HOST, make_model().traits, Goal(), [config]))
        assert recall(path, self.HOST, make_model().traits, Goal()) == (config,)

    def test_a_name_that_is_not_utf8_is_no_error(self, tmp_path: Path) -> None:
        path = tmp_path / "history.jsonl"
        traits = msgspec.structs.replace(make_model().traits, ops={"\udcff": 1})
        remember(path, describe_search(self.HOST, traits, Goal(), []))
        assert [past_search.traits.ops for past_search in read_past_searches(path)] == [{"?": 1}]

    def test_other_hosts_loads_and_graphs_are_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "history.jsonl"
        traits = make_model().traits
        config = Config(session_options={"intra_op_num_threads": 1})
        remember(path, describe_search(self.HOST, traits, Goal(), [config]))
        assert not recall(path, HostClass.of(make_host(8)), traits, Goal())
        assert not recall(path, self.HOST, traits, make_goal(make_load(2), None))
        assert not recall(path, self.HOST, msgspec.structs.replace(traits, ops={"MatMul": 9}), Goal())

    def test_the_newest_comes_first_and_the_file_stays_small(self, tmp_path: Path) -> None:
        path = tmp_path / "history.jsonl"
        for n in range(1, 700):
            config = Config(session_options={"intra_op_num_threads": n})
            remember(path, describe_search(self.HOST, make_model().traits, Goal(), [config]))
        assert len(read_past_searches(path)) < 601
        hints = recall(path, self.HOST, make_model().traits, Goal())
        assert [hint.session_options["intra_op_num_threads"] for hint in hints] == [699, 698, 697]

    def test_a_file_of_the_user_stays_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("a note\n" * 700)
        remember(path, describe_search(self.HOST, make_model().traits, Goal(), []))
        assert path.read_text() == "a note\n" * 700

    def test_a_broken_file_is_ignored(self, tmp_path: Path) -> None:
        path = tmp_path / "history.jsonl"
        path.write_bytes(b'{"host": 1}\n\xff\n')
        assert not recall(path, self.HOST, make_model().traits, Goal())
        remember(tmp_path, describe_search(self.HOST, make_model().traits, Goal(), []))

    @pytest.mark.usefixtures("models_read_here")
    def test_a_search_starts_with_the_recalled_configs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "history.jsonl"
        config = Config(session_options={"intra_op_num_threads": 1})
        traits = read_model(TINY_CNN).traits
        remember(path, describe_search(HostClass.of(read_host()), traits, Goal(), [config]))
        monkeypatch.setenv("ORTUNE_HISTORY", str(path))
        assert prepare(SearchRequest(model=str(TINY_CNN))).hints == (config,)
        assert prepare(SearchRequest(model=str(TINY_CNN), strategy="tpe")).hints == ()
        assert prepare(SearchRequest(model=str(TINY_CNN), history=False)).hints == ()

    def test_only_proven_configs_are_remembered(self) -> None:
        outcome = search(additive_landscape(small_space()))
        assert best_configs(outcome, DEFAULT)[0] == outcome.config
        assert len(best_configs(outcome, DEFAULT)) == MAX_REMEMBERED
        assert best_configs(search(additive_landscape(small_space(), gain=0.0)), DEFAULT) == []

    def test_the_path_of_the_history(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert history_path() is None
        monkeypatch.setenv("ORTUNE_HISTORY", "/somewhere/h.jsonl")
        assert history_path() == Path("/somewhere/h.jsonl")
        monkeypatch.delenv("ORTUNE_HISTORY")
        path = history_path()
        assert path is not None
        assert path.name == "history.jsonl"

    @given(st.dictionaries(st.sampled_from(["Conv", "MatMul", "Add", "If"]), st.integers(1, 500)))
    @settings(deadline=None)
    def test_similarity_is_symmetric_and_bounded(self, ops: dict[str, int]) -> None:
        traits = msgspec.structs.replace(make_model().traits, ops=ops)
        assert measure_similarity(traits, traits) == pytest.approx(1.0 if ops else 0.0)
        other = make_model().traits
        assert measure_similarity(traits, other) == pytest.approx(measure_similarity(other, traits))
        assert 0 <= measure_similarity(traits, other) <= 1 + 1e-9

    def test_counts_of_a_damaged_history(self) -> None:
        traits = make_model().traits
        damaged = msgspec.structs.replace(traits, ops={"Conv": -9, "Add": 3})
        assert measure_similarity(traits, damaged) == measure_similarity(damaged, traits) == 0.0


class TestLandscapeSets:
    def test_models_for_testing_are_recorded(self) -> None:
        names = {path.stem for path in recorded_paths()}
        assert set(regret.TEST_MODELS) < names

    @pytest.mark.long
    def test_recordings_with_a_rate_are_not_replayed(self) -> None:
        """A replay has no queue: the 99th percentile of its calls was several times the recorded one."""
        landscape = load_landscape(LANDSCAPES / "magika_rate.npz")
        with pytest.raises(ValueError, match="rate"):
            open_replay(landscape)
        assert landscape.name not in [other.name for other in regret.load_recorded(for_testing=True)]

    def test_other_loads_of_a_model_are_in_the_same_set(self) -> None:
        assert regret.is_for_testing(Path("magika.npz"))
        assert regret.is_for_testing(Path("silero_vad_2_callers.npz"))
        assert not regret.is_for_testing(Path("squeezenet_qdq.npz"))
        assert not regret.is_for_testing(Path("magikal.npz"))

    def test_held_out_landscapes_are_what_they_say(self) -> None:
        for number in range(N_INSTANCES):
            plateau = make_held_out("plateau_80", number)
            best = plateau.space.candidates[plateau.best]
            assert len(best.chosen) == 1
            assert plateau.log_speedup(plateau.best) == pytest.approx(BEST_GAIN)
            assert sum(plateau.log_costs < plateau.log_costs[0] - 0.7 * BEST_GAIN) > 20
            pair = make_held_out("pair", number)
            assert len(pair.space.candidates[pair.best].chosen) >= 2
            singles = [n for n, candidate in enumerate(pair.space.candidates) if len(candidate.chosen) == 1]
            assert max(pair.log_speedup(n) for n in singles) <= 0
            needle = make_held_out("needle", number)
            assert sum(needle.log_costs < needle.log_costs[0]) == 1
            assert make_held_out("nothing", number).best == 0
