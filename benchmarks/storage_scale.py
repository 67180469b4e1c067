"""Simulate hosts that share measurements through a storage: overhead, and how many hosts a database serves.

    python -m benchmarks.storage_scale operations [--singly] [--json FILE]
    python -m benchmarks.storage_scale nodes --nodes 100 [--trials 20000]
        [--storage postgresql|mysql|pgbouncer|grpc|journal] [--unpaced] [--stretch 1] [--json FILE]
    python -m benchmarks.storage_scale --report FILE

PostgreSQL or MariaDB of this host is started in a temporary folder with its defaults, on the loopback interface. The
simulated nodes and the database share the CPUs of this host.

Each node is a thread with its own `SharedStudy`. After each batch of 8 candidates, which takes 5 to 10 s, it reads the
measurements of the others, writes its own, and writes and reads states of workers. Candidates are those of a model on a
host with 96 cores. `--stretch 4` makes batches four times as long; `--unpaced` makes them take no time, to find the
highest rate. `--trials` is the number of measurements of all nodes.

`--keep` keeps connections open. `--write-only` leaves out all reading. `--singly` writes each measurement as a trial of
its own. The last check reads everything again: nothing may be lost or duplicated. "Others" are the CPUs that all other
processes of the host used meanwhile: figures are too long by what these took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import random
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy

import ortune.storage.connect as connect
from benchmarks.databases import Started, start_mariadb, start_pgbouncer, start_postgres
from benchmarks.host import describe_run, write_header
from benchmarks.synthetic import Machine, make_host, make_model
from ortune.knobs import Candidate, SearchSpace, build_space
from ortune.storage import (
    Location,
    Measurement,
    NodeState,
    SharedRound,
    SharedStudy,
    StorageError,
    parse_location,
)
from tests.servers import find_free_port

BATCH = 8
BATCH_S = (5.0, 10.0)
JOINS_PER_S = 20
"""Nodes that join per second. They share a few processes, which are busy with joining at a higher rate."""

N_PROCESSES = 4
STORAGES = ("postgresql", "mysql", "pgbouncer", "grpc", "journal")
SOURCE = "ORTUNE_STORAGE"
IDENTITY = {"model_name": "model.onnx", "model": "0" * 64, "host": "Synthetic, 96 cores"}
MACHINE = Machine(packages=2, nodes=2, cores=24, threads=2)


class Node:
    """A simulated worker."""

    def __init__(self, location: Location, number: int, options: argparse.Namespace, space: SearchSpace) -> None:
        self.number = number
        self.options = options
        self.random = random.Random(number)
        self.space = space
        self.times: dict[str, list[float]] = defaultdict(list)
        self.received: list[str] = []
        self.sent: list[str] = []
        self.n_errors = 0
        self.beat = 0
        with self.timed("join"):
            self.study = SharedStudy(location, IDENTITY)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note the time of an operation."""
        start = time.perf_counter()
        yield
        self.times[name].append(time.perf_counter() - start)

    def make_batch(self) -> list[Measurement]:
        """Return measurements of random candidates."""
        return [self.measure(candidate) for candidate in self.random.sample(self.space.candidates, BATCH)]

    def measure(self, candidate: Candidate) -> Measurement:
        """Return a made-up measurement."""
        rounds = tuple(
            SharedRound(log_ratios=(self.random.gauss(0, 0.1),), contended=self.random.random() < 0.1)
            for _ in range(self.random.randint(3, 6))
        )
        self.sent.append(f"worker-{self.number:04}:{len(self.sent)}")
        return Measurement(
            id=self.sent[-1],
            node=f"node-{self.number:04}.rack.example.com",
            worker=f"worker-{self.number:04}",
            config=candidate.config,
            labels=dict(candidate.labels),
            launch=len(self.sent) // BATCH,
            rounds=rounds,
            spent_s=self.random.uniform(0.5, 1.2),
        )

    def run_batch(self) -> None:
        """Read, write and announce, as after each batch."""
        if not self.options.write_only:
            with self.timed("receive"):
                try:
                    self.receive()
                except StorageError:
                    self.n_errors += 1
        batch = self.make_batch()
        with self.timed("add"):
            self.retry(batch)
        if self.options.write_only:
            return
        self.beat += 1
        state = NodeState(
            node=f"node-{self.number:04}.rack.example.com",
            worker=f"worker-{self.number:04}",
            number=self.number,
            beat=self.beat,
            stage="screening",
            leased=tuple(candidate.config.key for candidate in self.random.sample(self.space.candidates, BATCH)),
            n_measured=len(self.sent),
        )
        try:
            with self.timed("announce"):
                self.study.announce(state)
            with self.timed("read_nodes"):
                self.study.read_nodes()
        except StorageError:
            self.n_errors += 1

    def receive(self) -> None:
        """Read what is new."""
        self.received += [measurement.id for measurement in self.study.receive()]

    def retry(self, batch: list[Measurement]) -> None:
        """Write a batch, also if the connection is lost."""
        while batch:
            try:
                if self.options.singly:
                    for measurement in batch:
                        self.study.add_all([measurement])
                else:
                    self.study.add_all(batch)
                return
            except StorageError:
                self.n_errors += 1
                batch = self.find_missing(batch)

    def find_missing(self, batch: list[Measurement]) -> list[Measurement]:
        """Return what did not arrive of a batch."""
        while True:
            time.sleep(self.random.uniform(0.5, 2))
            try:
                return [measurement for measurement in batch if not self.study.has(measurement.id)]
            except StorageError:
                self.n_errors += 1


class HostLoad:
    """The CPUs of this host that processes outside of the benchmark use."""

    def __init__(self) -> None:
        self.start_s, self.start_cpu_s = time.monotonic(), self.read_cpu_s()

    @staticmethod
    def read_cpu_s() -> float:
        """Return the CPU time of all processes, and that which the hypervisor gave to other machines."""
        times = psutil.cpu_times()
        return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)

    def count_others(self, own_cpu_s: float) -> float:
        """Return how many CPUs others used so far, given the CPU time of the benchmark."""
        return (self.read_cpu_s() - self.start_cpu_s - own_cpu_s) / (time.monotonic() - self.start_s)


def run_nodes(url: str, numbers: range, options: argparse.Namespace, barrier: Any, results: Any) -> None:
    """Run some of the nodes in this process."""
    threading.stack_size(1 << 19)
    if options.keep:
        connect.IDLE_S = 1e6
    space = build_space(make_host(MACHINE), make_model(4))
    location = parse_location(url, SOURCE)
    nodes: list[Node] = []
    faults: list[str] = []
    joined_cpu_s: list[float] = []

    def run(number: int) -> None:
        node = None
        time.sleep(random.Random(number).uniform(0, options.nodes / JOINS_PER_S))
        try:
            node = Node(location, number, options, space)
            nodes.append(node)
        except StorageError as error:
            faults.append(str(error))
        barrier.wait()
        joined_cpu_s.append(read_cpu_s())
        end = time.time() + options.most_s
        if node is None:
            return
        shortest, longest = (0.0, 0.0) if options.unpaced else (duration_s * options.stretch for duration_s in BATCH_S)
        n_batches = options.trials // options.nodes // BATCH
        time.sleep(node.random.uniform(0, longest))
        try:
            for _ in range(n_batches):
                if time.time() > end:
                    break
                pause_s = node.random.uniform(shortest, longest)
                time.sleep(pause_s)
                node.times["pause"].append(pause_s)
                node.run_batch()
        except StorageError as error:
            faults.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times: dict[str, list[float]] = defaultdict(list)
    for node in nodes:
        for name, values in node.times.items():
            times[name] += values
    ended = time.time()
    duplicates = sum(len(node.received) - len(set(node.received)) for node in nodes)
    cpu_s = read_cpu_s()
    results.put(
        {
            "times": dict(times),
            "sent": [identifier for node in nodes for identifier in node.sent],
            "errors": sum(node.n_errors for node in nodes),
            "faults": faults,
            "ended": ended,
            "duplicates": duplicates,
            "cpu_s": cpu_s,
            "run_cpu_s": cpu_s - min(joined_cpu_s),
        }
    )


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Run all nodes, and return the figures."""
    with start_storage(options) as (server, url, proxy):
        SharedStudy(parse_location(url, SOURCE), IDENTITY)
        context = multiprocessing.get_context("spawn")
        n_processes = min(N_PROCESSES, options.nodes)
        barrier, results = context.Barrier(options.nodes + 1), context.Queue()
        parts = [range(number, options.nodes, n_processes) for number in range(n_processes)]
        processes = [context.Process(target=run_nodes, args=(url, part, options, barrier, results)) for part in parts]
        for process in processes:
            process.start()
        watch = Watch(server)
        barrier.wait()
        cpu_s = server.cpu_s() if server else 0.0
        proxy_cpu_s = cpu_of(proxy)
        load = HostLoad()
        start = time.time()
        found = [results.get() for _ in processes]
        wall_s = max(result["ended"] for result in found) - start
        row: dict[str, Any] = {
            "kind": "nodes",
            "storage": options.storage,
            "singly": options.singly,
            "nodes": options.nodes,
            "paced": not options.unpaced,
            "keep": options.keep,
            "write_only": options.write_only,
            "stretch": options.stretch,
            "max_connections": options.max_connections,
            "wall_s": wall_s,
            "server_cpu_s": server.cpu_s() - cpu_s if server else 0.0,
            "proxy_cpu_s": cpu_of(proxy) - proxy_cpu_s,
            "client_cpu_s": sum(result["cpu_s"] for result in found),
            "errors": sum(result["errors"] for result in found),
            "faults": [fault for result in found for fault in result["faults"]][:3],
            "n_faults": sum(len(result["faults"]) for result in found),
            "connections": watch.stop(),
        }
        own_cpu_s = row["server_cpu_s"] + row["proxy_cpu_s"] + sum(result["run_cpu_s"] for result in found)
        row["other_cpus"] = load.count_others(own_cpu_s)
        times: dict[str, list[float]] = defaultdict(list)
        for result in found:
            for name, values in result["times"].items():
                times[name] += values
        row["times"] = {name: summarize(values) for name, values in times.items()}
        spent = sum(sum(values) for name, values in times.items() if name not in {"pause", "join"})
        pause = sum(times["pause"])
        row["overhead"] = spent / (spent + pause)
        for process in processes:
            process.join()
        sent = [identifier for result in found for identifier in result["sent"]]
        final = SharedStudy(parse_location(url, SOURCE), IDENTITY)
        received = [measurement.id for measurement in final.receive()]
        numbers = [trial.number for trial in final._study.get_trials(deepcopy=False)] if options.check_numbers else None
        row["trials"] = len(received)
        row["lost"] = len(set(sent) - set(received))
        row["duplicated"] = sum(result["duplicates"] for result in found) + len(received) - len(set(received))
        if numbers is not None:
            row["gaps"] = numbers != list(range(len(numbers)))
        row["rate"] = row["trials"] / wall_s
        row["size_bytes"] = size_of(server.url if server else url)
        return row


def read_cpu_s() -> float:
    """Return the CPU time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_of(process: Any) -> float:
    """Return the CPU time of a process."""
    if process is None:
        return 0.0
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


