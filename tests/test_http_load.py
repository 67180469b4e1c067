"""The load of HTTP requests, with a real server in another process."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from benchmarks.replay_server import start_server
from benchmarks.simulated_clock import SimulatedClock
from ortune import Load, UsageError
from ortune.program import http_load, http_worker
from ortune.program import server as program_server
from ortune.program.http_load import HttpLoad, check_unused, check_url, find_free_port, wait_until_up
from ortune.program.http_protocol import MOST_KEPT_BYTES, OpenRequest, Response, add_content_type
from ortune.program.http_worker import MOST_LATE_NS, Requester, RequestSender, Sample, ServerClock, read_samples
from ortune.worker import Block, BlockPlan, Failure, cpu, load_generator
from ortune.worker.cpu import CpuTimes, TreeClock
from ortune.worker.load_generator import generate_load
from ortune.worker.window import Window
from ortune.workload import make_load

USABLE = tuple(sorted(psutil.Process().cpu_affinity())) if hasattr(psutil.Process, "cpu_affinity") else (0,)
MS = 1_000_000
TICK_NS = 10 * MS

pytestmark = pytest.mark.usefixtures("forked_children")

linux = pytest.mark.skipif(sys.platform != "linux", reason="CPU time of other processes")


def plan(load: Load, *, duration_ms: int = 100, lead_in_ms: int = 20, min_calls: int = 5) -> BlockPlan:
    return BlockPlan(
        load=load,
        duration_ns=duration_ms * MS,
        lead_in_ns=lead_in_ms * MS,
        min_calls=min_calls,
        seed=3,
        deadline_s=60,
    )


@pytest.fixture
def load(tmp_path: Path) -> Iterator[HttpLoad]:
    with HttpLoad(tmp_path / "log") as started:
        yield started


def open_load(load: HttpLoad, url: str, root: int, **options: Any) -> Response | Failure:
    return load.open(url, root=root, usable=USABLE, timeout_s=options.pop("timeout_s", 30), **options)


def read_stats(url: str) -> Any:
    import urllib.request

    with urllib.request.urlopen(f"{url}/stats") as response:
        return json.load(response)


@pytest.mark.parametrize("clients", [1, 4])
@pytest.mark.parametrize("rate", [None, 200.0])
def test_blocks_of_each_load(load: HttpLoad, clients: int, rate: float | None) -> None:
    with start_server("--sleep-ns", "2000000") as (server, url):
        assert isinstance(open_load(load, f"{url}/work", server.pid), Response)
        for _ in range(2):
            before = len(read_stats(url)["spans"])
            block = load.measure(plan(make_load(clients=clients, rate_per_s=rate)))
            assert isinstance(block, Block)
            spans = read_stats(url)["spans"][before:]
            assert 1 <= len(block.samples_ns) <= len(spans)
            # No request takes less time than it was asked to sleep.
            assert min(end - begin for begin, end, _ in spans) >= 2 * MS
            # Of several clients, a median is subtracted, which may be more than a call needed.
            is_single = clients == 1 and rate is None
            assert block.samples_ns.min() >= (2 * MS if is_single else 1)
            assert block.service_ns > 0
            assert block.n_calls > 0
            assert block.wall_ns >= 100 * MS or rate is not None
            assert block.memory.peak_bytes >= block.memory.steady_bytes > MS
            assert (block.cpu_between_ns is None) == (rate is None)
            assert block.foreign_share is None or sys.platform == "linux"


@linux
def test_cpu_time_is_that_of_the_server(load: HttpLoad) -> None:
    with start_server("--burn-ns", "20000000") as (server, url):
        open_load(load, f"{url}/work", server.pid, check_waiting=True)
        block = load.measure(plan(Load(), lead_in_ms=0))
        assert isinstance(block, Block)
        # The server uses at least what it was asked to, in each request.
        assert block.cpu_ns >= 20 * MS * block.n_calls
        times = psutil.Process(server.pid).cpu_times()
        assert block.cpu_ns <= (times.user + times.system) * 1e9 + 2 * TICK_NS
        assert len(block.samples_ns) == block.n_calls >= 5


@linux
def test_cpu_time_of_children_that_ended(load: HttpLoad) -> None:
    with start_server() as (server, url):
        open_load(load, f"{url}/child/0.1", server.pid)
        block = load.measure(plan(Load(), lead_in_ms=0, min_calls=2))
        assert isinstance(block, Block)
        # Rounded down to ticks of 10 ms, twice for each child.
        assert block.cpu_ns >= 80 * MS * block.n_calls


def test_bodies_are_sent_in_turn(load: HttpLoad, tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(f"body of {path.stem}")
    with start_server() as (server, url):
        first = open_load(
            load, f"{url}/echo", server.pid, method="POST", body_paths=paths, headers=[("X-Key", "secret")]
        )
        second = load.fetch(1)
        assert isinstance(first, Response)
        assert isinstance(second, Response)
        one, other = json.loads(first.body), json.loads(second.body)
        assert (first.status, first.is_complete) == (200, True)
        assert (one["body"], one["headers"]["Content-Type"]) == ("body of a", "application/json")
        assert (other["body"], other["headers"]["Content-Type"]) == ("body of b", "text/plain")
        assert one["method"] == "POST"
        assert one["headers"]["X-Key"] == "secret"


def test_connections_are_kept(load: HttpLoad) -> None:
    with start_server() as (server, url):
        open_load(load, f"{url}/echo", server.pid)
        block = load.measure(plan(make_load(clients=3), min_calls=20))
        assert isinstance(block, Block)
        assert len(block.samples_ns) >= 60
        response = load.fetch(0)
        assert isinstance(response, Response)
        # One to open the server, and one for each client.
        assert json.loads(response.body)["connections"] <= 4


def test_a_large_response_is_cut(load: HttpLoad) -> None:
    with start_server() as (server, url):
        response = open_load(load, f"{url}/large/30000000", server.pid)
        assert isinstance(response, Response)
        assert (len(response.body), response.n_bytes, response.is_complete) == (MOST_KEPT_BYTES, 30_000_000, False)
        assert response.sha256 == hashlib.sha256(b"0123456789" * 3_000_000).hexdigest()


def test_a_large_answer_counts_as_a_whole(tmp_path: Path) -> None:
    with start_server() as (server, url):
        answers = []
        for size in (3_000_000, 30_000_000):
            load = program_server.LoadGenerator(
                program_server.Server(url=f"{url}/large/{size}"), tmp_path / "log", USABLE, 1, None
            )
            try:
                answers.append(load.open(0, server.pid))
            finally:
                load.close()
    assert answers[0] == b"0123456789" * 300_000
    assert answers[1] == b"0123456789" * 1_000_000 + hashlib.sha256(b"0123456789" * 3_000_000).hexdigest().encode()


def test_a_server_that_hangs_does_not_end_the_load_of_the_next_one(tmp_path: Path) -> None:
    hanging = BlockPlan(duration_ns=10**12, lead_in_ns=0, min_calls=1, deadline_s=0.5)
    with start_server() as (server, url):
        load = program_server.LoadGenerator(program_server.Server(url=f"{url}/work"), tmp_path / "log", USABLE, 1, None)
        try:
            load.open(0, server.pid)
            assert isinstance(load.measure(hanging), Failure)
            assert isinstance(load.open(0, server.pid), bytes)
            assert isinstance(load.measure(plan(Load())), Block)
        finally:
            load.close()


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("status/503", "exception", "status 503 Service Unavailable: the model is missing"),
        ("status/404", "exception", "status 404 Not Found: the model is missing"),
        ("slow/20", "timeout", "no response within 0.3 s"),
        ("drop", "exception", "the connection failed: Remote end closed connection without response"),
    ],
)
def test_requests_that_fail(load: HttpLoad, clients: int, path: str, kind: str, message: str) -> None:
    with start_server() as (server, url):
        open_load(load, f"{url}/{path}", server.pid, timeout_s=0.3 if kind == "timeout" else 30.0)
        failure = load.measure(plan(make_load(clients=clients)))
        assert isinstance(failure, Failure)
        assert failure == Failure(kind=kind, stage="measure", message=f"GET {url}/{path}: {message}")  # type: ignore[arg-type]
        # The load generator itself goes on.
        assert isinstance(open_load(load, f"{url}/work", server.pid), Response)
        assert isinstance(load.measure(plan(make_load(clients=clients))), Block)


def test_opening_returns_any_status(load: HttpLoad) -> None:
    with start_server() as (server, url):
        response = open_load(load, f"{url}/status/500", server.pid)
        assert isinstance(response, Response)
        assert response.status == 500


def test_a_server_that_ended(load: HttpLoad) -> None:
    with start_server() as (server, url):
        open_load(load, f"{url}/work", server.pid)
        server.kill()
        server.wait()
        failure = load.measure(plan(Load()))
        assert isinstance(failure, Failure)
        assert failure.message.startswith(f"GET {url}/work: ")
        refused = open_load(load, f"{url}/work", server.pid)
        assert isinstance(refused, Failure)
        assert "cannot connect" in refused.message
        assert "refused" in refused.message


def test_a_block_that_hangs_ends_the_load_generator(load: HttpLoad) -> None:
    with start_server() as (server, url):
        open_load(load, f"{url}/work", server.pid)
        load.open(f"{url}/slow/0.4", root=server.pid, usable=USABLE, timeout_s=30)
        hanging = BlockPlan(duration_ns=10**12, lead_in_ns=0, min_calls=1, deadline_s=0.5)
        failure = load.measure(hanging)
        assert isinstance(failure, Failure)
        assert failure.kind == "timeout"
        assert not psutil.pid_exists(load.pid)
        assert load.measure(hanging) == failure


def test_a_body_that_is_missing(load: HttpLoad, tmp_path: Path) -> None:
    failure = open_load(load, "http://127.0.0.1:9/", os.getpid(), body_paths=[tmp_path / "none.json"])
    assert isinstance(failure, Failure)
    assert "none.json" in failure.message


def test_a_load_generator_that_crashes(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no memory for this')")
    with HttpLoad(tmp_path / "log", command=command) as load:
        failure = open_load(load, "http://127.0.0.1:9/", os.getpid())
    assert isinstance(failure, Failure)
    assert failure.message == "the load generator: the process exited with status 1: no memory for this"


@linux
def test_the_load_generator_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ortune.program.http_load import HttpLoad\n"
        f"load = HttpLoad(Path({str(tmp_path / 'log')!r})); print(load.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("path", ["work", "large/300000"])
def test_the_time_of_the_server_is_not_subtracted(path: str) -> None:
    with start_server("--sleep-ns", "3000000") as (_, url):
        requester = Requester(OpenRequest(url=f"{url}/{path}", timeout_s=30, root=os.getpid(), usable=USABLE), 1)
        for _ in range(5):
            begin_ns = time.perf_counter_ns()
            requester.call(Sample(None, {}))
            spent_ns = time.perf_counter_ns() - begin_ns
            assert 0 < requester.own_ns() < spent_ns - (3 * MS if path == "work" else 0)
        requester.close()


def test_the_time_of_each_call_is_subtracted_from_its_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server() as (server, url):
        load = RequestSender(OpenRequest(url=f"{url}/work", timeout_s=30, root=server.pid, usable=USABLE))
        windows: list[Window[CpuTimes]] = []

        def generate(*arguments: Any, **options: Any) -> Any:
            windows.append(generate_load(*arguments, **options))
            return windows[-1]

        monkeypatch.setattr("ortune.worker.load_generator.generate_load", generate)
        for traffic in (Load(), make_load(clients=2), make_load(clients=2, rate_per_s=200)):
            block = load.measure(plan(traffic))
            window = windows.pop()
            assert window.own_ns is not None
            assert len(set(window.own_ns.tolist())) > 1
            subtracted = window.own_ns + (0 if window.late_ns is None else np.minimum(window.late_ns, MOST_LATE_NS))
            # A latency shorter than what is subtracted counts as 1 ns.
            assert block.samples_ns.tolist() == np.maximum(window.latencies_ns - subtracted, 1).tolist()
        load.close()


class OldServer(http.server.BaseHTTPRequestHandler):
    """Closes the connection at the end of each response, which has no length."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"0123456789" * 20_000)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_closes_connections(load: HttpLoad) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OldServer) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        response = open_load(load, f"http://127.0.0.1:{server.server_port}/", os.getpid())
        assert isinstance(response, Response)
        assert response.n_bytes == 200_000
        for traffic in (Load(), make_load(clients=2)):
            block = load.measure(plan(traffic))
            assert isinstance(block, Block)
            assert len(block.samples_ns) >= 5
        server.shutdown()
        serving.join()


