"""Every option of every command, declared once.

A request holds the options of one command, one field per option. The command line, `ortune.toml`, the Python API, the
help texts and docs/options.md are generated from these declarations. To add an option, add a field here and use
it where the request is used; CONTRIBUTING.md shows an example.

Options that several commands share are in a separate group (`LoadOptions`, `InputsOptions`, ...) or have an alias
(`Budget`, `Seed`, ...). Fields hold parsed values: seconds, counts, names. Properties combine several fields, as in
`SearchRequest.goal`. Only the standard library is imported at module level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from ortune.bounds import MOST_ITEMS, MOST_MODELS, MOST_PROCESSES, MOST_TOLERANCE
from ortune.errors import UsageError
from ortune.fleet_options import FleetCompareRequest, FleetDeployRequest, FleetSendRequest, Storage
from ortune.options import (
    CI,
    CLI_AND_PYTHON,
    CLI_ONLY,
    EXPORT,
    INPUTS,
    LOAD,
    MEASURING,
    OBJECTIVE,
    OUTPUTS,
    SEVERAL,
    SPACE,
    WRITING,
    Option,
    Request,
    parse_choice,
    parse_count,
    parse_dims,
    parse_duration_s,
    parse_names,
    parse_number,
    parse_shapes,
    parse_share,
    parse_text,
    parse_texts,
)
from ortune.program_options import (
    AnyHost,
    LoadOptions,
    Pick,
    ProgramRequest,
    Quiet,
    QuietOptions,
    Trust,
    parse_output,
    parse_output_name,
    parse_path,
    parse_rate_per_s,
)

if TYPE_CHECKING:
    from ortune.knobs.knob import Value
    from ortune.workload import Goal, InputOptions, Limit, Load, Objective, Tolerance
    from ortune.workload.lengths import LengthDistribution
else:
    # `options_of` evaluates annotations, which must not import these modules.
    Value = Goal = InputOptions = LengthDistribution = Limit = Load = Objective = Tolerance = Any

StrategyName = Literal["adaptive", "tpe", "random", "exhaustive"]
"""The order in which candidates are screened.

