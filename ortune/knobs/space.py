"""The search space: dimensions, and the valid and distinct candidates that they make."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ortune.knobs import ids
from ortune.knobs.canonical import canonical, in_order
from ortune.knobs.config import DEFAULT, Config, Plugin, Provider
from ortune.knobs.dimension import DEFAULT_LABEL, Choice, Dimension, Rule, Skipped, choose_alone
from ortune.knobs.titles import describe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_SPACE_CANDIDATES = 20_000

WON = 0.01
"""Expected gain, as a log-ratio, from which on a choice that was tried alone is combined with others."""

ENTRIES = ("session_options", "session_config", "run_options", "run_config", "environment")
"""Fields of a config that hold settings by name."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A config to try.

    Attributes:
        config: The config in canonical form.
        why: Why it is worth trying: a clause for each choice that is not the default.
        labels: The choices that make it, by dimension. Other choices may make an equal config.
    """

    config: Config
    why: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """A short description, such as `intra threads=2 · affinity=2`."""
        return describe(self.config)

    @property
    def chosen(self) -> dict[str, str]:
        """The labels that are not the default."""
        return {name: label for name, label in self.labels.items() if label != DEFAULT_LABEL}


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the optimized graph with which a model is the same program as with others.

    Attributes:
        variant: The settings.
        same_as: Those that are tried in their place.
    """

    variant: Candidate
    same_as: Candidate


def _number_of(choice: Choice) -> int:
    """Return the number of a choice; 0 for the default."""
    return choice.value if isinstance(choice.value, int) else 0


