"""What a target of an export is, and what it works on."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortune.bounds import MOST_PROCESSES
from ortune.errors import UsageError
from ortune.export.checks import check_config, check_host
from ortune.export.comments import make_comment
from ortune.export.literals import Language
from ortune.export.pending_settings import PendingSettings
from ortune.host import Cpus, HostClass, place_processes, read_host
from ortune.limited import STDIN
from ortune.measure.interval import format_speedup
from ortune.planning.deployment import Deployment
from ortune.planning.pick import MODEL

if TYPE_CHECKING:
    from ortune.planning.pick import PickedDeployment
    from ortune.record.schema import Record

FIRST_PORT = 8000


class Job:
    """One export: a record and where it goes. Its settings are checked before anything is written.

    Attributes:
        record: The record.
        model: Path of the model, as the program that uses the export will find it.
        source: The file that the record was read from.
        output: The file to write; None to return the text only.
        picked: The deployment of a plan that the record is of; None for a record of a search.
        selection: Options of `ortune apply` with which this record was selected, as words of a command line.
        pending: The config's settings that are not written yet.

    Raises:
        RecordError: The record has a setting that cannot be written.
    """

    def __init__(
        self,
        record: Record,
        model: str,
        source: str,
        output: Path | None = None,
        picked: PickedDeployment | None = None,
        selection: Sequence[str] = (),
    ) -> None:
        check_config(record.config)
        check_host(record.host)
        self.record = record
        self.model = model
        self.source = source
        self.output = output
        self.picked = picked
        self.selection = tuple(selection)
        self.pending = PendingSettings(record.config)

    @property
    def file(self) -> str:
        """The file that the record was read from, for commands that name it.

        Raises:
            UsageError: It was read from stdin.
        """
        if self.source == STDIN:
            raise UsageError(
                "This target names the file of the record, which was read from stdin.", "Pass a file instead of -."
            )
        return self.source

    @functools.cached_property
    def deployment(self) -> Deployment:
        """The processes and their callers: those of the plan, or those that the record was measured with.

        A record does not contain the CPUs of its processes, which are known only on its class of host.
        """
        if self.picked:
            return self.picked.deployment
        load = self.record.workload.load
        host = read_host(memory=False) if load.pinned else None
        is_same = host is not None and self.record.host.includes(HostClass.of(host))
        placement = place_processes(host, load.processes) if host and is_same else None
        processes, clients = load.processes, load.clients
        program = self.record.workload.program
        if program and program.kind == "server":
            # The clients are those of the whole server, whose worker processes the program starts.
            wanted = self.record.config.workers or max(program.n_processes, 1)
            processes = min(wanted, MOST_PROCESSES)
            if processes < wanted:
                self.pending.report("workers", wanted, f"this export starts {processes}")
            clients, placement = math.ceil(clients / processes), None
        return Deployment(processes=processes, clients=clients, placement=placement, config=self.record.config)

    @property
    def is_pinned(self) -> bool:
        """Whether each process was measured on CPUs that it was pinned to."""
        return bool(self.picked.deployment.cpus) if self.picked else self.record.workload.load.pinned

    @property
    def name(self) -> str:
        """Name of the server, which differs from those of other models on the same host."""
        return self.picked.name if self.picked else MODEL

    @property
    def first_port(self) -> int:
        """Port of the first server. Each process of each model may need one of its own."""
        return FIRST_PORT + (self.picked.n_before if self.picked else 0)

    @functools.cached_property
    def cpus(self) -> tuple[Cpus, ...]:
        """CPUs of each process; none if they are not pinned, or if this host is not like the one that was measured."""
        if not self.is_pinned:
            return ()
        host = read_host(memory=False)
        usable = {cpu for core in host.usable_cores for cpu in core}
        if not self.record.host.includes(HostClass.of(host)) or not usable.issuperset(
            itertools.chain(*self.deployment.cpus)
        ):
            return ()
        return self.deployment.cpus

    def header(self) -> list[str]:
        """Return the first lines of the output: its origin, and the measured speedup or the deployment."""
        lines = [f"Generated by ortune from {self.source} for {self.record.model.path}."]
        if self.picked:
            return [*lines, *describe_deployment(self.picked)]
        hosts = self.record.evidence.hosts
        if hosts and self.record.is_slower:
            lines.append(f"Over {hosts.n_hosts} hosts of this class, it is slower: ortune apply does not use it.")
        # That of the config, not of a candidate that was compared with it.
        if (speedup := self.record.gain) and not self.record.config.is_default:
            figure = self.record.objectives[0]
            lines.append(
                f"Speedup: {format_speedup(speedup)} in {figure} "
                f"({self.record.workload.load}) on {self.record.host.cpu_name}, {self.record.host.n_usable} CPUs."
            )
        return lines

    def environment_comments(self, comment: str) -> list[str]:
        """Take the environment variables, and return comments that say to set them.

        Args:
            comment: What a comment starts with.
        """
        return [
            make_comment(comment, f"Start the program with {name}={value} in its environment.")
            for name, value in self.pending.take_environment().items()
        ]

    def session_comments(self, comment: str, language: Language, form: str) -> list[str]:
        """Take the entries that differ between sessions, and return comments with the entries of each session.

        Args:
            comment: What a comment starts with.
            language: The language of the code.
            form: What follows the number of the session, with `{name}` and `{value}` of the entry.
        """
        return [
            make_comment(
                comment,
                f"For session {number} {form.format(name=language.quote(name), value=language.quote(value))}",
            )
            for number, entries in enumerate(self.pending.take_session_entries(), 1)
            for name, value in entries.items()
        ]


def describe_deployment(picked: PickedDeployment) -> list[str]:
    """Return what a deployment is, and what it was planned for, a line each."""
    what = "recommended" if picked.is_recommended else "not the recommended one"
    lines = [f"Deployment {picked.number} of the plan, {what}: {picked.deployment.title}."]
    if picked.shared:
        lines.append(f"It shares the host with the other models of the plan ({picked.shared}).")
    if picked.capacity and picked.capacity.estimate <= 0:
        lines.append("No rate was found at which it meets the target.")
    elif capacity := picked.capacity:
        interval = f" [{capacity.low:.4g}, {'' if capacity.high is None else f'{capacity.high:.4g}'}]"
        within = f" within {picked.slo.text}" if picked.slo else ""
        lines.append(
            f"Capacity{within}: {capacity.estimate:.4g}/s{interval if capacity.low > 0 else ''}, {capacity.source}. "
            f"Planned for at most {picked.most_per_s:.4g}/s."
        )
    elif picked.throughput:
        lines.append(f"Throughput: {picked.throughput.estimate:.4g}/s, measured.")
    if picked.lengths:
        lines.append(f"Items of different lengths in a call: {picked.lengths.choice.title}.")
    if picked.rate_per_s:
        hosts = "1 host" if picked.replicas == 1 else f"{picked.replicas} hosts"
        n_hosts = "no number of hosts is enough" if picked.replicas is None else f"{hosts} like the measured one"
        lines.append(f"For {picked.rate_per_s:.4g}/s: {n_hosts}.")
    return lines


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A system that configs can be written for.

    Attributes:
        name: Its name on the command line.
        summary: What is written, one line.
        write: Returns the text. If `binary` is set, it writes `job.output` and returns notes on how to use the file.
        comment: What a comment starts with; empty if the format has no comments.
        binary: Whether `write` writes the file.
        merges: Whether the settings are added to an existing output file. Otherwise such a file is an error.
    """

    name: str
    summary: str
    write: Callable[[Job], str]
    comment: str = "#"
    binary: bool = False
    merges: bool = False


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A config as written for a target.

    Attributes:
        target: Name of the target.
        text: The whole output; for a binary file, notes on how to use it.
        binary: Whether the output is a binary file, which has been written.
        unsupported: Settings that the target does not support, a line each.
    """

    target: str
    text: str
    binary: bool = False
    unsupported: tuple[str, ...]