- "adaptive": the most promising first, based on similar models, the documentation and the measurements so far.
- "tpe": Optuna's tree-structured Parzen estimator.
- "random": in random order.
- "exhaustive": all candidates, in the order of the space.
"""

PATH = "str | PathLike[str]"

MOST_BATCHES = 32
"""Largest number of batch sizes to choose from: each multiplies the number of candidates."""

USUAL_BATCHES = (1, 2, 4, 8, 16, 32)
"""Batch sizes that `auto` stands for."""


def parse_objective_name(value: Any) -> Objective:
    """Parse the name of a figure; see `ortune.workload`."""
    from ortune.workload import parse_objective

    return parse_objective(parse_text(value))


def list_objectives() -> list[str]:
    """Return what an objective can be; see `ortune.workload`."""
    from ortune.workload.figures import list_figures_of_models, list_names

    return list_names(list_figures_of_models())


def parse_objectives(value: Any) -> tuple[Objective, ...]:
    """Parse names of figures."""
    return tuple(parse_objective_name(name) for name in parse_names(value))


def parse_limits(value: Any) -> tuple[Limit, ...]:
    """Parse limits. `Limit` objects are returned unchanged."""
    from ortune.workload import Limit, parse_limit

    given = [value] if isinstance(value, (str, Limit)) else list(value)
    return tuple(limit if isinstance(limit, Limit) else parse_limit(parse_text(limit)) for limit in given)


def parse_batches(value: Any) -> tuple[int, ...]:
    """Parse `8`, `"1,2,4"`, `[1, 2, 4]` or `"auto"`: different numbers of items in a call."""
    if value == "auto":
        return USUAL_BATCHES
    if isinstance(value, str):
        given: Sequence[Any] = parse_names(value)
    elif isinstance(value, Sequence):
        given = value
    else:
        given = [value]
    batches = tuple(map(parse_count(1, MOST_ITEMS), given))
    if not batches or len(set(batches)) < len(batches) or len(batches) > MOST_BATCHES:
        raise UsageError(
            f"{','.join(map(str, batches))}: must be 1 to {MOST_BATCHES} different numbers.",
            "Write {batch=1,2,4,8}, or {batch=auto} for powers of two up to 32.",
        )
    return batches


def parse_length_distribution(value: Any) -> LengthDistribution:
    """Parse lengths; see `ortune.workload.lengths`."""
    from ortune.workload.lengths import parse_lengths

    return parse_lengths(value)


def parse_providers(value: Any) -> tuple[str, ...] | None:
    """Return names of execution providers, or None for `auto`."""
    names = parse_names(value)
    if names == ("auto",):
        return None
    if not names or "auto" in names:
        raise UsageError(f"{','.join(names)}: is not a list of execution providers.", "Write {provider=cpu,cuda}.")
    return names


def parse_named_provider(value: Any) -> tuple[str, ...]:
    """Return the name of an execution provider, in a tuple.

    Raises:
        UsageError: The value is `auto`, or several names.
    """
    names = parse_providers(value)
    if names is None:
        raise UsageError("auto: is not the name of an execution provider.", "Write {provider=cpu}, or omit the option.")
    if len(names) > 1:
        raise UsageError(f"{','.join(names)}: this command is for one execution provider.", "Name one of them.")
    return names


def parse_slo(value: Any) -> Limit:
    """Parse a limit for the latency in units of time, such as `p99<50ms`.

    Raises:
        UsageError: The value is no limit, or one of another kind.
    """
    from ortune.workload import FIGURES

    hint = "Write {slo='p99<50ms'}."
    limits = parse_limits(value)
    if len(limits) != 1:
        raise UsageError(f"{value}: a plan has one target.", hint)
    (limit,) = limits
    if limit.relative or not FIGURES[limit.figure].is_latency:
        raise UsageError(f"{limit.text}: the target must be a latency in units of time.", hint)
    return limit


def parse_slos(value: Any) -> tuple[tuple[str, Limit], ...]:
    """Parse targets for the latency: `p99<50ms`, or `a=p99<50ms` for one model.

    Returns:
        Each target with the name of its model, which is empty if it is for all.

    Raises:
        UsageError: A text is no target.
    """
    if isinstance(value, Mapping):
        return tuple((parse_text(name), parse_slo(limit)) for name, limit in value.items())
    found = []
    for entry in [value] if isinstance(value, str) or not isinstance(value, (list, tuple)) else value:
        name, target = "", entry
        if isinstance(entry, str):
            # The target may have an equals sign of its own: p99<=50ms.
            place = entry.rfind("=", 0, entry.find("<") if "<" in entry else None)
            name, target = (entry[:place], entry[place + 1 :]) if place > 0 else ("", entry)
        found.append((name, parse_slo(target)))
    return tuple(found)


def parse_model_rates(value: Any) -> tuple[tuple[str, float], ...]:
    """Parse models with their rates: `a.onnx=50/s`, several of these texts, or a mapping.

    What follows the last equals sign is the rate, as names of files may contain others.

    Returns:
        The path of each model, and its requests per second.

    Raises:
        UsageError: A model has no rate, or is given twice, or there is only one.
    """
    hint = "Write a.onnx=50/s b.onnx=10/s."
    if isinstance(value, Mapping):
        pairs = [(parse_text(path), rate) for path, rate in value.items()]
    else:
        pairs = []
        for text in parse_texts(value):
            path, equals, rate = text.rpartition("=")
            if not equals or not path or Path(text).is_file():
                why = " It is the name of a file, of which no part is taken for a rate." if equals else ""
                raise UsageError(
                    f"{text}: has no rate, which each of several models needs.{why}", f"Write {text}=50/s."
                )
            pairs.append((path, rate))
    found = []
    for path, rate in pairs:
        try:
            found.append((path, parse_rate_per_s(rate)))
        except UsageError as error:
            raise UsageError(f"{path}={error.message}", hint) from None
    if len(found) == 1:
        path, rate_per_s = found[0]
        raise UsageError(
            f"{path}={rate_per_s:g}/s: is a single model.", f"Write: ortune plan {path} --rate {rate_per_s:g}/s."
        )
    paths = [path for path, _ in found]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(f"{path}: is given twice.", "Add the rates: it is one model.")
    if not 1 < len(found) <= MOST_MODELS:
        raise UsageError(f"{len(found)} models: must be 2 to {MOST_MODELS}.", hint)
    return tuple(found)


def parse_process_counts(value: Any) -> tuple[int, ...]:
    """Parse numbers of processes: `4`, `"1,2,4"` or `[1, 2, 4]`."""
    given = value if isinstance(value, (list, tuple)) else [value]
    parts = [part for entry in given for part in (entry.split(",") if isinstance(entry, str) else [entry])]
    if not parts:
        raise UsageError("there are no numbers of processes.", "Write {processes=1,2,4}.")
    return tuple(sorted({parse_count(1, MOST_PROCESSES)(part) for part in parts}))


def parse_price(value: Any) -> float:
    """Parse a price per hour: `0.17` or `"0.17/h"`, in any currency."""
    text = str(value).strip()
    return parse_number(text.removesuffix("/h").strip() if isinstance(value, str) else value)


LARGEST_HEADROOM = 0.99


def parse_headroom(value: Any) -> float:
    """Parse a share of the capacity: `0.2` or `"20%"`.

    Raises:
        UsageError: It is not a share, or so large that almost nothing of the capacity would be used.
    """
    share = parse_share(value)
    if share > LARGEST_HEADROOM:
        raise UsageError(f"{value}: must be at most {LARGEST_HEADROOM:.0%}.", "Write {headroom=20%}.")
    return share


def parse_age_s(value: Any) -> float:
    """Parse `30d`, or a shorter duration such as `12h`.

    Returns:
        Seconds, above 0.

    Raises:
        UsageError: The value is not a duration, or not above 0.
    """
    text = str(value).strip()
    if text.endswith("d"):
        return 86400 * parse_number(text[:-1])
    return parse_duration_s(value)


def split_knob_values(value: Any) -> Mapping[str, Any]:
    """Return values to try by knob, unchecked; see `ortune.knobs.parse_knobs`."""
    from ortune.knobs.parse_knobs import split_tune

    return value if isinstance(value, Mapping) else split_tune(parse_texts(value))


def split_fixed_values(value: Any) -> Mapping[str, Any]:
    """Return a value by knob, unchecked; see `ortune.knobs.parse_knobs`."""
    from ortune.knobs.parse_knobs import split_fix

    return value if isinstance(value, Mapping) else split_fix(parse_texts(value))


def check_dims(batches: Sequence[int], dims: Mapping[str, Sequence[int]]) -> None:
    """Check that no dimension has a size of its own that is a number of items in a call.

    Raises:
        UsageError: One has, by the name of the dimension.
    """
    from ortune.workload.dimensions import BATCH_NAME

    for name, sizes in dims.items():
        if batches and BATCH_NAME.fullmatch(name) and tuple(sizes) != (1,):
            given = ",".join(map(str, sizes))
            raise UsageError(
                f"{','.join(map(str, batches))}: contradicts {{dim={name}={given}}}.",
                "Leave {dim} out: samples are single items, which {batch} puts together.",
                option="batch",
            )


Model = Annotated[
    str,
    Option(
        help="Path of the ONNX file.",
        metavar="MODEL",
        positional=True,
        parse=parse_text,
        accepts=PATH,
        interfaces=CLI_AND_PYTHON,
    ),
]
Command = Annotated[
    tuple[str, ...],
    Option(
        help="The program and its arguments, after --.",
        metavar="COMMAND",
        positional=True,
        repeatable=True,
        parse=parse_texts,
        accepts="Sequence[str]",
        interfaces=CLI_AND_PYTHON,
    ),
]
Config = Annotated[
    Any,
    Option(
        help="A record or bundle that `ortune search` or `ortune merge` wrote.",
        metavar="CONFIG",
        positional=True,
        accepts=f"{PATH} | Record",
        interfaces=CLI_AND_PYTHON,
    ),
]


def make_budget_option(examples: str, default: str) -> Option:
    """Return the option for the time that a command may spend.

    Args:
        examples: Values for the help.
        default: How long it is without the option.
    """
    return Option(
        help=f"Time to spend, such as {examples}.",
        metavar="TIME",
        parse=parse_duration_s,
        accepts="str | float | None",
        default=default,
        panel=MEASURING,
    )


Budget = Annotated[
    float | None,
    make_budget_option("60s or 5m", "what the model and the load need"),
]
SearchBudget = Annotated[
    float | None,
    make_budget_option("60s or 5m", "a minute; more for slow models, slow programs and high percentiles"),
]
Sustained = Annotated[
    bool,
    Option(
        help="Compare at the speed that the host sustains: each config alone, after a minute of calls. For laptops and "
        "other hosts with a power limit. Takes a quarter of an hour.",
        accepts="bool",
        panel=MEASURING,
    ),
]
Trials = Annotated[
    int | None,
    Option(
        help="Maximum number of candidates to screen.",
        metavar="N",
        parse=parse_count(1),
        accepts="int | None",
        panel=MEASURING,
    ),
]
Until = Annotated[
    float | None,
    Option(
        help="End screening as soon as no candidate is likely to gain this much more, such as 5%.",
        metavar="SHARE",
        parse=parse_share,
        accepts="str | float | None",
        panel=MEASURING,
    ),
]
Arrivals = Annotated[
    str | None,
    Option(
        help="Whether requests arrive at random (poisson) or at equal intervals (periodic).",
        metavar="poisson|periodic",
        parse=parse_choice("poisson", "periodic"),
        accepts='Literal["poisson", "periodic"] | None',
        default="poisson",
        panel=LOAD,
        names="nothing",
    ),
]
ObjectiveName = Annotated[
    "Objective | None",
    Option(
        help="What to optimize: {choices}.",
        metavar="FIGURE",
        parse=parse_objective_name,
        accepts="Objective | None",
        default="p50, or the mean under a CPU quota; throughput with several clients or batches; p99 with a rate",
        panel=OBJECTIVE,
        names="nothing",
        choices=list_objectives,
    ),
]
_LIMITS = Option(
    help="A limit for the result, such as 'p99<20ms', 'memory<500MB' or 'throughput>100/s'. 'p99<1.3x' is relative "
    "to the default.",
    metavar="FIGURE<BOUND",
    parse=parse_limits,
    accepts="str | Limit | Sequence[str | Limit]",
    repeatable=True,
    panel=OBJECTIVE,
    names="nothing",
)
Limits = Annotated["tuple[Limit, ...]", _LIMITS]
GateLimits = Annotated[
    "tuple[Limit, ...]",
    _LIMITS._replace(
        help="A limit for HEAD, such as 'p99<20ms', 'memory<500MB' or 'throughput>100/s'. 'p99<1.3x' is relative to "
        "BASE."
    ),
]
Batch = Annotated[
    tuple[int, ...],
    Option(
        help="Numbers of items per call to choose from, or auto for powers of two up to 32. The first is the "
        "baseline's. Throughput and CPU time are per item.",
        metavar="N,...",
        parse=parse_batches,
        accepts="int | str | Sequence[int]",
        default="calls with the inputs as they are",
        panel=LOAD,
    ),
]
Beside = Annotated[
    str | None,
    Option(
        help="A command to run during measurements, to simulate co-located load. It is always stopped at the end.",
        metavar="COMMAND",
        parse=parse_text,
        accepts="str | None",
        panel=LOAD,
        names="program",
    ),
]
SearchStorage = Annotated[
    str | None,
    Option(
        help="Search on several hosts: run the same command on each of them. postgresql://USER@HOST/DATABASE, "
        "mysql://USER@HOST/DATABASE, grpc://HOST:PORT, or a file such as fleet.journal that all of them see. "
        "ORTUNE_STORAGE or ORTUNE_STORAGE_FILE can hold a URL with a password.",
        metavar="URL",
        parse=parse_text,
        accepts="str | None",
        default="this host only",
        interfaces=CLI_AND_PYTHON,
        panel=MEASURING,
    ),
]
Data = Annotated[
    str | None,
    Option(
        help="Real input data, one sample or many: an .npz file, or a folder of .npz or input_*.pb files.",
        metavar="PATH",
        parse=parse_text,
        accepts=f"{PATH} | None",
        default="synthesized",
        panel=INPUTS,
        names="file",
    ),
]
Provider = Annotated[
    tuple[str, ...] | None,
    Option(
        help="Execution providers to choose from: cpu, cuda, tensorrt, openvino, others. auto takes those that work "
        "here. To select a device of a plugin, append it after a colon: openvino:gpu.",
        metavar="PROVIDER,...",
        parse=parse_providers,
        accepts="str | Sequence[str] | None",
        default="auto",
        panel=SPACE,
        names="nothing",
    ),
]
AllowApproximate = Annotated[
    bool,
    Option(
        help="Also try settings that change outputs beyond rounding. The error is reported.",
        accepts="bool",
        panel=SPACE,
    ),
]
RelativeTolerance = Annotated[
    float | None,
    Option(
        help=f"Allowed difference of outputs, relative to each value: at most {MOST_TOLERANCE:g}.",
        metavar="X",
        parse=parse_number,
        accepts="float | None",
        default="what suits the model",
        panel=OUTPUTS,
    ),
]
AbsoluteTolerance = Annotated[
    float | None,
    Option(
        help=f"Allowed difference of outputs, relative to the largest value of the output: at most {MOST_TOLERANCE:g}.",
        metavar="X",
        parse=parse_number,
        accepts="float | None",
        default="what suits the model",
        panel=OUTPUTS,
    ),
]
Verify = Annotated[
    bool,
    Option(
        help="Measure whether the recorded gain holds on this host. Exit code 0 if it does, 1 if not, 3 if it is "
        "uncertain.",
        accepts="bool",
        interfaces=CLI_ONLY,
    ),
]
Update = Annotated[
    bool,
    Option(
        help="With --verify: add the result to the record. Once there are three occasions, the gain over all of them "
        "is stated, with how much it varies.",
        accepts="bool",
        interfaces=CLI_ONLY,
    ),
]
BundleOutput = Annotated[
    str,
    Option(
        help="Where to write the bundle; - for stdout.",
        metavar="FILE",
        parse=parse_output_name,
        flags=("-o",),
        interfaces=CLI_ONLY,
        panel=WRITING,
    ),
]
MaxSlowdown = Annotated[
    tuple[str, ...],
    Option(
        help="How much slower HEAD may be: 3%, or memory=5% for one objective.",
        metavar="SHARE",
        parse=parse_texts,
        accepts="str | Sequence[str]",
        repeatable=True,
        default="3%",
        names="nothing",
    ),
]
Also = Annotated[
    tuple[Objective, ...],
    Option(
        help="Further objectives to gate, such as memory,load-time.",
        metavar="FIGURE,...",
        parse=parse_objectives,
        accepts="str | Sequence[str]",
        repeatable=True,
        names="nothing",
    ),
]
GateBudget = Annotated[
    float,
    Option(
        help="Time after which a gate ends, decided or not.",
        metavar="TIME",
        parse=parse_duration_s,
        accepts="str | float",
        default="3m",
        panel=MEASURING,
    ),
]
Busy = Annotated[bool, Option(help="Decide even on a busy host.", accepts="bool", panel=MEASURING)]
Seed = Annotated[
    int,
    Option(help="Random seed.", metavar="N", parse=parse_count(0), accepts="int", default="0", panel=MEASURING),
]
Resume = Annotated[
    bool,
    Option(
        help="Resume the interrupted or killed search for the same record. What it measured is not measured again. If "
        "there is none, a new search starts.",
        accepts="bool",
        interfaces=CLI_AND_PYTHON,
        panel=WRITING,
    ),
]
Restart = Annotated[
    bool,
    Option(
        help="Start over, and discard what an interrupted or killed search for the same record measured.",
        accepts="bool",
        interfaces=CLI_AND_PYTHON,
        panel=WRITING,
    ),
]
Open = Annotated[
    bool,
    Option(
        help="Open the report in the browser. Needs the extra ortune[report].",
        accepts="bool",
        interfaces=CLI_ONLY,
        panel=WRITING,
    ),
]
Explain = Annotated[
    bool,
    Option(
        help="Explain the statistics behind the result.",
        accepts="bool",
        interfaces=CLI_ONLY,
        panel=WRITING,
    ),
]
Json = Annotated[
    bool,
    Option(
        help="Print JSON to stdout; human-readable output goes to stderr.",
        accepts="bool",
        interfaces=CLI_ONLY,
        panel=WRITING,
    ),
]


class WorkloadOptions(LoadOptions):
    """How calls arrive, and what to optimize."""

    arrivals: Arrivals = None
    pin_processes: Annotated[
        bool,
        Option(
            help="Run each of several {processes} on its own part of the CPUs, with the same number of cores.",
            accepts="bool",
            panel=LOAD,
        ),
    ] = False
    objective: ObjectiveName = None

    @property
    def goal(self) -> Goal:
        """Load, objectives and limits.

        Raises:
            UsageError: The options contradict each other.
        """
        from ortune.workload import make_goal

        return make_goal(
            self.load,
            self.objective,
            getattr(self, "pareto", ()) or (),
            getattr(self, "limit", ()) or (),
            getattr(self, "batch", ()) or (),
            sustained=getattr(self, "sustained", False),
        )


class SizesOptions(Request):
    """Sizes of the model's inputs."""

    dim: Annotated[
        Mapping[str, tuple[int, ...]],
        Option(
            help="Size of a symbolic dimension, or several sizes as in batch=1,8.",
            metavar="NAME=N",
            parse=parse_dims,
            accepts="Mapping[str, int | Sequence[int]] | Sequence[str]",
            repeatable=True,
            panel=INPUTS,
            names="nothing",
        ),
    ] = {}
    shape: Annotated[
        Mapping[str, tuple[int, ...]],
        Option(
            help="Shape of an input, such as data=1x3x224x224.",
            metavar="INPUT=SHAPE",
            parse=parse_shapes,
            accepts="Mapping[str, Sequence[int]] | Sequence[str]",
            repeatable=True,
            panel=INPUTS,
            names="nothing",
        ),
    ] = {}

    @property
    def input_options(self) -> InputOptions:
        """The user's options for inputs."""
        from ortune.workload import InputOptions

        data = getattr(self, "inputs", None)
        return InputOptions(dims=self.dim, shapes=self.shape, data=data, seed=getattr(self, "seed", 0) or 0)


