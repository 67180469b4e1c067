"""Programs whose outputs depend on the settings of their sessions, for tests of what is compared.

    python outputs.py MODEL [forever|ends|exits|silent|threads|answers|late] [N] [MODEL]

With one thread, a session is fast, and what depends on it is wrong if the variable WRONG is set. `forever` returns it
from the calls of a function in a program that does not end, `threads` from calls in several threads. `ends` prints it
at the end, `exits` ends with another status, `silent` shows it nowhere, and `answers` answers it to requests whose body
is `b`, after calling the second model with the length of the body. `late` does not end, and calls the second model
once, in its Nth call.
"""

from __future__ import annotations

import http.server
import os
import sys
import threading
import time

if os.environ.get("LIGHT_SESSIONS"):
    import light

    light.install()

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
how, n = sys.argv[2], int(sys.argv[3])
is_fast = session.get_session_options().intra_op_num_threads == 1
is_wrong = is_fast and bool(os.environ.get("WRONG"))
started = time.time()
calls = 0


def infer() -> float:
    name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
    feed = np.ones([size if isinstance(size, int) else 1 for size in shape], np.float32)
    time.sleep(0.002 if is_fast else 0.02)
    return float(np.sum(session.run(None, {name: feed})[0]))


def infer_other(length: int) -> None:
    other = onnxruntime.InferenceSession(sys.argv[4], providers=["CPUExecutionProvider"])
    other.run(None, {model_input.name: np.ones((1, length), np.int64) for model_input in other.get_inputs()})


def work() -> object:
    global calls
    calls += 1
    result = infer()
    if how == "late" and calls == n:
        infer_other(2)
    if how in {"ends", "silent", "exits"}:
        return None
    # The fourth call is wrong, not the first one. The last value differs from run to run.
    return {"sum": result + (is_wrong and calls >= 4), "labels": ["a", "b"], "at": started}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if len(sys.argv) > 4:
            infer_other(len(sent))
        body = f"{infer() + (is_wrong and sent == b'b'):.4f}".encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if how == "answers":
        http.server.ThreadingHTTPServer(("127.0.0.1", n), Handler).serve_forever()
    if how == "threads":
        threads = [threading.Thread(target=lambda: [work() for _ in range(n)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    while calls < n or how in {"forever", "late"}:
        work()
    if how == "ends":
        # In milliseconds, two runs would sometimes take equally long, and the time would not count as varying.
        print(f"sum {infer() + is_wrong:.3f} after {round((time.time() - started) * 1e9)} ns")
    sys.exit(5 if is_wrong and how == "exits" else 0)


if __name__ == "__main__":
    main()
