"""The tree of processes that a program starts: list, suspend, resume and kill it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from ortune.worker.cpu import find_children, lists_children

LINUX = sys.platform == "linux"

MAX_SWEEPS = 20
"""How often a tree is listed again, because a process that is not suspended yet may start others."""


def list_descendants(root: int) -> list[int]:
    """Return the ids of all processes below a process, without it.

    Only these processes are read where the kernel lists children, because a host may have thousands of others.
    """
    if not LINUX:
        import psutil

        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(root).children(recursive=True)]
        return []
    return [number for own in _read_tree(root).values() for number in own]


def list_leaves(root: int) -> set[int]:
    """Return the ids of the processes below a process that have no children themselves; nothing on other systems."""
    if not LINUX:
        return set()
    tree = _read_tree(root)
    return {number for number, own in tree.items() if not own and number != root and not _is_zombie(number)}


def _read_tree(root: int) -> dict[int, list[int]]:
    """Return the children of a process and of all processes below it."""
    children = None if lists_children() else find_children()
    tree: dict[int, list[int]] = {}
    pending = [root]
    while pending:
        number = pending.pop()
        tree[number] = list(_read_children(number)) if children is None else children.get(number, [])
        pending += tree[number]
    return tree


def suspend_tree(root: int) -> int:
    """Suspend all processes below a process, and return how many there are."""
    suspended: set[int] = set()
    for _ in range(MAX_SWEEPS):
        fresh = set(list_descendants(root)) - suspended
        if not fresh:
            break
        _signal(fresh, signal.SIGSTOP)
        suspended |= fresh
    return len(suspended)


def resume_tree(root: int) -> None:
    """Resume all processes below a process."""
    _signal(list_descendants(root), signal.SIGCONT)


def terminate_tree(root: int) -> None:
    """Ask all processes below a process to end. Suspended ones are resumed, so that they can."""
    descendants = list_descendants(root)
    _signal(descendants, signal.SIGTERM)
    _signal(descendants, signal.SIGCONT)


def kill_tree(root: int) -> None:
    """Kill all processes below a process, also suspended ones."""
    for _ in range(MAX_SWEEPS):
        alive = [number for number in list_descendants(root) if not _is_zombie(number)]
        if not alive:
            return
        _signal(alive, signal.SIGKILL)


def _signal(numbers: Iterable[int], number: int) -> None:
    for pid in numbers:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, number)


def _read_children(number: int) -> Iterable[int]:
    try:
        for task in Path(f"/proc/{number}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())
    except OSError:  # it has ended
        return


def _is_zombie(number: int) -> bool:
    """Return whether a process has ended, and its parent has not collected its status yet."""
    if not LINUX:
        return False
    try:
        return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in {"Z", "X"}
    except (OSError, IndexError):
        return True