@linux
def test_a_response_that_the_client_reads_late_was_received_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = 0.2

    def read_late(self: http_worker._Connection) -> Any:
        time.sleep(late_s)
        return super(http_worker._Connection, self).getresponse()

    monkeypatch.setattr(http_worker._Connection, "getresponse", read_late)
    with start_server() as (_, url):
        requester = Requester(OpenRequest(url=f"{url}/work", timeout_s=30, root=os.getpid(), usable=USABLE), 1)
        # The kernel begins to stamp packets a moment after the first socket has asked for it.
        for _ in range(3):
            requester.call(Sample(None, {}))
        requester.close()
    assert requester.own_ns() > 0.5 * late_s * 1e9


@pytest.mark.parametrize(
    ("age_ns", "kind", "expected_ns"),
    [
        (3 * MS, http_worker.SO_TIMESTAMPNS, 7 * MS),
        (-3 * MS, http_worker.SO_TIMESTAMPNS, 10 * MS),  # the clock was set back
        (9_000 * MS, http_worker.SO_TIMESTAMPNS, 4 * MS),  # it was set forward
        (3 * MS, 1, 10 * MS),  # another message
    ],
)
def test_when_a_response_was_received(
    monkeypatch: pytest.MonkeyPatch, age_ns: int, kind: int, expected_ns: int
) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 10 * MS)
    monkeypatch.setattr(time, "time_ns", lambda: 5 * 10**18)
    monkeypatch.setattr(http_worker._stamps, "sent_ns", 4 * MS)
    message = http_worker.STAMP.pack(*divmod(5 * 10**18 - age_ns, 10**9))
    assert http_worker.read_stamp_ns([(socket.SOL_SOCKET, kind, message)]) == expected_ns
    assert http_worker.read_stamp_ns([]) == 10 * MS


