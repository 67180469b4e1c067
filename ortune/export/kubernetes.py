"""Resources and environment of a container in a Kubernetes manifest, to fit the tuned thread count."""

from __future__ import annotations

import math

from ortune.export.environment import cpu_comments, take_variables
from ortune.export.literals import YAML
from ortune.export.target import Job, Target

MEMORY_FACTOR = 1.5
"""Factor on the largest resident memory that was measured: a program holds more than its session."""

MEMORY_STEP_MIB = 64

LARGEST_BYTES = 2**60


def cpus_needed(job: Job) -> float:
    """Return how many CPUs the threads and callers of this config and load can use."""
    host, load, config = job.record.host, job.record.workload.load, job.record.config
    if host.cpu_quota:
        return host.cpu_quota
    pool = config.global_thread_pool
    threads = int(pool.intra_op_num_threads if pool else config.session_options.get("intra_op_num_threads", 0))
    if not threads:
        return host.n_usable
    # A caller is one of the threads of its session's pool.
    n_pools = 1 if pool else load.sessions
    return max(1, min(host.n_usable, load.processes * (n_pools * (threads - 1) + load.clients)))


def peak_memory_bytes(job: Job) -> int:
    """Return the largest resident memory that was measured with this config, or with any if it was not measured."""
    evidence = job.record.evidence
    summaries = [evidence.winner, evidence.baseline, *(point.summary for point in evidence.front)]
    measured = [summary for summary in summaries if summary]
    measured = [summary for summary in measured if summary.config == job.record.config] or measured
    return min(max((summary.peak_bytes or 0 for summary in measured), default=0), LARGEST_BYTES)


def write(job: Job) -> str:
    """Return the fields of a container in the spec of a pod."""
    cpus = cpus_needed(job)
    measured = "session" if job.record.workload.load.processes == 1 else "processes that were measured"
    variables = take_variables(job)
    text = f"{cpus:g}" if cpus == int(cpus) else f"{round(cpus * 1000)}m"
    cpu = f'    cpu: "{text}"'
    requests = [cpu]
    if (peak := peak_memory_bytes(job)) > 0:
        memory = f"{math.ceil(peak * MEMORY_FACTOR / (MEMORY_STEP_MIB << 20)) * MEMORY_STEP_MIB}Mi"
        requests.append(f"    memory: {memory}  # for the {measured} only; add what the program itself needs")
    lines = cpu_comments(job)
    if cpus != (job.record.host.cpu_quota or job.record.host.n_usable):
        lines += [
            f"# The threads and callers of this config can use at most {text} CPUs. A container with this limit is",
            "# another host class. Check there that the gain holds: ortune apply CONFIG MODEL --verify",
        ]
    lines += [
        "# There is no limit of memory: what the program itself needs is not known, and a container that exceeds its",
        "# limit is killed. If you add one that equals the request, the pod has the QoS class Guaranteed. With whole",
        "# CPUs and the static CPU manager policy, the container then has its CPUs exclusively.",
        "resources:",
        "  requests:",
        *requests,
        "  limits:",
        cpu,
    ]
    if variables:
        lines.append("env:")
        for name, value in variables.items():
            # Kubernetes replaces $(NAME) by another variable, and $$ by $.
            lines += [f"  - name: {name}", f"    value: {YAML.quote(value.replace('$', '$$'))}"]
    return "\n".join(lines)


TARGET = Target(name="kubernetes", summary="resources and env of a Kubernetes container", write=write)
