"""Builds the search space of a program: the same settings for all of its sessions, and a few for single models.

The baseline is the program as it is. A candidate is what it changes: a setting that the program sets itself can go
back to ONNX Runtime's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ortune.host import Host
from ortune.knobs import KNOBS, Config, SearchSpace, SpaceOptions, build_space, ids
from ortune.knobs.canonical import canonical, in_order
from ortune.knobs.dimension import DEFAULT_CHOICE, DEFAULT_LABEL, Choice, Dimension, Rule
from ortune.knobs.knob import Knob, Value
from ortune.knobs.rules import WHY_FITTING
from ortune.knobs.space import ENTRIES
from ortune.knobs.thread_dimensions import choose_fitting
from ortune.model import ModelInfo
from ortune.model.info import CONTROL_FLOW, Traits
from ortune.program.observation import SeenShapes

OF_SESSIONS = ("session_options", "session_config")

LIBRARY_VARIABLES = {
    "OpenBLAS": "OPENBLAS_NUM_THREADS",
    "MKL": "MKL_NUM_THREADS",
    "GNU OpenMP": "OMP_NUM_THREADS",
    "Intel OpenMP": "OMP_NUM_THREADS",
    "LLVM OpenMP": "OMP_NUM_THREADS",
    "OpenCV": "OPENCV_FOR_THREADS_NUM",
}
"""Environment variable with the number of threads of each library.

Sources: OpenBLAS, USAGE.md; Intel MKL developer guide; OpenMP 5.2, section 21; OpenCV, modules/core/src/parallel.cpp.
"""

SHARE_FOR_OWN_SETTINGS = 0.1
"""Share of the time of all sessions from which on a model gets settings of its own."""

RESTORED = "ort:"
"""Prefix of the labels of choices that restore ONNX Runtime's default."""

MOST_TUNED_ALONE = 4
"""Largest number of such models."""

USUALLY_TRIED = frozenset(
    {
        ids.GLOBAL_THREAD_POOL,
        ids.INTRA_OP_NUM_THREADS,
        ids.INTRA_OP_ALLOW_SPINNING,
        ids.FORCE_SPINNING_STOP,
        ids.DYNAMIC_BLOCK_BASE,
        ids.GRAPH_OPTIMIZATION_LEVEL,
        ids.ALLOCATOR,
        ids.ENABLE_CPU_MEM_ARENA,
        ids.ENABLE_MEM_PATTERN,
        ids.ARENA_SHRINKAGE,
    }
)
"""Knobs that are tried unless the user names others. A program takes seconds where a call of a session takes
milliseconds, so the space has the settings that matter most between sessions that share the CPUs."""

NOT_OFFERED = frozenset({"enable_profiling", "log_severity_level", "log_verbosity_level", "logid"})
"""Settings of programs that have no place in a search."""


class ProgramModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the program.

    Attributes:
        name: Its name in candidates.
        info: What was read from its file; None if it is not in a file that can be read.
        own: What the program sets for all of its sessions.
        varied: Settings in which these sessions differ, by name, with their different values. They are the program's
            own as long as a candidate does not set them.
        share: Share of the time of all sessions.
        n_sessions: Number of its sessions in one process.
        shapes: The input shapes that occurred, the most frequent ones first.
        most_concurrent: Largest number of calls of a session in progress at a time.
    """

    name: str
    info: ModelInfo | None
    own: Config
    varied: Mapping[str, tuple[Value | float, ...]] = {}
    share: float
    n_sessions: int = 1
    shapes: tuple[SeenShapes, ...] = ()
    most_concurrent: int = 0


class ProgramSpace(SearchSpace, frozen=True, kw_only=True, dict=True):
    """The search space of a program. In a candidate's config, ONNX Runtime's default is a value like others."""

    def _normalize(self, config: Config) -> Config:
        """Return a config without settings that have no effect."""
        restored = {
            field: {name: value for name, value in getattr(config, field).items() if is_default(name, value)}
            for field in OF_SESSIONS
        }
        normal = canonical(config, self.n_default_threads)
        return msgspec.structs.replace(
            normal, **{field: in_order({**getattr(normal, field), **values}) for field, values in restored.items()}
        )


def build_program_space(
    host: Host,
    models: Sequence[ProgramModel],
    options: SpaceOptions,
    *,
    libraries: Sequence[str] = (),
    own_workers: int = 0,
) -> ProgramSpace:
    """Return what is worth trying for a program.

    Args:
        host: The host.
        models: The models of the program.
        options: What the space is for, and what the user says about knobs.
        libraries: Other libraries with thread pools that the program has loaded.
        own_workers: Worker processes of the server as it is; 0 if their number is not a setting.

    Raises:
        UsageError: A request of the user cannot be met.
    """
    n_sessions = sum(model.n_sessions for model in models)
    # Threads of one session wait while another one or the program itself computes.
    options = msgspec.structs.replace(options, sessions=max(n_sessions, 1), has_background_load=True)
    space = build_space(host, merge_models(models), options)
    own = common_settings(models)
    wanted = {*options.only, *options.tune}
    dimensions = [
        offer_default(dimension, own)
        for dimension in space.dimensions
        if dimension.name in wanted or (dimension.name in USUALLY_TRIED and not options.only)
    ]
    known = {dimension.name for dimension in dimensions}
    if not options.only:
        dimensions += [
            dimension
            for name, value in own.items()
            if name not in known and name in KNOBS and name not in options.fix
            if (dimension := restore_default(KNOBS[name], value))
        ]
        dimensions += [*library_dimensions(libraries, options), *model_dimensions(models, host, options)]
        if own_workers:
            dimensions.append(workers_dimension(host, own_workers))
    return ProgramSpace(
        dimensions=tuple(dimensions),
        n_default_threads=space.n_default_threads,
        skipped=space.skipped,
        rules=tuple(make_rules(dimensions, choose_fitting(host, options), own)),
        base=space.base,
    )


def make_rules(dimensions: Sequence[Dimension], fitting: Mapping[str, str], own: Mapping[str, Value]) -> Iterator[Rule]:
    """Yield what is tried first: what keeps the threads of several sessions and libraries out of each other's way.

    Args:
        dimensions: The dimensions of the space.
        fitting: Labels of a pool that fits the host; empty where ONNX Runtime's own does.
        own: What the program sets for all sessions.
    """
    labels = {dimension.name: dimension.labels for dimension in dimensions}
    restored = {name: label for name, own in labels.items() for label in own[1:2] if label.startswith(RESTORED)}
    is_known = all(label in labels.get(name, ()) for name, label in fitting.items())
    if fitting and is_known and ids.INTRA_OP_NUM_THREADS not in own:
        yield Rule(labels=fitting, why=WHY_FITTING, fits_host=True)
    off = {ids.INTRA_OP_ALLOW_SPINNING: "off"} if "off" in labels.get(ids.INTRA_OP_ALLOW_SPINNING, ()) else {}
    if off:
        yield Rule(labels=off, why="workers of one session do not take CPUs from others while they wait")
    if restored:
        yield Rule(labels=restored, why="ONNX Runtime's defaults instead of the program's own settings")
    if off and restored:
        yield Rule(labels={**off, **restored}, why="no spinning, and ONNX Runtime's defaults otherwise")
    if pools := labels.get(ids.GLOBAL_THREAD_POOL, ())[1:]:
        why = "one pool for all sessions: no more threads than cores"
        yield Rule(labels={ids.GLOBAL_THREAD_POOL: pools[-1]}, why=why)
        if restored:
            why += ", and ONNX Runtime's defaults otherwise"
            yield Rule(labels={ids.GLOBAL_THREAD_POOL: pools[-1], **restored}, why=why)
    if "1" in labels.get(ids.INTRA_OP_NUM_THREADS, ()):
        yield Rule(labels={ids.INTRA_OP_NUM_THREADS: "1"}, why="one thread: no thread waits for another")
    libraries = {name: "1" for name in labels if name in LIBRARY_VARIABLES.values()}
    if libraries:
        yield Rule(labels=libraries, why="one thread for other libraries, which leaves the CPUs to the sessions")


def merge_models(models: Sequence[ProgramModel]) -> ModelInfo:
    """Return a model that has the traits of all models of a program."""
    traits = [model.info.traits for model in models if model.info]
    ops: dict[str, int] = {}
    for model_traits in traits:
        for name, number in model_traits.ops.items():
            ops[name] = ops.get(name, 0) + number
    return ModelInfo(
        path="",
        files=(),
        inputs=(),
        outputs=(),
        traits=Traits(
            opset=max((model_traits.opset for model_traits in traits), default=0),
            ir_version=max((model_traits.ir_version for model_traits in traits), default=0),
            n_nodes=sum(model_traits.n_nodes for model_traits in traits),
            width=max((model_traits.width for model_traits in traits), default=1),
            quantized=any(model_traits.quantized for model_traits in traits),
            control_flow=bool(CONTROL_FLOW & ops.keys()),
            ops=ops,
        ),
    )


def common_settings(models: Sequence[ProgramModel]) -> dict[str, Value]:
    """Return the settings other than ONNX Runtime's default that the program gives to the sessions of all models."""
    settings = [{**model.own.session_options, **model.own.session_config} for model in models]
    first = settings[0] if settings else {}
    return {name: value for name, value in first.items() if all(own.get(name) == value for own in settings)}


