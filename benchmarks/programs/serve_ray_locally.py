"""Serve a Ray Serve application in Ray's local testing mode: `python serve_ray_locally.py MODULE PORT PROCESSES`.

In this mode the application runs in the process that starts it, without Ray's controller, proxy and replicas. They need
more CPU time per request than a small model, and a large host. Each process stands for one replica. An HTTP server of
the standard library takes the place of Ray's proxy, and answers as many requests at a time as a replica may have.
Ray ignores environment variables of the application in this mode, so they are set here.
"""

from __future__ import annotations

import http.server
import importlib
import logging
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


class Request:
    """The part of a request that an application reads."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def body(self) -> bytes:
        """Return the body."""
        return self._content


class Server(http.server.HTTPServer):
    """An HTTP server that passes requests to an application, a limited number at a time."""

    request_queue_size = 256

    def __init__(self, port: int, handle: Any, n_requests: int) -> None:
        self.handle = handle
        self.callers = ThreadPoolExecutor(n_requests)
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=False)
        # Each process has its own socket, and the kernel distributes connections among them.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.server_bind()
        self.server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread."""
        self.callers.submit(self._answer, request, client_address)

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass
        finally:
            self.shutdown_request(request)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server

    def do_POST(self) -> None:
        """Pass the request to the application."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        response = self.server.handle.remote(Request(content)).result()
        self.send_response(response.status_code)
        self.send_header("Content-Type", response.media_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def main() -> None:
    """Start the processes, and serve in each."""
    module, port, n_processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for _ in range(n_processes - 1):
        if not os.fork():
            break
    sys.path.insert(0, str(Path.cwd()))
    from ray import serve

    logging.getLogger("ray").setLevel(logging.WARNING)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    # onnxruntime reads some variables as soon as it is imported, which the module does.
    found = importlib.import_module(module)
    deployment = found.app._bound_deployment
    variables = ((deployment.ray_actor_options or {}).get("runtime_env") or {}).get("env_vars") or {}
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.environ.update(variables)
        os.execv(sys.executable, [sys.executable, __file__, module, str(port), "1"])
    handle = serve.run(found.app, _local_testing_mode=True)
    Server(port, handle, deployment.max_ongoing_requests).serve_forever()


if __name__ == "__main__":
    main()
