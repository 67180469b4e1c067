"""Virtual environments, and programs that are this Python, for tests."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

HERE = sysconfig.get_path("purelib")

OLDER = ("2.7", "3.6", "3.8", "3.9")
"""Versions of Python that programs may start, and that ortune does not run on."""

VARIABLES = ("ORTUNE_APPLY", "ORTUNE_CONFIG", "PYTHONPATH")
"""Variables that would change what a new environment does."""


class Environment:
    """A virtual environment.

    Args:
        folder: Its folder, which is created.
        packages: Whether it has the packages of this environment, too.

    Attributes:
        python: Its interpreter.
        site_packages: Its folder of packages.
    """

    def __init__(self, folder: Path, *, packages: bool = False) -> None:
        venv.create(folder, with_pip=False, symlinks=os.name != "nt")
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.site_packages = Path(
            self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        )
        if packages:
            # Also what an editable installation of ortune has there.
            (self.site_packages / "packages.pth").write_text(f"import site; site.addsitedir({HERE!r})\n")

    def run(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run its Python, in a folder without modules."""
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return subprocess.run(
            [str(self.python), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.python.parent,
            env={**inherited, **environment},
            timeout=150,
        )

    def need_no_sitecustomize(self) -> None:
        """Skip the test if this Python has a sitecustomize of its own, which it imports instead of that of packages."""
        if self.run("-c", "import sitecustomize").returncode == 0:
            pytest.skip("this Python has a sitecustomize of its own")

    def install(self, *what: object) -> None:
        """Install packages with the pip of this environment."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-input", *what]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def write_command(path: Path, *options: str) -> Path:
    """Write a program that becomes this Python, with options before the arguments that it gets, and return its path.

    The first line of a script cannot name this Python: its path may contain spaces, or be too long.
    """
    path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *options])} "$@"\n')
    path.chmod(0o755)
    return path


def write_script(path: Path, code: str) -> Path:
    """Write a Python program that can be executed, as pip does where the path of Python contains spaces."""
    # A shell reads a command, and Python reads a text that is not used.
    path.write_text(f"#!/bin/sh\n'''exec' {shlex.quote(sys.executable)} -P \"$0\" \"$@\"\n' '''\n{code}")
    path.chmod(0o755)
    return path


def find_python(version: str) -> str:
    """Return the path of an interpreter of a version, such as `3.8`, or skip the test."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = shutil.which(f"python{version}")
    candidates = [*home.glob(f"versions/{version}.*/bin/python"), *([Path(found)] if found else [])]
    for path in candidates:
        # What is on the PATH may be a script that finds no interpreter of this version.
        if subprocess.run([path, "-c", "pass"], capture_output=True, check=False).returncode == 0:
            return str(path)
    pytest.skip(f"there is no Python {version}")


def build(project: Path, folder: Path, *kinds: str) -> None:
    """Build a project into a folder, as pip does, in one process.

    Args:
        project: Its folder.
        folder: Where to.
        kinds: `wheel` and `sdist`, in the order to build them in.
    """
    calls = "; ".join(f"build_{kind}(sys.argv[1])" for kind in kinds)
    command = [sys.executable, "-c", f"import sys; from hatchling.build import *; {calls}", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into a folder, and return its path."""
    build(project, folder, "wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel
