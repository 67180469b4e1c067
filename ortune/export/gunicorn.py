"""gunicorn.conf.py: processes, threads of each, and the CPUs that each is pinned to.

Source: https://docs.gunicorn.org/en/stable/settings.html
"""

from __future__ import annotations

from ortune.export.comments import make_comment
from ortune.export.literals import SHELL
from ortune.export.serving import (
    ASGI_APP,
    WORKER_TIMEOUT_S,
    count_requests,
    find_bind,
    make_apply_command,
    make_gunicorn_command,
    report_calls,
    report_cpus,
    report_replicas,
)
from ortune.export.target import Job, Target

PINNING = """\
def pre_fork(server, worker):
    # The part that the fewest workers have: that of a worker that ended.
    taken = [other.part for other in server.WORKERS.values()]
    worker.part = min(range(len(PARTS)), key=taken.count)


def post_fork(server, worker):
    os.sched_setaffinity(0, PARTS[worker.part])"""


def write(job: Job) -> str:
    """Return the configuration file."""
    deployment = job.deployment
    job.pending.take_applied()
    report_calls(job)
    report_replicas(job)
    start = [*make_apply_command(job), "gunicorn", "--config=gunicorn.conf.py", ASGI_APP]
    lines = [
        make_comment("#", f"Save as gunicorn.conf.py, and start: {SHELL.join(start)}"),
        "# Each worker must create its own session: without --preload.",
    ]
    parts = job.cpus
    if parts:
        lines += ["", "import os"]
    else:
        report_cpus(job)
        options = SHELL.join([*make_apply_command(job), *make_gunicorn_command(job)])
        lines.append(make_comment("#", f"Without this file: {options}"))
    threads = count_requests(job)
    lines += ["", f"workers = {deployment.processes}", f"threads = {threads}"]
    lines.append(f'worker_class = "{"gthread" if threads > 1 else "sync"}"')
    lines += ["preload_app = False", f"timeout = {WORKER_TIMEOUT_S}  # a worker is silent while it loads its model"]
    if bind := find_bind(job):
        lines.append(f'bind = "{bind}"')
    if parts:
        lines += ["", "PARTS = [", *(f"    {list(cpus)}," for cpus in parts), "]", "", "", PINNING]
    return "\n".join(lines)


TARGET = Target(name="gunicorn", summary="gunicorn.conf.py: processes, threads and CPUs of each", write=write)
