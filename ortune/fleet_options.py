"""The options of `ortune fleet`. They belong to the declarations of `ortune.requests`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ortune.errors import UsageError
from ortune.options import (
    CLI_AND_PYTHON,
    CLI_ONLY,
    KUBERNETES,
    SLURM,
    WRITING,
    Option,
    Request,
    parse_choice,
    parse_count,
    parse_duration_s,
    parse_share,
    parse_text,
    parse_texts,
    show,
)
from ortune.program_options import QuietOptions, parse_output_name, parse_path

TARGETS = ("kubernetes-job", "kubernetes-daemonset", "slurm", "ssh")
RUNS = ("search", "verify")


def list_metrics() -> list[str]:
    """Return what of the processes of a fleet can be compared; see `ortune.workload`."""
    from ortune.workload import list_figures
    from ortune.workload.figures import list_names

    return list_names(list_figures("fleet", ()))


def parse_metric(value: Any) -> str:
    """Parse what of the processes of a fleet is compared: one of the usual figures, or another percentile."""
    from ortune.workload import FIGURES, is_figure

    name = str(value)
    if is_figure(name) and ("fleet" in FIGURES[name].tables or FIGURES[name].percentile is not None):
        return name
    raise UsageError(f"{show(value)}: is not one of the choices.", f"Choose one of {', '.join(list_metrics())}.")


MOST_NODES = 10_000
MOST_CPUS = 4096

LONGEST_JOB_NAME = 52
"""Kubernetes appends an index and random characters to names of at most 63 characters."""

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A name that is also a label of DNS (RFC 1035)."""

OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""A name of a Kubernetes object (RFC 1123)."""

LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""A value of a label, and a key without its prefix."""

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}")
MEMORY = re.compile(r"[1-9][0-9]{0,8}(Mi|Gi|Ti)")

CONSTRAINT = re.compile(r"[A-Za-z0-9_.:=&|*,()\[\]!+-]{1,512}")
"""Features of Slurm and their operators: no spaces, quotes or comments."""

PASSWORD = re.compile(r"://[^@\s]*:[^\s]*@|[?&;][a-z_]*(pass|pwd)[a-z_]*=", re.IGNORECASE)
"""A URL with a password."""

NO_CREDENTIALS = "Put the URL into a file, and name it with {storage_file}; for Kubernetes, into a Secret."


def parse_name(value: Any) -> str:
    """Return a name of jobs and objects."""
    text = parse_text(value)
    if not NAME.fullmatch(text) or len(text) > LONGEST_JOB_NAME:
        raise UsageError(
            f"{show(value)}: is not a name of at most {LONGEST_JOB_NAME} lowercase letters, digits and hyphens."
        )
    return text


def parse_object_name(value: Any) -> str:
    """Return the name of an object of Kubernetes."""
    text = parse_text(value)
    if not OBJECT_NAME.fullmatch(text):
        raise UsageError(f"{show(value)}: is not a name of lowercase letters, digits, hyphens and dots.")
    return text


def parse_image(value: Any) -> str:
    """Return the name of a container image."""
    text = parse_text(value)
    if not IMAGE.fullmatch(text):
        raise UsageError(f"{show(value)}: is not the name of an image.", "Write {image=registry.example.com/ortune:1}.")
    return text


def parse_memory(value: Any) -> str:
    """Return an amount of memory as Kubernetes writes it."""
    text = parse_text(value)
    if not MEMORY.fullmatch(text):
        raise UsageError(f"{show(value)}: is not an amount of memory.", "Write {memory=8Gi}.")
    return text


