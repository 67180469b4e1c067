"""A wrapper for output streams, so that no work is lost when a stream can no longer be written to."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import IO, Any


class SafeStream:
    """Wraps a stream, and discards output that can no longer be written.

    The reader of a pipe, such as `head`, may exit during a search. The search still writes its record.

    Args:
        stream: The stream, of text or of bytes.
        before_write: Called before each write.

    Attributes:
        fault: Why writing failed, unless the reader closed the pipe; empty if there was no failure.
    """

    def __init__(self, stream: IO[Any], before_write: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._before_write = before_write
        self.fault = ""
        if hasattr(stream, "buffer"):
            self.buffer = SafeStream(stream.buffer, before_write)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write text or bytes."""
        self._before_write()
        try:
            return int(self._stream.write(data))
        except OSError as error:
            self._give_up(error)
            return len(data)

    def flush(self) -> None:
        """Flush what was written."""
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def find_fault(self) -> str:
        """Return why output was lost; empty if all of it was written or the reader closed the pipe."""
        self.flush()
        inner = self.__dict__.get("buffer")
        return self.fault or (inner.fault if inner else "")

    def _give_up(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self.fault = error.strerror or str(error)
        # Python flushes the buffered output again at exit, which needs a stream that works.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
