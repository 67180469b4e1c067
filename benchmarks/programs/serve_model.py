"""Serve a model over HTTP: `uvicorn serve_model:app --workers 2`, with the path of the model in the variable MODEL."""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

session = onnxruntime.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
feed = {session.get_inputs()[0].name: np.random.default_rng(0).random((1, 3, 224, 224), dtype=np.float32)}


async def classify(request: Request) -> JSONResponse:
    """Run the model, and return the best class."""
    outputs = await run_in_threadpool(session.run, None, feed)
    return JSONResponse({"class": int(np.argmax(outputs[0]))})


app = Starlette(routes=[Route("/", classify)])
