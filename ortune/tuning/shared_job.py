"""A search that several hosts share: its own list of steps, over those of a search on one host.

Each host screens the candidates that it leases, and takes the results of others for its own. One of them races and
confirms. The others take part in its race, and repeat the confirmation.
"""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import optuna

from ortune.errors import MeasureError
from ortune.knobs import Candidate, SearchSpace
from ortune.measure.calibrate import Calibration
from ortune.measure.open import OpenComparison
from ortune.storage import SharedRace, SharedResult
from ortune.tuning.board import Board, ScreeningResult
from ortune.tuning.confirmation import confirm
from ortune.tuning.fitness import check_fitness
from ortune.tuning.job import SearchJob, SearchSettings, find_racing_s
from ortune.tuning.merge import Merger, send_launches
from ortune.tuning.outcome import Observe, Outcome, Progress
from ortune.tuning.plan import LONGEST_RACING, SearchPlan, split_budget, usual_budget_s
from ortune.tuning.racing import race
from ortune.tuning.results import CandidateResult
from ortune.tuning.sampler import CONFIG, CandidateSampler
from ortune.tuning.screening import Duplicates, Proposed, Screening, ScreeningBatch, screen
from ortune.tuning.shared_exchange import SharedExchange
from ortune.tuning.shared_race import RaceOfSeveral
from ortune.workload import Goal

QUEUED = "queued"
"""Attribute of a trial in Optuna's queue, where other nodes may measure its candidate first."""

PROOF_PATIENCE = 3.0
"""Longest time in which another host repeats a confirmation, relative to the planned time. A busy host takes longer
for the same number of launches, and with fewer of them, it would prove nothing."""


def run_shared_search(
    space: SearchSpace,
    opened: OpenComparison,
    settings: SearchSettings,
    exchange: SharedExchange,
    observe: Observe = lambda progress: None,
) -> Outcome:
    """Find the best candidate together with other hosts, and prove on this one that it is better than the baseline.

    Args:
        space: What may be tried.
        opened: The comparison, whose baseline is that of the space.
        settings: Settings of the search.
        exchange: Exchanges measurements with other nodes.
        observe: Called with the progress, between blocks.

    Raises:
        UsageError: The study's file cannot be used.
    """
    # The same command runs on every node, and each proposes other candidates.
    seed = exchange.draw_seed(opened.seed)
    opened.runner.rng = np.random.default_rng(seed)
    job = SearchJob(space, opened, settings, observe, seed=seed, split=split_shared_budget)
    board = job.board
    board.observe = functools.partial(report_shared, board, exchange, observe)
    with job.catch_end():
        join(board, exchange)
        screening = SharedScreening(board, job.study, exchange)
        board.screened = screen(board, screening)
        board.is_unpromising = board.screened.is_unpromising
        result = exchange.wait_for_result(
            functools.partial(note_wait, board), functools.partial(help_race, board, screening, exchange)
        )
        if result is not None:
            finalists = find_result(board, exchange, result)
        else:
            board.screened = screening.complete(board.screened)
            board.is_unpromising = board.screened.is_unpromising
            board.end_s = find_end_s(board)
            if job.may_race():
                exchange.enter("racing")
                board.is_unpromising |= race(board, RaceOfSeveral(board, find_racing_s(board), exchange))
            exchange.enter("confirmation")
            job.confirmed.pruned = job.prune(job.rank_finalists())
            finalists = job.confirmed.pruned.ranked
        for confirmation in job.list_confirmations(finalists):
            job.confirmed.comparison = confirm(board, confirmation)
    return job.conclude()


def split_shared_budget(
    goal: Goal, calibration: Calibration, *, left_s: float, free_bytes: int | None, one_at_a_time: bool = False
) -> SearchPlan:
    """Split the time that is left. All of a large budget but the usual one is for screening, which hosts share.

    See `split_budget` for the arguments.
    """
    usual_s = usual_budget_s(goal, calibration.pace, calibration.launch_s)
    plan = split_budget(
        goal, calibration, left_s=min(left_s, usual_s), free_bytes=free_bytes, one_at_a_time=one_at_a_time
    )
    return msgspec.structs.replace(plan, screening_s=plan.screening_s + max(left_s - usual_s, 0.0))


def report_shared(board: Board, exchange: SharedExchange, observe: Observe, progress: Progress) -> None:
    """Show others that this node runs, and report progress with what is known of them."""
    exchange.beat()
    observe(
        msgspec.structs.replace(
            progress,
            notes=(*progress.notes, *exchange.take_notes()),
            n_nodes=exchange.count_nodes(),
            n_shared=board.results.count_shared(),
        )
    )