class InputsOptions(SizesOptions):
    """Input data of the model."""

    inputs: Data = None

    @property
    def given_inputs(self) -> InputOptions | None:
        """The user's options for inputs, or None if there are none."""
        return self.input_options if self.dim or self.shape or self.inputs is not None else None


NamedProvider = Annotated[
    tuple[str, ...] | None,
    Option(
        help="Execution provider: cpu, cuda, tensorrt, openvino or another. To select a device of a plugin, append it "
        "after a colon: openvino:gpu.",
        metavar="PROVIDER",
        parse=parse_named_provider,
        accepts="str | Sequence[str] | None",
        default="cpu",
        panel=SPACE,
        names="nothing",
    ),
]


class KnobOptions(Request):
    """Which settings a search may try."""

    provider: Provider = None
    tune: Annotated[
        Mapping[str, tuple[Value, ...]],
        Option(
            help="Values of a knob to try in addition to its default. `ortune knobs` lists all knobs.",
            metavar="KNOB=V1,V2",
            parse=split_knob_values,
            accepts="Mapping[str, Value | Sequence[Value]] | Sequence[str]",
            repeatable=True,
            panel=SPACE,
            names="settings",
        ),
    ] = {}
    fix: Annotated[
        Mapping[str, Value],
        Option(
            help="A setting of every candidate, including the default.",
            metavar="KNOB=VALUE",
            parse=split_fixed_values,
            accepts="Mapping[str, Value] | Sequence[str]",
            repeatable=True,
            panel=SPACE,
            names="settings",
        ),
    ] = {}
    only: Annotated[
        tuple[str, ...],
        Option(
            help="Try these knobs and no others.",
            metavar="KNOB,...",
            parse=parse_names,
            accepts="str | Sequence[str]",
            repeatable=True,
            panel=SPACE,
            names="nothing",
        ),
    ] = ()
    allow_approximate: AllowApproximate = False

    def check(self) -> None:
        """Check the knobs, also together. The valid values depend on whether approximations are allowed."""
        if self.tune or self.fix or self.only:
            from ortune.knobs.parse_knobs import check_fix, check_only, check_together, check_tune

            approximate, providers = self.allow_approximate, self.provider or ()
            self.__dict__["tune"] = check_tune(self.tune, approximate=approximate, providers=providers)
            self.__dict__["fix"] = check_fix(self.fix, approximate=approximate, providers=providers)
            self.__dict__["only"] = check_only(self.only, providers=providers)
            check_together(self.tune, self.fix, self.only)


