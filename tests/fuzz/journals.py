"""Journals of searches: the checksums of most changed lines are right."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path
from random import Random

from tests.fuzz.mutation import make_json_mutation, mutate_bytes
from tests.fuzz.target import Target, attempt, find_folder, write_input

NAMES = (
    "begin",
    "resume",
    "launch",
    "block",
    "failure",
    "session_info",
    "samples",
    "at_s",
    "n_calls",
    "wall_ns",
    "shares",
    "identity",
    "n_void",
)

SEARCH_S = 20.0

SEARCHES = 32
"""Of so many inputs, one is searched with; the others are only read."""


@functools.cache
def journal_seeds() -> tuple[bytes, ...]:
    """Return the journal of a simulated search that was interrupted."""
    path = find_folder() / "seed.unfinished.jsonl"
    path.unlink(missing_ok=True)
    _search(path, interrupt_at=30)
    return (path.read_bytes(),)


def _search(path: Path, *, interrupt_at: int) -> None:
    """Search on a simulated host, and go on with the journal if it has any."""
    from ortune.knobs import build_space
    from ortune.record.journal import Begin, Journal, Resume
    from ortune.tuning.job import SearchSettings, run_search
    from ortune.worker import Failure
    from tests.simulated import SimulatedExecutor, make_host, make_model, open_with_journal

    begin = Begin(
        id="1", pid=1, started="2026-01-01T00:00:00+00:00", identity={"model a.onnx": "1"}, shares={"1": 0.75}
    )
    executor = SimulatedExecutor(lambda config: 5e6, interrupt_at=interrupt_at)
    with Journal(path, begin, Resume(pid=1, started="2026-01-02T00:00:00+00:00")) as journal:
        try:
            opened = open_with_journal(executor, journal)
            if not isinstance(opened, Failure):
                run_search(build_space(make_host(), make_model()), opened, SearchSettings(budget_s=SEARCH_S))
        except KeyboardInterrupt:
            # The simulated host ends the search where the journal does.
            return


def run_journal(data: bytes) -> None:
    """Read a journal, and go on with its search until something is to be measured."""
    from ortune.record.journal import Measured, read_unfinished
    from tests.journals import list_events

    for event in list_events(data):
        if isinstance(event, Measured):
            try:
                event.unpack()
            except ValueError:
                continue
    path = write_input("a.unfinished.jsonl", data)
    if attempt(read_unfinished, path) and zlib.crc32(data) % SEARCHES == 0:
        attempt(_search, path, interrupt_at=1)


_mutate_json = make_json_mutation(lambda: NAMES)


def mutate_journal(data: bytes, random: Random) -> bytes:
    """Return a journal with changed lines, whose checksums are right, or with other changes."""
    if random.random() < 0.2:
        return mutate_bytes(data, random)
    lines = data.split(b"\n")
    for _ in range(1 + int(random.random() * 2)):
        place = int(random.random() * len(lines))
        content = _mutate_json(lines[place][9:], random)
        lines[place] = b"%08x %s" % (zlib.crc32(content), content)
    if random.random() < 0.1:
        random.shuffle(lines)
    return b"\n".join(lines)


JOURNALS = Target(run_journal, journal_seeds, mutate_journal)
