"""Count the processes that use a record at the same time, without files that would be left behind.

Each process binds a socket in Linux's abstract namespace, whose name has its id. The system forgets the name when the
process ends, and lists all names. Elsewhere, nothing is counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

LIST = Path("/proc/net/unix")


class Processes:
    """The processes of programs that follow the same plan.

    Args:
        plan: See `ortune.apply.inside.finder.Plan`.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(plan["rules"], sort_keys=True).encode()).hexdigest()
        self._prefix = f"ortune-apply-{digest[:32]}-"
        self._socket: Any = None
        self._pid = 0

    def join(self) -> None:
        """Count this process from now on. It may be called more than once."""
        if self._pid == os.getpid():
            return
        self.leave()
        self._pid = os.getpid()
        import socket

        if LIST.exists():
            with contextlib.suppress(OSError):  # a sandbox may forbid it
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.bind(f"\0{self._prefix}{self._pid}")

    def leave(self) -> None:
        """No longer count this process; in a child that was forked: no longer keep the name of the parent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._pid = 0

    def list_pids(self) -> list[int]:
        """Return the ids of the processes that are counted, in ascending order; none if it is not known."""
        try:
            text = LIST.read_text(errors="replace")
        except OSError:
            return []
        return sorted({int(found[1]) for found in re.finditer(rf"@{self._prefix}([0-9]{{1,10}})\s", text)})
