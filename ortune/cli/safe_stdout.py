"""What the command line prints goes through here, so that no work is lost when nobody can take it any more."""

from __future__ import annotations

import errno
import os
from typing import IO, Any


class SafeStdout:
    """Stands before a stream; what it cannot write any more goes nowhere.

    The reader of a pipe may have gone, as `head` does, while a search is going on: its record is written all the same.

    Args:
        stream: The stream, of text or of bytes.

    Attributes:
        fault: Why nothing is written any more, other than that the reader has gone; empty as long as all is well.
    """

    def __init__(self, stream: IO[Any]) -> None:
        self._stream = stream
        self.fault = ""
        if hasattr(stream, "buffer"):
            self.buffer = SafeStdout(stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        """Write text or bytes."""
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
        """Return why not all could be written; empty if it was, or if its reader had gone."""
        self.flush()
        inner = self.__dict__.get("buffer")
        return self.fault or (inner.fault if inner else "")

    def _give_up(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self.fault = error.strerror or str(error)
        # What is buffered is written again at the end, and then has to go somewhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