Choose = Callable[[Dimension], str]
"""Given a dimension, returns the label of one of its choices."""


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The dimensions of a search.

    Attributes:
        dimensions: The dimensions, in an order in which each depends only on earlier ones.
        n_default_threads: Number of threads of ONNX Runtime's default pool on this host.
        skipped: Knobs that are not tried for this model or host, each with the reason.
        rules: What is tried first.
        base: What all candidates have in common, and what they are compared with: ONNX Runtime's default, unless the
            user fixes a knob or chooses another provider than the CPU.
        plugins: Plugins that contain the providers that are not part of onnxruntime, by the provider's name.
        twins: Settings of the optimized graph that are the same program as others.
    """

    dimensions: tuple[Dimension, ...]
    n_default_threads: int
    skipped: tuple[Skipped, ...] = ()
    rules: tuple[Rule, ...] = ()
    base: Config = DEFAULT
    plugins: Mapping[str, Plugin] = {}
    twins: tuple[Twin, ...] = ()

    @property
    def fitting(self) -> Candidate | None:
        """The default with a thread pool that fits this host; None if ONNX Runtime's own fits, or none can be set."""
        fitting = next((self.select(rule.labels) for rule in self.rules if rule.fits_host), None)
        return fitting if fitting and fitting.config.key in self.numbers and fitting.config != self.base else None

    @property
    def _fixed_count(self) -> str:
        """The number of intra-op threads that the user fixed, as a label."""
        return str(self.base.session_options.get(ids.INTRA_OP_NUM_THREADS, ""))

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers to choose from."""
        return tuple(chain[0][0] for chain in self.chains)

    @property
    def chains(self) -> tuple[tuple[Provider, ...], ...]:
        """The same, each with its options and its fallbacks."""
        others = [
            choice.value
            for dimension in self.dimensions
            if dimension.name == ids.PROVIDERS
            for choice in dimension.choices[1:]
        ]
        return (self.base.providers, *(chain for chain in others if isinstance(chain, tuple)))

    def draw(self, choose: Choose, *, listed: bool = False) -> Candidate:
        """Make a candidate by calling `choose` for each dimension that has an effect, in order.

        Args:
            choose: Chooses.
            listed: Whether it is one that the space lists, without choices that are only combined once they have won.
        """
        labels: dict[str, str] = {}
        config = self.base
        why = []
        taken = ""
        for dimension in self.dimensions:
            is_combined = bool(dimension.of) and not listed
            if dimension.has_no_effect(labels):
                continue
            if dimension.alone and taken and not is_combined and not dimension.requires(taken):
                continue
            choice = dimension.choice(choose(dimension))
            value: object = choice.value
            if choice.value_by:
                count = labels.get(ids.INTRA_OP_NUM_THREADS, self._fixed_count)
                value = choice.value_by.get(count, value)
            # An affinity that does not fit the number of threads is the default.
            labels[dimension.name] = DEFAULT_LABEL if value is None else choice.label
            if value is not None:
                knob = dimension.knob
                config = config.with_setting(knob.where, knob.name, value, knob.provider)
                why.append(choice.why)
                taken = dimension.name if dimension.alone else taken
        if (merged := self.merge_labels(labels)) != labels:
            return self.draw(lambda dimension: merged.get(dimension.name, DEFAULT_LABEL), listed=listed)
        config = self._normalize(config)
        if not self.base.is_default:
            # What the user fixed is kept even if it has no effect here.
            fixed = {name: in_order({**getattr(config, name), **getattr(self.base, name)}) for name in ENTRIES}
            config = msgspec.structs.replace(config, **fixed)
        return Candidate(config=config, why=tuple(why), labels=labels)

    def merge_labels(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return labels with the settings that twins are tried as; the labels themselves if they have no twin."""
        if not self.twins:
            return labels
        own = frozenset(item for item in labels.items() if item[0] in self._merged_names and item[1] != DEFAULT_LABEL)
        same_as = self._same_as.get(own)
        if same_as is None:
            return labels
        return {**{name: label for name, label in labels.items() if name not in self._merged_names}, **same_as}

    def _merge_settings(self, config: Config) -> Config:
        """Return a config with the settings that twins are tried as."""
        own = self._settings_of_twins(config)
        twins = (twin for twin in self.twins if self._settings_of_twins(twin.variant.config) == own)
        twin = next(twins, None)
        if twin is None:
            return config
        merged = self._settings_of_twins(twin.same_as.config)
        for field in ("session_options", "session_config"):
            others = {name: value for name, value in getattr(config, field).items() if name not in own}
            tried = {name: value for name, value in getattr(twin.same_as.config, field).items() if name in merged}
            config = msgspec.structs.replace(config, **{field: others | tried})
        return self._normalize(config)

    def _settings_of_twins(self, config: Config) -> dict[str, object]:
        """Return the settings in which twins differ."""
        settings = {**config.session_options, **config.session_config}
        return {name: value for name, value in settings.items() if name in self._merged_names}

    @functools.cached_property
    def _same_as(self) -> Mapping[frozenset[tuple[str, str]], Mapping[str, str]]:
        """The labels that twins are tried as, by their own labels."""
        return {frozenset(twin.variant.chosen.items()): twin.same_as.chosen for twin in self.twins}

    @functools.cached_property
    def _merged_names(self) -> frozenset[str]:
        """Names of the dimensions in which twins differ."""
        return frozenset(name for twin in self.twins for name in twin.variant.labels)

    def _normalize(self, config: Config) -> Config:
        """Return a config without settings that have no effect."""
        return canonical(config, self.n_default_threads).with_plugins(self.plugins)

    @functools.cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All distinct candidates, the baseline first.

        If there are more than `MAX_SPACE_CANDIDATES`, those that differ from the baseline in the fewest dimensions.
        """
        found = tuple(itertools.islice(self._enumerate(), MAX_SPACE_CANDIDATES + 1))
        if len(found) > MAX_SPACE_CANDIDATES:
            found = tuple(itertools.islice(self._enumerate(nearest_first=True), MAX_SPACE_CANDIDATES))
        return found

    def extend(self, candidates: Iterable[Candidate]) -> SearchSpace:
        """Return the space with further candidates after its own, except for those that it already has."""
        extended = msgspec.structs.replace(self)
        new = {candidate.config.key: candidate for candidate in candidates if candidate.config.key not in self.numbers}
        # Listing the candidates of the dimensions again would take longer than all else.
        vars(extended)["candidates"] = (*self.candidates, *new.values())
        return extended

    def refine(self, number: int) -> list[Candidate]:
        """Return a candidate and those next to it: with values from the previous to the next choice, and all between.

        Only dimensions with values between their choices count.
        """
        own = self.candidates[number].labels
        found = {self.candidates[number].config.key: self.candidates[number]}
        for dimension in self.dimensions:
            if not dimension.between or dimension.name not in own:
                continue
            value = _number_of(dimension.choice(own[dimension.name])) or self.default_number(dimension)
            listed = [_number_of(choice) for choice in dimension.choices[1:]]
            low = max((number for number in listed if number < value), default=0)
            high = min((number for number in listed if number > value), default=math.inf)
            for choice in (*dimension.choices[1:], *dimension.between):
                if low <= _number_of(choice) <= high:
                    candidate = self.select({**own, dimension.name: choice.label})
                    found.setdefault(candidate.config.key, candidate)
        return list(found.values())

    def combine(self, labels: Mapping[str, str]) -> list[Candidate]:
        """Return the candidates that have a value between choices in common with these labels.

        All other settings vary as they do with the choices that the space lists.
        """
        found: dict[str, Candidate] = {}
        for dimension in self.dimensions:
            own = {dimension.name: labels.get(dimension.name, DEFAULT_LABEL)}
            if own[dimension.name] not in {choice.label for choice in dimension.between}:
                continue
            others = {
                tuple((name, label) for name, label in other.labels.items() if name != dimension.name)
                for other in self.candidates
                if other.labels.get(dimension.name, DEFAULT_LABEL) != DEFAULT_LABEL
            }
            for other in sorted(others):
                candidate = self.select({**dict(other), **own})
                found.setdefault(candidate.config.key, candidate)
        return list(found.values())

    def join(self, number: int, gains: Mapping[int, float]) -> list[Candidate]:
        """Return candidates in which choices for different models that win alone are combined.

        Args:
            number: The best candidate, to whose other choices they are added.
            gains: Expected gain of each candidate that was tried, as a log-ratio.
        """
        best_of: dict[str, tuple[float, str, str]] = {}
        for dimension in self.dimensions:
            for choice in dimension.choices[1:] if dimension.of else ():
                own = {dimension.name: choice.label}
                gain = gains.get(self.numbers.get(self.select(own).config.key, -1), 0.0)
                if gain > best_of.get(dimension.of, (WON,))[0]:
                    best_of[dimension.of] = (gain, dimension.name, choice.label)
        winners = sorted(best_of.values(), reverse=True)
        owned = {dimension.name for dimension in self.dimensions if dimension.of}
        best = {name: label for name, label in self.candidates[number].labels.items() if name not in owned}
        found: dict[str, Candidate] = {}
        for stem in (best, {}):
            # The best two, the best three, and so on.
            for n in range(2, len(winners) + 1):
                candidate = self.select({**stem, **{name: label for _, name, label in winners[:n]}})
                found.setdefault(candidate.config.key, candidate)
        return list(found.values())

    def find(self, config: Config) -> Candidate | None:
        """Return the candidate with a config, even if it has a value between choices, or None if there is none.

        That of a config with a twin is the one that is tried in its place.
        """
        config = self._merge_settings(config)
        if config.key in self.numbers:
            return self.candidates[self.numbers[config.key]]
        labels = {dimension.name: str(config.settings.get(dimension.knob.name)) for dimension in self.dimensions}
        return next((candidate for candidate in self.combine(labels) if candidate.config.key == config.key), None)

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """Position of each candidate in `candidates`, by the key of its config."""
        return {candidate.config.key: number for number, candidate in enumerate(self.candidates)}

    def neighbors(self, number: int) -> NDArray[np.int64]:
        """Return the numbers of the candidates that differ from a candidate in one dimension.

        Dimensions that have no effect in one of the two do not count.
        """
        import numpy as np

        own, counted = self._choices[number], self._choices >= 0
        differing = (self._choices != own) & counted & counted[number]
        return np.flatnonzero(differing.sum(axis=1) == 1)

    @functools.cached_property
    def _choices(self) -> NDArray[np.int64]:
        """The place of each candidate's choice in each dimension, of shape (candidates, dimensions); -1 for none."""
        import numpy as np

        places = [{label: place for place, label in enumerate(dimension.labels)} for dimension in self.dimensions]
        names = [dimension.name for dimension in self.dimensions]
        return np.array(
            [
                [of.get(candidate.labels.get(name, ""), -1) for name, of in zip(names, places, strict=True)]
                for candidate in self.candidates
            ]
        )

    def default_number(self, dimension: Dimension) -> int:
        """Return the number that the default of a dimension of numbers stands for."""
        return self.n_default_threads if dimension.default_number is None else dimension.default_number

    def _enumerate(self, *, nearest_first: bool = False) -> Iterator[Candidate]:
        seen: set[str] = set()
        count = itertools.count(1)
        # For each branch: in how many dimensions it differs from the default, its turn, and its labels.
        pending: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, ())]
        while pending:
            depth, _, prefix = heapq.heappop(pending)
            asked: list[Dimension] = []

            def choose(dimension: Dimension, prefix: tuple[str, ...] = prefix, asked: list[Dimension] = asked) -> str:
                asked.append(dimension)
                return prefix[len(asked) - 1] if len(asked) <= len(prefix) else DEFAULT_LABEL

            candidate = self.draw(choose, listed=True)
            # Each dimension after the prefix has its default. Its other choices start new branches.
            for position in range(len(asked) - 1, len(prefix) - 1, -1):
                stem = prefix + (DEFAULT_LABEL,) * (position - len(prefix))
                for choice in reversed(asked[position].choices[1:]):
                    # The newest branch first, so that similar candidates are next to each other.
                    order = (depth + 1, next(count)) if nearest_first else (0, -next(count))
                    heapq.heappush(pending, (*order, (*stem, choice.label)))
            if candidate.config.key not in seen:
                seen.add(candidate.config.key)
                yield candidate

    def select(self, labels: Mapping[str, str]) -> Candidate:
        """Return the candidate with these labels; all other dimensions stay at their default."""
        return self.draw(lambda dimension: labels.get(dimension.name, DEFAULT_LABEL))

    def leave_one_out(self, candidate: Candidate) -> dict[str, Candidate]:
        """Return the candidates without one of the choices of a candidate, by the name of the dimension."""
        found = {}
        for name in candidate.chosen:
            reduced = self.select({other: label for other, label in candidate.chosen.items() if other != name})
            if reduced.config != candidate.config:
                found[name] = reduced
        return found

    def labels_of(self, candidate: Candidate) -> dict[str, str]:
        """Return a label for every dimension: the default's for dimensions without effect."""
        return {dimension.name: candidate.labels.get(dimension.name, DEFAULT_LABEL) for dimension in self.dimensions}

    def one_factor(self) -> Iterator[dict[str, str]]:
        """Yield labels that differ from the default in one dimension, and in those that it requires."""
        for dimension in self.dimensions:
            for choice in dimension.choices[1:]:
                yield choose_alone(self.dimensions, dimension, choice)
