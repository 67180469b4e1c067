"""Finds the models in a folder, in a Python package or in an installed distribution, without importing anything."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

SUFFIXES = frozenset({".onnx", ".ort"})

MAX_ENTRIES = 200_000
"""Files and folders that are looked at."""

MAX_DEPTH = 32


class FoundModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model file.

    Attributes:
        path: Its path.
        size_bytes: Its size, with files next to it whose names begin with its own, such as `model.onnx_data`.
    """

    path: Path
    size_bytes: int

    @property
    def is_ort(self) -> bool:
        """Whether its name says that it is in ORT format."""
        return self.path.suffix.lower() == ".ort"


class FoundModels(msgspec.Struct, frozen=True, kw_only=True):
    """The models at one place.

    Attributes:
        models: The models, the largest first.
        n_links: Number of models and folders that are not looked at because they are links that lead out of the place.
        is_complete: Whether everything was looked at.
    """

    models: tuple[FoundModel, ...]
    n_links: int = 0
    is_complete: bool = True


class ModelPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the models of a package may be.

    Attributes:
        kind: What the name stands for: "package", "module" or "distribution".
        folders: Folders to search.
        files: Further files.
    """

    kind: str
    folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()


def find_models(folders: Iterable[Path], files: Iterable[Path] = (), *, most_entries: int = MAX_ENTRIES) -> FoundModels:
    """Return the models in folders, and those among some files.

    Links to files are followed if they lead to a file in the same folder, links to folders never. Folders that cannot
    be read are skipped.

    Args:
        folders: Folders to search.
        files: Further files.
        most_entries: Number of files and folders that are looked at.
    """
    walk = Walk(most_entries)
    for path in files:
        if is_model_name(path):
            walk.add(path, {})
    for folder in folders:
        walk.search(folder)
    models = sorted(walk.found.values(), key=lambda model: (-model.size_bytes, str(model.path)))
    return FoundModels(models=tuple(models), n_links=walk.n_links, is_complete=walk.is_complete)


def is_model_name(path: Path) -> bool:
    """Return whether a file is a model by its name."""
    return path.suffix.lower() in SUFFIXES


class Walk:
    """A search for models in folders.

    Args:
        n_left: Number of files and folders that are looked at.

    Attributes:
        found: The models so far, by device and inode.
        n_links: Number of links that lead out of their folder.
        is_complete: Whether everything was looked at.
    """

    def __init__(self, n_left: int) -> None:
        self.found: dict[tuple[int, int], FoundModel] = {}
        self.n_links = 0
        self.is_complete = True
        self._n_left = n_left

    def search(self, folder: Path) -> None:
        """Add the models in a folder and in those below it."""
        try:
            root = folder.resolve()
        except OSError:
            return
        pending = [(folder, 0)]
        while pending:
            current, depth = pending.pop()
            inner = self._read_folder(current, root)
            if depth < MAX_DEPTH:
                pending += [(folder, depth + 1) for folder in inner]
            elif inner:
                self.is_complete = False

    def _read_folder(self, folder: Path, root: Path) -> list[Path]:
        """Add the models in a folder, and return the folders in it."""
        sizes: dict[str, int] = {}
        models, inner = [], []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if self._n_left <= 0:
                        self.is_complete = False
                        break
                    self._n_left -= 1
                    path = folder / entry.name
                    if entry.is_symlink():
                        models += [path] if self._may_follow(path, root) else []
                    elif entry.is_dir():
                        inner.append(path)
                    elif entry.is_file():
                        sizes[entry.name] = entry.stat().st_size
                        models += [path] if is_model_name(path) else []
        except OSError:  # it may not be read, or it was removed
            return inner
        for path in models:
            self.add(path, sizes)
        return inner

    def _may_follow(self, link: Path, root: Path) -> bool:
        """Return whether a link is a model in the same folder, and count it if it leads out of that."""
        is_model = is_model_name(link)
        if not is_model and not link.is_dir():
            return False
        if Path(os.path.realpath(link)).is_relative_to(root):
            return is_model
        self.n_links += 1
        return False

    def add(self, path: Path, sizes: Mapping[str, int]) -> None:
        """Add a regular file, once if it has several names.

        Args:
            path: Path of the file.
            sizes: Sizes of the files in its folder, by name.
        """
        try:
            status = path.stat()
        except OSError:
            return
        if stat.S_ISREG(status.st_mode):
            data = sum(size for name, size in sizes.items() if name.startswith(path.name) and name != path.name)
            found = FoundModel(path=path, size_bytes=status.st_size + data)
            self.found.setdefault((status.st_dev, status.st_ino), found)


def find_place(name: str) -> ModelPlace | None:
    """Return where the models of an installed Python package or distribution may be; None if there is none.

    The environment is that of the Python that runs ortune. The package is not imported.

    Args:
        name: Name of a package as in `import`, or of a distribution as in `pip install`.
    """
    import importlib.util

    top, *rest = name.split(".")
    if all(part.isidentifier() for part in (top, *rest)):
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            spec = None
        # The names of modules in ortune's own folder of commands, and frozen modules, have no folder.
        if spec is not None and spec.submodule_search_locations is not None:
            folders = tuple(Path(location).joinpath(*rest) for location in spec.submodule_search_locations)
            if folders := tuple(folder for folder in folders if folder.is_dir()):
                return ModelPlace(kind="package", folders=folders)
        elif spec is not None and not rest:
            return _find_distribution(name) or ModelPlace(kind="module")
    return _find_distribution(name)


def _find_distribution(name: str) -> ModelPlace | None:
    import importlib.metadata
    import importlib.util

    try:
        distribution = importlib.metadata.distribution(name)
        listed = distribution.files or ()
        names = (distribution.read_text("top_level.txt") or "").split()
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return None
    files = tuple(Path(str(distribution.locate_file(file))) for file in listed if is_model_name(Path(file.name)))
    folders: list[Path] = []
    # An editable installation lists none of its files.
    for module in names if not files else ():
        place = find_place(module) if module.isidentifier() and module != name else None
        folders += place.folders if place else ()
    return ModelPlace(kind="distribution", folders=tuple(folders), files=files)
