"""Labels of Kubernetes nodes by the class of the host.

Source: for `cpu-model`, docs/usage/features.md and source/cpu/cpu.go of
https://github.com/kubernetes-sigs/node-feature-discovery, which takes family and model from `familyModel` of
https://github.com/klauspost/cpuid, the same numbers that Linux shows, and the vendor from its type `Vendor`.
For `kubernetes.io`, https://kubernetes.io/docs/reference/labels-annotations-taints/.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ortune.errors import UsageError
from ortune.host import HostClass

CPU_MODEL_LABEL = "feature.node.kubernetes.io/cpu-model"

VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon"}
"""Node Feature Discovery's names of vendors, by what the CPU itself says."""

ARCHITECTURES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""Kubernetes' names of architectures, by `platform.machine()`."""

NUMBER = re.compile(r"0|[1-9][0-9]{0,4}")

SKYLAKE_SERVER = ("Intel", "6", "85")
"""Skylake, Cascade Lake and Cooper Lake, which differ in the stepping. No label has it."""


class NodeLabels(NamedTuple):
    """Labels of the nodes of a class, as far as they are known.

    Attributes:
        labels: Values by label.
        notes: What they do not distinguish, in sentences.
    """

    labels: dict[str, str]
    notes: tuple[str, ...]


def find_labels(host: HostClass) -> NodeLabels:
    """Return the labels that nodes of a class have.

    Raises:
        UsageError: It is not a class of Linux hosts.
    """
    if host.system != "Linux":
        raise UsageError(
            f"{host.system}: hosts of this class do not run Linux.",
            "Take a record of a Linux host.",
            option="host_class",
        )
    labels = {"kubernetes.io/os": "linux"}
    if host.machine in ARCHITECTURES:
        labels["kubernetes.io/arch"] = ARCHITECTURES[host.machine]
    notes = ["Labels do not say all that a class of hosts is: cores, limits, caches. ortune itself compares these."]
    model = _find_model(host)
    if model is None:
        notes.append(
            "Node Feature Discovery has no label that is known to be right for this CPU. Add one of your cluster, such "
            "as that of the instance type."
        )
        return NodeLabels(labels, tuple(notes))
    labels |= dict(
        zip((f"{CPU_MODEL_LABEL}.vendor_id", f"{CPU_MODEL_LABEL}.family", f"{CPU_MODEL_LABEL}.id"), model, strict=True)
    )
    notes.insert(0, "The labels cpu-model are those of Node Feature Discovery, which must run in the cluster.")
    if model == SKYLAKE_SERVER:
        notes.append("Skylake, Cascade Lake and Cooper Lake have the same labels.")
    return NodeLabels(labels, tuple(notes))


def _find_model(host: HostClass) -> tuple[str, str, str] | None:
    """Return vendor, family and model as Node Feature Discovery writes them, or None.

    On ARM, its numbers also contain the variant and the revision of the core, and hosts with several kinds of cores
    have those of the core that it happened to run on.
    """
    cpu = host.cpu
    if cpu is None or cpu.vendor not in VENDORS or not all(map(NUMBER.fullmatch, (cpu.family, cpu.model))):
        return None
    return VENDORS[cpu.vendor], cpu.family, cpu.model
