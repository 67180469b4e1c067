"""A worker with a regression of known size: `python benchmarks/slow_worker.py SHARE HANDLE`.

After each call, the calling thread keeps computing for this share of the duration of the call.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ortune.worker import SessionInfo
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.main import main

SHARE = float(sys.argv[1])


class SlowCandidate(CandidateSession):
    """A candidate with a regression."""

    def load(self) -> SessionInfo:
        """Create the session, and make all of its calls longer."""
        loaded = super().load()
        call, clock = self.call, time.perf_counter_ns

        def slow(sample: Any) -> Any:
            start = clock()
            outputs = call(sample)
            now = clock()
            end = now + int(SHARE * (now - start))
            while now < end:
                now = clock()
            return outputs

        self.call = slow
        return loaded


if __name__ == "__main__":
    main(SlowCandidate)
