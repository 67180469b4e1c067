"""Measure how good `ortune suggest` is: on recorded landscapes that its suggestions were not fitted to.

    python -m benchmarks.suggest [--replays 10]
    python -m benchmarks.suggest --live tiny_cnn,silero_vad,...

For each recorded landscape, the others are used for the fit, without those of the same model, of the same load, or of
the same host. `--live` measures the suggestion for other models on this host with `ortune bench`.

The methods are:

- default: ONNX Runtime's default.
- one thread: the first rule of the documentation, for every load.
- rules: the documentation's rules where they apply whatever the model (`find_reason`). Nothing is learned.
- means: the rule with the best gain in recordings of the same kind of situation, if the range of the gain is above 1.
- ridge: the same with a linear model of the gain of each rule: whether cores are saturated, number of nodes, width,
  quantization, control flow, share of heavy operators.
- ortune: `ortune suggest` itself: rules, unless recordings contradict them, and means of several models.
- search: `ortune search` with 60 s, by replay: the mean over all replays. A rate of requests cannot be replayed.

Each figure is the regret: how much slower the config truly is than the best of the landscape, in percent. A dash means
that there is no suggestion, so that the default is used.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy import stats
from threadpoolctl import threadpool_limits

from benchmarks.fit_suggest import Recorded, fit_effects, read_recorded
from benchmarks.host import write_header
from benchmarks.landscape import recorded_paths
from benchmarks.loads import HOG, cpu_quota
from benchmarks.replay import open_replay
from models.build import build, find_search_options
from ortune.knobs.rules import HEAVY
from ortune.tuning.effects import CONFIDENCE
from ortune.tuning.hints import measure_similarity
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.suggest import SAME_GRAPH, WORTH_SUGGESTING, SuggestedConfig, suggest

SEARCH_S = 60.0

ONE_THREAD = "intra_op_num_threads=1"

RIDGE_SIGMA = 0.3
"""Prior standard deviation of each coefficient of the ridge regression, in log-speedup."""

NOISES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
"""Standard deviations of the ridge regression to choose from."""

LIVE_LOADS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "one client": ((), None),
    "2 clients": (("--clients", "2"), None),
    "4 clients": (("--clients", "4"), None),
    "background load": (("--beside", HOG, "--objective", "mean"), None),
    "quota of 0.5": (("--objective", "mean"), 0.5),
    "quota of 1": (("--objective", "mean"), 1.0),
}
"""Options and CPU quota of the loads of live measurements."""

BUNDLED = Path(__file__).parent.parent / "models"

Method = Callable[[Recorded, Sequence[Recorded]], float | None]
"""Returns the true log-speedup of a suggestion, or None if there is none, given the recordings to learn from."""


def use_one_thread(target: Recorded, others: Sequence[Recorded]) -> float | None:
    """Suggest one thread, whatever the load."""
    return target.gains().get(ONE_THREAD)


def use_rules(target: Recorded, others: Sequence[Recorded]) -> float | None:
    """Suggest what the documentation recommends where it applies."""
    return look_up(target, suggest(target.landscape.space, target.situation, ()))


def use_means(target: Recorded, others: Sequence[Recorded]) -> float | None:
    """Suggest the rule with the best mean in comparable recordings."""
    gains = target.gains()
    known = [effect for effect in fit_effects(others) if effect.kind == target.situation.kind and effect.rule in gains]
    fitting = [effect for effect in known if effect.low > 0 and effect.mean >= WORTH_SUGGESTING]
    return gains[max(fitting, key=lambda effect: effect.mean).rule] if fitting else None


def use_ridge(target: Recorded, others: Sequence[Recorded]) -> float | None:
    """Suggest the rule with the best prediction of a Bayesian linear regression."""
    found: dict[str, float] = {}
    for rule in target.gains():
        rows = [other for other in others if rule in other.gains()]
        if not rows:
            continue
        x, y = np.array([list_features(other) for other in rows]), np.array([other.gains()[rule] for other in rows])
        prior = RIDGE_SIGMA**2 * np.eye(x.shape[1])
        noise = max(
            NOISES,
            key=lambda sigma: float(
                stats.multivariate_normal(np.zeros(len(y)), x @ prior @ x.T + sigma**2 * np.eye(len(y))).logpdf(y)
            ),
        )
        covariance = np.linalg.inv(x.T @ x / noise**2 + np.linalg.inv(prior))
        own = list_features(target)
        mean = float(own @ covariance @ x.T @ y / noise**2)
        sigma = math.sqrt(float(own @ covariance @ own) + noise**2)
        if mean - sigma * stats.norm.ppf((1 + CONFIDENCE) / 2) > 0 and mean >= WORTH_SUGGESTING:
            found[rule] = mean
    return target.gains()[max(found, key=found.__getitem__)] if found else None


def list_features(target: Recorded) -> np.ndarray:
    """Return what the ridge regression knows of a landscape."""
    traits = target.recording.about.traits
    heavy = sum(n for name, n in traits.ops.items() if name in HEAVY) / traits.n_nodes
    return np.array(
        [
            1.0,
            target.situation.is_saturated,
            math.log10(traits.n_nodes) - 2,
            traits.width > 1,
            traits.quantized,
            traits.control_flow,
            heavy,
        ]
    )


def use_all(target: Recorded, others: Sequence[Recorded]) -> float | None:
    """Suggest what `ortune suggest` would."""
    return look_up(target, suggest(target.landscape.space, target.situation, fit_effects(others)))


def look_up(target: Recorded, answer: object) -> float | None:
    """Return the true log-speedup of an answer of `suggest`, or None if it is no suggestion."""
    if not isinstance(answer, SuggestedConfig):
        return None
    return target.landscape.log_speedup(target.landscape.space.numbers[answer.config.key])


METHODS: dict[str, Method] = {
    "one thread": use_one_thread,
    "rules": use_rules,
    "means": use_means,
    "ridge": use_ridge,
    "ortune": use_all,
}


def name_load(target: Recorded) -> str:
    """Return the name of a load, for leaving out all recordings with it."""
    situation = target.situation
    parts = [f"{situation.n_clients} clients" if situation.n_clients > 1 else "one client"]
    parts += ["at a rate"] if situation.has_rate else []
    parts += ["quota"] if situation.quota else []
    parts += ["background load"] if situation.has_background_load else []
    return ", ".join(parts)


def name_host(target: Recorded) -> str:
    """Return the name of a host: that of its CPU."""
    return target.recording.about.host_text.partition(",")[0]


KEYS: dict[str, Callable[[Recorded], str]] = {
    "model": lambda target: target.model,
    "load": name_load,
    "host": name_host,
}
"""What is left out: all recordings for which this is the same."""


def find_regret(target: Recorded, gain: float | None) -> float:
    """Return how much slower than the best a config is, in percent, given its log-speedup; None is the default."""
    best = target.landscape.log_speedup(target.landscape.best)
    return 100 * math.expm1(best - (gain or 0.0))


def replay_searches(target: Recorded, n_replays: int) -> float:
    """Return the mean regret of searches in percent. They get no hints."""
    regrets = []
    with threadpool_limits(limits=1):
        for seed in range(n_replays):
            outcome = run_search(
                target.landscape.space, open_replay(target.landscape, seed=seed), SearchSettings(budget_s=SEARCH_S)
            )
            number = target.landscape.space.numbers[outcome.config.key]
            regrets.append(find_regret(target, target.landscape.log_speedup(number)))
    return float(np.mean(regrets))


def compare(recorded: Sequence[Recorded], key: Callable[[Recorded], str], searches: dict[str, float]) -> None:
    """Print the regret of each method on each landscape, and a summary.

    Args:
        recorded: All recordings.
        key: What is left out.
        searches: Regret of searches by landscape, of those that can be replayed.
    """
    names = ["default", *METHODS, "search"]
    gains: dict[str, list[float | None]] = {name: [] for name in METHODS}
    regrets: dict[str, list[float]] = {name: [] for name in names}
    print(f"{'landscape':22} " + " ".join(f"{name:>10}" for name in names))
    for target in recorded:
        others = [other for other in recorded if key(other) != key(target)]
        cells = [f"{find_regret(target, None):.1f}"]
        regrets["default"].append(find_regret(target, None))
        for name, method in METHODS.items():
            gain = method(target, others)
            gains[name].append(gain)
            regrets[name].append(find_regret(target, gain))
            cells.append("-" if gain is None else f"{regrets[name][-1]:.1f}")
        if target.name in searches:
            regrets["search"].append(searches[target.name])
        cells.append(f"{searches[target.name]:.1f}" if target.name in searches else "-")
        print(f"{target.name:22} " + " ".join(f"{cell:>10}" for cell in cells))
    print(f"{'mean':22} " + " ".join(f"{np.mean(regrets[name]):10.1f}" for name in names))
    none = [f"{sum(gain is None for gain in gains[name])}" for name in METHODS]
    print(f"{'no suggestion':22} " + " ".join(f"{cell:>10}" for cell in ["", *none]))
    worst = [f"{min(100 * math.expm1(gain or 0.0) for gain in gains[name]):+.1f}" for name in METHODS]
    print(f"{'worst, against default':22} " + " ".join(f"{cell:>10}" for cell in ["", *worst]))


def compare_histories(recorded: Sequence[Recorded]) -> None:
    """Print what the best config of the most similar other model would gain, as the history would suggest it."""
    print(f"\nThe best config of a similar model under the same load. ortune requires a similarity of {SAME_GRAPH}.")
    print(f"{'landscape':22} {'from':22} {'similarity':>10} {'true gain':>10}")
    for target in recorded:
        about = target.recording.about
        others = [
            other
            for other in recorded
            if other.model != target.model
            and other.situation == target.situation
            and other.landscape.log_speedup(other.landscape.best) >= WORTH_SUGGESTING
        ]
        if others:
            nearest = max(others, key=lambda other: measure_similarity(other.recording.about.traits, about.traits))
            config = nearest.landscape.space.candidates[nearest.landscape.best].config
            number = target.landscape.space.numbers.get(config.key)
            gain = f"{100 * math.expm1(target.landscape.log_speedup(number)):+.1f} %" if number else "not in the space"
            similarity = measure_similarity(nearest.recording.about.traits, about.traits)
            print(f"{target.name:22} {nearest.name:22} {similarity:10.2f} {gain:>10}")


def measure_live(name: str) -> None:
    """Print the measured speedup of the suggestion for a model under each load."""
    bundled = BUNDLED / f"{name}.onnx"
    model = str(bundled if bundled.is_file() else build(name))
    for title, (options, quota) in LIVE_LOADS.items():
        with cpu_quota(quota) as prefix:
            if prefix is None:
                continue
            start = [*prefix, sys.executable, "-P", "-m", "ortune"]
            answer = run_json([*start, "suggest", model, *options, "--json", "--no-history"])
            if answer["config"] is None:
                print(f"{name:16} {title:16} no suggestion", flush=True)
                continue
            values = {**answer["config"].get("session_options", {}), **answer["config"].get("session_config", {})}
            text = ",".join(f"{knob}={value}" for knob, value in values.items())
            inputs = find_search_options(name)
            found = run_json([*start, "bench", model, *inputs, *options, "--json", "--set", text])
        speedup = found["rows"][1]["speedup"]
        print(
            f"{name:16} {title:16} {text}: {speedup['estimate']:.2f} [{speedup['low']:.2f}, {speedup['high']:.2f}], "
            f"expected {answer['gain']['low']:.2f} to {answer['gain']['high']:.2f}, {found['noise']['regime']}",
            flush=True,
        )


def run_json(command: Sequence[str]) -> dict[str, Any]:
    """Return the JSON that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replays", type=int, default=10, help="searches of each landscape")
    parser.add_argument("--live", metavar="MODEL,...", help="measure the suggestions for these models on this host")
    arguments = parser.parse_args()
    if arguments.live:
        print(f"{write_header()}\nspeedup with its 95 % interval, what was expected, and the regime of the blocks")
        for name in arguments.live.split(","):
            measure_live(name)
        return
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    recorded = read_recorded(recorded_paths())
    hosts = {entry.recording.about.host_text for entry in recorded}
    print(write_header())
    searches = {
        entry.name: replay_searches(entry, arguments.replays) for entry in recorded if not entry.landscape.has_queue
    }
    for what, key in KEYS.items():
        print(f"\nRegret in percent; learned without recordings of the same {what}.")
        compare(recorded, key, searches)
    compare_histories(recorded)
    print(f"\n{len(recorded)} recordings of {len({entry.model for entry in recorded})} models, on:")
    for text in sorted(hosts):
        print(f"  {text}")


if __name__ == "__main__":
    main()
