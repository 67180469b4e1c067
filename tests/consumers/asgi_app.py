"""An ASGI application that does not know about ortune. Each request runs the model in the environment variable MODEL.

The response holds the options of the session of the process that answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import onnxruntime

OPTIONS = onnxruntime.SessionOptions()
OPTIONS.intra_op_num_threads = 2
SESSION = onnxruntime.InferenceSession(os.environ["MODEL"], OPTIONS, providers=["CPUExecutionProvider"])


def _answer() -> dict[str, Any]:
    image = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
    (output,) = SESSION.run(None, {"image": image})
    read = SESSION.get_session_options()
    try:
        spinning = read.get_session_config_entry("session.intra_op.allow_spinning")
    except RuntimeError:
        spinning = None
    return {
        "pid": os.getpid(),
        "intra": read.intra_op_num_threads,
        "spinning": spinning,
        "output": output.ravel().tolist(),
    }


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer one request."""
    if scope["type"] != "http":
        return
    body = json.dumps(_answer()).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
