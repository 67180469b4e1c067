"""What commands print and write on simulated hosts, compared with files in tests/data/goldens, byte for byte.

`pytest tests/test_goldens.py --golden` writes the files. Read their difference before you commit it: it is what users
will see. Of each golden, the commands are run one after the other in a new folder with the models of `MODELS`.
"""

from __future__ import annotations

import gzip
import platform
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY_CNN, TINY_ENCODER, run_ortune
from tests.goldens import GOLDENS, Step
from tests.simulated import Scenario

FOLDER = ROOT / "tests" / "data" / "goldens"

MODELS = {"model.onnx": TINY_CNN, "new.onnx": TINY_CNN, "encoder.onnx": TINY_ENCODER}

MOST_CHARACTERS = 20_000
"""Longest text of a script or a style sheet in a page that is kept. Longer ones are libraries."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulated hosts of commands need fork")


def normalize(text: str, folder: Path) -> str:
    """Return a text without what differs from run to run."""
    text = text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    # Records of programs have the version of this Python, others that of the simulated one.
    text = text.replace(f'"python": "{platform.python_version()}"', f'"python": "{Scenario().runtime.python}"')
    text = re.sub(r"\d+\.\d{6,}(e[-+]?\d+)?", round_number, text)
    text = re.sub(r"(<(script|style)[^>]*>)(.*?)(</\2>)", leave_out_library, text, flags=re.DOTALL)
    text = leave_out_digests(text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def round_number(match: re.Match[str]) -> str:
    """Return a number with eight digits. Sums differ in their last ones: Python 3.12 adds floats more precisely."""
    return repr(float(f"{float(match[0]):.8g}"))


def leave_out_library(match: re.Match[str]) -> str:
    """Return a script or a style sheet without its content if it is a library."""
    is_library = len(match[3]) > MOST_CHARACTERS
    return f"{match[1]}LIBRARY{match[4]}" if is_library else match[0]


def leave_out_digests(text: str) -> str:
    """Return a page without the digests of its scripts, of which one is a library that the tests leave out."""
    return re.sub(r"\bsha256-[\w+/]{43}=", "sha256-DIGEST", text)


def read(path: Path) -> str:
    """Return the content of a file as text."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "(binary)"


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder and their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run(steps: tuple[Step, ...], folder: Path) -> str:
    """Run commands, and return what they print, their exit codes, and the files that they write or change."""
    for name, source in MODELS.items():
        shutil.copyfile(source, folder / name)
    parts = []
    for step in steps:
        before = snapshot(folder)
        for name, text in step.files.items():
            (folder / name).write_text(text)
        done = run_ortune(
            *shlex.split(step.command),
            cwd=folder,
            columns=step.columns,
            simulate=step.scenario,
            environment={
                "ORTUNE_HISTORY": "off",
                "ORTUNE_NODE": "node",
                "HOME": str(folder.parent),
                **step.environment,
            },
        )
        parts.append(f"$ ortune {step.command}\n{done.stdout}")
        if done.stderr:
            parts.append(f"--- stderr\n{done.stderr}")
        parts.append(f"--- exit code {done.returncode}\n")
        for name, content in snapshot(folder).items():
            if before.get(name) != content and name not in step.files and not name.endswith(step.without):
                parts.append(f"--- {name}\n{read(folder / name)}\n")
    return normalize("\n".join(parts), folder)


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    text = run(GOLDENS[name], folder)
    assert "Traceback" not in text
    path = FOLDER / f"{name}.txt"
    if pytestconfig.getoption("golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == leave_out_digests(path.read_text())


def test_every_golden_is_a_test() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(GOLDENS)
