"""Serve a model over HTTP with several worker processes. This program does not know ortune. It needs POSIX.

python examples/serve_model.py MODEL --port 8000 [--workers 2]

Each GET request runs the model once, and returns the shapes of its outputs.
"""

import argparse
import http.server
import json
import os
import signal
import socket
import sys
import time

import numpy
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="path of the ONNX file; its inputs must be float32")
parser.add_argument("--port", type=int, required=True, help="TCP port of 127.0.0.1")
parser.add_argument("--workers", type=int, default=1, help="number of processes")
arguments = parser.parse_args()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are sent together, and at once.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        shapes = [list(output.shape) for output in session.run(None, feed)]
        body = json.dumps(shapes).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, address = self.socket.accept()
        connection.setblocking(True)
        return connection, address


server = Server(("127.0.0.1", arguments.port), Handler)
# All workers wait for connections on one socket. Those that do not get one go on waiting.
server.socket.setblocking(False)
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
workers: list[int] = []
try:
    for _ in range(arguments.workers - 1):
        if not (pid := os.fork()):
            workers.clear()
            break
        workers.append(pid)
    # Each process creates a session of its own: threads do not survive a fork.
    session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
    feed = {
        model_input.name: numpy.ones(
            [size if isinstance(size, int) else 1 for size in model_input.shape], numpy.float32
        )
        for model_input in session.get_inputs()
    }
    server.serve_forever()
except KeyboardInterrupt:
    pass
finally:
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + 5
    while workers:
        time.sleep(0.01)
        workers = [pid for pid in workers if not os.waitpid(pid, os.WNOHANG)[0]]
        # Now and then, onnxruntime does not end when its process does.
        if time.monotonic() > end_s:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
