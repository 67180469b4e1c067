"""An ASGI application that limits its calls with a pool of threads, as exports for uvicorn say to."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wsgi_app import describe

POOL = ThreadPoolExecutor(int(os.environ["CALLERS"]))


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer one request."""
    if scope["type"] != "http":
        return
    body = json.dumps(await asyncio.get_running_loop().run_in_executor(POOL, describe)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
