"""Exchanges measurements with other nodes through a storage.

Measurements go to an outbox first, and from there to the storage. If the storage does not answer, the search goes on,
and they are sent later. Nothing depends on clocks of hosts: a worker has ended if its state does not change for long,
on the clock of whoever waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune.errors import MeasureError
from ortune.knobs import Candidate, Config
from ortune.record.schema import WITHOUT_PROOF
from ortune.storage import (
    PROOF,
    RACE,
    RESULT,
    Measurement,
    NodeState,
    Proof,
    SharedRace,
    SharedResult,
    SharedRound,
    SharedStudy,
    StorageError,
    name_worker,
)
from ortune.storage.outbox import Message, Outbox
from ortune.storage.schema import Stage, encode
from ortune.storage.timed import TimedCalls
from ortune.tuning.agreement import Disagreement, find_disagreements
from ortune.worker import Failure

PATIENCE_S = 90.0
SILENCE_FACTOR = 3.0
LONGEST_PATIENCE_S = 3600.0
"""A worker has ended if its state does not change for so long: at least the first, or a multiple of the time that it
expects to be silent, at most the last."""

BEAT_EVERY_S = 10.0
"""Time between two updates of the state of a worker that measures."""

MOST_RACING = 12
"""Nodes that take part in a race at most: it has no more launches."""

POLL_S = 2.0
"""Time between two looks at the storage while waiting for another node."""

CALL_LIMIT_S = 20.0
OPEN_LIMIT_S = 90.0
CLOSE_LIMIT_S = 30.0
"""Time that a call of the storage may take, that it may take to open it, and to send what is left at the end."""

SHORTEST_PAUSE_S = 1.0
LONGEST_RETRY_PAUSE_S = 60.0
"""Time without attempts after a failed one. It doubles each time."""

ENDED: frozenset[Stage] = frozenset({"done", "failed"})
SCREENED: frozenset[Stage] = frozenset({"waiting", "racing", "confirmation", "proof"})

T = TypeVar("T")


class SharedExchange:
    """The exchange of one worker with a study that it shares with others.

    Args:
        open_study: Opens the study. It is called in another thread.
        node: Name of this host.
        outbox_path: File for what was not sent yet, or None to keep it in memory only.
        host: Name of the class of this host.
        kernel: Release of its operating system.
        patience_s: Time without a change after which a worker has ended, at least.
        poll_s: Time between two looks at the storage while waiting.
        limit_s: Time that a call of the storage may take.
        worker: Identifier of this process, as hexadecimal digits; None for a random one.
        clock: Returns the time in seconds. Only differences count.
        sleep: Waits for a time in seconds.

    Attributes:
        state: The state of this worker, as others see it.
        result: The result of another node, once it is known.
        own_result: The result that this node proves: that of another node, or its own.
        unfit: The nodes that are set apart, with the reason.
        worker: Identifier of this process.

    Raises:
        UsageError: A driver is not installed, or the outbox cannot be used.
        StorageError: The storage does not answer.
    """

    def __init__(
        self,
        open_study: Callable[[], SharedStudy],
        *,
        node: str,
        outbox_path: Path | None,
        host: str = "",
        kernel: str = "",
        patience_s: float = PATIENCE_S,
        poll_s: float = POLL_S,
        limit_s: float = CALL_LIMIT_S,
        worker: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.worker = worker or name_worker()
        self.result: SharedResult | None = None
        self.own_result: SharedResult | None = None
        self.unfit: dict[str, Disagreement] = {}
        self._patience_s = patience_s
        self._poll_s = poll_s
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._calls = TimedCalls()
        self._study = self._calls.call(open_study, OPEN_LIMIT_S)
        self._outbox = Outbox(outbox_path, self._study.name)
        self.state = NodeState(node=node, worker=self.worker, host=host[:1024], kernel=kernel[:1024])
        self._base_key = ""
        self._n_sent = 0
        self._pause_s = SHORTEST_PAUSE_S
        self._next_attempt_s = -1.0
        self._lost_s: float | None = None
        self._announced_s = clock()
        self._nodes: dict[str, NodeState] = {}
        self._changes: dict[str, tuple[int, float]] = {}
        self._measurements: dict[str, Measurement] = {}
        self._own_keys: set[str] = set()
        self._by_key: dict[str, list[Measurement]] = {}
        self._common_keys: set[str] = set()
        self._n_compared = 0
        self._results: dict[str, SharedResult] = {}
        self._first_beats: dict[str, int] = {}
        self._notes: list[str] = []
        if n := self._outbox.n_damaged:
            self._notes.append(f"storage: {explain_damage(n, outbox_path)}")
        if self._outbox.is_foreign:
            self._notes.append(
                f"storage: {outbox_path} is not signed with the key of this user on this host, so it is not sent"
            )

    # What happens in the storage.

    def _call(self, work: Callable[[SharedStudy], T]) -> T:
        """Return what a call of the storage returns.

        Raises:
            StorageError: It fails, or it failed a short time ago.
        """
        if self._clock() < self._next_attempt_s:
            raise StorageError("it did not answer a short time ago.")
        try:
            answer = self._calls.call(lambda: work(self._study), self._limit_s)
        except StorageError as error:
            now_s = self._clock()
            self._next_attempt_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_PAUSE_S)
            if self._lost_s is None:
                self._lost_s = now_s
                self._notes.append(f"storage: {error.message} The search goes on here, and results are sent later.")
            raise
        if self._lost_s is not None:
            self._lost_s = None
            self._notes.append("storage: it answers again")
        self._pause_s = SHORTEST_PAUSE_S
        self._next_attempt_s = -1.0
        return answer

    def flush(self) -> bool:
        """Send what was not sent yet, and return whether nothing is left."""
        while messages := self._outbox.first():
            try:
                self._call(lambda study, messages=messages: self._send(study, messages))  # type: ignore[misc]
            except StorageError:
                self._outbox.doubt(messages)
                return False
            self._outbox.remove(messages)
        return True

    def _send(self, study: SharedStudy, messages: Sequence[Message]) -> None:
        """Write an attribute of the study, or measurements that did not arrive yet."""
        for message in messages:
            if message.measurement is None:
                study.write_text(message.name, message.text)
        measured = [message.measurement for message in messages if message.measurement]
        new = [
            measurement
            for measurement in measured
            if measurement.id not in self._outbox.doubtful or not study.has(measurement.id)
        ]
        if new:
            study.add_all(new)

    def _announce(self, **changes: object) -> None:
        """Write the state of this worker."""
        now_s = self._clock()
        silent_s = max(self.state.silent_s, min(now_s - self._announced_s, LONGEST_PATIENCE_S))
        self._announced_s = now_s
        state = msgspec.structs.replace(self.state, beat=self.state.beat + 1, silent_s=silent_s, **changes)
        self.state = state
        try:
            self._call(lambda study: study.announce(state))
        except StorageError:
            return

    def _read(self) -> None:
        """Read the states, the measurements and the results of all workers."""

        def read(study: SharedStudy) -> tuple[list[NodeState], list[Measurement], dict[str, SharedResult]]:
            # States come first: a worker that has ended wrote its measurements before.
            nodes, results = study.read_progress()
            return nodes, study.receive(), results

        try:
            nodes, received, results = self._call(read)
        except StorageError:
            return
        now_s = self._clock()
        self._nodes = {state.worker: state for state in nodes if state.worker != self.worker}
        for state in self._nodes.values():
            self._first_beats.setdefault(state.worker, state.beat)
            beat, _ = self._changes.get(state.worker, (-1, 0.0))
            if beat != state.beat:
                self._changes[state.worker] = (state.beat, now_s)
        for measurement in received:
            self._measurements[measurement.id] = measurement
            key = measurement.config.key
            same = self._by_key.setdefault(key, [])
            same.append(measurement)
            if measurement.node != same[0].node:
                self._common_keys.add(key)
            if measurement.node == self.state.node:
                self._own_keys.add(key)
        self._results = results
        self._compare()

    def _compare(self) -> None:
        """Find nodes that disagree with others."""
        if len(self._measurements) == self._n_compared:
            return
        self._n_compared = len(self._measurements)
        # Those that race were chosen because a node measured them to be good, partly by chance. On another node, they
        # are worse in a race, although both nodes are right.
        common = (measurement for key in self._common_keys for measurement in self._by_key[key] if not measurement.race)
        fit = [measurement for measurement in common if self._is_fit(measurement.worker)]
        found = find_disagreements(fit, self._base_key)
        for node, disagreement in found.items():
            if node not in self.unfit:
                self._notes.append(f"node {node} is set apart: {disagreement.reason}")
        for node in self.unfit.keys() - found.keys():
            self._notes.append(f"node {node} agrees with the others again")
        self.unfit = found

    def _is_fit(self, worker: str) -> bool:
        """Return whether a worker passed its A/A check."""
        state = self.state if worker == self.worker else self._nodes.get(worker)
        return state is None or not state.unfit

    def _counts(self, node: str, worker: str) -> bool:
        """Return whether this node uses what a worker wrote."""
        if node == self.state.node:
            return self._is_fit(worker)
        own = self.unfit.get(self.state.node)
        is_apart = node in self.unfit or (own is not None and node in own.mutual)
        return not is_apart and self._is_fit(worker)

    def _is_running(self, state: NodeState) -> bool:
        """Return whether a worker runs: it has not ended, and its state changed not long ago."""
        if state.stage in ENDED or not self._counts(state.node, state.worker):
            return False
        if state.node == self.state.node and state.number < self.state.number:
            return False  # this process took its place
        patience_s = min(
            max(self._patience_s, SILENCE_FACTOR * state.silent_s), max(LONGEST_PATIENCE_S, self._patience_s)
        )
        return self._clock() - self._changes[state.worker][1] < patience_s

    def _others(self) -> list[NodeState]:
        """Return the states of the other workers that run and count."""
        return [state for state in self._nodes.values() if self._is_running(state)]

    # What a search does.

    def draw_seed(self, seed: int) -> int:
        """Return a random seed for this worker, given that of the command."""
        return (seed + int(self.worker, 16)) % 2**32

    def join(
        self, base: Config, rounds: Sequence[SharedRound], *, sigma: float, bias: float, unfit: str, silent_s: float
    ) -> None:
        """Take part: write the A/A check as a trial, whose number is that of the worker.

        Raises:
            StorageError: The storage does not answer.
            MeasureError: The check failed.
        """
        self._base_key = base.key
        self.state = msgspec.structs.replace(
            self.state, sigma=min(sigma, 20.0), bias=bias, unfit=unfit, silent_s=silent_s
        )
        measurement = Measurement(
            id=f"{self.worker}:aa",
            node=self.state.node,
            worker=self.worker,
            config=base,
            launch=0,
            rounds=tuple(rounds),
        )
        end_s = self._clock() + OPEN_LIMIT_S

        def add(study: SharedStudy) -> int:
            number = study.find(measurement.id)
            return study.add(measurement) if number is None else number

        while True:
            try:
                number = self._call(add)
                break
            except StorageError:
                if self._clock() > end_s:
                    raise
                self._sleep(SHORTEST_PAUSE_S)
        self._announced_s = self._clock()
        self._announce(number=number, stage="failed" if unfit else "screening")
        if unfit:
            raise MeasureError(
                f"This host is not fit to take part in the search: {unfit}.",
                "Stop what else uses its CPUs, and repeat the command.",
            )
        self.refresh()

    def refresh(self) -> None:
        """Read what others wrote, and send what was not sent yet.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        self.flush()
        self._read()
        own = self.unfit.get(self.state.node)
        if own and not own.mutual:
            self._announce(stage="failed", unfit=own.reason, leased=())
            raise MeasureError(
                f"This node is set apart: {own.reason}.",
                "Compare this host with the others: its clock rates, its memory, and what else runs on it.",
            )

    def received(self) -> Sequence[Measurement]:
        """Return all measurements of other workers that count."""
        return [
            measurement
            for measurement in self._measurements.values()
            if measurement.worker != self.worker
            and measurement.config.key != self._base_key
            and self._counts(measurement.node, measurement.worker)
        ]

    def count_nodes(self) -> int:
        """Return how many nodes take part now."""
        return len({self.state.node, *(state.node for state in self._others())})

    def count_earlier(self) -> int:
        """Return how many of them joined before this one."""
        return sum(1 for state in self._others() if state.number < self.state.number)

    def spent_elsewhere_s(self) -> float:
        """Return the time that other workers spent in screening, in seconds."""
        return sum(state.spent_s for state in self._nodes.values() if self._counts(state.node, state.worker))

    def leased(self) -> frozenset[str]:
        """Return the keys of the configs that others measure now."""
        return frozenset(key for state in self._others() for key in state.leased)

    def lease(self, keys: Sequence[str], *, spent_s: float) -> frozenset[str]:
        """Announce the configs that this node is about to measure, and return those that it must leave to others.

        Of two nodes that announce the same at the same time, the one that joined first measures it.
        """
        self._announce(stage="screening", leased=tuple(keys), spent_s=spent_s)
        try:
            nodes = self._call(lambda study: study.read_nodes())
        except StorageError:
            return frozenset()
        for state in nodes:
            if state.worker in self._nodes:
                self._nodes[state.worker] = state
        others = [state for state in self._others() if state.number < self.state.number]
        return frozenset(key for state in others for key in state.leased if key in keys)

    def send(
        self,
        candidate: Candidate,
        launch: int,
        rounds: Sequence[SharedRound],
        failure: Failure | None,
        *,
        spent_s: float,
        race: str = "",
    ) -> None:
        """Send what one launch of a candidate showed, in screening or in the race of a worker."""
        self._n_sent += 1
        measurement = Measurement(
            id=f"{self.worker}:{self._n_sent}",
            node=self.state.node,
            worker=self.worker,
            config=candidate.config,
            labels=dict(candidate.labels),
            launch=launch,
            rounds=tuple(rounds),
            failure=None if rounds else failure,
            spent_s=spent_s,
            race=race,
        )
        self._own_keys.add(candidate.config.key)
        self.state = msgspec.structs.replace(self.state, n_measured=self._n_sent)
        self._outbox.add(Message(study=self._study.name, measurement=measurement))

    def has_own(self, key: str) -> bool:
        """Return whether this node measured a config."""
        return key in self._own_keys

    def beat(self) -> None:
        """Update the state of this worker if it is time to."""
        if self._clock() - self._announced_s >= min(BEAT_EVERY_S, self._patience_s / 4):
            self._announce()

    def enter(self, stage: Stage, *, spent_s: float | None = None) -> None:
        """Announce a stage. Nothing is leased any more."""
        self._announce(stage=stage, leased=(), **({} if spent_s is None else {"spent_s": spent_s}))

    def is_screened(self) -> bool:
        """Return whether a node has ended screening, which then ends for all."""
        return bool(self._find_result()) or any(state.stage in SCREENED for state in self._others())

    def wait_for_result(
        self, observe: Callable[[str], None], take_part: Callable[[SharedRace], bool]
    ) -> SharedResult | None:
        """Return the result of another node, or None if racing and confirmation are up to this one.

        They are up to the node that joined first, of those that run. It begins when the others have measured what they
        leased. The others take part in its race. If the storage does not answer for long, this node goes on alone.
        """
        noted = ""
        declined: SharedRace | None = None
        while True:
            self.refresh()
            if (result := self._find_result()) is not None:
                self.result = self.own_result = result
                return result
            if self._lost_s is not None and self._clock() - self._lost_s > self._patience_s:
                self._notes.append("storage: it does not answer, so this node completes the search alone")
                return None
            others = self._others()
            first = min(others, key=lambda state: state.number, default=None)
            if first is None or self.state.number < first.number:
                busy = [state.node for state in others if state.stage == "screening"]
                if not busy:
                    return None
                note = f"waiting for what {', '.join(sorted(set(busy)))} measures"
            else:
                race = self._find_race(first.worker) if self.count_earlier() < MOST_RACING else None
                if race is not None and race != declined:
                    if self.state.stage != "racing":
                        self.enter("racing")
                    if take_part(race):
                        continue
                    declined = race
                if self.state.stage == "racing":
                    self.enter("waiting")
                note = f"waiting for the result of {first.node}"
            if note != noted:
                observe(note)
                noted = note
            self._sleep(self._poll_s)
            self.beat()

    def _find_race(self, worker: str) -> SharedRace | None:
        """Return the race of another node; None if there is none now."""
        try:
            races = self._call(lambda study: study.read_all(RACE, SharedRace))
        except StorageError:
            return None
        race = races.get(worker)
        return race if race is not None and race.configs else None

    def announce_race(self, configs: Sequence[Config]) -> None:
        """Announce to nodes that wait which candidates race on this node, for them to take part; none if it is over."""
        self._post(f"{RACE}{self.worker}", SharedRace(worker=self.worker, configs=tuple(configs)))

    def received_race(self) -> Sequence[Measurement]:
        """Return what other nodes measured for the race of this one."""
        return [measurement for measurement in self.received() if measurement.race == self.worker]

    def count_racing(self) -> int:
        """Return how many other nodes take part in a race now."""
        return sum(state.stage == "racing" for state in self._others())

    def pause(self) -> float:
        """Wait a little for other nodes, read what they wrote, and return how long the wait was, in seconds.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        begin_s = self._clock()
        self._sleep(self._poll_s)
        self.beat()
        self.refresh()
        return self._clock() - begin_s

    def _find_result(self) -> SharedResult | None:
        """Return the result that counts: that of the worker that joined first, if it has a proof.

        One without proof counts only if its worker has done something since this one joined, which goes on searching
        where an earlier search has ended. The worker of an earlier search may have been killed, or have sent its result
        without its end.
        """
        found = [
            result
            for result in self._results.values()
            if self._counts(result.node, result.worker)
            and (result.verdict not in WITHOUT_PROOF or self._runs(result.worker))
        ]
        return min(found, key=lambda result: (result.verdict in WITHOUT_PROOF, result.number), default=None)

    def _runs(self, worker: str) -> bool:
        """Return whether another worker joined later, or has done something since this one saw it first."""
        state = self._nodes.get(worker)
        if state is None:
            return False
        return state.number > self.state.number or state.beat != self._first_beats[worker]

    def publish(self, result: SharedResult) -> None:
        """Write the result of this worker."""
        self.own_result = result
        self._post(f"{RESULT}{self.worker}", result)

    def prove(self, proof: Proof) -> None:
        """Write what the confirmation showed on this host."""
        self._post(f"{PROOF}{self.worker}", proof)

    def _post(self, name: str, value: msgspec.Struct) -> None:
        self._outbox.add(Message(study=self._study.name, name=name, text=encode(value)))
        self.flush()

    def take_notes(self) -> list[str]:
        """Return what happened since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self, *, completed: bool) -> int:
        """Send what is left, end, and return how many results could not be sent. They are kept in the outbox's file."""
        end_s = self._clock() + CLOSE_LIMIT_S
        while not self.flush() and completed and self._clock() < end_s:
            self._sleep(SHORTEST_PAUSE_S)
        self._announce(stage="done" if completed else "failed", leased=())
        self._outbox.close()
        n_left = len(self._outbox.messages)
        if n_left:
            self._notes.append(f"storage: {explain_unsent(n_left, self._outbox.path)}")
        return n_left


def explain_damage(n: int, path: Path | None) -> str:
    """Return what became of damaged lines of the outbox's file, as a sentence without its full stop.

    Args:
        n: Their number.
        path: The file.
    """
    what = "a damaged line" if n == 1 else f"{n} damaged lines"
    return f"{what} of {path} cannot be read, and {'is' if n == 1 else 'are'} not sent"


def explain_unsent(n: int, path: Path | None) -> str:
    """Return what became of results that could not be sent, as a sentence.

    Args:
        n: Their number.
        path: The file that keeps them; None if they are lost.
    """
    what = "a result" if n == 1 else f"{n} results"
    if path is None:
        return f"{what} could not be sent to it."
    return (
        f"{what} could not be sent to it. {path} keeps them. The next search with this record and storage sends them."
    )