def is_default(name: str, value: Value) -> bool:
    """Return whether a value is ONNX Runtime's default of a knob."""
    return name in KNOBS and KNOBS[name].default == value


def offer_default(dimension: Dimension, own: Mapping[str, Value]) -> Dimension:
    """Return a dimension with ONNX Runtime's default as a choice if the program sets another value itself.

    The choice with the program's own value is left out, as it changes nothing.
    """
    name = dimension.name
    if name not in own:
        conditions = dict(dimension.no_effect_when)
        if own.get(ids.INTRA_OP_NUM_THREADS) == 1 and ids.INTRA_OP_NUM_THREADS in conditions:
            conditions[ids.INTRA_OP_NUM_THREADS] |= {DEFAULT_LABEL}
        return msgspec.structs.replace(dimension, no_effect_when=conditions)
    value = own[name]
    rest = [choice for choice in dimension.choices[1:] if choice.value is None or str(choice.value) != str(value)]
    return msgspec.structs.replace(dimension, choices=(own_choice(value), default_of(dimension.knob), *rest))


def restore_default(knob: Knob, value: Value) -> Dimension | None:
    """Return the choice between the program's own value of a knob and ONNX Runtime's default, if that can be set."""
    if knob.default == "" or knob.not_tunable:
        return None
    return Dimension(knob=knob, choices=(own_choice(value), default_of(knob)), alone=False)


def own_choice(value: Value) -> Choice:
    """Return the choice of what the program sets itself."""
    return msgspec.structs.replace(DEFAULT_CHOICE, why=f"the program's own {value}")


def default_of(knob: Knob) -> Choice:
    """Return the choice of ONNX Runtime's default."""
    return Choice(label=f"{RESTORED}{knob.default}", value=knob.default, why="ONNX Runtime's default")


def library_dimensions(libraries: Sequence[str], options: SpaceOptions) -> list[Dimension]:
    """Return the numbers of threads of other libraries that the program has loaded."""
    found = {}
    for library in libraries:
        name = LIBRARY_VARIABLES.get(library, "")
        if name and name not in found and name not in options.fix and name not in options.tune:
            why = f"one thread for {library}: its threads do not compete with those of the sessions"
            choices = (DEFAULT_CHOICE, Choice(label="1", value="1", why=why))
            found[name] = Dimension(knob=KNOBS[name], choices=choices)
    return list(found.values())


def model_dimensions(models: Sequence[ProgramModel], host: Host, options: SpaceOptions) -> list[Dimension]:
    """Return settings of single models that take a good part of the time.

    They are tried one at a time. Those of different models that win are combined.
    """
    if len(models) < 2 or host.n_default_threads < 2:
        return []
    tried = [model for model in models if model.share >= SHARE_FOR_OWN_SETTINGS][:MOST_TUNED_ALONE]
    choices: tuple[tuple[str, Value, str], ...] = (
        (ids.INTRA_OP_NUM_THREADS, 1, "one thread"),
        (ids.INTRA_OP_ALLOW_SPINNING, "0", "no spinning"),
    )
    return [
        Dimension(
            knob=msgspec.structs.replace(KNOBS[name], where="models", provider=model.name, alias=model.name),
            choices=(DEFAULT_CHOICE, Choice(label=str(value), value=value, why=f"{text} for {model.name} alone")),
            alone=True,
            of=model.name,
        )
        for model in tried
        for name, value, text in choices
        if name not in options.fix
    ]


def workers_dimension(host: Host, own: int) -> Dimension:
    """Return the numbers of worker processes of a server."""
    n_cores = len(host.usable_cores)
    counts = sorted({1, max(1, n_cores // 2), n_cores, 2 * n_cores} - {own})
    choices = (
        Choice(label=str(n), value=n, why=f"{n} worker process{'' if n == 1 else 'es'}, instead of {own}")
        for n in counts
    )
    return Dimension(knob=KNOBS[ids.WORKERS], choices=(own_choice(own), *choices), default_number=own)


def resolve(config: Config, model: ProgramModel) -> Config:
    """Return the settings of a model's sessions under a candidate, as a record holds them.

    A record holds what differs from ONNX Runtime's default, what the program sets itself included.

    Args:
        config: The candidate.
        model: The model.
    """
    own, changed = model.own, config.of_model(model.name)
    fields = {}
    for field in ENTRIES:
        both = {**getattr(own, field), **getattr(changed, field)}
        fields[field] = in_order({name: value for name, value in both.items() if not is_default(name, value)})
    return msgspec.structs.replace(changed, **fields)
