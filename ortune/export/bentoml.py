"""A BentoML service: worker processes, threads of each, and the CPUs that each is pinned to.

Source: https://docs.bentoml.com/en/latest/reference/bentoml/configurations.html
"""

from __future__ import annotations

from ortune.export.literals import PYTHON
from ortune.export.python import create_session_lines, indent, run_options_lines
from ortune.export.serving import (
    count_cpus,
    count_memory_mib,
    report_cpus,
    report_grouping,
    report_replicas,
    report_sharing,
)
from ortune.export.target import Job, Target
from ortune.knobs.config import CUDA_BASED

PREDICT = """\
    @bentoml.api
    def predict(self, body: Npz, /, ctx: bentoml.Context) -> Npz:
        # The body of a request is an .npz file with an array for each input. Change this to your format.
        with np.load(body, allow_pickle=False) as arrays:
            inputs = dict(arrays)
        outputs = self.session.run(None, inputs{run_options})
        path = Path(ctx.temp_dir, "outputs.npz")
        np.savez(path, **dict(zip([output.name for output in self.session.get_outputs()], outputs)))
        return path"""


def write(job: Job) -> str:
    """Return the module."""
    pending, deployment = job.pending, job.deployment
    report_grouping(job)
    report_sharing(job)
    report_replicas(job)
    if deployment.batching:
        reason = "BentoML chooses batch sizes itself, and rejects requests that would exceed its configured latency"
        pending.report("batching", deployment.batching.title, reason)
    environment = pending.take_environment()
    pending.take_workers()
    setup = []
    parts = job.cpus
    if parts:
        # Threads that are created later inherit the CPUs of this one.
        setup.append("os.sched_setaffinity(0, PARTS[(bentoml.server_context.worker_index - 1) % len(PARTS)])")
    else:
        report_cpus(job)
    create = create_session_lines(job)
    run_options = run_options_lines(job)
    setup += ["self.session = create_session()", *run_options]
    resources = [f'"cpu": {count_cpus(job):g}']
    if memory_mib := count_memory_mib(job):
        resources.append(f'"memory": "{memory_mib}Mi"')
    if pending.config.provider in CUDA_BASED:
        resources.append('"gpu": 1')
    variables = [
        f'        {{"name": {PYTHON.quote(name)}, "value": {PYTHON.quote(value)}}},'
        for name, value in environment.items()
    ]
    return "\n".join(
        [
            "# Save as service.py, and start: bentoml serve service:Model",
            *(["import os"] if parts else []),
            "from pathlib import Path",
            "from typing import Annotated",
            "",
            "import bentoml",
            "import numpy as np",
            "import onnxruntime as ort",
            "from bentoml.validators import ContentType",
            "",
            'Npz = Annotated[Path, ContentType("application/octet-stream")]',
            "",
            *(["PARTS = [", *(f"    {list(cpus)}," for cpus in parts), "]", ""] if parts else []),
            "",
            *create,
            "",
            "",
            "@bentoml.service(",
            f"    workers={deployment.processes},",
            f"    threads={deployment.clients},  # calls at a time",
            f"    resources={{{', '.join(resources)}}},",
            *(["    envs=[", *variables, "    ],"] if variables else []),
            ")",
            "class Model:",
            "    def __init__(self):",
            *indent(setup, 2),
            "",
            PREDICT.format(run_options=", self.run_options" if run_options else ""),
        ]
    )


TARGET = Target(name="bentoml", summary="a BentoML service: workers, threads and CPUs of each", write=write)
