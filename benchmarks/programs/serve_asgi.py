"""Serve a model with ASGI: `uvicorn serve_asgi:app`, with the path of the model in the variable MODEL.

CALLERS is the number of calls at a time, which a pool of threads limits. Requests are those of `serve_wsgi.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from serve_wsgi import answer

POOL = ThreadPoolExecutor(int(os.environ["CALLERS"]))


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer one request."""
    if scope["type"] != "http":
        return
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = await asyncio.get_running_loop().run_in_executor(POOL, answer, b"".join(parts))
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
