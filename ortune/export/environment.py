"""Environment variables, CPU set and CPU quota, for a shell and for Docker."""

from __future__ import annotations

from ortune.export.checks import check_line
from ortune.export.literals import SHELL
from ortune.export.target import Job, Target
from ortune.knobs.ids import INTRA_OP_THREAD_AFFINITIES
from ortune.limited import STDIN
from ortune.numbers import format_quota

COUNTS = {
    "intra_op_num_threads": "ORT_INTRA_OP_NUM_THREADS",
    "inter_op_num_threads": "ORT_INTER_OP_NUM_THREADS",
}
"""Variables of thread counts. ONNX Runtime 1.29 and later read them if the program leaves the count at 0."""


def take_variables(job: Job) -> dict[str, str]:
    """Take the settings that environment variables can hold, and return the variables."""
    variables = {}
    for name, variable in COUNTS.items():
        value = job.pending.take_option(name)
        if value is not None:
            variables[variable] = str(value)
    return variables | job.pending.take_environment()


def cpu_comments(job: Job) -> list[str]:
    """Return comments on the CPUs that the config was tuned for."""
    host = job.record.host
    quota = f"a quota of {format_quota(host.cpu_quota)}" if host.cpu_quota else "no CPU quota"
    lines = [f"# Tuned with {host.n_usable} of {host.n_logical} CPUs and {quota}. Run the program with the same."]
    if INTRA_OP_THREAD_AFFINITIES in job.record.config.session_config:
        lines.append("# The affinity string numbers the logical CPUs of the machine, starting at 1.")
    return lines


def write(job: Job) -> str:
    """Return lines for a shell and for Docker.

    Raises:
        UsageError: The path of the record cannot be written.
    """
    file = "CONFIG" if job.source == STDIN else job.file
    check_line(file)
    variables = take_variables(job)
    lines = [*cpu_comments(job), ""]
    if any(name in COUNTS.values() for name in variables):
        lines.append("# ONNX Runtime 1.29 and later read the thread counts, if the program leaves them at 0.")
    if job.selection:
        words = " ".join(job.selection)
        job.pending.report("selection", words, "the variable takes no options: start programs with `ortune apply`")
    lines += [
        *_section("# Shell", [f"export {name}={SHELL.quote(value)}" for name, value in variables.items()]),
        *_section("# Docker", _docker_lines(job, variables)),
        *_section("# Dockerfile", [f"# ENV {name}={SHELL.quote(value)}" for name, value in variables.items()]),
        "# To apply all settings to Python programs, install ortune or ortune-apply in their environment, run",
        "# `python -m ortune.enable` or `python -m ortune_apply.enable` there once, and set:",
        f"# ENV ORTUNE_CONFIG={SHELL.quote(file)}",
    ]
    return "\n".join(lines)


def _docker_lines(job: Job, variables: dict[str, str]) -> list[str]:
    """Return the command that starts a container, if it needs options."""
    host = job.record.host
    options = [f"--env {name}={SHELL.quote(value)}" for name, value in variables.items()]
    if host.cpu_quota:
        options.append(f"--cpus={host.cpu_quota:g}")
    note = ""
    if host.n_usable < host.n_logical:
        options.append("--cpuset-cpus=CPUS")
        note = f"  # CPUS: {host.n_usable} CPUs, such as those of the search"
    return [f"# docker run {' '.join(options)} IMAGE{note}"] if options else []


def _section(title: str, lines: list[str]) -> list[str]:
    """Return a section of the output, or nothing if it has no lines."""
    return [title, *lines, ""] if lines else []


TARGET = Target(name="environment", summary="shell and Docker: variables, CPU set, quota", write=write)
