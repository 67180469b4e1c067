"""The search space: what is worth trying for a model on a host, valid, distinct and explained."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from ortune.errors import UsageError
from ortune.host import Host
from ortune.knobs import catalogue
from ortune.knobs.affinity import Placement, parse_affinity
from ortune.knobs.config import BETWEEN_SESSIONS, CPU, DEFAULT, Config, Provider, ThreadPool
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Rule, Skipped, choose
from ortune.knobs.knob import Knob, Value
from ortune.knobs.own import GLOBAL_THREAD_POOL, IO_BINDING, PROVIDERS
from ortune.knobs.providers import chain_of, find_provider
from ortune.knobs.wish import Wish
from ortune.model import ModelInfo

T = TypeVar("T")

MAX_CANDIDATES = 20_000

LEVELS = {
    "ORT_DISABLE_ALL": "no rewriting: sometimes faster for quantized graphs",
    "ORT_ENABLE_BASIC": "constant folding and removal of redundant nodes only",
    "ORT_ENABLE_EXTENDED": "fusions, but no change of memory layout",
    "ORT_ENABLE_LAYOUT": "layout changes, but not the last, hardware-specific rewrites",
}
BLOCK_BASES = ("2", "4", "8")
BLOCK_BASES_OF_MANY_CORES = ("4",)
ENTRIES = ("session_options", "session_config", "run_options", "run_config", "environment")
"""Fields of a config that hold settings by name."""

MANY_CORES = 16
"""From this many cores on, thread counts and places are what matters, and the other knobs get fewer values."""

HEAVY = frozenset(
    {
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DynamicQuantizeLSTM",
        "Einsum",
        "FusedConv",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "MatMulNBits",
        "MultiHeadAttention",
        "QGemm",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
    }
)
"""Operators whose work is worth sharing among threads."""

POLICIES = {
    "compact": "a core of its own for each worker, neighbours first, so that caches are shared",
    "scattered": "a core of its own for each worker, spread over the cache domains, for bandwidth",
    "siblings": "both hardware threads of a core for each worker, so that it can move within it",
    "threads": "a hardware thread for each worker, cores filled up one after the other",
    "l3": "all workers within one L3 domain, free to move inside it",
    "node": "all workers within one NUMA node, next to their memory",
    "fast": "all workers on the fastest kind of core",
}


SPINNING_OFF = Choice(label="off", value="0", why="workers sleep while they wait: no CPU is burnt between calls")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration to try.

    Attributes:
        config: Its settings in canonical form.
        why: Why it is worth trying: a sentence for each choice that is not the default.
        labels: The choices that make it, by dimension; other choices may make an equal config.
    """

    config: Config
    why: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """A short name, such as `intra=2 · affinity=2`."""
        return describe(self.config)


def describe(config: Config) -> str:
    """Return a config as one short line."""
    if config.is_default:
        return "default"
    parts = []
    for name, value in config.settings.items():
        knob = catalogue.KNOBS.get(name)
        text = str(value).removeprefix("ORT_").lower()
        if name == catalogue.LD_PRELOAD.name:
            parts.append(text.rpartition("/")[2].partition(".so")[0])
        elif name == PROVIDERS.name:
            parts.append(text.partition(",")[0])
        else:
            parts.append(f"{knob.title if knob else name}={_elide(text)}")
    return " · ".join(parts)


def _elide(text: str, length: int = 24) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


Choose = Callable[[Dimension], str]
"""Given a dimension, returns the label of one of its choices."""


