"""What a search optimizes, and within which limits."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from ortune.errors import UsageError
from ortune.workload.figures import FIGURES, Objective, Unit, parse_objective
from ortune.workload.load import Load


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bound for a figure of the result.

    Attributes:
        figure: What is bounded: throughput from below, all others from above.
        bound: In ns, bytes or calls per second; or a multiple of the default's figure.
        relative: Whether it is such a multiple.
        text: The limit as the user wrote it.
    """

    figure: Objective
    bound: Annotated[float, msgspec.Meta(gt=0)]
    relative: bool = False
    text: str

    def excess(self, value: float) -> float:
        """Return by how much a value exceeds the limit, as a log-ratio: above 0 if it violates the limit."""
        if value <= 0 or math.isinf(value):
            return math.inf if (value > 0) != FIGURES[self.figure].larger_is_better else -math.inf
        excess = math.log(value / self.bound)
        return -excess if FIGURES[self.figure].larger_is_better else excess


RELATIVE_UNIT = "x"
UNITS: dict[Unit, dict[str, float]] = {
    "ns": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9},
    "bytes": {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    "per_s": {"/s": 1, "/min": 1 / 60, "": 1},
    "number": {"": 1},
}
EXAMPLES: dict[Unit, str] = {"ns": "20ms", "bytes": "500MB", "per_s": "100/s", "number": "10"}


