"""The search space: what is worth trying for a model on a host, valid, distinct and explained."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from ortune.host import Host
from ortune.knobs import catalogue
from ortune.knobs.affinity import Placement
from ortune.knobs.catalogue import Knob
from ortune.knobs.config import DEFAULT, Config
from ortune.model import ModelInfo

T = TypeVar("T")

DEFAULT_LABEL = "default"

MAX_CANDIDATES = 20_000

LEVELS = {
    "ORT_DISABLE_ALL": "no rewriting: sometimes faster for quantized graphs",
    "ORT_ENABLE_BASIC": "constant folding and removal of redundant nodes only",
    "ORT_ENABLE_EXTENDED": "fusions, but no change of memory layout",
    "ORT_ENABLE_LAYOUT": "layout changes, but not the last, hardware-specific rewrites",
}
BLOCK_BASES = ("2", "4", "8")
BLOCK_BASES_OF_MANY_CORES = ("4",)
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


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a dimension.

    Attributes:
        label: Its name within the dimension; "default" is always the first choice.
        why: Why it is worth trying, a sentence.
        value: The setting's value; None leaves the setting alone.
        value_by: Where the value depends on what was chosen for `intra_op_num_threads`: by that label.
    """

    label: str
    why: str
    value: int | str | None = None
    value_by: Mapping[str, str] = {}


