"""Compares the canaries of a rollout with the other processes.

The sample is the process, not the call: calls of a process share its luck, and a process with many calls says little
more than one with fewer. For each process, one figure is computed from its calls, and the logarithms of these figures
are compared; see `ortune.fleet.mixed_model`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from ortune.apply.inside.canary import CANARY
from ortune.errors import UsageError
from ortune.fleet.canary_metrics import Metrics, ModelMetrics, ProcessMetrics, add_buckets, find_quantile
from ortune.fleet.mixed_model import Unit, estimate_effect
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.judge import RolloutVerdict, compare
from ortune.workload import FIGURES, Objective, list_figures

FEWEST_CALLS_OF_PROCESS = 20
"""Calls that a process must have made for its figure to count, unless it is a percentile."""

FEWEST_BEYOND = 10
"""The same for a percentile: calls that are beyond it."""

MOST_COMPARED_MODELS = 256
"""Models of a rollout at most. Each is compared over all processes."""

LEAST_TIME_SHARE = 0.01
"""Share of the time of all calls that a model must have to count in the total."""

MOST_RATE_RATIO = 1.5
"""Ratio of the calls per second in both arms from which a warning is given."""

SPLIT_ERROR = 0.001
"""Probability of a split at most as likely as the one that is seen, below which a warning is given."""


class ArmFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one arm.

    Attributes:
        n_processes: Number of processes that count.
        n_hosts: Number of their hosts.
        n_calls: Number of their calls.
        value: Their common figure, in ns: of all their calls together. None if there are none.
    """

    n_processes: int
    n_hosts: int
    n_calls: int
    value: float | None


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one model in both arms.

    Attributes:
        model: Name of the model; empty for all together.
        sha256: SHA-256 of its file; empty for all together.
        metric: The figure.
        canary: The canaries.
        control: The other processes.
        speedup: Figure of the others divided by that of the canaries: above 1, the canary is better. None if there are
            too few processes.
        n_left_out: Number of processes with too few calls.
    """

    model: str
    sha256: str
    metric: Objective
    canary: ArmFigures
    control: ArmFigures
    speedup: Interval | None
    n_left_out: int


class FleetComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison.

    Attributes:
        verdict: Whether the canary is better, by the deciding figure of all models together.
        reason: Why, as a sentence without its full stop.
        metric: The deciding figure.
        config: Id of the config.
        max_slowdown: Slowdown that the verdict `not_worse` excludes.
        rows: All figures of each model.
        total: All figures of all models together. The CPU time of a process is known only for all together.
        warnings: What may spoil the comparison, each as a sentence.
    """

    verdict: RolloutVerdict
    reason: str
    metric: Objective
    config: str
    max_slowdown: float
    rows: tuple[ComparisonRow, ...]
    total: tuple[ComparisonRow, ...]
    warnings: tuple[str, ...]


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    """What was assigned to an arm: a process, with the children that it forked after it had created sessions."""

    host: str
    is_canary: bool
    share: float
    parts: tuple[ProcessMetrics, ...]

    def of_model(self, key: str) -> list[ModelMetrics]:
        """Return the metrics of a model."""
        return [model for part in self.parts for model in part.models if key_of(model) == key]

    @property
    def n_calls(self) -> int:
        """Number of calls of all models."""
        return sum(part.n_calls for part in self.parts)