def parse_limit(text: str) -> Limit:
    """Parse `p99<20ms`, `memory<500MB`, `cpu<5ms`, `throughput>100/s`, or `p99<1.3x`, a multiple of the default's.

    Raises:
        UsageError: The text is not a limit.
    """
    found = re.fullmatch(r"\s*([\w.-]+)\s*([<>])=?\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ/]*)\s*", text.lower())
    if not found:
        raise UsageError(f"{text}: is not a limit.", "Write 'p99<20ms', 'memory<500MB' or 'throughput>100/s'.")
    name, sign, number, unit = found.groups()
    figure = FIGURES[parse_objective(name)]
    wanted = ">" if figure.larger_is_better else "<"
    if sign != wanted:
        raise UsageError(f"{text}: the limit of {figure.title} is written with {wanted}.")
    units = {**UNITS[figure.unit], RELATIVE_UNIT: 1}
    bound = float(number) * units.get(unit, 0.0)
    if not 0 < bound < math.inf:
        raise UsageError(
            f"{text}: {number}{unit} is not a bound for {figure.title}.",
            f"Write '{name}{wanted}{EXAMPLES[figure.unit]}', or '{name}{wanted}1.3x' of the default's.",
        )
    return Limit(
        figure=figure.name,
        bound=bound,
        relative=unit == RELATIVE_UNIT,
        text=text.replace(" ", ""),
    )


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a search optimizes.

    Attributes:
        load: How calls arrive.
        objectives: What is optimized; several objectives give a Pareto front.
        limits: What the result must satisfy.
        batches: Numbers of items in a call to choose from, the baseline's first; empty if calls are made with the
            samples as they are.
        sustained: Whether what counts is the speed that the host sustains for minutes.
        why: Why this is the objective, a clause; empty if the user named it.
    """

    load: Load = Load()
    objectives: tuple[Objective, ...] = ("p50",)
    limits: tuple[Limit, ...] = ()
    batches: tuple[int, ...] = ()
    sustained: bool = False
    why: str = ""

    @property
    def objective(self) -> Objective:
        """The first objective."""
        return self.objectives[0]

    @property
    def figures(self) -> tuple[Objective, ...]:
        """All figures that must be measured: those of the objectives and of the limits."""
        return tuple(dict.fromkeys((*self.objectives, *(limit.figure for limit in self.limits))))

    @property
    def counts_all_calls(self) -> bool:
        """Whether calls count also while other processes use the CPUs; see `all_calls_count`."""
        return all_calls_count(self.load, self.limits)

    def on_host(self, *, throttled: bool) -> Goal:
        """Return the goal on a host, given whether a CPU quota stops programs before they have used all CPUs."""
        return self.with_mean(UNDER_QUOTA) if throttled else self

    def with_mean(self, why: str) -> Goal:
        """Return the goal with the mean as the objective, if the user named none and it would be the median.

        Args:
            why: Why the median is not what matters here, a clause.
        """
        is_open = bool(self.why) and self.objectives == ("p50",)
        return msgspec.structs.replace(self, objectives=("mean",), why=why) if is_open else self


def all_calls_count(load: Load, limits: Sequence[Limit]) -> bool:
    """Return whether calls count also while other processes use the CPUs: requests that arrive then are late, too."""
    return load.rate_per_s is not None or any(not limit.relative and FIGURES[limit.figure].is_speed for limit in limits)


def check_batches(load: Load, batches: tuple[int, ...]) -> None:
    """Check that a load goes with calls of several items.

    Raises:
        UsageError: It does not.
    """
    if batches and load.rate_per_s is not None:
        raise UsageError(
            f"{{batch={','.join(map(str, batches))}}}: requests that arrive at a rate are not put together. That would "
            "need a queue in which they wait for others.",
            "Leave {rate} out, and limit how long a call may take: {limit=p99<50ms}.",
        )


UNDER_QUOTA = "the CPU quota is spent on all calls, and the median leaves out those that are throttled"
AT_TWO_SPEEDS = "calls run at two speeds, and the median is one or the other"
FEW_RUNS = "a percentile needs more runs of the program than there is time for"
"""Why the mean is optimized instead of the median."""


def choose_objective(load: Load, batches: tuple[int, ...] = ()) -> tuple[Objective, str]:
    """Return what is optimized if the user does not choose, and why, a clause. The host may change it.

    Args:
        load: How calls arrive.
        batches: Numbers of items in a call to choose from, or none.
    """
    if load.rate_per_s is not None:
        return "p99", "requests arrive at a rate, and the slow ones are noticed"
    if batches:
        return "throughput", "the number of items in a call varies"
    if load.n_callers > 1:
        return "throughput", "several clients share the session"
    return "p50", "a typical call of one client"


def make_goal(
    load: Load,
    objective: Objective | None = None,
    pareto: tuple[Objective, ...] = (),
    limits: tuple[Limit, ...] = (),
    batches: tuple[int, ...] = (),
    *,
    sustained: bool = False,
) -> Goal:
    """Return the goal that options describe.

    Args:
        load: How calls arrive.
        objective: The objective, or None for the default of the load.
        pareto: Two or three objectives for a Pareto front, or none.
        limits: What the result must satisfy.
        batches: Numbers of items in a call to choose from, or none.
        sustained: Whether what counts is the speed that the host sustains for minutes.

    Raises:
        UsageError: The options contradict each other.
    """
    if objective is not None and pareto:
        raise UsageError(
            f"{','.join(pareto)}: cannot be combined with {{objective={objective}}}.",
            "Use {pareto} alone, and choose a point of the front with `ortune apply --pick N`.",
            option="pareto",
        )
    if pareto and not 2 <= len(set(pareto)) == len(pareto) <= 3:
        raise UsageError(
            f"{','.join(pareto)}: a Pareto front has two or three different objectives.",
            "Write {pareto=p99,cpu}.",
            option="pareto",
        )
    check_batches(load, batches)
    default, why = choose_objective(load, batches)
    names = pareto or (objective or default,)
    if load.scenario == "server":
        fault = "the rate of requests determines the throughput."
        if "throughput" in names:
            raise UsageError(
                f"throughput: {fault}",
                "Leave {rate} out to measure how much the session can serve, or optimize p99, mean or cpu.",
                option="pareto" if pareto else "objective",
            )
        if limit := next((limit for limit in limits if limit.figure == "throughput"), None):
            raise UsageError(
                f"{limit.text}: {fault}",
                "Leave this limit out, or leave {rate} out to measure how much the session can serve.",
                option="limit",
            )
    is_chosen = bool(pareto) or objective is not None
    return Goal(
        load=load,
        objectives=names,
        limits=limits,
        batches=batches,
        sustained=sustained,
        why="" if is_chosen else why,
    )
