"""Serve a model with WSGI: `gunicorn serve_wsgi:app`, with the path of the model in the variable MODEL.

The body of a request is an .npz file with an array for each input, and that of the response one with the outputs.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnxruntime

SESSION = onnxruntime.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
NAMES = [output.name for output in SESSION.get_outputs()]


def answer(body: bytes) -> bytes:
    """Run the model on the inputs of a request."""
    with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
        inputs = dict(arrays)
    file = io.BytesIO()
    np.savez(file, **dict(zip(NAMES, SESSION.run(None, inputs), strict=True)))
    return file.getvalue()


def app(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]) -> Iterable[bytes]:
    """Answer one request."""
    body = answer(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
    return [body]
