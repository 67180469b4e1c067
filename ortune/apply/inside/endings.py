"""Call a function before this process ends, also where it ends without `atexit`, and in children that it forks.

SIGKILL cannot be noticed.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
from collections.abc import Callable
from typing import Any


def call_after_fork(function: Callable[[], None]) -> None:
    """Call a function in each child that is forked, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def call_before_end(function: Callable[[], None], get_pid: Callable[[], int]) -> None:
    """Call a function before this process ends. It may be called more than once, and must not raise an exception.

    Args:
        function: The function.
        get_pid: Returns the id of the process whose end matters. A forked child that has not begun its own has another.
    """
    atexit.register(function)
    # Children of multiprocessing end by _exit, and workers of uvicorn by a signal that they send to themselves.
    for module, name in ((os, "_exit"), (os, "abort"), (signal, "raise_signal")):
        _call_first(module, name, function, get_pid)
    _call_first(os, "kill", function, get_pid, to_own=True)


def _call_first(
    module: Any, name: str, function: Callable[[], None], get_pid: Callable[[], int], *, to_own: bool = False
) -> None:
    """Call a function before another one that may end this process.

    Args:
        module: Module of the other function.
        name: Its name.
        function: What is called first.
        get_pid: See `call_before_end`.
        to_own: Whether only calls whose first argument is the id of this process may end it.
    """
    original = getattr(module, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if get_pid() == os.getpid() and (not to_own or args[:1] == (get_pid(),)):
            function()
        return original(*args, **kwargs)

    setattr(module, name, call)
