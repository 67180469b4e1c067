"""The workload as pure values: how calls arrive, what is to be made small, and within which limits."""

from __future__ import annotations

import math
import re
from typing import Literal, get_args

import msgspec

from ortune.errors import UsageError

Objective = Literal["p50", "p90", "p95", "p99", "mean", "throughput", "cpu", "memory", "load-time"]
"""What a search makes better; see `FIGURES` for what each means."""

Unit = Literal["ns", "bytes", "per_s"]


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a config under a load.

    Attributes:
        name: As it is named in options.
        title: As it is named in tables.
        unit: Unit of its values.
        percentile: For percentiles of latency: which one, between 0 and 100.
        larger_is_better: Whether more of it is better.
        meaning: What it is, in a sentence.
    """

    name: Objective
    title: str
    unit: Unit = "ns"
    percentile: float | None = None
    larger_is_better: bool = False
    meaning: str


def _percentile(point: int) -> Figure:
    return Figure(
        name=f"p{point}",  # type: ignore[arg-type]
        title=f"p{point} latency",
        percentile=point,
        meaning=f"latency that {point} % of the calls stay within",
    )


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        *map(_percentile, (50, 90, 95, 99)),
        Figure(name="mean", title="mean latency", meaning="mean latency of a call"),
        Figure(
            name="throughput",
            title="throughput",
            unit="per_s",
            larger_is_better=True,
            meaning="calls a second, all callers together",
        ),
        Figure(
            name="cpu",
            title="CPU time a call",
            meaning="CPU time of the whole process for each call, with what spins between calls",
        ),
        Figure(name="memory", title="peak memory", unit="bytes", meaning="largest resident memory of the process"),
        Figure(name="load-time", title="session creation", meaning="time to create the session"),
    )
}

Scenario = Literal["single-stream", "multi-client", "server"]
"""MLPerf's names where it has one: "single-stream" is one caller, back to back; "multi-client" several of them on one
session (a closed loop); "server" requests that arrive whether or not earlier ones are done (an open loop)."""

Arrivals = Literal["poisson", "periodic"]

MOST_CLIENTS = 1024
MOST_SESSIONS = 64
LOWEST_RATE_PER_S = 0.2


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How calls arrive at the session.

    Attributes:
        scenario: The kind of load.
        clients: Callers, each of which makes one call at a time.
        rate_per_s: For a server: requests that arrive a second, on average. Latency then counts from the arrival.
        arrivals: For a server: whether they arrive at random ("poisson") or at equal intervals ("periodic").
        sessions: Sessions of the model in one process; callers are spread over them.
    """

    scenario: Scenario = "single-stream"
    clients: int = 1
    rate_per_s: float | None = None
    arrivals: Arrivals | None = None
    sessions: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no load."""
        if self.clients < 1 or self.sessions < 1:
            raise ValueError(f"{self.clients} clients on {self.sessions} sessions are no load")
        if (self.scenario == "server") != (self.rate_per_s is not None):
            raise ValueError(f"a load of the scenario {self.scenario} with a rate of {self.rate_per_s}")
        if self.rate_per_s is not None and not 0 < self.rate_per_s < math.inf:
            raise ValueError(f"{self.rate_per_s} requests a second are no load")

    @property
    def default_objective(self) -> Objective:
        """The objective that suits this load."""
        defaults: dict[Scenario, Objective] = {
            "single-stream": "p50",
            "multi-client": "throughput",
            "server": "p99",
        }
        return defaults[self.scenario]

    def utilization(self, service_ns: float) -> float:
        """Return the share of the callers' time that calls of this duration take; only where there is a rate."""
        assert self.rate_per_s is not None
        return self.rate_per_s * service_ns / 1e9 / self.clients

    def __str__(self) -> str:
        callers = "one caller" if self.clients == 1 else f"{self.clients} callers"
        if self.sessions > 1:
            callers += f" on {self.sessions} sessions"
        if self.rate_per_s is None:
            return f"{callers}, back to back"
        how = "at random" if self.arrivals == "poisson" else "at equal intervals"
        return f"{self.rate_per_s:g} requests a second, {how}, {callers}"


