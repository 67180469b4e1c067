"""`python -m ortune.enable`: apply the records that ORTUNE_CONFIG names to every program of a Python environment.

It writes `sitecustomize.py`, which Python imports when it starts, into the environment of the Python that runs it.
`--remove` removes the file. Without the file, nothing of ortune runs when Python starts.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from ortune.apply.environment import CONFIG_VARIABLE
from ortune.apply.inside.finder import PLAN_VARIABLE, STATE
from ortune.errors import ExitCode, OrtuneError, UsageError
from ortune.interpreter import PYTHON
from ortune.naming import COMMAND, PACKAGE
from ortune.record.files import write_atomically
from ortune.secret_variables import inherit_environment

FILE_HEAD = "# Written by ortune; SHA-256 of the lines below: "
"""Beginning of the first line. If the digest is not that of the lines below, someone else changed the file."""

LINES = f"""\
import os
import sys

if os.environ.get("{CONFIG_VARIABLE}") and not sys.flags.isolated:
    try:
        from {PACKAGE}.apply.environment import start

        start()
    except Exception as error:
        import contextlib

        with contextlib.suppress(Exception):
            sys.stderr.write("ortune: {CONFIG_VARIABLE} has no effect: " + str(error) + "\\n")
"""
"""What applies the records. An error must not stop the program, even if stderr is closed."""

BODY = f'''"""Applies the records that {CONFIG_VARIABLE} names. To remove it: `python -m {PACKAGE}.enable --remove`."""

{LINES}'''

CHECK = f"""
import json, sys
print()
print(json.dumps([getattr(sys.modules.get("sitecustomize"), "__file__", None), hasattr(sys, "{STATE}")]))
"""
"""Prints which `sitecustomize` Python imported, and whether it activated records."""

PYTHON_CHECK_TIMEOUT_S = 60.0


class ForeignFileError(UsageError):
    """There is a file that ortune did not write. The user can add `LINES` to it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}.enable",
        description=f"Apply the records that the variable {CONFIG_VARIABLE} names to every program of this Python "
        "environment. This writes sitecustomize.py, which Python imports when it starts.",
    )
    parser.add_argument("--remove", action="store_true", help="remove the file")
    request = parser.parse_args(arguments)
    path = find_path()
    try:
        if request.remove:
            print(f"Removed {path}." if remove(path) else f"There is no {path}.")  # noqa: T201
        else:
            enable(path)
            print(  # noqa: T201
                f"Written: {path}. Programs of this environment use the records that {CONFIG_VARIABLE} names."
            )
    except OrtuneError as error:
        message, hint = error.render()
        print(f"error: {message}", *([hint] if hint else []), sep="\n", file=sys.stderr)  # noqa: T201
        if isinstance(error, ForeignFileError):
            print(f"\n{LINES}", end="", file=sys.stderr)  # noqa: T201
        return ExitCode.ERROR
    return ExitCode.DONE


def find_path() -> Path:
    """Return where the file is, or would be."""
    return Path(sysconfig.get_path("purelib")) / "sitecustomize.py"


def enable(path: Path) -> None:
    """Write the file, and check in a child process that Python imports it. If it does not, the file is removed.

    Args:
        path: Path of the file, in the environment's site-packages.

    Raises:
        UsageError: This Python belongs to the operating system, the file exists and is not ortune's, it cannot be
            written, or Python does not import it.
    """
    check_environment()
    if os.path.lexists(path) and not is_own(path):
        raise ForeignFileError(
            f"{path} exists, and was not written by ortune, or was changed.", "Add these lines to it:"
        )
    try:
        write_atomically(path, make_text().encode())
    except UsageError as error:
        raise UsageError(error.message, f"Run this as the owner of the environment. {without_file()}") from None
    try:
        check_import(path)
    except BaseException:
        remove(path)
        raise


def remove(path: Path) -> bool:
    """Remove the file. Return whether there was one.

    Raises:
        UsageError: ortune did not write it, or it cannot be removed.
    """
    if not os.path.lexists(path):
        return False
    if not is_own(path):
        raise UsageError(
            f"{path} was not written by ortune, or was changed.", f"Remove the lines for {CONFIG_VARIABLE} by hand."
        )
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(
            f"Cannot remove {path}: {error.strerror}.", "Run this as the owner of the environment."
        ) from None
    with contextlib.suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(os.fspath(path))).unlink()
    return True


def make_text() -> str:
    """Return the content of the file."""
    return f"{FILE_HEAD}{_digest(BODY)}\n{BODY}"


def is_own(path: Path) -> bool:
    """Return whether this or another version of ortune wrote a file, and nobody changed it."""
    try:
        first, _, body = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return False
    return first == FILE_HEAD + _digest(body)


def check_environment() -> None:
    """Check that packages may be installed into this environment (PEP 668).

    Raises:
        UsageError: They may not.
    """
    marker = Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED"
    if sys.prefix == sys.base_prefix and marker.exists():
        raise UsageError(
            f"{sys.executable} belongs to the operating system, which manages its packages ({marker}).",
            f"Create a virtual environment. {without_file()}",
        )


def check_import(path: Path) -> None:
    """Check in a child process that Python imports the file when it starts, and that it applies records.

    Raises:
        UsageError: It does not.
    """
    environment = inherit_environment()
    environment.pop(PLAN_VARIABLE, None)
    environment[CONFIG_VARIABLE] = os.fspath(path)  # read when a program imports onnxruntime, which this one does not
    try:
        child = subprocess.run(
            [*PYTHON, "-c", CHECK],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PYTHON_CHECK_TIMEOUT_S,
            check=True,
        )
        found, is_active = json.loads(child.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise UsageError(f"Cannot start {sys.executable} to check {path}: {error}.", without_file()) from None
    if found is None:
        raise UsageError(f"Python does not import {path} when it starts.", without_file())
    if not _is_same(Path(found), path):
        raise UsageError(
            f"Python imports {found} instead of {path}: only the first sitecustomize of its path counts.",
            without_file(),
        )
    if not is_active:
        fault = child.stderr.strip().rpartition("\n")[2] or f"{PACKAGE} is not found"
        raise UsageError(
            f"{path} has no effect when Python starts ({fault}).",
            f"Install {PACKAGE} into this environment ({sys.prefix}).",
        )


def without_file() -> str:
    """Return how to apply records without the file."""
    return f"Without the file: start the program with `{COMMAND} CONFIG -- PROGRAM`, or call {PACKAGE}.install() in it."


def _is_same(found: Path, path: Path) -> bool:
    try:
        return found.samefile(path)
    except OSError:
        return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
