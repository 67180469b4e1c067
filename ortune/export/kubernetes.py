"""Resources and environment of a container in a Kubernetes manifest, to fit the tuned thread count."""

from __future__ import annotations

import json
import math

from ortune.export.environment import describe_cpus, take_variables
from ortune.export.target import Job, Target

MEMORY_FACTOR = 1.5
"""Room above the largest resident memory that was measured: a program holds more than its session."""

MEMORY_STEP = 64 << 20


def cpus_needed(job: Job) -> float:
    """Return for how many CPUs a container has work with this config and load."""
    host, load, config = job.record.host, job.record.workload.load, job.record.config
    if host.cpu_quota:
        return host.cpu_quota
    pool = config.global_thread_pool
    threads = int(pool.intra_op_num_threads if pool else config.session_options.get("intra_op_num_threads", 0))
    if not threads:
        return host.n_usable
    # A caller is one of the threads of its session's pool.
    n_pools = 1 if pool else load.sessions
    return min(host.n_usable, n_pools * (threads - 1) + load.clients)


def write(job: Job) -> str:
    """Return what belongs into a container of a pod's spec."""
    cpus = cpus_needed(job)
    variables = take_variables(job)
    for name in job.sheet.config.settings:
        job.sheet.explain(name, "no environment variable sets it")
    evidence = job.record.evidence
    sides = [evidence.winner, evidence.baseline, *(point.summary for point in evidence.front)]
    # Those of other points of a front were measured with other configs.
    sides = [side for side in sides if side and side.config == job.record.config] or sides
    peak = max((side.peak_bytes or 0 for side in sides if side), default=0)
    text = f"{cpus:g}" if cpus == int(cpus) else f"{round(cpus * 1000)}m"
    amounts = [f'    cpu: "{text}"']
    if peak:
        memory = f"{math.ceil(peak * MEMORY_FACTOR / MEMORY_STEP) * 64}Mi"
        amounts.append(f"    memory: {memory}  # the session in a bare Python; add what your program takes")
    lines = [f"# {describe_cpus(job)}"]
    if cpus != (job.record.host.cpu_quota or job.record.host.n_usable):
        lines.append(
            f"# {text} CPUs are all that its threads and callers can use; in such a container, which is another class"
        )
        lines.append("# of host, check that the gain holds: ortune apply CONFIG MODEL --verify.")
    lines += [
        "# Equal requests and limits make the pod Guaranteed; with whole CPUs and the static CPU manager policy,",
        "# the container has its CPUs to itself.",
        "resources:",
        "  requests:",
        *amounts,
        "  limits:",
        *amounts,
    ]
    if variables:
        lines.append("env:")
        for name, value in variables.items():
            lines += [f"  - name: {name}", f"    value: {json.dumps(value)}"]
    return "\n".join(lines)


TARGET = Target(name="kubernetes", summary="resources and env of a Kubernetes container", write=write)