def test_clocks_between_which_the_thread_was_suspended_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    unix_ns = iter([0, 5 * MS, 6 * MS, 6 * MS + 1])
    ticks_ns = iter([1 * MS, 2 * MS])
    monkeypatch.setattr(time, "time_ns", lambda: next(unix_ns))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(ticks_ns))
    assert http_worker.read_clocks() == (2 * MS, 6 * MS)


def test_idle_connections_are_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server() as (_, url):
        request = OpenRequest(url=f"{url}/echo", timeout_s=30, root=os.getpid(), usable=USABLE)
        requester = Requester(request, 1)
        counts = []
        for longest_s in (60.0, 60.0, -1.0, -1.0):
            monkeypatch.setattr(http_worker, "LONGEST_IDLE_S", longest_s)
            counts.append(json.loads(requester.fetch(Sample(None, {})).body)["connections"])
        requester.close()
    assert counts == [1, 1, 2, 3]


def test_windows_on_a_simulated_clock_have_the_cpu_time_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server computes for 3 ms of each call of 5 ms, and the load generator for the rest."""
    clock = SimulatedClock()
    spent = [0]

    class Tree:
        def refresh_ns(self) -> int:
            return spent[0]

        read_ns = refresh_ns

    server_clock = ServerClock(Tree())  # type: ignore[arg-type]
    monkeypatch.setattr(clock, "cpu_ns", server_clock.cpu_ns)

    def call(_: object) -> None:
        clock.sleep_ns(5 * MS)
        spent[0] += 3 * MS

    window = generate_load(call, [0], plan(Load(), duration_ms=1000), clock.now_ns, clock)
    assert window.latencies_ns.tolist() == [5 * MS] * 200
    assert window.cpu_ns == 600 * MS


def test_processes_are_looked_for_at_the_ends_of_the_window_only() -> None:
    calls = []

    class Tree:
        def refresh_ns(self) -> int:
            calls.append("refresh")
            return 0

        def read_ns(self) -> int:
            calls.append("read")
            return 0

    clock = ServerClock(Tree())  # type: ignore[arg-type]
    generate_load(lambda _: None, [0], plan(make_load(rate_per_s=100)), lambda: None, clock)
    assert calls.count("refresh") == 2
    assert calls.count("read") > 2


def test_foreign_use_is_neither_that_of_the_server_nor_of_the_load_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_server() as (server, url):
        request = OpenRequest(url=f"{url}/work", timeout_s=30, root=server.pid, usable=(0, 1), n_cores=2)
        load = RequestSender(request)
        busy_ns, foreign_ns = 10**9, [0]

        def read_busy(cpus: frozenset[int]) -> int:
            return busy_ns + load.tree.read_ns() + time.process_time_ns() + foreign_ns[0]

        monkeypatch.setattr(cpu, "busy_ns", read_busy)
        quiet = load.measure(plan(Load()))
        assert quiet.foreign_share == pytest.approx(0, abs=0.02)
        assert not quiet.contended

        def disturb() -> int:
            foreign_ns[0] += 10**9
            return foreign_ns[0]

        monkeypatch.setattr(cpu, "busy_ns", lambda cpus: read_busy(cpus) + disturb())
        disturbed = load.measure(plan(Load()))
        assert disturbed.foreign_share is not None
        assert disturbed.foreign_share > 0.5
        assert disturbed.contended
        load.close()


def test_latency_at_a_rate_does_not_include_that_clients_wake_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    request = OpenRequest(url="http://127.0.0.1:9/", timeout_s=30, root=os.getpid(), usable=USABLE)
    server_load = RequestSender(request)
    late_ns = [np.array([MS // 5, 3 * MS]), None]

    def generate(*_: object, **__: object) -> Window[CpuTimes]:
        times = server_load.read_cpu_times()
        return Window(
            latencies_ns=np.array([10 * MS, 20 * MS]),
            positions=np.array([0, 0]),
            service_ns=10.0 * MS,
            n_calls=2,
            wall_ns=100 * MS,
            lead_in_ns=0,
            cpu_ns=0,
            before=times,
            after=times,
            late_ns=late_ns.pop(0),
            own_ns=np.array([MS, MS]),
        )

    monkeypatch.setattr(load_generator, "generate_load", generate)
    at_a_rate = server_load.measure(plan(make_load(clients=2, rate_per_s=100)))
    assert at_a_rate.samples_ns.tolist() == [9 * MS - MS // 5, 19 * MS - MOST_LATE_NS]
    assert server_load.measure(plan(make_load(clients=2))).samples_ns.tolist() == [9 * MS, 19 * MS]
    server_load.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/predict",
        "http://localhost/",
        "https://[::1]:8443/a?b=c",
        "http://127.3.2.1:{port}",
        "http://127.0.0.1:{port}/v1/predict?x=1",
        "http://[::1]:{port}/",
    ],
)
def test_urls_of_this_host(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000", "must begin with http:// or https:// and a host"),
        ("ftp://127.0.0.1/", "must begin with http://"),
        ("http:///path", "must begin with http://"),
        ("", "must begin with http://"),
        ("http://127.0.0.1:99999/", "is not a URL"),
        ("http://127.0.0.1:0/", "there is no port 0"),
        ("http://[::1/", "is not a URL"),
        ("http://127.0.0.1/a b", "has a space"),
        ("http://127.0.0.1/\r\nX: y", "has a space or a control character"),
        ("http://user:secret@127.0.0.1/", "a user name and password"),
        ("http://example.com/", "example.com is not this host"),
        ("https://example.com:8443/", "example.com is not this host"),
        ("http://127.0.0.1.example.com/", "is not this host"),
        ("http://192.168.0.1/", "192.168.0.1 is not this host"),
        ("http://0.0.0.0/", "0.0.0.0 is not this host"),
        ("http://127.0.0.1/{port}", "may only stand where the port is"),
        ("http://127.0.0.1:{port}/{port}", "may only stand where the port is"),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_url(url)
    text, hint = caught.value.render()
    assert message in text
    assert "secret" not in text
    assert hint
    assert caught.value.option == "url"


def test_free_ports() -> None:
    port = find_free_port()
    url = f"http://127.0.0.1:{port}/"
    check_unused(url)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(UsageError, match=f"port {port} already"):
        check_unused(url)
    assert find_free_port(excluded=range(1, 2)) > 1


def test_excluded_ports_are_not_returned() -> None:
    class Excluded(set[int]):
        def __contains__(self, port: object) -> bool:
            self.add(port)  # type: ignore[arg-type]
            return len(self) < 3

    excluded = Excluded()
    find_free_port(excluded)
    assert len(excluded) == 3


def test_waiting_for_a_server() -> None:
    with start_server() as (server, url):

        def wait(path: str, health: str | None = None, **options: Any) -> Failure | None:
            return wait_until_up(
                f"{url}/{path}",
                health and f"{url}/{health}",
                is_alive=lambda: server.poll() is None,
                deadline_s=options.pop("deadline_s", 60),
                **options,
            )

        assert wait("after/4") is None
        assert wait("work", "status/404") is None
        failure = wait("work", "status/503", deadline_s=2)
        assert failure == Failure(
            kind="timeout",
            stage="load",
            message=f"GET {url}/status/503 was tried for 2 s; the last answer was status 503 Service Unavailable: "
            "the model is missing",
        )
        failure = wait("slow/20", deadline_s=0.3)
        assert failure is not None
        assert "the last attempt: " in failure.message
        assert read_stats(url)["spans"] == []
        assert wait("work", method="POST", body=b"{}") is None
        end_s = time.monotonic() + 20
        while not (spans := read_stats(url)["spans"]) and time.monotonic() < end_s:
            time.sleep(0.01)  # the server notes a request after it has answered
        assert len(spans) == 1


@pytest.mark.parametrize(("left_s", "expected"), [(0.3, "the last answer was 503"), (3.0, "the last attempt: late")])
def test_an_attempt_that_the_deadline_cuts_short_does_not_replace_an_answer(
    monkeypatch: pytest.MonkeyPatch, left_s: float, expected: str
) -> None:
    now_s, deadline_s = [0.0], 10.0

    def ask(*_: object) -> tuple[int, str]:
        if not now_s[0]:
            now_s[0] = deadline_s - left_s
            return 503, "the last answer was 503"
        now_s[0] = deadline_s
        raise OSError(0, "late")

    monkeypatch.setattr(http_load, "_ask", ask)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda _: None)
    failure = wait_until_up("http://127.0.0.1:9/", is_alive=lambda: True, deadline_s=deadline_s)
    assert failure is not None
    assert failure.message.endswith(expected)


class EndlessServer(http.server.BaseHTTPRequestHandler):
    """Is not up, and explains it a byte at a time, until the connection is closed."""

    n_requests = 0

    def do_GET(self) -> None:
        type(self).n_requests += 1
        self.send_response(503)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x")
                time.sleep(0.1)

    def log_message(self, *_: object) -> None:
        pass


def test_an_answer_that_does_not_end_is_not_waited_for() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EndlessServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        failure = wait_until_up(url, url, is_alive=lambda: EndlessServer.n_requests < 3, deadline_s=60)
        server.shutdown()
    assert failure is not None
    assert re.search("; the last answer was status 503 Service Unavailable: x+$", failure.message)


def test_a_request_that_is_refused_is_not_repeated_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_load, "REFUSAL_GRACE_S", 0.05)
    with start_server() as (_, url):
        failure = wait_until_up(f"{url}/status/422", is_alive=lambda: True, deadline_s=60)
    assert failure is not None
    assert failure.kind == "exception"
    assert failure.message.startswith(f"GET {url}/status/422: the last answer was status 422 ")


@pytest.mark.parametrize("status", [301, 307, 308])
def test_answers_that_send_requests_elsewhere_are_not_measured(status: int, load: HttpLoad, tmp_path: Path) -> None:
    """Nothing was computed for them."""
    with start_server() as (server, url):
        failure = wait_until_up(f"{url}/status/{status}", is_alive=lambda: True, deadline_s=60)
        assert failure is not None
        assert f"status {status}" in failure.message
        # One that is ready may answer so elsewhere.
        assert wait_until_up(f"{url}/", f"{url}/status/{status}", is_alive=lambda: True, deadline_s=60) is None
        answer = open_load(load, f"{url}/status/{status}", server.pid)
        measured = answer if isinstance(answer, Failure) else load.measure(plan(make_load()))
    assert isinstance(measured, Failure)
    assert f"status {status}" in measured.message


@pytest.mark.parametrize("bodies", [0, 1])
def test_all_header_fields_of_the_same_name_are_sent(bodies: int, tmp_path: Path) -> None:
    headers = (("Cookie", "a=1"), ("Cookie", "b=2"))
    path = tmp_path / "a.json"
    path.write_text("{}")
    seen: list[list[str] | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get_all("Cookie"))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        assert wait_until_up(url, is_alive=lambda: True, deadline_s=60, headers=headers) is None
        request = OpenRequest(
            url=url, headers=headers, body_paths=(str(path),) * bodies, timeout_s=60, root=os.getpid(), usable=USABLE
        )
        (sample,) = read_samples(request)
        requester = Requester(request, 1)
        requester.call(sample)
        requester.close()
        server.shutdown()
        serving.join()
    assert seen == [["a=1", "b=2"]] * 2


def test_the_content_type_of_a_body(tmp_path: Path) -> None:
    """The first request of a server has it as all others do."""
    assert add_content_type((), "a.json") == (("Content-Type", "application/json"),)
    assert add_content_type((("content-type", "text/plain"),), "a.json") == (("content-type", "text/plain"),)
    asked: list[dict[str, str]] = []

    def ask(pool: object, url: str, health: object, method: str, headers: Any, body: object, left_s: float) -> Any:
        asked.append(dict(headers))
        return 200, ""

    path = tmp_path / "a.json"
    path.write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_load, "_ask", ask)
        server = program_server.Server(url="http://127.0.0.1:9/", bodies=(path,))
        assert server.wait_until_up(0, lambda: None, 5.0) is None
    assert asked == [{"Content-Type": "application/json"}]


def test_a_program_that_ends_is_not_waited_for() -> None:
    url = f"http://127.0.0.1:{find_free_port()}/"
    alive = iter([True, True, False])
    failure = wait_until_up(url, is_alive=lambda: next(alive), deadline_s=60)
    assert failure is not None
    assert failure.kind == "exit"
    assert failure.message.startswith(f"the program ended before it answered GET {url}; the last attempt: ")
    assert "refused" in failure.message


@linux
class TestTreeClock:
    """The CPU time of a tree of processes."""

    def test_it_is_that_of_the_process(self) -> None:
        clock = TreeClock(os.getpid())
        own = time.process_time_ns()
        before = clock.read_ns()
        end = time.process_time_ns() + 50 * MS
        while time.process_time_ns() < end:
            pass
        spent, own_spent = clock.read_ns() - before, time.process_time_ns() - own
        assert 50 * MS <= spent <= own_spent

    def test_threads_count(self) -> None:
        clock = TreeClock(os.getpid())
        before = clock.read_ns()

        def spend() -> None:
            end = time.thread_time_ns() + 30 * MS
            while time.thread_time_ns() < end:
                pass

        threads = [threading.Thread(target=spend) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert clock.read_ns() - before >= 60 * MS

    def test_children_are_found_and_remembered(self) -> None:
        spend = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
        shell = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spend!r}])\nprint(flush=True)\ninput()"
        with subprocess.Popen(
            [sys.executable, "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin
            assert process.stdout
            clock = TreeClock(process.pid)
            process.stdout.readline()
            live = clock.refresh_ns()
            assert len(clock.processes) == 2
            assert live >= 200 * MS
            print(file=process.stdin, flush=True)
            process.stdout.readline()
            # The child has ended. Its parent reports its time in ticks, and `read_ns` notices that it is gone.
            ended = clock.read_ns()
            assert set(clock.processes) == {process.pid}
            assert ended >= live - 20 * MS
            process.kill()
        assert clock.refresh_ns() >= ended - 20 * MS

    def test_children_that_nobody_waits_for_are_not_lost(self) -> None:
        spend = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
        program = (
            "import signal, subprocess, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            f"child = subprocess.Popen([sys.executable, '-c', {spend!r}])\n"
            "child.wait()\nprint(flush=True)\ninput()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin
            assert process.stdout
            clock = TreeClock(process.pid)
            process.stdout.readline()
            live = clock.refresh_ns()
            print(file=process.stdin, flush=True)
            process.stdout.readline()
            assert clock.read_ns() >= live >= 300 * MS
            process.kill()

    def test_without_clocks_of_processes_ticks_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu, "read_process_ns", lambda number: None)
        clock = TreeClock(os.getpid())
        assert clock.processes
        before = cpu.tree_ns(os.getpid())
        assert before <= clock.read_ns() <= clock.refresh_ns() <= cpu.tree_ns(os.getpid())


@linux
def test_memory_that_processes_share_counts_once() -> None:
    from ortune.worker.cpu import read_tree_memory

    code = (
        "import os\ndata = b'x' * 200_000_000\n"
        "for _ in range(3):\n"
        "    if not os.fork(): break\n"
        "os.write(1, b'.')\nos.read(0, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        while len(process.stdout.read(4)) < 4:
            pass
        memory = read_tree_memory(process.pid)
        assert 200_000_000 < memory.steady_bytes < 400_000_000
        assert memory.peak_bytes >= memory.steady_bytes
        assert process.stdin
        process.stdin.close()
