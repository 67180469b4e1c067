"""Applies what the user says about knobs to the dimensions: values to try, fixed values, and the only knobs to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ortune.errors import UsageError
from ortune.knobs import ids
from ortune.knobs.affinity import split_affinity
from ortune.knobs.catalogue import knob_of
from ortune.knobs.default_dimensions import is_newer
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Skipped
from ortune.knobs.knob import Knob, Value
from ortune.knobs.providers import find_provider
from ortune.knobs.space_options import SpaceOptions
from ortune.knobs.thread_dimensions import SPINNING_OFF

PARENTS = {
    ids.INTRA_OP_SPIN_DURATION: ids.INTRA_OP_ALLOW_SPINNING,
    ids.INTRA_OP_SPIN_BACKOFF: ids.INTRA_OP_ALLOW_SPINNING,
    ids.INTER_OP_SPIN_DURATION: ids.INTER_OP_ALLOW_SPINNING,
    ids.INTER_OP_SPIN_BACKOFF: ids.INTER_OP_ALLOW_SPINNING,
    ids.INTER_OP_ALLOW_SPINNING: ids.EXECUTION_MODE,
    ids.INTER_OP_NUM_THREADS: ids.EXECUTION_MODE,
}
"""Knobs that have an effect only under some choices of another one."""


def apply_request(found: Sequence[Dimension | Skipped], options: SpaceOptions) -> list[Dimension | Skipped]:
    """Return the dimensions with what the user says about knobs applied.

    Raises:
        UsageError: A knob in `only` would not be tried, or the installed onnxruntime does not support a knob.
    """
    check_versions(options)
    dimensions = {dimension.name: dimension for dimension in found if isinstance(dimension, Dimension)}
    skipped = [skipped for skipped in found if isinstance(skipped, Skipped) and skipped.knob.id not in options.tune]
    for name, values in options.tune.items():
        dimensions[name] = _requested_dimension(knob_of(name), values, dimensions, options)
    kept: list[Dimension] = []
    for dimension in dimensions.values():
        name = dimension.name
        if name in options.fix:
            skipped.append(Skipped(knob=dimension.knob, why=f"fixed to {options.fix[name]}"))
        elif options.only and name not in options.only and name != ids.BATCH:  # the user gave its values
            skipped.append(Skipped(knob=dimension.knob, why="not among the knobs to try"))
        else:
            kept.append(dimension)
    # A knob that is no longer a dimension has the value of the base.
    fixed = {name: _label_of(dimensions[name], value) for name, value in options.fix.items() if name in dimensions}
    kept = _drop_ineffective(kept, fixed, skipped, options)
    for name in options.only:
        if not any(dimension.name == name for dimension in kept):
            raise _explain_untried(name, dimensions, skipped)
    return [*kept, *skipped]


def _explain_untried(name: str, dimensions: Mapping[str, Dimension], skipped: Sequence[Skipped]) -> UsageError:
    """Return the error for a knob in `only` that would not be tried."""
    why = next((f": {skipped_knob.why}" for skipped_knob in skipped if skipped_knob.knob.id == name), "")
    has_values = name in dimensions and len(dimensions[name].choices) > 1
    return UsageError(
        f"{name}: the search would try no values of this knob{why}.",
        "Leave it out, or add the other knob to {only}."
        if has_values
        else f"Give the values to try: {{tune={name}=VALUE,VALUE}}",
        option="only",
    )


def only_under(dimension: Dimension, provider: str, options: SpaceOptions) -> Dimension:
    """Return the dimension with an effect only under one execution provider."""
    if len(options.providers) == 1:
        return dimension
    labels = {name: find_provider(name).alias for name in options.providers} | {options.providers[0]: DEFAULT_LABEL}
    others = frozenset(label for name, label in labels.items() if name != provider)
    return msgspec.structs.replace(dimension, no_effect_when={**dimension.no_effect_when, ids.PROVIDERS: others})


def _drop_ineffective(
    dimensions: Sequence[Dimension], fixed: Mapping[str, str], skipped: list[Skipped], options: SpaceOptions
) -> list[Dimension]:
    """Return the dimensions that can have an effect; add the others to `skipped`.

    Args:
        dimensions: The dimensions to choose from.
        fixed: Labels of knobs that the user fixed.
        skipped: Knobs that are not tried.
        options: What the space is for.
    """
    result = []
    names = {dimension.name for dimension in dimensions}
    counts = _thread_labels(dimensions, options)
    for dimension in dimensions:
        why = "no value to try except the default"
        if dimension.name == ids.INTRA_OP_THREAD_AFFINITIES:
            dimension = _fitting(dimension, counts, requested=dimension.name in options.tune)
            why = f"no value to try for the values of {ids.INTRA_OP_NUM_THREADS}"
        if len(dimension.choices) < 2:
            skipped.append(Skipped(knob=dimension.knob, why=why))
            names.discard(dimension.name)
            continue
        obstacles = [
            name
            for name, labels in dimension.no_effect_when.items()
            if name not in names and fixed.get(name, DEFAULT_LABEL) in labels
        ]
        if obstacles:
            skipped.append(Skipped(knob=dimension.knob, why=f"without effect, given the value of {obstacles[0]}"))
        else:
            conditions = {name: labels for name, labels in dimension.no_effect_when.items() if name in names}
            result.append(msgspec.structs.replace(dimension, no_effect_when=conditions))
    return result


def check_versions(options: SpaceOptions) -> None:
    """Check that the installed onnxruntime supports the knobs and the values that the user names.

    Raises:
        UsageError: It does not.
    """
    upgrade = "It requires onnxruntime {}. Upgrade the package, such as onnxruntime or onnxruntime-gpu."
    given = {"tune": options.tune, "fix": {name: (value,) for name, value in options.fix.items()}}
    for option, name, values in ((option, *item) for option, knobs in given.items() for item in knobs.items()):
        knob = knob_of(name)
        if is_newer(knob.since, options.onnxruntime):
            raise UsageError(
                f"{name}: onnxruntime {options.onnxruntime} does not support this knob and would silently ignore it.",
                upgrade.format(knob.since),
                option=option,
            )
        for value in values:
            since = knob.values_since.get(str(value), "")
            if is_newer(since, options.onnxruntime):
                raise UsageError(
                    f"{name}={value}: onnxruntime {options.onnxruntime} does not have this value.",
                    upgrade.format(since),
                    option=option,
                )


def _thread_labels(dimensions: Sequence[Dimension], options: SpaceOptions) -> frozenset[str]:
    """Return the labels of `intra_op_num_threads` that candidates can have."""
    name = ids.INTRA_OP_NUM_THREADS
    if name in options.fix:
        return frozenset({str(options.fix[name])})
    return frozenset(label for dimension in dimensions if dimension.name == name for label in dimension.labels)


def _fitting(dimension: Dimension, counts: frozenset[str], *, requested: bool) -> Dimension:
    """Return the affinities whose strings fit a number of threads that candidates can have.

    Raises:
        UsageError: One that the user requested does not.
    """
    kept = []
    for choice in dimension.choices[1:]:
        values = {label: text for label, text in choice.value_by.items() if label in counts}
        if values:
            kept.append(msgspec.structs.replace(choice, value_by=values))
        elif requested:
            needed = next(iter(choice.value_by))
            raise UsageError(
                f"{dimension.name}={choice.label}: this affinity is for {needed} threads; no candidate has as many.",
                "An affinity has one group per worker, which is one fewer than threads. "
                f"Add {{tune={ids.INTRA_OP_NUM_THREADS}={needed}}}.",
                option="tune",
            )
    return msgspec.structs.replace(dimension, choices=(DEFAULT_CHOICE, *kept))


def _label_of(dimension: Dimension, value: Value) -> str:
    """Return the label of a value: that of a choice if there is one."""
    return next((choice.label for choice in dimension.choices if choice.value == value), str(value))


def _requested_dimension(
    knob: Knob, values: Sequence[Value], known: Mapping[str, Dimension], options: SpaceOptions
) -> Dimension:
    """Return the dimension of the values that the user wants to try."""
    why = "requested"
    choices = []
    for value in values:
        if value == knob.default:
            continue
        if knob.id == ids.INTRA_OP_THREAD_AFFINITIES:
            # An affinity string fits one number of threads: it has one group fewer.
            n_threads = len(split_affinity(str(value))) + 1
            choices.append(Choice(label=str(value), why=why, value_by={str(n_threads): str(value)}))
        else:
            choices.append(Choice(label=str(value), why=why, value=value))
    before = known.get(knob.id)
    conditions = before.no_effect_when if before else _conditions_of(knob, known)
    dimension = Dimension(knob=knob, choices=(DEFAULT_CHOICE, *choices), no_effect_when=conditions)
    return only_under(dimension, knob.provider, options) if knob.provider else dimension


def _conditions_of(knob: Knob, known: Mapping[str, Dimension]) -> Mapping[str, frozenset[str]]:
    """Return the choices under which a knob has no effect that is not tried by default."""
    parent = known.get(PARENTS.get(knob.id, ""))
    if parent is None:
        return {}
    label = DEFAULT_LABEL if parent.name == ids.EXECUTION_MODE else SPINNING_OFF.label
    return {**parent.no_effect_when, parent.name: frozenset({label})}