def summarize(values: list[float]) -> dict[str, float]:
    """Return the number of values, their median, 99th percentile and sum."""
    ordered = sorted(values)
    return {
        "n": len(values),
        "median": statistics.median(ordered),
        "p99": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)],
        "sum": sum(values),
    }


class Watch(threading.Thread):
    """Notes the highest number of processes of PostgreSQL that serve a client."""

    def __init__(self, server: Started | None) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.most = 0
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Count until it ends."""
        if self.server is None:
            return
        found = psutil.Process(self.server.server.pid)
        with contextlib.suppress(psutil.NoSuchProcess):  # the benchmark was ended
            while not self.ended.wait(0.5):
                count = 0
                for child in found.children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        count += " 127.0.0.1(" in " ".join(child.cmdline())
                self.most = max(self.most, count)

    def stop(self) -> int:
        """End, and return the number."""
        self.ended.set()
        self.join()
        return self.most


def size_of(url: str) -> int:
    """Return the size of the database, or of the journal file; 0 if it is not known."""
    location = parse_location(url, SOURCE)
    if location.kind == "journal":
        return Path(location.url).stat().st_size
    if location.kind == "grpc":
        return 0
    is_mysql = location.url.startswith("mysql")
    query = (
        "SELECT SUM(data_length + index_length) FROM information_schema.tables WHERE table_schema = DATABASE()"
        if is_mysql
        else "SELECT pg_database_size(current_database())"
    )
    with sqlalchemy.create_engine(location.url).connect() as connection:
        return int(connection.scalar(sqlalchemy.text(query)))


def serve_proxy(url: str, port: int) -> None:
    """Run Optuna's proxy in front of a database."""
    import optuna
    from optuna.storages import run_grpc_proxy_server

    storage = optuna.storages.get_storage(parse_location(url, SOURCE).url)
    run_grpc_proxy_server(storage, host="127.0.0.1", port=port)