class SearchSpace(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The dimensions of a search, conditional and canonical.

    Attributes:
        dimensions: In an order in which each depends on earlier ones only.
        n_default_threads: Threads of ONNX Runtime's default pool on this host.
        skipped: Knobs that are left out for this model or host, each with the reason.
        rules: What is tried first.
        base: What all candidates have in common, and what they are compared with: ONNX Runtime's default, unless the
            user fixed something, or wants another provider than the CPU.
    """

    dimensions: tuple[Dimension, ...]
    n_default_threads: int
    skipped: tuple[Skipped, ...] = ()
    rules: tuple[Rule, ...] = ()
    base: Config = DEFAULT

    @property
    def _fixed_count(self) -> str:
        """The number of intra-op threads that the user fixed, as a label."""
        return str(self.base.session_options.get(catalogue.INTRA_OP_NUM_THREADS.name, ""))

    def draw(self, choose: Choose) -> Candidate:
        """Make a candidate by asking `choose` for each dimension that makes a difference, in order."""
        labels: dict[str, str] = {}
        config = self.base
        why = []
        taken = False
        for dimension in self.dimensions:
            if (dimension.alone and taken) or dimension.is_inert(labels):
                continue
            label = choose(dimension)
            labels[dimension.name] = label
            choice = dimension.choice(label)
            value: object = choice.value
            if choice.value_by:
                count = labels.get(catalogue.INTRA_OP_NUM_THREADS.name, self._fixed_count)
                value = choice.value_by.get(count, value)
            if value is not None:
                knob = dimension.knob
                config = config.with_setting(knob.where, knob.name, value, knob.provider)
                why.append(choice.why)
                taken = taken or dimension.alone
        config = canonical(config, self.n_default_threads)
        if not self.base.is_default:
            # What the user fixed is written down, also where it makes no difference here.
            fixed = {name: _ordered({**getattr(config, name), **getattr(self.base, name)}) for name in ENTRIES}
            config = msgspec.structs.replace(config, **fixed)
        return Candidate(config=config, why=tuple(why), labels=labels)

    @functools.cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every distinct candidate once, the default first.

        No more than `MAX_CANDIDATES`: of more, those that leave the default in fewest dimensions.
        """
        found = tuple(itertools.islice(self._enumerate(), MAX_CANDIDATES + 1))
        if len(found) > MAX_CANDIDATES:
            found = tuple(itertools.islice(self._enumerate(nearest_first=True), MAX_CANDIDATES))
        return found

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """Place of each candidate in `candidates`, by the key of its config."""
        return {candidate.config.key: number for number, candidate in enumerate(self.candidates)}

    def _enumerate(self, *, nearest_first: bool = False) -> Iterator[Candidate]:
        seen: set[str] = set()
        count = itertools.count(1)
        # Of each branch: in how many dimensions it leaves the default, the turn that it is taken in, and its labels.
        pending: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, ())]
        while pending:
            depth, _, prefix = heapq.heappop(pending)
            asked: list[Dimension] = []

            def choose(dimension: Dimension, prefix: tuple[str, ...] = prefix, asked: list[Dimension] = asked) -> str:
                asked.append(dimension)
                return prefix[len(asked) - 1] if len(asked) <= len(prefix) else DEFAULT_LABEL

            candidate = self.draw(choose)
            # Each dimension behind the prefix took its default; its other choices start branches of their own.
            for position in range(len(asked) - 1, len(prefix) - 1, -1):
                stem = prefix + (DEFAULT_LABEL,) * (position - len(prefix))
                for choice in reversed(asked[position].choices[1:]):
                    # The newest branch first, which keeps candidates together that differ little.
                    order = (depth + 1, next(count)) if nearest_first else (0, -next(count))
                    heapq.heappush(pending, (*order, (*stem, choice.label)))
            if candidate.config.key not in seen:
                seen.add(candidate.config.key)
                yield candidate

    def select(self, labels: Mapping[str, str]) -> Candidate:
        """Return the candidate of these choices; all others stay at their default."""
        return self.draw(lambda dimension: labels.get(dimension.name, DEFAULT_LABEL))

    def labels_of(self, candidate: Candidate) -> dict[str, str]:
        """Return a label for every dimension: the default's where it makes no difference."""
        return {dimension.name: candidate.labels.get(dimension.name, DEFAULT_LABEL) for dimension in self.dimensions}

    def one_factor(self) -> Iterator[dict[str, str]]:
        """Yield selections that leave the default in one dimension, with what must be chosen for it to matter."""
        for dimension in self.dimensions:
            for choice in dimension.choices[1:]:
                selection = {dimension.name: choice.label}
                for name, inert in dimension.inert.items():
                    if DEFAULT_LABEL not in inert:
                        continue
                    earlier = next(other for other in self.dimensions if other.name == name)
                    labels = [other.label for other in earlier.choices if other.label not in inert]
                    fitting = [label for label in labels if not choice.value_by or label in choice.value_by]
                    if fitting:
                        selection[name] = fitting[-1]
                yield selection


def canonical(config: Config, n_default_threads: int) -> Config:
    """Return the config without settings that make no difference, so that equal behaviour is an equal config.

    - Under ORT_SEQUENTIAL, inter-op threads do nothing; ORT_PARALLEL with one of them is ORT_SEQUENTIAL.
    - One intra-op thread has no workers: spinning, affinity and block base do nothing. Nor does it matter how workers
      spin that do not.
    - ORT_PARALLEL does not pin the default pool: 0 threads is then the same as naming that number. It has no memory
      pattern.
    - With a global pool, a session has no threads of its own.
    """
    if not config.session_options and not config.session_config:
        return config
    options = dict(config.session_options)
    entries = dict(config.session_config)
    if config.global_thread_pool:
        _drop(options, catalogue.INTRA_OP_NUM_THREADS, catalogue.INTER_OP_NUM_THREADS)
        _drop(entries, *OF_WORKERS, *OF_SPINNING, catalogue.FORCE_SPINNING_STOP)
    if options.get("execution_mode") != "ORT_PARALLEL" or options.get("inter_op_num_threads") == 1:
        _drop(options, catalogue.EXECUTION_MODE, catalogue.INTER_OP_NUM_THREADS)
        _drop(entries, catalogue.INTER_OP_ALLOW_SPINNING)
    affinity = catalogue.INTRA_OP_THREAD_AFFINITIES.name
    n_threads = options.get("intra_op_num_threads", 0)
    parallel = "execution_mode" in options
    if n_threads == n_default_threads and affinity not in entries and (parallel or n_threads == 1):
        options.pop("intra_op_num_threads", None)
    alone = (n_threads or n_default_threads) == 1
    if alone:
        _drop(entries, *OF_WORKERS)
    if entries:
        _drop_spinning(entries, alone=alone, parallel=parallel)
    if parallel:
        _drop(options, catalogue.ENABLE_MEM_PATTERN)
    for values in (options, entries):
        for name in list(values):
            if name in catalogue.KNOBS and values[name] == catalogue.KNOBS[name].default:
                del values[name]
    # In the catalogue's order, so that a config reads the same however it came about.
    return msgspec.structs.replace(config, session_options=_ordered(options), session_config=_ordered(entries))


