"""What exports of deployments share: the command that starts a server, what it needs, and what a server cannot do."""

from __future__ import annotations

import math
import re

from ortune.export.checks import check_line
from ortune.export.comments import make_comment
from ortune.export.selection import CACHE_DIR
from ortune.export.target import FIRST_PORT, Job
from ortune.host import Cpus
from ortune.knobs import ids
from ortune.knobs.config import CUDA_BASED

ASGI_APP = "app:app"
"""The application in commands: module and name."""

WORKER_TIMEOUT_S = 120
"""Time after which gunicorn ends a worker that is silent, as one is that loads a model. With the default of 30 s,
models that load for longer would never be ready."""

CONFIG_IN_CONTAINER = "/etc/ortune/config.json"
"""Path of the record or plan in a container."""

MEMORY_FACTOR = 1.25
"""Factor on the largest resident memory that was measured."""

OWN_MIB = 64
"""Memory of each process for the server and the code of the application. Those that were measured held Python, NumPy,
ONNX Runtime and the session."""

MEMORY_STEP_MIB = 64


def make_apply_command(
    job: Job, *, source: str | None = None, program: str = "ortune", any_host: bool = False
) -> list[str]:
    """Return the words before a command that give its sessions the settings of this deployment.

    Args:
        job: The export.
        source: Path of the record or plan there; None for the one that was read.
        program: The program that applies records: `ortune` or `ortune-apply`.
        any_host: Whether the container may be of another class of host than the one that was measured.

    Raises:
        UsageError: The path of the record, or of the folder of compiled models, cannot be written, or it has none.
    """
    for word in (job.file, *job.selection):
        check_line(word)
    words = [program, *(["apply"] if program == "ortune" else []), source or job.file]
    more = ["--any-host"] if any_host and "--any-host" not in job.selection else []
    return [*words, *job.selection, *more, "--"]


def make_gunicorn_command(
    job: Job, *, workers: int | None = None, reuse_port: bool = False, bind: str | None = None
) -> list[str]:
    """Return the command that starts gunicorn with the processes and callers of a deployment.

    Args:
        job: The export.
        workers: Number of processes; None for that of the deployment.
        reuse_port: Whether several servers listen on the same port.
        bind: Where to listen; None for the port of the model on this host.
    """
    bind = find_bind(job) if bind is None else bind
    words = ["gunicorn", f"--workers={workers or job.deployment.processes}", f"--threads={count_requests(job)}"]
    words += [f"--timeout={WORKER_TIMEOUT_S}", *(["--reuse-port"] if reuse_port else [])]
    return [*words, *([f"--bind={bind}"] if bind else []), ASGI_APP]


def count_requests(job: Job) -> int:
    """Return how many requests a process handles at a time.

    Where it puts requests together, these are those of all calls, and those that wait for the next one.
    """
    clients, batching = job.deployment.clients, job.deployment.batching
    return (clients + 1) * batching.max_batch if batching else clients


def find_bind(job: Job) -> str:
    """Return where gunicorn listens if its default, the first port, is that of another model; empty if it is not."""
    return f"127.0.0.1:{job.first_port}" if job.first_port != FIRST_PORT else ""


OWN_POOLS = {
    "ACLExecutionProvider": "",
    "DnnlExecutionProvider": "",
    "OpenVINOExecutionProvider": "num_of_threads",
    "XnnpackExecutionProvider": "intra_op_num_threads",
}
"""Providers that compute on CPUs with threads of their own, and the option that sets their number."""

SIZED_AS_SESSION = frozenset(("XnnpackExecutionProvider",))
"""Those that have as many as the session if their own number is not set."""


def read_count(text: str) -> int:
    """Return the number of threads that an option of a provider sets; 0 if it sets none."""
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else 0


def count_cpus(job: Job) -> float:
    """Return how many CPUs all processes can use: those of the host, or fewer where they have fewer threads.

    Pools of which the size is not known can use all of them.
    """
    host, deployment, config = job.record.host, job.deployment, job.record.config
    if host.cpu_quota:
        return host.cpu_quota
    pool = config.global_thread_pool
    threads = int(pool.intra_op_num_threads if pool else config.session_options.get(ids.INTRA_OP_NUM_THREADS, 0))
    is_parallel = config.session_options.get(ids.EXECUTION_MODE) == "ORT_PARALLEL"
    n_parallel = int(pool.inter_op_num_threads if pool else config.session_options.get(ids.INTER_OP_NUM_THREADS, 0))
    own = {
        name: read_count(options.get(OWN_POOLS[name], "")) for name, options in config.providers if name in OWN_POOLS
    }
    own = {name: n or (threads if name in SIZED_AS_SESSION else 0) for name, n in own.items()}
    is_unknown = not all(own.values())
    if not threads or (is_parallel and not n_parallel) or is_unknown:
        return max(host.n_usable, 1)
    # A caller is one of the threads of its session's pool.
    n_pools = 1 if pool else job.record.workload.load.sessions
    of_pool = threads - 1 + (n_parallel if is_parallel else 0)
    of_providers = job.record.workload.load.sessions * sum(own.values())
    of_process = n_pools * of_pool + of_providers + deployment.clients
    return max(1, min(host.n_usable, deployment.processes * of_process))


def count_memory_mib(job: Job, n_processes: int | None = None) -> int:
    """Return the memory that some processes of a plan need, with a margin; 0 if it was not measured.

    Args:
        job: The export.
        n_processes: Number of processes; None for all.
    """
    if not job.picked or not job.picked.row.memory_bytes:
        return 0
    n_all = job.deployment.processes
    n_processes = n_processes or n_all
    needed = MEMORY_FACTOR * job.picked.row.memory_bytes / n_all / (1 << 20) + OWN_MIB
    return math.ceil(n_processes * needed / MEMORY_STEP_MIB) * MEMORY_STEP_MIB


def describe_memory() -> str:
    """Return what the memory consists of, and why it is no limit."""
    return (
        f"The memory is {MEMORY_FACTOR:g} times what was measured, and {OWN_MIB} MiB for each process. Add what your "
        "program needs. It is no limit, because a process that exceeds one is killed. Measure the whole program under "
        "load before you add one."
    )


def cache_comments(job: Job) -> list[str]:
    """Return comments on the folder of compiled models in a container; none if there is no such folder."""
    words = job.selection
    if CACHE_DIR not in words:
        return []
    folder = words[words.index(CACHE_DIR) + 1]
    return [
        make_comment(
            "#", f"Compiled models are kept in {folder} of the container. Add a volume there: without one, each"
        ),
        "# new container compiles the model again.",
    ]


def report_cpus(job: Job, reason: str = "export on the host that was measured, which numbers its CPUs") -> None:
    """Note that the target does not pin the processes of a pinned deployment, or uses more CPUs than were usable."""
    host = job.record.host
    if job.is_pinned:
        job.pending.report("pinned", True, reason)
    elif host.n_usable < host.n_logical:
        how = f"limit the server to {host.n_usable} CPUs with a cpuset or taskset, as in the measurement"
        job.pending.report("cpus", f"{host.n_usable} of {host.n_logical}", how)


def report_sharing(job: Job) -> None:
    """Note that the deployment was planned to share its cores with other models, if it was."""
    if job.picked and job.picked.shared and not job.is_pinned:
        job.pending.report(
            "sharing",
            job.picked.shared,
            "start all models of the plan on the same host, and divide CPUs that are requested or limited here among "
            "them",
        )


def report_calls(job: Job) -> None:
    """Note how the program must put requests together, if the deployment does so, and which models run beside it."""
    if batching := job.deployment.batching:
        job.pending.report(
            "batching",
            batching.title,
            f"the program must combine up to {batching.max_batch} requests in a call and wait for them for at most "
            f"{batching.max_delay_us / 1000:g} ms; each process makes at most {job.deployment.clients} "
            f"call{'' if job.deployment.clients == 1 else 's'} at a time",
        )
    report_grouping(job)
    report_sharing(job)


def report_grouping(job: Job) -> None:
    """Note how the program must group items of different lengths, if the deployment does so."""
    if job.picked and job.picked.lengths:
        title = job.picked.lengths.choice.title
        job.pending.report("grouping", title, "the program must group items of different lengths so; see docs/plan.md")


def report_gpu(job: Job) -> None:
    """Note that a container needs a GPU, if the provider runs on one."""
    if job.record.config.provider in CUDA_BASED:
        job.pending.report("provider", job.record.config.provider, "give the container a GPU")


def report_replicas(job: Job) -> None:
    """Note that the target starts the processes of one host."""
    if job.picked and (job.picked.replicas or 1) > 1:
        job.pending.report("replicas", job.picked.replicas or 1, "start this on each host, behind a load balancer")


def make_text_of_cpus(cpus: Cpus) -> str:
    """Return CPUs as taskset, cgroups and systemd read them, such as `0,2`."""
    return ",".join(map(str, cpus))
