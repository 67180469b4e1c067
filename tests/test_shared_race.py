"""Races that are divided among the nodes of a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ortune import Config, Goal
from ortune.knobs import DEFAULT, Candidate
from ortune.storage import Measurement, SharedRace, SharedResult, SharedRound
from ortune.tuning.job import SearchSettings
from ortune.tuning.outcome import Outcome
from ortune.tuning.results import CandidateResult, Score
from ortune.tuning.shared_exchange import MOST_RACING, SharedExchange
from ortune.tuning.shared_job import run_shared_search
from ortune.tuning.shared_race import RaceElsewhere
from ortune.workload import make_load, parse_limit
from tests.test_shared_search import SPACE, join, latency, open_exchange, open_simulated, read_all, send

LONG_S = 1e6
"""A time that leaves none for another launch."""


def find(config: Config) -> Candidate:
    return SPACE.candidates[SPACE.numbers[config.key]]


def count_launches(outcome: Outcome) -> int:
    return len({trial_round.launch for trial_round in outcome.rounds if trial_round.stage == "racing"})


@pytest.mark.parametrize("others", ["none", "all", "incomplete", "of another race", "screening"])
def test_launches_of_other_nodes_count(tmp_path: Path, others: str) -> None:
    other = open_exchange(tmp_path, "b")
    raced: list[Config] = []

    class Divided(SharedExchange):
        def wait_for_result(self, observe: object, take_part: object) -> None:
            join(other)
            other.enter("racing")
            self.refresh()

        def announce_race(self, configs: Sequence[Config]) -> None:
            super().announce_race(configs)
            if raced or others == "none":
                return
            raced.extend(configs)
            race = {"of another race": "x", "screening": ""}.get(others, self.worker)
            for launch in (1, 2):
                for config in configs[: -1 if others == "incomplete" else None]:
                    # The one that is announced last is far better than all others.
                    rounds = [SharedRound(log_ratios=(-2.0 if config == configs[-1] else -0.1,))] * 3
                    other.send(find(config), launch, rounds, None, spent_s=LONG_S, race=race)
            other.flush()

    exchange = open_exchange(tmp_path)
    exchange.__class__ = Divided
    outcome = run_shared_search(SPACE, open_simulated(0), SearchSettings(budget_s=60.0, n_trials=20), exchange)
    exchange.close(completed=True)
    confirmed = [trial.config for trial in outcome.trials if trial.stage == "confirmation" and trial.config != DEFAULT]
    assert not outcome.interrupted
    if others == "all":
        assert count_launches(outcome) == 1
        # Its settings that do nothing may be dropped before it is confirmed.
        assert raced[-1] in [trial.config for trial in outcome.trials if trial.stage in {"pruning", "confirmation"}]
    else:
        assert count_launches(outcome) >= 2
        assert confirmed[0].session_options["intra_op_num_threads"] == 1


def test_a_race_waits_for_launches_that_are_under_way(tmp_path: Path) -> None:
    other = open_exchange(tmp_path, "b")
    pauses: list[int] = []

    class Divided(SharedExchange):
        def wait_for_result(self, observe: object, take_part: object) -> None:
            join(other)
            other.enter("racing")
            self.refresh()

        def announce_race(self, configs: Sequence[Config]) -> None:
            super().announce_race(configs)
            if configs:
                self.configs = configs

        def count_racing(self) -> int:
            return 99

        def pause(self) -> float:
            pauses.append(1)
            for config in self.configs:
                rounds = [SharedRound(log_ratios=(math.log(latency(config) / latency(DEFAULT)),))] * 3
                other.send(find(config), len(pauses), rounds, None, spent_s=LONG_S, race=self.worker)
            other.flush()
            return super().pause()

    exchange = open_exchange(tmp_path)
    exchange.__class__ = Divided
    outcome = run_shared_search(SPACE, open_simulated(0), SearchSettings(budget_s=60.0, n_trials=20), exchange)
    exchange.close(completed=True)
    assert pauses
    assert count_launches(outcome) == 1


@pytest.mark.parametrize("is_known", [True, False])
def test_a_node_that_waits_takes_part(tmp_path: Path, is_known: bool) -> None:
    first = open_exchange(tmp_path, "a")
    join(first)
    for number in (1, 2, 3):
        send(first, number)
    first.flush()
    first.enter("racing")
    configs = [candidate.config for candidate in SPACE.candidates[1:4]]
    unknown = Config(session_options={"intra_op_num_threads": 77})
    first.announce_race(configs if is_known else [*configs, unknown])
    stages: list[str] = []
    took: list[bool] = []

    class Helper(SharedExchange):
        def wait_for_result(
            self, observe: Callable[[str], None], take_part: Callable[[SharedRace], bool]
        ) -> SharedResult | None:
            def once(race: SharedRace) -> bool:
                stages.append(self.state.stage)
                took.append(take_part(race))
                first.announce_race(())
                first.publish(
                    SharedResult(
                        node="a", worker=first.worker, number=0, verdict="faster", config=configs[0], digest="0" * 64
                    )
                )
                first.close(completed=True)
                return took[-1]

            return super().wait_for_result(observe, once)

    exchange = open_exchange(tmp_path, "b")
    exchange.__class__ = Helper
    outcome = run_shared_search(SPACE, open_simulated(1), SearchSettings(budget_s=60.0, n_trials=20), exchange)
    exchange.close(completed=True)
    assert stages == ["racing"]
    assert took == [is_known]
    measured = [measurement for measurement in read_all(tmp_path) if measurement.race]
    if not is_known:
        assert not measured
        return
    assert [(measurement.node, measurement.race, measurement.config) for measurement in measured] == [
        ("b", first.worker, config) for config in configs
    ]
    assert len({measurement.launch for measurement in measured}) == 1
    # A launch that is part of a race of another node is not that of a race here.
    assert {trial.stage for trial in outcome.trials[1:]} == {"screening", "confirmation"}


@pytest.mark.parametrize("n_earlier", [MOST_RACING - 1, MOST_RACING])
def test_a_race_has_no_more_nodes_than_launches(tmp_path: Path, n_earlier: int) -> None:
    earlier = [open_exchange(tmp_path, f"n{number}") for number in range(n_earlier)]
    for node in earlier:
        join(node)
    first = earlier[0]
    first.enter("racing")
    config = SPACE.candidates[1].config
    first.announce_race([config])
    exchange = open_exchange(tmp_path, "late")
    join(exchange)
    took: list[SharedRace] = []

    def observe(note: str) -> None:
        first.publish(
            SharedResult(node="n0", worker=first.worker, number=0, verdict="faster", config=config, digest="0" * 64)
        )

    def take_part(race: SharedRace) -> bool:
        took.append(race)
        return False

    assert exchange.wait_for_result(observe, take_part) is not None
    assert bool(took) == (n_earlier < MOST_RACING)


def test_a_node_that_cannot_take_part_is_asked_once(tmp_path: Path) -> None:
    first = open_exchange(tmp_path, "a")
    join(first)
    first.enter("racing")
    configs = [candidate.config for candidate in SPACE.candidates[1:4]]
    first.announce_race(configs)
    asked: list[SharedRace] = []
    stages: list[str] = []

    class Waiting(SharedExchange):
        def beat(self) -> None:
            stages.append(self.state.stage)
            if len(stages) == 3:
                first.announce_race(configs[:2])
            if len(stages) == 6:
                first.close(completed=True)

    exchange = open_exchange(tmp_path, "b")
    exchange.__class__ = Waiting
    join(exchange)

    def take_part(race: SharedRace) -> bool:
        asked.append(race)
        return False

    assert exchange.wait_for_result(lambda note: None, take_part) is None
    assert [race.configs for race in asked] == [tuple(configs), tuple(configs[:2])]
    assert set(stages) == {"waiting"}


@pytest.mark.parametrize(
    ("limit", "rate_per_s", "is_divided"),
    [("", None, True), ("p99<1.1x", None, True), ("p99<20ms", None, False), ("", 100, False)],
)
def test_only_ratios_are_divided(limit: str, rate_per_s: float | None, is_divided: bool) -> None:
    announced: list[Sequence[Config]] = []
    exchange = cast("Any", SimpleNamespace(announce_race=announced.append))
    limits = (parse_limit(limit),) if limit else ()
    goal = Goal(load=make_load(rate_per_s=rate_per_s), objectives=("throughput",), limits=limits)
    racing = [CandidateResult(candidate, 1, goal) for candidate in SPACE.candidates[1:3]]
    RaceElsewhere(goal, exchange).announce(racing)
    assert bool(announced) == is_divided


def test_a_node_that_is_set_apart_no_longer_counts() -> None:
    goal = Goal()
    racing = [CandidateResult(candidate, number, goal) for number, candidate in enumerate(SPACE.candidates[1:3], 1)]
    own = Score(log_ratios=(0.0,), excesses=(), contended=False, launch=1, blocks=None)
    for result in racing:
        result.scores.append(own)
    received = [
        Measurement(
            id=f"{node}:{number}",
            node=node,
            worker=node,
            config=result.candidate.config,
            launch=1,
            rounds=(SharedRound(log_ratios=(-0.2,)),),
            spent_s=3.0,
            race="own",
        )
        for node in "bc"
        for number, result in enumerate(racing)
    ]
    exchange = SimpleNamespace(refresh=lambda: None, received_race=lambda: received)
    others = RaceElsewhere(goal, cast("Any", exchange))
    others.collect(racing)
    assert (others.n_launches, others.spent_s, racing[0].n_launches) == (2, 12.0, 3)
    received[:2] = []
    others.collect(racing)
    assert (others.n_launches, others.spent_s, racing[0].n_launches) == (1, 6.0, 2)
    received[:1] = []
    others.collect(racing)
    assert (others.n_launches, others.spent_s, racing[0].scores) == (0, 0.0, [own])


@pytest.mark.parametrize("race", ["w", ""])
def test_a_race_does_not_show_that_nodes_disagree(tmp_path: Path, race: str) -> None:
    """Candidates race because they were measured to be good, partly by chance."""
    first, second = open_exchange(tmp_path, "a"), open_exchange(tmp_path, "b")
    for exchange in (first, second):
        join(exchange)
    for candidate in SPACE.candidates[1:6]:
        for launch in range(4):
            for exchange, log_ratio, of in ((first, -0.3, ""), (second, 0.0, race)):
                rounds = [SharedRound(log_ratios=(log_ratio,))] * 2
                exchange.send(candidate, launch, rounds, None, spent_s=0.1, race=of)
    second.flush()
    first.refresh()
    assert bool(first.unfit) == (race == "")


def test_a_candidate_that_fails_is_reported(tmp_path: Path) -> None:
    first = open_exchange(tmp_path, "a")
    join(first)
    for number in (1, 2, 3):
        send(first, number)
    first.flush()
    first.enter("racing")
    configs = [candidate.config for candidate in SPACE.candidates[1:4]]
    first.announce_race(configs)

    class Helper(SharedExchange):
        def wait_for_result(
            self, observe: Callable[[str], None], take_part: Callable[[SharedRace], bool]
        ) -> SharedResult | None:
            def once(race: SharedRace) -> bool:
                took = take_part(race)
                first.close(completed=True)
                return took

            return super().wait_for_result(observe, once)

    exchange = open_exchange(tmp_path, "b")
    exchange.__class__ = Helper
    opened = open_simulated(1, dies_when_measured=[configs[1]])
    run_shared_search(SPACE, opened, SearchSettings(budget_s=60.0, n_trials=8), exchange)
    exchange.close(completed=True)
    assert [bool(measurement.failure) for measurement in read_all(tmp_path) if measurement.race] == [False, True, False]