def _drop_spinning(entries: dict[str, str], *, alone: bool, parallel: bool) -> None:
    """Take out how workers spin where none of them does."""
    intra = not alone and entries.get(catalogue.INTRA_OP_ALLOW_SPINNING.name) != "0"
    inter = parallel and entries.get(catalogue.INTER_OP_ALLOW_SPINNING.name) != "0"
    if not intra:
        _drop(entries, catalogue.INTRA_OP_SPIN_DURATION, catalogue.INTRA_OP_SPIN_BACKOFF)
    if not inter:
        _drop(entries, catalogue.INTER_OP_SPIN_DURATION, catalogue.INTER_OP_SPIN_BACKOFF)
    if not intra and not inter:
        _drop(entries, catalogue.FORCE_SPINNING_STOP)


OF_WORKERS = (
    catalogue.INTRA_OP_THREAD_AFFINITIES,
    catalogue.INTRA_OP_ALLOW_SPINNING,
    catalogue.DYNAMIC_BLOCK_BASE,
)
OF_SPINNING = (
    catalogue.INTRA_OP_SPIN_DURATION,
    catalogue.INTRA_OP_SPIN_BACKOFF,
    catalogue.INTER_OP_SPIN_DURATION,
    catalogue.INTER_OP_SPIN_BACKOFF,
)


def _drop(values: dict[str, T], *knobs: Knob) -> None:
    for knob in knobs:
        values.pop(knob.name, None)


ORDER = {knob.name: position for position, knob in enumerate(catalogue.KNOBS.values())}


def _ordered(values: dict[str, T]) -> dict[str, T]:
    if len(values) < 2:
        return values
    return dict(sorted(values.items(), key=lambda item: (ORDER.get(item[0], len(ORDER)), item[0])))


def build_space(host: Host, model: ModelInfo, wish: Wish = Wish()) -> SearchSpace:  # noqa: B008  (it is frozen)
    """Return what is worth trying for `model` on `host`.

    Args:
        host: The host.
        model: The model.
        wish: What it is wanted for, and what the user says of knobs.

    Raises:
        UsageError: What the user says cannot be had.
    """
    found: list[Dimension | Skipped] = []
    on_cpu = CPU in wish.providers
    if len(wish.providers) > 1:
        found.append(_provider_choice(wish))
    if on_cpu:
        own: list[Dimension] = []
        skipped: list[Skipped] = []
        if wish.sessions > 1:
            own.append(_pool_choice(host, wish))
        _add_execution(host, model, own, skipped)
        _add_threads(host, own, skipped, wish)
        found += [_only_under(each, CPU, wish) for each in own]
        found += skipped
    else:
        why = "the CPU is not among the providers"
        found += [Skipped(knob=knob, why=why) for knob in (catalogue.INTRA_OP_NUM_THREADS, catalogue.EXECUTION_MODE)]
    found.append(
        Dimension(
            knob=catalogue.GRAPH_OPTIMIZATION_LEVEL,
            choices=(DEFAULT_CHOICE, *(Choice(label=name, value=name, why=why) for name, why in LEVELS.items())),
        )
    )
    found += _add_minor(host, model, wish)
    for name in wish.providers:
        for each in find_provider(name).dimensions(host, model, wish):
            found.append(_only_under(each, name, wish) if isinstance(each, Dimension) else each)
    found = ask_for(_merge(found), wish)
    dimensions = [each for each in found if isinstance(each, Dimension)]
    return SearchSpace(
        dimensions=tuple(dimensions),
        n_default_threads=host.n_default_threads,
        skipped=tuple(each for each in found if isinstance(each, Skipped)),
        rules=tuple(_rules(host, model, dimensions)) if on_cpu else (),
        base=_base(wish),
    )


def _base(wish: Wish) -> Config:
    """Return what all candidates have in common."""
    config = msgspec.structs.replace(DEFAULT, providers=_chain(wish.providers[0], wish))
    for name, value in wish.fix.items():
        knob = catalogue.KNOBS[name]
        if not knob.provider:
            config = config.with_setting(knob.where, knob.name, value)
    return config


def _chain(provider: str, wish: Wish) -> tuple[Provider, ...]:
    """Return a provider and those behind it, each with the options that the user fixed."""
    fixed = {catalogue.KNOBS[name]: str(value) for name, value in wish.fix.items()}
    return tuple(
        (name, {**options, **{knob.name: value for knob, value in fixed.items() if knob.provider == name}})
        for name, options in chain_of(provider)
    )


