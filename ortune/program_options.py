"""The options of `ortune apply CONFIG... -- COMMAND`, and those that other commands share with it.

They belong to the declarations of `ortune.requests`, and are in a module of their own because every program that starts
under `ortune apply` loads it, and because ortune-apply contains it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ortune.bounds import MOST_CLIENTS, MOST_PROCESSES, MOST_SESSIONS
from ortune.errors import UsageError
from ortune.options import (
    CLI_AND_PYTHON,
    CLI_ONLY,
    LOAD,
    PROGRAM,
    WRITING,
    Option,
    Request,
    parse_count,
    parse_share,
    parse_text,
    parse_texts,
)
from ortune.streams import STDOUT, find_descriptor

if TYPE_CHECKING:
    from ortune.workload import Load
else:
    # `options_of` evaluates annotations, which must not import this module.
    Load = Any


def parse_rate_per_s(value: Any) -> float:
    """Parse a rate of requests; see `ortune.workload`."""
    from ortune.workload import parse_rate

    return parse_rate(value)


def parse_path(value: Any) -> Path:
    """Return a path."""
    return Path(parse_text(value))


def parse_output(value: Any) -> Path:
    """Return the path of a file to write: `-` for every path that leads to stdout, such as /dev/stdout."""
    path = parse_path(value)
    return Path("-") if find_descriptor(path) == STDOUT else path


def parse_output_name(value: Any) -> str:
    """Return the path of a file to write as a text; see `parse_output`."""
    return str(parse_output(value))


def parse_folder(value: Any) -> Path:
    """Return the path of a folder.

    Raises:
        UsageError: It is a URL.
    """
    text = parse_text(value)
    if "://" in text:
        raise UsageError(f"{text}: is not a folder.", "Write {metrics=FOLDER}.")
    return Path(text)


PICKS = ("throughput", "memory", "cpu")
"""What a deployment of a plan can be picked by, besides its number."""


def parse_pick(value: Any) -> int | str:
    """Return the number of a point or a deployment, or what a deployment is the best in."""
    if isinstance(value, str) and value in PICKS:
        return value
    try:
        return parse_count(1)(value)
    except UsageError as error:
        raise UsageError(f"{error.message[:-1]}, and not one of {', '.join(PICKS)}.") from None


Pick = Annotated[
    int | str | None,
    Option(
        help="Use point N of the record's Pareto front, deployment N of a plan, or row N of a plan for several models. "
        "For a plan for one model, throughput, memory or cpu picks the best deployment in that respect.",
        metavar="N",
        parse=parse_pick,
        accepts="int | str | None",
        default="the recommended one",
        interfaces=CLI_AND_PYTHON,
    ),
]
AnyHost = Annotated[
    bool,
    Option(
        help="Use a record even if it is for another class of host or another GPU.",
        accepts="bool",
        interfaces=CLI_AND_PYTHON,
    ),
]
CacheDir = Annotated[
    Path | None,
    Option(
        help="Folder in which execution providers keep compiled models.",
        metavar="FOLDER",
        parse=parse_path,
        accepts="str | Path | None",
        interfaces=CLI_AND_PYTHON,
    ),
]
Trust = Annotated[
    bool,
    Option(
        help="Use records even if they have unknown settings, or name files, libraries or memory addresses, which may "
        "run code. Each such setting is reported.",
        accepts="bool",
        interfaces=CLI_AND_PYTHON,
    ),
]
Quiet = Annotated[
    bool,
    Option(help="Print nothing but errors.", accepts="bool", flags=("-q",), interfaces=CLI_ONLY, panel=WRITING),
]


class LoadOptions(Request):
    """How calls arrive."""

    clients: Annotated[
        int | None,
        Option(
            help="Concurrent callers of each process.",
            metavar="N",
            parse=parse_count(1, MOST_CLIENTS),
            accepts="int | None",
            default="1",
            panel=LOAD,
        ),
    ] = None
    sessions: Annotated[
        int | None,
        Option(
            help="Sessions of the model in one process. Clients are spread over them.",
            metavar="N",
            parse=parse_count(1, MOST_SESSIONS),
            accepts="int | None",
            default="1",
            panel=LOAD,
        ),
    ] = None
    processes: Annotated[
        int | None,
        Option(
            help="Processes that run the model at the same time, like the workers of a web server.",
            metavar="N",
            parse=parse_count(1, MOST_PROCESSES),
            accepts="int | None",
            default="1",
            panel=LOAD,
        ),
    ] = None
    rate: Annotated[
        float | None,
        Option(
            help="Rate of requests, such as 50/s or 30/min, for all processes together. Latency counts from the "
            "arrival.",
            metavar="RATE",
            parse=parse_rate_per_s,
            accepts="str | float | None",
            default="clients call back to back",
            panel=LOAD,
        ),
    ] = None

    @property
    def arrival_process(self) -> str | None:
        """How requests arrive at a rate, or None for the default."""
        return getattr(self, "arrivals", None)

    @property
    def is_pinned(self) -> bool:
        """Whether each of several processes runs on CPUs of its own."""
        return getattr(self, "pin_processes", False)

    @property
    def load(self) -> Load:
        """The load.

        Raises:
            UsageError: The options contradict each other.
        """
        from ortune.workload import make_load

        return make_load(
            self.clients, self.rate, self.arrival_process, self.sessions, self.processes, pinned=self.is_pinned
        )

    @property
    def given_load(self) -> Load | None:
        """The load, or None if no option describes one."""
        given = (self.clients, self.sessions, self.processes, self.rate, self.arrival_process, self.is_pinned or None)
        return None if all(option is None for option in given) else self.load


class QuietOptions(Request):
    """What a command prints."""

    quiet: Quiet = False


class ProgramRequest(LoadOptions, QuietOptions):
    """Options of `ortune apply CONFIG... -- COMMAND`."""

    files: Annotated[
        tuple[str, ...],
        Option(
            help="Records, bundles or plans; then the model, by default the record's; or a command to run with them.",
            metavar="CONFIG... [MODEL] [-- COMMAND]",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            interfaces=CLI_ONLY,
        ),
    ] = ()
    pick: Pick = None
    any_host: AnyHost = False
    trust: Trust = False
    cache_dir: CacheDir = None
    any_model: Annotated[
        bool,
        Option(
            help="Use the config for sessions of every model.", accepts="bool", interfaces=CLI_AND_PYTHON, panel=PROGRAM
        ),
    ] = False
    keep_explicit: Annotated[
        bool,
        Option(
            help="Options that the program sets take precedence over tuned ones.",
            accepts="bool",
            interfaces=CLI_AND_PYTHON,
            panel=PROGRAM,
        ),
    ] = False
    explain: Annotated[
        bool,
        Option(
            help="Report the settings of each session on stderr.",
            accepts="bool",
            interfaces=CLI_AND_PYTHON,
            panel=PROGRAM,
        ),
    ] = False
    explain_json: Annotated[
        Path | None,
        Option(
            help="Append a line of JSON for each session.",
            metavar="FILE",
            parse=parse_path,
            interfaces=CLI_ONLY,
            panel=PROGRAM,
        ),
    ] = None
    canary: Annotated[
        float | None,
        Option(
            help="Use the config in this share of the processes, such as 10%. The others keep the program's options.",
            metavar="SHARE",
            parse=parse_share,
            accepts="str | float | None",
            default="all processes",
            interfaces=CLI_AND_PYTHON,
            panel=PROGRAM,
        ),
    ] = None
    metrics: Annotated[
        Path | None,
        Option(
            help="With {canary} SHARE: folder in which each process writes how long its calls take, for `ortune fleet "
            "compare`.",
            metavar="FOLDER",
            parse=parse_folder,
            accepts="str | Path | None",
            interfaces=CLI_AND_PYTHON,
            panel=PROGRAM,
        ),
    ] = None

    def check(self) -> None:
        """Check that the options go together."""
        super().check()
        if self.metrics is not None and self.canary is None:
            raise UsageError("needs {canary}.", "Write {canary=100%} if all processes are to use it.", option="metrics")
