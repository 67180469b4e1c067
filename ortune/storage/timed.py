"""Runs calls of a storage with a time limit, so that one that hangs does not stop a search."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

from ortune.storage.errors import StorageError

T = TypeVar("T")


class TimedCalls:
    """Runs calls one after the other in a thread of its own.

    A call that is late goes on. Until it ends, further calls fail at once. The thread does not keep the process from
    ending.
    """

    def __init__(self) -> None:
        self._pending: Future[Any] | None = None
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="storage", daemon=True).start()

    def _run(self) -> None:
        while True:
            future, work = self._queue.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  (the caller gets it)
                future.set_exception(error)

    def call(self, work: Callable[[], T], limit_s: float) -> T:
        """Return what a call returns, or raise what it raises.

        Raises:
            StorageError: It takes longer than the limit, or an earlier call has not ended.
        """
        if self._pending and not self._pending.done():
            raise StorageError("an earlier call has not ended.")
        future: Future[T] = Future()
        self._pending = future
        self._queue.put((future, work))
        try:
            return future.result(limit_s)
        except LateError:
            if future.done():
                raise
            raise StorageError(f"no answer within {limit_s:g} s.") from None