def _provider_choice(wish: Wish) -> Dimension:
    """Return the choice of a provider; the first is the default's."""
    choices = [
        Choice(label=find_provider(name).alias, value=_chain(name, wish), why=f"{name} runs what it can of the graph")
        for name in wish.providers[1:]
    ]
    return Dimension(knob=PROVIDERS, choices=(DEFAULT_CHOICE, *choices))


def _only_under(dimension: Dimension, provider: str, wish: Wish) -> Dimension:
    """Return the dimension so that it is chosen under one provider alone."""
    if len(wish.providers) == 1:
        return dimension
    labels = {name: find_provider(name).alias for name in wish.providers} | {wish.providers[0]: DEFAULT_LABEL}
    others = frozenset(label for name, label in labels.items() if name != provider)
    return msgspec.structs.replace(dimension, inert={**dimension.inert, PROVIDERS.name: others})


def _merge(found: list[Dimension | Skipped]) -> list[Dimension | Skipped]:
    """Return it with what several providers ask for once, under any of them."""
    merged: dict[str, Dimension] = {}
    for each in found:
        if isinstance(each, Dimension) and (known := merged.get(each.name)):
            name = PROVIDERS.name
            inert = known.inert.get(name, frozenset()) & each.inert.get(name, frozenset())
            merged[each.name] = msgspec.structs.replace(known, inert={**known.inert, name: inert})
        elif isinstance(each, Dimension):
            merged[each.name] = each
    order = [each for each in found if isinstance(each, Skipped)]
    # What others depend on comes before them.
    first = [each for each in merged.values() if each.knob in {PROVIDERS, IO_BINDING}]
    return [*first, *(each for each in merged.values() if each not in first), *order]


def ask_for(found: Sequence[Dimension | Skipped], wish: Wish) -> list[Dimension | Skipped]:
    """Return the dimensions with what the user says of knobs: values to try, values that are fixed, nothing else.

    Raises:
        UsageError: A knob that is to be tried alone has no values to try, or onnxruntime is too old for one.
    """
    _check_versions(wish)
    dimensions = {each.name: each for each in found if isinstance(each, Dimension)}
    skipped = [each for each in found if isinstance(each, Skipped) and each.knob.id not in wish.tune]
    for name, values in wish.tune.items():
        dimensions[name] = _dimension_of(catalogue.KNOBS[name], values, dimensions, wish)
    for name in wish.only:
        if name not in dimensions:
            knob = catalogue.KNOBS[name]
            raise UsageError(
                f"--only {name}: a search tries no values of it here"
                + next((f": {each.why}." for each in skipped if each.knob is knob), "."),
                f"Name them: --tune {name}=VALUE,VALUE",
            )
    kept: list[Dimension] = []
    for dimension in dimensions.values():
        name = dimension.name
        if name in wish.fix:
            skipped.append(Skipped(knob=dimension.knob, why=f"fixed to {wish.fix[name]}"))
        elif wish.only and name not in wish.only:
            skipped.append(Skipped(knob=dimension.knob, why="not among --only"))
        else:
            kept.append(dimension)
    # A setting that is not chosen any more counts as it is in the base.
    fixed = {name: _label_of(dimensions[name], value) for name, value in wish.fix.items() if name in dimensions}
    names = {each.name for each in kept}
    counts = _thread_labels(kept, wish)
    result: list[Dimension | Skipped] = []
    for dimension in kept:
        if dimension.knob is catalogue.INTRA_OP_THREAD_AFFINITIES:
            dimension = _fitting(dimension, counts, asked=dimension.name in wish.tune)
        if len(dimension.choices) < 2:
            skipped.append(Skipped(knob=dimension.knob, why="no value beside the default is left to try"))
            names.discard(dimension.name)
            continue
        dead = [
            name
            for name, labels in dimension.inert.items()
            if name not in names and fixed.get(name, DEFAULT_LABEL) in labels
        ]
        if dead:
            skipped.append(Skipped(knob=dimension.knob, why=f"{dead[0]} as it is leaves it without effect"))
        else:
            inert = {name: labels for name, labels in dimension.inert.items() if name in names}
            result.append(msgspec.structs.replace(dimension, inert=inert))
    return [*result, *skipped]


def _check_versions(wish: Wish) -> None:
    """Check that the installed onnxruntime knows what the user names.

    Raises:
        UsageError: It does not.
    """
    for name in (*wish.tune, *wish.fix):
        since = catalogue.KNOBS[name].since
        if _is_newer(since, wish.onnxruntime):
            raise UsageError(
                f"{name}: onnxruntime {wish.onnxruntime} does not know it, and would take it without a word.",
                f"It is there since {since}: pip install --upgrade onnxruntime.",
            )


def _thread_labels(dimensions: Sequence[Dimension], wish: Wish) -> frozenset[str]:
    """Return the numbers of intra-op threads that can come up."""
    knob = catalogue.INTRA_OP_NUM_THREADS
    if knob.name in wish.fix:
        return frozenset({str(wish.fix[knob.name])})
    return frozenset(choice.label for each in dimensions if each.knob is knob for choice in each.choices)


