"""Finds the installed onnxruntime by the files of its packages, without importing it.

Several packages contain onnxruntime: `onnxruntime`, `onnxruntime-gpu`, `onnxruntime-openvino` and others. All of them
install the same files, so two of them in one environment overwrite each other. Plugins and tools have similar names,
and a name may have been both: `onnxruntime-qnn` contained onnxruntime up to 1.24, and is a plugin since 2.0. Therefore,
the files of a package decide, not its name.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from importlib.metadata import Distribution
from pathlib import Path

import msgspec

from ortune.errors import HostError
from ortune.naming import RUNTIME_HINT
from ortune.replaceable import replaceable

RUNTIME_MODULE = "onnxruntime"

INSTALL_HINT = f"Install one package of it: {RUNTIME_HINT}"


class RuntimePackage(msgspec.Struct, frozen=True):
    """An installed package that contains onnxruntime: its name, as `onnxruntime-gpu`, and its version."""

    name: str
    version: str


@replaceable
def find_runtime_packages() -> tuple[RuntimePackage, ...]:
    """Return the packages that own the onnxruntime that this Python imports, sorted by name.

    There is more than one if they have overwritten each other, and none for a build without metadata. If nothing can be
    imported, the result is the packages whose files are missing.
    """
    folder = _find_folder()
    paths = [str(folder)] if folder else sys.path
    return _find_packages(tuple((path, _changed_ns(path)) for path in paths))


def find_installed_version() -> str:
    """Return the version of the installed onnxruntime from its metadata, without importing it.

    It is "" if there is none, or if packages of several versions have overwritten each other.
    """
    versions = {package.version for package in find_runtime_packages()}
    return versions.pop() if len(versions) == 1 else ""


def name_package() -> str:
    """Return the name under which pip upgrades the installed onnxruntime; `onnxruntime` if it is not known."""
    packages = find_runtime_packages()
    return packages[0].name if len(packages) == 1 else RUNTIME_MODULE


def is_installed() -> bool:
    """Return whether this Python finds the package onnxruntime. It may still fail to import it."""
    spec = importlib.util.find_spec(RUNTIME_MODULE)
    return spec is not None and spec.origin is not None


def require_runtime() -> None:
    """Check that this Python can find onnxruntime. This takes at most a millisecond or two.

    Raises:
        HostError: It cannot; the hint names the packages to choose from.
    """
    if is_installed():
        return
    packages = find_runtime_packages()
    if not packages:
        raise HostError("onnxruntime is not installed.", INSTALL_HINT)
    name = packages[0].name
    raise HostError(
        f"Files of {name} are missing, probably because another package with the same files was uninstalled.",
        f"Install it again: pip install --force-reinstall --no-deps {name}",
    )


def _find_folder() -> Path | None:
    """Return the folder that contains the package onnxruntime, or what is left of it; None if there is nothing."""
    spec = importlib.util.find_spec(RUNTIME_MODULE)
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))).parent if places else None


def _changed_ns(path: str) -> int:
    """Return when an entry of a folder was last added or removed; 0 if there is no such folder."""
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


@functools.lru_cache(maxsize=4)
def _find_packages(folders: tuple[tuple[str, int], ...]) -> tuple[RuntimePackage, ...]:
    """Return the packages in these folders.

    Reading the lists of files of all packages takes up to 0.1 s, and each session asks for them.

    Args:
        folders: Their paths, and when each was last changed, so that a folder is read again after a change.
    """
    installed = importlib.metadata.distributions(path=[path for path, _ in folders])
    versions = {_normalize(package.name): package.version for package in installed if _has_runtime(package)}
    return tuple(RuntimePackage(name, version) for name, version in sorted(versions.items()))


def _has_runtime(distribution: Distribution) -> bool:
    """Return whether a distribution contains the package onnxruntime.

    Systems such as Debian remove the list of files. Then the list of top-level packages decides.
    """
    if not (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")):
        return False  # what an interrupted installation left
    files = distribution.read_text("RECORD")
    if files is not None:
        return f"\n{RUNTIME_MODULE}/__init__.py," in f"\n{files}"
    return RUNTIME_MODULE in (distribution.read_text("top_level.txt") or "").split()


def _normalize(name: str) -> str:
    return name.lower().replace("_", "-")
