"""Landscapes: the true cost of every candidate of a search space on a host, and the scatter of its blocks.

A landscape is generated, or recorded by measuring all candidates repeatedly. The replay executor draws blocks from it:
a search of several minutes then takes milliseconds, and the best candidate is known.
"""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ortune.host import HostClass
from ortune.knobs import KNOBS, SearchSpace
from ortune.knobs.twins import list_graph_variants, merge_twins
from ortune.measure.compute_figures import is_total
from ortune.model import Traits
from ortune.worker.failure import Failure
from ortune.worker.session_info import Runtime
from ortune.workload import Goal

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = 1

N_QUANTILES = 16
"""Latencies that are stored for each block: quantiles at equal distances."""

SWEEPS = 20
"""Iterations of the median polish. It converges in far fewer."""

ENOUGH_LAUNCHES = 4
"""Minimum number of launches for a candidate to contribute to the variation between launches. Of twins, one must have
as many: those that have them only together were not launched again, and may be slow, so that they differ more."""

OUTLYING = 4.0
MAD_OF_NORMAL = 0.6745
"""Standard deviations beyond which a launch is an outlier; median absolute deviation of the standard normal."""

GAP_BETWEEN_SPEEDS = 0.1
FEWEST_OF_A_SPEED = 0.1
"""Minimum difference of two speeds of a host, in log-cost of the default, and minimum share of batches for each."""

IMPOSSIBLE = -0.3
"""Smallest residual of a block, in log-cost. If a block is faster than that, most of its launch hung, and the level of
the launch is that of hanging."""

HANGING = 1.0
"""Residual from which a block counts as hanging, in log-cost."""

FEWEST_OF_ITS_OWN = 8
"""Minimum number of blocks for a candidate's noise to be drawn from its own blocks only."""


LANDSCAPES = Path(__file__).parent / "landscapes"
"""The folder with all recordings."""


