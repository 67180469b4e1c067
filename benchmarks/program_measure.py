"""Measure servers and programs whose times are known: is what ortune measures right?

    python -m benchmarks.program_measure [--seconds 3] [servers|functions ...]

Servers
-------

A server sleeps or uses CPU time as requested. The table compares what `HttpLoad` measures with the truth: mean and p50
of the latency, and CPU time a request.

The truth of a latency is the time from when the kernel sees the request on the loopback interface until it sees the
last data of the response (`benchmarks/wire.py`). The server and its wake-ups are in it; the client is not. With a rate,
the truth also has the wait for a free client, which follows from the arrivals. Without root, it is the time that the
server itself counts, which does not begin before its thread runs: too short by a tenth of a millisecond and more. The
truth of the CPU time is what the server's clock says from one request to the next. Target: within 2 %.

The last table is what is added to a request: with a server that does nothing but send a response, through ortune, and
through a bare socket.

Functions and complete runs
---------------------------

A function sleeps a set time and runs a tiny model. It counts the times of its calls itself. They are compared with what
ortune measures while the program stays alive, and in complete runs. The wall time and the CPU time of complete runs are
compared with those of a bare launch, without ortune's hook in the program: fork, exec, wait4. Runs through ortune and
bare ones alternate. Target: within 2 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from benchmarks.program_aa import MODEL, PROGRAM
from benchmarks.replay_server import start_server
from benchmarks.wire import Wire, open_wire
from ortune.host import read_host
from ortune.knobs import DEFAULT
from ortune.options import make_request
from ortune.program.candidates import RunCandidate
from ortune.program.http_load import HttpLoad
from ortune.program.prepare import prepare_program
from ortune.program.runner import FEW_CALLS
from ortune.program.search import open_program
from ortune.requests import ProgramSearchRequest
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate
from ortune.worker.open_loop import draw_arrivals
from ortune.workload import Load, make_load
from tests.simulated import sojourn_times

BLOCKS = 4

KINDS = ("servers", "functions")

SLEEPS_MS = (5.0, 20.0, 100.0)
"""Times that a call of the function sleeps."""

SERVICES_MS = (5.0, 50.0)
"""Mean service times."""

SERVICES = np.random.default_rng(1).gamma(9, 1 / 9, 500)
"""Service times as multiples of their mean, with a coefficient of variation of one third."""


class Case(NamedTuple):
    """A server and a load.

    Attributes:
        name: Its name.
        option: Option of the server that gets the service times.
        clients: Clients of the load.
        utilization: With a request rate: the share of the clients' time that requests take. 0 for no rate.
        slots: Requests that the server serves at a time; 0 for any number.
    """

    name: str
    option: str
    clients: int = 1
    utilization: float = 0.0
    slots: int = 0

    def make_load(self, service_ms: float) -> Load:
        """Return the load for this mean service time."""
        rate = 1000 * self.clients * self.utilization / service_ms
        return make_load(clients=self.clients, rate_per_s=rate or None)


CASES = (
    Case("sleeps, 1 client", "--sleep-ns"),
    Case("sleeps, 4 clients", "--sleep-ns", 4),
    Case("sleeps, 4 clients, 1 at a time", "--sleep-ns", 4, slots=1),
    Case("sleeps, rate, 4 clients", "--sleep-ns", 4, utilization=0.125),
    Case("computes, 1 client", "--burn-ns"),
    Case("computes, 4 clients, 1 at a time", "--burn-ns", 4, slots=1),
    Case("computes, rate, 4 clients", "--burn-ns", 4, utilization=0.0625),
)


class Result(NamedTuple):
    """What was measured in a block, and the truth. Latencies and CPU times are in ns."""

    samples: NDArray[np.int64]
    truth: NDArray[np.int64]
    cpu_ns: float
    true_cpu_ns: float
    foreign: float


def read_stats(url: str, first: int) -> Any:
    """Return the number of requests of the server, and those from this one on."""
    with urllib.request.urlopen(f"{url}/stats/{first}") as response:
        return json.load(response)


def measure(http: HttpLoad, url: str, load: Load, seed: int, seconds: float, wire: Wire | None) -> Result:
    """Measure one block, and return it with the truth."""
    is_single = load.scenario == "single-stream"
    lead_in_ns = 0 if is_single else 100_000_000
    plan = BlockPlan(
        load=load, duration_ns=int(seconds * 1e9), lead_in_ns=lead_in_ns, min_calls=5, seed=seed, deadline_s=60
    )
    before = read_stats(url, sys.maxsize)
    if wire:
        wire.read_spans()
    begin_ns = time.perf_counter_ns()
    block = http.measure(plan)
    if isinstance(block, Failure):
        raise SystemExit(f"{load}: {block.message}")
    counted = wire.read_spans() if wire else None
    served = np.array(read_stats(url, before["n_spans"])["spans"])
    # The first request also pays for the statistics before it.
    true_cpu_ns = float(np.diff(np.sort(served[:, 2])).mean())
    spans = served[np.argsort(served[:, 0]), :2] if counted is None else counted
    if len(spans) != len(served):
        raise SystemExit(f"{len(served)} requests were served, and {len(spans)} seen on the loopback interface")
    durations = spans[:, 1] - spans[:, 0]
    start_ns = begin_ns + block.lead_in_ns
    if is_single:
        truth = durations
    elif load.rate_per_s is None:
        truth = durations[(spans[:, 1] > start_ns) & (spans[:, 1] <= start_ns + block.wall_ns)]
    else:
        due = draw_arrivals(load, lead_in_ns, lead_in_ns + plan.duration_ns, seed)
        # The first request warms the connection up, before the stream.
        services = durations[1:]
        due = due[: len(services)]
        sojourns = sojourn_times(due, services[: len(due)], load.clients)
        starts = due + sojourns - services[: len(due)]
        truth = sojourns[(starts >= lead_in_ns) & (starts < lead_in_ns + plan.duration_ns)]
    return Result(
        samples=block.samples_ns,
        truth=truth,
        cpu_ns=block.cpu_ns / block.n_calls,
        true_cpu_ns=true_cpu_ns,
        foreign=block.foreign_share or 0.0,
    )


def measure_bare(url: str, seconds: float) -> NDArray[np.int64]:
    """Return the latencies of requests over a bare socket, from one client."""
    host, port = url.removeprefix("http://").split(":")
    times: list[int] = []
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not times:
            begin = time.perf_counter_ns()
            client.sendall(f"GET /work HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            # The server sends a response at once.
            client.recv(65536)
            times.append(time.perf_counter_ns() - begin)
    return np.array(times)


def run_case(case: Case, service_ms: float, seconds: float, folder: Path) -> None:
    """Print the row of one case."""
    services = [str(int(factor * service_ms * 1e6)) for factor in SERVICES]
    load = case.make_load(service_ms)
    usable = tuple(sorted(read_host().limits.usable))
    with (
        start_server(case.option, *services, "--slots", str(case.slots)) as (server, url),
        HttpLoad(folder / "log") as http,
        contextlib.ExitStack() as stack,
    ):
        opened = http.open(f"{url}/work", root=server.pid, usable=usable, timeout_s=30)
        if isinstance(opened, Failure):
            raise SystemExit(opened.message)
        if wire := open_wire(int(url.rpartition(":")[2])):
            stack.enter_context(wire)
        measure(http, url, load, 99, 0.2, wire)
        results = []
        for seed in range(BLOCKS):
            results.append(measure(http, url, load, seed, seconds / BLOCKS, wire))
    samples, truth = (np.concatenate([getattr(result, name) for result in results]) for name in ("samples", "truth"))
    cells = []
    for figure in (np.mean, np.median):
        measured, true = float(figure(samples)), float(figure(truth))
        cells.append(f"{measured / 1e6:7.3f} {true / 1e6:7.3f} {measured / true - 1:+6.1%}")
    cpu, true_cpu = (
        float(np.mean([getattr(result, name) for result in results])) for name in ("cpu_ns", "true_cpu_ns")
    )
    cells.append(f"{cpu / 1e6:7.3f} {true_cpu / 1e6:7.3f} {cpu / true_cpu - 1:+6.1%}")
    foreign = float(np.mean([result.foreign for result in results]))
    name = f"{case.name}, {service_ms:g} ms"
    print(f"{name:40} | {' | '.join(cells)} | {len(samples):5} | {foreign:7.1%}", flush=True)


BARE_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
answer = b"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: 200\\r\\n\\r\\n" + bytes(200)
while True:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    received = b""
    while data := connection.recv(65536):
        received += data
        if b"\\r\\n\\r\\n" in received:
            received = b""
            connection.sendall(answer)
"""


