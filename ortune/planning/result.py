"""The result of planning: a document that is data only."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import msgspec

from ortune.bounds import MOST_ITEMS
from ortune.host import HostClass
from ortune.knobs.caches import check_cache_options
from ortune.measure.comparison import Noise
from ortune.measure.interval import Interval
from ortune.model.identity import ModelIdentity
from ortune.numbers import Count
from ortune.planning.deployment import Deployment
from ortune.queueing.policies import Policy, name_policy
from ortune.times import check_time
from ortune.worker import Runtime
from ortune.workload import Limit, Workload

PLAN_SCHEMA = 1
"""Version of the document."""

MOST_DEPLOYMENTS = 1000
"""Deployments that a document holds at most."""

DOES_NOT_FIT = "does not fit into memory"
"""Why a deployment was not measured."""

Source = Literal["measured", "predicted"]
"""Whether a figure was measured under such a load, or computed from durations of calls by a model of the queue."""

Resource = Literal["throughput", "memory", "cpu"]
"""What a deployment can be the best in: the highest throughput or capacity, the least memory, the least CPU time per
call."""


MOST_REPLICAS = 10**9
SMALLEST_FIGURE = 1e-280
LARGEST_FIGURE = 2.0**60
"""Smallest and largest numbers that a document holds, besides 0. No measurement gets there, and their quotients are
finite and above 0."""


def check_figures(*figures: float) -> None:
    """Check that numbers may be figures.

    Raises:
        ValueError: One is negative, not finite or too large, or so small that quotients would be 0.
    """
    if not all(figure == 0 or SMALLEST_FIGURE <= figure <= LARGEST_FIGURE for figure in figures):
        raise ValueError(f"the figures must be finite, and 0 or from {SMALLEST_FIGURE:.0g} to {LARGEST_FIGURE:.0g}")


def check_replicas(replicas: int | None) -> None:
    """Check that a number may be one of hosts.

    Raises:
        ValueError: It is not positive, or too large.
    """
    if replicas is not None and not 1 <= replicas <= MOST_REPLICAS:
        raise ValueError(f"{replicas} replicas: there must be 1 to {MOST_REPLICAS}")


def check_headroom(headroom: float) -> None:
    """Check that a number may be a headroom.

    Raises:
        ValueError: It is not a share below 1.
    """
    if not 0 <= headroom < 1:
        raise ValueError(f"the headroom is {headroom}, and not from 0 to below 1")


def check_origin(started: str, seed: int) -> None:
    """Check when a plan began, and its random seed.

    Raises:
        ValueError: The one is not in ISO 8601, or the other is negative.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}, below 0")
    check_time(started)


class Estimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure with its interval.

    Attributes:
        estimate: The figure.
        low: Lower end of the interval.
        high: Upper end; None if there is no finite one.
        confidence: Coverage of the interval.
        source: Where it comes from.
        n_measurements: For a capacity: the rates at which the latency was measured or simulated.
    """

    estimate: float
    low: float
    high: float | None
    confidence: float
    source: Source
    n_measurements: Count | None = None

    def __post_init__(self) -> None:
        """Reject numbers that no figure has."""
        check_figures(self.estimate, self.low, self.high if self.high is not None else 0.0)
        if not 0 < self.confidence < 1:
            raise ValueError(f"the confidence is {self.confidence}, and not between 0 and 1")


def describe_interval(interval: Interval, source: Source = "measured") -> Estimate:
    """Return a figure, which cannot be negative, as it is recorded."""
    return Estimate(
        estimate=interval.estimate,
        low=max(interval.low, 0.0) if math.isfinite(interval.low) else 0.0,
        high=interval.high if math.isfinite(interval.high) else None,
        confidence=interval.confidence,
        source=source,
    )


class AtRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The latency of a deployment at the part of the requested rate that each replica gets.

    Attributes:
        rate_per_s: That rate.
        p50_ns: Median latency, from arrival to end.
        p99_ns: 99th percentile.
        p99_low_ns: Lower end of its 95% interval; None for a prediction.
        p99_high_ns: Upper end; None if there is no finite one, and for a prediction.
        target: The figure of the target, in ns, with its interval; None without a target.
        utilization: Share of the callers' time that calls take.
        source: Where the figures come from.
    """

    rate_per_s: float
    p50_ns: float
    p99_ns: float
    p99_low_ns: float | None = None
    p99_high_ns: float | None = None
    target: Estimate | None = None
    utilization: float
    source: Source

    def __post_init__(self) -> None:
        """Reject numbers that no figure has."""
        check_figures(self.rate_per_s, self.p50_ns, self.p99_ns, self.utilization)
        check_figures(self.p99_low_ns or 0.0, self.p99_high_ns or 0.0)
        if not self.rate_per_s > 0:
            raise ValueError("the rate must be positive")


class PlannedDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deployment with its figures.

    Attributes:
        deployment: The deployment.
        throughput: Calls per second with all callers busy.
        ratio: The same relative to the default deployment; None for that itself.
        p50_ns: Median duration of a call then.
        p99_ns: 99th percentile of it.
        worst_p99_ns: With several processes: the same of the slowest process of each launch.
        cpu_cores: CPU cores that are in use then.
        cpu_ns_per_call: CPU time of all processes per call.
        memory_bytes: Largest resident memory of all processes. Pages that they share count in each.
        capacity: With a target: the highest rate that keeps it.
        predicted_capacity: Where the capacity was measured: what the model of the queue had predicted.
        is_proven: Whether it is better than the default deployment: its throughput, or with a target its capacity.
        replicas: With a rate: hosts like this one that it needs, with the headroom; None if no number is enough.
        at_rate: The latency at the part of the rate that each of them gets; None if requests arrive faster than they
            are served.
        predicted_at_rate: Where it was measured: what the model of the queue had predicted.
        price_of_million: Price of a million calls, in the unit of the price per hour.
        cache_options: Options that must name a folder for compiled models, as in a record.
    """

    deployment: Deployment
    throughput: Estimate
    ratio: Estimate | None = None
    p50_ns: float
    p99_ns: float
    worst_p99_ns: float | None = None
    cpu_cores: float
    cpu_ns_per_call: float
    memory_bytes: int
    capacity: Estimate | None = None
    predicted_capacity: Estimate | None = None
    is_proven: bool = False
    replicas: Count | None = None
    at_rate: AtRate | None = None
    predicted_at_rate: AtRate | None = None
    price_of_million: float | None = None
    cache_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject numbers that no figure has, and options that are not for caches."""
        if self.cache_options:
            check_cache_options(self.deployment.config, self.cache_options)
        check_figures(self.p50_ns, self.p99_ns, self.worst_p99_ns or 0.0)
        check_figures(self.cpu_cores, self.cpu_ns_per_call, self.memory_bytes)
        check_replicas(self.replicas)

    @property
    def sustained_per_s(self) -> float:
        """The rate that it can take: the capacity within the target, or the throughput where there is no target."""
        return (self.capacity or self.throughput).estimate


class ScreenedDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What screening found of a deployment.

    Attributes:
        deployment: The deployment.
        ratio: Its throughput relative to the default deployment, from a few blocks; None if it was not measured.
        problem: Why it was not measured, or why it is not in the plan; empty if it works.
    """

    deployment: Deployment
    ratio: float | None = None
    problem: str = ""


class LengthPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to group items of different lengths into calls.

    Attributes:
        policy: Its name.
        parameter: Size of batches, or tokens for "sorted by tokens"; None for policies without.
        items_per_s: Items per second of all callers together, measured or predicted.
        predicted_per_s: What was predicted from durations of calls.
        to_reference: The same relative to the reference; None for that itself, and for what was not measured.
        to_single: The same relative to one item at a time.
        padding: Share of the tokens that are padding.
        n_calls: Calls that the sample takes.
        longest_call_ns: Predicted duration of the longest of them.
        max_error: Largest difference of an item's outputs from those of the item alone, as a fraction of the output's
            largest value; None for what was not measured.
        problem: Why it cannot be recommended, if outputs differ; empty if they are the same.
    """

    policy: Policy
    parameter: Count | None
    items_per_s: Estimate
    predicted_per_s: float
    to_reference: Estimate | None = None
    to_single: Estimate | None = None
    padding: float
    n_calls: Count
    longest_call_ns: float
    max_error: float | None = None
    problem: str = ""

    @property
    def title(self) -> str:
        """A short description, such as `sorted by tokens, 512 tokens`."""
        return name_policy(self.policy, self.parameter)


class LengthPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to group items of different lengths.

    Attributes:
        text: Where the lengths come from, as the user wrote it.
        lengths: Length of each item of the sample that was measured, in order of arrival.
        maximum: Length that "maximum" pads to.
        place: Place of the deployment whose callers made the calls.
        n_points: Sizes and lengths at which durations of calls were measured.
        policies: The policies, those that were measured first.
        recommended: Place of the recommended policy.
        reference: Place of the policy that all others are compared with: batches in order of arrival.
        unfit_sizes: Sizes of batches that were left out because the longest items do not fit into memory.
    """

    text: str
    lengths: tuple[Count, ...]
    maximum: Count
    place: int
    n_points: Count
    policies: tuple[LengthPolicy, ...]
    recommended: int
    reference: int
    unfit_sizes: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()

    def __post_init__(self) -> None:
        """Reject places of policies that are not there."""
        if not all(0 <= place < len(self.policies) for place in (self.recommended, self.reference)):
            raise ValueError(f"it has {len(self.policies)} policies, and names others")
        if len(self.policies) > MOST_DEPLOYMENTS or not 1 <= len(self.lengths) <= MOST_ITEMS:
            raise ValueError(f"it has more than {MOST_DEPLOYMENTS} policies, or no lengths, or too many")

    @property
    def choice(self) -> LengthPolicy:
        """The recommended policy."""
        return self.policies[self.recommended]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan: deployments that were measured thoroughly, and the recommended one.

    Attributes:
        schema: Version of the document.
        rows: The deployments, the default first.
        recommended: Place of the recommended one.
        reason: Why it is recommended.
        best: Places of the best ones in each respect, among those that keep the target.
        screened: All deployments that were tried.
        slo: The target, or None.
        rate_per_s: The requested rate, or None.
        headroom: Share of the capacity that is left unused.
        price_per_hour: Price of a replica, or None.
        dispatch: Which process a request waits for, in predictions and in measurements at a rate.
        budget_s: Time that was planned.
        spent_s: Time that was spent.
        started: When it began, in ISO 8601 with the time zone.
        seed: Random seed.
        interrupted: Whether the user ended it early.
        problem: The error that ended the measurement of capacities and latencies; empty if there was none.
        workload: What was measured.
        model: Identity of the model.
        host: Class of the host.
        runtime: The software.
        noise: CPU use by other processes.
        lengths: How to group items of different lengths; None if they have one length.
        lengths_problem: Why that could not be measured; empty if it was, or was not wanted.
    """

    schema: int = PLAN_SCHEMA
    rows: tuple[PlannedDeployment, ...]
    recommended: int
    reason: str
    best: dict[Resource, int]
    screened: tuple[ScreenedDeployment, ...] = ()
    slo: Limit | None = None
    rate_per_s: float | None = None
    headroom: float = 0.0
    price_per_hour: float | None = None
    dispatch: Literal["common", "round-robin", "random"] = "random"
    budget_s: float
    spent_s: float
    started: str
    seed: int = 0
    interrupted: bool = False
    problem: str = ""
    workload: Workload
    model: ModelIdentity
    host: HostClass
    runtime: Runtime
    noise: Noise
    lengths: LengthPlan | None = None
    lengths_problem: str = ""

    def __post_init__(self) -> None:
        """Reject places of deployments that are not there."""
        places = (self.recommended, *self.best.values())
        if not self.rows or not all(0 <= place < len(self.rows) for place in places):
            raise ValueError(f"it has {len(self.rows)} deployments, and names others")
        if missing := set(get_args(Resource)) - set(self.best):
            raise ValueError(f"it lacks the best deployment for {', '.join(sorted(missing))}")
        if self.lengths and not 0 <= self.lengths.place < len(self.rows):
            raise ValueError(f"it has {len(self.rows)} deployments, and groups items for another one")
        if len(self.rows) > MOST_DEPLOYMENTS or len(self.screened) > MOST_DEPLOYMENTS:
            raise ValueError(f"it has more than {MOST_DEPLOYMENTS} deployments")
        check_figures(self.rate_per_s or 0.0, self.price_per_hour or 0.0, self.budget_s, self.spent_s)
        check_headroom(self.headroom)
        check_origin(self.started, self.seed)

    @property
    def choice(self) -> PlannedDeployment:
        """The recommended deployment; the default one if none meets the target."""
        return self.rows[self.recommended]

    @property
    def meets_target(self) -> bool:
        """Whether the recommended deployment meets the target at some rate; true without a target."""
        return self.slo is None or self.choice.sustained_per_s > 0