def make_load(
    clients: int | None = None,
    rate: str | float | None = None,
    arrivals: str | None = None,
    sessions: int | None = None,
) -> Load:
    """Return the load that options describe.

    Args:
        clients: Callers; one by default.
        rate: Requests a second, as a number or as `50/s`, `3000/min` or `0.1/s`; None for callers that call back to
            back.
        arrivals: "poisson" (the default with a rate) or "periodic".
        sessions: Sessions side by side; one by default. Each has as many callers, one by default.

    Raises:
        UsageError: They make no sense.
    """
    n_sessions = sessions or 1
    if sessions is not None and not 1 <= sessions <= MOST_SESSIONS:
        raise UsageError(f"--sessions {sessions}: the number of sessions lies between 1 and {MOST_SESSIONS}.")
    if clients is not None and clients % n_sessions:
        raise UsageError(
            f"--clients {clients} with --sessions {sessions}: each session gets as many callers.",
            f"Take a multiple of {n_sessions}.",
        )
    if clients is not None and not 1 <= clients <= MOST_CLIENTS:
        raise UsageError(
            f"--clients {clients}: the number of callers lies between 1 and {MOST_CLIENTS}.",
            "Leave it out for one caller.",
        )
    if arrivals is not None and arrivals not in get_args(Arrivals):
        raise UsageError(f"--arrivals {arrivals}: requests arrive either poisson or periodic.")
    n = clients or n_sessions
    if rate is None:
        if arrivals is not None:
            raise UsageError(
                f"--arrivals {arrivals}: without a rate, callers call back to back.", "Add --rate, such as --rate 50/s."
            )
        return Load(scenario="single-stream" if n == 1 else "multi-client", clients=n, sessions=n_sessions)
    return Load(
        scenario="server",
        clients=n,
        rate_per_s=_parse_rate(rate),
        arrivals="periodic" if arrivals == "periodic" else "poisson",
        sessions=n_sessions,
    )