def run_bare(seconds: float, folder: Path) -> None:
    """Print how long a request takes that does nothing."""
    with subprocess.Popen([sys.executable, "-c", BARE_SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = int(server.stdout.readline())
        with HttpLoad(folder / "log") as load:
            opened = load.open(f"http://127.0.0.1:{port}/", root=server.pid, usable=(0,), timeout_s=30)
            assert not isinstance(opened, Failure), opened.message
            plan = BlockPlan(duration_ns=int(seconds * 1e9), lead_in_ns=10**8, min_calls=5, deadline_s=60)
            block = load.measure(plan)
            assert isinstance(block, Block), block
        bare = measure_bare(f"http://127.0.0.1:{port}", seconds)
        server.kill()
    for name, samples in (("ortune", block.samples_ns), ("bare socket", bare)):
        mean, (p50, p99) = samples.mean(), np.percentile(samples, [50, 99])
        print(f"{name:12} {mean / 1e3:6.0f} µs (mean), {p50 / 1e3:6.0f} µs (p50), {p99 / 1e3:6.0f} µs (p99)")


def launch_program(call: bool, arguments: Sequence[str], stack: contextlib.ExitStack) -> LiveCandidate:
    """Return the program of known times as it is, launched as a search launches it."""
    values = {"command": (sys.executable, str(PROGRAM), str(MODEL), *arguments), "budget": 60.0}
    values |= {"call": "__main__:Timed.work"} if call else {}
    opened = stack.enter_context(open_program(prepare_program(make_request(ProgramSearchRequest, values))))
    (live,) = opened.executors[0].launch([DEFAULT], deadline_s=60)
    if isinstance(live, Failure):
        raise SystemExit(live.message)
    stack.callback(live.close)
    return live


def measure_program(live: LiveCandidate, seconds: float) -> Block:
    """Measure one block."""
    block = live.measure(BlockPlan(duration_ns=int(seconds * 1e9), lead_in_ns=0, min_calls=1, deadline_s=120))
    if isinstance(block, Failure):
        raise SystemExit(block.message)
    return block


def read_times(log: Path) -> NDArray[np.int64]:
    """Return start and end of each call that the program counted, and forget them."""
    times = np.fromfile(log, np.int64).reshape(-1, 2)
    os.truncate(log, 0)
    return times


def show_times(name: str, samples: NDArray[np.int64], truth: NDArray[np.int64]) -> None:
    """Print mean and p50 of measured and of true times."""
    cells = []
    for figure in (np.mean, np.median):
        measured, true = float(figure(samples)), float(figure(truth))
        cells.append(f"{measured / 1e6:8.3f} {true / 1e6:8.3f} {measured / true - 1:+6.2%}")
    print(f"{name:33} | {' | '.join(cells)} | {len(samples):5}", flush=True)


def run_calls(sleep_ms: float, seconds: float, log: Path) -> None:
    """Print the row of calls in a program that stays alive."""
    samples, truth = [], []
    with contextlib.ExitStack() as stack:
        live = launch_program(True, (str(sleep_ms), "forever", "0"), stack)
        for _ in range(BLOCKS):
            read_times(log)
            block = measure_program(live, seconds / BLOCKS)
            times = read_times(log)
            # A call counts whether its end was written before or after the program was suspended.
            truth.append((times[:, 1] - times[:, 0])[: len(block.samples_ns)])
            samples.append(block.samples_ns)
    show_times(f"calls, sleep {sleep_ms:g} ms", np.concatenate(samples), np.concatenate(truth))


def run_bare_program(command: Sequence[str]) -> tuple[int, int]:
    """Return the wall time and the CPU time of a bare launch, in ns."""
    with Path(os.devnull).open("r+b") as nothing:
        number = nothing.fileno()
        redirect = [(os.POSIX_SPAWN_DUP2, number, descriptor) for descriptor in range(3)]
        begin_ns = time.perf_counter_ns()
        process = os.posix_spawn(command[0], list(command), os.environ, file_actions=redirect)
        usage = os.wait4(process, 0)[2]
        return time.perf_counter_ns() - begin_ns, round((usage.ru_utime + usage.ru_stime) * 1e9)


def run_runs(sleep_ms: float, seconds: float, log: Path) -> None:
    """Print the rows of complete runs, each of about half a second of calls: times of calls, wall time, CPU time."""
    n_calls = max(3, round(500 / sleep_ms))
    arguments = (str(sleep_ms), "run", str(n_calls))
    samples: list[Any] = []
    truth: list[Any] = []
    walls: list[Any] = []
    bare: list[Any] = []
    with contextlib.ExitStack() as stack:
        calls = launch_program(True, arguments, stack) if n_calls < FEW_CALLS else None
        runs = launch_program(False, arguments, stack)
        assert isinstance(runs, RunCandidate)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or len(walls) < BLOCKS:
            # A run depends on what ran before it.
            for is_bare in (False, True) if len(walls) % 2 else (True, False):
                if is_bare:
                    bare.append(run_bare_program((sys.executable, str(PROGRAM), str(MODEL), *arguments)))
                else:
                    block = measure_program(runs, 0)
                    walls.append((block.wall_ns, block.cpu_ns))
            if calls:
                read_times(log)
                samples.append(measure_program(calls, 0).samples_ns)
                times = read_times(log)
                # The first call of a run warms up, and does not count.
                truth.append((times[:, 1] - times[:, 0])[1:])
    if calls:
        show_times(f"calls of runs, sleep {sleep_ms:g} ms", np.concatenate(samples), np.concatenate(truth))
    for position, name in enumerate(("wall time", "CPU time")):
        own, other = (np.array([run[position] for run in some]) for some in (walls, bare))
        show_times(f"{name} of runs, {n_calls} x {sleep_ms:g} ms", own, other)


def run_functions(seconds: float, folder: Path) -> None:
    """Print the table of functions and complete runs."""
    log = folder / "times"
    log.touch()
    os.environ["TIMES_LOG"] = str(log)
    print(f"{'program':33} | {'mean: ms, truth':25} | {'p50: ms, truth':25} | {'n':>5}")
    for sleep_ms in SLEEPS_MS:
        run_calls(sleep_ms, seconds, log)
        run_runs(sleep_ms, 6 * seconds, log)


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" or ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=6.0, help="Time of each case.")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(KINDS)}")
    kinds = arguments.kinds or KINDS
    print(write_header())
    with tempfile.TemporaryDirectory() as folder:
        if "servers" in kinds:
            columns = ("mean: ms, truth", "p50: ms, truth", "CPU a request: ms, truth")
            shown = " | ".join(f"{column:23}" for column in columns)
            print(f"{'server, load, mean service time':40} | {shown} | {'n':>5} | foreign")
            for service_ms in SERVICES_MS:
                for case in CASES:
                    run_case(case, service_ms, arguments.seconds, Path(folder))
            print("A request that does nothing:")
            run_bare(arguments.seconds / 3, Path(folder))
        if "functions" in kinds:
            run_functions(arguments.seconds, Path(folder))


if __name__ == "__main__":
    main()
