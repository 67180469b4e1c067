"""A worker that reports each block that it measured, and that fails at random: see `benchmarks/chaos.py`.

Environment variables: `CHAOS_LOG`, a file to which a line is added for each block; `CHAOS_FAILING`, the share of
launches that fail.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import sys
import time

from ortune.worker import Block, Failure, SessionInfo
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.main import main
from ortune.worker.protocol import MeasureRequest

WAYS = ("segfault", "abort", "hang", "out of memory", "exit", "garbage", "half a message")


def fail(way: str) -> None:
    """Fail in a way of `WAYS`."""
    pipe = int(sys.argv[-1])
    if way == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if way == "abort":
        os.abort()
    if way == "out of memory":
        raise MemoryError
    if way == "exit":
        os._exit(7)
    if way == "garbage":
        os.write(pipe, os.urandom(4096))
    if way == "half a message":
        os.write(pipe, struct.pack("!i", 1000) + b"half")
    time.sleep(3600)


class ChaoticSession(CandidateSession):
    """A session that counts its blocks. The process fails when it loads it, or in one of the next blocks."""

    def load(self) -> SessionInfo:
        """Load the session, or fail."""
        self.fails_in = -1
        if random.random() < float(os.environ.get("CHAOS_FAILING", "0")):
            self.fails_in = random.choice((0, 1, 2, 5))
            if self.fails_in == 0:
                fail(random.choice(WAYS))
        return super().load()

    def measure(self, request: MeasureRequest) -> Block | Failure:
        """Measure a block, or fail."""
        self.fails_in -= 1
        if self.fails_in == 0:
            fail(random.choice(WAYS))
        reply = super().measure(request)
        if path := os.environ.get("CHAOS_LOG"):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, b"block\n")
            os.close(descriptor)
        return reply


if __name__ == "__main__":
    main(ChaoticSession)