def join(board: Board, exchange: SharedExchange) -> None:
    """Take part, if this host is fit to.

    Raises:
        MeasureError: It is not.
        StorageError: The storage does not answer.
    """
    fitness = check_fitness(board)
    launch_s = board.plan.confirmation_s / max(board.plan.confirmation.launches or 1, 1)
    exchange.join(
        board.space.base,
        fitness.rounds,
        sigma=fitness.sigma,
        bias=fitness.bias,
        unfit=fitness.unfit,
        silent_s=2 * launch_s,
    )
    board.planned_s = board.end_s - board.now_s()


def find_end_s(board: Board) -> float:
    """Return when the search ends whose screening others took part in, on the runner's clock."""
    end_s = board.now_s() + board.plan.racing_s + board.plan.confirmation_s
    return max(min(board.end_s, end_s + (LONGEST_RACING - 1) * board.plan.racing_s), end_s)


class SharedScreening(Screening):
    """The screening of a search that several nodes share.

    Attributes:
        exchange: Exchanges measurements with other nodes.
        merger: Merges what other nodes measured.
        postponed: Candidates of the queue that other nodes measure, by the key of their config.
        leased: Keys of the configs that other nodes measured when candidates were proposed last.
        end_s: When the budget of this node would end without the others, on the runner's clock.
    """

    def __init__(self, board: Board, study: optuna.Study, exchange: SharedExchange) -> None:
        self.exchange = exchange
        self.merger = Merger(board.results, board.goal)
        self.postponed: dict[str, Candidate] = {}
        self.leased: frozenset[str] = frozenset()
        self.end_s = board.end_s
        super().__init__(board, study)

    def count_earlier(self) -> int:
        """Return how many nodes joined before this one. Nodes begin in different places of the first candidates."""
        return self.exchange.count_earlier()

    def enqueue(self, candidate: Candidate) -> None:
        """Put a candidate in Optuna's queue."""
        self.study.enqueue_trial(self.space.labels_of(candidate), user_attrs={QUEUED: True})

    def is_queued(self, trial: optuna.Trial) -> bool:
        """Return whether a proposal comes from the queue, of which other nodes measure a part."""
        return bool(trial.user_attrs.get(QUEUED))

    def is_over(self) -> bool:
        """Return whether another node has ended screening, which then ends for all."""
        return self.exchange.is_screened()

    def is_known(self, candidate: Candidate) -> bool:
        """Return whether a candidate was measured, or is about to be."""
        return super().is_known(candidate) and candidate.config.key not in self.merger.emptied

    @property
    def n_screened(self) -> int:
        """Number of candidates screened, without the baseline."""
        return super().n_screened - len(self.merger.emptied)

    def list_untried(self) -> list[Candidate]:
        """Return the candidates that may still be proposed."""
        return [candidate for candidate in super().list_untried() if candidate.config.key not in self.leased]

    def propose(self, n: int) -> tuple[Proposed, Duplicates]:
        """Return up to `n` new candidates that no other node measures now, and further proposals of the same."""
        self.leased = self.exchange.leased()
        if isinstance(self.study.sampler, CandidateSampler):
            self.study.sampler.excluded = self.leased
        return super().propose(n)

    def is_left(self, trial: optuna.Trial, candidate: Candidate) -> bool:
        """Return whether another node measures a proposed candidate now."""
        key = candidate.config.key
        if key not in self.leased:
            return False
        self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        if self.is_queued(trial):
            self.postponed[key] = candidate
        return True

    def admit(self, candidate: Candidate) -> CandidateResult:
        """Return the empty result of a candidate that is measured now."""
        self.merger.emptied.pop(candidate.config.key, None)
        return super().admit(candidate)

    def take(self, proposed: Proposed) -> Proposed:
        """Lease candidates. Return those that no other node began to measure at the same time."""
        keys = [result.candidate.config.key for _, result in proposed]
        denied = self.exchange.lease(keys, spent_s=self.board.now_s() - self.board.stage_start_s)
        kept: Proposed = []
        for trial, result in proposed:
            key = result.candidate.config.key
            if key in denied:
                self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
                self.postponed[key] = self.merger.emptied[key] = result.candidate
            else:
                kept.append((trial, result))
        return kept

    def rank_to_launch_again(self, leaders: list[CandidateResult]) -> list[CandidateResult]:
        """Return leaders in the order in which they are launched again.

        Those that only other nodes measured come first, which also shows whether nodes agree.
        """
        has_own = self.exchange.has_own
        return sorted(leaders, key=lambda result: (has_own(result.candidate.config.key), result.n_launches))

    def learn_batch(self, batch: ScreeningBatch) -> None:
        """Send what this node measured to the others, too."""
        super().learn_batch(batch)
        results = batch.results
        spent_s = (self.board.now_s() - batch.begin_s) / max(len(results), 1)
        send_launches(self.exchange, results, batch.first_launch, spent_s=spent_s)

    def receive(self) -> bool:
        """Merge what other nodes measured, and return whether there was anything new.

        Raises:
            MeasureError: The others do not use the measurements of this node.
        """
        exchange = self.exchange
        exchange.refresh()
        self.board.end_s = self.end_s - exchange.spent_elsewhere_s()
        changed, new = self.merger.merge(exchange.received(), self.space)
        if self.sampler:
            self.extend(result.candidate for result in changed)
        self.noise.update(changed)
        for result in changed:
            self.observe(result)
            key = result.candidate.config.key
            if key in new:
                self.add_trial(result)
            elif key in self.merger.emptied:
                self.postponed[key] = result.candidate
        leased = exchange.leased()
        for key, candidate in list(self.postponed.items()):
            if key not in leased:
                del self.postponed[key]
                if not self.is_known(candidate):
                    self.enqueue(candidate)
        return bool(changed)

    def add_trial(self, result: CandidateResult) -> None:
        """Add a candidate that another node measured to the study of this search."""
        labels = self.list_labels()
        params = self.space.labels_of(result.candidate)
        params = {name: label for name, label in params.items() if label in labels[name]}
        ratios = None if result.failure else result.log_ratios
        self.study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.COMPLETE if ratios else optuna.trial.TrialState.FAIL,
                params=params,
                distributions={name: optuna.distributions.CategoricalDistribution(labels[name]) for name in params},
                values=list(ratios) if ratios else None,
                user_attrs={CONFIG: result.candidate.config.key},
            )
        )

    def end(self) -> None:
        """Let others know that screening has ended here."""
        self.exchange.enter("waiting", spent_s=self.board.now_s() - self.board.stage_start_s)

    def complete(self, screened: ScreeningResult) -> ScreeningResult:
        """Return what screening found, with what other nodes measured until they ended it."""
        is_unpromising = screened.is_unpromising
        if self.receive():
            self.update_expected()
            is_unpromising = is_unpromising and self.is_unpromising
        return msgspec.structs.replace(self.conclude(), is_unpromising=is_unpromising)


