"""Writes files with which Kubernetes, Slurm or ssh run ortune on several nodes: one module for each kind of file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ortune.fleet.deploy import daemonset, kubernetes_job, slurm, ssh
from ortune.fleet.deploy.task import Task

__all__ = ["WRITERS", "Task", "write_task"]

WRITERS: Mapping[str, Callable[[Task], str]] = {
    "kubernetes-job": kubernetes_job.write,
    "kubernetes-daemonset": daemonset.write,
    "slurm": slurm.write,
    "ssh": ssh.write,
}
"""The function that writes the file of each target."""


def write_task(target: str, task: Task) -> str:
    """Return the file of a target.

    Raises:
        UsageError: A word of the command cannot be written there.
    """
    return WRITERS[target](task).rstrip("\n") + "\n"
