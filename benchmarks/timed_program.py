"""A program whose times are known: each call of its function sleeps a set time and runs a model.

    python timed_program.py MODEL SLEEP_MS run|forever N
    python timed_program.py MODEL SLEEP_MS serve PORT

It counts the times of its calls itself: as a summary on stderr, and in the file that the variable TIMES_LOG names, as
start and end of each call in nanoseconds of the monotonic clock, two signed integers of 8 bytes.
"""

from __future__ import annotations

import http.server
import os
import struct
import sys
import time

import numpy as np
import onnxruntime


class Timed:
    """The function that is timed, with its session and its own count of the times."""

    def __init__(self, path: str, sleep_s: float) -> None:
        options = onnxruntime.SessionOptions()
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._feed = {
            model_input.name: np.ones([size if isinstance(size, int) else 1 for size in model_input.shape], np.float32)
            for model_input in self._session.get_inputs()
        }
        self._sleep_s = sleep_s
        log = os.environ.get("TIMES_LOG")
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if log else None
        self.times_ns: list[int] = []

    def work(self) -> float:
        """Sleep, and run the model."""
        start_ns = time.perf_counter_ns()
        time.sleep(self._sleep_s)
        result = float(np.sum(self._session.run(None, self._feed)[0]))
        end_ns = time.perf_counter_ns()
        self.times_ns.append(end_ns - start_ns)
        if self._log is not None:
            os.write(self._log, struct.pack("<qq", start_ns, end_ns))
        return result


def serve(timed: Timed, port: int) -> None:
    """Answer each request with a call of the function."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = f"{timed.work():.4f}".encode()
            # In one packet: the second of two would wait for the acknowledgment of the first.
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        def log_message(self, *_: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def main() -> None:
    """Run the program."""
    path, sleep_ms, how, n = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    timed = Timed(path, sleep_ms / 1e3)
    if how == "serve":
        serve(timed, n)
    result = 0.0
    while how == "forever" or len(timed.times_ns) < n:
        result = timed.work()
    print(f"result {result:.4f}")
    times_ms = np.array(timed.times_ns) / 1e6
    print(f"{n} calls: mean {times_ms.mean():.3f} ms, p50 {np.median(times_ms):.3f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
