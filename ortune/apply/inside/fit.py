"""Check whether the calls of a session are those that its record was measured with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from ortune.apply.inside.processes import Processes

MOST_CALLS = 1000
"""Number of calls that are checked. Later ones take the short way."""

COUNT_AT = (1, 10, 100, MOST_CALLS)
"""Numbers of calls after which the processes are counted. All of them may not have started before."""

MANY_TIMES = 2
"""How many times as many calls at a time as were measured mean another load."""

LEAST_OTHER_SHARE = 0.1
"""Share of calls with other shapes from which a record does not fit."""


SEARCH_AGAIN = "Search again under this load: ortune search -- COMMAND."


class FitCheck:
    """The first calls of a session with tuned options.

    Args:
        source: The record.
        model: Name of the model.
        measured: What the record was measured with: {"shapes": {input: [shape, ...]}, "clients", "program"}. An input
            that is missing is not checked, and the clients are None if requests arrived at a rate. For the record of a
            program: {"processes", "calls", "is_server"}, with None for what is not checked: the processes that had
            sessions, and the largest number of calls of a session at a time.
        done: Called when all calls were checked.
        processes: The processes that use the record.

    Attributes:
        is_done: Whether all calls were checked.
    """

    def __init__(
        self,
        source: str,
        model: str,
        measured: dict[str, Any],
        done: Callable[[FitCheck], None],
        processes: Processes | None = None,
    ) -> None:
        self.source = source
        self.model = model
        self._done = done
        self._clients = measured.get("clients")
        self._program = measured.get("program") or {}
        self._processes = processes
        self._n_processes = 0
        self._is_last = False
        shapes = measured.get("shapes") or {}
        self._shapes = {name: {tuple(shape) for shape in known} for name, known in shapes.items()}
        self.is_done = False
        self._lock = threading.RLock()
        self._n_calls = 0
        self._n_active = 0
        self._most_active = 0
        self._n_other = 0
        self._others: dict[tuple[str, tuple[int, ...]], int] = {}

    def begin(self) -> int:
        """Note that a call begins."""
        if self._processes is not None:
            self._processes.join()  # a child that was forked calls the sessions of its parent
        with self._lock:
            self._n_active += 1
            self._most_active = max(self._most_active, self._n_active)
        return 0

    def end(self, start_ns: int, method: str, feed: Any, *, failed: bool = False) -> None:
        """Note that a call has ended.

        Args:
            start_ns: What `begin` returned.
            method: Name of the method of InferenceSession.
            feed: Inputs by name; None if they are not known.
            failed: Whether it raised an exception.
        """
        with self._lock:
            self._n_active = max(self._n_active - 1, 0)
            if feed is None or failed or self.is_done:
                return
            self._n_calls += 1
            self.is_done = self._n_calls >= MOST_CALLS
            if self._n_calls in COUNT_AT:
                self._count_processes()
            other = next((candidate for candidate in map(self._read_other, feed.items()) if candidate), None)
            if other:
                self._n_other += 1
                self._others[other] = self._others.get(other, 0) + 1
        if self.is_done:
            self._done(self)

    def _read_other(self, item: tuple[str, Any]) -> tuple[str, tuple[int, ...]] | None:
        """Return an input's name and shape if its record was measured with other shapes."""
        name, value = item
        known = self._shapes.get(name)
        shape = getattr(value, "shape", None)
        if known is None or not isinstance(shape, tuple) or shape in known:
            return None
        return name, shape

    def _count_processes(self) -> None:
        """Count the processes that use the record. The one that started last reports the number."""
        if self._processes is not None and self._program.get("processes"):
            pids = self._processes.list_pids()
            if len(pids) >= self._n_processes:
                self._n_processes = len(pids)
                self._is_last = pids[-1:] == [os.getpid()]

    def explain(self) -> list[str]:
        """Return how the calls differ from those that the record was measured with, each as a sentence."""
        found = []
        if self._n_other and self._n_other >= LEAST_OTHER_SHARE * self._n_calls:
            name, shape = max(self._others, key=lambda key: self._others[key])
            given = show_shape(shape)
            known = ", ".join(sorted(map(show_shape, self._shapes[name]))[:3])
            known += ", ..." if len(self._shapes[name]) > 3 else ""
            advice = f"Search with --shape {name}={given}." if not self._program else SEARCH_AGAIN
            found.append(
                f"{self.source} was measured with {name} of shape {known}, but {self._n_other} of the first "
                f"{self._n_calls} calls of {self.model} have other shapes, most often {given}. "
                f"{advice}"
            )
        if self._clients == 1 and self._most_active > 1:
            found.append(
                f"{self.source} was measured with one client, but up to {self._most_active} calls of {self.model} "
                f"are in progress at a time. Search with --clients {self._most_active}."
            )
        if self._clients and self._clients > 1 and self._most_active == 1 and self.is_done:
            found.append(
                f"{self.source} was measured with {self._clients} clients, but the calls of {self.model} are made one "
                "after another. Search with one client."
            )
        return found + self._explain_program()

    def _explain_program(self) -> list[str]:
        """Return how the processes and calls differ from those that the record of a program was measured with."""
        found = []
        processes, calls = self._program.get("processes"), self._program.get("calls")
        if processes and self._is_last:
            measured = "1 process" if processes == 1 else f"{processes} processes"
            if self._n_processes > processes:
                now = f"{self._n_processes} processes have sessions with its settings at a time"
                found.append(f"{self.source} was measured with {measured}, but {now}. {SEARCH_AGAIN}")
            # Processes of other programs than servers may end before others begin.
            elif self._n_processes < processes and self._program.get("is_server") and self.is_done:
                now = f"only {self._n_processes} of them" if self._n_processes > 1 else "only one process"
                found.append(f"{self.source} was measured with {measured}, but {now} has sessions. {SEARCH_AGAIN}")
        if calls and self._most_active >= MANY_TIMES * calls:
            measured = f"up to {calls} {'call' if calls == 1 else 'calls'} of a session at a time"
            now = f"up to {self._most_active} calls of {self.model} are in progress at a time"
            found.append(f"{self.source} was measured with {measured}, but {now}. {SEARCH_AGAIN}")
        return found


def show_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as the option --shape has it."""
    return "x".join(map(str, shape)) or "scalar"
