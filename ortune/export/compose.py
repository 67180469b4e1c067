"""compose.yaml of docker compose: services with the processes of a deployment, their CPUs and memory.

Source: https://github.com/compose-spec/compose-spec
"""

from __future__ import annotations

import os
from pathlib import Path

from ortune.export.comments import make_comment
from ortune.export.literals import YAML
from ortune.export.serving import (
    CONFIG_IN_CONTAINER,
    cache_comments,
    count_memory_mib,
    describe_memory,
    make_apply_command,
    make_gunicorn_command,
    make_text_of_cpus,
    report_calls,
    report_cpus,
    report_gpu,
    report_replicas,
)
from ortune.export.target import FIRST_PORT, Job, Target
from ortune.host import Cpus


def write(job: Job) -> str:
    """Return the file."""
    job.pending.take_applied()
    report_calls(job)
    report_gpu(job)
    report_replicas(job)
    parts = job.cpus
    lines = ["# The image needs gunicorn, your program and ortune-apply.", *cache_comments(job)]
    if count_memory_mib(job):
        lines.append(make_comment("#", describe_memory()))
    if not parts:
        report_cpus(job)
        return "\n".join([*lines, "services:", *make_service(job, job.name, job.first_port)])
    lines += ["# Put a load balancer before the services: each runs one process on its own CPUs.", "services:"]
    # No name of another model contains a dot.
    separator = "." if job.picked and job.picked.shared else "-"
    for number, cpus in enumerate(parts):
        name = job.name if len(parts) == 1 else f"{job.name}{separator}{number + 1}"
        lines += make_service(job, name, job.first_port + number, cpus)
    return "\n".join(lines)


def make_service(job: Job, name: str, port: int, cpus: Cpus = ()) -> list[str]:
    """Return the lines of one service.

    Args:
        job: The export.
        name: Its name.
        port: Port of this host.
        cpus: CPUs of its only process; none for all processes without a limit.
    """
    # A container with fewer CPUs is of another class of host.
    apply = make_apply_command(job, source=CONFIG_IN_CONTAINER, program="ortune-apply", any_host=bool(cpus))
    bind = f"0.0.0.0:{FIRST_PORT}"
    command = [*apply, *make_gunicorn_command(job, workers=1 if cpus else None, bind=bind)]
    host = job.record.host
    lines = [
        f"  {name}:",
        "    image: IMAGE",
        "    command:",
        *(f"      - {quote(word)}" for word in command),
        "    ports:",
        f'      - "{port}:{FIRST_PORT}"',
        "    volumes:",
        "      - type: bind",
        f"        source: {quote(find_source(job))}",
        f"        target: {CONFIG_IN_CONTAINER}",
        "        read_only: true",
    ]
    if cpus:
        lines.append(f'    cpuset: "{make_text_of_cpus(cpus)}"')
    if host.cpu_quota:
        share = host.cpu_quota / job.deployment.processes if cpus else host.cpu_quota
        lines.append(f"    cpus: {share:g}")
    if memory := count_memory_mib(job, 1 if cpus else None):
        lines.append(f"    mem_reservation: {memory}m")
    return lines


def find_source(job: Job) -> str:
    """Return the path of the plan as compose reads it: relative to the folder of the file that is written."""
    if job.output is None or Path(job.file).is_absolute():
        return job.file
    try:
        path = Path(os.path.relpath(job.file, job.output.parent)).as_posix()
    except ValueError:  # another drive of Windows
        return str(Path(job.file).absolute())
    return path if path.split("/")[0] == os.pardir else f"{os.curdir}/{path}"


def quote(text: str) -> str:
    """Return a text as YAML in which compose replaces no variable."""
    return YAML.quote(text.replace("$", "$$"))


TARGET = Target(name="compose", summary="compose.yaml of docker compose with gunicorn", write=write)
