"""Plans deployments: screening, confirmation of the best in fresh launches, and the capacity within the target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune.errors import BackgroundLoadError, ClockError, MeasureError, UsageError
from ortune.host import HostClass
from ortune.measure.block_plan import block_wall_s
from ortune.measure.comparison import Speedup
from ortune.measure.evaluate import compute_pooled, compute_speedup, summarize
from ortune.measure.interval import DEFAULT_CONFIDENCE, share_error
from ortune.measure.judge import compare
from ortune.measure.limits import judge_limit
from ortune.measure.open import OpenComparison, open_comparison
from ortune.measure.paired_run import PairedRun
from ortune.measure.stats import t_interval
from ortune.planning.attempts import OptionalMeasurements
from ortune.planning.capacity import (
    estimate_log_utilization,
    find_launch_error,
    make_rate_model,
    predict_capacity,
    predict_latency,
)
from ortune.planning.choose import (
    DEFAULT_POSITION,
    add_cost,
    correct_predictions,
    explain_choice,
    find_best,
    rank_rows,
)
from ortune.planning.deployment import Deployment
from ortune.planning.dynamic_batching import find_batched, make_batched_rate_model, predict_batched_latency
from ortune.planning.length_policies import plan_lengths
from ortune.planning.measured_capacity import FEWEST_RATE_MEASUREMENTS, MOST_RATE_MEASUREMENTS, CapacityMeasurement
from ortune.planning.measuring import DeploymentRunner, Screened, thin
from ortune.planning.options import PlanOptions
from ortune.planning.prepare import PreparedPlan
from ortune.planning.proof import half_width, mark_promising, mark_proven
from ortune.planning.result import (
    DOES_NOT_FIT,
    Estimate,
    Plan,
    PlannedDeployment,
    ScreenedDeployment,
    describe_interval,
)
from ortune.planning.screening import screen_deployments
from ortune.planning.space import DeploymentSpace
from ortune.queueing.batching import BatchTimes
from ortune.queueing.rate_model import RateModel
from ortune.times import stamp
from ortune.worker.compiled_models import find_cache_options
from ortune.workload import Limit
from ortune.workload.load import HIGHEST_RATE_PER_S

SCREENING_SHARE = 0.4
CONFIRMED_SHARE = 0.85
LEAST_CONFIRMATION_SHARE, CONFIRMATION_SHARE_WITH_TARGET = 0.5, 0.7
CONFIRMATION_SHARE_WITH_BATCHING, BATCHING_SHARE = 0.6, 0.75
"""Parts of the budget after which screening, confirmation, and the same of dynamic batching end. With a target,
confirmation ends earlier if the budget is given, and it takes long to measure capacities."""

USUAL_MEASUREMENTS = 8
USUAL_UTILIZATION = 0.6
"""Measurements of a capacity that time is planned for, and the utilization where they are made."""

N_BEST_DEPLOYMENTS = 3
MOST_FINALISTS = 6
"""Deployments that are measured again: the best ones, and those that need the least of something."""

LEAST_THROUGHPUT = math.log(0.8)
"""Throughput of a finalist that needs the least CPU time, relative to the default, as a logarithm."""

OF_HOST = (BackgroundLoadError, ClockError)
"""Errors that have nothing to do with a deployment."""

Observe = Callable[[str, int, int], None]
"""Called with the stage and how much of it is done and planned, never while a block is measured."""


class PlanOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the stages found.

    Attributes:
        rows: The deployments, the default first.
        recommended: Place of the recommended one.
        reason: Why.
        screened: All deployments that were tried.
        run: The blocks of the confirmation.
        extension_s: Time that was added to the usual budget.
        interrupted: Whether the user ended it early.
        problem: The error that ended the measurement of capacities and latencies; empty if there was none.
    """

    rows: tuple[PlannedDeployment, ...]
    recommended: int
    reason: str
    screened: tuple[ScreenedDeployment, ...]
    run: PairedRun
    extension_s: float = 0.0
    interrupted: bool = False
    problem: str = ""


