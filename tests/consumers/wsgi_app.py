"""A WSGI application that does not know about ortune. Each request runs the model in the environment variable MODEL.

The response holds the options of the session of the process that answers, its CPUs, and how many requests it has served
at a time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnxruntime

SESSION = onnxruntime.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])

REQUEST_S = 0.02
"""Time of a request, so that several are served at a time where that is possible."""


class Count:
    """Counts what is done at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __enter__(self) -> Count:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._now -= 1


COUNT = Count()


def describe() -> dict[str, Any]:
    """Run the model, and return what this process is."""
    with COUNT:
        image = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
        SESSION.run(None, {"image": image})
        time.sleep(REQUEST_S)
    read = SESSION.get_session_options()
    try:
        spinning = read.get_session_config_entry("session.intra_op.allow_spinning")
    except RuntimeError:
        spinning = None
    return {
        "pid": os.getpid(),
        "intra": read.intra_op_num_threads,
        "spinning": spinning,
        "cpus": sorted(os.sched_getaffinity(0)),
        "most": COUNT.most,
    }


def app(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]) -> Iterable[bytes]:
    """Answer one request."""
    body = json.dumps(describe()).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
