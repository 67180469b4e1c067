"""Finds allocators that can replace the malloc of the C library through LD_PRELOAD."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

LIBRARIES = {
    "mimalloc": ("libmimalloc",),
    "jemalloc": ("libjemalloc",),
    "tcmalloc": ("libtcmalloc_minimal", "libtcmalloc"),
}
"""Allocators and the names of their libraries, in order of preference."""

LIBRARY_FOLDERS = ("usr/lib/{machine}-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib64", "usr/local/lib")


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
