"""Files for CI servers are valid: JUnit XML, the workflows and the action conform to their schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.consumers.running import consumers, need
from tests.gate_results import make_results

pytestmark = pytest.mark.consumers

SCHEMAS = {
    "docs/ci/github.yml": "vendor.github-workflows",
    "docs/ci/gitlab.yml": "vendor.gitlab-ci",
    "action.yml": "vendor.github-actions",
}


@pytest.mark.parametrize("path", SCHEMAS)
def test_workflows(path: str, tmp_path: Path) -> None:
    need("check_jsonschema")
    command = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[path]]
    done = subprocess.run([*command, str(ROOT / path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Check that the schema rejects an invalid file.
    broken = tmp_path / "broken.yml"
    broken.write_text((ROOT / path).read_text().replace("steps:", "no-steps:").replace("script:", "no-script:"))
    assert subprocess.run([*command, str(broken)], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("inconclusive_fails", [True, False])
def test_junit(inconclusive_fails: bool, tmp_path: Path) -> None:
    """The schema is that of Jenkins' xUnit plugin. The tests of pytest use it too."""
    need("xmlschema")
    import xmlschema

    from ortune.gates.reporters.junit import render_junit

    path = consumers() / "junit-10.xsd"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    schema = xmlschema.XMLSchema(str(path))
    written = tmp_path / "junit.xml"
    written.write_bytes(render_junit(make_results(), inconclusive_fails=inconclusive_fails))
    schema.validate(str(written))
    written.write_bytes(
        written.read_bytes().replace(b"<testcase ", b"<testcse ", 1).replace(b"</testcase>", b"</testcse>", 1)
    )
    assert not schema.is_valid(str(written))