def compare_arms(
    metrics: Metrics,
    metric: Objective = "p50",
    *,
    config: str | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    max_slowdown: float = 0.03,
) -> FleetComparison:
    """Compare the canaries with the other processes.

    Args:
        metrics: What the processes wrote.
        metric: The figure that decides.
        config: Id of the config; None if there is only one.
        confidence: Coverage of the intervals.
        max_slowdown: Slowdown that must be excluded for the verdict `not_worse`.

    Raises:
        UsageError: There are no metrics, or those of several configs or of too many models.
    """
    chosen, parts = choose_config(metrics, config)
    processes = merge_forks(parts)
    models = find_models(processes)
    if len(models) > MOST_COMPARED_MODELS:
        raise UsageError(
            f"The metrics are of {len(models)} models, and at most {MOST_COMPARED_MODELS} can be compared.",
            "Write the metrics of each program to a folder of its own.",
        )
    latencies = [figure.name for figure in list_figures("fleet", (metric,)) if figure.is_latency]
    rows = [
        _compare(processes, name, _measure_models({key: 1.0}, name), confidence, keys=(key,), model=model)
        for key, model in models.items()
        for name in latencies
    ]
    weights = _find_weights(processes, models)
    total = [_compare(processes, name, _measure_models(weights, name), confidence, keys=weights) for name in latencies]
    total.append(_compare(processes, "cpu", _measure_cpu, confidence, keys=models))
    deciding = next(row for row in total if row.metric == metric)
    verdict = judge(deciding.speedup, max_slowdown)
    return FleetComparison(
        verdict=verdict,
        reason=_explain(deciding, verdict, max_slowdown),
        metric=metric,
        config=chosen,
        max_slowdown=max_slowdown,
        rows=tuple(rows),
        total=tuple(total),
        warnings=(*_find_doubts(processes, deciding), *metrics.faults),
    )


def choose_config(metrics: Metrics, config: str | None) -> tuple[str, list[ProcessMetrics]]:
    """Return the id of the config to compare, and its processes.

    Raises:
        UsageError: There are no metrics, or those of several configs and none is chosen.
    """
    known: dict[str, list[ProcessMetrics]] = {}
    for process in metrics.processes:
        known.setdefault(process.config, []).append(process)
    if not known:
        more = f" {metrics.faults[0]}" if metrics.faults else ""
        raise UsageError(
            f"There are no metrics that can be read.{more}",
            "Run: ortune apply CONFIG --canary 10% --metrics FOLDER -- COMMAND. Processes without calls write none.",
            option="folder",
        )
    listed = ", ".join(f"{name} ({len(own)} processes)" for name, own in known.items())
    if config is None and len(known) > 1:
        raise UsageError(f"There are metrics of several configs: {listed}.", "Choose one: {config=ID}.")
    if config is not None and config not in known:
        raise UsageError(f"{config}: there are no metrics of this config.", f"There are: {listed}.", option="config")
    return next((name, own) for name, own in known.items() if config in (None, name))


def merge_forks(parts: Iterable[ProcessMetrics]) -> list[_Process]:
    """Return what was assigned to the arms. Processes with sessions of a common parent count as one."""
    groups: dict[tuple[str, int, int], list[ProcessMetrics]] = {}
    for part in parts:
        groups.setdefault(part.unit, []).append(part)
    return [
        _Process(host=group[0].host, is_canary=group[0].arm == CANARY, share=group[0].share, parts=tuple(group))
        for group in groups.values()
    ]


def key_of(model: ModelMetrics) -> str:
    """Return what identifies a model."""
    return model.sha256 or model.name


def find_models(processes: Iterable[_Process]) -> dict[str, str]:
    """Return the names of all models by what identifies them."""
    return {key_of(model): model.name for process in processes for part in process.parts for model in part.models}


def judge(speedup: Interval | None, max_slowdown: float) -> RolloutVerdict:
    """Return whether the canary is better."""
    if speedup is None:
        return "inconclusive"
    place = compare(speedup, 1)
    if place != "unclear":
        return "better" if place == "above" else "worse"
    return "not_worse" if speedup.low >= 1 / (1 + max_slowdown) else "inconclusive"


def _explain(row: ComparisonRow, verdict: RolloutVerdict, max_slowdown: float) -> str:
    if verdict == "better":
        return "the whole interval lies above 1"
    if verdict == "worse":
        return "the whole interval lies below 1"
    if verdict == "not_worse":
        return f"the interval includes 1, and excludes a slowdown of more than {100 * max_slowdown:g}%"
    if row.speedup is not None:
        return "the interval includes 1, and a larger slowdown than is allowed: wait for more processes"
    for name, arm in (("canaries", row.canary), ("processes in the control arm", row.control)):
        if not arm.n_processes:
            needed = f" with at least {count_calls_needed(row.metric)} calls" if row.n_left_out else ""
            return f"there are no {name}{needed} yet"
    return "two processes are too few to know how much processes differ: wait for more, or restart some"


