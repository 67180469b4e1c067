"""Finds allocators that can take the place of the C library's malloc by being preloaded."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

NAMES = {"mimalloc": ("libmimalloc",), "jemalloc": ("libjemalloc",), "tcmalloc": ("libtcmalloc_minimal", "libtcmalloc")}
"""Allocators, and the names of their libraries: of several, the first that is there."""

FOLDERS = ("usr/lib/{machine}-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib64", "usr/local/lib")


def find_allocators(root: Path = Path("/")) -> dict[str, str]:
    """Return the paths of the allocators that are installed, by name; empty where none can be preloaded."""
    if sys.platform != "linux":
        return {}
    found = {}
    for name, libraries in NAMES.items():
        paths = [
            path
            for library in libraries
            for folder in FOLDERS
            for path in sorted((root / folder.format(machine=platform.machine())).glob(f"{library}.so*"))
            if path.is_file()
        ]
        if paths:
            found[name] = str(paths[0])
    return found
