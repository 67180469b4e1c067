"""Use a config in a share of the processes, and count the calls of all of them in the same way.

A process is in one of two arms: `canary`, whose sessions get the tuned options, or `control`, whose sessions keep
those of the program. The arm follows from a hash of the host's name, the process id and the time at which the process
began, so that processes decide independently, and anyone can check the split. A child that is forked decides for
itself, unless its parent has created sessions, which the child inherits: it then stays in the arm of its parent.

Each process writes its own file into a folder, so that processes never wait for each other: when it ends, and from
time to time after a call, because processes may be killed. `ortune.fleet.canary_metrics` reads the files. Durations
are counted in buckets with logarithmic bounds, so that files have a bounded size and those of several processes can
be added up.

Source: C. Masson, J. Rim and H. Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error
Guarantees", PVLDB 12 (2019), for the buckets.

An error here never stops the program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ortune.apply.inside.endings import call_after_fork, call_before_end
from ortune.apply.inside.explain import write_stderr

METRICS_FORMAT = 1
"""Version of the files."""

CANARY = "canary"
CONTROL = "control"

CONTROL_REASON = "this process is in the control arm"
"""Why a session keeps the program's own options."""

GROWTH = 1.01
"""Ratio of the bounds of a bucket. The middle of a bucket differs from a duration in it by at most 0.5%."""

GROWTH_SCALE = 1 / math.log(GROWTH)

SHORTEST_NS = 1_000
LONGEST_NS = 1_000_000_000_000
"""Range of durations that buckets distinguish. Shorter and longer ones count as its ends."""

FIRST_BUCKET = int(math.log(SHORTEST_NS) * GROWTH_SCALE)
LAST_BUCKET = int(math.log(LONGEST_NS) * GROWTH_SCALE)

MOST_COUNTED_MODELS = 16
"""Number of models whose calls are counted."""

LONGEST_METRICS_TEXT = 200
"""Length of texts that are written."""

LEAST_INTERVAL_NS = 1_000_000_000
MOST_INTERVAL_NS = 10_000_000_000
"""Time between two writes of the file: a quarter of the time since the first call, within these bounds."""

METRICS_WRITE_SHARE = 100
"""How many times longer the time between two writes is than a write takes, at least."""

WAIT_S = 2.0
"""Time that the last write waits for one in progress."""


class FolderSink:
    """Where a process writes its metrics: one file in a folder, replaced each time.

    Args:
        folder: The folder.
        name: Name of the file.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder) / name

    def write(self, data: bytes) -> None:
        """Replace what was written before. The umask decides who may read it.

        Raises:
            OSError: It cannot be written.
        """
        new = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(new, flags, 0o666), "wb") as file:
            file.write(data)
        new.replace(self._path)


class ModelCalls:
    """The calls of all sessions of one model in this process.

    Args:
        canary: The canary of this process.
        name: Name of the model.
        sha256: SHA-256 of its file.
    """

    is_done = False

    def __init__(self, canary: Canary, name: str, sha256: str) -> None:
        self.name = name
        self.sha256 = sha256
        self._canary = canary
        self.n_tuned = 0
        self.n_own = 0
        self.reason = ""
        self.reset()

    def reset(self) -> None:
        """Forget all calls."""
        self.n_calls = 0
        self.n_failed = 0
        self.total_ns = 0
        self._buckets: dict[int, int] = {}

    def begin(self) -> int:
        """Note that a call begins. Return the time."""
        if not self._canary.first_ns:
            self._canary.begin_calls()
        return time.perf_counter_ns()

    def end(self, start_ns: int, method: str, feed: Any, *, failed: bool = False) -> None:
        """Note that a call has ended.

        Args:
            start_ns: When it began.
            method: Name of the method of InferenceSession.
            feed: Inputs by name.
            failed: Whether it raised an exception.
        """
        end_ns = time.perf_counter_ns()
        canary = self._canary
        duration_ns = min(max(end_ns - start_ns, SHORTEST_NS), LONGEST_NS)
        bucket = int(math.log(duration_ns) * GROWTH_SCALE)
        with canary.lock:
            if failed:
                self.n_failed += 1
            else:
                self.n_calls += 1
                self.total_ns += duration_ns
                self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        if end_ns >= canary.next_write_ns:
            canary.write_soon()

    def describe(self) -> dict[str, Any]:
        """Return what was counted as JSON types. The caller holds the lock."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "n_tuned": self.n_tuned,
            "n_own": self.n_own,
            "reason": self.reason,
            "n_calls": self.n_calls,
            "n_failed": self.n_failed,
            "total_ns": self.total_ns,
            "buckets": {str(bucket): count for bucket, count in sorted(self._buckets.items())},
        }


