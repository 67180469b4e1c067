"""Commands that start uvicorn with the processes of a deployment.

Source: https://www.uvicorn.org/settings/
"""

from __future__ import annotations

from ortune.export.comments import make_comment
from ortune.export.literals import SHELL
from ortune.export.serving import (
    ASGI_APP,
    make_apply_command,
    make_text_of_cpus,
    report_calls,
    report_cpus,
    report_replicas,
)
from ortune.export.target import FIRST_PORT, Job, Target


def write(job: Job) -> str:
    """Return a shell script."""
    deployment = job.deployment
    job.pending.take_applied()
    job.pending.report(
        "callers",
        deployment.clients,
        "uvicorn has no option for the calls that a process makes at a time: --limit-concurrency rejects requests "
        "instead of letting them wait",
    )
    report_calls(job)
    report_replicas(job)
    lines = [
        f"# Calls that each process should make at a time: {deployment.clients}. For example, with a pool of threads:",
        f"#     POOL = concurrent.futures.ThreadPoolExecutor({deployment.clients})",
        "#     outputs = await asyncio.get_running_loop().run_in_executor(POOL, session.run, None, inputs)",
        "# Starlette and FastAPI call functions that are not `async def` in 40 threads.",
    ]
    parts = job.cpus
    apply = make_apply_command(job)
    if parts:
        lines += [
            "# Each process has a port of its own, because uvicorn cannot pin its workers. Put a load balancer before "
            "them.",
        ]
        for number, cpus in enumerate(parts):
            # ortune looks at the host before taskset leaves only a part of it.
            pinned = ["taskset", "--cpu-list", make_text_of_cpus(cpus)]
            command = [*apply, *pinned, "uvicorn", f"--port={job.first_port + number}", ASGI_APP]
            lines.append(f"{SHELL.join(command)} &")
        lines.append("wait")
    else:
        report_cpus(job)
        port = [f"--port={job.first_port}"] if job.first_port != FIRST_PORT else []
        lines.append(SHELL.join([*apply, "uvicorn", f"--workers={deployment.processes}", *port, ASGI_APP]))
    return "\n".join([*(make_comment("#", line[2:]) if line.startswith("# ") else line for line in lines)])


TARGET = Target(name="uvicorn", summary="shell commands that start uvicorn: processes and CPUs of each", write=write)
