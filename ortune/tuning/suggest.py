"""Suggests settings without measuring: from earlier searches on this host, the documentation, and recorded landscapes.

A suggestion is not proven. Searches try it first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from ortune.knobs import Candidate, Config, SearchSpace, describe, ids
from ortune.knobs.dimension import Rule
from ortune.model import Traits
from ortune.numbers import format_quota
from ortune.sanitize import printable
from ortune.tuning.effects import CONFIDENCE, Effect
from ortune.tuning.hints import PastSearch, measure_similarity
from ortune.tuning.situation import MEAN, THREADS, Situation

WORTH_SUGGESTING = math.log(1.02)
"""Smallest expected gain of a suggestion, as a log-ratio."""

MIN_MODELS = 2
"""Number of models of which there must be recordings, if nothing but recordings speaks for a rule."""

SAME_GRAPH = 0.95
"""Minimum similarity of the model of an earlier search. A search's hints need far less, as they are measured."""

SMALLEST_PART_OF_QUOTA = 0.9
LARGEST_PART_OF_POOL = 0.5
"""Share of the quota that a pool of whole threads must use, and share of the default pool that it may have at most."""

CONFIDENCE_OF_SEARCHES = 0.95

Basis = Literal["history", "recordings", "documentation"]


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The expected speedup.

    Attributes:
        low: Lower end of its range.
        high: Upper end of its range.
        confidence: Probability with which the speedup lies in that range.
    """

    low: float
    high: float
    confidence: float


class SuggestedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that are expected to be faster than ONNX Runtime's default.

    Attributes:
        config: The settings.
        reasons: Why each setting is suggested, by its id.
        basis: What speaks for it: an earlier search on this host, recordings, or the documentation alone.
        evidence: The same in a sentence.
        gain: The expected speedup, or None if nothing similar was recorded.
        recordings: Names of the recorded landscapes that the expectation rests on.
    """

    config: Config
    reasons: dict[str, str]
    basis: Basis
    evidence: str
    gain: Gain | None = None
    recordings: tuple[str, ...] = ()


class NoSuggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is expected to be faster than the default with reasonable confidence.

    Attributes:
        why: Why not, in a sentence or two.
        hint: What to ask instead, in a sentence; empty if there is nothing.
    """

    why: str
    hint: str = ""


def suggest(
    space: SearchSpace,
    situation: Situation,
    effects: Sequence[Effect],
    *,
    traits: Traits | None = None,
    past: Sequence[PastSearch] = (),
) -> SuggestedConfig | NoSuggestion:
    """Return settings from a search space that are expected to be faster than the default, or why there are none.

    Args:
        space: The search space.
        situation: How the model is used.
        effects: What recordings say.
        traits: Traits of the model's graph, to compare with those of earlier searches.
        past: Earlier searches on this host with this load and objective, the most similar model first.
    """
    if not space.base.is_default or any(dimension.name == ids.PROVIDERS for dimension in space.dimensions):
        return NoSuggestion(
            why="Suggestions are for ONNX Runtime's default on the CPU provider, without other providers or fixed "
            "settings."
        )
    if traits and (found := _find_past(space, situation, traits, past)):
        return found
    of_kind = {effect.rule: effect for effect in effects if effect.kind == situation.kind}
    best: tuple[float, SuggestedConfig] | None = None
    for rule in space.rules:
        candidate = space.select(rule.labels)
        if candidate.config.is_default or candidate.config.key not in space.numbers:
            continue
        known = of_kind.get(situation.name_rule(candidate))
        effect = known if known and known.covers(situation) else None
        reason = find_reason(rule, situation, space.n_default_threads)
        if (reason and not is_contradicted(effect)) or is_recommended(effect):
            expected = effect.mean if effect else WORTH_SUGGESTING
            if best is None or expected > best[0]:
                best = expected, _describe(space, candidate, rule, effect, reason)
    if best:
        return best[1]
    hint = ""
    of_mean = msgspec.structs.replace(situation, objective=MEAN)
    if of_mean != situation and isinstance(other := suggest(space, of_mean, effects), SuggestedConfig):
        hint = f"With {{objective=mean}}, there is a suggestion: {describe(other.config)}."
    return NoSuggestion(why=explain_none(space, situation, of_kind), hint=hint)


def find_reason(rule: Rule, situation: Situation, n_default_threads: int) -> str:
    """Return why a rule applies in a situation, whatever the model; empty if that depends on the model.

    With one core for each call, further threads have no core of their own. Without them, the mean of all calls is
    lower. The median may be higher: the typical call may have found an idle core, or some of the quota left.
    """
    if situation.objective != MEAN or situation.has_rate:
        return ""
    clients = count(situation.n_clients, "client")
    quota = situation.quota
    if dict(rule.labels) == {THREADS: "1"} and situation.is_saturated:
        cores = count(situation.n_cores, "core")
        where = f"within a quota of {format_quota(quota)}" if quota else f"on {cores}"
        beside = ", of which a background load takes at least one" if situation.has_background_load else ""
        return (
            f"{clients} {where}{beside}: at most one core for each call, so further threads only wait, or take CPU "
            "time from other calls"
        )
    if quota and quota > 1 and situation.n_clients == 1 and not situation.has_background_load:
        n_fitting = math.floor(quota)
        fits = n_fitting >= SMALLEST_PART_OF_QUOTA * quota and n_fitting <= LARGEST_PART_OF_POOL * n_default_threads
        if fits and dict(rule.labels) == {THREADS: str(n_fitting)}:
            return (
                f"the quota is {format_quota(quota)}, and the default pool has {n_default_threads} threads, which use "
                "it up early and are then throttled"
            )
    return ""


def is_contradicted(effect: Effect | None) -> bool:
    """Return whether recordings speak against a rule."""
    return effect is not None and effect.mean < WORTH_SUGGESTING


def is_recommended(effect: Effect | None) -> bool:
    """Return whether recordings of several models are enough to suggest a rule."""
    return effect is not None and len(effect.models) >= MIN_MODELS and effect.low > 0 and not is_contradicted(effect)


def explain_none(space: SearchSpace, situation: Situation, of_kind: Mapping[str, Effect]) -> str:
    """Return why there is no suggestion.

    Args:
        space: The search space.
        situation: How the model is used.
        of_kind: Effects in this kind of situation, by rule.
    """
    known = {
        situation.name_rule(candidate): candidate.label
        for rule in space.rules
        if not (candidate := space.select(rule.labels)).config.is_default
    }
    effects = [effect for name, effect in of_kind.items() if name in known and effect.covers(situation)]
    if not known:
        return "None of the documentation's recommendations changes anything on this host."
    if not effects:
        name = "mean latency or throughput" if situation.objective == MEAN else situation.objective
        return f"There are no recordings of such a load for {name} on {count(situation.n_cores, 'core')}."
    effect = max(effects, key=lambda item: item.most)
    return (
        f"With such a load, the best settings depend on the model. Of the documentation's recommendations, "
        f"{known[effect.rule]} gained most, but its speedup was {math.exp(effect.least):.2f}x to "
        f"{math.exp(effect.most):.2f}x in {len(effect.recordings)} recordings."
    )


def _describe(
    space: SearchSpace, candidate: Candidate, rule: Rule, effect: Effect | None, reason: str
) -> SuggestedConfig:
    reasons = list_reasons(space, candidate, rule.why)
    if reason:
        reasons[THREADS] = reason
    if not effect:
        evidence = "the documentation of ONNX Runtime; no such load was recorded on a host of this size"
        return SuggestedConfig(config=candidate.config, reasons=reasons, basis="documentation", evidence=evidence)
    least, most = math.exp(effect.least), math.exp(effect.most)
    gains = f"{least:.2f}x" if len(effect.recordings) == 1 else f"{least:.2f}x to {most:.2f}x"
    evidence = f"{gains} in {count(len(effect.recordings), 'recording')} of such loads on {describe_cores(effect)}"
    evidence += f", all of {effect.models[0]}" if len(effect.models) == 1 else f", of {len(effect.models)} models"
    return SuggestedConfig(
        config=candidate.config,
        reasons=reasons,
        basis="recordings",
        evidence=evidence,
        gain=Gain(low=math.exp(effect.low), high=math.exp(effect.high), confidence=CONFIDENCE),
        recordings=effect.recordings,
    )


def count(n: int, noun: str) -> str:
    """Return a number with its noun, such as `2 cores`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def describe_cores(effect: Effect) -> str:
    """Return the sizes of the recorded hosts, such as `2 cores`."""
    least, most = effect.n_cores
    return count(most, "core") if least == most else f"{least} to {most} cores"


def list_reasons(space: SearchSpace, candidate: Candidate, why: str) -> dict[str, str]:
    """Return the reason for each setting of a candidate; `why` for those that no choice explains."""
    labels = candidate.chosen
    choices = {
        dimension.name: dimension.choice(labels[dimension.name])
        for dimension in space.dimensions
        if dimension.name in labels
    }
    return {name: choices[name].why if name in choices else why for name in candidate.config.settings}


def _find_past(
    space: SearchSpace, situation: Situation, traits: Traits, past: Sequence[PastSearch]
) -> SuggestedConfig | None:
    """Return the result of an earlier search for the same graph, or a very similar one, or None.

    Its range is stated only for a graph with as many nodes of each operator.
    """
    for search in past:
        if (
            search.configs
            and search.speedup
            and search.speedup[0] > 1
            and search.has_background_load == situation.has_background_load
            and measure_similarity(search.traits, traits) >= SAME_GRAPH
            and (number := space.numbers.get(search.configs[0].key))
        ):
            candidate = space.candidates[number]
            low, high = search.speedup
            is_same = search.traits.ops == traits.ops
            graph = "the same graph" if is_same else "a very similar graph"
            shapes = f", with inputs {printable(search.inputs)}" if search.inputs else ""
            return SuggestedConfig(
                config=candidate.config,
                reasons=list_reasons(space, candidate, "an earlier search found it"),
                basis="history",
                evidence=f"an earlier search on this class of host, for {graph} and this load{shapes}",
                gain=Gain(low=low, high=high, confidence=CONFIDENCE_OF_SEARCHES) if is_same else None,
            )
    return None
