"""Roll out a config on a server with two workers as a canary, and compare: does `ortune fleet compare` find the truth?

    python -m benchmarks.canary_rollout better [--starts 12] [--folder FOLDER] [--json FILE]
    python -m benchmarks.canary_rollout equal [--starts 12] [--folder FOLDER] [--json FILE]
    python -m benchmarks.canary_rollout all [--starts 12] [--folder FOLDER] [--json FILE]
    python -m benchmarks.canary_rollout --report FILE

The server is the ASGI application of `tests/consumers/`, whose sessions have two threads, under uvicorn. It is started
again and again with `ortune apply --canary 50% --metrics FOLDER`, as on a host where it is restarted, and stopped after
a fixed number of requests of clients on the loopback interface. `ortune fleet compare --metric mean` then reads the
folder.

`better` rolls out one thread for each worker, which is better if both workers have work and there are two CPUs. `equal`
rolls out the two threads that the application has anyway: nothing may be claimed. `all` is for comparison: servers of
which all workers, or none, are canaries, in random order, so that both arms never share the CPUs.
Requires uvicorn.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from benchmarks.host import describe_run
from benchmarks.parts import reopen_rows
from models.make_tiny import GraphBuilder
from ortune.knobs import Config
from tests.records import make_record, write
from tests.servers import HOST, find_free_port

APPLICATION = Path(__file__).parent.parent / "tests" / "consumers"

SPINNING = "session.intra_op.allow_spinning"

CONFIGS = {
    "better": Config(session_options={"intra_op_num_threads": 1}, session_config={SPINNING: "0"}),
    "equal": Config(session_options={"intra_op_num_threads": 2}),
}
CONFIGS["all"] = CONFIGS["better"]

TITLES = {
    "better": "One thread instead of two, canaries 50%",
    "equal": "Two threads as before, canaries 50%",
    "all": "One thread instead of two, on all workers or on none",
}

ORTUNE = [sys.executable, "-P", "-m", "ortune"]

METRIC = "mean"
"""The figure that decides: the rate that the server can serve depends on it."""

READY_S = 60
STOP_S = 30


def make_model(path: Path) -> Path:
    """Write a model with the input of the application, and calls of some milliseconds."""
    graph = GraphBuilder()
    value = "image"
    for channels_in, channels in ((3, 64), (64, 64), (64, 64), (64, 64)):
        weights = graph.add_weight(channels, channels_in, 3, 3), graph.add_weight(channels)
        value = graph.add_node("Relu", graph.add_node("Conv", value, *weights, kernel_shape=[3, 3], pads=[1] * 4))
    value = graph.add_node("Flatten", graph.add_node("GlobalAveragePool", value), axis=1)
    graph.add_node("MatMul", value, graph.add_weight(64, 10), output="scores")
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])
    graph.save(path, [image], [scores])
    return path


@contextlib.contextmanager
def serve(before: list[str], model: Path, port: int, log: Path) -> Iterator[None]:
    """Run the server with two workers until the end of the block, and stop it as a supervisor does."""
    command = [*before, sys.executable, "-m", "uvicorn", "asgi_app:app", "--app-dir", str(APPLICATION)]
    command += ["--host", HOST, "--port", str(port), "--workers", "2", "--lifespan", "off", "--log-level", "warning"]
    with log.open("ab") as file:
        server = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "MODEL": str(model), "PYTHONWARNINGS": "ignore"},
        )
    try:
        end = time.monotonic() + READY_S
        pids: set[int] = set()
        while len(pids) < 2:  # a worker accepts connections before the other
            try:
                pids.add(ask(port))
            except OSError:
                if server.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"the server does not start:\n{log.read_text(errors='replace')}") from None
                time.sleep(0.1)
        yield
        server.send_signal(signal.SIGTERM)
        server.wait(STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(STOP_S)


def ask(port: int) -> int:
    """Send a request, and return the process that answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=READY_S)
    try:
        connection.request("GET", "/")
        return int(json.load(connection.getresponse())["pid"])
    finally:
        connection.close()


def choose_shares(kind: str, starts: int) -> list[str]:
    """Return the share of canaries at each start of the server."""
    if kind != "all":
        return ["50%"] * starts
    return [share for _ in range(starts // 2) for share in random.sample(["0%", "100%"], 2)]


def roll_out(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start the server several times, and return what `ortune fleet compare` says of these and of earlier starts."""
    model, log, metrics = make_model(folder / "model.onnx"), folder / "log", folder / "metrics"
    record = write(make_record(model, CONFIGS[kind]), folder / "tuned.json")
    for share in choose_shares(kind, options.starts):
        port = find_free_port()
        before = [*ORTUNE, "apply", str(record), "--quiet", "--canary", share, "--metrics", str(metrics), "--"]
        with serve(before, model, port, log), ThreadPoolExecutor(options.clients) as clients:
            list(clients.map(ask, [port] * options.requests))
        with (folder / "starts.jsonl").open("a") as file:
            file.write(json.dumps({"requests": options.requests, "load_average": os.getloadavg()[0]}) + "\n")
    compare = [*ORTUNE, "fleet", "compare", str(metrics), "--metric", METRIC]
    shown = subprocess.run(compare, capture_output=True, text=True, check=False)
    found = subprocess.run([*compare, "--json"], capture_output=True, text=True, check=False)
    starts = [json.loads(line) for line in (folder / "starts.jsonl").read_text().splitlines()]
    return {
        "kind": kind,
        **describe_run(),
        "load_average": statistics.mean(start["load_average"] for start in starts),
        "starts": len(starts),
        "clients": options.clients,
        "requests": sum(start["requests"] for start in starts),
        "exit_code": shown.returncode,
        "shown": shown.stdout + shown.stderr,
        "comparison": json.loads(found.stdout),
    }


def show(row: dict[str, Any]) -> str:
    """Return a row as text."""
    return (
        f"{TITLES[row['kind']]}: {row['starts']} starts, {row['requests']} requests of {row['clients']} clients at a "
        f"time, load average {row['load_average']:.1f}\n\n{row['shown'].rstrip()}\nexit code {row['exit_code']}\n"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=tuple(CONFIGS))
    parser.add_argument("--starts", type=int, default=12)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--folder", type=Path, help="keeps the metrics: starts are added to those of earlier runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.report:
        for row in reopen_rows(options.report):
            print(f"\n{show(row)}", end="")
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        row = roll_out(options.kind, options, folder)
    print(show(row), end="")
    if options.json:
        with options.json.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