class Graphs(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of the optimized graphs of a recording's model, which say which candidates are the same program (twins).

    The graphs may be those of another host than the recorded one, with other vector instructions. ONNX Runtime arranges
    channels in blocks of 16 with AVX-512, and in blocks of 8 with AVX2, so that digests differ between such hosts. Only
    which digests are equal counts here. It could differ for a graph whose channels fit one of the blocks only, which is
    neglected.

    Attributes:
        host: Class of the host on which the graphs were made.
        runtime: Version of onnxruntime that made them.
        digests: Digest of each graph variant of the recorded space, in the order of `list_graph_variants`; empty where
            it is not known.
    """

    host: HostClass
    runtime: str
    digests: tuple[str, ...]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The origin and the subject of a recording.

    Attributes:
        schema: Version of the file's format.
        name: The landscape's name.
        model: The model's name and digest.
        traits: Traits of its graph.
        host: Class of the host.
        host_text: Human-readable description of the host.
        quota: CPU quota in CPUs, or None.
        background_load: Command of the background load, or None.
        goal: Load and objective.
        runtime: Versions of the software.
        recorded: Date and time.
        space: The candidates, in the order of `SearchSpace.candidates`.
        graphs: Which candidates are twins; None if `space` has none, as those of new recordings.
        launch_s: Time that each additional worker adds to a launch.
        start_s: Fixed time of a launch.
        block_ns: Duration of the recorded blocks.
        failures: Candidates that failed, by number.
    """

    schema: int = SCHEMA
    name: str
    model: str
    traits: Traits
    host: HostClass
    host_text: str
    quota: float | None = None
    background_load: str | None = None
    goal: Goal
    runtime: Runtime
    recorded: str
    space: SearchSpace
    graphs: Graphs | None = None
    launch_s: float
    start_s: float
    block_ns: int
    failures: dict[int, Failure] = {}


class Recording:
    """The blocks of a recorded landscape, one row each.

    Attributes:
        about: Origin and subject.
        candidate: Number of the candidate.
        launch: Number of the launch: blocks of one process have the same.
        turn: Number of the round: blocks that were measured one after another have the same.
        time_s: Time since the start.
        log_cost: Logarithm of the objective's cost, in ns or s.
        foreign: Share of the CPUs that other processes used; NaN if unknown.
        contended: Whether the block is contended.
        profile: `N_QUANTILES` latencies, ascending, as multiples of the median.
        load_ns: By launch: time to create the session.
    """

    COLUMNS: Mapping[str, str] = {
        "candidate": "u2",
        "launch": "u4",
        "turn": "u4",
        "time_s": "f4",
        "log_cost": "f4",
        "foreign": "f2",
        "contended": "?",
        "profile": "f2",
        "load_ns": "f4",
    }

    def __init__(self, about: About, **columns: NDArray[Any]) -> None:
        assert set(columns) == set(self.COLUMNS)
        self.about = about
        for name, kind in self.COLUMNS.items():
            setattr(self, name, np.asarray(columns[name], dtype=kind))

    candidate: NDArray[np.uint16]
    launch: NDArray[np.uint32]
    turn: NDArray[np.uint32]
    time_s: NDArray[np.float32]
    log_cost: NDArray[np.float32]
    foreign: NDArray[np.float16]
    contended: NDArray[np.bool_]
    profile: NDArray[np.float16]
    load_ns: NDArray[np.float32]

    def replace(self, about: About, **columns: NDArray[Any]) -> Recording:
        """Return the recording with another description, and with these columns instead of its own."""
        return Recording(about, **{**{name: getattr(self, name) for name in self.COLUMNS}, **columns})

    def save(self, path: Path) -> None:
        """Write the recording to a compressed NumPy file (.npz)."""
        buffer = io.BytesIO()
        text = _encode(self.about)
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.COLUMNS}
        np.savez_compressed(buffer, about=np.frombuffer(text, dtype=np.uint8), **columns)
        path.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read a recording.

        Raises:
            ValueError: The file has another schema.
        """
        with np.load(path) as file:
            about = json.loads(file["about"].tobytes())
            schema = about.get("schema")
            if schema != SCHEMA:
                raise ValueError(f"{path}: the schema is {schema}, but must be {SCHEMA}. Record the landscape again.")
            return cls(_decode(about), **{name: file[name] for name in cls.COLUMNS})


def _encode(about: About) -> bytes:
    """Return a description as JSON. Only the ids of knobs are stored; the catalog has the rest."""
    data = msgspec.to_builtins(about, order="deterministic")
    for stored, dimension in zip(data["space"]["dimensions"], about.space.dimensions, strict=True):
        stored["knob"] = dimension.knob.id
    for stored, skipped in zip(data["space"]["skipped"], about.space.skipped, strict=True):
        stored["knob"] = skipped.knob.id
    return msgspec.json.encode(data)


def _decode(data: dict[str, Any]) -> About:
    """Return the description that JSON data contain."""
    for field in ("dimensions", "skipped"):
        for stored in data["space"][field]:
            stored["knob"] = KNOBS[stored["knob"]]
    return msgspec.convert(data, About, str_keys=True)


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks to draw noise from.

    Attributes:
        residuals: Log-cost of each block minus the effects of its candidate, launch and round.
        foreign: Share of the CPUs that other processes used.
        profiles: Latencies of each block as multiples of its median.
        first: By candidate: position of its first block.
        last: By candidate: position after its last block.
    """

    residuals: NDArray[np.float64]
    foreign: NDArray[np.float64]
    profiles: NDArray[np.float64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def draw(self, candidate: int, rng: np.random.Generator) -> int:
        """Return the position of a random block: of this candidate if it has enough blocks, else of any candidate."""
        first, last = int(self.first[candidate]), int(self.last[candidate])
        if last - first >= FEWEST_OF_ITS_OWN:
            return int(rng.integers(first, last))
        # That a candidate hangs says nothing about others.
        usual = np.flatnonzero(self.residuals < HANGING)
        return int(usual[rng.integers(len(usual))])


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Periods in which threads of a pool wait for each other, as another guest uses one of the physical CPUs.

    Attributes:
        share: Share of the time.
        mean_s: Mean duration; None for single launches, each of which has it or not.
        factor: How many times as long a call takes with more than one thread.
    """

    share: float
    mean_s: float | None
    factor: float


class Landscape(msgspec.Struct, frozen=True, kw_only=True):
    """A search space with the true cost of each candidate, and the noise of its measurements.

    Attributes:
        name: Its name.
        space: The candidates, in the order of `SearchSpace.candidates`; arrays below are in that order.
        unrefined: The space that a search begins with, if it is a part of `space`.
        goal: Load and objective.
        log_costs: Logarithm of the true cost; NaN if the candidate fails.
        failures: The failures, by number of the candidate.
        lucks: Deviations of launches from the level of their candidate, in log-cost, to draw from.
        own_lucks: The same for candidates that were launched often enough, by number.
        quiet: Blocks of a quiet host.
        contended: Blocks of a busy host, or None if there are none.
        contended_share: Share of the time in which the host is busy.
        spell_s: Mean duration of a busy period.
        drift: Log-cost over time that all candidates have in common.
        drift_step_s: Time between two values of `drift`.
        launch_s: Time that each additional worker adds to a launch.
        start_s: Fixed time of a launch.
        quota: Whether there is a CPU quota.
        speeds: How the speed of the host varies, for all candidates together: processes with a standard deviation in
            log-cost, and the time in seconds after which little of a deviation is left.
        phases: Periods in which candidates with several threads are slow, or None.
    """

    name: str
    space: SearchSpace
    unrefined: SearchSpace | None = None
    goal: Goal
    log_costs: NDArray[np.float64]
    failures: dict[int, Failure] = {}
    lucks: NDArray[np.float64]
    own_lucks: Mapping[int, NDArray[np.float64]] = {}
    quiet: Pool
    contended: Pool | None = None
    contended_share: float = 0.0
    spell_s: float = 2.0
    drift: NDArray[np.float64]
    drift_step_s: float
    launch_s: float
    start_s: float
    quota: bool = False
    speeds: tuple[tuple[float, float], ...] = ()
    phases: Phases | None = None

    @property
    def has_queue(self) -> bool:
        """Whether calls wait for each other, as requests at a rate do. A replay draws each call alone."""
        return self.goal.load.rate_per_s is not None

    @property
    def first_space(self) -> SearchSpace:
        """The space that a search begins with."""
        return self.unrefined or self.space

    def log_speedup(self, number: int) -> float:
        """Return the logarithm of the true speedup of a candidate over the default."""
        return float(self.log_costs[0] - self.log_costs[number])

    def draw_luck(self, number: int, rng: np.random.Generator) -> float:
        """Return a random deviation of a launch from the level of its candidate, in log-cost."""
        return float(rng.choice(self.own_lucks.get(number, self.lucks)))

    @property
    def usual_luck(self) -> float:
        """Standard deviation of launches from the level of their candidate, in log-cost, without outliers."""
        lucks = self.lucks[self.lucks != 0]
        # If some launches are far off, their mean is not that of most.
        return float(np.median(np.abs(lucks - np.median(lucks)))) / MAD_OF_NORMAL if len(lucks) else 0.0

    @property
    def best(self) -> int:
        """Number of the best candidate."""
        return int(np.nanargmin(self.log_costs))


def recorded_paths() -> list[Path]:
    """Return the files of all recordings, by name."""
    return sorted(LANDSCAPES.glob("*.npz"))


def load_landscape(path: Path, *, outlying: float = OUTLYING) -> Landscape:
    """Read a recording and fit a landscape to it; see `fit`."""
    return fit(Recording.load(path), outlying=outlying)


def merge_space(about: About) -> tuple[SearchSpace, NDArray[np.int64]]:
    """Return the space of a recording with one candidate for all that are the same program.

    Also return the number that each recorded candidate has in it.
    """
    if about.graphs is None:
        return about.space, np.arange(len(about.space.candidates))
    space = merge_twins(about.space, list_graph_variants(about.space), about.graphs.digests)
    found = [space.select(space.merge_labels(candidate.labels)) for candidate in about.space.candidates]
    return space, np.array([space.numbers[candidate.config.key] for candidate in found])


def pool_twins(recording: Recording) -> Recording:
    """Return a recording in which candidates that are the same program are one, with the launches of all of them."""
    about = recording.about
    space, numbers = merge_space(about)
    working = set(np.delete(numbers, list(about.failures)).tolist())
    failures = {int(numbers[old]): failure for old, failure in about.failures.items() if numbers[old] not in working}
    merged = msgspec.structs.replace(about, space=space, graphs=None, failures=failures)
    return recording.replace(merged, candidate=numbers[recording.candidate])


def fit(recording: Recording, *, outlying: float = OUTLYING) -> Landscape:
    """Separate the effects of candidate, launch, round and noise. Twins are one candidate.

    A virtual machine may run at two speeds for minutes at a time, and candidates rank differently at each. A search of
    one minute sees one of them. The landscape is that of the speed at which most launches of the best candidates were
    made.

    Within a batch, the log-cost of a block is the sum of the effects of its launch and its round, and of noise. A
    median polish of the quiet blocks separates them. A launch is compared with the default's launch in the same batch,
    and the level of a candidate is the median of its launches.

    Args:
        recording: The recording.
        outlying: How many standard deviations a launch may be off. In a landscape without a limit, as many launches are
            as slow as in the recording.

    Source: J. W. Tukey, "Exploratory Data Analysis" (1977), chapter 11, for the polish.
    """
    refined = _find_refined(recording)
    recording = pool_twins(recording)
    about = recording.about
    n = len(about.space.candidates)
    y = recording.log_cost.astype(float)
    quiet = ~recording.contended
    by_launch, by_turn = _polish(y, recording.launch, recording.turn, quiet)
    residuals = y - by_launch[recording.launch] - by_turn[recording.turn]
    # With so many free levels, the residuals of the fit are too small.
    batch = _batches(recording)
    n_free = len(by_launch) + len(by_turn) - int(batch.max()) - 1
    residuals[quiet] *= np.sqrt(quiet.sum() / max(quiet.sum() - n_free, 1))

    owner = _find_owners(recording)
    defaults = np.full(int(batch.max()) + 1, np.nan)
    for number in np.unique(batch[owner == 0]):
        # Twins of the default are further launches of it.
        defaults[number] = np.median(by_launch[(owner == 0) & (batch == number)])
    at_speed = _find_speed(defaults, np.bincount(batch[refined], minlength=len(defaults)))
    relative = by_launch - defaults[batch]
    # A candidate that was launched only at the other speed keeps its level from there.
    launched = np.bincount(owner[at_speed[batch] & (owner >= 0)], minlength=n) > 0
    relative[~at_speed[batch] & launched[owner]] = np.nan
    log_costs = np.full(n, np.nan)
    own_lucks: dict[int, NDArray[np.float64]] = {}
    launched_again = set(owner[refined].tolist())
    for number in range(n):
        own = relative[(owner == number) & np.isfinite(relative)]
        if len(own) and number not in about.failures:
            # The median: one slow launch, of the candidate or of the default, does not determine the level.
            log_costs[number] = np.median(own)
            if number and number in launched_again and len(own) >= ENOUGH_LAUNCHES:
                # The deviation is that of two launches, the candidate's and the default's.
                own_lucks[number] = (own - np.median(own)) / math.sqrt(2)
    often = np.bincount(owner[np.isfinite(relative)], minlength=n) >= ENOUGH_LAUNCHES
    best = np.nanmin(log_costs[often], initial=0.0)
    for number in np.flatnonzero(~often & (log_costs < best)).tolist():
        # The best candidate must have been launched often. If one with few launches looks better, its worst counts.
        own = relative[(owner == number) & np.isfinite(relative)]
        log_costs[number] = max(float(own.max()), best)
    # Where most of a launch hung, its blocks are compared with the level of the candidate instead.
    hung = np.unique(recording.launch[quiet & (residuals < IMPOSSIBLE)])
    for launch in hung[np.isfinite(log_costs[owner[hung]])]:
        rows = recording.launch == launch
        level = log_costs[owner[launch]] + defaults[batch[launch]]
        residuals[rows] = y[rows] - level - by_turn[recording.turn[rows]]
    # What is left are candidates that hang more often than not. Others must not draw their good blocks as noise.
    residuals = np.maximum(residuals, IMPOSSIBLE)
    lucks = np.concatenate([*own_lucks.values(), [0.0]])
    if math.isfinite(outlying):
        own_lucks = {number: _clip(own, lucks, outlying) for number, own in own_lucks.items()}
        lucks = _clip(lucks, lucks, outlying)
    elif is_total(about.goal.objective):
        # The level is that of the usual launch. The true cost of a total is that of all of them.
        log_costs += [own_lucks.get(number, lucks).mean() for number in range(n)]
        lucks = lucks - lucks.mean()
        own_lucks = {number: own - own.mean() for number, own in own_lucks.items()}
    base = float(np.nanmedian(defaults[at_speed]))
    log_costs += base
    rows = at_speed[batch[recording.launch]]
    has_spells = int(recording.contended.sum()) >= FEWEST_OF_ITS_OWN
    # Rounds are numbered in the order of time.
    first_rows = np.unique(recording.turn, return_index=True)[1]
    first_rows = first_rows[rows[first_rows]]
    drift = by_turn[recording.turn[first_rows]] + defaults[batch[recording.launch[first_rows]]]
    step = float(np.ptp(recording.time_s)) / max(len(first_rows) - 1, 1)
    return Landscape(
        name=about.name,
        space=about.space,
        goal=about.goal,
        log_costs=log_costs,
        failures=about.failures,
        lucks=lucks,
        own_lucks=own_lucks,
        quiet=_pool(recording, residuals, quiet & rows, n),
        contended=_pool(recording, residuals, ~quiet, n) if has_spells else None,
        contended_share=float(recording.contended.mean()) if has_spells else 0.0,
        spell_s=_spell_s(recording),
        drift=drift - base,
        drift_step_s=max(step, 1e-3),
        launch_s=about.launch_s,
        start_s=about.start_s,
        quota=about.quota is not None,
    )


def _find_owners(recording: Recording) -> NDArray[np.int64]:
    """Return the number of the candidate of each launch; -1 for a launch that failed before its first block."""
    owner = np.full(int(recording.launch.max()) + 1, -1)
    owner[recording.launch] = recording.candidate
    return owner


def _find_refined(recording: Recording) -> NDArray[np.bool_]:
    """Return which launches are those of candidates that were launched often, because they looked best."""
    owner = _find_owners(recording)
    n_launches = np.bincount(owner[owner >= 0])
    return np.asarray((owner > 0) & (n_launches[owner] >= ENOUGH_LAUNCHES))


def _polish(
    y: NDArray[np.float64], launch: NDArray[Any], turn: NDArray[Any], quiet: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a two-way table; return the level of each launch and the deviation of each round.

    Args:
        y: The values.
        launch: Row of each value.
        turn: Column of each value.
        quiet: Which values count, in rows and columns that have any of these.
    """
    n_launches, n_turns = int(launch.max()) + 1, int(turn.max()) + 1
    by_launch, by_turn = np.zeros(n_launches), np.zeros(n_turns)
    launches = [np.flatnonzero(launch == k) for k in range(n_launches)]
    turns = [np.flatnonzero(turn == k) for k in range(n_turns)]
    # If a launch or a round has no quiet block, its contended blocks count.
    launches = [rows[quiet[rows]] if quiet[rows].any() else rows for rows in launches]
    turns = [rows[quiet[rows]] if quiet[rows].any() else rows for rows in turns]
    # There are few values: NumPy's median would take several times as long.
    for _ in range(SWEEPS):
        for k, rows in enumerate(launches):
            if len(rows):
                by_launch[k] = statistics.median((y[rows] - by_turn[turn[rows]]).tolist())
        for k, rows in enumerate(turns):
            if len(rows):
                by_turn[k] = statistics.median((y[rows] - by_launch[launch[rows]]).tolist())
    return by_launch, by_turn


def _find_speed(defaults: NDArray[np.float64], weights: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which batches were measured at the host's main speed.

    The host has two speeds if there is a gap between the log-costs of the default, with enough batches on both sides.

    Args:
        defaults: By batch: the default's log-cost.
        weights: By batch: launches of candidates that were launched often. Most of them were made at the main speed.
    """
    known = np.sort(defaults[np.isfinite(defaults)])
    edge = math.ceil(FEWEST_OF_A_SPEED * len(known))
    inner = np.diff(known)[edge - 1 : len(known) - edge]
    if len(inner) and inner.max() > GAP_BETWEEN_SPEEDS:
        place = edge + int(inner.argmax())
        threshold = (known[place - 1] + known[place]) / 2
        slow = defaults > threshold
        is_slow = 2 * int(weights[slow].sum()) > int(weights.sum())
        return np.asarray(np.isfinite(defaults) & (slow == is_slow))
    return np.isfinite(defaults)


def _clip(lucks: NDArray[np.float64], of_all: NDArray[np.float64], outlying: float) -> NDArray[np.float64]:
    """Return deviations with outliers limited, and with a mean of zero.

    If one launch of a candidate hung, this says little about its other launches, and nothing about other candidates.
    """
    most = outlying * float(np.median(np.abs(of_all))) / MAD_OF_NORMAL
    clipped = np.clip(lucks, -most, most)
    return np.asarray(clipped - clipped.mean())


def _batches(recording: Recording) -> NDArray[np.int64]:
    """Return the number of each launch's batch. Launches with a round in common are in one batch."""
    batch = np.arange(int(recording.launch.max()) + 1)
    for turn in np.unique(recording.turn):
        members = np.unique(recording.launch[recording.turn == turn])
        batch[members] = batch[members].min()
    return np.asarray(np.unique(batch, return_inverse=True)[1])


def _pool(recording: Recording, residuals: NDArray[np.float64], rows: NDArray[np.bool_], n: int) -> Pool:
    """Return these blocks in the order of their candidates."""
    chosen = np.flatnonzero(rows)
    chosen = chosen[np.argsort(recording.candidate[chosen], kind="stable")]
    owners = recording.candidate[chosen]
    numbers = np.arange(n)
    profiles = recording.profile[chosen].astype(float)
    return Pool(
        residuals=residuals[chosen],
        foreign=np.nan_to_num(recording.foreign[chosen].astype(float)),
        profiles=profiles / profiles[:, [N_QUANTILES // 2 - 1]],
        first=np.searchsorted(owners, numbers, "left"),
        last=np.searchsorted(owners, numbers, "right"),
    )


def _spell_s(recording: Recording) -> float:
    """Return the mean duration of a busy period."""
    order = np.argsort(recording.time_s, kind="stable")
    states = recording.contended[order]
    n_spells = int(np.sum(states[1:] & ~states[:-1])) + int(states[:1].sum())
    if not n_spells or len(states) < 2:
        return 1.0
    duration = float(recording.time_s[order[-1]] - recording.time_s[order[0]])
    return max(duration * float(states.mean()) / n_spells, 0.1)