def parse_volumes(value: Any) -> tuple[tuple[str, str, bool], ...]:
    """Parse `models:/models` or `models:/models:ro`.

    Returns:
        The claim, its absolute path, and whether it is read-only, for each.
    """
    found = []
    for text in parse_texts(value):
        claim, _, rest = text.partition(":")
        path = rest.removesuffix(":ro")
        if not OBJECT_NAME.fullmatch(claim) or not path.startswith("/") or ":" in path or not path.isprintable():
            raise UsageError(f"{show(text)}: is not a claim and an absolute path.", "Write {volume=models:/models:ro}.")
        found.append((claim, path, path != rest))
    return tuple(found)


def parse_labels(value: Any) -> dict[str, str]:
    """Parse labels such as `node.kubernetes.io/instance-type=c7i.4xlarge`."""
    found = {}
    for text in parse_texts(value):
        key, equals, label = text.partition("=")
        prefix, slash, name = key.rpartition("/")
        is_key = LABEL_NAME.fullmatch(name) and (not slash or OBJECT_NAME.fullmatch(prefix))
        if not equals or not is_key or (label and not LABEL_NAME.fullmatch(label)):
            raise UsageError(
                f"{show(text)}: is not a label and its value.",
                "Write {node_selector=node.kubernetes.io/instance-type=c7i.4xlarge}.",
            )
        found[key] = label
    return found


def parse_constraint(value: Any) -> str:
    """Return features of nodes as Slurm writes them."""
    text = parse_text(value)
    if not CONSTRAINT.fullmatch(text):
        raise UsageError(f"{show(value)}: is not a list of features.", "Write {constraint=zen4} or 'zen4|zen5'.")
    return text


def parse_public_url(value: Any) -> str:
    """Return the URL of a storage, which must not hold a password. Messages do not show one."""
    text = parse_text(value)
    if has_password(text):
        raise UsageError("holds a password, which must not be in a file like this.", NO_CREDENTIALS)
    return text


def has_password(text: str) -> bool:
    """Return whether a text holds a URL with a password."""
    return bool(PASSWORD.search(text))


KUBERNETES_ONLY = ("secret", "image", "memory", "volume", "host_class", "node_selector")

NOT_FOR = {
    "kubernetes-job": ("storage_file", "constraint"),
    "kubernetes-daemonset": ("storage_file", "constraint", "nodes", "deadline"),
    "slurm": KUBERNETES_ONLY,
    "ssh": (*KUBERNETES_ONLY, "constraint", "nodes", "deadline", "cpus"),
}
"""Options that have no effect, by target."""


