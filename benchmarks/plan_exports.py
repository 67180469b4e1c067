"""Start the exports of a plan, and load them at the planned rate: is the target for the latency kept?

    python -m benchmarks.plan_exports [--budget 240] [--seconds 60] [--factor 5] [--targets gunicorn,uvicorn,ray-local]
                                      [--headroom 20%] [--serve PATH] [--json FILE] [MODEL ...]
    python -m benchmarks.plan_exports --plan plan.json MODEL

For each model, a plan is made with a p99 of at most --factor times the median of a call with ONNX Runtime's default.
--slo sets the target, --rate the rate, and --plan uses a plan that was made before. Without a rate, the rate is what
the plan allows: the capacity without the headroom.

Then gunicorn, uvicorn and Ray Serve are started with what `ortune apply plan.json --to TARGET` writes. Requests arrive
at random at the planned rate, from ortune's load generator on the same host, for as long as the percentile needs. Each
holds the inputs as an .npz file, and latency counts from the arrival. The target is kept if the whole interval is below
it. The line "in processes" is the deployment without a server, at the same rate and as plans measure it: what the
others take longer is HTTP, the work of the application, and the load generator.

The target ray-serve starts a whole Ray cluster. The target ray-local runs the same file in Ray's local testing mode,
where no controller and proxy use the cores (`benchmarks/programs/serve_ray_locally.py`). Both are skipped if Ray Serve
is not installed; --serve names its command `serve` in another environment. Run this on an idle host.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from benchmarks.plan import find_median_ns
from models.build import build
from ortune.export import export
from ortune.host import read_host
from ortune.measure.compute_figures import required_calls
from ortune.measure.interval import DEFAULT_CONFIDENCE, Interval
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.planning.files import read_plan, write_plan
from ortune.planning.measuring import DeploymentRunner
from ortune.planning.pick import PickedDeployment, pick_deployment
from ortune.planning.prepare import PreparedPlan, prepare_plan
from ortune.planning.rate_latency import summarize_rate
from ortune.planning.result import Plan
from ortune.planning.run import plan_deployment
from ortune.program.http_load import HttpLoad, find_free_port, wait_until_up
from ortune.requests import PlanRequest
from ortune.worker import Block, BlockPlan, Failure
from ortune.workload import Limit, make_load

MODELS = ("ppocrv4_rec", "minilm_l6_int8", "squeezenet")

TARGETS = ("gunicorn", "uvicorn", "ray-serve", "ray-local")

EXPORTED = {"ray-local": "ray-serve"}
"""The exports of targets whose own name is not that of an export."""

PROGRAMS = Path(__file__).parent / "programs"

CONNECTIONS = 64
"""Requests that the load generator makes at a time. Those that the server cannot serve yet wait in the server."""

BLOCKS = 6
"""Blocks of the time under load. They are one stream of requests; the interval comes from how they differ."""

START_S = 120.0

FILES = {
    "gunicorn": "gunicorn.conf.py",
    "uvicorn": "serve.sh",
    "ray-serve": "ray_serve.py",
    "ray-local": "ray_serve.py",
}

Row = dict[str, Any]


def plan_model(name: str, arguments: argparse.Namespace) -> tuple[Plan, PreparedPlan]:
    """Make or read the plan for a model."""
    options: dict[str, Any] = {"model": str(build(name)), "shape": shapes_of(name), "seed": arguments.seed}
    if arguments.plan:
        return read_plan(arguments.plan), prepare_plan(make_request(PlanRequest, options))
    slo = arguments.slo or f"p99<{arguments.factor * find_median_ns({**options, 'budget': '60s'}) / 1e6:.3f}ms"
    options |= {"slo": slo, "budget": arguments.budget, "headroom": arguments.headroom}
    if arguments.rate:
        options["rate"] = arguments.rate
    prepared = prepare_plan(make_request(PlanRequest, options))
    return plan_deployment(prepared), prepared


def measure_processes(prepared: PreparedPlan, picked: PickedDeployment, limit: Limit) -> Interval:
    """Return the latency of the deployment at the planned rate without a server, as plans measure it."""
    with open_comparison(prepared.setup) as opened:
        runner = DeploymentRunner(opened, prepared.space.default)
        rate = picked.rate_of_replica_per_s
        return runner.measure_rate(picked.deployment, rate, limit.figure, DEFAULT_CONFIDENCE)


def make_command(target: str, text: str, folder: Path, port: int, n_processes: int, serve: str) -> list[str]:
    """Return the command that an export names, with the programs, the application and the port of this benchmark."""
    scripts = sysconfig.get_path("scripts")
    if target == "ray-local":
        python = str(Path(shutil.which(serve) or serve).with_name("python"))
        return [python, str(PROGRAMS / "serve_ray_locally.py"), "ray_serve", str(port), str(n_processes)]
    if target == "ray-serve":
        config = folder / "serve.yaml"
        options = f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
        config.write_text(f"{options}applications: [{{name: model, route_prefix: /, import_path: 'ray_serve:app'}}]\n")
        return [serve, "run", f"--app-dir={folder}", str(config)]
    if target == "gunicorn":
        (line,) = re.findall(r"and start: (.*)$", text, re.MULTILINE)
        own = [f"--chdir={PROGRAMS}", f"--bind=127.0.0.1:{port}"]
        module = "serve_wsgi"
    else:
        (line,) = (line for line in text.splitlines() if line and not line.startswith("#"))
        own = [f"--app-dir={PROGRAMS}", f"--port={port}", "--lifespan=off", "--no-access-log", "--log-level=warning"]
        module = "serve_asgi"
    words = shlex.split(line)
    replaced = {
        "app:app": f"{module}:app",
        target: f"{scripts}/{target}",
        "--config=gunicorn.conf.py": f"--config={folder}/gunicorn.conf.py",
    }
    return [sys.executable, "-P", "-m", "ortune", *(replaced.get(word, word) for word in words[1:]), *own]


@contextlib.contextmanager
def run_server(command: list[str], folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, and stop all of its processes at the end."""
    log = folder / "server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0", **variables},
        )
    try:
        yield server
    finally:
        server.send_signal(signal.SIGINT if "run" in command else signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def measure_memory(server: subprocess.Popen[bytes]) -> int:
    """Return the resident memory of a server and all processes that it has started."""
    found = psutil.Process(server.pid)
    total = 0
    for process in (found, *found.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def load_server(
    server: subprocess.Popen[bytes], port: int, body: Path, rate_per_s: float, seconds: float, seed: int
) -> list[Block]:
    """Wait until a server answers, and measure it at a rate.

    Raises:
        SystemExit: It does not start, or cannot answer.
    """
    url, folder = f"http://127.0.0.1:{port}/", body.parent
    host = read_host()

    def is_alive() -> bool:
        return server.poll() is None

    arguments: dict[str, Any] = {"method": "POST", "headers": (("Connection", "close"),)}
    # A new connection for each request, so that the kernel spreads requests over all processes.
    end_s = time.monotonic() + START_S
    while failure := wait_until_up(url, is_alive=is_alive, deadline_s=START_S, body=body.read_bytes(), **arguments):
        if not is_alive() or time.monotonic() > end_s:
            raise SystemExit(f"{failure.message}\n{(folder / 'server.log').read_text(errors='replace')[-4000:]}")
    load = make_load(clients=CONNECTIONS, rate_per_s=rate_per_s)
    blocks = []
    with HttpLoad(folder / "load.log") as http:
        opened = http.open(
            url,
            root=server.pid,
            usable=host.limits.usable,
            n_cores=len(host.usable_cores),
            timeout_s=30,
            body_paths=[body],
            **arguments,
        )
        if isinstance(opened, Failure):
            raise SystemExit(opened.message)
        for number in range(BLOCKS):
            plan = BlockPlan(
                load=load,
                duration_ns=int(seconds / BLOCKS * 1e9),
                lead_in_ns=1_000_000_000,
                min_calls=5,
                seed=seed + number,
                deadline_s=20 * seconds + 60,
                longest_warm_up_ns=5_000_000_000,
            )
            block = http.measure(plan)
            if isinstance(block, Failure):
                raise SystemExit(block.message)
            blocks.append(block)
    return blocks


def measure_target(
    target: str, plan: Plan, picked: PickedDeployment, model: Path, body: bytes, arguments: argparse.Namespace
) -> Row:
    """Start an export, load it, and return the figures."""
    assert plan.slo
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plan(plan, folder / "plan.json")
        (folder / "body.npz").write_bytes(body)
        source = str(folder / "plan.json")
        done = export(EXPORTED.get(target, target), picked.record, str(model), source, folder / FILES[target], picked)
        port = find_free_port()
        deployment = picked.deployment
        command = make_command(target, done.text, folder, port, deployment.processes, arguments.serve)
        rate = picked.rate_of_replica_per_s
        variables = {"MODEL": str(model), "CALLERS": str(deployment.clients)}
        with run_server(command, folder, **variables) as server:
            seconds = max(arguments.seconds, 1.2 * required_calls(plan.slo.figure) / rate)
            blocks = load_server(server, port, folder / "body.npz", rate, seconds, arguments.seed)
            memory = measure_memory(server)
    load = make_load(clients=CONNECTIONS, rate_per_s=rate)
    found = summarize_rate([blocks], load, plan.slo.figure, DEFAULT_CONFIDENCE)
    samples = np.concatenate([block.samples_ns for block in blocks])
    return {
        "p50_ns": float(np.median(samples)),
        "estimate_ns": found.estimate,
        "low_ns": found.low,
        "high_ns": found.high,
        "n_requests": len(samples),
        "cpu_ns": sum(block.cpu_ns for block in blocks) / sum(block.n_calls for block in blocks),
        "answer": judge(found, plan.slo),
        "memory_bytes": memory,
        "contended": any(block.contended for block in blocks),
        "unsupported": list(done.unsupported),
    }


def judge(found: Interval, limit: Limit) -> str:
    """Return whether a limit is kept: yes or no if the whole interval is on one side of it."""
    if found.high < limit.bound:
        return "yes"
    return "no" if found.low > limit.bound else "unsure"


def find_obstacle(target: str, picked: PickedDeployment, serve: str) -> str:
    """Return why an export cannot be started here; empty if it can."""
    program = serve if target.startswith("ray-") else str(Path(sysconfig.get_path("scripts")) / target)
    if not shutil.which(program):
        return f"{program} is not installed"
    if target == "uvicorn" and picked.deployment.pinned:
        return "its processes have ports of their own, and need a load balancer"
    return ""


def measure_model(name: str, arguments: argparse.Namespace) -> Row:
    """Plan a model, measure all exports, and return and print the figures."""
    model = build(name)
    plan, prepared = plan_model(name, arguments)
    if not plan.slo:
        raise SystemExit("The plan has no target: make one with --slo.")
    picked = pick_deployment(plan)
    file = io.BytesIO()
    arrays: dict[str, Any] = {name: tensor.array for name, tensor in prepared.setup.feed.tensors.items()}
    np.savez(file, **arrays)
    rate = picked.rate_of_replica_per_s
    row: Row = {"model": name, "slo": plan.slo.text, "rate_per_s": rate, "title": picked.deployment.title}
    row |= {"headroom": plan.headroom, "planned_bytes": picked.row.memory_bytes, "targets": {}}
    source = f"{picked.capacity.estimate:.4g}/s, {picked.capacity.source}" if picked.capacity else "unknown"
    print(f"{name}: {plan.slo.text} at {rate:.4g}/s (capacity {source}; headroom {plan.headroom:.0%})", flush=True)
    print(f"    {picked.deployment.title}; {len(file.getvalue()) / 1024:.0f} KiB in a request")
    if rate <= 0:
        print("    no deployment keeps the target")
        return row
    alone = measure_processes(prepared, picked, plan.slo)
    row["in_processes"] = {"estimate_ns": alone.estimate, "low_ns": alone.low, "high_ns": alone.high}
    print(f"    {'in processes':12} {plan.slo.figure} {format_interval(alone)}", flush=True)
    for target in arguments.targets.split(","):
        if obstacle := find_obstacle(target, picked, arguments.serve):
            print(f"    {target:12} skipped: {obstacle}", flush=True)
            continue
        found = measure_target(target, plan, picked, model, file.getvalue(), arguments)
        row["targets"][target] = found
        interval = Interval(
            estimate=found["estimate_ns"], low=found["low_ns"], high=found["high_ns"], confidence=DEFAULT_CONFIDENCE
        )
        print(
            f"    {target:12} {plan.slo.figure} {format_interval(interval)}, p50 {found['p50_ns'] / 1e6:.2f} ms, "
            f"{found['n_requests']} requests, target kept: {found['answer']}\n"
            f"        CPU {found['cpu_ns'] / 1e6:.2f} ms a request ({picked.row.cpu_ns_per_call / 1e6:.2f} planned); "
            f"memory {found['memory_bytes'] / 2**20:.0f} MiB ({picked.row.memory_bytes / 2**20:.0f} planned)"
            f"{'; contended' if found['contended'] else ''}",
            flush=True,
        )
    return row


def format_interval(interval: Interval) -> str:
    """Return a latency in milliseconds with its interval."""
    return f"{interval.estimate / 1e6:.2f} ms [{interval.low / 1e6:.2f}, {interval.high / 1e6:.2f}]"


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--budget", default="240s", help="budget of a plan")
    parser.add_argument("--seconds", type=float, default=60.0, help="shortest time under load of each export")
    parser.add_argument("--factor", type=float, default=5.0, help="the target, as a multiple of the default's p50")
    parser.add_argument("--slo", help="the target")
    parser.add_argument("--rate", help="the rate of all replicas together")
    parser.add_argument("--headroom", default="20%", help="share of the capacity that is left unused")
    parser.add_argument("--plan", type=Path, help="use this plan; for a single model")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--serve", default=str(Path(sysconfig.get_path("scripts")) / "serve"), help="Ray's command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    print(write_header(), flush=True)
    rows = [measure_model(name, arguments) for name in arguments.models]
    answers = [target["answer"] for row in rows for target in row["targets"].values()]
    kept, unsure = answers.count("yes"), answers.count("unsure")
    print(f"{kept} of {len(answers)} exports keep the target at the planned rate; {unsure} unsure")
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
