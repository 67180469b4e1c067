"""A systemd unit that starts gunicorn with the processes of a deployment.

Source: systemd.service(5), systemd.exec(5), systemd.resource-control(5)
"""

from __future__ import annotations

from ortune.export.comments import make_comment
from ortune.export.literals import SYSTEMD
from ortune.export.serving import (
    count_memory_mib,
    describe_memory,
    make_apply_command,
    make_gunicorn_command,
    make_text_of_cpus,
    report_calls,
    report_cpus,
    report_replicas,
)
from ortune.export.target import Job, Target

PROGRAMS = "/srv/app/.venv/bin"
"""Folder of the programs in commands. systemd needs full paths."""

APP_FOLDER = "/srv/app"


def write(job: Job) -> str:
    """Return the unit: one service, or a template for pinned processes."""
    job.pending.take_applied()
    report_calls(job)
    report_replicas(job)
    parts = job.cpus
    n_processes = job.deployment.processes
    name = f"{job.name}@.service" if parts else f"{job.name}.service"
    unit = f"{job.name}@{{1..{n_processes}}}.service" if parts else name
    if not parts:
        report_cpus(job)
    lines = [
        make_comment("#", f"Save as /etc/systemd/system/{name}, change the paths, and start: systemctl start {unit}"),
        *(["# The processes listen on the same port, and the kernel spreads connections over them."] if parts else []),
        "[Unit]",
        "Description=Server of an ONNX model",
        "After=network.target",
        "",
        "[Service]",
        f"WorkingDirectory={APP_FOLDER}",
        *(f"Environment=CPUS_{number}={make_text_of_cpus(cpus)}" for number, cpus in enumerate(parts, 1)),
        f"ExecStart={make_command(job, is_template=bool(parts))}",
        "Restart=on-failure",
    ]
    if memory := count_memory_mib(job, 1 if parts else None):
        lines += [make_comment("#", describe_memory()), f"MemoryLow={memory}M"]
    if quota := job.record.host.cpu_quota:
        share = quota / n_processes if parts else quota
        lines.append(f"CPUQuota={format_quota(share)}")
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target"])


def format_quota(cpus: float) -> str:
    """Return a number of CPUs in percent. systemd ignores a quota with more than two decimal places."""
    return f"{max(100 * cpus, 1):.2f}".rstrip("0").rstrip(".") + "%"


def make_command(job: Job, *, is_template: bool) -> str:
    """Return the command line of the service."""
    # Each process gets a part of the quota, so that it sees another class of host.
    is_other_class = is_template and bool(job.record.host.cpu_quota) and job.deployment.processes > 1
    ortune, *apply = make_apply_command(job, any_host=is_other_class)
    if not is_template:
        gunicorn, *options = make_gunicorn_command(job)
        words = [f"{PROGRAMS}/{ortune}", *apply, f"{PROGRAMS}/{gunicorn}", *options]
        return " ".join(map(SYSTEMD.quote, words))
    # ortune looks at the host before taskset leaves only a part of it.
    gunicorn, *options = make_gunicorn_command(job, workers=1, reuse_port=True)
    before = [f"{PROGRAMS}/{ortune}", *apply, "/usr/bin/taskset", "--cpu-list"]
    after = [f"{PROGRAMS}/{gunicorn}", *options]
    return " ".join([*map(SYSTEMD.quote, before), "${CPUS_%i}", *map(SYSTEMD.quote, after)])


TARGET = Target(name="systemd", summary="a systemd unit with gunicorn: processes, CPUs and memory", write=write)