Measure = Callable[[Sequence[_Process]], float | None]
"""Returns a figure of processes together, in ns; None if they made too few calls."""


def _compare(
    processes: Sequence[_Process],
    metric: Objective,
    measure: Measure,
    confidence: float,
    *,
    keys: Collection[str],
    model: str = "",
) -> ComparisonRow:
    """Compare one figure of both arms.

    Args:
        processes: The processes.
        metric: The figure.
        measure: Measures it.
        confidence: Coverage of the interval.
        keys: What identifies the models whose calls it is about.
        model: Name of the model; empty for all together.
    """
    having = [process for process in processes if any(process.of_model(key) for key in keys)]
    units, able = [], []
    for process in having:
        value = measure([process])
        if value is not None:
            able.append(process)
            units.append(Unit(host=process.host, is_canary=process.is_canary, value=math.log(value)))
    arms = []
    for is_canary in (True, False):
        chosen = [process for process in able if process.is_canary == is_canary]
        arms.append(
            ArmFigures(
                n_processes=len(chosen),
                n_hosts=len({process.host for process in chosen}),
                n_calls=sum(m.n_calls for process in chosen for key in keys for m in process.of_model(key)),
                value=measure(chosen) if chosen else None,
            )
        )
    effect = estimate_effect(units, confidence)
    return ComparisonRow(
        model=model,
        sha256=next(iter(keys)) if model and model not in keys else "",
        metric=metric,
        canary=arms[0],
        control=arms[1],
        speedup=invert(effect).exp() if effect else None,
        n_left_out=len(having) - len(able),
    )


def invert(effect: Interval) -> Interval:
    """Return the interval of a logarithm with the opposite sign."""
    return Interval(estimate=-effect.estimate, low=-effect.high, high=-effect.low, confidence=effect.confidence)


def count_calls_needed(metric: Objective) -> int:
    """Return how many calls a process must have made for its figure to count."""
    point = FIGURES[metric].percentile
    # Round first: 1 - 0.99 is slightly more than 0.01.
    return FEWEST_CALLS_OF_PROCESS if point is None else math.ceil(round(FEWEST_BEYOND / (1 - point / 100), 6))


def _measure_models(weights: Mapping[str, float], metric: Objective) -> Measure:
    """Return what measures a figure of calls: the geometric mean over models.

    Args:
        weights: What identifies the models, with their weights.
        metric: A percentile, or the mean.
    """
    point = FIGURES[metric].percentile

    def measure(several: Sequence[_Process]) -> float | None:
        log_value = 0.0
        for key, weight in weights.items():
            models = [model for process in several for model in process.of_model(key)]
            n_calls = sum(model.n_calls for model in models)
            if n_calls < count_calls_needed(metric):
                return None
            if point is None:
                value = sum(model.total_ns for model in models) / n_calls
            else:
                value = find_quantile(add_buckets(model.counts for model in models), point / 100)
            log_value += weight * math.log(value)
        return math.exp(log_value)

    return measure


def _measure_cpu(several: Sequence[_Process]) -> float | None:
    """Return the CPU time of processes, by call."""
    n_calls = sum(process.n_calls for process in several)
    cpu_ns = sum(part.cpu_ns for process in several for part in process.parts)
    return cpu_ns / n_calls if n_calls >= FEWEST_CALLS_OF_PROCESS and cpu_ns else None