def _fitting(dimension: Dimension, counts: frozenset[str], *, asked: bool) -> Dimension:
    """Return the affinities whose strings fit a number of threads that can come up.

    Raises:
        UsageError: One that the user asked for does not.
    """
    kept = []
    for choice in dimension.choices[1:]:
        values = {label: text for label, text in choice.value_by.items() if label in counts}
        if values:
            kept.append(msgspec.structs.replace(choice, value_by=values))
        elif asked:
            needed = next(iter(choice.value_by))
            raise UsageError(
                f"--tune {dimension.name}={choice.label}: it is for {needed} threads, and no candidate has as many.",
                f"There is a group for each worker, one less than threads. Add --tune intra_op_num_threads={needed}",
            )
    return msgspec.structs.replace(dimension, choices=(DEFAULT_CHOICE, *kept))


def _label_of(dimension: Dimension, value: Value) -> str:
    """Return the label of a value: that of a choice where there is one."""
    return next((choice.label for choice in dimension.choices if choice.value == value), str(value))


def _dimension_of(knob: Knob, values: Sequence[Value], known: Mapping[str, Dimension], wish: Wish) -> Dimension:
    """Return the dimension of values that the user wants to be tried."""
    why = "asked for with --tune"
    choices = []
    for value in values:
        if value == knob.default:
            continue
        if knob is catalogue.INTRA_OP_THREAD_AFFINITIES:
            # A string fits one number of threads: a group less.
            n_threads = len(parse_affinity(str(value))) + 1
            choices.append(Choice(label=str(value), why=why, value_by={str(n_threads): str(value)}))
        else:
            choices.append(Choice(label=str(value), why=why, value=value))
    before = known.get(knob.id)
    inert = before.inert if before else _inert(knob, known)
    if knob.provider and len(wish.providers) > 1:
        inert = {**inert, **_only_under(Dimension(knob=knob, choices=()), knob.provider, wish).inert}
    return Dimension(knob=knob, choices=(DEFAULT_CHOICE, *choices), inert=inert)


def _inert(knob: Knob, known: Mapping[str, Dimension]) -> dict[str, frozenset[str]]:
    """Return under which choices a knob does nothing that no search tries by itself."""
    parents = {
        catalogue.INTRA_OP_SPIN_DURATION: catalogue.INTRA_OP_ALLOW_SPINNING,
        catalogue.INTRA_OP_SPIN_BACKOFF: catalogue.INTRA_OP_ALLOW_SPINNING,
        catalogue.INTER_OP_SPIN_DURATION: catalogue.INTER_OP_ALLOW_SPINNING,
        catalogue.INTER_OP_SPIN_BACKOFF: catalogue.INTER_OP_ALLOW_SPINNING,
        catalogue.INTER_OP_ALLOW_SPINNING: catalogue.EXECUTION_MODE,
        catalogue.INTER_OP_NUM_THREADS: catalogue.EXECUTION_MODE,
    }
    parent = known.get(parents[knob].id) if knob in parents else None
    if parent is None:
        return {}
    dead = DEFAULT_LABEL if parent.knob is catalogue.EXECUTION_MODE else SPINNING_OFF.label
    return {**parent.inert, parent.name: frozenset({dead})}


