"""The files of `ortune fleet deploy`: Kubernetes' schemas accept the manifests, and shellcheck the scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ortune.fleet.deploy.shell import RUN_IN_CONTAINER
from tests.consumers.running import need, program, run
from tests.test_deploy import CASES, GOLDEN

pytestmark = pytest.mark.consumers

MANIFESTS = [case for case in CASES if case.startswith(("job", "daemonset"))]
SCRIPTS = [case for case in CASES if case not in MANIFESTS]


@pytest.mark.parametrize("case", MANIFESTS)
def test_the_schemas_accept_it(case: str) -> None:
    """The schemas of the newest version of Kubernetes, and of the oldest that the file is for."""
    need("kubernetes_validate")
    import kubernetes_validate

    manifest = yaml.safe_load((GOLDEN / f"{case}.txt").read_text())
    for version in (kubernetes_validate.latest_version(), "1.29"):
        kubernetes_validate.validate(manifest, version, strict=True)
    manifest["spec"]["template"]["spec"]["containers"][0]["limits"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.29", strict=True)


def check_script(path: Path, text: str, shell: str) -> str:
    path.write_text(text)
    return run([program("shellcheck"), f"--shell={shell}", "--norc", "--format=gcc", path]).stdout


@pytest.mark.parametrize("case", SCRIPTS)
def test_shellcheck_accepts_it(case: str, tmp_path: Path) -> None:
    text = (GOLDEN / f"{case}.txt").read_text()
    assert check_script(tmp_path / "script", text, "bash") == ""
    assert "SC2086" in check_script(tmp_path / "script", f"{text}echo $code$1\n", "bash")


def test_shellcheck_accepts_the_script_of_containers(tmp_path: Path) -> None:
    assert check_script(tmp_path / "script", RUN_IN_CONTAINER, "sh") == ""
