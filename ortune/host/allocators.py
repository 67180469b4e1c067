"""Finds allocators that can replace the malloc of the C library through LD_PRELOAD."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from ortune.replaceable import replaceable

LIBRARIES = {
    "mimalloc": ("libmimalloc",),
    "jemalloc": ("libjemalloc",),
    "tcmalloc": ("libtcmalloc_minimal", "libtcmalloc"),
}
"""Allocators and the names of their libraries, in order of preference."""

SONAMES = {"mimalloc": "libmimalloc.so.2", "jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}
"""File names under which Linux distributions install the allocators, for other hosts."""

LD_PRELOAD = "LD_PRELOAD"

LIBRARY_FOLDERS = ("usr/lib/{machine}-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib64", "usr/local/lib")


@replaceable
def find_allocators(root: Path = Path("/")) -> dict[str, str]:
    """Return the paths of the installed allocators, by name; empty if the system cannot preload libraries."""
    if sys.platform != "linux":
        return {}
    found = {}
    for name, libraries in LIBRARIES.items():
        paths = [
            path
            for library in libraries
            for folder in LIBRARY_FOLDERS
            for path in sorted((root / folder.format(machine=platform.machine())).glob(f"{library}.so*"))
            if path.is_file()
        ]
        if paths:
            found[name] = str(paths[0])
    return found


def preload(allocator: str, inherited: str = "") -> dict[str, str]:
    """Return the environment variable that makes a process use an allocator.

    Args:
        allocator: Name of the allocator, or "" for none.
        inherited: Value of `LD_PRELOAD` in this process. Its libraries are kept.

    Returns:
        `LD_PRELOAD`; nothing if no allocator is wanted, or if it is not installed here.
    """
    path = find_allocators().get(allocator) if allocator else None
    if not path or path in inherited.split():
        return {}
    return {LD_PRELOAD: f"{path} {inherited}".rstrip()}