class ToleranceOptions(Request):
    """How far outputs may differ."""

    rtol: RelativeTolerance = None
    atol: AbsoluteTolerance = None

    @property
    def tolerance(self) -> Tolerance | None:
        """The tolerance, or None if the user gave none."""
        from ortune.workload import Tolerance

        if self.rtol is None and self.atol is None:
            return None
        default = Tolerance()
        return Tolerance(
            relative=default.relative if self.rtol is None else self.rtol,
            absolute=default.absolute if self.atol is None else self.atol,
        )


class ConsoleOptions(Request):
    """What a command prints."""

    json: Json = False
    quiet: Quiet = False


class ExplainOptions(ConsoleOptions):
    """What a command prints whose result can be explained."""

    explain: Explain = False


class SearchOutputOptions(ExplainOptions):
    """What a search prints and shows."""

    open: Open = False


class JsonOptions(Request):
    """What a command prints."""

    json: Json = False


class SpaceRequest(WorkloadOptions, KnobOptions, InputsOptions):
    """Options of `ortune space`."""

    model: Model
    batch: Batch = ()


class SuggestRequest(WorkloadOptions, KnobOptions):
    """Options of `ortune suggest`."""

    model: Model
    provider: NamedProvider = None
    beside: Annotated[
        str | None,
        Option(
            help="A command that uses the CPUs in production, too. It is not run.",
            metavar="COMMAND",
            parse=parse_text,
            accepts="str | None",
            panel=LOAD,
            names="program",
        ),
    ] = None
    history: Annotated[
        bool,
        Option(
            help="Use what earlier searches of the same graph found on this host.",
            accepts="bool",
            negatable=True,
            panel=SPACE,
        ),
    ] = True
    output: Annotated[
        Path | None,
        Option(
            help="Also write the suggestion as JSON to this file; - for stdout. It is not a record, because nothing is "
            "proven.",
            metavar="FILE",
            parse=parse_output,
            accepts=f"{PATH} | None",
            flags=("-o",),
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = None


class SearchRequest(WorkloadOptions, KnobOptions, InputsOptions, ToleranceOptions):
    """Options of `ortune search`.

    Attributes:
        worker_command: Program and arguments that start a worker; None for ortune's own.
        memory_limit_bytes: Private memory that one worker may use; None for a share of the free memory.
    """

    model: Model
    output: Annotated[
        Path | None,
        Option(
            help="Where to write the record; - for stdout.",
            metavar="FILE",
            parse=parse_output,
            accepts=f"{PATH} | None",
            default="MODEL.ortune.json; in Python, none",
            flags=("-o",),
            interfaces=CLI_AND_PYTHON,
            panel=WRITING,
        ),
    ] = None
    batch: Batch = ()
    limit: Limits = ()
    pareto: Annotated[
        tuple[Objective, ...],
        Option(
            help="Find the Pareto front of two or three objectives, such as p99,cpu, instead of one winner.",
            metavar="FIGURE,...",
            parse=parse_objectives,
            accepts="str | Sequence[str]",
            panel=OBJECTIVE,
            names="nothing",
        ),
    ] = ()
    beside: Beside = None
    budget: SearchBudget = None
    sustained: Sustained = False
    trials: Trials = None
    until: Until = None
    build_timeout: Annotated[
        float,
        Option(
            help="Time that an execution provider may take to compile the model for one candidate. All candidates "
            "together may take three times as long.",
            metavar="TIME",
            parse=parse_duration_s,
            accepts="str | float",
            default="10m",
            panel=MEASURING,
        ),
    ] = 600.0
    simplify: Annotated[
        Path | None,
        Option(
            help="Try the settings of this record and no others, to find those that contribute.",
            metavar="RECORD",
            parse=parse_path,
            accepts=f"{PATH} | None",
            panel=SPACE,
            names="file",
        ),
    ] = None
    strategy: Annotated[
        StrategyName,
        Option(
            help="Order in which candidates are screened: adaptive, tpe, random or exhaustive.",
            metavar="adaptive|tpe|random|exhaustive",
            parse=parse_choice(*get_args(StrategyName)),
            accepts='Literal["adaptive", "tpe", "random", "exhaustive"]',
            default="adaptive",
            panel=MEASURING,
        ),
    ] = "adaptive"
    history: Annotated[
        bool,
        Option(
            help="Start from what earlier searches of similar models found on this host, and add to it.",
            accepts="bool",
            negatable=True,
            panel=MEASURING,
        ),
    ] = True
    study: Annotated[
        Path | None,
        Option(
            help="Keep Optuna's study in this file: .db (SQLite) or .journal.",
            metavar="FILE",
            parse=parse_path,
            accepts=f"{PATH} | None",
            interfaces=CLI_AND_PYTHON,
            panel=WRITING,
        ),
    ] = None
    storage: SearchStorage = None
    resume: Resume = False
    restart: Restart = False
    seed: Seed = 0
    worker_command: tuple[str, ...] | None = None
    memory_limit_bytes: int | None = None

    def check(self) -> None:
        """Check that the options go together."""
        super().check()
        _ = self.goal
        check_dims(self.batch, self.dim)
        check_resume(self)
        if self.until is not None and (self.pareto or self.strategy != "adaptive"):
            raise UsageError(
                "needs a single objective and the adaptive strategy, which knows what is left to gain.",
                "Leave it out.",
                option="until",
            )
        if self.storage and (self.resume or self.restart):
            raise UsageError(
                "a search on several hosts always goes on with what the storage has.",
                "Leave out {resume} and {restart}.",
                option="storage",
            )


def check_resume(request: SearchRequest | ProgramSearchRequest) -> None:
    """Check that a search is not to go on and to start anew.

    Raises:
        UsageError: It is.
    """
    if request.resume and request.restart:
        raise UsageError("and {restart} contradict each other.", "Choose one of them.", option="resume")


class ProgramRunOptions(Request):
    """What a program needs to be run, and how its outputs are compared. Records do not hold it."""

    url: Annotated[
        str | None,
        Option(
            help="The program is a server. Send requests to this URL, on this host. {port} in it and in COMMAND stands "
            "for a free port.",
            metavar="URL",
            parse=parse_text,
            accepts="str | None",
            panel=LOAD,
            names="host",
        ),
    ] = None
    body: Annotated[
        tuple[str, ...],
        Option(
            help="A file with the body of the requests, which are then POST requests. Several bodies are sent in turn, "
            "or drawn at random at a rate.",
            metavar="FILE",
            parse=parse_texts,
            accepts=f"{PATH} | Sequence[{PATH}]",
            repeatable=True,
            panel=LOAD,
            names="file",
        ),
    ] = ()
    header: Annotated[
        tuple[str, ...],
        Option(
            help="A header field of the requests, such as 'Content-Type: image/png'.",
            metavar="NAME:VALUE",
            parse=parse_texts,
            accepts="str | Sequence[str]",
            repeatable=True,
            panel=LOAD,
            names="nothing",
        ),
    ] = ()
    health: Annotated[
        str | None,
        Option(
            help="URL that answers once the server is ready.",
            metavar="URL",
            parse=parse_text,
            accepts="str | None",
            default="the URL of the requests",
            panel=LOAD,
            names="host",
        ),
    ] = None
    stdin: Annotated[
        Path | None,
        Option(
            help="A file that the program reads from its stdin.",
            metavar="FILE",
            parse=parse_path,
            accepts=f"{PATH} | None",
            default="empty",
            panel=INPUTS,
            names="file",
        ),
    ] = None
    check_command: Annotated[
        str | None,
        Option(
            help="A command that gets the output of the program on its stdin, and exits with 0 if the output is right.",
            metavar="COMMAND",
            parse=parse_text,
            accepts="str | None",
            default="compare with the output of the program as it is",
            panel=OUTPUTS,
            names="program",
        ),
    ] = None
    ignore_outputs: Annotated[
        bool, Option(help="Compare only the exit status of the program.", accepts="bool", panel=OUTPUTS)
    ] = False


NOT_FOR_PROGRAMS = {
    "sessions": "create their own sessions",
    "processes": "start their own processes",
    "provider": "choose execution providers themselves",
}
"""Options of the search of a model that a search of a program refuses, and why: what programs do."""


class ProgramOptions(LoadOptions, ProgramRunOptions):
    """What is measured of a program."""

    call: Annotated[
        str | None,
        Option(
            help="Time the calls of this function of the program, such as package.module:function.",
            metavar="FUNCTION",
            parse=parse_text,
            accepts="str | None",
            panel=LOAD,
            names="nothing",
        ),
    ] = None
    metric: Annotated[
        str | None,
        Option(
            help="Optimize a number that the program prints. This regular expression finds it; the last match counts.",
            metavar="REGEX",
            parse=parse_text,
            accepts="str | None",
            panel=OBJECTIVE,
            names="nothing",
        ),
    ] = None
    maximize: Annotated[bool, Option(help="A larger number is better.", accepts="bool", panel=OBJECTIVE)] = False


class ProgramSearchRequest(ProgramOptions, KnobOptions):
    """Options of `ortune search ... -- COMMAND`."""

    refused = frozenset(NOT_FOR_PROGRAMS)

    command: Command
    arrivals: Arrivals = None
    objective: ObjectiveName = None
    limit: Limits = ()
    beside: Beside = None
    budget: SearchBudget = None
    trials: Trials = None
    until: Until = None
    output: Annotated[
        Path | None,
        Option(
            help="Where to write the record, or the bundle with a record for each model; - for stdout.",
            metavar="FILE",
            parse=parse_output,
            accepts=f"{PATH} | None",
            default="PROGRAM.ortune.json; in Python, none",
            flags=("-o",),
            interfaces=CLI_AND_PYTHON,
            panel=WRITING,
        ),
    ] = None
    resume: Resume = False
    restart: Restart = False
    seed: Seed = 0

    @property
    def goal(self) -> Goal:
        """Load, objectives and limits.

        Raises:
            UsageError: The options contradict each other.
        """
        from ortune.workload import make_goal
        from ortune.workload.goal import FEW_RUNS

        if self.metric is not None:
            return make_goal(self.load, "score" if self.maximize else "metric", (), self.limit)
        goal = make_goal(self.load, self.objective, (), self.limit)
        is_run = self.call is None and self.url is None
        return goal.with_mean(FEW_RUNS) if is_run else goal

    def check(self) -> None:
        """Check that the options go together."""
        from ortune.workload import FIGURES

        super().check()
        check_resume(self)
        kinds = [name for name in ("call", "metric", "url") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise UsageError(f"and {{{kinds[1]}}} contradict each other.", "Choose one of them.", option=kinds[0])
        if not self.command:
            raise UsageError("There is no command after --.", "Write: ortune search -- python app.py.")
        if self.url is None:
            for name in ("body", "header", "health", "clients", "rate", "arrivals"):
                if getattr(self, name):
                    raise UsageError("needs {url}: only a server gets requests.", option=name)
        for name, why in NOT_FOR_PROGRAMS.items():
            if getattr(self, name) is not None:
                raise UsageError(f"is not for programs: they {why}.", option=name)
        if self.metric is None and self.maximize:
            raise UsageError("needs {metric}.", option="maximize")
        if self.metric is not None and self.objective is not None:
            raise UsageError("and {objective} contradict each other.", "Leave one of them out.", option="metric")
        goal = self.goal
        for figure in goal.figures:
            if FIGURES[figure].only_of == "models":
                raise UsageError(f"{figure}: programs create their sessions themselves.", option="objective")


class BenchRequest(WorkloadOptions, InputsOptions):
    """Options of `ortune bench`."""

    model: Model
    configs: Annotated[
        tuple[Any, ...],
        Option(
            help="Records that searches wrote; the word default stands for ONNX Runtime's default.",
            metavar="CONFIG",
            positional=True,
            repeatable=True,
            parse=lambda value: tuple(value) if isinstance(value, (list, tuple)) else (value,),
            accepts=f"{PATH} | Record | Config | Sequence[{PATH} | Record | Config]",
            interfaces=CLI_AND_PYTHON,
        ),
    ] = ()
    set: Annotated[
        tuple[Any, ...],
        Option(
            help="A config made of these settings, to compare with the other configs.",
            metavar="KNOB=VALUE,...",
            parse=lambda value: tuple(value) if isinstance(value, (list, tuple)) else (value,),
            accepts="str | Mapping[str, Value] | Sequence[str | Mapping[str, Value]]",
            repeatable=True,
            interfaces=CLI_AND_PYTHON,
        ),
    ] = ()
    batch: Batch = ()
    beside: Beside = None
    allow_approximate: AllowApproximate = False
    trust: Trust = False
    budget: Annotated[
        float | None,
        make_budget_option("60s", "20 s; more for many configs, slow models and high percentiles"),
    ] = None
    sustained: Sustained = False
    seed: Seed = 0

    def check(self) -> None:
        """Check that the options go together."""
        _ = self.goal
        check_dims(self.batch, self.dim)


Headroom = Annotated[
    float,
    Option(
        help="Share of the capacity that is left unused.",
        metavar="SHARE",
        parse=parse_headroom,
        accepts="str | float",
        default="20%",
        panel=LOAD,
    ),
]
Price = Annotated[
    float | None,
    Option(
        help="Price of a host like this one per hour, such as 0.17/h, in any currency.",
        metavar="PRICE",
        parse=parse_price,
        accepts="str | float | None",
        panel=OBJECTIVE,
    ),
]
PlanOutput = Annotated[
    Path | None,
    Option(
        help="Also write the plan as JSON to this file; - for stdout.",
        metavar="FILE",
        parse=parse_output,
        accepts=f"{PATH} | None",
        flags=("-o",),
        interfaces=CLI_AND_PYTHON,
        panel=WRITING,
    ),
]


class PlanRequest(KnobOptions, InputsOptions):
    """Options of `ortune plan`."""

    model: Model
    provider: NamedProvider = None
    slo: Annotated[
        Limit | None,
        Option(
            help="The target for the latency from arrival to end, such as 'p99<50ms'.",
            metavar="FIGURE<TIME",
            parse=parse_slo,
            accepts="str | Limit | None",
            default="none: the highest throughput",
            panel=OBJECTIVE,
            names="nothing",
        ),
    ] = None
    rate: Annotated[
        float | None,
        Option(
            help="Requests that must be served, such as 200/s, by as many hosts like this one as it takes.",
            metavar="RATE",
            parse=parse_rate_per_s,
            accepts="str | float | None",
            default="as many as one host can take",
            panel=LOAD,
        ),
    ] = None
    headroom: Headroom = 0.2
    price: Price = None
    batch: Batch = ()
    dynamic_batching: Annotated[
        bool,
        Option(
            help="Also consider servers that combine waiting requests into batches, as Triton and Ray Serve can.",
            accepts="bool",
            panel=LOAD,
        ),
    ] = False
    lengths: Annotated[
        LengthDistribution | None,
        Option(
            help="Lengths of the items: a file with one per line, or a distribution such as lognormal:29,8-256.",
            metavar="FILE|DISTRIBUTION",
            parse=parse_length_distribution,
            accepts="str | None",
            default="all of one length",
            panel=LOAD,
            names="file",
        ),
    ] = None
    beside: Beside = None
    processes: Annotated[
        tuple[int, ...],
        Option(
            help="Numbers of processes to try, such as 1,2,4.",
            metavar="N,...",
            parse=parse_process_counts,
            accepts="int | str | Sequence[int]",
            default="what suits the host",
            panel=SPACE,
        ),
    ] = ()
    budget: Annotated[
        float | None,
        make_budget_option("90s or 5m", "2m; 4m with a target, and up to 8m if capacities take long to measure"),
    ] = None
    output: PlanOutput = None
    seed: Seed = 0

    def check(self) -> None:
        """Check that the options go together."""
        super().check()
        check_dims(self.batch, self.dim)
        ways = {"batch": self.batch, "dynamic_batching": self.dynamic_batching, "lengths": self.lengths}
        used = [name for name, value in ways.items() if value]
        if len(used) > 1:
            raise UsageError(
                f"{{{used[0]}}} and {{{used[1]}}} are different ways to put items together.",
                "Make a plan for each, and compare them.",
                option=used[1],
            )
        if self.dynamic_batching and not self.slo:
            raise UsageError(
                "needs a target: how long requests may wait for others depends on it.",
                "Add {slo='p99<50ms'}.",
                option="dynamic_batching",
            )


class HostPlanRequest(SizesOptions):
    """Options of `ortune plan` with several models."""

    models: Annotated[
        tuple[tuple[str, float], ...],
        Option(
            help="Paths of the ONNX files, each with the requests that it must serve, such as a.onnx=50/s b.onnx=10/s.",
            metavar="MODEL=RATE",
            positional=True,
            repeatable=True,
            parse=parse_model_rates,
            accepts="Mapping[str, str | float] | Sequence[str]",
            interfaces=CLI_AND_PYTHON,
        ),
    ]
    slo: Annotated[
        tuple[tuple[str, Limit], ...],
        Option(
            help="The target for the latency from arrival to end: of all models, such as 'p99<50ms', or of one of "
            "them, such as 'a=p99<50ms'.",
            metavar="FIGURE<TIME",
            parse=parse_slos,
            accepts="str | Limit | Sequence[str] | Mapping[str, str | Limit]",
            repeatable=True,
            default="none: requests are served as fast as they arrive",
            panel=OBJECTIVE,
            names="nothing",
        ),
    ] = ()
    headroom: Headroom = 0.2
    price: Price = None
    budget: Annotated[
        float | None,
        make_budget_option("90s or 5m", "5m"),
    ] = None
    output: PlanOutput = None
    seed: Seed = 0


class VerifyRequest(LoadOptions):
    """Options of `ortune apply --verify`. The workload comes from the record; the load selects the record."""

    config: Config
    model: Annotated[
        str | None,
        Option(
            help="Path of the ONNX file.",
            metavar="MODEL",
            positional=True,
            parse=parse_text,
            accepts=f"{PATH} | None",
            default="the record's",
            interfaces=CLI_AND_PYTHON,
        ),
    ] = None
    pick: Pick = None
    any_host: AnyHost = False
    trust: Trust = False
    inputs: Data = None
    beside: Beside = None
    budget: Budget = None
    sustained: Sustained = False
    seed: Seed = 0


class RecordedProgramOptions(LoadOptions, ProgramRunOptions):
    """A program that is measured with and without the settings of records. What is measured comes from the records."""

    config: Config
    command: Command
    any_host: AnyHost = False
    trust: Trust = False
    beside: Beside = None
    seed: Seed = 0


class ProgramVerifyRequest(RecordedProgramOptions):
    """Options of `ortune apply CONFIG --verify ... -- COMMAND`."""

    budget: Budget = None


class ProgramVerifyOptions(ConsoleOptions):
    """What `ortune apply CONFIG --verify ... -- COMMAND` does with its result."""

    verify: Verify = False
    update: Update = False


class GateRequest(WorkloadOptions, InputsOptions, ToleranceOptions):
    """Options of one gate, on the command line, in `ortune.toml` and in Python.

    Attributes:
        name: Name of the gate in reports.
        shares_slowdown: Whether `max_slowdown` is for all gates of a file. It then does not replace a recorded gain.
    """

    base: Annotated[
        str,
        Option(
            help="What HEAD is compared with: MODEL.onnx, CONFIG.json, MODEL.onnx@CONFIG.json, or MODEL.onnx@storage "
            "for the record in {storage}. A single CONFIG.json gates its gain over the default.",
            metavar="BASE",
            positional=True,
            parse=parse_text,
            accepts=PATH,
            names="file",
        ),
    ]
    head: Annotated[
        str | None,
        Option(
            help="What must not be slower than BASE.",
            metavar="HEAD",
            positional=True,
            parse=parse_text,
            accepts=f"{PATH} | None",
            names="file",
        ),
    ] = None
    name: str = "gate"
    shares_slowdown: bool = False
    max_slowdown: MaxSlowdown = ()
    also: Also = ()
    limit: GateLimits = ()
    base_python: Annotated[
        str | None,
        Option(
            help="Python interpreter that runs BASE, to compare versions of onnxruntime.",
            metavar="PATH",
            parse=parse_text,
            accepts=f"{PATH} | None",
            names="program",
        ),
    ] = None
    head_python: Annotated[
        str | None,
        Option(
            help="Python interpreter that runs HEAD.",
            metavar="PATH",
            parse=parse_text,
            accepts=f"{PATH} | None",
            names="program",
        ),
    ] = None
    ignore_outputs: Annotated[
        bool,
        Option(help="Do not compare outputs: those of HEAD are expected to differ.", accepts="bool", panel=OUTPUTS),
    ] = False
    beside: Beside = None
    trust: Trust = False
    storage: Storage = None
    budget: GateBudget = 180.0
    busy: Busy = False
    seed: Seed = 0

    def check(self) -> None:
        """Check that the options go together."""
        _ = self.goal


class ProgramGateRequest(RecordedProgramOptions):
    """Options of `ortune gate CONFIG ... -- COMMAND`.

    Attributes:
        name: Name of the gate in reports.
    """

    name: str = "gate"
    max_slowdown: MaxSlowdown = ()
    also: Also = ()
    limit: GateLimits = ()
    budget: GateBudget = 180.0
    busy: Busy = False


class GateFileOptions(Request):
    """Which gates of a file `ortune gate` runs."""

    all: Annotated[
        bool,
        Option(
            help="Run all gates of ortune.toml or pyproject.toml.", accepts="bool", interfaces=CLI_ONLY, panel=SEVERAL
        ),
    ] = False
    only: Annotated[
        tuple[str, ...],
        Option(
            help="Run this gate of the file.",
            metavar="GATE",
            parse=parse_texts,
            repeatable=True,
            interfaces=CLI_ONLY,
            panel=SEVERAL,
        ),
    ] = ()
    file: Annotated[
        str | None,
        Option(
            help="File with the gates; - for stdin.",
            metavar="FILE",
            parse=parse_text,
            default="ortune.toml or pyproject.toml",
            interfaces=CLI_ONLY,
            panel=SEVERAL,
        ),
    ] = None


class GateReportOptions(ExplainOptions):
    """What `ortune gate` writes."""

    inconclusive: Annotated[
        str,
        Option(
            help="Exit code of an inconclusive gate: that of a pass, that of a failure, or 3.",
            metavar="pass|fail|3",
            parse=parse_choice("pass", "fail", "3"),
            default="3",
            interfaces=CLI_ONLY,
            panel=CI,
        ),
    ] = "3"
    junit: Annotated[
        str | None,
        Option(
            help="Write JUnit XML; - for stdout.",
            metavar="FILE",
            parse=parse_text,
            interfaces=CLI_ONLY,
            panel=CI,
        ),
    ] = None
    markdown: Annotated[
        str | None,
        Option(
            help="Write a summary in Markdown; - for stdout. On GitHub, the job summary gets one without this option.",
            metavar="FILE",
            parse=parse_text,
            interfaces=CLI_ONLY,
            panel=CI,
        ),
    ] = None
    history: Annotated[
        str | None,
        Option(
            help="Append a line of JSON for each gate. `ortune report` shows the file.",
            metavar="FILE",
            parse=parse_text,
            interfaces=CLI_ONLY,
            panel=CI,
        ),
    ] = None

    @property
    def take_stdout(self) -> bool:
        """Whether stdout is for a report, so that human-readable output goes to stderr."""
        return self.json or "-" in (self.junit, self.markdown)


class ApplyRequest(ProgramRequest, JsonOptions):
    """Options of `ortune apply`."""

    to: Annotated[
        str | None,
        Option(
            help="Write the config for another system. --list shows the targets.",
            metavar="TARGET",
            parse=parse_text,
            interfaces=CLI_ONLY,
        ),
    ] = None
    output: Annotated[
        str | None,
        Option(
            help="Where to write it; - for stdout.",
            metavar="FILE",
            parse=parse_output_name,
            flags=("-o",),
            default="stdout",
            interfaces=CLI_ONLY,
            panel=EXPORT,
        ),
    ] = None
    list: Annotated[
        bool, Option(help="List the targets of --to.", accepts="bool", interfaces=CLI_ONLY, panel=EXPORT)
    ] = False
    warm: Annotated[
        bool,
        Option(
            help="Compile the model into {cache_dir}, and check that sessions then start from this folder.",
            accepts="bool",
            interfaces=CLI_ONLY,
        ),
    ] = False
    verify: Verify = False
    update: Update = False
    storage: Storage = None
    inputs: Data = None
    beside: Beside = None
    budget: Budget = None
    sustained: Sustained = False
    seed: Seed = 0


class InspectRequest(Request):
    """Options of `ortune inspect`."""

    command: Annotated[
        tuple[str, ...],
        Option(
            help="The program to run, with its arguments.",
            metavar="-- COMMAND",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            accepts="str | Sequence[str]",
            interfaces=CLI_AND_PYTHON,
        ),
    ] = ()
    save_inputs: Annotated[
        Path | None,
        Option(
            help="Save a random sample of the inputs of each model in this folder, at most 100 MB in all. They are "
            "data of the program.",
            metavar="FOLDER",
            parse=parse_path,
            accepts=f"{PATH} | None",
            interfaces=CLI_AND_PYTHON,
            panel=INPUTS,
        ),
    ] = None
    max_samples: Annotated[
        int,
        Option(
            help="Maximum number of calls of each model whose inputs {save_inputs} keeps.",
            metavar="N",
            parse=parse_count(1, 10_000),
            accepts="int",
            default="20",
            interfaces=CLI_AND_PYTHON,
            panel=INPUTS,
        ),
    ] = 20


class InspectOutputOptions(ConsoleOptions):
    """What `ortune inspect` writes."""

    output: Annotated[
        Path | None,
        Option(
            help="Also write what was seen as JSON to this file; - for stdout.",
            metavar="FILE",
            parse=parse_output,
            flags=("-o",),
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = None


class MergeRequest(QuietOptions):
    """Options of `ortune merge`."""

    configs: Annotated[
        tuple[str, ...],
        Option(
            help="Records or bundles.",
            metavar="CONFIG",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            interfaces=CLI_ONLY,
        ),
    ]
    trust: Trust = False
    output: BundleOutput


class FleetStatusRequest(JsonOptions):
    """Options of `ortune fleet status`."""

    storage: Storage = None


class FleetCollectRequest(QuietOptions):
    """Options of `ortune fleet collect`."""

    storage: Storage = None
    output: BundleOutput


class FleetExpireRequest(JsonOptions):
    """Options of `ortune fleet expire`."""

    models: Annotated[
        tuple[str, ...],
        Option(
            help="Models that are in use now. Records for an earlier version of one have expired.",
            metavar="MODEL",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            interfaces=CLI_ONLY,
        ),
    ] = ()
    storage: Storage = None
    older_than: Annotated[
        float | None,
        Option(
            help="Age from which a verification has expired, such as 30d.",
            metavar="TIME",
            parse=parse_age_s,
            default="no limit",
            interfaces=CLI_ONLY,
        ),
    ] = None
    remove: Annotated[
        bool,
        Option(
            help="Withdraw what has expired from the storage: the verifications, and all about models that changed.",
            accepts="bool",
            interfaces=CLI_ONLY,
        ),
    ] = False


class ReportRequest(QuietOptions):
    """Options of `ortune report`."""

    file: Annotated[
        str,
        Option(
            help="What `ortune search`, `ortune merge`, `ortune bench --json` or `ortune gate --history` wrote; - for "
            "stdin.",
            metavar="FILE",
            positional=True,
            parse=parse_text,
            interfaces=CLI_ONLY,
        ),
    ]
    output: Annotated[
        str | None,
        Option(
            help="Where to write the page; - for stdout.",
            metavar="FILE",
            parse=parse_output_name,
            default="FILE with the suffix .html",
            flags=("-o",),
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = None
    png: Annotated[
        str | None,
        Option(
            help="Also write each chart as PNG to this folder, for pull requests.",
            metavar="DIR",
            parse=parse_text,
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = None
    open: Open = False
    only: Annotated[
        tuple[str, ...],
        Option(
            help="Show only this gate of a history.",
            metavar="GATE",
            parse=parse_texts,
            repeatable=True,
            interfaces=CLI_ONLY,
        ),
    ] = ()


class DoctorRequest(InputsOptions):
    """Options of `ortune doctor`."""

    model: Model
    provider: Annotated[
        tuple[str, ...],
        Option(
            help="Execution providers that the model is meant for, such as cuda.",
            metavar="PROVIDER,...",
            parse=parse_names,
            accepts="str | Sequence[str]",
            default="those that work here",
            repeatable=True,
            interfaces=CLI_ONLY,
        ),
    ] = ()


class ProfileRequest(InputsOptions):
    """Options of `ortune profile`."""

    model: Model
    config: Annotated[
        Any,
        Option(
            help="A record to compare with the default.",
            metavar="[CONFIG]",
            positional=True,
            interfaces=CLI_ONLY,
        ),
    ] = None
    trust: Trust = False
    runs: Annotated[
        int | None,
        Option(
            help="Number of runs of each config.",
            metavar="N",
            parse=parse_count(1),
            default="as many as take about 3 s",
            interfaces=CLI_ONLY,
            panel=MEASURING,
        ),
    ] = None
    output: Annotated[
        Path | None,
        Option(
            help="Folder for the traces. It must be new, empty, or hold an earlier profile, which is replaced.",
            metavar="FOLDER",
            parse=parse_path,
            flags=("-o",),
            default="MODEL.profile",
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        Option(
            help="Random seed of synthetic inputs.",
            metavar="N",
            parse=parse_count(0),
            accepts="int",
            default="that of the record, else 0",
            panel=MEASURING,
        ),
    ] = None


class HostRequest(Request):
    """Options of `ortune host`, which has only output options."""


class KnobsRequest(Request):
    """Options of `ortune knobs`."""

    name: Annotated[
        tuple[str, ...],
        Option(
            help="A knob, or words to search for.",
            metavar="KNOB",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            interfaces=CLI_ONLY,
        ),
    ] = ()


COMMANDS: Mapping[str, tuple[type[Request], ...]] = {
    "search": (SearchRequest, SearchOutputOptions),
    "search --": (ProgramSearchRequest, SearchOutputOptions),
    "apply": (ApplyRequest,),
    "apply --verify --": (ProgramVerifyRequest, ProgramVerifyOptions),
    "inspect": (InspectRequest, InspectOutputOptions),
    "merge": (MergeRequest,),
    "fleet compare": (FleetCompareRequest, JsonOptions),
    "fleet send": (FleetSendRequest,),
    "fleet status": (FleetStatusRequest,),
    "fleet collect": (FleetCollectRequest,),
    "fleet expire": (FleetExpireRequest,),
    "gate": (GateRequest, GateFileOptions, GateReportOptions),
    "gate --": (ProgramGateRequest, GateReportOptions),
    "report": (ReportRequest,),
    "bench": (BenchRequest, ExplainOptions),
    "plan": (PlanRequest, ConsoleOptions),
    "plan MODEL=RATE": (HostPlanRequest, ConsoleOptions),
    "suggest": (SuggestRequest, JsonOptions),
    "space": (SpaceRequest, JsonOptions),
    "knobs": (KnobsRequest, JsonOptions),
    "profile": (ProfileRequest, JsonOptions),
    "doctor": (DoctorRequest, JsonOptions),
    "host": (HostRequest, JsonOptions),
    "fleet deploy": (FleetDeployRequest,),
}
"""The options of each command: the request first, then the options that only the command line has.

Those that end with `--` are the forms of a command with a program after `--`, `plan MODEL=RATE` is the form with
several models. `fleet compare` is a command of the group `fleet`; see `GROUPS`.
"""

GROUPS = frozenset({"fleet"})
"""Groups of commands. Their names are the first words of the names of their commands."""


def name_command(words: Sequence[str]) -> str:
    """Return the name of the command that the words after `ortune` begin with: two words for one of a group."""
    return " ".join(words[: 2 if words[:1] and words[0] in GROUPS else 1])
