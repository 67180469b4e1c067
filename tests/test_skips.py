"""Skipped tests, which fail where CI says that they must not be skipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SKIPPED = """
import pytest

@pytest.mark.skipif(True, reason="no device")
def test_without_device():
    pass

def test_skipped_inside():
    pytest.skip("no driver")

@pytest.mark.xfail(strict=True)
def test_known_fault():
    raise RuntimeError

def test_that_runs():
    pass
"""


def run_pytest(path: Path, *options: str) -> str:
    """Run the tests of a file with the hooks of this project, and return the last lines of the output."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-n", "0"]
    done = subprocess.run([*command, *options, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1, 2}, done.stderr
    return done.stdout[done.stdout.index("short test summary") :]


@pytest.mark.long
def test_a_skip_fails_only_if_the_option_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_of_device.py").write_text(SKIPPED)
    (tmp_path / "test_of_package.py").write_text("import pytest\npytest.skip('no package', allow_module_level=True)")
    assert "1 passed, 3 skipped, 1 xfailed" in run_pytest(tmp_path)
    summary = run_pytest(tmp_path, "--no-skips", "--continue-on-collection-errors")
    assert "1 failed, 1 passed, 1 xfailed, 2 errors" in summary
    for reason in ("no device", "no driver", "no package"):
        assert f"--no-skips: Skipped: {reason}" in summary


def test_ci_lets_no_test_of_its_providers_be_skipped() -> None:
    lines = (ROOT / ".ci" / "full").read_text().splitlines()
    for selection in ("tests/test_webgpu.py", "-k openvino", "-k Qnn"):
        (line,) = [line for line in lines if re.search(rf"-m pytest .*{re.escape(selection)}( \|)?$", line)]
        assert " --no-skips " in line
