"""Kubernetes: for a record, resources and environment of a container; for a plan, a Deployment that scales itself.

Source: https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import math

from ortune.export.comments import make_comment
from ortune.export.environment import cpu_comments, take_variables
from ortune.export.literals import SHELL, YAML
from ortune.export.serving import (
    CONFIG_IN_CONTAINER,
    MEMORY_STEP_MIB,
    cache_comments,
    count_cpus,
    count_memory_mib,
    describe_memory,
    make_apply_command,
    make_gunicorn_command,
    report_calls,
    report_gpu,
)
from ortune.export.target import FIRST_PORT, Job, Target
from ortune.knobs.ids import INTRA_OP_ALLOW_SPINNING
from ortune.planning.pick import PickedDeployment

POD_MEMORY_FACTOR = 1.5
"""Factor on the largest resident memory that was measured: a program holds more than its session."""


LARGEST_BYTES = 2**60

CONFIG_MAP = "ortune-config"

MOST_REPLICAS_FACTOR = 2
"""How many times the planned replicas there may be."""

AUTOSCALER_TOLERANCE = 0.1
"""By how much the CPU use must exceed the target of an autoscaler before it adds pods, as a share of the target.

Source: "Horizontal Pod Autoscaling" in the documentation of Kubernetes.
"""

LARGEST_CPU_SHARE = 0.98
"""Above this share of the CPU use at full load, a pod at the highest planned rate cannot be distinguished from an
overloaded one."""


def peak_memory_bytes(job: Job) -> int:
    """Return the largest resident memory that was measured with this config, or with any if it was not measured."""
    evidence = job.record.evidence
    summaries = [evidence.winner, evidence.baseline, *(point.summary for point in evidence.front)]
    measured = [summary for summary in summaries if summary]
    measured = [summary for summary in measured if summary.config == job.record.config] or measured
    return min(max((summary.peak_bytes or 0 for summary in measured), default=0), LARGEST_BYTES)


def write(job: Job) -> str:
    """Return the manifests of a plan, or the fields of a container in the spec of a pod."""
    return write_manifests(job, job.picked) if job.picked else write_container(job)


def write_container(job: Job) -> str:
    """Return the fields of a container in the spec of a pod."""
    cpus = count_cpus(job)
    measured = "session" if job.record.workload.load.processes == 1 else "processes that were measured"
    variables = take_variables(job)
    text = format_cpus(cpus)
    cpu = f'    cpu: "{text}"'
    requests = [cpu]
    if (peak := peak_memory_bytes(job)) > 0:
        memory = f"{math.ceil(peak * POD_MEMORY_FACTOR / (MEMORY_STEP_MIB << 20)) * MEMORY_STEP_MIB}Mi"
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
            lines += [f"  - name: {name}", f"    value: {quote(value)}"]
    return "\n".join(lines)


class PodShape:
    """What a pod has: all processes of a deployment, or one process if they are pinned.

    With the static CPU manager policy, each container with whole CPUs has them exclusively.

    Args:
        job: The export.
        picked: The deployment.
    """

    def __init__(self, job: Job, picked: PickedDeployment) -> None:
        deployment = job.deployment
        self.n_processes = 1 if job.is_pinned else deployment.processes
        self.n_per_host = deployment.processes // self.n_processes
        self.n_pods = self.n_per_host * (picked.replicas or 1)
        self.cpus = count_cpus(job)
        if job.is_pinned:
            # With the static CPU manager policy, a container gets whole cores: all CPUs of as many as it has threads.
            host = job.record.host
            n_of_core = 1 if host.cpu_quota else max(host.n_usable // max(host.n_usable_cores, 1), 1)
            most = host.n_usable / deployment.processes
            self.cpus = max(math.floor(min(n_of_core * self.cpus / deployment.processes, most)), 1)
        self.memory_mib = count_memory_mib(job, self.n_processes)
        used = min(picked.most_cpus / self.n_per_host / self.cpus, 1.0)
        most = min(picked.full_cpus / self.n_per_host / self.cpus, 1.0) if picked.full_cpus else 1.0
        self.cpu_percent = max(round(100 * used), 1)
        self.target_percent = max(math.floor(100 * used / (1 + AUTOSCALER_TOLERANCE)), 1)
        self.shows_overload = used < LARGEST_CPU_SHARE * most


def write_manifests(job: Job, picked: PickedDeployment) -> str:
    """Return a Deployment, a Service and a HorizontalPodAutoscaler."""
    job.pending.take_applied()
    report_calls(job)
    report_gpu(job)
    shape = PodShape(job, picked)
    what = "one process" if shape.n_processes == 1 else f"{shape.n_processes} processes"
    create = SHELL.join(["kubectl", "create", "configmap", CONFIG_MAP, f"--from-file=config.json={job.file}"])
    lines = [
        make_comment("#", f"Before: {create}"),
        "# The image needs gunicorn, your program and ortune-apply.",
        *cache_comments(job),
        f"# Each pod has {what}. A pod is of another class of host than the host that was measured, unless that had",
        "# the same CPU limit: plan in a pod with these resources, on the same type of node, if the figures must hold.",
    ]
    if not job.deployment.n_threads and not job.is_pinned:
        lines += [
            "# ONNX Runtime's default is one thread for each physical core of the node, whatever the CPU limit is. On",
            "# nodes with more cores than the host that was measured, set intra_op_num_threads.",
        ]
    if shape.cpus * shape.n_per_host >= job.record.host.n_logical and not job.record.host.cpu_quota:
        what = "A pod requests" if shape.n_per_host == 1 else "The pods of one host request"
        lines.append(
            make_comment(
                "#",
                f"{what} all CPUs of the host that was measured. Kubernetes reserves some CPUs of each node, so that "
                "no node of the same size has room for that: use larger nodes, or plan with a CPU limit.",
            )
        )
    if job.is_pinned:
        lines += [
            "# Each process has its own CPUs if the kubelet has the static CPU manager policy, and the pod the QoS",
            "# class Guaranteed: add a limit of memory that equals the request.",
        ]
    if shape.memory_mib:
        lines.append(make_comment("#", describe_memory()))
    autoscaler = make_autoscaler(job, picked, shape)
    manifests = [make_deployment(job, shape, scales=bool(autoscaler)), make_service(job.name), autoscaler]
    return "\n".join(lines) + "\n" + "\n---\n".join("\n".join(manifest) for manifest in manifests if manifest)


def make_deployment(job: Job, shape: PodShape, *, scales: bool) -> list[str]:
    """Return the lines of the Deployment.

    Args:
        job: The export.
        shape: What a pod has.
        scales: Whether there is an autoscaler.
    """
    apply = make_apply_command(
        job, source=CONFIG_IN_CONTAINER, program="ortune-apply", any_host=job.record.host.cpu_quota != shape.cpus
    )
    command = [*apply, *make_gunicorn_command(job, workers=shape.n_processes, bind=f"0.0.0.0:{FIRST_PORT}")]
    cpu = f'              cpu: "{format_cpus(shape.cpus)}"'
    memory = [f"              memory: {shape.memory_mib}Mi"] if shape.memory_mib else []
    return [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata:",
        f"  name: {job.name}",
        "spec:",
        *(["  # Remove this line before you apply the file again: the autoscaler sets it."] if scales else []),
        f"  replicas: {shape.n_pods}",
        "  selector:",
        "    matchLabels:",
        f"      app: {job.name}",
        "  template:",
        "    metadata:",
        "      labels:",
        f"        app: {job.name}",
        "    spec:",
        "      containers:",
        f"        - name: {job.name}",
        "          image: IMAGE",
        "          command:",
        *(f"            - {quote(word)}" for word in command),
        "          ports:",
        f"            - containerPort: {FIRST_PORT}",
        "          resources:",
        "            requests:",
        cpu,
        *memory,
        "            limits:",
        cpu,
        "          volumeMounts:",
        "            - name: plan",
        f"              mountPath: {CONFIG_IN_CONTAINER.rpartition('/')[0]}",
        "              readOnly: true",
        "      volumes:",
        "        - name: plan",
        "          configMap:",
        f"            name: {CONFIG_MAP}",
    ]


def make_service(name: str) -> list[str]:
    """Return the lines of the Service, which spreads connections over the pods at random."""
    return [
        "apiVersion: v1",
        "kind: Service",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  selector:",
        f"    app: {name}",
        "  ports:",
        "    - port: 80",
        f"      targetPort: {FIRST_PORT}",
    ]


def make_autoscaler(job: Job, picked: PickedDeployment, shape: PodShape) -> list[str]:
    """Return the lines of the autoscaler, whose target is the CPU use at the highest planned rate; none without one."""
    if picked.most_per_s <= 0:
        job.pending.report("replicas", "unknown", "no rate was found at which the deployment meets the target")
        return []
    if not picked.most_cpus:
        job.pending.report("replicas", "fixed", "how much CPU time a request needs was not measured: plan again")
        return []
    if not shape.shows_overload:
        reason = (
            "at the highest planned rate, a pod uses as much CPU as when it is overloaded: plan with a larger headroom"
        )
        job.pending.report("replicas", "fixed", reason)
        return []
    unit = "items" if job.record.config.batch > 1 else "requests"
    lines = [
        make_comment(
            "#",
            f"At {picked.most_per_s / shape.n_per_host:.4g} {unit} per second, the highest planned rate of a pod, "
            f"its processes use {shape.cpu_percent}% of the requested CPUs.",
        ),
        "# Kubernetes adds pods only when the use exceeds the target by more than 10%. Thus, the target is lower.",
    ]
    if job.record.config.session_config.get(INTRA_OP_ALLOW_SPINNING) != "0" and job.deployment.n_threads != 1:
        lines += [
            "# Threads spin after each call, and use CPUs at lower rates, too. With session.intra_op.allow_spinning=0,",
            "# the CPU use follows the rate better.",
        ]
    return [
        *lines,
        "apiVersion: autoscaling/v2",
        "kind: HorizontalPodAutoscaler",
        "metadata:",
        f"  name: {job.name}",
        "spec:",
        "  scaleTargetRef:",
        "    apiVersion: apps/v1",
        "    kind: Deployment",
        f"    name: {job.name}",
        f"  minReplicas: {shape.n_pods}",
        f"  maxReplicas: {MOST_REPLICAS_FACTOR * shape.n_pods}",
        "  metrics:",
        "    - type: Resource",
        "      resource:",
        "        name: cpu",
        "        target:",
        "          type: Utilization",
        f"          averageUtilization: {shape.target_percent}",
    ]


def format_cpus(cpus: float) -> str:
    """Return a number of CPUs as a quantity of Kubernetes."""
    return f"{cpus:g}" if cpus == int(cpus) else f"{round(cpus * 1000)}m"


def quote(text: str) -> str:
    """Return a text as YAML in which Kubernetes replaces no variable: it replaces $(NAME), and $$ by $."""
    return YAML.quote(text.replace("$", "$$"))


TARGET = Target(name="kubernetes", summary="a container, or for a plan a Deployment with an autoscaler", write=write)