def plan_deployment(prepared: PreparedPlan, observe: Observe = lambda stage, done, total: None) -> Plan:
    """Measure deployments, and return the plan.

    Raises:
        OrtuneError: The model does not run, the default deployment cannot be measured, or the budget is too small.
        KeyboardInterrupt: The user ended it before anything was confirmed.
    """
    setup, options = prepared.setup, prepared.options
    started = stamp()
    with open_comparison(setup) as opened:
        outcome = run_stages(prepared.space, opened, options, observe)
        time_s = options.time_s + outcome.extension_s
        lengths, attempts = None, OptionalMeasurements()
        if options.lengths and not outcome.interrupted:
            # If this fails, the deployments were measured with calls of a single item, which work.
            with attempts.measure():
                lengths = plan_lengths(
                    DeploymentRunner(opened, prepared.space.default),
                    options.lengths,
                    outcome.rows[outcome.recommended].deployment,
                    place=outcome.recommended,
                    end_s=max(opened.start_s + time_s, opened.runner.now_s() + options.lengths_s / 2),
                    slo=options.slo,
                    observe=observe,
                )
        return Plan(
            rows=outcome.rows,
            recommended=outcome.recommended,
            reason=outcome.reason,
            best=find_best(outcome.rows),
            screened=outcome.screened,
            slo=options.slo,
            rate_per_s=options.rate_per_s,
            headroom=options.headroom,
            price_per_hour=options.price_per_hour,
            budget_s=round(time_s, 3),
            spent_s=round(opened.runner.now_s() - opened.start_s, 3),
            started=started,
            seed=setup.seed,
            interrupted=outcome.interrupted or attempts.interrupted,
            problem=outcome.problem,
            lengths=lengths,
            lengths_problem=attempts.problem,
            workload=setup.describe_workload(),
            model=setup.program.describe(),
            host=HostClass.of(setup.host),
            runtime=opened.runtime,
            noise=opened.runner.describe_noise(contended=outcome.run.contended),
        )


def run_stages(
    space: DeploymentSpace,
    opened: OpenComparison,
    options: PlanOptions,
    observe: Observe = lambda stage, done, total: None,
) -> PlanOutcome:
    """Screen deployments, confirm the best, and find their capacity.

    Raises:
        UsageError: The budget is too small.
        MeasureError: The default deployment fails.
        KeyboardInterrupt: The user ended it before anything was confirmed.
    """
    return _Planning(space, opened, options, observe).run()


