"""What keeps installations and CI safe: locked dependencies, the files for CI, the audit of dependencies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
FLEET = "fleet"
"""The lock for storages of several hosts, which the action does not use."""

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW = yaml.safe_load((ROOT / "docs" / "ci" / "github.yml").read_text())
GITLAB = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab.yml").read_text())
AUDIT = ROOT / ".ci" / "audit.py"


def read_lock(path: Path) -> dict[str, list[tuple[Requirement, int]]]:
    """Return the entries of a lock file by name, each with its number of hashes."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    entries: dict[str, list[tuple[Requirement, int]]] = {}
    for line in text.splitlines():
        requirement, *hashes = re.split(r" +--hash=", line)
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64} *", digest) for digest in hashes), line
        found = Requirement(requirement)
        entries.setdefault(canonicalize_name(found.name), []).append((found, len(hashes)))
    return entries


def list_extras(path: Path) -> list[str]:
    """Return the requirements of the extras that a lock holds."""
    names = ("cpu", FLEET) if path.stem == FLEET else (path.stem,)
    return [requirement for name in names for requirement in EXTRAS.get(name, ())]


class TestLocks:
    def test_there_is_one_for_each_runtime_of_the_action(self) -> None:
        script = ACTION["runs"]["steps"][0]["run"]
        choices = re.search(r"case .* in\n\s*(.+)\) ;;", script)
        assert choices
        assert sorted(choices[1].split(" | ")) == [path.stem for path in LOCKS if path.stem != FLEET]

    @pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
    def test_it_has_all_dependencies_in_an_exact_version_with_hashes(self, path: Path) -> None:
        """If this fails, run `nox -s lock`."""
        entries = read_lock(path)
        for locked in (version for versions in entries.values() for version in versions):
            requirement, n_hashes = locked
            assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
            assert n_hashes >= 1, requirement
        needed = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"], *list_extras(path)]
        for text in needed:
            wanted = Requirement(text)
            for requirement, _ in entries[canonicalize_name(wanted.name)]:
                (specifier,) = requirement.specifier
                assert wanted.specifier.contains(specifier.version), f"{path.stem}: {requirement} is not {wanted}"

    def test_only_the_extra_has_onnxruntime(self) -> None:
        for path in LOCKS:
            found = [name for name in read_lock(path) if name.startswith("onnxruntime")]
            assert found == [Requirement(extra).name for extra in list_extras(path) if "onnxruntime" in extra]

    def test_the_build_requirements_are_those_of_the_lock(self) -> None:
        assert PROJECT["dependency-groups"]["build"] == PROJECT["build-system"]["requires"]


def test_no_dependency_contains_onnxruntime() -> None:
    assert [dependency for dependency in PROJECT["project"]["dependencies"] if "onnxruntime" in dependency] == []


def commands() -> Iterator[str]:
    """Return all lines of the shell in the files for CI."""
    for step in (*ACTION["runs"]["steps"], *WORKFLOW["jobs"]["gate"]["steps"]):
        yield from step.get("run", "").splitlines()
    for part in ("before_script", "script"):
        yield from GITLAB["performance"][part]


class TestFilesForCI:
    def test_pip_installs_only_by_hash_or_from_a_checkout(self) -> None:
        installs = [line for line in commands() if "pip install" in line]
        assert len(installs) == 4
        for line in installs:
            words = line.split("pip install")[1].split()
            if "--require-hashes" in words:
                assert "/requirements/" in words[words.index("--requirement") + 1]
            else:
                assert {"--no-deps", "--no-build-isolation"} < set(words)
                assert words[-1] in {'"$GITHUB_ACTION_PATH"', "../ortune"}

    def test_actions_are_pinned_and_leave_no_credentials(self) -> None:
        text = (ROOT / "docs" / "ci" / "github.yml").read_text()
        uses = re.findall(r"uses: (\S+)@(\S+)(?: # (v\d+\.\d+\.\d+))?$", text, re.MULTILINE)
        assert len(uses) == text.count("uses:") == 5
        for name, commit, version in uses:
            assert re.fullmatch(r"[0-9a-f]{40}", commit), name
            assert version or name == "OWNER/ortune"
        assert WORKFLOW["permissions"] == {"contents": "read"}
        for step in WORKFLOW["jobs"]["gate"]["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False

    def test_values_of_others_are_not_part_of_scripts(self) -> None:
        assert [line for line in commands() if "${{" in line] == []

    @pytest.mark.parametrize("runtime", ["", "../cpu", "cpu gpu", "$(touch ran)"])
    def test_another_runtime_is_an_error(self, runtime: str, tmp_path: Path) -> None:
        script = ACTION["runs"]["steps"][0]["run"]
        environment = {"RUNTIME": runtime, "RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-e", "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 2
        assert "is not one of cpu, gpu, openvino, none" in done.stdout
        assert list(tmp_path.iterdir()) == []


FINE = {"name": "numpy", "version": "2.4.6", "vulns": []}
BAD = {"name": "rich", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "onnx", "skip_reason": "Dependency not found on PyPI and could not be audited: onnx (1.23.2)"}


class TestAudit:
    """The script is run with a stand-in for pip-audit, because its result depends on the network and the day."""

    def audit(self, folder: Path, answers: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run the script where pip-audit writes these packages, or else this text as an error, for each service."""
        (folder / "pip_audit.py").write_text(
            "import json, sys\n"
            f"answers = json.loads({json.dumps(answers)!r})\n"
            "answer = answers[sys.argv[1].partition('=')[2]]\n"
            "if isinstance(answer, str): sys.exit(answer)\n"
            "print(json.dumps({'dependencies': answer}))\n"
            "sys.exit(any(package.get('vulns') for package in answer))\n"
        )
        return subprocess.run(
            [sys.executable, str(AUDIT), "requirements/cpu.txt"],
            env={"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_nothing_known(self, tmp_path: Path) -> None:
        done = self.audit(tmp_path, {"pypi": [FINE]})
        assert (done.returncode, done.stdout) == (0, "pip-audit: 1 versions audited, 0 not audited, 0 vulnerable\n")

    def test_a_vulnerability(self, tmp_path: Path) -> None:
        done = self.audit(tmp_path, {"pypi": [FINE, BAD, UNKNOWN]})
        assert done.returncode == 1
        assert "rich 1.0 has PYSEC-1, fixed in 1.1" in done.stdout
        assert "NOT AUDITED, unknown to the service: onnx (1.23.2)" in done.stdout

    @pytest.mark.parametrize("first", [[UNKNOWN], "requests.exceptions.ConnectionError: no route"])
    def test_the_other_service_is_asked(self, first: Any, tmp_path: Path) -> None:
        done = self.audit(tmp_path, {"pypi": first, "osv": [BAD]})
        assert done.returncode == 1
        assert "PYSEC-1" in done.stdout

    @pytest.mark.parametrize("first", [[UNKNOWN], "requests.exceptions.ConnectionError: no route"])
    def test_no_service_answers(self, first: Any, tmp_path: Path) -> None:
        """That is not a finding, and it is not a clean result either."""
        done = self.audit(tmp_path, {"pypi": first, "osv": "requests.exceptions.ConnectionError: no route"})
        assert (done.returncode, done.stdout) == (0, "pip-audit: NOT AUDITED. No service answers here: pypi, osv\n")

    def test_another_failure(self, tmp_path: Path) -> None:
        done = self.audit(tmp_path, {"pypi": "requirement numpy==2.0 does not contain a hash"})
        assert done.returncode == 1
        assert "does not contain a hash" in done.stderr