def _pool_choice(host: Host, wish: Wish) -> Dimension:
    """Return the choice between a pool for each session and one for all, of some sizes."""
    n_cores = len(host.usable_cores)
    counts = sorted({1, max(1, n_cores // wish.sessions), max(1, n_cores // 2), n_cores})
    choices = [
        Choice(
            label=str(n),
            value=ThreadPool(intra_op_num_threads=n, inter_op_num_threads=1),
            why=f"one pool of {n} for all {wish.sessions} sessions: no more threads than there are cores",
        )
        for n in counts
    ]
    return Dimension(knob=GLOBAL_THREAD_POOL, choices=(DEFAULT_CHOICE, *choices))


def _add_minor(host: Host, model: ModelInfo, wish: Wish) -> Iterator[Dimension | Skipped]:
    """Yield what matters in some cases only: one of them at a time, beside all of the above."""
    ops = set(model.traits.ops)
    parallel = {catalogue.EXECUTION_MODE.name: frozenset({"parallel"})}
    made: list[Dimension] = []
    idle = wish.has_rate or wish.clients > 1 or wish.has_neighbour or host.limits.quota or "cpu" in wish.figures
    if idle and CPU in wish.providers:
        made += _ways_of_spinning(host, model)
    if wish.of_memory:
        made += [
            choose(catalogue.ENABLE_CPU_MEM_ARENA, (False, "no arena: memory goes back as soon as it is free")),
            choose(catalogue.ENABLE_MEM_PATTERN, (False, "no planning of memory ahead of a call"), inert=parallel),
            choose(catalogue.ENABLE_MEM_REUSE, (False, "no buffer serves twice in a call")),
            choose(catalogue.DISABLE_PREPACKING, ("1", "weights stay as they are: no second copy of them")),
            choose(catalogue.USE_DEVICE_ALLOCATOR_FOR_INITIALIZERS, ("1", "weights do not round the arena up")),
            choose(catalogue.LOOP_LEVEL, ("0", "the graph is rewritten in one pass")),
            choose(catalogue.ARENA_SHRINKAGE, ("cpu:0", "the arena gives memory back after each call")),
        ]
    if {"QuantizeLinear", "DequantizeLinear"} & ops:
        made += [
            choose(
                catalogue.DISABLE_QUANT_QDQ, ("1", "operators between QuantizeLinear and DequantizeLinear stay float")
            ),
            choose(catalogue.DISABLE_DOUBLE_QDQ_REMOVER, ("1", "pairs of them are not merged")),
            choose(catalogue.DISABLE_QDQ_CONSTANT_FOLDING, ("1", "quantized weights are not unpacked ahead of time")),
        ]
    if model.traits.width > 1:
        made.append(choose(catalogue.EXECUTION_ORDER, ("PRIORITY_BASED", "nodes run in another order"), inert=parallel))
    if host.system == "Linux":
        made += [_allocator_choice(wish)] if wish.allocators else []
    if wish.approximate:
        made += _approximate(ops)
    for dimension in made:
        if _is_newer(dimension.knob.since, wish.onnxruntime):
            yield Skipped(knob=dimension.knob, why=f"onnxruntime knows it since {dimension.knob.since}")
        else:
            yield msgspec.structs.replace(dimension, alone=True)


def _ways_of_spinning(host: Host, model: ModelInfo) -> Iterator[Dimension]:
    """Yield how workers may wait, where they have to wait at all."""
    spins = _spins(host)
    why = "workers stop spinning as soon as no call is under way"
    yield choose(catalogue.FORCE_SPINNING_STOP, ("1", why), inert=spins)
    pools = [(catalogue.INTRA_OP_SPIN_DURATION, catalogue.INTRA_OP_SPIN_BACKOFF, spins)]
    if model.traits.width > 1:
        between = {
            catalogue.EXECUTION_MODE.name: frozenset({DEFAULT_LABEL}),
            catalogue.INTER_OP_ALLOW_SPINNING.name: frozenset({SPINNING_OFF.label}),
        }
        pools.append((catalogue.INTER_OP_SPIN_DURATION, catalogue.INTER_OP_SPIN_BACKOFF, between))
    for duration, backoff, inert in pools:
        times = (("100", "workers spin for 100 µs, then sleep"), ("1000", "workers spin for a millisecond, then sleep"))
        yield choose(duration, *times, inert=inert)
        yield choose(backoff, ("8", "workers look for work less and less often"), inert=inert)


def _one_thread(host: Host) -> frozenset[str]:
    """Return the choices of `intra_op_num_threads` that make no worker."""
    return frozenset({"1"} | ({DEFAULT_LABEL} if host.n_default_threads == 1 else set()))


def _spins(host: Host) -> dict[str, frozenset[str]]:
    """Return under which choices no intra-op worker spins."""
    return {
        catalogue.INTRA_OP_NUM_THREADS.name: _one_thread(host),
        catalogue.INTRA_OP_ALLOW_SPINNING.name: frozenset({SPINNING_OFF.label}),
    }


def _allocator_choice(wish: Wish) -> Dimension:
    choices = [
        Choice(label=name, value=path, why=f"{name} in place of the C library's malloc")
        for name, path in wish.allocators.items()
    ]
    return Dimension(knob=catalogue.LD_PRELOAD, choices=(DEFAULT_CHOICE, *choices))


def _approximate(ops: set[str]) -> Iterator[Dimension]:
    """Yield what changes outputs beyond rounding, where the graph has what it applies to."""
    if {"Erf", "Gelu", "BiasGelu"} & ops:
        yield choose(catalogue.ENABLE_GELU_APPROXIMATION, ("1", "GELU by a formula that is faster to compute"))
    if "Cast" in ops:
        yield choose(catalogue.ENABLE_CAST_CHAIN_ELIMINATION, ("1", "casts there and back are left out"))
    if "QuantizeLinear" in ops:
        yield choose(
            catalogue.ENABLE_QUANT_QDQ_CLEANUP, ("1", "pairs of QuantizeLinear and DequantizeLinear that are left go")
        )
    if "MatMulNBits" in ops:
        yield choose(catalogue.USE_LUT_GEMM, ("1", "products of few bits from tables"))
    yield choose(catalogue.SET_DENORMAL_AS_ZERO, ("1", "the smallest numbers count as zero"))


def _is_newer(since: str, installed: str) -> bool:
    """Return whether a setting is newer than what is installed, as far as that is known."""

    def parts(version: str) -> list[int]:
        return [int(part) for part in version.split(".")[:2] if part.isdigit()]

    return bool(since and installed) and parts(since) > parts(installed)


def _rules(host: Host, model: ModelInfo, dimensions: Sequence[Dimension]) -> Iterator[Rule]:
    """Yield the rules that can be followed in these dimensions.

    Source: the pages "Thread management" and "Performance tuning" of onnxruntime.ai, and Optimum's and Triton's advice
    to servers.
    """
    threads, affinity = catalogue.INTRA_OP_NUM_THREADS.name, catalogue.INTRA_OP_THREAD_AFFINITIES.name
    spinning, blocks = catalogue.INTRA_OP_ALLOW_SPINNING.name, catalogue.DYNAMIC_BLOCK_BASE.name
    level, mode = catalogue.GRAPH_OPTIMIZATION_LEVEL.name, catalogue.EXECUTION_MODE.name
    known = {(dimension.name, choice.label): choice for dimension in dimensions for choice in dimension.choices}

    def rule(why: str, **chosen: str) -> Iterator[Rule]:
        names = {"threads": threads, "place": affinity, "spinning": spinning, "blocks": blocks, "level": level}
        labels = {names.get(name, name): label for name, label in chosen.items()}
        place = known.get((affinity, labels.get(affinity, "")))
        if all(item in known for item in labels.items()) and (not place or labels[threads] in place.value_by):
            yield Rule(labels=labels, why=why)

    for dimension in dimensions:
        if dimension.knob is PROVIDERS:
            for choice in dimension.choices[1:]:
                yield Rule(labels={dimension.name: choice.label}, why=choice.why)
    cores = len(host.usable_cores)
    heavy = HEAVY & set(model.traits.ops)
    why = "no thread waits for another" if heavy else "no operator of this graph has much work to share"
    yield from rule(f"one thread: {why}", threads="1")
    yield from rule("workers that sleep leave the CPUs to others", spinning="off")
    if host.limits.quota:
        fitting = max(1, math.floor(host.limits.quota.cpus))
        yield from rule("a pool that fits the CPU quota is not throttled", threads=str(fitting))
        yield from rule(
            "a pool that fits the CPU quota, and spends none of it on waiting", threads=str(fitting), spinning="off"
        )
    yield from rule("a thread for each physical core, each on its own", threads=str(cores), place="compact")
    yield from rule("a thread for each physical core, free to move", threads=str(cores))
    nodes = Placement(host).nodes
    if len(nodes) > 1:
        node = sum(1 for core in host.usable_cores if set(nodes[0]) & set(core))
        # Where a node is one L3 domain, the two are one choice.
        for place in ("node", "l3"):
            yield from rule("one NUMA node: all memory is near", threads=str(node), place=place)
    yield from rule("blocks that shrink, base 4: the documentation's value against late threads", blocks="4")
    # What is inside an If, Loop or Scan runs one after the other all the same.
    if (mode, "parallel") in known and not model.traits.control_flow:
        why = f"the graph branches into {model.traits.width}"
        yield Rule(labels={mode: "parallel"}, why=why)
        yield Rule(labels={mode: "parallel", threads: "1"}, why=f"{why}: a thread for each branch")
    if model.traits.quantized:
        for name in ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"):
            why = "a quantized graph: fusions are not always faster than its quantized operators"
            yield from rule(why, level=name)


def _add_execution(host: Host, model: ModelInfo, dimensions: list[Dimension], skipped: list[Skipped]) -> None:
    """Add the execution mode, and the pool that it uses."""
    width = model.traits.width
    if width < 2:
        why = "no two operators of this graph can run side by side"
        skipped += [
            Skipped(knob=knob, why=why)
            for knob in (catalogue.EXECUTION_MODE, catalogue.INTER_OP_NUM_THREADS, catalogue.INTER_OP_ALLOW_SPINNING)
        ]
        return
    sequential = {catalogue.EXECUTION_MODE.name: frozenset({DEFAULT_LABEL})}
    why = f"up to {width} operators of this graph can run side by side"
    counts = [
        Choice(label=str(n), value=n, why=f"{n} operators at a time")
        for n in _inter_counts(width, len(host.usable_cores))
        if n != len(host.topology.cores)
    ]
    dimensions += [
        Dimension(
            knob=catalogue.EXECUTION_MODE,
            choices=(DEFAULT_CHOICE, Choice(label="parallel", value="ORT_PARALLEL", why=why)),
        ),
        Dimension(knob=catalogue.INTER_OP_NUM_THREADS, choices=(DEFAULT_CHOICE, *counts), inert=sequential),
        Dimension(knob=catalogue.INTER_OP_ALLOW_SPINNING, choices=(DEFAULT_CHOICE, SPINNING_OFF), inert=sequential),
    ]


def _add_threads(host: Host, dimensions: list[Dimension], skipped: list[Skipped], wish: Wish) -> None:
    """Add the intra-op pool: its size, where its workers run, how they wait, and how work is split among them."""
    counts = thread_counts(host)
    first = len(dimensions)
    one_thread = _one_thread(host)
    alone = {catalogue.INTRA_OP_NUM_THREADS.name: one_thread}
    dimensions.append(
        Dimension(
            knob=catalogue.INTRA_OP_NUM_THREADS,
            choices=(DEFAULT_CHOICE, *(Choice(label=str(n), why=why, value=n) for n, why in counts.items())),
        )
    )
    affinities = _affinity_choices(host, counts, wish.sessions)
    if affinities:
        inert = {
            catalogue.INTRA_OP_NUM_THREADS.name: one_thread | {DEFAULT_LABEL},
            # The caller of an operator is then any thread of the inter-op pool: there is no place next to it.
            catalogue.EXECUTION_MODE.name: frozenset({"parallel"}),
        }
        dimensions.append(
            Dimension(knob=catalogue.INTRA_OP_THREAD_AFFINITIES, choices=(DEFAULT_CHOICE, *affinities), inert=inert)
        )
    else:
        why = "ONNX Runtime cannot pin threads on macOS" if host.system == "Darwin" else "only one usable core"
        skipped.append(Skipped(knob=catalogue.INTRA_OP_THREAD_AFFINITIES, why=why))
    bases = BLOCK_BASES if len(host.usable_cores) < MANY_CORES else BLOCK_BASES_OF_MANY_CORES
    blocks = [
        Choice(label=base, value=base, why=f"work in blocks that shrink, base {base}: less waiting for late threads")
        for base in bases
    ]
    dimensions += [
        Dimension(knob=catalogue.INTRA_OP_ALLOW_SPINNING, choices=(DEFAULT_CHOICE, SPINNING_OFF), inert=alone),
        Dimension(knob=catalogue.DYNAMIC_BLOCK_BASE, choices=(DEFAULT_CHOICE, *blocks), inert=alone),
    ]
    if wish.sessions > 1:
        pool = next(each for each in dimensions if each.knob is GLOBAL_THREAD_POOL)
        shared = {pool.name: frozenset(choice.label for choice in pool.choices[1:])}
        dimensions[first:] = [
            msgspec.structs.replace(each, inert={**each.inert, **shared}) for each in dimensions[first:]
        ]


def thread_counts(host: Host) -> dict[int, str]:
    """Return the intra-op thread counts worth trying, ascending, each with the reason."""
    n_cores = len(host.usable_cores)
    n_cpus = len(host.limits.usable)
    placement = Placement(host)
    reasons: dict[int, str] = {1: "no workers: the caller does all the work, nothing to wait for or to burn"}

    def add(count: int, why: str) -> None:
        if 1 <= count <= n_cpus:
            reasons.setdefault(count, why)

    if host.limits.quota:
        quota = host.limits.quota.cpus
        add(max(1, math.floor(quota)), f"fits the CPU quota of {quota:g}")
        add(math.ceil(quota), f"the CPU quota of {quota:g}, rounded up")
    add(n_cores, "one thread for each usable physical core")
    for domains, name in ((placement.l3_domains, "L3 domain"), (placement.nodes, "NUMA node")):
        if len(domains) > 1:
            largest = set(domains[0])
            add(sum(1 for core in host.usable_cores if largest & set(core)), f"the cores of one {name}")
    if placement.fast and len(placement.fast) < n_cpus:
        fast = set(placement.fast)
        add(sum(1 for core in host.usable_cores if fast & set(core)), "the fastest kind of core only")
    if n_cpus > n_cores:
        add(n_cpus, "one thread for each usable hardware thread")
    if n_cores <= MANY_CORES:
        add(n_cores - 1, "leaves one core to the rest of the host")
    for exponent in range(1, n_cores.bit_length()):
        # 2, 3, 4, 6, 8, 12, 16, and then powers of two alone
        for count in (1 << exponent, 3 << exponent >> 1):
            if count < n_cores and (count <= MANY_CORES or count == 1 << exponent):
                add(count, f"{count} threads: fewer to wait for than with all cores")
    return dict(sorted(reasons.items()))


def _inter_counts(width: int, n_cores: int) -> list[int]:
    """Return 2, 4, 8, ... up to what the graph and the host can use."""
    most = max(2, min(width, n_cores))
    counts = {2, most}
    step = 4
    while step < most:
        counts.add(step)
        step *= 2
    return sorted(counts)


def _affinity_choices(host: Host, counts: Mapping[int, str], n_sessions: int) -> list[Choice]:
    if host.system == "Darwin":
        return []
    placement = Placement(host)
    choices = []
    taken: set[tuple[str, str]] = set()
    for policy, why in POLICIES.items():
        strings = {}
        for n_threads in counts:
            text = placement.place(policy, n_threads)
            if text is not None and (str(n_threads), text) not in taken:
                taken.add((str(n_threads), text))
                strings[str(n_threads)] = text
        if strings:
            choices.append(Choice(label=policy, why=why, value_by=strings))
    if n_sessions > 1 and (apart := _place_apart(host, counts, n_sessions)):
        why = "cores of its own for each session: their workers do not meet"
        choices.append(Choice(label="apart", why=why, value_by=apart))
    return choices


def _place_apart(host: Host, counts: Mapping[int, str], n_sessions: int) -> dict[str, str]:
    """Return the strings that give the workers of each session cores of their own, by number of threads.

    The first core of each share is left to the session's caller.
    """
    cores = host.usable_cores
    share = len(cores) // n_sessions
    strings = {}
    for n_threads in counts:
        if 2 <= n_threads <= share:
            workers = [cores[number * share + 1 : number * share + n_threads] for number in range(n_sessions)]
            strings[str(n_threads)] = BETWEEN_SESSIONS.join(
                ";".join(",".join(str(cpu + 1) for cpu in core) for core in own) for own in workers
            )
    return strings
