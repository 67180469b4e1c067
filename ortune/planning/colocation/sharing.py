"""Ways in which several models share the cores of a host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from ortune.planning.deployment import Deployment
from ortune.workload import Limit, Load
from ortune.workload.figures import Objective

Kind = Literal["default", "unpinned", "divided"]
"""How cores are shared. "default": each model has one process with ONNX Runtime's defaults. "unpinned": processes with
other settings, all of which run on all cores. "divided": each process has cores of its own."""

TITLES: dict[Kind, str] = {
    "default": "each model with ONNX Runtime's defaults",
    "unpinned": "all models on all cores",
    "divided": "cores divided among the models",
}


class Demand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one of the models must serve.

    Attributes:
        name: Its name, which differs from those of the others.
        rate_per_s: Requests per second.
        slo: The target for the latency, or None.
    """

    name: str
    rate_per_s: float
    slo: Limit | None = None

    def __post_init__(self) -> None:
        """Reject rates that no requests have."""
        if not 0 < self.rate_per_s < math.inf:
            raise ValueError(f"a rate of {self.rate_per_s}: it must be positive")

    @property
    def figure(self) -> Objective:
        """The figure of the latency that is of interest."""
        return self.slo.figure if self.slo else "p99"


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment of each model, side by side on one host.

    Attributes:
        kind: How cores are shared.
        deployments: The deployment of each model, in the order of the models.
    """

    kind: Kind
    deployments: tuple[Deployment, ...]

    @property
    def key(self) -> str:
        """A text that is the same for equal sharings."""
        return " | ".join(deployment.key for deployment in self.deployments)

    @property
    def title(self) -> str:
        """A short description, such as `cores divided among the models: 3 + 1`."""
        return describe_kind(self.kind, self.deployments)

    def loads_at(self, demands: Sequence[Demand], scale: float) -> list[Load]:
        """Return how requests arrive at each model if all rates are multiplied by a number."""
        return [
            deployment.load_at(demand.rate_per_s * scale)
            for deployment, demand in zip(self.deployments, demands, strict=True)
        ]


def describe_kind(kind: Kind, deployments: Sequence[Deployment]) -> str:
    """Return how some deployments share the cores."""
    if kind == "default":
        return TITLES[kind]
    if kind == "unpinned":
        return f"{TITLES[kind]}: {' + '.join(str(deployment.processes) for deployment in deployments)} processes"
    n_cpus = (len({cpu for own in deployment.cpus for cpu in own}) for deployment in deployments)
    return f"{TITLES[kind]}: {' + '.join(map(str, n_cpus))} CPUs"
