"""A Ray Serve application: replicas, calls of each at a time, and batches.

Source: https://docs.ray.io/en/latest/serve/
"""

from __future__ import annotations

import math

from ortune.export.python import create_session_lines, indent, mapping, run_options_lines
from ortune.export.serving import (
    count_cpus,
    count_requests,
    report_cpus,
    report_grouping,
    report_sharing,
)
from ortune.export.target import Job, Target
from ortune.knobs.config import CUDA_BASED

IMPORTS = """\
import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np"""

BATCHES = """\
    @serve.batch(max_batch_size={max_batch}, batch_wait_timeout_s={delay_s}, max_concurrent_batches={clients})
    async def call_together(self, items):
        # `items` holds the inputs of requests: arrays by name, with a first axis of 1.
        inputs = {{name: np.concatenate([item[name] for item in items]) for name in items[0]}}
        outputs = await self.call(inputs)
        return [[output[number : number + 1] for output in outputs] for number in range(len(items))]"""

REST = """\
    async def call(self, inputs):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.callers, self.session.run, None, inputs{run_options})

    async def __call__(self, request):
        # The body of a request is an .npz file with an array for each input. Change this to your format.
        with np.load(io.BytesIO(await request.body()), allow_pickle=False) as arrays:
            inputs = dict(arrays)
        names = [output.name for output in self.session.get_outputs()]
        file = io.BytesIO()
        np.savez(file, **dict(zip(names, await self.{function}(inputs))))
        return Response(file.getvalue(), media_type="application/octet-stream")"""


def write(job: Job) -> str:
    """Return the module."""
    pending, deployment = job.pending, job.deployment
    report_grouping(job)
    report_sharing(job)
    report_cpus(job, "Ray does not pin its replicas")
    environment = pending.take_environment()
    pending.take_workers()
    create = create_session_lines(job)
    run_options = run_options_lines(job)
    setup = ["self.session = create_session()", *run_options]
    setup.append(f"self.callers = ThreadPoolExecutor({deployment.clients})  # calls at a time")
    batches: list[str] = []
    if batching := deployment.batching:
        pending.report(
            "max_batch",
            batching.max_batch,
            "Ray makes a batch as soon as its first request has waited for the delay, even if all callers are busy: "
            "batches are smaller than measured",
        )
        text = BATCHES.format(
            max_batch=batching.max_batch, delay_s=f"{batching.max_delay_us / 1e6:g}", clients=deployment.clients
        )
        batches = [text, ""]
    actor = [f'"num_cpus": {count_cpus_of_replica(job):g}']
    if environment:
        actor.append(f'"runtime_env": {{"env_vars": {mapping(environment)}}}')
    n_replicas = deployment.processes * ((job.picked and job.picked.replicas) or 1)
    if pending.config.provider in CUDA_BASED:
        actor.append(f'"num_gpus": {1 / deployment.processes:g}')
    rest = REST.format(
        run_options=", self.run_options" if run_options else "",
        function="call_together" if batching else "call",
    )
    return "\n".join(
        [
            "# Save as ray_serve.py, and start: serve run ray_serve:app",
            IMPORTS,
            "import onnxruntime as ort",
            "from ray import serve",
            "from starlette.responses import Response",
            "",
            "",
            *create,
            "",
            "",
            "@serve.deployment(",
            f"    num_replicas={n_replicas},",
            f"    max_ongoing_requests={count_requests(job)},",
            "    ray_actor_options={",
            *(f"        {argument}," for argument in actor),
            "    },",
            ")",
            "class Model:",
            "    def __init__(self):",
            *indent(setup, 2),
            "",
            *batches,
            rest,
            "",
            "",
            "app = Model.bind()",
        ]
    )


def count_cpus_of_replica(job: Job) -> float:
    """Return the CPUs of a replica, so that as many fit on a host as the deployment has processes there."""
    cpus = count_cpus(job) / job.deployment.processes
    return float(math.floor(cpus)) if cpus >= 1 else math.floor(cpus * 100) / 100


TARGET = Target(name="ray-serve", summary="a Ray Serve application: replicas, calls at a time, batches", write=write)
