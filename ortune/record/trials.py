"""The trials of a search, with what each round measured: the content of a file next to the record.

The file is gzip-compressed JSON Lines: a header, a line for each trial, a line for each round, and a line for each
session of the confirmation. The record names it by digest. Reports and analyses read it; applying a record does not.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ortune.host import Cpus, Topology
from ortune.knobs.config import DEFAULT, Config
from ortune.measure.comparison import Latencies, Stage
from ortune.numbers import Count
from ortune.record.layout import encode_line
from ortune.record.schema import RECORD_SCHEMA, RankedTrial, Tried
from ortune.worker import CpuPlace, Failure, FailureKind, SessionInfo
from ortune.workload import Objective

MAX_RANKED = 3
"""Number of trials that the record itself lists."""

MOST_TRIALS_BYTES = 8 << 20
"""Largest size of the content that is read. That of a long search has a few megabytes."""

GZIP_MAGIC = b"\x1f\x8b"
GZIP_BITS = 31
"""How such a file begins, and the window bits with which zlib writes one."""

T = TypeVar("T")


class TrialsHeader(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="header"
):
    """The first line of the file.

    Attributes:
        schema: Version of the format, that of the record.
        model: Digest of the model.
        started: When the search began, in ISO 8601 with the time zone.
        objectives: The objectives, in the order in which trials list their speedups.
        figures: The figures that rounds list: the objectives, and what is limited.
        topology: The CPUs of the host.
        usable: Those that the search could use.
    """

    schema: int
    model: str
    started: str
    objectives: tuple[Objective, ...]
    figures: tuple[Objective, ...]
    topology: Topology
    usable: Cpus


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="trial"):
    """A candidate that was tried.

    Attributes:
        number: Position in the order of trying; 0 is the baseline.
        config: Its settings.
        stage: The last stage that it reached.
        speedups: For each objective: how many times better than the baseline in that stage; None where it failed.
        over_limits: Limits that it seemed to exceed.
        n_blocks: Number of blocks measured in all stages.
        failure: Why it failed, or None.
    """

    number: Count
    config: Config = DEFAULT
    stage: Stage
    speedups: tuple[float, ...] | None = None
    over_limits: tuple[str, ...] = ()
    n_blocks: Count = 0
    failure: Failure | None = None


class TrialRound(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="round"):
    """One block of each live candidate.

    Attributes:
        stage: The stage.
        launch: Number of the launch in the search.
        values: By number of the trial: the figures of its block, in the order that the header gives. Times are in
            ns, memory in bytes, throughput in calls per second.
        contended: Numbers of the trials whose block was measured while other processes used the CPUs.
        at_s: When it began, in seconds after the start of the search.
        foreign_share: Largest share of the usable CPUs' time that other processes used during one of its blocks; None
            if unknown.
        frequencies_hz: By number of the trial: the frequency of the CPUs at the end of its block, where it is known.
    """

    stage: Stage
    launch: Count
    values: dict[Count, tuple[float, ...]]
    contended: tuple[Count, ...] = ()
    at_s: float
    foreign_share: float | None = None
    frequencies_hz: dict[Count, float] = {}


class TrialSession(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="session"
):
    """What took effect in a session of the confirmation, read back after its creation.

    Attributes:
        config: The settings that it was created with.
        session: The effective settings of the session.
        latencies: The distribution of the latency of its calls; None if no block of it counts.
        places: CPU time that its threads spent on each CPU in all blocks of the confirmation; empty if unknown.
    """

    config: Config = DEFAULT
    session: SessionInfo
    latencies: Latencies | None = None
    places: tuple[CpuPlace, ...] = ()


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        header: What the search was for.
        trials: All trials, in the order of trying.
        rounds: All rounds, in the order of measuring.
        sessions: Sessions of the baseline and of those that were compared with it.
    """

    header: TrialsHeader
    trials: tuple[Trial, ...]
    rounds: tuple[TrialRound, ...] = ()
    sessions: tuple[TrialSession, ...] = ()

    def find_session(self, config: Config) -> TrialSession | None:
        """Return the session with a config; None if it was not in the confirmation."""
        return next((session for session in self.sessions if session.config == config), None)

    def session_of(self, config: Config) -> SessionInfo | None:
        """Return what took effect in the session with a config; None if it was not in the confirmation."""
        found = self.find_session(config)
        return found.session if found else None


class TrialsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the record itself says about its trials, as in `ortune.record.schema.Search`."""

    n_tried: int
    failed: dict[FailureKind, int]
    tried: Tried
    best: tuple[RankedTrial, ...]


def summarize_trials(trials: Sequence[Trial]) -> TrialsSummary:
    """Return what the record itself says about the trials of a search."""
    # A candidate for which there was no time was not tried.
    others = [
        trial
        for trial in trials
        if trial.number != 0 and (trial.failure.stage != "skipped" if trial.failure else trial.speedups)
    ]
    ranked = [trial for trial in others if trial.speedups and not trial.failure and not trial.over_limits]
    ranked.sort(key=lambda trial: (trial.stage == "screening", [-speedup for speedup in trial.speedups or ()]))
    return TrialsSummary(
        n_tried=len(others),
        failed=dict(sorted(Counter(trial.failure.kind for trial in others if trial.failure).items())),
        tried=Tried.of(*(trial.config for trial in trials)),
        best=tuple(
            RankedTrial(config=trial.config, stage=trial.stage, speedups=trial.speedups or ())
            for trial in ranked[:MAX_RANKED]
        ),
    )


def encode_trials(trials: Trials) -> bytes:
    """Return the content of the file. Equal trials give equal bytes.

    A search of a day may measure more rounds than are read. Every second round is then left out, at first of screening.
    """
    import zlib

    before = [encode_line(line) for line in (trials.header, *trials.trials)]
    after = [encode_line(line) for line in trials.sessions]
    rounds = [(trial_round.stage, encode_line(trial_round)) for trial_round in trials.rounds]
    most_bytes = MOST_TRIALS_BYTES - sum(map(len, (*before, *after)))
    while rounds and sum(len(line) for _, line in rounds) > most_bytes:
        of_screening = [place for place, (stage, _) in enumerate(rounds) if stage == "screening"]
        left_out = set((of_screening or range(len(rounds)))[::2])
        rounds = [entry for place, entry in enumerate(rounds) if place not in left_out]
    # What gzip.compress writes into the header depends on the version of Python, and the record has the digest.
    return zlib.compress(b"".join((*before, *(line for _, line in rounds), *after)), level=9, wbits=GZIP_BITS)


def decode_trials(data: bytes) -> Trials:
    """Return the trials of a file.

    Raises:
        ValueError: It is not a trials file that this version reads.
    """
    decoder = msgspec.json.Decoder(TrialsHeader | Trial | TrialRound | TrialSession)
    found = []
    for number, line in enumerate(_unpack(data).splitlines() or [b""], 1):
        try:
            found.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from None
    header, *lines = found
    if not isinstance(header, TrialsHeader):
        raise ValueError("it does not begin with a header")
    if header.schema != RECORD_SCHEMA:
        raise ValueError(f"it has schema {header.schema}, and this version of ortune reads schema {RECORD_SCHEMA}")
    return Trials(
        header=header,
        trials=_all_of(Trial, lines),
        rounds=_all_of(TrialRound, lines),
        sessions=_all_of(TrialSession, lines),
    )


def is_trials_file(data: bytes) -> bool:
    """Return whether a file's content looks like a trials file, of any schema."""
    try:
        first = msgspec.json.decode(_unpack(data).split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("type") == "header"


def _all_of(kind: type[T], lines: list[Any]) -> tuple[T, ...]:
    return tuple(line for line in lines if isinstance(line, kind))


def _unpack(data: bytes) -> bytes:
    import gzip
    import zlib

    if not data.startswith(GZIP_MAGIC):
        raise ValueError("it is not compressed with gzip")
    try:
        # A small file can expand to any size.
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            content = file.read(MOST_TRIALS_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
    if len(content) > MOST_TRIALS_BYTES:
        raise ValueError(f"it expands to more than {MOST_TRIALS_BYTES >> 20} MiB")
    return content