def _parse_rate(rate: str | float) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(?:/\s*(s|sec|min|m|h))?\s*", str(rate))
    per_s = float(match[1]) / {"min": 60, "m": 60, "h": 3600}.get(match[2] or "", 1) if match else 0.0
    if not 0 < per_s <= 1e6:
        raise UsageError(
            f"--rate {rate}: this is not a rate of requests.",
            "Write requests a second or a minute, such as 50/s or 30/min.",
        )
    if per_s < LOWEST_RATE_PER_S:
        raise UsageError(
            f"--rate {rate}: requests this rare cannot be measured in a sensible time.",
            "Take --rate 12/min: a session that rests for longer rests no differently.",
        )
    return per_s


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bound that a config must keep to.

    Attributes:
        figure: What is bounded: from above, but throughput from below.
        bound: In ns, bytes, or calls a second; or as a multiple of the default's.
        relative: Whether it is such a multiple.
        text: As the user wrote it.
    """

    figure: Objective
    bound: float
    relative: bool = False
    text: str

    def excess(self, value: float) -> float:
        """Return by how much a value breaks the limit, as a log-ratio: above 0 when it does."""
        if value <= 0 or math.isinf(value):
            return math.inf if (value > 0) != FIGURES[self.figure].larger_is_better else -math.inf
        excess = math.log(value / self.bound)
        return -excess if FIGURES[self.figure].larger_is_better else excess


RELATIVE_UNIT = "x"
UNITS: dict[Unit, dict[str, float]] = {
    "ns": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "bytes": {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    "per_s": {"/s": 1, "/min": 1 / 60, "": 1},
}
EXAMPLES: dict[Unit, str] = {"ns": "20ms", "bytes": "500MB", "per_s": "100/s"}


def parse_limit(text: str) -> Limit:
    """Parse `p99<20ms`, `memory<500MB`, `cpu<5ms`, `throughput>100/s`, or `p99<1.3x`, a multiple of the default's.

    Raises:
        UsageError: The text is no limit.
    """
    match = re.fullmatch(r"\s*([\w-]+)\s*([<>])=?\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ/]*)\s*", text.lower())
    if not match:
        raise UsageError(
            f"--limit {text}: this is not a limit.", "Write it as 'p99<20ms', 'memory<500MB' or 'throughput>100/s'."
        )
    name, sign, number, unit = match.groups()
    figure = FIGURES[parse_objective(name, "--limit")]
    wanted = ">" if figure.larger_is_better else "<"
    if sign != wanted:
        raise UsageError(f"--limit {text}: {figure.title} is bounded with {wanted}.")
    units = {**UNITS[figure.unit], RELATIVE_UNIT: 1}
    if unit not in units or not float(number) > 0:
        raise UsageError(
            f"--limit {text}: {number}{unit} is no bound for {figure.title}.",
            f"Write it as '{name}{wanted}{EXAMPLES[figure.unit]}', or '{name}{wanted}1.3x' of the default's.",
        )
    return Limit(
        figure=figure.name,
        bound=float(number) * units[unit],
        relative=unit == RELATIVE_UNIT,
        text=text.replace(" ", ""),
    )


def parse_objective(name: str, option: str = "--objective") -> Objective:
    """Return the objective of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in FIGURES:
        raise UsageError(f"{option} {name}: there is no such figure.", f"The figures are: {', '.join(FIGURES)}.")
    return FIGURES[name].name


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a search is for.

    Attributes:
        load: How calls arrive.
        objectives: What is made better; several ask for the trade-offs between them.
        limits: What a winner must keep to.
    """

    load: Load = Load()
    objectives: tuple[Objective, ...] = ("p50",)
    limits: tuple[Limit, ...] = ()

    @property
    def objective(self) -> Objective:
        """The objective, the first where there are several."""
        return self.objectives[0]

    @property
    def figures(self) -> tuple[Objective, ...]:
        """All figures that must be known: the objectives, and what is limited."""
        return tuple(dict.fromkeys((*self.objectives, *(limit.figure for limit in self.limits))))


def make_goal(
    load: Load, objective: str | None = None, pareto: str | None = None, limits: tuple[str, ...] = ()
) -> Goal:
    """Return the goal that options describe.

    Args:
        load: How calls arrive.
        objective: Name of the objective, or None for what suits the load.
        pareto: Names of two or three objectives, separated by commas, or None.
        limits: As `parse_limit` takes them.

    Raises:
        UsageError: They make no sense.
    """
    if objective is not None and pareto is not None:
        raise UsageError(
            f"--objective {objective} and --pareto {pareto} exclude each other.",
            "Take --pareto alone, and pick a point of the front with `ortune apply --pick N`.",
        )
    if pareto is not None:
        names = tuple(parse_objective(name.strip(), "--pareto") for name in pareto.split(","))
        if not 2 <= len(set(names)) == len(names) <= 3:
            raise UsageError(
                f"--pareto {pareto}: a front is of two or three different objectives.", "Such as --pareto p99,cpu."
            )
    else:
        names = (parse_objective(objective) if objective else load.default_objective,)
    if load.scenario == "server" and "throughput" in names:
        raise UsageError(
            "--objective throughput with --rate: the rate fixes the throughput.",
            "Leave --rate out to see how much the session can serve, or take p99, mean or cpu.",
        )
    return Goal(load=load, objectives=names, limits=tuple(parse_limit(text) for text in limits))


class Tolerance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far outputs may lie from the default's: `|a - b| <= absolute + relative * |b|`.

    Attributes:
        relative: Share of the default's value.
        absolute: Share of the largest value of the output, so that it means the same for all models.
    """

    relative: float = 1e-3
    absolute: float = 1e-4


QUANTIZED_TOLERANCE = Tolerance(relative=1e-3, absolute=1 / 127)
"""For int8 models: rounding may go the other way, which is one of the 127 steps of the output's range."""


APPROXIMATE_TOLERANCE = Tolerance(relative=0.05, absolute=0.05)
"""Where the user allows approximations: what is further off is broken, not approximate."""


class InputData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one input is fed with.

    Attributes:
        dtype: NumPy's name of the type, "string" for strings.
        shapes: Sizes in each of the samples that are cycled through; one for all where they are the same.
        origin: Where the values come from.
    """

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    origin: str

    def __post_init__(self) -> None:
        """Refuse what was fed with nothing."""
        if not self.shapes:
            raise ValueError("there are no shapes")

    def __str__(self) -> str:
        return self.dtype + " ".join(f"[{','.join(map(str, shape))}]" for shape in self.shapes)


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured.

    Attributes:
        load: How calls arrive.
        objectives: What is made better; several where trade-offs were asked for.
        limits: What a winner must keep to.
        n_samples: Samples of input data that are cycled through.
        inputs: What each input is fed with.
        tolerance: How far a candidate's outputs may lie from the default's.
        background_load: The command that ran beside the measurements, or None.
    """

    load: Load = Load()
    objectives: tuple[Objective, ...] = ("p50",)
    limits: tuple[Limit, ...] = ()
    n_samples: int = 1
    inputs: dict[str, InputData]
    tolerance: Tolerance = Tolerance()
    background_load: str | None = None
