"""Environment variables, CPU set and quota: for a shell, for Docker."""

from __future__ import annotations

import shlex

from ortune.export.target import Job, Target

COUNTS = {
    "intra_op_num_threads": "ORT_INTRA_OP_NUM_THREADS",
    "inter_op_num_threads": "ORT_INTER_OP_NUM_THREADS",
}
"""Thread counts that ONNX Runtime takes from the environment, from 1.29 on, where the program leaves them at 0."""

AFFINITY = "session.intra_op_thread_affinities"


def take_variables(job: Job) -> dict[str, str]:
    """Return the variables that express what variables can."""
    variables = {}
    for name, variable in COUNTS.items():
        value = job.sheet.take_option(name)
        if value is not None:
            variables[variable] = str(value)
    return variables | job.sheet.take_environment()


def describe_cpus(job: Job) -> str:
    """Return which CPUs the config was tuned for, a sentence."""
    host = job.record.host
    quota = f"a quota of {host.cpu_quota:g} CPUs" if host.cpu_quota else "no quota"
    text = f"Tuned with {host.n_usable} of {host.n_logical} CPUs and {quota}: it holds where a process has the same."
    if AFFINITY in job.record.config.session_config:
        text += " Its affinity string counts CPUs from 1, those of the machine."
    return text


def write(job: Job) -> str:
    """Return lines for a shell, and for Docker."""
    variables = take_variables(job)
    host = job.record.host
    for name in job.sheet.config.settings:
        job.sheet.explain(name, "no environment variable sets it")
    limits = [f"--cpus={host.cpu_quota:g}"] if host.cpu_quota else []
    if host.n_usable < host.n_logical:
        limits.append(f"--cpuset-cpus=...  # {host.n_usable} CPUs, those of the search")
    flags = [*(f"--env {name}={shlex.quote(value)}" for name, value in variables.items()), *limits]
    end = " IMAGE" if not limits or "#" not in limits[-1] else ""
    lines = [f"# {describe_cpus(job)}", ""]
    if any(name in COUNTS.values() for name in variables):
        lines.append("# onnxruntime takes thread counts from 1.29 on, where the program itself leaves them at 0.")
    lines += [
        *_section("# Shell", [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]),
        *_section("# Docker", [f"# docker run {' '.join(flags)}{end}"] if flags else []),
        *_section("# Dockerfile", [f"# ENV {name}={shlex.quote(value)}" for name, value in variables.items()]),
        "# All settings, in a Python program that has ortune beside it:",
        f"# ENV ORTUNE_CONFIG={shlex.quote(job.source)}",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _section(title: str, lines: list[str]) -> list[str]:
    """Return a section of the output, or nothing if it has no lines."""
    return [title, *lines, ""] if lines else []


TARGET = Target(name="environment", summary="shell and Docker: variables, CPU set, quota", write=write)