def _find_weights(processes: Sequence[_Process], models: Iterable[str]) -> dict[str, float]:
    """Return the share of each model in the time of all calls of both arms, without models that hardly matter."""
    times = {key: sum(m.total_ns for process in processes for m in process.of_model(key)) for key in models}
    total_ns = sum(times.values())
    kept = {key: time_ns for key, time_ns in times.items() if time_ns >= LEAST_TIME_SHARE * total_ns}
    return {key: time_ns / max(sum(kept.values()), 1) for key, time_ns in kept.items()}


def _find_doubts(processes: Sequence[_Process], row: ComparisonRow) -> list[str]:
    """Return what may spoil the comparison, each as a sentence."""
    canaries = [process for process in processes if process.is_canary]
    control = [process for process in processes if not process.is_canary]
    found = []
    if row.n_left_out:
        found.append(
            f"{row.n_left_out} of {len(processes)} processes made fewer than {count_calls_needed(row.metric)} calls "
            f"of a model, which {row.metric} needs, and do not count."
        )
    for model in {key_of(m): m for process in canaries for p in process.parts for m in p.models if m.n_own}.values():
        found.append(f"Sessions of {model.name} in canaries kept the program's own options: {model.reason}.")
    rates = [_mean_rate(arm) for arm in (canaries, control)]
    active = [_mean_rate(arm, weigh_ns=True) for arm in (canaries, control)]
    # A client that waits for each response sends more requests to a faster process. Both then have as many in progress.
    if all(rates) and is_different(*rates) and is_different(*active):
        found.append(
            f"The arms have different loads: {rates[0]:.4g} calls per second of each canary, and {rates[1]:.4g} of "
            "each other process. The figures may differ for this reason alone."
        )
    failures = [_share_failed(arm) for arm in (canaries, control)]
    if failures[0] > 2 * failures[1]:
        found.append(f"{failures[0]:.2%} of the calls of canaries failed, and {failures[1]:.2%} of the others.")
    if is_unlikely_split(len(canaries), len(processes), share := _mean_share(processes)):
        found.append(
            f"{len(canaries)} of {len(processes)} processes are canaries, and {share:.3g} of them should be. Processes "
            "of one arm may have crashed before they wrote metrics, or were restarted more often."
        )
    return found


def _mean_rate(processes: Sequence[_Process], *, weigh_ns: bool = False) -> float:
    """Return the calls of a process per time, in seconds: the geometric mean; 0 if there are none.

    Args:
        processes: The processes.
        weigh_ns: Whether each call counts as often as it takes nanoseconds.
    """
    rates = []
    for process in processes:
        wall_ns = max(part.wall_ns for part in process.parts)
        models = [model for part in process.parts for model in part.models]
        n = sum(model.total_ns if weigh_ns else model.n_calls for model in models)
        if n and wall_ns:
            rates.append(1e9 * n / wall_ns)
    return math.exp(sum(map(math.log, rates)) / len(rates)) if rates else 0.0


def is_different(one: float, other: float) -> bool:
    """Return whether two rates differ by more than loads usually do."""
    return not 1 / MOST_RATE_RATIO <= one / other <= MOST_RATE_RATIO


def _share_failed(processes: Sequence[_Process]) -> float:
    """Return the share of calls that failed; 0 without calls."""
    models = [model for process in processes for part in process.parts for model in part.models]
    n_failed = sum(model.n_failed for model in models)
    return n_failed / max(n_failed + sum(model.n_calls for model in models), 1)


def _mean_share(processes: Sequence[_Process]) -> float:
    return sum(process.share for process in processes) / len(processes)


def is_unlikely_split(n_canaries: int, n_processes: int, share: float) -> bool:
    """Return whether a split is hardly possible if each process is a canary with the same probability.

    Source: A. Fabijan et al., "Diagnosing Sample Ratio Mismatch in Online Controlled Experiments", KDD 2019.
    """
    from scipy.special import bdtr, bdtrc

    at_most = float(bdtr(n_canaries, n_processes, share))
    at_least = float(bdtrc(n_canaries - 1, n_processes, share)) if n_canaries else 1.0
    return 2 * min(at_most, at_least) < SPLIT_ERROR
