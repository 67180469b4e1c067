"""Plans how several models share a host: durations of each alone, then all models together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import msgspec

from ortune.errors import ClockError, MeasureError, OrtuneError, UsageError, explain_lacks
from ortune.host import HostClass
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.judge import TARGET_VERDICTS, TargetVerdict, judge_utilization
from ortune.measure.limits import judge_limit
from ortune.measure.memory import MEMORY_SHARE
from ortune.measure.open import open_comparison
from ortune.planning.colocation import measuring
from ortune.planning.colocation.choose import choose_sharing, correct_predictions
from ortune.planning.colocation.measured_scale import ScaleMeasurement
from ortune.planning.colocation.measuring import OpenHost, SharedHost, Together
from ortune.planning.colocation.predict import MANY_REQUESTS, NEAR_SCALE
from ortune.planning.colocation.prepare import USUAL_HOST_PLAN_BUDGET_S, HostPlanOptions, PreparedHostPlan
from ortune.planning.colocation.result import (
    HostPlan,
    ModelResult,
    PlannedModel,
    PlannedSharing,
    RejectedSharing,
)
from ortune.planning.colocation.scale_models import make_scale_models
from ortune.planning.colocation.search import Proposal, SharingSearch
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import Size, Timing
from ortune.planning.result import DOES_NOT_FIT, MOST_REPLICAS, Estimate, describe_interval
from ortune.planning.space import DeploymentSpace
from ortune.queueing.cost import count_replicas
from ortune.times import stamp

ALONE_SHARE = 0.3
TOGETHER_SHARE = 0.75
"""Parts of the budget after which measuring models alone, and measuring them together, ends."""

N_FINALISTS = 3
"""Sharings that are measured together with the default deployment, at most."""

WORTH_TRYING = 0.75
"""Predicted scale from which the requested rates are measured as they are: predictions are rather too low."""

JUST_BELOW = 0.99
"""Predicted scale where a target breaks in measurements, as a part of the scale that was measured."""

Observe = Callable[[str, int, int], None]
"""Called with the stage and how much of it is done and planned, never while a block is measured."""


class ColocationOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages found.

    Attributes:
        rows: The sharings, the default first if it was measured.
        recommended: Place of the recommended one, or None.
        reason: Why.
        measured_scale: By what the requested rates were multiplied.
        rejected: What was not measured, or failed.
        contended: Whether other processes used the CPUs.
        interrupted: Whether the user ended it early.
        problem: The error that ended the measurement of the scale; empty if there was none.
    """

    rows: tuple[PlannedSharing, ...]
    recommended: int | None
    reason: str
    measured_scale: float
    rejected: tuple[RejectedSharing, ...]
    contended: bool
    interrupted: bool = False
    problem: str = ""


def make_host_plan(prepared: PreparedHostPlan, observe: Observe = lambda stage, done, total: None) -> HostPlan:
    """Measure how the models can share the host, and return the plan.

    Raises:
        OrtuneError: A model does not run, no sharing can be measured, or the budget is too small.
        KeyboardInterrupt: The user ended it before anything was measured with all models.
    """
    options = prepared.options
    started = stamp()
    with contextlib.ExitStack() as stack:
        opened = []
        for number, setup in enumerate(prepared.setups):
            observe("launch", number, len(prepared.setups))
            opened.append(stack.enter_context(open_comparison(setup)))
        host = OpenHost(opened, [space.default for space in prepared.spaces])
        start_s = opened[0].start_s
        outcome = run_stages(prepared, host, opened[0].free_bytes, start_s, observe)
        return HostPlan(
            models=tuple(
                PlannedModel(demand=demand, model=setup.program.describe(), workload=setup.describe_workload())
                for demand, setup in zip(prepared.demands, prepared.setups, strict=True)
            ),
            rows=outcome.rows,
            recommended=outcome.recommended,
            reason=outcome.reason,
            measured_scale=outcome.measured_scale,
            rejected=outcome.rejected,
            headroom=options.headroom,
            price_per_hour=options.price_per_hour,
            n_cores=prepared.spaces[0].n_cores,
            budget_s=options.budget_s,
            spent_s=round(host.runner.now_s() - start_s, 3),
            started=started,
            seed=options.seed,
            interrupted=outcome.interrupted,
            problem=outcome.problem,
            host=HostClass.of(prepared.setups[0].host),
            runtime=opened[0].runtime,
            noise=host.runner.describe_noise(contended=outcome.contended),
        )


