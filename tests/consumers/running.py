"""Starts consumers and programs in separate processes, as their users do."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

TIMEOUT_S = 300
"""Ends a consumer that hangs. Beside other tests, a search whose program starts slowly takes minutes."""


def program(name: str) -> str:
    """Return the path of a program that a package installs. Skip the test if it is not installed."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        pytest.skip(f"{name} is not installed")
    return str(path)


def need(package: str) -> Path:
    """Return the folder of a package, without importing it. Skip the test if it is not installed."""
    parts, folder = package.split("."), ""
    for n in range(1, len(parts) + 1):
        spec = find_spec(".".join(parts[:n]))
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"{package} is not installed")
        folder = spec.submodule_search_locations[0]
    return Path(folder)


def consumers() -> Path:
    """Return the folder with the npm packages. Skip the test if there is none."""
    folder = os.environ.get("ORTUNE_CONSUMERS")
    if not folder:
        pytest.skip("ORTUNE_CONSUMERS is not set: see tests/consumers/fetch.py")
    return Path(folder)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a consumer, in which it does not use the network."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", **variables}


def run(command: Sequence[object], *, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with these variables in its environment."""
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
        cwd=cwd,
        env=environment(**variables),
    )


def run_python(code: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python code with the packages of this environment."""
    return run([sys.executable, "-P", "-c", textwrap.dedent(code), *arguments], cwd=cwd)


def apply_command(records: Sequence[Path], log: Path) -> list[str]:
    """Return the words before a command that runs it with tuned options."""
    ortune = [sys.executable, "-P", "-m", "ortune", "apply"]
    return [*ortune, *map(str, records), "--quiet", "--explain-json", str(log), "--"]


def draw_text(path: Path, text: str) -> Path:
    """Write an image of a text."""
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    from PIL import ImageDraw, ImageFont

    image = images.new("RGB", (320, 96), "white")
    ImageDraw.Draw(image).text((16, 24), text, fill="black", font=ImageFont.load_default(size=40))
    image.save(path)
    return path
