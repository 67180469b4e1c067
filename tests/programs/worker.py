"""A program whose speed depends on the settings of its sessions: it sleeps longer unless they have one thread.

    python worker.py MODEL [run|serve|forever|lazy|die] [N]

With one thread, a call takes 10 ms, otherwise 40 ms. The sessions that it creates turn the memory arena off. With the
variable WORKER_FAMILY, it has a child, and a daemon that left its process group, its session and its parent.
"""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import time

if os.environ.get("LIGHT_SESSIONS"):
    import light

    light.install()

import numpy as np
import onnxruntime


def make_session(path: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def work(session: onnxruntime.InferenceSession) -> float:
    options = session.get_session_options()
    fast = options.intra_op_num_threads == 1
    if os.environ.get("CRASH_WITH_ONE_THREAD") and fast:
        os.abort()
    time.sleep(0.01 if fast else 0.04)
    shape = [size if isinstance(size, int) else 1 for size in session.get_inputs()[0].shape]
    output = session.run(None, {session.get_inputs()[0].name: np.ones(shape, np.float32)})[0]
    if os.environ.get("WRONG_WITH_ONE_THREAD") and fast:
        output = output + 1
    return float(np.sum(output))


def serve(session: onnxruntime.InferenceSession, port: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = f"{work(session):.4f}".encode()
            # In one packet: the second of two would wait for the acknowledgment of the first.
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        def log_message(self, *_: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def start_family() -> None:
    sleep = "import time; time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", sleep])
    daemon = f"import os; os.setsid(); os.fork() and os._exit(0); {sleep}"
    subprocess.run([sys.executable, "-c", daemon], check=True)


def main() -> None:
    if os.environ.get("WORKER_FAMILY"):
        start_family()
    path, how, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    session = make_session(path)
    if how == "serve":
        serve(session, n)
    if how == "die":
        sys.exit(3)
    results = []
    begin = time.perf_counter()
    while how == "forever" or len(results) < n:
        results.append(work(session))
    print(f"result {results[-1]:.4f}")
    print(f"rate {len(results) / (time.perf_counter() - begin):.2f} per second", file=sys.stderr)
    if how == "rate":
        print(f"{len(results) / (time.perf_counter() - begin):.2f} per second")


if __name__ == "__main__":
    main()