def run_stages(
    prepared: PreparedHostPlan,
    host: SharedHost,
    free_bytes: int | None,
    start_s: float,
    observe: Observe = lambda stage, done, total: None,
) -> ColocationOutcome:
    """Measure the models alone, find sharings that are worth it, and measure all models together.

    Args:
        prepared: What the plan is for.
        host: Where the models are open.
        free_bytes: Free memory, or None if unknown.
        start_s: When it began, on the clock of the host's runner.
        observe: Called with the progress.

    Raises:
        UsageError: The budget is too small.
        MeasureError: Nothing works.
    """
    return _HostPlanning(prepared.spaces, prepared.demands, prepared.options, host, free_bytes, start_s, observe).run()


class _HostPlanning:
    def __init__(
        self,
        spaces: Sequence[DeploymentSpace],
        demands: Sequence[Demand],
        options: HostPlanOptions,
        host: SharedHost,
        free_bytes: int | None,
        start_s: float,
        observe: Observe,
    ) -> None:
        self.demands = tuple(demands)
        self.options = options
        self.host = host
        self.start_s = start_s
        self.observe = observe
        self.most_bytes = MEMORY_SHARE * free_bytes if free_bytes else math.inf
        self.spaces = tuple(spaces)
        self.n_alone = 0
        self.problems: dict[str, RejectedSharing] = {}
        self.contended = False
        self.interrupted = False
        self.timings: dict[str, tuple[Timing, ...]] = {}
        self.search = SharingSearch(
            spaces,
            demands,
            self.measure_alone,
            has_time=lambda: host.runner.now_s() < self.end_of(ALONE_SHARE),
            most_bytes=self.most_bytes,
            seed=options.seed,
        )

    def run(self) -> ColocationOutcome:
        """Run the stages. Once all models were measured together, an interrupt or an error costs no measurement."""
        defaults = [self.measure_default(number) for number in range(len(self.spaces))]
        default, found = self.search.run(defaults)
        proposals = [*([default] if self.search.fits(default) else []), *found[:N_FINALISTS]]
        for unfit in self.search.unfit.values():
            self.reject(unfit, DOES_NOT_FIT)
        if not proposals:
            raise MeasureError(
                "The models do not fit into memory together, however they share the host.",
                "Plan for fewer of them, or on a host with more memory.",
            )
        scale = self.choose_scale(proposals)
        proposals = self.choose_measurable(proposals, scale)
        rows = self.prove(proposals, scale)
        if scale == 1 and not any(row.is_estimated_to_keep for row in rows):
            smaller = 1 / self.count_hosts(max(row.scale.estimate if row.scale else 0.0 for row in rows))
            if smaller < 1 and self.host.runner.now_s() < self.end_of(TOGETHER_SHARE):
                kept = [proposal for proposal in proposals if proposal.sharing.key not in self.problems]
                scale, rows = self.prove_again(kept, scale, smaller, rows)
        problem = ""
        recommended, reason = choose_sharing(rows, scale)
        measured: set[str] = set()
        # A measured scale may be smaller than predicted. Then another sharing is recommended, and measured as well.
        while recommended is not None and not self.interrupted and not problem:
            sharing = sharing_of(rows[recommended])
            if sharing.key in measured:
                break
            measured.add(sharing.key)
            try:
                with explain_lacks():
                    rows[recommended] = self.measure_scale(rows[recommended], scale)
            except KeyboardInterrupt:
                self.interrupted = True
            except OrtuneError as error:
                is_of_sharing = isinstance(error, MeasureError) and not isinstance(error, ClockError)
                if len(rows) > 1 and is_of_sharing:
                    self.problems[sharing.key] = RejectedSharing(
                        kind=sharing.kind,
                        deployments=sharing.deployments,
                        problem=f"it failed at multiples of the rates: {error.message}",
                    )
                    del rows[recommended]
                else:
                    problem = error.message
            recommended, reason = choose_sharing(rows, scale)
        rows = [self.add_cost(row) for row in correct_predictions(rows, scale)]
        recommended, reason = choose_sharing(rows, scale)
        return ColocationOutcome(
            rows=tuple(rows),
            recommended=recommended,
            reason=reason,
            measured_scale=scale,
            rejected=tuple(self.problems.values()),
            contended=self.contended,
            interrupted=self.interrupted,
            problem=problem,
        )

    def end_of(self, share: float) -> float:
        """Return the time on the runner's clock at which this part of the budget is spent."""
        return self.start_s + share * self.options.budget_s

    def measure_default(self, number: int) -> Timing:
        """Return what was measured of the default deployment of a model alone."""
        (found,) = self.host.measure_alone(number, [self.spaces[number].default])
        if found is None:
            raise MeasureError(
                f"{self.demands[number].name} worked at first, and then failed with ONNX Runtime's defaults.",
                "Check that the host has enough free memory, and that nothing else ends processes on it.",
            )
        return found

    def measure_alone(self, number: int, sizes: Sequence[Size]) -> list[Timing | None]:
        """Measure deployments of a model of these sizes alone."""
        found = self.host.measure_alone(number, [self.search.make_alone(number, size) for size in sizes])
        self.n_alone += len(sizes)
        self.observe("screening", self.n_alone, self.n_alone)
        return found

    def reject(self, proposal: Proposal, problem: str) -> None:
        """Note why a sharing is not in the plan."""
        sharing = proposal.sharing
        self.problems[sharing.key] = RejectedSharing(
            kind=sharing.kind, deployments=sharing.deployments, problem=problem
        )

    def count_hosts(self, scale: float) -> int:
        """Return the hosts that the rates need if one can take them times a scale; 1 if no number is enough."""
        return count_replicas(1.0, scale, self.options.headroom) if scale > 0 else 1

    def choose_scale(self, proposals: Sequence[Proposal]) -> float:
        """Return by what the requested rates are multiplied in measurements: 1, or the part of one of several hosts."""
        best = max(proposal.scale for proposal in proposals)
        return 1.0 if best >= WORTH_TRYING or best <= 0 else 1 / self.count_hosts(best)

    def prove(self, proposals: Sequence[Proposal], scale: float) -> list[PlannedSharing]:
        """Measure all models together under each sharing, and return those that work.

        Raises:
            MeasureError: None works.
        """
        sharings = [proposal.sharing for proposal in proposals]
        plan = measuring.plan_block(sharings, self.demands, scale)
        left_s = self.end_of(TOGETHER_SHARE) - self.host.runner.now_s()
        rounds = measuring.count_rounds(self.host, sharings, plan, self.demands, scale, left_s)
        found = measuring.measure_together(
            self.host,
            sharings,
            self.demands,
            scale,
            plan=plan,
            rounds=rounds,
            one_at_a_time=sum(proposal.n_bytes for proposal in proposals) > self.most_bytes,
            observe=lambda done, total: self.observe("all models", done, total),
        )
        self.timings |= {proposal.sharing.key: proposal.timings for proposal in proposals}
        rows = []
        for proposal, together in zip(proposals, found, strict=True):
            if together.failure or together.n_blocks < 2:
                failure = together.failure
                problem = f"{failure.title}: {failure.message}" if failure else "too few blocks were measured"
                self.reject(proposal, problem)
                continue
            rows.append(self.describe(proposal, together, scale))
        if not rows:
            reason = next(iter(self.problems.values())).problem
            raise MeasureError(f"The models do not run together on this host: {reason}", "Plan for fewer of them.")
        return rows

    def prove_again(
        self, proposals: Sequence[Proposal], scale: float, smaller: float, rows: list[PlannedSharing]
    ) -> tuple[float, list[PlannedSharing]]:
        """Return a smaller scale, and the rows that were measured at it.

        At lower rates, blocks are longer. If there is no time for them, if all fail, or if the user interrupts them,
        the first rows stay.

        Args:
            proposals: Those that worked.
            scale: By what the rates were multiplied first.
            smaller: The smaller scale.
            rows: The first rows.
        """
        known = dict(self.problems)
        try:
            with explain_lacks():
                fitting = self.choose_measurable(proposals, smaller)
                found = self.prove(fitting, smaller)
        except (OrtuneError, KeyboardInterrupt) as error:
            self.problems = known
            self.interrupted = isinstance(error, KeyboardInterrupt)
            return scale, rows
        for proposal in proposals[len(fitting) :]:
            self.reject(proposal, "there was no time to measure it at lower rates")
        return smaller, found

    def choose_measurable(self, proposals: Sequence[Proposal], scale: float) -> list[Proposal]:
        """Return as many proposals as the budget allows to measure for the fewest rounds, the first ones.

        Raises:
            UsageError: It does not suffice for two of them.
        """
        spent_s = self.host.runner.now_s() - self.start_s
        for n in range(len(proposals), 0, -1):
            kept = list(proposals[:n])
            block = measuring.plan_block([proposal.sharing for proposal in kept], self.demands, scale)
            launches_s = sum(measuring.find_launch_s(self.host, proposal.sharing) for proposal in kept)
            rounds_s = measuring.FEWEST_COLOCATED_ROUNDS * n * measuring.find_block_s(block)
            needed_s = spent_s + measuring.LAUNCHES * (launches_s + rounds_s)
            if needed_s <= self.options.budget_s:
                return kept
            if n <= min(2, len(proposals)):
                break
        enough_s = 10 * math.ceil(needed_s / TOGETHER_SHARE / 10)
        raise UsageError(
            f"{self.options.budget_s:g}s: too short to measure all models together at these rates.",
            f"Give {{budget={enough_s}s}} or more{', or omit it' if enough_s <= USUAL_HOST_PLAN_BUDGET_S else ''}.",
            option="budget",
        )

    def describe(self, proposal: Proposal, together: Together, scale: float) -> PlannedSharing:
        """Return the row of a sharing."""
        sharing = together.sharing
        # Blocks of a busy host count, too: requests that arrive then are late.
        streams = [stream for stream in together.streams if stream]
        self.contended = self.contended or measuring.is_contended(streams)
        blocks = [block for stream in streams for block in stream]
        latencies = measuring.find_latencies(streams, sharing, self.demands, scale)
        utilizations = measuring.find_utilizations(streams, sharing, self.demands, scale)
        models = []
        for number, (demand, latency) in enumerate(zip(self.demands, latencies, strict=True)):
            own = [block.parts[number] for block in blocks]
            models.append(
                ModelResult(
                    deployment=sharing.deployments[number],
                    figure=demand.figure,
                    latency_ns=describe_interval(latency) if math.isfinite(latency.estimate) else None,
                    verdict=judge(latency, utilizations[number], demand),
                    is_above_target=bool(demand.slo and latency.estimate > demand.slo.bound),
                    served_per_s=1e9 * sum(block.n_calls for block in own) / sum(block.wall_ns for block in own),
                    utilization=max(utilizations[number].estimate, 0.0),
                    n_requests=sum(len(block.samples_ns) for block in own),
                    cpu_ns_per_call=sum(block.cpu_ns for block in own) / sum(block.n_calls for block in own),
                    memory_bytes=max(block.memory.peak_bytes for block in own),
                )
            )
        wall_ns = sum(block.wall_ns for block in blocks)
        row = PlannedSharing(
            kind=sharing.kind,
            models=tuple(models),
            cpu_cores=sum(block.cpu_ns for block in blocks) / wall_ns,
            memory_bytes=max(block.memory.peak_bytes for block in blocks),
        )
        corrected = correct_scale(self.predict_scale(proposal), row, scale)
        return self.add_cost(msgspec.structs.replace(row, scale=corrected))

    def predict_scale(self, proposal: Proposal) -> Estimate:
        """Return by how much all rates can be multiplied, from the durations of calls of each model alone."""
        found = self.search.predictor.find_scale(
            proposal.sharing, proposal.timings, start=proposal.scale or 1.0, step=NEAR_SCALE, n_requests=MANY_REQUESTS
        )
        return Estimate(estimate=found, low=0.0, high=None, confidence=DEFAULT_CONFIDENCE, source="predicted")

    def add_cost(self, row: PlannedSharing) -> PlannedSharing:
        """Return a row with the hosts that the requested rates need, and their price."""
        if not row.scale or row.scale.estimate <= 0:
            return msgspec.structs.replace(row, replicas=None, price_per_hour=None)
        replicas = self.count_hosts(row.scale.estimate)
        if replicas > MOST_REPLICAS:
            return msgspec.structs.replace(row, replicas=None, price_per_hour=None)
        price = self.options.price_per_hour
        return msgspec.structs.replace(
            row, replicas=replicas, price_per_hour=None if price is None else price * replicas
        )

    def measure_scale(self, row: PlannedSharing, scale: float) -> PlannedSharing:
        """Return a row with the measured scale, if there is time to measure it."""
        sharing = sharing_of(row)
        busiest = max(model.utilization for model in row.models)
        if not row.scale or not busiest > 0:
            return row
        measurement = ScaleMeasurement(
            self.host,
            sharing,
            self.demands,
            make_scale_models(self.search.predictor, sharing, self.timings[sharing.key]),
            scale=scale,
            busiest=busiest,
            predicted=row.scale,
        )
        end_s = self.end_of(1.0)
        if not measurement.fit_into(end_s - self.host.runner.now_s()):
            return row
        total = measurement.count_fitting(end_s - self.host.runner.now_s())
        measured = measurement.run(end_s, lambda done: self.observe("scale", done, max(total, done)))
        if measured is None:
            return row
        return self.add_cost(msgspec.structs.replace(row, scale=measured, predicted_scale=row.scale))


def sharing_of(row: PlannedSharing) -> Sharing:
    """Return how a row shares the host."""
    return Sharing(kind=row.kind, deployments=tuple(model.deployment for model in row.models))


def correct_scale(predicted: Estimate, row: PlannedSharing, measured: float) -> Estimate:
    """Return a predicted scale that does not contradict what was measured.

    Args:
        predicted: The prediction.
        row: What was measured.
        measured: By what the requested rates were multiplied then.
    """
    scale = predicted.estimate
    scale = max(scale, measured) if row.is_estimated_to_keep else min(scale, JUST_BELOW * measured)
    return msgspec.structs.replace(predicted, estimate=scale)


def judge(latency: Interval, utilization: Interval, demand: Demand) -> TargetVerdict:
    """Return whether a target is kept; without one, whether requests are served as they arrive.

    Args:
        latency: The figure of the latency in ns; infinite if requests arrive faster than they are served.
        utilization: Share of the callers' time that calls take.
        demand: The model's rate and target.
    """
    if not math.isfinite(latency.estimate):
        return "broken"
    kept = judge_limit(demand.slo, latency) if demand.slo else judge_utilization(utilization.low, utilization.high)
    return TARGET_VERDICTS[kept]