@contextlib.contextmanager
def start_storage(options: argparse.Namespace) -> Iterator[tuple[Started | None, str, Any]]:
    """Start what the nodes share, and yield the server, the URL for the nodes, and the process of the proxy."""
    if options.storage == "journal":
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            yield None, str(Path(folder) / "fleet.journal"), None
        return
    starting = start_mariadb() if options.storage == "mysql" else start_postgres(options.max_connections)
    with starting as server:
        if options.storage in {"postgresql", "mysql"}:
            yield server, server.url, None
            return
        if options.storage == "pgbouncer":
            with start_pgbouncer(server.database) as url:
                yield server, url, None
            return
        port = find_free_port()
        proxy = multiprocessing.get_context("spawn").Process(target=serve_proxy, args=(server.url, port))
        proxy.start()
        try:
            yield server, f"grpc://127.0.0.1:{port}", proxy
        finally:
            proxy.terminate()
            proxy.join()


def measure_operations(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the time and the number of statements of each operation, for an otherwise idle database."""
    # Memory is measured in a fresh process.
    with start_postgres() as server, multiprocessing.get_context("spawn").Pool(1) as pool:
        load, cpu_s = HostLoad(), server.cpu_s()
        rows, client_cpu_s = pool.apply(measure_path, (server.url, options))
        other_cpus = load.count_others(server.cpu_s() - cpu_s + client_cpu_s)
    return [{**row, "other_cpus": other_cpus} for row in rows]


def measure_path(url: str, options: argparse.Namespace) -> tuple[list[dict[str, Any]], float]:
    """Return the figures of each operation, and the CPU time of this process."""
    space = build_space(make_host(MACHINE), make_model(4))
    location = parse_location(url, SOURCE)
    filler, node = Node(location, 1000, options, space), Node(location, 0, options, space)
    counts = count_statements()
    kept: list[Measurement] = node.study.receive()
    at_first = memory()
    rows = []
    for n_trials in (0, 5000, 20000):
        while len(filler.sent) < n_trials:
            filler.retry(filler.make_batch())
        start = time.perf_counter()
        kept += node.study.receive()
        first_s = time.perf_counter() - start
        grown = memory() - at_first
        node.times.clear()
        for _ in range(10):
            filler.retry(filler.make_batch())
            counts.clear()
            with node.timed("receive"):
                kept += node.study.receive()
            statements = {"receive": len(counts)}
            batch = node.make_batch()
            counts.clear()
            with node.timed("add"):
                node.retry(batch)
            statements["add"] = len(counts)
        rows.append(
            {
                "kind": "operations",
                "singly": options.singly,
                "trials": n_trials,
                "first_s": first_s,
                "grown_bytes": grown,
                "statements": statements,
                "times": {name: summarize(values) for name, values in node.times.items()},
                "size_bytes": size_of(url),
            }
        )
    return rows, read_cpu_s()


def memory() -> int:
    """Return the memory of this process."""
    return int(psutil.Process().memory_info().rss)


def count_statements() -> list[str]:
    """Return a list to which each statement of this process is added."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    return statements


def show_row(row: dict[str, Any]) -> str:
    """Return the figures of a row in a line."""
    times = row["times"]

    def ms(name: str, share: str = "median") -> str:
        return f"{times[name][share] * 1e3:7.1f}" if name in times else "      -"

    if row["kind"] == "operations":
        return (
            f"{1 if row['singly'] else BATCH:9} {row['trials']:12}  {ms('add')} "
            f"{row['statements']['add']:5}   {ms('receive')} {row['statements']['receive']:5}  {row['first_s']:7.2f} "
            f"{row['grown_bytes'] / 1e6:7.0f}  {row['size_bytes'] / 1e6:6.0f}       {row['other_cpus']:6.2f}"
        )
    per_trial = 1e3 / max(row["trials"], 1)
    return (
        f"{row['storage']:10} {1 if row['singly'] else BATCH:9} {row['nodes']:5} "
        f"{row['stretch'] if row['paced'] else 0:7g} "
        f"{row['trials']:6} {row['rate']:6.1f}  "
        f"{ms('add')} {ms('add', 'p99')}  {ms('receive')} {ms('receive', 'p99')}  "
        f"{ms('announce')}  {ms('read_nodes')}  "
        f"{100 * row['overhead']:5.1f}  {row['server_cpu_s'] * per_trial:5.1f} {row['client_cpu_s'] * per_trial:6.1f} "
        f"{row['proxy_cpu_s'] * per_trial:6.1f}  {row['connections']:4}  {row['size_bytes'] / 1e6 or math.nan:5.0f}  "
        f"{row['lost']:4} {row['duplicated']:4} {row['errors']:4} {row['n_faults']:4}    {row['other_cpus']:6.2f}"
    )


OPERATIONS = """Each operation, one node, PostgreSQL otherwise idle; a batch is 8 measurements, and 8 others are new
per trial measurements  add, ms  stmts  receive, ms stmts first, s mem, MB  database, MB  others"""

NODES = """Simulated nodes. Batches take 5 to 10 s, times the stretch; 0 is unpaced. Times in ms per batch of 8: median
and 99th percentile. CPU in s per 1000 measurements: of the server, of all nodes, of the proxy. Errors were retried.
Nodes with a fault ended early.
"""
NODES += (
    "storage    per trial nodes stretch measur. per s   add     p99  receive    p99 announce states "
    "overhead,%  CPU: server, nodes, proxy  conn.  MB  lost dupl. errors faults others"
)


def show(path: Path) -> None:
    """Print the table of all rows."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print(write_header(*rows))
    for title, kind in ((OPERATIONS, "operations"), (NODES, "nodes")):
        print(f"\n{title}")
        for row in rows:
            if row["kind"] == kind:
                print(show_row(row))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=("operations", "nodes"))
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument(
        "--storage", default="postgresql", choices=("postgresql", "mysql", "pgbouncer", "grpc", "journal")
    )
    parser.add_argument("--singly", action="store_true")
    parser.add_argument("--unpaced", action="store_true")
    parser.add_argument("--write-only", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--check-numbers", action="store_true")
    parser.add_argument("--stretch", type=float, default=1.0)
    parser.add_argument("--most-s", type=float, default=480.0)
    parser.add_argument("--max-connections", type=int, default=100)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if options.report:
        show(options.report)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the database is stopped
    rows = measure_operations(options) if options.what == "operations" else [simulate(options)]
    for row in rows:
        print(show_row(row), row.get("faults", ""), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({**describe_run(), **row}) + "\n")


if __name__ == "__main__":
    main()
