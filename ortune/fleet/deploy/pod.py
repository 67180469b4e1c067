"""What the pods of Jobs and DaemonSets share.

Source: https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

from collections.abc import Sequence

from ortune.export.kubernetes import quote
from ortune.export.literals import YAML
from ortune.fleet.deploy.shell import RUN_IN_CONTAINER
from ortune.fleet.deploy.task import Task, check_word

APP_LABEL = "ortune"
"""Value of the label that all pods of ortune have, and the name of their container."""

SECRET_FOLDER = "/etc/ortune/storage"  # noqa: S105 - it is a path
SECRET_KEY = "url"  # noqa: S105 - it is a name

RECORD = "/var/lib/ortune/record.json"

GRACE_S = 60
"""How long ortune may take to stop."""


def make_header(task: Task) -> list[str]:
    """Return the first comments: what to do before."""
    lines = [*task.header]
    if not task.storage:
        lines += [
            f"# Before: kubectl create secret generic {task.secret} --from-file={SECRET_KEY}=storage-url.txt",
            "# storage-url.txt holds the URL of the storage, with its password. This file holds no credentials.",
        ]
    return [*lines, *task.note_lines]


def make_labels(task: Task, indent: int) -> list[str]:
    """Return the labels of an object."""
    labels = {"app.kubernetes.io/name": APP_LABEL, "app.kubernetes.io/instance": task.name}
    return indent_lines(indent, ["labels:", *(f"  {key}: {text}" for key, text in labels.items())])


def make_placement(task: Task) -> list[str]:
    """Return the fields of a pod that choose its node: one pod of ortune at a time on each."""
    lines = ["automountServiceAccountToken: false", f"terminationGracePeriodSeconds: {GRACE_S}"]
    if task.labels:
        lines += ["nodeSelector:", *(f"  {quote_plain(key)}: {quote_plain(text)}" for key, text in task.labels.items())]
    return [
        *lines,
        "affinity:",
        "  # Pods of ortune on the same node would disturb each other's measurements.",
        "  podAntiAffinity:",
        "    requiredDuringSchedulingIgnoredDuringExecution:",
        "      - topologyKey: kubernetes.io/hostname",
        "        labelSelector:",
        "          matchLabels:",
        f"            app.kubernetes.io/name: {APP_LABEL}",
    ]


def make_container(task: Task) -> list[str]:
    """Return the container that runs the command.

    Raises:
        UsageError: A word cannot be written.
    """
    words = [*task.command, *([f"--output={RECORD}"] if task.record else []), *task.arguments]
    for word in words:
        check_word(word, in_shell=False)
    lines = [
        f"- name: {APP_LABEL}",
        f"  image: {quote_plain(task.image)}",
        "  command:",
        "    - sh",
        "    - -c",
        "    - |",
        *indent_lines(6, RUN_IN_CONTAINER.splitlines()),
        f"    - {APP_LABEL}",
        "  args:",
        *(f"    - {quote(word)}" for word in words),
        "  env:",
        "    - name: ORTUNE_NODE",
        "      valueFrom:",
        "        fieldRef:",
        "          fieldPath: spec.nodeName",
        *indent_lines(4, make_variable(task)),
        *indent_lines(2, make_resources(str(task.cpus), task.memory)),
    ]
    mounts = make_mounts(task)
    return [*lines, *(["  volumeMounts:", *indent_lines(4, mounts)] if mounts else [])]


def make_variable(task: Task) -> list[str]:
    """Return the variable with the storage, or with the file that holds its URL."""
    if task.storage:
        return ["- name: ORTUNE_STORAGE", f"  value: {quote(task.storage)}"]
    return ["- name: ORTUNE_STORAGE_FILE", f"  value: {SECRET_FOLDER}/{SECRET_KEY}"]


def make_resources(cpus: str, memory: str) -> list[str]:
    """Return requests that equal the limits: the QoS class Guaranteed."""
    amounts = [f'    cpu: "{cpus}"', f"    memory: {memory}"]
    return ["resources:", "  requests:", *amounts, "  limits:", *amounts]


def make_mounts(task: Task) -> list[str]:
    """Return the mounts of the container."""
    lines: list[str] = []
    if not task.storage:
        lines += ["- name: storage", f"  mountPath: {SECRET_FOLDER}", "  readOnly: true"]
    if task.record:
        lines += ["- name: records", f"  mountPath: {RECORD.rpartition('/')[0]}"]
    for number, volume in enumerate(task.volumes):
        lines += [f"- name: volume-{number}", f"  mountPath: {quote_plain(volume.path)}"]
        lines += ["  readOnly: true"] if volume.read_only else []
    return lines


def make_volumes(task: Task) -> list[str]:
    """Return the volumes of the pod; none if it has none."""
    lines: list[str] = []
    if not task.storage:
        lines += ["- name: storage", "  secret:", f"    secretName: {task.secret}"]
    if task.record:
        lines += ["- name: records", "  emptyDir: {}"]
    for number, volume in enumerate(task.volumes):
        lines += [f"- name: volume-{number}", "  persistentVolumeClaim:", f"    claimName: {volume.claim}"]
    return ["volumes:", *indent_lines(2, lines)] if lines else []


def quote_plain(text: str) -> str:
    """Return a text as YAML, where Kubernetes replaces no variables."""
    return YAML.quote(text)


def indent_lines(n_spaces: int, lines: Sequence[str]) -> list[str]:
    """Return indented lines."""
    return [f"{' ' * n_spaces}{line}" for line in lines]
