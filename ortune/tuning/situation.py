"""How a model is used: its load, its objective and the CPUs that it has, as far as this decides which settings help."""

from __future__ import annotations

import msgspec

from ortune.host import HostClass
from ortune.knobs import Candidate, ids
from ortune.workload import Goal

THREADS = ids.INTRA_OP_NUM_THREADS

MEAN = "mean"
"""Stands for the objectives mean and throughput: without a rate, either determines the other."""

ROUNDED_QUOTA = "quota"
"""Stands for the quota, rounded down, as a number of threads."""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is used.

    Attributes:
        n_cores: Physical cores that the process may use.
        quota: CPU quota in CPUs, or None.
        has_background_load: Whether other programs use the CPUs.
        n_clients: Concurrent callers of all processes together.
        n_sessions: Sessions of the model in the process.
        n_processes: Processes that run the model.
        has_rate: Whether requests arrive at a rate.
        objective: What is optimized.
    """

    n_cores: int
    quota: float | None = None
    has_background_load: bool = False
    n_clients: int = 1
    n_sessions: int = 1
    n_processes: int = 1
    has_rate: bool = False
    objective: str = "p50"

    @classmethod
    def of(cls, host: HostClass, goal: Goal, *, has_background_load: bool) -> Situation:
        """Return the situation of a model on a host."""
        return cls(
            n_cores=host.n_usable_cores,
            quota=host.cpu_quota,
            has_background_load=has_background_load,
            n_clients=goal.load.n_callers,
            n_sessions=goal.load.sessions,
            n_processes=goal.load.processes,
            has_rate=goal.load.rate_per_s is not None,
            objective=MEAN if goal.objective in {"mean", "throughput"} else goal.objective,
        )

    @property
    def cores_per_client(self) -> float:
        """Number of cores for each client. A background load takes one core at least."""
        cores = min(self.n_cores, self.quota or self.n_cores) - self.has_background_load
        return cores / self.n_clients

    @property
    def is_saturated(self) -> bool:
        """Whether the clients can keep all cores busy with one thread each: there is no more than one core for each."""
        return self.cores_per_client <= 1

    @property
    def kind(self) -> str:
        """Name of the situations whose recordings are comparable, such as `saturated, mean`."""
        parts = ["saturated" if self.is_saturated else "unsaturated", self.objective]
        parts += ["at a rate"] if self.has_rate else []
        parts += ["several sessions"] if self.n_sessions > 1 else []
        parts += ["several processes"] if self.n_processes > 1 else []
        return ", ".join(parts)

    def name_rule(self, candidate: Candidate) -> str:
        """Return a name for the choices of a candidate that is the same on all hosts: `intra_op_num_threads=cores`."""
        roles = {str(self.n_cores): "cores"}
        if self.quota and self.quota >= 1:
            roles[str(int(self.quota))] = ROUNDED_QUOTA
        roles["1"] = "1"
        labels = candidate.chosen
        if count := labels.get(THREADS):
            labels[THREADS] = roles.get(count, count)
        return ",".join(f"{name}={label}" for name, label in sorted(labels.items()))