class _Planning:
    def __init__(self, space: DeploymentSpace, opened: OpenComparison, options: PlanOptions, observe: Observe) -> None:
        self.space = space
        self.opened = opened
        self.options = options
        self.observe = observe
        self.runner = DeploymentRunner(opened, space.default)
        self.screened: dict[str, Screened] = {}
        self.finalists: list[Deployment] = []
        self.durations: dict[str, NDArray[np.int64]] = {}
        self.batch_times: dict[str, BatchTimes] = {}
        self.beyond_default: set[str] = set()
        self.models: dict[str, RateModel] = {}
        self.extension_s = 0.0
        self.attempts = OptionalMeasurements()
        self.dropped: dict[str, ScreenedDeployment] = {}

    def run(self) -> PlanOutcome:
        """Run the stages. After an interrupt or an error in the last one, what was confirmed counts."""
        self.check_budget()
        screen_deployments(self.space, self.score, has_time=lambda: self.runner.now_s() < self.end_of(SCREENING_SHARE))
        self.finalists = self.choose_finalists()
        run = self.confirm()
        rows = self.evaluate(run)
        if self.options.slo:
            with self.attempts.measure():
                if self.options.dynamic_batching:
                    self.add_batched(rows, self.options.slo)
                if self.options.longest_extension_s:
                    self.extend_budget(rows, self.options.slo)
                for measured_rows in self.measure_capacities(rows, self.options.slo):
                    rows = measured_rows
            rows = mark_proven(correct_predictions(rows), self.beyond_default)
        rows = [self.add_latency(row) for row in rows]
        if not self.attempts.interrupted:
            with self.attempts.measure():
                self.measure_recommended(rows)
        recommended = rank_rows(rows)[0]
        return PlanOutcome(
            rows=tuple(rows),
            recommended=recommended,
            reason=explain_choice(rows, recommended, has_target=self.options.slo is not None),
            screened=self.describe_screened(),
            run=run,
            extension_s=max(self.runner.now_s() - self.opened.start_s - self.options.deployments_s, 0.0)
            if self.extension_s
            else 0.0,
            interrupted=self.attempts.interrupted,
            problem=self.attempts.problem,
        )

    def end_of(self, share: float) -> float:
        """Return the time on the runner's clock at which this part of the budget is spent."""
        return self.opened.start_s + share * self.options.deployments_s + (self.extension_s if share == 1 else 0.0)

    def check_budget(self) -> None:
        """Check that the budget suffices for the first deployments and a short confirmation.

        Raises:
            UsageError: It does not.
        """
        if self.options.budget_s is None:
            return
        first = [deployment for deployment in self.space.list_first() if self.runner.fits(deployment)]
        plan = self.runner.plan_confirmation(first[:N_BEST_DEPLOYMENTS], 0.0)
        block_s = block_wall_s(plan.block, self.opened.calibration.pace)
        needed_s = sum(self.runner.find_launch_s(deployment) + 2 * block_s for deployment in first)
        launch_s = sum(
            self.runner.find_launch_s(deployment) for deployment in (self.space.default, *first[:N_BEST_DEPLOYMENTS])
        )
        needed_s += (plan.launches or 0) * launch_s + (N_BEST_DEPLOYMENTS + 1) * plan.n_rounds * block_s
        spent_s = self.runner.now_s() - self.opened.start_s
        if spent_s + needed_s > self.options.deployments_s:
            part = self.options.deployments_s / self.options.time_s
            enough_s = 10 * math.ceil((spent_s + 1.2 * needed_s) / part / 10)
            raise UsageError(
                f"{self.options.budget_s:g}s: too short to compare deployments of this model.",
                f"Give {{budget={enough_s}s}} or more, or omit it.",
                option="budget",
            )

    def score(self, deployments: Sequence[Deployment]) -> list[float | None]:
        """Measure deployments briefly, and return by how much each can take more than the default."""
        scores: list[float | None] = []
        for found in self.runner.screen(deployments):
            if found:
                self.screened[found.deployment.key] = found
            scores.append(self.score_of(found) if found and not found.failure else None)
        self.observe("screening", len(self.screened), len(self.screened))
        return scores

    def score_of(self, found: Screened) -> float:
        """Return the throughput of a deployment relative to the default, or with a target the estimated capacity."""
        return self._find_log_capacity(found) - self._default_log_capacity

    @functools.cached_property
    def _default_log_capacity(self) -> float:
        """That of the default deployment, which each group is compared with."""
        assert self.runner.screened_default
        return self._find_log_capacity(self.runner.screened_default)

    def _find_log_capacity(self, found: Screened) -> float:
        """Return what a deployment can take, relative to the throughput of the default, as a logarithm."""
        slo = self.options.slo
        return found.log_ratio + (estimate_log_utilization(found.deployment, found.samples_ns, slo) if slo else 0.0)

    def choose_finalists(self) -> list[Deployment]:
        """Return the best deployments, and those that need the least memory, CPU time or time for a call."""
        working = [screened for screened in self.screened.values() if not screened.failure]
        ranked = sorted(working, key=lambda screened: -self.score_of(screened))
        chosen = [screened.deployment for screened in ranked[:N_BEST_DEPLOYMENTS]]
        useful = [screened for screened in ranked if screened.log_ratio >= 0] or ranked[:1]
        cheap = [screened for screened in ranked if screened.log_ratio >= LEAST_THROUGHPUT] or ranked[:1]
        if ranked:
            chosen.append(min(useful, key=lambda screened: (screened.peak_bytes, -screened.log_ratio)).deployment)
            chosen.append(min(cheap, key=lambda screened: screened.cpu_ns_per_call).deployment)
            chosen.append(min(useful, key=lambda screened: float(np.quantile(screened.samples_ns, 0.99))).deployment)
        return list({deployment.key: deployment for deployment in chosen}.values())[:MOST_FINALISTS]

    def confirm(self) -> PairedRun:
        """Measure the finalists in fresh launches."""
        end_s = self.end_of(self.find_confirmation_share())
        plan = self.runner.plan_confirmation(self.finalists, end_s - self.runner.now_s())

        def report(done: int, total: int) -> None:
            self.observe("confirmation", done, total)

        run = self.runner.confirm(self.finalists, plan, report)
        for position, failure in run.failures.items():
            key = self.finalists[position - 1].key
            self.screened[key] = msgspec.structs.replace(self.screened[key], failure=failure)
        return run.in_one_regime()

    def find_confirmation_share(self) -> float:
        """Return the part of the budget after which confirmation ends."""
        options = self.options
        if options.dynamic_batching:
            return CONFIRMATION_SHARE_WITH_BATCHING
        if not options.slo:
            return CONFIRMED_SHARE
        share = CONFIRMATION_SHARE_WITH_TARGET
        if options.longest_extension_s or not self.finalists:
            return share
        each_s = self.find_measurement_s(self.finalists[0], options.slo) / options.deployments_s
        if FEWEST_RATE_MEASUREMENTS * each_s > 1 - LEAST_CONFIRMATION_SHARE:
            return share  # there is no time to measure capacities anyway
        return min(max(1 - USUAL_MEASUREMENTS * each_s, LEAST_CONFIRMATION_SHARE), share)

    def find_measurement_s(self, deployment: Deployment, slo: Limit) -> float:
        """Return how long a measurement near the capacity of a deployment that was screened takes, about."""
        calls_per_s = deployment.n_callers * 1e9 / float(self.screened[deployment.key].samples_ns.mean())
        calls_per_s = min(USUAL_UTILIZATION * calls_per_s, HIGHEST_RATE_PER_S)
        return self.runner.find_rate_time_s(deployment, calls_per_s * deployment.config.batch, slo.figure)

    def extend_budget(self, rows: Sequence[PlannedDeployment], slo: Limit) -> None:
        """Plan more time if the usual budget is too short to measure the capacities that are compared."""
        rows = mark_promising(rows)
        first = rank_rows(self.add_costs(rows))[0]
        compared = [self.start_measurement(rows[place], slo) for place in dict.fromkeys((first, DEFAULT_POSITION))]
        left_s = self.end_of(1.0) - self.runner.now_s()
        if compared[0].fit_into(left_s + self.options.longest_extension_s):
            self.plan_time(
                sum(USUAL_MEASUREMENTS * measurement.find_time_s(measurement.start_per_s) for measurement in compared)
            )

    def extend_for_default(self, default: PlannedDeployment, first: PlannedDeployment, slo: Limit) -> None:
        """Plan more time for the capacity of the default, if the one to be recommended can take less than was expected.

        Fewer requests arrive at a lower rate, so that measurements take longer. Without time for them, the interval of
        the default's capacity is so wide that nothing is proven.

        Args:
            default: The default deployment.
            first: The deployment that is to be recommended.
            slo: The target.
        """
        known = first.capacity
        if not self.options.longest_extension_s or not known or known.source != "measured" or known.estimate <= 0:
            return
        measurement = self.start_measurement(default, slo)
        self.plan_time(USUAL_MEASUREMENTS * measurement.find_time_s(min(measurement.start_per_s, known.estimate)))

    def plan_time(self, needed_s: float) -> None:
        """Add what is missing of a time to the budget, as far as it may be extended."""
        missing_s = max(needed_s - (self.end_of(1.0) - self.runner.now_s()), 0.0)
        self.extension_s = min(self.extension_s + missing_s, self.options.longest_extension_s)

    def start_measurement(self, row: PlannedDeployment, slo: Limit) -> CapacityMeasurement:
        """Return the measurement of the capacity of a row, which has not begun."""
        return CapacityMeasurement(self.runner, row, self.make_model(row.deployment, slo), slo)

    def evaluate(self, run: PairedRun) -> list[PlannedDeployment]:
        """Return a row for the default and for each finalist that did not fail."""
        confidence = share_error(len(run.sides) - len(run.failures) - 1)
        rows = []
        for position, deployment in enumerate((self.space.default, *self.finalists)):
            if position in run.failures or not run.blocks(position):
                continue
            speedup = compute_speedup(run, position, "throughput", confidence=confidence) if position else None
            rows.append(self.describe(run, position, deployment, speedup))
        return rows

    def add_batched(self, rows: list[PlannedDeployment], slo: Limit) -> None:
        """Add a row for the best deployment that puts waiting requests together.

        Its throughput is that of full batches. They are measured again in fresh launches, as all rows are.

        Raises:
            MeasureError: The default deployment fails beside it, or the background load ends.
        """
        self.observe("batching", 0, 1)
        found, measured = find_batched(self.runner, rows, slo, seed=self.opened.seed)
        self.screened |= {
            screened.deployment.key: screened for screened in measured if screened.deployment.config.batch > 1
        }
        for batched in found:
            plan = self.runner.plan_confirmation([batched.full], self.end_of(BATCHING_SHARE) - self.runner.now_s())
            run = self.runner.confirm([batched.full], plan, lambda done, total: self.observe("batching", done, total))
            if run.failures or not run.blocks(1):
                continue
            run = run.in_one_regime()
            speedup = compute_speedup(run, 1, "throughput", confidence=share_error(len(rows)))
            row = self.describe(run, 1, batched.full, speedup)
            self.batch_times[batched.deployment.key] = batched.times
            rows.append(msgspec.structs.replace(row, deployment=batched.deployment, capacity=batched.capacity))

    def describe(
        self, run: PairedRun, position: int, deployment: Deployment, speedup: Speedup | None
    ) -> PlannedDeployment:
        """Return the row of one side of the confirmation."""
        summary = summarize(run, position)
        self.durations[deployment.key] = self.samples_of(run, position)
        launches = [math.log(compute_pooled(rounds, position, "throughput")) for rounds in run.rounds_of(position)]
        throughput = t_interval(launches, DEFAULT_CONFIDENCE).exp()
        capacity = None
        error = half_width(speedup) if speedup else half_width(throughput)
        if self.options.slo:
            durations = [
                thin(np.concatenate([measured_round.blocks[position].samples_ns for measured_round in rounds]))
                for rounds in run.rounds_of(position)
            ]
            error = math.hypot(error, find_launch_error(deployment, durations, self.options.slo))
            capacity = predict_capacity(
                deployment, self.durations[deployment.key], self.options.slo, seed=self.opened.seed, error=error
            )
        return PlannedDeployment(
            deployment=deployment,
            throughput=describe_interval(throughput),
            ratio=describe_interval(speedup) if speedup else None,
            p50_ns=summary.p50_ns,
            p99_ns=summary.p99_ns,
            worst_p99_ns=summary.worst_p99_ns,
            cpu_cores=summary.cpu_ns_per_call * summary.calls_per_s / 1e9,
            cpu_ns_per_call=summary.cpu_ns_per_call,
            memory_bytes=summary.peak_bytes or 0,
            capacity=capacity,
            is_proven=bool(speedup and compare(speedup, 1) == "above"),
            cache_options=find_cache_options(deployment.config, self.opened.runner.sessions),
        )

    def samples_of(self, run: PairedRun, position: int) -> NDArray[np.int64]:
        """Return durations of calls of one side while all its callers are busy."""
        return thin(np.concatenate([block.samples_ns for block in run.blocks(position)]))

    def measure_capacities(self, rows: list[PlannedDeployment], slo: Limit) -> Iterator[list[PlannedDeployment]]:
        """Measure the capacity of the deployment that is about to be recommended, as far as the budget goes.

        Then that of the default deployment is measured, as both are compared. If another deployment takes the first
        place thereby, it is measured as well. A deployment that fails is removed from the rows.

        Yields:
            All rows, at first and after each measured capacity.

        Raises:
            MeasureError: The default deployment fails, or the background load ends.
        """
        rows = mark_promising(rows)
        measured: set[str] = set()
        while True:
            yield rows
            first = rank_rows(self.add_costs(rows))[0]
            places = (first, DEFAULT_POSITION)
            place = next((candidate for candidate in places if rows[candidate].deployment.key not in measured), None)
            if place is None:
                break
            reserved_s = 0.0
            if place != DEFAULT_POSITION and self.space.default.key not in measured:
                default = self.start_measurement(rows[DEFAULT_POSITION], slo)
                # One more than needed, as measurements may take longer than planned.
                reserved_s = (FEWEST_RATE_MEASUREMENTS + 1) * default.find_time_s(default.start_per_s)
            if place == DEFAULT_POSITION:
                self.extend_for_default(rows[place], rows[first], slo)
            try:
                found = self.measure_capacity(rows[place], slo, reserved_s)
            except MeasureError as error:
                rows = self.drop(rows, place, error)
                continue
            if found is None:
                if place == DEFAULT_POSITION:
                    self.check_default(rows[first], slo)
                break
            measured.add(rows[place].deployment.key)
            rows[place] = msgspec.structs.replace(rows[place], capacity=found, predicted_capacity=rows[place].capacity)
            rows = mark_promising(rows)

    def drop(self, rows: list[PlannedDeployment], place: int, error: MeasureError) -> list[PlannedDeployment]:
        """Return the rows without one, and note that it failed when requests arrived at a rate.

        Raises:
            MeasureError: The error, if the row is the default deployment, or if no deployment is the cause.
        """
        if place == DEFAULT_POSITION or isinstance(error, OF_HOST):
            raise error
        deployment, ratio = rows[place].deployment, rows[place].ratio
        self.dropped[deployment.key] = ScreenedDeployment(
            deployment=deployment,
            ratio=ratio.estimate if ratio else None,
            problem=f"it failed when requests arrived at a rate: {error.message}",
        )
        return [*rows[:place], *rows[place + 1 :]]

    def check_default(self, row: PlannedDeployment, slo: Limit) -> None:
        """Measure whether the default keeps the target at a rate that a row can take, as proven by measurements.

        This takes one measurement where its capacity would take several, at lower rates, which take longer.
        """
        if not row.deployment.batching or not row.capacity or row.capacity.source != "measured":
            return
        time_s = self.runner.find_rate_time_s(self.space.default, row.capacity.low, slo.figure)
        if self.runner.now_s() + time_s > self.end_of(1.0):
            return
        found = self.runner.measure_rate(self.space.default, row.capacity.low, slo.figure, DEFAULT_CONFIDENCE)
        if judge_limit(slo, found) == "no":
            self.beyond_default.add(row.deployment.key)

    def measure_capacity(self, row: PlannedDeployment, slo: Limit, reserved_s: float) -> Estimate | None:
        """Return the measured capacity of a row; None if there is no time.

        Args:
            row: The row.
            slo: The target.
            reserved_s: Time that is left for the capacity of the default deployment, if there is enough for both.

        Raises:
            MeasureError: The deployment fails, or the background load ends.
        """
        measurement = self.start_measurement(row, slo)
        end_s = self.end_of(1.0)
        left_s = end_s - self.runner.now_s()
        if not measurement.fit_into(left_s):
            return None
        each_s = measurement.find_time_s(measurement.start_per_s)
        # The capacity comes first. If there is time for more, the latency at the requested rate gets its share of it.
        (planned,) = self.add_costs([row])
        if self.options.rate_per_s and planned.replicas:
            of_replica_per_s = self.options.rate_per_s / planned.replicas
            rate_s = self.runner.find_rate_time_s(row.deployment, of_replica_per_s, "p99")
            # At a low rate, it takes longer than there is time.
            reserved_s += rate_s if rate_s + FEWEST_RATE_MEASUREMENTS * each_s <= left_s else 0.0
        end_s -= min(reserved_s, left_s - FEWEST_RATE_MEASUREMENTS * each_s)
        n_planned = min(int((end_s - self.runner.now_s()) / each_s), MOST_RATE_MEASUREMENTS)
        return measurement.run(end_s, lambda n_done: self.observe("capacity", n_done, max(n_planned, n_done)))

    def make_model(self, deployment: Deployment, slo: Limit) -> RateModel:
        """Return what is expected of a deployment at each rate. What was simulated for it once is kept."""
        key = deployment.key
        if key not in self.models:
            if times := self.batch_times.get(key):
                self.models[key] = make_batched_rate_model(deployment, times, slo, seed=self.opened.seed)
            else:
                self.models[key] = make_rate_model(deployment, self.durations[key], slo, seed=self.opened.seed)
        return self.models[key]

    def add_costs(self, rows: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
        """Return the rows with replicas and prices."""
        options = self.options
        return [add_cost(row, options.rate_per_s, options.headroom, options.price_per_hour) for row in rows]

    def add_latency(self, row: PlannedDeployment) -> PlannedDeployment:
        """Return a row with replicas, prices, and the latency at the requested rate."""
        (row,) = self.add_costs([row])
        rate_per_s = self.options.rate_per_s
        if not rate_per_s or not row.replicas:
            return row
        figure = self.options.figure
        if times := self.batch_times.get(row.deployment.key):
            assert figure
            of_replica_per_s = rate_per_s / row.replicas
            latency = predict_batched_latency(row.deployment, times, of_replica_per_s, figure, seed=self.opened.seed)
            return msgspec.structs.replace(row, at_rate=latency)
        samples_ns = self.durations[row.deployment.key]
        at_rate = predict_latency(row.deployment, samples_ns, rate_per_s / row.replicas, figure, seed=self.opened.seed)
        return msgspec.structs.replace(row, at_rate=at_rate)

    def measure_recommended(self, rows: list[PlannedDeployment]) -> None:
        """Measure the latency of the recommended row at the requested rate, and remove rows that fail there.

        Raises:
            MeasureError: The default deployment fails, or the background load ends.
        """
        while True:
            place = rank_rows(rows)[0]
            try:
                rows[place] = self.measure_latency(rows[place])
            except MeasureError as error:
                rows[:] = self.drop(rows, place, error)
            else:
                return

    def measure_latency(self, row: PlannedDeployment) -> PlannedDeployment:
        """Return a row with the measured latency at its part of the requested rate, if there is time.

        Of servers that put requests together, a queue that grows would not be noticed: theirs stays predicted.

        Raises:
            MeasureError: The deployment fails, or the background load ends.
        """
        predicted = row.at_rate
        if predicted is None or row.deployment.batching:
            return row
        takes_s = self.runner.find_rate_time_s(row.deployment, predicted.rate_per_s, "p99")
        if self.runner.now_s() + takes_s > self.end_of(1.0):
            return row
        self.observe("rate", 0, 1)
        found = self.runner.measure_latency(
            row.deployment, predicted.rate_per_s, self.options.figure, DEFAULT_CONFIDENCE
        )
        self.observe("rate", 1, 1)
        return msgspec.structs.replace(row, at_rate=found, predicted_at_rate=predicted)

    def describe_screened(self) -> tuple[ScreenedDeployment, ...]:
        """Return all deployments that were tried, in order."""
        found = [
            ScreenedDeployment(
                deployment=screened.deployment,
                ratio=None if math.isnan(screened.log_ratio) else math.exp(screened.log_ratio),
                problem=f"{screened.failure.title}: {screened.failure.message}" if screened.failure else "",
            )
            for key, screened in self.screened.items()
            if key not in self.dropped
        ]
        found += self.dropped.values()
        found += [
            ScreenedDeployment(deployment=deployment, problem=DOES_NOT_FIT) for deployment in self.runner.unfit.values()
        ]
        return tuple(found)
