"""A Kubernetes Job: the command on a number of nodes.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

from ortune.fleet.deploy.pod import (
    indent_lines,
    make_container,
    make_header,
    make_labels,
    make_placement,
    make_volumes,
)
from ortune.fleet.deploy.task import Task

RETRIES = 2
"""How often a pod that failed is replaced."""


def write(task: Task) -> str:
    """Return the Job.

    The deadline is that of a pod, which counts from its start on a node. The deadline of the Job would also count the
    time in which pods wait for a free node.

    Raises:
        UsageError: A word cannot be written.
    """
    lines = [
        *make_header(task),
        f"# Then: kubectl apply --filename FILE; kubectl wait --for=condition=complete --timeout=-1s job/{task.name}",
        "# Needs Kubernetes 1.29 or later.",
        "apiVersion: batch/v1",
        "kind: Job",
        "metadata:",
        f"  name: {task.name}",
        *make_labels(task, 2),
        "spec:",
        "  completionMode: Indexed",
        f"  completions: {task.n_nodes}",
        f"  parallelism: {task.n_nodes}",
        f"  backoffLimitPerIndex: {RETRIES}",
        "  podFailurePolicy:",
        "    rules:",
        "      # A pod whose node is drained is replaced, and does not count as failed.",
        "      - action: Ignore",
        "        onPodConditions:",
        "          - type: DisruptionTarget",
        '            status: "True"',
        "  template:",
        "    metadata:",
        *make_labels(task, 6),
        "    spec:",
        "      restartPolicy: Never",
        "      # Of each pod, from its start on a node.",
        f"      activeDeadlineSeconds: {task.deadline_s}",
        *indent_lines(6, make_placement(task)),
        "      containers:",
        *indent_lines(8, make_container(task)),
        *indent_lines(6, make_volumes(task)),
    ]
    return "\n".join(lines)
