"""Finds the files with external data of a model. Their names come from the model or a record, and are not trusted."""

from __future__ import annotations

import errno
from pathlib import Path, PurePosixPath, PureWindowsPath

from ortune.errors import ModelError


def is_inside(name: str) -> bool:
    """Return whether a name is that of a file in a folder or below it: not absolute, and without `..`.

    The rules of all operating systems apply.
    """
    windows = PureWindowsPath(name)
    parts = {*PurePosixPath(name).parts, *windows.parts}
    return bool(name) and "\0" not in name and not windows.drive and not windows.root and ".." not in parts


def follow_links(path: Path) -> Path:
    """Return a path without links. It need not exist.

    Raises:
        OSError: A link leads to itself.
        ValueError: The path contains a null character.
    """
    try:
        return path.resolve(strict=True)
    except RuntimeError as error:  # what Python raises before 3.13 for a link that leads to itself
        raise OSError(errno.ELOOP, str(error)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return path.resolve()


def locate_data_file(folder: Path, name: str) -> Path:
    """Return the path of a file with external data, without links. The file need not exist.

    Everything that reads or copies external data gets the path from here.

    Args:
        folder: The folder of the model.
        name: Path of the file relative to the folder.

    Raises:
        ModelError: The name leads out of the folder: it is absolute, contains `..`, or goes through a link to a file or
            folder elsewhere.
    """
    if not is_inside(name):
        raise _make_error(folder, name, "is not the name of a file in that folder")
    try:
        path = follow_links(folder / name)
    except (OSError, ValueError):
        raise _make_error(folder, name, "cannot be found: it is a link to itself, or not a legal name") from None
    if not path.is_relative_to(folder.resolve()):
        raise _make_error(folder, name, "is a link that leads out of that folder")
    return path


def _make_error(folder: Path, name: str, fault: str) -> ModelError:
    return ModelError(
        f"The model in {folder} names {name!r} as a file with external data, which {fault}.",
        "Save the model with its data next to it: onnx.save_model(model, path, save_as_external_data=True).",
    )
