"""A server with a replayed service time, for tests and benchmarks: `python -m benchmarks.replay_server OPTIONS`.

It prints its port. `/work` sleeps or uses CPU time as the options say, and `/stats/N` returns what the server itself
counted of its requests from the N-th on: start, end, and its CPU time at the end. The other paths are faults.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = bytes(1 << 16)


def burn(cpu_ns: int) -> None:
    """Use this much CPU time in this thread. Hashing releases the interpreter lock, as inference does."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        hashlib.sha256(BLOCK)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: Server

    def parse_request(self) -> bool:
        """Note the start of a request, whose first line has been read."""
        self.begin_ns = time.perf_counter_ns()
        return super().parse_request()

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, body: bytes) -> None:
        server = self.server
        path, _, argument = self.path.strip("/").partition("/")
        if path == "work":
            server.serve_once()
            self.reply(200, json.dumps({"n_bytes": len(body), "score": 0.5}).encode())
            with server.counting:
                server.spans.append((self.begin_ns, time.perf_counter_ns(), time.process_time_ns()))
        elif path == "stats":
            n_spans = len(server.spans)
            spans = server.spans[int(argument or 0) :]
            self.reply(200, json.dumps({"spans": spans, "n_spans": n_spans}).encode())
        elif path == "echo":
            fields = {"body": body.decode("latin-1"), "method": self.command, "headers": dict(self.headers)}
            self.reply(200, json.dumps({**fields, "connections": server.n_connections}).encode())
        elif path == "status":
            self.reply(int(argument), b"\n  the model is missing\nsecond line\n")
        elif path == "after":  # the status is 503 until the n-th request
            self.reply(200 if next(server.numbers) >= int(argument) else 503, b"loading\n")
        elif path == "large":
            self.reply(200, b"0123456789" * (int(argument) // 10))
        elif path == "slow":
            time.sleep(float(argument))
            self.reply(200, b"late")
        elif path == "child":  # a child uses CPU time, and ends
            subprocess.run([sys.executable, "-c", f"import time\nwhile time.process_time() < {argument}: pass"])
            self.reply(200, b"done")
        elif path == "drop":
            self.close_connection = True
        elif path == "exit":
            import os

            os._exit(int(argument))

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread.

    Args:
        sleeps_ns: Service times that it sleeps, in turn.
        burns_ns: CPU times that it uses, in turn.
        slots: Number of requests that are served at the same time; 0 for any number.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, sleeps_ns: list[int], burns_ns: list[int], slots: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.spans: list[tuple[int, int, int]] = []
        self.counting = threading.Lock()
        self.numbers = itertools.count(1)
        self.n_connections = 0
        self._sleeps, self._burns = itertools.cycle(sleeps_ns), itertools.cycle(burns_ns)
        self._slots: contextlib.AbstractContextManager[Any] = (
            threading.Semaphore(slots) if slots else contextlib.nullcontext()
        )

    def process_request(self, request: Any, client_address: Any) -> None:
        self.n_connections += 1
        super().process_request(request, client_address)

    def serve_once(self) -> None:
        with self.counting:
            sleep_ns, burn_ns = next(self._sleeps), next(self._burns)
        with self._slots:
            if burn_ns:
                burn(burn_ns)
            if sleep_ns:
                time.sleep(sleep_ns / 1e9)


@contextlib.contextmanager
def start_server(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server, and yield its process and URL. It ends with the context."""
    command = [sys.executable, "-m", "benchmarks.replay_server", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as process:
        try:
            assert process.stdout
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--sleep-ns", type=int, nargs="+", default=[0])
    parser.add_argument("--burn-ns", type=int, nargs="+", default=[0])
    parser.add_argument("--slots", type=int, default=0)
    arguments = parser.parse_args()
    server = Server(arguments.port, arguments.sleep_ns, arguments.burn_ns, arguments.slots)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
