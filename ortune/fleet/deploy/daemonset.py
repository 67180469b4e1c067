"""A Kubernetes DaemonSet: the command on every node that has certain labels.

The containers of a DaemonSet are started again when they end. The command is therefore run by an init container, and
the container proper only waits: `kubectl rollout status` then waits until all nodes are done, and nothing runs twice.
After an error, the kubelet starts the init container again, later each time.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/
"""

from __future__ import annotations

from ortune.fleet.deploy.pod import (
    indent_lines,
    make_container,
    make_header,
    make_labels,
    make_placement,
    make_resources,
    make_volumes,
    quote_plain,
)
from ortune.fleet.deploy.task import Task

WAIT = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"


def write(task: Task) -> str:
    """Return the DaemonSet. It has no deadline: Kubernetes does not allow one there.

    Raises:
        UsageError: A word cannot be written.
    """
    lines = [
        *make_header(task),
        f"# Then: kubectl apply --filename FILE; kubectl rollout status daemonset/{task.name}",
        f"# It keeps its CPUs reserved until you delete it: kubectl delete daemonset/{task.name}",
        "apiVersion: apps/v1",
        "kind: DaemonSet",
        "metadata:",
        f"  name: {task.name}",
        *make_labels(task, 2),
        "spec:",
        "  selector:",
        "    matchLabels:",
        f"      app.kubernetes.io/instance: {task.name}",
        "  updateStrategy:",
        "    rollingUpdate:",
        "      maxUnavailable: 100%",
        "  template:",
        "    metadata:",
        *make_labels(task, 6),
        "    spec:",
        *indent_lines(6, make_placement(task)),
        "      # A DaemonSet starts its containers again when they end, but not its init containers. The pod is ready,",
        "      # and the rollout is complete, when the command has ended.",
        "      initContainers:",
        *indent_lines(8, make_container(task)),
        "      containers:",
        "        - name: done",
        f"          image: {quote_plain(task.image)}",
        f"          command: [sh, -c, {quote_plain(WAIT)}]",
        *indent_lines(10, make_resources("10m", "16Mi")),
        *indent_lines(6, make_volumes(task)),
    ]
    return "\n".join(lines)