class FleetDeployRequest(QuietOptions):
    """Options of `ortune fleet deploy`."""

    words: Annotated[
        tuple[str, ...],
        Option(
            help="Arguments of the command: the model or other files, with their paths on the nodes, and options.",
            metavar="-- MODEL ...",
            positional=True,
            repeatable=True,
            parse=parse_texts,
            interfaces=CLI_ONLY,
        ),
    ]
    target: Annotated[
        str,
        Option(
            help="What runs the command on the nodes: a Kubernetes Job or DaemonSet, a Slurm job array, or ssh.",
            metavar="|".join(TARGETS),
            parse=parse_choice(*TARGETS),
            interfaces=CLI_ONLY,
        ),
    ]
    run: Annotated[
        str | None,
        Option(
            help="The command: search finds settings, verify measures whether those of a record hold.",
            metavar="|".join(RUNS),
            parse=parse_choice(*RUNS),
            default="search; verify for kubernetes-daemonset",
            interfaces=CLI_ONLY,
        ),
    ] = None
    nodes: Annotated[
        int | None,
        Option(
            help="Number of nodes. Needed for kubernetes-job and slurm.",
            metavar="N",
            parse=parse_count(1, MOST_NODES),
            interfaces=CLI_ONLY,
        ),
    ] = None
    cpus: Annotated[
        int | None,
        Option(
            help="CPUs of each node that the command may use: as many as the deployment will have.",
            metavar="N",
            parse=parse_count(1, MOST_CPUS),
            default="all in Slurm; in Kubernetes, the quota of the host class",
            interfaces=CLI_ONLY,
        ),
    ] = None
    deadline: Annotated[
        float | None,
        Option(
            help="Time after which the command is stopped on a node.",
            metavar="TIME",
            parse=parse_duration_s,
            default="twice the budget and 15 minutes; without a budget, an hour",
            interfaces=CLI_ONLY,
        ),
    ] = None
    name: Annotated[
        str | None,
        Option(
            help="Name of the job and its objects.",
            metavar="NAME",
            parse=parse_name,
            default="ortune-search or ortune-verify",
            interfaces=CLI_ONLY,
        ),
    ] = None
    storage: Annotated[
        str | None,
        Option(
            help="The storage, if it needs no password: a URL such as grpc://host:13000, or the path of a journal.",
            metavar="URL",
            parse=parse_public_url,
            interfaces=CLI_ONLY,
        ),
    ] = None
    storage_file: Annotated[
        str | None,
        Option(
            help="For slurm and ssh: path of a file on the nodes that contains the URL of the storage.",
            metavar="FILE",
            parse=parse_text,
            interfaces=CLI_ONLY,
        ),
    ] = None
    secret: Annotated[
        str | None,
        Option(
            help="Secret that contains the URL of the storage under the key url.",
            metavar="NAME",
            parse=parse_object_name,
            default="ortune-storage",
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(
            help="Container image with ortune[fleet], a package of onnxruntime and sh.",
            metavar="IMAGE",
            parse=parse_image,
            default="IMAGE, to be replaced",
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = None
    memory: Annotated[
        str | None,
        Option(
            help="Memory of the container, such as 8Gi. Several candidates are in memory at a time. Always needed.",
            metavar="SIZE",
            parse=parse_memory,
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = None
    volume: Annotated[
        tuple[tuple[str, str, bool], ...],
        Option(
            help="PersistentVolumeClaim to mount, such as models:/models:ro. Without one, the image has the model.",
            metavar="CLAIM:PATH",
            parse=parse_volumes,
            repeatable=True,
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = ()
    host_class: Annotated[
        str | None,
        Option(
            help="Select nodes of the host class of this record by the labels of Node Feature Discovery. The word here "
            "stands for this host.",
            metavar="CONFIG",
            parse=parse_text,
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = None
    node_selector: Annotated[
        Mapping[str, str],
        Option(
            help="Label that the nodes must have, such as node.kubernetes.io/instance-type=c7i.4xlarge.",
            metavar="LABEL=VALUE",
            parse=parse_labels,
            repeatable=True,
            interfaces=CLI_ONLY,
            panel=KUBERNETES,
        ),
    ] = {}
    constraint: Annotated[
        str | None,
        Option(
            help="Features that the nodes must have.",
            metavar="FEATURES",
            parse=parse_constraint,
            interfaces=CLI_ONLY,
            panel=SLURM,
        ),
    ] = None
    output: Annotated[
        str,
        Option(
            help="Where to write the file; - for stdout.",
            metavar="FILE",
            parse=parse_output_name,
            flags=("-o",),
            default="stdout",
            interfaces=CLI_ONLY,
            panel=WRITING,
        ),
    ] = "-"

    @property
    def command(self) -> str:
        """The command that nodes run."""
        return self.run or ("verify" if self.target == "kubernetes-daemonset" else "search")

    @property
    def is_kubernetes(self) -> bool:
        """Whether the file is for Kubernetes."""
        return self.target.startswith("kubernetes-")

    def check(self) -> None:
        """Check that the options are for the target, and that none is missing."""
        for name in NOT_FOR[self.target]:
            if getattr(self, name) not in (None, (), {}):
                raise UsageError(f"has no effect for {self.target}.", "Leave it out.", option=name)
        needed = ("nodes",) if self.target in {"kubernetes-job", "slurm"} else ()
        for name in (*needed, *(("memory",) if self.is_kubernetes else ())):
            if getattr(self, name) is None:
                raise UsageError(f"is missing, which {self.target} needs.", HINTS[name], option=name)
        if self.storage and (self.storage_file or self.secret):
            other = "storage_file" if self.storage_file else "secret"
            raise UsageError(f"and {{{other}}} contradict each other.", "Choose one of them.", option="storage")
        if not self.is_kubernetes and not self.storage and not self.storage_file:
            hint = "Or name {storage}, if the storage needs no password."
            raise UsageError(f"is missing, which {self.target} needs.", hint, option="storage_file")


HINTS = {
    "nodes": "Write {nodes=8}.",
    "memory": "Write {memory=8Gi}: several times what the model needs, as several candidates are in memory at a time.",
}


def parse_confidence(value: Any) -> float:
    """Parse a confidence: `0.9` or `"90%"`.

    Raises:
        UsageError: It is not between 50% and 100%.
    """
    confidence = parse_share(value)
    if not 0.5 <= confidence < 1:
        raise UsageError(f"{value}: must be at least 50% and below 100%.", "Write {confidence=95%}.")
    return confidence


Storage = Annotated[
    str | None,
    Option(
        help="Storage that several hosts share: the URL of a database or of a gRPC proxy, without a password, or the "
        "path of a .journal file.",
        metavar="URL",
        parse=parse_text,
        accepts="str | None",
        default="$ORTUNE_STORAGE",
        interfaces=CLI_AND_PYTHON,
    ),
]


class FleetSendRequest(QuietOptions):
    """Options of `ortune fleet send`."""

    folder: Annotated[
        Path,
        Option(
            help="Folder with the metrics that processes wrote under `ortune apply --canary SHARE --metrics FOLDER`.",
            metavar="FOLDER",
            positional=True,
            parse=parse_path,
            interfaces=CLI_ONLY,
        ),
    ]
    storage: Storage = None
    every: Annotated[
        float | None,
        Option(
            help="Send what is new at this interval, such as 60s, until the command is interrupted.",
            metavar="TIME",
            parse=parse_duration_s,
            default="send once",
            interfaces=CLI_ONLY,
        ),
    ] = None


class FleetCompareRequest(Request):
    """Options of `ortune fleet compare`."""

    folder: Annotated[
        Path | None,
        Option(
            help="Folder with the metrics that processes wrote under `ortune apply --canary SHARE --metrics FOLDER`.",
            metavar="FOLDER",
            positional=True,
            parse=parse_path,
            default="those that were sent to the storage",
            interfaces=CLI_ONLY,
        ),
    ] = None
    storage: Storage = None
    metric: Annotated[
        str,
        Option(
            help="What decides: {choices}. cpu is the CPU time of the process per call. All others are about the "
            "durations of calls.",
            metavar="METRIC",
            parse=parse_metric,
            choices=list_metrics,
            default="p50",
            interfaces=CLI_ONLY,
        ),
    ] = "p50"
    confidence: Annotated[
        float,
        Option(
            help="Confidence of the intervals.",
            metavar="SHARE",
            parse=parse_confidence,
            default="95%",
            interfaces=CLI_ONLY,
        ),
    ] = 0.95
    max_slowdown: Annotated[
        float,
        Option(
            help="How much slower the canary may be for the exit code 0, if the interval excludes more.",
            metavar="SHARE",
            parse=parse_share,
            default="3%",
            interfaces=CLI_ONLY,
        ),
    ] = 0.03
    config: Annotated[
        str | None,
        Option(
            help="Compare the processes of this config, if there are metrics of several.",
            metavar="ID",
            parse=parse_text,
            interfaces=CLI_ONLY,
        ),
    ] = None

    def check(self) -> None:
        """Check that the metrics are in one place.

        Raises:
            UsageError: A folder and a storage are named.
        """
        if self.folder is not None and self.storage is not None:
            raise UsageError("both a folder and a storage are named.", "Name one of them.", option="storage")