def help_race(board: Board, screening: SharedScreening, exchange: SharedExchange, announced: SharedRace) -> bool:
    """Take part in another node's race. Return False if this node cannot, or not again."""
    if not all(board.results.find(config.key) for config in announced.configs):
        board.screened = screening.complete(board.screened)  # another node measured them
    return take_part(board, exchange, announced)


def take_part(board: Board, exchange: SharedExchange, announced: SharedRace) -> bool:
    """Launch the candidates of another node's race once, and send what they showed.

    Returns:
        False if this node cannot take part, or not again: a candidate was not measured by any node that counts, one
        failed, they do not fit into memory together, or the baseline failed.
    """
    known = [found for config in announced.configs if (found := board.results.find(config.key)) is not None]
    if not known or len(known) < len(announced.configs) or len(known) >= board.plan.max_live:
        return False
    # The results of this node stay as they are: its own race may follow.
    racers = [CandidateResult(found, board.results[found].number, board.goal) for found in known]
    for racer in racers:
        racer.enter("racing")
    begin_s, launch = board.now_s(), board.n_launches + 1
    board.end_s = begin_s + board.plan.racing_s
    try:
        with board.launch(racers) as live:
            for measured in live.rounds(board.plan.racing_rounds):
                live.add(measured)
                exchange.beat()
            n_working = len(live.candidates())
    except MeasureError:
        return False
    finally:
        board.starved.clear()
    spent_s = (board.now_s() - begin_s) / len(racers)
    send_launches(exchange, racers, launch, spent_s=spent_s, race=announced.worker)
    return n_working == len(racers)


def note_wait(board: Board, note: str) -> None:
    """Report what a search on several hosts waits for."""
    board.add_note(note)
    ranked = board.results.rank()
    then_s = board.plan.racing_s + board.plan.confirmation_s
    best = ranked[0] if ranked else None
    n = len(board.results) - 1
    board.report("screening", n, len(board.candidates) - 1, best, end_s=board.now_s(), then_s=then_s)


def find_result(board: Board, exchange: SharedExchange, shared: SharedResult) -> list[CandidateResult]:
    """Return the candidates that another node confirmed, to confirm them here. There may be none.

    Raises:
        MeasureError: The search space of this node does not contain one.
    """
    exchange.enter("proof")
    board.end_s = board.now_s() + PROOF_PATIENCE * board.plan.confirmation_s
    board.is_unpromising = False
    found = []
    for config in shared.front or (shared.config,):
        if config == board.space.base:
            continue
        candidate = board.results.find(config.key) or board.space.find(config)
        if candidate is None:
            raise MeasureError(
                f"The result of {shared.node} is a config that is not in the search space of this node.",
                "Check that all nodes run the same version of ortune and ONNX Runtime.",
            )
        found.append(board.results.get_or_add(candidate))
    return found
