"""Opens a search of a model or of a program: its journal and its measurement; and ends it with what it writes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ortune.measure.open import OpenComparison, Wrap, fit_objective
from ortune.record.files import Kind
from ortune.record.journal import Begin, Journal
from ortune.record.rescue import Saved
from ortune.record.trials import Trials
from ortune.tuning.outcome import Outcome
from ortune.tuning.record_outcome import save_outcome
from ortune.tuning.resume import JournaledExecutor, Resumable, open_journal, raise_fault


class OpenMeasurement(Protocol):
    """Opens the comparison of a search."""

    def __call__(
        self, *, wrap: Wrap | None, free_bytes: int | None
    ) -> contextlib.AbstractContextManager[OpenComparison]:
        """Return it; see `ortune.measure.open.open_comparison` for the arguments."""


class OpenSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search whose measurement is open.

    Attributes:
        output: Where its record goes, or None.
        opened: The comparison, which started as early as the time that was spent before counts.
        begin: What the search began with, maybe in an earlier process.
        journal: Where all blocks are kept, and what is kept already; None if nothing is kept.
    """

    output: Path | None
    opened: OpenComparison
    begin: Begin
    journal: Journal | None

    @property
    def n_resumes(self) -> int:
        """How often the search was resumed."""
        return self.journal.n_resumes if self.journal else 0

    def save(self, document: Kind, trials: Trials, outcome: Outcome) -> Saved[Kind]:
        """Write the record, or the bundle of those of a program, with its trials."""
        return save_outcome(document, trials, self.output, self.journal, is_complete=not outcome.interrupted)

    def end(self, outcome: Outcome, saved: Saved[Kind]) -> Path | None:
        """Return the path of the journal if the search can go on, else None. Call it when nothing is open anymore.

        Raises:
            OrtuneError: What ended the search, if it could not go on.
        """
        unfinished = self.journal.path if self.journal and self.journal.is_there else None
        raise_fault(outcome.fault, unfinished, saved.fault)
        return unfinished


@contextlib.contextmanager
def open_search(
    request: Resumable, begin: Begin, open_measurement: OpenMeasurement, *, is_shared: bool = False
) -> Iterator[OpenSearch]:
    """Open the journal and the measurement of a search.

    Args:
        request: The options of the search.
        begin: What it begins with. If it is resumed, what it began with is taken instead.
        open_measurement: Opens the comparison.
        is_shared: Whether several hosts search together. They keep all blocks in a storage, and have one objective.

    Raises:
        OrtuneError: Another search writes the journal, what it is for differs, or the baseline does not work.
    """
    with contextlib.ExitStack() as stack:
        journal = None if is_shared else open_journal(request, begin)
        if journal:
            begin = stack.enter_context(journal).begin
        wrap = functools.partial(JournaledExecutor, journal=journal) if journal else None
        opened = stack.enter_context(open_measurement(wrap=wrap, free_bytes=begin.free_bytes))
        if not is_shared:
            opened = fit_objective(opened)
        opened = msgspec.structs.replace(opened, start_s=opened.start_s - begin.spent_s)
        yield OpenSearch(output=request.output, opened=opened, begin=begin, journal=journal)