DEFAULT_CHOICE = Choice(label=DEFAULT_LABEL, why="ONNX Runtime's default")
SPINNING_OFF = Choice(label="off", value="0", why="workers sleep while they wait: no CPU is burnt between calls")


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """A knob, and the choices for it.

    Attributes:
        knob: The setting.
        choices: ONNX Runtime's default first.
        inert: By the name of an earlier dimension: the labels of it under which this one makes no difference.
    """

    knob: Knob
    choices: tuple[Choice, ...]
    inert: Mapping[str, frozenset[str]] = {}

    @property
    def name(self) -> str:
        """The knob's name."""
        return self.knob.name

    def choice(self, label: str) -> Choice:
        """Return the choice of that label."""
        return next(choice for choice in self.choices if choice.label == label)


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A knob that is not tried, and why."""

    knob: Knob
    why: str


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What the documentation advises: tried first.

    Attributes:
        labels: The choices that it makes, by dimension; all others stay at their default.
        why: Why it may help here, a sentence.
    """

    labels: Mapping[str, str]
    why: str


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
        parts.append(f"{knob.short if knob else name}={_elide(text)}")
    parts += [name for name, _ in config.providers if name != "CPUExecutionProvider"]
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
    """

    dimensions: tuple[Dimension, ...]
    n_default_threads: int
    skipped: tuple[Skipped, ...] = ()
    rules: tuple[Rule, ...] = ()

    def draw(self, choose: Choose) -> Candidate:
        """Make a candidate by asking `choose` for each dimension that makes a difference, in order."""
        labels: dict[str, str] = {}
        config = DEFAULT
        why = []
        for dimension in self.dimensions:
            if any(labels.get(name, DEFAULT_LABEL) in inert for name, inert in dimension.inert.items()):
                continue
            label = choose(dimension)
            labels[dimension.name] = label
            choice = dimension.choice(label)
            value = choice.value_by.get(labels.get(catalogue.INTRA_OP_NUM_THREADS.name, ""), choice.value)
            if value is not None:
                config = config.with_setting(dimension.knob.where, dimension.name, value)
                why.append(choice.why)
        return Candidate(config=canonical(config, self.n_default_threads), why=tuple(why), labels=labels)

    @functools.cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every distinct candidate once, the default first; no more than `MAX_CANDIDATES`."""
        return tuple(self._enumerate())

    @functools.cached_property
    def numbers(self) -> Mapping[str, int]:
        """Place of each candidate in `candidates`, by the key of its config."""
        return {candidate.config.key: number for number, candidate in enumerate(self.candidates)}

    def _enumerate(self) -> Iterator[Candidate]:
        seen: set[str] = set()
        pending: list[tuple[str, ...]] = [()]
        while pending:
            prefix = pending.pop()
            asked: list[Dimension] = []

            def choose(dimension: Dimension, prefix: tuple[str, ...] = prefix, asked: list[Dimension] = asked) -> str:
                asked.append(dimension)
                return prefix[len(asked) - 1] if len(asked) <= len(prefix) else DEFAULT_LABEL

            candidate = self.draw(choose)
            # Each dimension behind the prefix took its default; its other choices start branches of their own.
            for position in range(len(asked) - 1, len(prefix) - 1, -1):
                stem = prefix + (DEFAULT_LABEL,) * (position - len(prefix))
                pending.extend((*stem, choice.label) for choice in reversed(asked[position].choices[1:]))
            if candidate.config.key not in seen:
                seen.add(candidate.config.key)
                yield candidate
            if len(seen) >= MAX_CANDIDATES:
                return

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
    - One intra-op thread has no workers: spinning, affinity and block base do nothing.
    - ORT_PARALLEL does not pin the default pool: 0 threads is then the same as naming that number.
    """
    options = dict(config.session_options)
    entries = dict(config.session_config)
    if options.get("execution_mode") != "ORT_PARALLEL" or options.get("inter_op_num_threads") == 1:
        for name in ("execution_mode", "inter_op_num_threads"):
            options.pop(name, None)
        entries.pop(catalogue.INTER_OP_ALLOW_SPINNING.name, None)
    affinity = catalogue.INTRA_OP_THREAD_AFFINITIES.name
    n_threads = options.get("intra_op_num_threads", 0)
    parallel = "execution_mode" in options
    if n_threads == n_default_threads and affinity not in entries and (parallel or n_threads == 1):
        options.pop("intra_op_num_threads", None)
    if (n_threads or n_default_threads) == 1:
        for knob in (
            catalogue.INTRA_OP_THREAD_AFFINITIES,
            catalogue.INTRA_OP_ALLOW_SPINNING,
            catalogue.DYNAMIC_BLOCK_BASE,
        ):
            entries.pop(knob.name, None)
    for values in (options, entries):
        for name in list(values):
            if name in catalogue.KNOBS and values[name] == catalogue.KNOBS[name].default:
                del values[name]
    # In the catalogue's order, so that a config reads the same however it came about.
    return msgspec.structs.replace(config, session_options=_ordered(options), session_config=_ordered(entries))


def _ordered(values: dict[str, T]) -> dict[str, T]:
    order = {name: position for position, name in enumerate(catalogue.KNOBS)}
    return dict(sorted(values.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))


def build_space(host: Host, model: ModelInfo) -> SearchSpace:
    """Return what is worth trying for `model` on `host`."""
    dimensions: list[Dimension] = []
    skipped: list[Skipped] = []
    _add_execution(host, model, dimensions, skipped)
    _add_threads(host, dimensions, skipped)
    dimensions.append(
        Dimension(
            knob=catalogue.GRAPH_OPTIMIZATION_LEVEL,
            choices=(DEFAULT_CHOICE, *(Choice(label=name, value=name, why=why) for name, why in LEVELS.items())),
        )
    )
    return SearchSpace(
        dimensions=tuple(dimensions),
        n_default_threads=host.n_default_threads,
        skipped=tuple(skipped),
        rules=tuple(_rules(host, model, dimensions)),
    )


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

    cores = len(host.usable_cores)
    heavy = HEAVY & set(model.traits.ops)
    why = "several callers gain nothing from more" if heavy else "no operator of this graph has much work to share"
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


def _add_threads(host: Host, dimensions: list[Dimension], skipped: list[Skipped]) -> None:
    """Add the intra-op pool: its size, where its workers run, how they wait, and how work is split among them."""
    counts = thread_counts(host)
    one_thread = frozenset({"1"} | ({DEFAULT_LABEL} if host.n_default_threads == 1 else set()))
    alone = {catalogue.INTRA_OP_NUM_THREADS.name: one_thread}
    dimensions.append(
        Dimension(
            knob=catalogue.INTRA_OP_NUM_THREADS,
            choices=(DEFAULT_CHOICE, *(Choice(label=str(n), why=why, value=n) for n, why in counts.items())),
        )
    )
    affinities = _affinity_choices(host, counts)
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


def _affinity_choices(host: Host, counts: Mapping[int, str]) -> list[Choice]:
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
    return choices
