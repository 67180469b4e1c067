"""Programs do not get the storage of searches, which may hold a password."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortune import UsageError, enable
from ortune.cli.report import open_page
from ortune.secret_variables import OWN_VARIABLES, STORAGE_VARIABLES
from tests.applying import run, write_tuned
from tests.conftest import ROOT, run_ortune

SECRET = "s3cr%2Ft"
VARIABLES = dict.fromkeys(STORAGE_VARIABLES, f"postgresql://ann:{SECRET}@db/tuning")
PRINT = "import os; print(sorted(name for name, value in os.environ.items() if 's3cr' in value))"
PASSWORDS = str(sorted(set(STORAGE_VARIABLES) - set(OWN_VARIABLES)))
"""What programs of the user get: they may need it for their own databases."""


def test_a_program_under_apply(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", PRINT, record=write_tuned(tmp_path), environment=VARIABLES)
    assert done.stdout.strip() == PASSWORDS, done.stderr


def test_a_program_under_inspect(tmp_path: Path) -> None:
    done = run_ortune("inspect", "--", sys.executable, "-c", PRINT, cwd=tmp_path, environment=VARIABLES)
    assert PASSWORDS in done.stdout + done.stderr


def test_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started with the environment of this process."""
    seen: list[set[str]] = []
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("webbrowser.open", lambda address: seen.append({*os.environ} & {*VARIABLES}))
    open_page(tmp_path / "report.html")
    assert seen == [set()]


def test_the_check_of_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    def start(command: Any, *, env: dict[str, str], **_: Any) -> None:
        seen.append({*env} & {*VARIABLES})
        raise OSError("not started")

    monkeypatch.setattr(subprocess, "run", start)
    with pytest.raises(UsageError, match="not started"):
        enable.check_import(tmp_path / "sitecustomize.py")
    assert seen == [set()]


def test_every_process_is_given_its_environment() -> None:
    """Otherwise it inherits that of ortune; see `ortune.secret_variables`."""
    starts = {"Popen", "run", "call", "check_call", "check_output"}
    missing = []
    n_starts = 0
    for path in sorted((ROOT / "ortune").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in starts and getattr(node.func.value, "id", "") == "subprocess":
                n_starts += 1
                if "env" not in {keyword.arg for keyword in node.keywords}:
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert n_starts > 10
    assert not missing
