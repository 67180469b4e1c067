"""The rooms of the house and which way the imports go."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "ortune"

VALUES = {"errors", "host", "model", "knobs", "workload", "measure"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "interrupts": set(),
    "host": {"errors"},
    "model": {"errors"},
    "knobs": {"errors", "host", "model"},
    "workload": {"errors", "model"},
    "measure": VALUES - {"measure"} | {"interrupts"},
    "trials": {"errors", "knobs", "workload", "measure"},
    "record": VALUES | {"trials"},
    "bundle": VALUES | {"trials", "record"},
    "history": VALUES,
    "tune": VALUES | {"trials", "record", "history"},
    "bench": VALUES | {"trials", "record", "tune"},
    "apply": VALUES | {"record", "bundle"},
    "verify": VALUES | {"trials", "record", "tune", "bench", "apply"},
    "export": VALUES | {"record"},
    "gate": VALUES | {"trials", "record", "bundle", "tune", "apply", "verify"},
    "report": {"errors", "gate"},
    "doctor": VALUES,
    "profile": VALUES | {"record"},
    "console": VALUES
    | {"trials", "record", "bundle", "tune", "bench", "apply", "verify", "export", "doctor", "profile"}
    | {"gate", "report"},
    "launch": {"errors", "record", "bundle", "apply"},
    "cli": VALUES
    | {"interrupts", "trials", "record", "bundle", "history", "tune", "bench", "apply", "verify", "export"}
    | {"gate", "report", "doctor", "profile", "console"},
    "__main__": {"errors", "interrupts", "launch", "cli"},
}
"""Each room, and the rooms that it may import from: those before it."""

HEAVY = {
    "onnxruntime": {"measure", "apply"},
    "optuna": {"trials"},
    "onnx": {"model", "workload", "export"},
    "rich": {"console", "cli"},
    "typer": {"cli"},
}
"""Libraries that only some rooms may import."""


def room_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            if node.module == "ortune":
                found.update(f"ortune.{alias.name}" for alias in node.names)
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    for name in imports_of(path):
        if name.startswith("ortune."):
            other = name.split(".")[1]
            assert other == room or other in ALLOWED[room] | {"__version__"}, f"{room} must not import {name}"
        top = name.split(".")[0]
        if top in HEAVY:
            typed_only = "TYPE_CHECKING" in path.read_text() and room == "apply"
            assert room in HEAVY[top] or typed_only, f"{room} must not import {name}"


def test_every_room_is_listed() -> None:
    assert {room_of(path) for path in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("statement", ["import ortune", "import ortune.cli"])
def test_importing_is_light(statement: str) -> None:
    code = (
        f"{statement}; import sys; "
        "print([name for name in ('onnxruntime', 'optuna', 'onnx', 'numpy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_light() -> None:
    code = (
        "import sys; from ortune.cli import app\n"
        "try: app(['search', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('onnxruntime', 'optuna', 'onnx', 'numpy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
