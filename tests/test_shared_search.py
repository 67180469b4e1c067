"""Searches on several hosts: exchange through a storage, lost connections, leases, fitness and agreement of nodes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import ortune
from ortune import Config, Goal, MeasureError, UsageError, read_record
from ortune.knobs import DEFAULT, Candidate, SearchSpace, build_space
from ortune.measure.open import OpenComparison, start_comparison
from ortune.requests import StrategyName
from ortune.storage import (
    PROOF,
    RESULT,
    Location,
    Measurement,
    NodeState,
    Proof,
    SharedResult,
    SharedRound,
    SharedStudy,
    StorageError,
    list_studies,
    parse_location,
)
from ortune.storage.outbox import Message, Outbox
from ortune.storage.schema import Stage, encode
from ortune.tuning.agreement import find_disagreements
from ortune.tuning.fitness import judge_fitness
from ortune.tuning.job import SearchSettings
from ortune.tuning.outcome import Outcome
from ortune.tuning.screening import ALL_PAIRS_TRIED, Screening
from ortune.tuning.share_outcome import share_outcome
from ortune.tuning.shared_exchange import SharedExchange
from ortune.tuning.shared_job import run_shared_search
from ortune.worker import Failure
from tests.conftest import TINY_CNN, run_ortune
from tests.simulated import Scenario, SimulatedExecutor, make_host, make_model, simulate

IDENTITY = {"model_name": "model.onnx", "host": "Simulated"}
SPACE = build_space(make_host(), make_model())
GOAL = Goal()


opened: Counter[tuple[Path, str]] = Counter()
"""How many workers each node of a test has had."""


def latency(config: Config) -> float:
    options = config.session_options
    return 1e6 * (0.7 if options.get("intra_op_num_threads") == 1 else 1.0)


def open_simulated(
    seed: int, latency: Callable[[Config], float] = latency, *, goal: Goal = GOAL, **options: object
) -> OpenComparison:
    executor = SimulatedExecutor(latency, seed=seed, **options)  # type: ignore[arg-type]
    (first,) = executor.launch([DEFAULT], deadline_s=9)
    assert not isinstance(first, Failure)
    return start_comparison(executor, first, goal, first_launch_s=executor.now_s(), seed=seed, free_bytes=10**10)


class FakeClock:
    """A clock that only waiting advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s


def open_exchange(
    folder: Path,
    node: str = "a",
    *,
    wrap: Callable[[SharedStudy], SharedStudy] = lambda study: study,
    outbox: bool = False,
    space: SearchSpace = SPACE,
    patience_s: float = 30.0,
    location: Location | None = None,
    clock: FakeClock | None = None,
    **identity: str,
) -> SharedExchange:
    """Open an exchange. Its worker, from which random seeds follow, is the same in each run of the test."""
    opened[folder, node] += 1
    name = f"{node} {opened[folder, node]}"
    found = location or parse_location(str(folder / "fleet.journal"), "storage")
    return SharedExchange(
        lambda: wrap(SharedStudy(found, {**IDENTITY, **identity})),
        node=node,
        outbox_path=folder / f"{node}.outbox.jsonl" if outbox else None,
        poll_s=0.05,
        patience_s=patience_s,
        worker=hashlib.sha256(name.encode()).hexdigest()[:16],
        clock=clock or time.monotonic,
        sleep=clock.sleep if clock else time.sleep,
    )


def join(exchange: SharedExchange) -> None:
    exchange.join(DEFAULT, [SharedRound(log_ratios=(0.0,))], sigma=0.01, bias=0.0, unfit="", silent_s=0.0)


def search(exchange: SharedExchange, seed: int, budget_s: float = 90.0, **options: object) -> Outcome:
    opened = open_simulated(seed, **options)  # type: ignore[arg-type]
    outcome = run_shared_search(SPACE, opened, SearchSettings(budget_s=budget_s), exchange)
    if not outcome.interrupted:
        share_outcome(exchange, outcome)
    exchange.close(completed=not outcome.interrupted)
    return outcome


def send(exchange: SharedExchange, number: int, log_ratio: float = -0.1, n_rounds: int = 2) -> None:
    rounds = [SharedRound(log_ratios=(log_ratio,))] * n_rounds
    exchange.send(SPACE.candidates[number], number, rounds, None, spent_s=0.1)


def read_all(folder: Path, **identity: str) -> list[Measurement]:
    study = SharedStudy(parse_location(str(folder / "fleet.journal"), "storage"), {**IDENTITY, **identity})
    return study.receive()


class Unreliable:
    """A study whose connection is lost, before or after a write arrives."""

    def __init__(self, study: SharedStudy, fails: Callable[[str], str]) -> None:
        self.study = study
        self.fails = fails
        self.name = study.name

    def __getattr__(self, name: str) -> object:
        method = getattr(self.study, name)

        def call(*values: object) -> object:
            when = self.fails(name)
            if when == "before":
                raise StorageError("the connection was lost.")
            answer = method(*values)
            if when == "after":
                raise StorageError("the connection was lost.")
            return answer

        return call


def test_two_nodes_share_one_search(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome] = {}
    exchanges = {node: open_exchange(tmp_path, node) for node in "ab"}

    def run(node: str, seed: int) -> None:
        outcomes[node] = search(exchanges[node], seed)

    threads = [threading.Thread(target=run, args=(node, seed)) for seed, node in enumerate("ab")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {outcome.config.session_options.get("intra_op_num_threads") for outcome in outcomes.values()} == {1}
    assert [outcome.evidence.verdict for outcome in outcomes.values()] == ["faster", "faster"]
    # One node did racing and confirmation, the other repeated the confirmation of its result.
    assert sorted(exchange.result is None for exchange in exchanges.values()) == [False, True]
    stages = [{stage.stage for stage in outcome.stages} for outcome in outcomes.values()]
    assert {"screening", "confirmation"} in stages
    measurements = read_all(tmp_path)
    assert {measurement.node for measurement in measurements} == {"a", "b"}
    assert len({measurement.id for measurement in measurements}) == len(measurements)


@pytest.mark.parametrize("strategy", ["random", "tpe"])
def test_a_node_can_use_each_strategy(tmp_path: Path, strategy: StrategyName) -> None:
    exchange = open_exchange(tmp_path)
    settings = SearchSettings(budget_s=60.0, n_trials=12, strategy=strategy)
    outcome = run_shared_search(SPACE, open_simulated(0), settings, exchange)
    exchange.close(completed=True)
    assert not outcome.interrupted
    assert len(outcome.trials) > 4


def test_a_node_that_joins_later_repeats_the_confirmation_only(tmp_path: Path) -> None:
    first = search(open_exchange(tmp_path, "a"), 0)
    n = len(read_all(tmp_path))
    late = open_exchange(tmp_path, "b")
    outcome = search(late, 1)
    assert late.result and late.result.node == "a"
    assert outcome.config == first.config
    assert len(read_all(tmp_path)) == n + 1  # its A/A check


def test_a_front_that_is_repeated_is_not_pruned(tmp_path: Path) -> None:
    def latency_of_two_settings(config: Config) -> float:
        stops_spinning = config.session_config.get("session.intra_op.allow_spinning") == "0"
        return latency(config) * (0.8 if stops_spinning else 1.0)

    first, repeated = (
        search(
            open_exchange(tmp_path, node), seed, latency=latency_of_two_settings, goal=Goal(objectives=("p50", "cpu"))
        )
        for seed, node in enumerate("ab")
    )
    assert "pruning" in {stage.stage for stage in first.stages}
    assert "pruning" not in {stage.stage for stage in repeated.stages}
    assert repeated.config == first.config


def make_result_without_proof(exchange: SharedExchange) -> SharedResult:
    return SharedResult(
        node=exchange.state.node,
        worker=exchange.worker,
        number=exchange.state.number,
        verdict="inconclusive",
        config=DEFAULT,
        digest="1" * 64,
    )


def publish_without_proof(exchange: SharedExchange) -> SharedResult:
    result = make_result_without_proof(exchange)
    exchange.publish(result)
    return result


def test_a_later_search_goes_on_where_nothing_was_proven(tmp_path: Path) -> None:
    first = open_exchange(tmp_path, "a")
    join(first)
    publish_without_proof(first)
    first.close(completed=True)
    late = open_exchange(tmp_path, "b")
    assert search(late, 1).evidence.verdict == "faster"
    assert late.result is None
    later = open_exchange(tmp_path, "c")
    assert search(later, 2).evidence.verdict == "faster"
    assert later.result and later.result.node == "b"


def test_a_result_that_is_sent_after_its_worker_ended_does_not_end_the_search(tmp_path: Path) -> None:
    """The storage did not answer when it ended, or it was killed: the study does not say that it has ended."""
    first = open_exchange(tmp_path, "a", outbox=True)
    join(first)
    first.enter("confirmation")
    first._outbox.add(
        Message(study=first._study.name, name=f"{RESULT}{first.worker}", text=encode(make_result_without_proof(first)))
    )
    first._outbox._release()  # as when a process is killed
    again = open_exchange(tmp_path, "a", outbox=True)
    assert search(again, 1).evidence.verdict == "faster"
    assert again.result is None


def test_a_lost_connection_at_the_start_does_not_bring_back_a_result_without_proof(tmp_path: Path) -> None:
    first = open_exchange(tmp_path, "a")
    join(first)
    publish_without_proof(first)
    first.close(completed=True)
    n_left = 1

    def fails(name: str) -> str:
        nonlocal n_left
        if name != "announce" or not n_left:
            return ""
        n_left -= 1
        return "before"

    clock = FakeClock()
    late = open_exchange(tmp_path, "b", wrap=lambda study: Unreliable(study, fails), clock=clock)  # type: ignore[arg-type,return-value]
    join(late)
    clock.sleep(5.0)
    late.refresh()
    assert not n_left
    assert not late.is_screened()


def test_of_several_results_one_with_proof_counts(tmp_path: Path) -> None:
    first, second, third = (open_exchange(tmp_path, node) for node in "abc")
    for exchange in (first, second, third):
        join(exchange)
    publish_without_proof(first)
    first.close(completed=True)
    result = msgspec.structs.replace(make_result_without_proof(second), verdict="faster")
    second.publish(result)
    third.refresh()
    assert third.wait_for_result(lambda note: None, lambda race: False) == result


def test_nodes_that_take_part_end_with_a_result_without_proof(tmp_path: Path) -> None:
    first, second = open_exchange(tmp_path, "a"), open_exchange(tmp_path, "b")
    join(first)
    join(second)
    result = publish_without_proof(first)
    first.close(completed=True)
    assert second.wait_for_result(lambda note: None, lambda race: False) == result


def test_a_host_that_becomes_busy_repeats_the_whole_confirmation(tmp_path: Path) -> None:
    first = search(open_exchange(tmp_path, "a"), 0)
    opened = open_simulated(1)
    executor = cast("SimulatedExecutor", opened.runner.executor)

    class Busy(SharedExchange):
        def enter(self, stage: Stage, *, spent_s: float | None = None) -> None:
            super().enter(stage, spent_s=spent_s)
            if stage == "proof":
                executor.launch_s += 1.0

    exchange = open_exchange(tmp_path, "b")
    exchange.__class__ = Busy
    outcome = run_shared_search(SPACE, opened, SearchSettings(budget_s=90.0), exchange)
    exchange.close(completed=True)
    speedups = [result.evidence.speedup for result in (first, outcome)]
    assert speedups[0] and speedups[1]
    assert speedups[1].n_launches == speedups[0].n_launches


def test_classes_do_not_mix(tmp_path: Path) -> None:
    one, other = open_exchange(tmp_path, "a"), open_exchange(tmp_path, "b", host="Another")
    for exchange in (one, other):
        join(exchange)
    send(one, 1)
    for exchange in (one, other, one):
        exchange.refresh()
    assert other.received() == []
    assert one.count_nodes() == other.count_nodes() == 1


def test_what_is_leased_is_left_to_others_until_its_worker_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = (open_exchange(tmp_path, node, patience_s=0.2, clock=clock) for node in "ab")
    join(first)
    join(second)
    assert first.lease(["x", "y"], spent_s=3.0) == frozenset()
    assert second.lease(["y", "z"], spent_s=0.0) == {"y"}
    second.refresh()
    assert second.leased() == {"x", "y"}
    assert second.spent_elsewhere_s() == 3.0
    clock.sleep(0.3)
    second.refresh()
    assert second.leased() == frozenset()
    assert second.spent_elsewhere_s() == 3.0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_loses_nothing_and_doubles_nothing(tmp_path: Path, when: str) -> None:
    lost = False

    def fails(name: str) -> str:
        return when if lost else ""

    clock = FakeClock()
    exchange = open_exchange(tmp_path, wrap=lambda study: Unreliable(study, fails), outbox=True, clock=clock)  # type: ignore[arg-type,return-value]
    join(exchange)
    lost = True
    for number in (1, 2, 3):
        send(exchange, number)
    assert not exchange.flush()
    assert any("sent later" in note for note in exchange.take_notes())
    lost = False
    clock.sleep(1.1)  # the pause after a failed attempt
    assert exchange.flush()
    assert exchange.close(completed=True) == 0
    assert [measurement.id.partition(":")[2] for measurement in read_all(tmp_path)] == ["aa", "1", "2", "3"]
    assert not (tmp_path / "a.outbox.jsonl").exists()


def test_the_next_process_sends_what_a_killed_one_left(tmp_path: Path) -> None:
    killed = open_exchange(tmp_path, outbox=True)
    join(killed)
    send(killed, 1)
    send(killed, 2)
    assert len(read_all(tmp_path)) == 1
    killed._outbox._release()  # as when a process is killed
    again = open_exchange(tmp_path, outbox=True)
    join(again)
    assert len(read_all(tmp_path)) == 4
    assert {measurement.config.key for measurement in again.received()} == {
        candidate.config.key for candidate in SPACE.candidates[1:3]
    }


def test_an_outbox_that_its_owner_removes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to a file without a name would be lost."""
    path = tmp_path / "a.outbox.jsonl"
    opened: list[int] = []
    open_file = os.open

    def open_first(*arguments: Any) -> int:
        opened.append(open_file(*arguments))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    with monkeypatch.context() as patched:
        patched.setattr("ortune.storage.outbox.os.open", open_first)
        box = Outbox(path, "one")
    box.add(Message(study="one", name="x", text="{}"))
    assert len(opened) == 2
    assert path.stat().st_size
    box.close()


def test_an_outbox_of_another_search_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.outbox.jsonl"
    box = Outbox(path, "one")
    box.add(Message(study="one", name="x", text="{}"))
    with pytest.raises(UsageError, match="Another process"):
        Outbox(path, "one")
    box.close()
    with pytest.raises(UsageError, match="another search"):
        Outbox(path, "two")
    path.write_bytes(path.read_bytes() + b"damaged")
    assert [message.name for message in Outbox(path, "one").messages] == ["x"]


@pytest.mark.parametrize(
    ("damaged", "left", "n_damaged"),
    [
        pytest.param(b"n1", "0234", 1, id="line"),
        pytest.param(b"\n", "034", 1, id="line break"),
        pytest.param(b"n4", "0123", 0, id="end"),
    ],
)
def test_a_damaged_line_of_an_outbox_costs_no_other(tmp_path: Path, damaged: bytes, left: str, n_damaged: int) -> None:
    """Only the end of the file is cut off, as an interrupted write leaves it."""
    path = tmp_path / "a.outbox.jsonl"
    box = Outbox(path, "one")
    for number in range(5):
        box.add(Message(study="one", name=f"n{number}", text="{}"))
    box._release()  # as when a process is killed
    content = path.read_bytes()
    place = content.index(damaged, content.index(b"n1"))
    path.write_bytes(content[:place] + b"?" + content[place + 1 :])
    box = Outbox(path, "one")
    assert [message.name for message in box.messages] == [f"n{number}" for number in left]
    assert box.n_damaged == n_damaged
    box.add(Message(study="one", name="n5", text="{}"))
    box._release()
    assert [message.name for message in Outbox(path, "one").messages] == [f"n{number}" for number in f"{left}5"]


def test_the_user_is_told_of_results_that_were_damaged(tmp_path: Path) -> None:
    killed = open_exchange(tmp_path, outbox=True)
    join(killed)
    for number in (1, 2, 3):
        send(killed, number)
    killed._outbox._release()  # as when a process is killed
    path = tmp_path / "a.outbox.jsonl"
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(b"{", b"[", 1) + third)
    again = open_exchange(tmp_path, outbox=True)
    (note,) = again.take_notes()
    assert note == f"storage: a damaged line of {path} cannot be read, and is not sent"
    join(again)
    assert [measurement.id[-1] for measurement in read_all(tmp_path) if not measurement.id.endswith("aa")] == ["1", "3"]


def test_a_storage_that_hangs_does_not_stop_a_search(tmp_path: Path) -> None:
    hangs = threading.Event()

    def fails(name: str) -> str:
        if hangs.is_set():
            time.sleep(1.0)
        return ""

    exchange = open_exchange(tmp_path, wrap=lambda study: Unreliable(study, fails))  # type: ignore[arg-type,return-value]
    join(exchange)
    exchange._limit_s = 0.1
    hangs.set()
    send(exchange, 1)
    exchange.refresh()
    assert any("no answer" in note for note in exchange.take_notes())


def make_launch(node: str, launch: int, key: int, log_ratio: float) -> Measurement:
    return Measurement(
        id=f"{node}:{launch}:{key}",
        node=node,
        worker=node,
        config=Config(session_options={"intra_op_num_threads": key}),
        launch=launch,
        rounds=(SharedRound(log_ratios=(log_ratio,)),),
    )


def make_launches(**shifts: float) -> list[Measurement]:
    """Return the measurements of nodes that have four candidates in common, each in a launch of its own."""
    return [
        make_launch(node, place, place + 1, -0.1 * place + shift)
        for node, shift in shifts.items()
        for place in range(4)
    ]


def test_the_node_that_disagrees_is_set_apart() -> None:
    assert find_disagreements(make_launches(a=0.0, b=0.01, c=-0.01), DEFAULT.key) == {}
    found = find_disagreements(make_launches(a=0.0, b=0.01, c=0.3), DEFAULT.key)
    assert list(found) == ["c"]
    assert not found["c"].mutual
    assert "+3" in found["c"].reason


def test_of_two_nodes_that_disagree_nobody_knows_which_is_right() -> None:
    found = find_disagreements(make_launches(a=0.0, b=0.3), DEFAULT.key)
    assert {node: disagreement.mutual for node, disagreement in found.items()} == {"a": ("b",), "b": ("a",)}


def test_one_wild_launch_does_not_set_a_node_apart() -> None:
    launches = [*make_launches(a=0.0, b=0.01), *make_launches(c=0.0)[:3], make_launch("c", 3, 4, 0.6)]
    assert find_disagreements(launches, DEFAULT.key) == {}


def test_candidates_of_one_launch_share_its_luck() -> None:
    """All candidates of a launch are measured against the same control, whose luck shifts all of them."""
    unlucky = [make_launch("c", 7, key, -0.1 * (key - 1) + 0.3) for key in range(1, 5)]
    assert find_disagreements([*make_launches(a=0.0, b=0.01), *unlucky], DEFAULT.key) == {}


N_SEARCHES = 30


@pytest.mark.parametrize(
    ("luck", "shift", "least", "most"), [(0.03, 0.0, 0.0, 0.0), (0.05, 0.0, 0.0, 0.03), (0.03, 0.3, 0.85, 1.0)]
)
def test_how_often_nodes_are_set_apart(luck: float, shift: float, least: float, most: float) -> None:
    """Four nodes measure batches of eight, one of which others measured before. One of them may be shifted."""
    n_apart = 0
    for seed in range(N_SEARCHES):
        rng = np.random.default_rng(seed)
        measured: list[Measurement] = []
        apart: set[str] = set()
        for batch in range(16):
            for place, node in enumerate("abcd"):
                known = sorted({measurement.config.session_options["intra_op_num_threads"] for measurement in measured})
                keys = [1000 * place + 8 * batch + number + 1 for number in range(8)]
                if known and batch % 2:
                    keys[0] = int(rng.choice(known[: 8 * len("abcd")]))
                control = rng.normal(0, luck)
                for key in dict.fromkeys(keys):
                    own = rng.normal(0, luck) + rng.normal(0, 0.01) + (shift if node == "d" else 0.0)
                    measured.append(make_launch(node, batch, key, np.sin(key) / 5 + own - control))
            apart |= find_disagreements(measured, DEFAULT.key).keys()
        n_apart += bool(apart)
    assert least <= n_apart / N_SEARCHES <= most


def test_measurements_of_a_node_that_is_set_apart_do_not_count(tmp_path: Path) -> None:
    a, b, c = (open_exchange(tmp_path, node) for node in "abc")
    for exchange, shift in ((a, 0.0), (b, 0.01), (c, 0.4)):
        join(exchange)
        for number in range(1, 6):
            send(exchange, number, log_ratio=shift)
        exchange.flush()
    a.refresh()
    assert {measurement.node for measurement in a.received()} == {"b"}
    assert any(note.startswith("node c is set apart") for note in a.take_notes())
    with pytest.raises(MeasureError, match="set apart"):
        c.refresh()
    b.refresh()
    assert [state.unfit != "" for state in sorted(b._nodes.values(), key=lambda node: node.node)] == [False, True]


def test_a_noisy_or_biased_host_is_not_fit() -> None:
    def judge(*launches: list[float]) -> str:
        return judge_fitness(
            [[SharedRound(log_ratios=(log_ratio,)) for log_ratio in launch] for launch in launches]
        ).unfit

    assert judge([0.01, -0.01], [0.0, 0.02], [0.03, 0.0]) == ""
    assert judge([0.01, -0.01], [0.0, 0.02], [2.0, 0.0]) == ""  # one outlier
    assert "+17%" in judge([0.15, 0.16], [0.15, 0.14], [0.16, 0.15])
    assert "from round to round" in judge([0.9, -0.8], [-0.9, 0.7], [0.8, -0.9])


def test_an_unfit_host_ends_with_its_reason(tmp_path: Path) -> None:
    exchange = open_exchange(tmp_path)
    outcome = search(exchange, 0, block_sigma=0.8)
    assert outcome.interrupted
    assert "not fit" in outcome.evidence.reason
    study = SharedStudy(parse_location(str(tmp_path / "fleet.journal"), "storage"), IDENTITY)
    assert [state.stage for state in study.read_nodes()] == ["failed"]
    assert study.read_nodes()[0].unfit


def test_clocks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    first = open_exchange(tmp_path, "a")
    join(first)
    assert first.lease(["x"], spent_s=1.0) == frozenset()
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    second = open_exchange(tmp_path, "b")
    join(second)
    assert second.leased() == {"x"}
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    third = open_exchange(tmp_path, "c")
    join(third)
    assert third.leased() == {"x"}
    assert third.count_nodes() == 3


def test_the_next_node_takes_over_from_one_that_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = (open_exchange(tmp_path, node, patience_s=0.2, clock=clock) for node in "ab")
    join(first)
    join(second)
    first.enter("racing")
    notes: list[str] = []
    assert second.wait_for_result(notes.append, lambda race: False) is None
    assert notes == ["waiting for the result of a"]


def test_a_config_that_the_space_cannot_express_is_not_measured(tmp_path: Path) -> None:
    study = SharedStudy(parse_location(str(tmp_path / "fleet.journal"), "storage"), IDENTITY)
    hostile = Config(environment={"LD_PRELOAD": "/tmp/x.so"})
    study.add(
        Measurement(
            id="x:1", node="x", worker="x", config=hostile, launch=1, rounds=(SharedRound(log_ratios=(-3.0,)),) * 3
        )
    )
    study.announce(NodeState(node="x", worker="x", stage="done"))
    executor = SimulatedExecutor(latency, seed=1)
    (first,) = executor.launch([DEFAULT], deadline_s=9)
    assert not isinstance(first, Failure)
    opened = start_comparison(executor, first, Goal(), first_launch_s=0.1, free_bytes=10**10)
    exchange = open_exchange(tmp_path)
    outcome = run_shared_search(SPACE, opened, SearchSettings(budget_s=60.0), exchange)
    exchange.close(completed=True)
    assert outcome.config != hostile
    assert hostile not in executor.launched


@pytest.mark.parametrize("gains", [True, False])
def test_what_arrives_after_screening_races(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: bool) -> None:
    """Also where this node found nothing promising until then."""
    if not gains:
        monkeypatch.setattr(Screening, "explain_end", lambda self: ALL_PAIRS_TRIED if self.n_screened >= 16 else "")
    other = open_exchange(tmp_path, "b")
    late: list[Candidate] = []

    class Waiting(SharedExchange):
        def wait_for_result(self, observe: object, take_part: object) -> None:
            join(other)
            late.append(next(candidate for candidate in SPACE.candidates[1:] if not self.has_own(candidate.config.key)))
            log_ratio = -0.8 if gains else -0.2
            other.send(late[0], 1, [SharedRound(log_ratios=(log_ratio,))] * 3, None, spent_s=0.1)
            other.close(completed=True)
            self.refresh()

    exchange = open_exchange(tmp_path)
    exchange.__class__ = Waiting
    opened = open_simulated(0, latency=latency if gains else lambda config: 1e6)
    settings = SearchSettings(budget_s=60.0, n_trials=20)
    outcome = run_shared_search(SPACE, opened, settings, exchange)
    exchange.close(completed=True)
    stages = {trial.config.key: trial.stage for trial in outcome.trials}
    if gains:
        # Without settings that do nothing, if it has any.
        assert stages[late[0].config.key] in {"pruning", "confirmation"}
    else:
        assert outcome.ended_early == ALL_PAIRS_TRIED
        assert stages[late[0].config.key] != "screening"
        assert "racing" in {stage.stage for stage in outcome.stages}


SECRET = "s3cr%2Ft"


def test_processes_do_not_get_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortune.worker.child_process import make_environment

    monkeypatch.setenv("ORTUNE_STORAGE", f"postgresql://ann:{SECRET}@db/tuning")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("KEPT", "1")
    environment = make_environment()
    assert SECRET not in str(environment)
    assert environment["KEPT"] == "1"


def test_the_same_command_on_two_nodes(tmp_path: Path) -> None:
    for node in "ab":
        command = ["search", TINY_CNN, "--storage", "fleet.journal", "--no-history", "-o", f"{node}.json"]
        done = run_ortune(*command, cwd=tmp_path, simulate=True, environment={"ORTUNE_NODE": node})
        assert done.returncode == 0, done.stderr
    assert "b by fleet.journal" in done.stdout
    records = [json.loads((tmp_path / f"{node}.json").read_text()) for node in "ab"]
    assert records[0]["config"] == records[1]["config"]
    assert [[stage["stage"] for stage in record["search"]["stages"]][-1] for record in records] == ["confirmation"] * 2
    assert not list(tmp_path.glob("*.outbox.jsonl"))
    assert not list(tmp_path.glob("*.unfinished.jsonl"))
    (info,) = list_studies(parse_location(str(tmp_path / "fleet.journal"), "storage"))
    study = SharedStudy(parse_location(str(tmp_path / "fleet.journal"), "storage"), info.identity)
    assert study.name == info.name
    (result,) = study.read_all(RESULT, SharedResult).values()
    assert json.loads(bytes(result.record))["config"] == records[0]["config"]
    proofs = study.read_all(PROOF, Proof)
    assert {proof.node for proof in proofs.values()} == {"a", "b"}
    assert {proof.digest for proof in proofs.values()} == {result.digest}
    assert all(proof.speedup and proof.speedup.low > 1 for proof in proofs.values())


def test_a_storage_that_does_not_answer_at_the_start(tmp_path: Path) -> None:
    def fail(*options: str, **variables: str) -> str:
        command = ["search", TINY_CNN, "--no-history", "-o", "a.json", *options]
        done = run_ortune(*command, cwd=tmp_path, simulate=True, environment=variables)
        assert done.returncode == 2
        assert SECRET not in done.stdout + done.stderr
        assert not (tmp_path / "a.json").exists()
        return done.stderr

    assert "127.0.0.1:1/tuning" in fail(ORTUNE_STORAGE=f"postgresql://ann:{SECRET}@127.0.0.1:1/tuning")
    assert "ORTUNE_STORAGE_FILE" in fail("--storage", f"postgresql://ann:{SECRET}@h/d")
    assert "--resume" in fail("--storage", "a.journal", "--resume")


def test_the_record_is_written_before_the_result_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage may not answer at the end, and the user may not wait."""

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ortune.tuning.search.share_outcome", interrupt)
    output, storage = tmp_path / "r.json", str(tmp_path / "s.journal")
    with simulate(Scenario(is_here=True)), pytest.raises(KeyboardInterrupt):
        ortune.search(TINY_CNN, budget="20s", only=["intra_op_num_threads"], output=output, storage=storage)
    assert read_record(output).search.n_tried
