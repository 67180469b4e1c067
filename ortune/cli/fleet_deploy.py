"""`ortune fleet deploy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ortune.cli.command import Values, command
from ortune.cli.node_command import read_node_command
from ortune.errors import UsageError
from ortune.fleet_options import NO_CREDENTIALS, FleetDeployRequest
from ortune.options import make_request

if TYPE_CHECKING:
    from ortune.host import HostClass


@command(FleetDeployRequest)
def deploy(values: Values) -> None:
    """Write a file with which Kubernetes, Slurm or ssh run a command of ortune on several nodes. Nothing is started.

    The results come together in a shared storage. Its password stays in a file or in a Secret of Kubernetes.
    """
    import sys

    from ortune.fleet.deploy import Task, write_task
    from ortune.fleet.deploy.labels import NodeLabels, find_labels
    from ortune.fleet.deploy.task import Volume, name_record
    from ortune.limited import STANDARD_STREAM
    from ortune.record.files import check_writable, write_atomically

    request = make_request(FleetDeployRequest, values, "cli")
    if request.storage is not None:
        check_public(request.storage)
    node_command = read_node_command(request.command, request.words)
    host = read_host_class(request.host_class) if request.host_class is not None else None
    found = find_labels(host) if host else NodeLabels({}, ())
    budget_s = getattr(node_command.request, "budget", None)
    task = Task(
        name=request.name or f"ortune-{request.command}",
        command=node_command.command,
        arguments=node_command.arguments,
        record=name_record(node_command.request.model) if node_command.writes_record else "",
        n_nodes=request.nodes or 0,
        cpus=choose_cpus(request, host),
        memory=request.memory or "",
        deadline_s=round(request.deadline or (2 * budget_s + 900 if budget_s else 3600)),
        image=request.image or "IMAGE",
        volumes=[Volume(claim=claim, path=path, read_only=read_only) for claim, path, read_only in request.volume],
        labels={**found.labels, **request.node_selector},
        notes=found.notes,
        constraint=request.constraint or "",
        storage=request.storage or "",
        storage_file=request.storage_file or "",
        secret=request.secret or "ortune-storage",
    )
    text = write_task(request.target, task)
    path = Path(request.output)
    if request.output == STANDARD_STREAM:
        sys.stdout.write(text)
        return
    check_writable(path)
    if path.is_file():
        raise UsageError(f"{path}: this file already exists.", "Name another file, or remove it.", option="output")
    write_atomically(path, text.encode())
    if not request.quiet:
        from ortune.console.widgets import make_console, show_note

        show_note(make_console(), "written", str(path), "green", fold=False)


def check_public(storage: str) -> None:
    """Check that a storage can be used without a password.

    Raises:
        UsageError: It is not a storage, or contains a password.
    """
    from ortune.storage.location import parse_location

    if parse_location(storage, "storage").secrets:
        raise UsageError("holds a password, which must not be in a file like this.", NO_CREDENTIALS, option="storage")


def read_host_class(text: str) -> HostClass:
    """Return the class of a record's host, or of this host.

    Raises:
        RecordError: The record cannot be read.
    """
    from ortune.host import HostClass, read_host
    from ortune.record.files import read_record

    return HostClass.of(read_host()) if text == "here" else read_record(text).host


def choose_cpus(request: FleetDeployRequest, host: HostClass | None) -> int | None:
    """Return how many CPUs a node uses; None for all.

    Raises:
        UsageError: Kubernetes needs a number, and there is none.
    """
    quota = host.cpu_quota if host else None
    if request.cpus is None and request.is_kubernetes:
        if quota and quota == int(quota):
            return int(quota)
        raise UsageError(
            f"is missing, which {request.target} needs.",
            "Name as many as the deployment will have: {cpus=4}. The static CPU manager policy gives a container whole "
            "CPUs for itself.",
            option="cpus",
        )
    return request.cpus