class Canary:
    """The arm of this process, and its metrics.

    Args:
        plan: `canary` of `ortune.apply.inside.finder.Plan`.

    Attributes:
        arm: `CANARY` or `CONTROL`.
        lock: Guards all counters. A handler of signals may make calls, too.
        first_ns: When the first call began, as `time.perf_counter_ns` counts; 0 before.
        next_write_ns: When the file is written next.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._share = float(plan["share"])
        self._folder: str | None = plan.get("folder")
        self._host = read_host_name()
        self._models: dict[str, ModelCalls] = {}
        self._has_said = False
        self._begin()
        self._decide()
        if self._folder is not None:
            call_before_end(self.write, self._get_pid)
        call_after_fork(self._begin_again)

    def _get_pid(self) -> int:
        return self._pid

    @property
    def reason(self) -> str:
        """Why sessions of this process keep the program's own options; empty if they do not."""
        return CONTROL_REASON if self.arm == CONTROL else ""

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._start_ns = time.time_ns()
        self.lock = threading.RLock()
        self._writing = threading.Lock()
        self.first_ns = 0
        self.next_write_ns = 0
        self._first_cpu_ns = 0
        self._sink: FolderSink | None = None
        if self._folder is not None:
            self._sink = FolderSink(self._folder, f"{name_process(self._host, self._pid, self._start_ns)}.json")

    def _decide(self) -> None:
        self._decided = (self._pid, self._start_ns)
        self.arm = choose_arm(self._host, *self._decided, self._share)

    def _begin_again(self) -> None:
        """Begin in a forked child. Sessions that it inherits have the options of its parent's arm."""
        self._begin()
        for model in self._models.values():
            model.reset()
        if not self._models:
            self._decide()

    def begin_calls(self) -> None:
        """Note that the first call begins."""
        with self.lock:
            if not self.first_ns:
                self._first_cpu_ns = time.process_time_ns()
                self.first_ns = time.perf_counter_ns()
                self.next_write_ns = self.first_ns + LEAST_INTERVAL_NS

    def add_session(self, name: str, sha256: str, *, is_tuned: bool, reason: str) -> ModelCalls | None:
        """Return what counts the calls of a session; None if there are too many models.

        Args:
            name: Name of its model.
            sha256: SHA-256 of the model's file.
            is_tuned: Whether the session has the tuned options.
            reason: Why it does not.
        """
        with self.lock:
            model = self._models.get(sha256)
            if model is None:
                if len(self._models) >= MOST_COUNTED_MODELS:
                    return None
                model = self._models[sha256] = ModelCalls(self, Path(name).name[:LONGEST_METRICS_TEXT], sha256)
            if is_tuned:
                model.n_tuned += 1
            else:
                model.n_own += 1
                if self.arm == CANARY:
                    model.reason = str(reason)[:LONGEST_METRICS_TEXT]
        return model if self._sink is not None else None

    def write_soon(self) -> None:
        """Write in a thread of its own: a slow file system must not delay the program's calls."""
        with self.lock:
            now_ns = time.perf_counter_ns()
            if now_ns < self.next_write_ns:
                return
            age_ns = now_ns - self.first_ns
            self.next_write_ns = now_ns + min(max(age_ns // 4, LEAST_INTERVAL_NS), MOST_INTERVAL_NS)
        with contextlib.suppress(RuntimeError):  # the process is ending, or has too many threads
            threading.Thread(target=self._write_meanwhile, name="ortune-metrics", daemon=True).start()

    def _write_meanwhile(self) -> None:
        if self._writing.acquire(blocking=False):
            start_ns = time.perf_counter_ns()
            try:
                self._write()
            finally:
                self._writing.release()
            end_ns = time.perf_counter_ns()
            self.next_write_ns = max(self.next_write_ns, end_ns + METRICS_WRITE_SHARE * (end_ns - start_ns))

    def write(self) -> None:
        """Write what was counted, as this process may end."""
        try:
            if self._pid == os.getpid() and self._writing.acquire(timeout=WAIT_S):
                try:
                    self._write()
                finally:
                    self._writing.release()
        except Exception as error:  # noqa: BLE001  (metrics must not stop the program)
            self._say(error)

    def _write(self) -> None:
        if self._sink is None or not self.first_ns:
            return  # without calls, there is nothing to compare
        try:
            self._sink.write(json.dumps(self._describe(), ensure_ascii=False).encode(errors="replace") + b"\n")
        except Exception as error:  # noqa: BLE001  (metrics must not stop the program)
            self._say(error)

    def _say(self, error: Exception) -> None:
        if not self._has_said:
            self._has_said = True
            write_stderr(f"ortune: metrics cannot be written ({type(error).__name__}: {error}).\n")

    def _describe(self) -> dict[str, Any]:
        """Return what was counted as JSON types; see `ortune.fleet.canary_metrics.ProcessMetrics`."""
        with self.lock:
            return {
                "format": METRICS_FORMAT,
                "host": self._host,
                "host_class": self._plan.get("host_class", ""),
                "pid": self._pid,
                "start_ns": self._start_ns,
                "arm": self.arm,
                "decided_pid": self._decided[0],
                "decided_ns": self._decided[1],
                "share": self._share,
                "config": self._plan.get("config", ""),
                "onnxruntime": str(getattr(sys.modules.get("onnxruntime"), "__version__", ""))[:LONGEST_METRICS_TEXT],
                "written_ns": time.time_ns(),
                "wall_ns": time.perf_counter_ns() - self.first_ns,
                "cpu_ns": time.process_time_ns() - self._first_cpu_ns,
                "models": [model.describe() for model in self._models.values()],
            }


def name_process(host: str, pid: int, start_ns: int) -> str:
    """Return the name of the file of a process, without its suffix."""
    digest = hashlib.sha256(host.encode(errors="replace")).hexdigest()[:12]
    return f"canary-{digest}-{pid}-{start_ns}"


def choose_arm(host: str, pid: int, start_ns: int, share: float) -> str:
    """Return the arm of a process.

    Args:
        host: Name of its host.
        pid: Its id.
        start_ns: When it began, in ns since 1970.
        share: Share of the processes that are canaries.
    """
    digest = hashlib.sha256(f"{host}\n{pid}\n{start_ns}".encode(errors="replace")).digest()
    return CANARY if int.from_bytes(digest[:8], "big") < share * 2**64 else CONTROL


def read_host_name() -> str:
    """Return the name of this host. In a container, that is the name of the container or the pod."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return name[:LONGEST_METRICS_TEXT]
