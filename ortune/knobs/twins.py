"""Finds choices that give the same optimized graph: such twins are the same program, and one candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from ortune.knobs.config import CPU
from ortune.knobs.dimension import Dimension, Rule, Skipped
from ortune.knobs.space import Candidate, SearchSpace, Twin

Space = TypeVar("Space", bound=SearchSpace)

WHY_NO_CHANGE = "its values give this model no optimized graph that others do not give"


def list_graph_variants(space: SearchSpace) -> tuple[Candidate, ...]:
    """Return the candidates that differ only in settings of the optimized graph, the baseline first.

    There are none if other providers than the CPU may run nodes: they compile graphs of their own.
    """
    if space.providers != (CPU,):
        return ()
    dimensions = [dimension for dimension in space.dimensions if dimension.knob.graph]
    names = {dimension.name for dimension in dimensions}
    kept = [
        msgspec.structs.replace(
            dimension,
            no_effect_when={name: labels for name, labels in dimension.no_effect_when.items() if name in names},
        )
        for dimension in dimensions
    ]
    return msgspec.structs.replace(space, dimensions=tuple(kept)).candidates


def merge_twins(space: Space, variants: Sequence[Candidate], digests: Sequence[str]) -> Space:
    """Return the space with one candidate for all settings that give the same optimized graph.

    Of these, it is the one with the fewest settings, and among those the one nearest to the default.

    Args:
        space: The space.
        variants: Its graph variants.
        digests: Digest of the graph of each; empty where it is not known.
    """
    groups: dict[str, list[Candidate]] = {}
    for variant, digest in zip(variants, digests, strict=True):
        if digest:
            groups.setdefault(digest, []).append(variant)
    dimensions = {dimension.name: dimension for dimension in space.dimensions}
    twins = []
    for group in groups.values():
        first = min(group, key=lambda variant: measure_distance(variant, dimensions))
        twins += [Twin(variant=variant, same_as=first) for variant in group if variant is not first]
    if not twins:
        return space
    merged = {twin.variant.config.key for twin in twins}
    kept = {item for variant in variants if variant.config.key not in merged for item in variant.labels.items()}
    left = tuple(keep_choices(dimension, kept) if dimension.knob.graph else dimension for dimension in space.dimensions)
    merged_space = msgspec.structs.replace(space, twins=tuple(twins))
    return msgspec.structs.replace(
        merged_space,
        dimensions=tuple(dimension for dimension in left if len(dimension.choices) > 1),
        skipped=(
            *space.skipped,
            *(Skipped(knob=dimension.knob, why=WHY_NO_CHANGE) for dimension in left if len(dimension.choices) == 1),
        ),
        rules=tuple(replace_labels(space.rules, merged_space)),
    )


def measure_distance(variant: Candidate, dimensions: Mapping[str, Dimension]) -> tuple[int, int, int]:
    """Return how far graph settings are from the default.

    The result is the number of settings that are tried one at a time, the number of all, and by how many values of a
    list they differ from the default.
    """
    steps = 0
    for name, label in variant.chosen.items():
        knob = dimensions[name].knob
        if label in knob.values and knob.default in knob.values:
            steps += abs(knob.values.index(label) - knob.values.index(str(knob.default)))
    return sum(dimensions[name].alone for name in variant.chosen), len(variant.chosen), steps


def keep_choices(dimension: Dimension, kept: set[tuple[str, str]]) -> Dimension:
    """Return a dimension with its default and the choices that are in `kept`, as pairs of name and label."""
    default, *others = dimension.choices
    found = [choice for choice in others if (dimension.name, choice.label) in kept]
    return msgspec.structs.replace(dimension, choices=(default, *found))


def replace_labels(rules: Sequence[Rule], space: SearchSpace) -> list[Rule]:
    """Return the rules with the settings that twins are tried as; without those that are the baseline then."""
    found: dict[tuple[tuple[str, str], ...], Rule] = {}
    for rule in rules:
        labels = space.merge_labels(rule.labels)
        if labels:
            found.setdefault(tuple(sorted(labels.items())), msgspec.structs.replace(rule, labels=labels))
    return list(found.values())
