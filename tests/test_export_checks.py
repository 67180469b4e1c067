"""Each target has a check by its consumer, or against names from the consumer's source; docs/apply.md lists them.

A new target needs an entry in `CHECKS` and a row in the table of docs/apply.md.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from ortune.export import TARGETS
from tests.conftest import ROOT

Kind = Literal["run", "compiled", "parsed", "compared"]


class Check(NamedTuple):
    """How the output of a target is checked.

    Attributes:
        kind: "run": the consumer ran or loaded it, and had the settings. "compiled": a compiler accepted it with the
            API of the consumer. "parsed": the parser or the schema of the consumer accepted it. "compared": each name
            in it is in a table of names from the source of the consumer, which is named.
        places: Where the check is: a file and a name in it, which is a test, a class of tests, or what tests are
            parametrized by.
    """

    kind: Kind
    places: tuple[str, ...]


TARGETS_PY, PLAN_TARGETS_PY = "tests/consumers/test_targets.py", "tests/consumers/test_plan_targets.py"

BROWSER_PY = "tests/consumers/test_browser_targets.py"

CHECKS = {
    "python": Check("run", ("tests/test_export.py::READERS", "tests/test_export.py::test_read_back")),
    "cpp": Check("run", (f"{TARGETS_PY}::TestCpp", "tests/test_export_providers.py::TestCpp")),
    "csharp": Check("compared", (f"{TARGETS_PY}::TestCSharp", "tests/test_export_providers.py::TestCSharp")),
    "aspose": Check("compared", ("tests/test_export.py::NAMES", "tests/test_export.py::TestCode")),
    "java": Check("compiled", (f"{TARGETS_PY}::TestJava",)),
    "kotlin": Check("compiled", (f"{TARGETS_PY}::TestKotlin",)),
    "swift": Check("compared", ("tests/test_export.py::NAMES", "tests/test_export.py::TestCode")),
    "javascript": Check("run", (f"{TARGETS_PY}::TestJavaScript",)),
    "onnxruntime-web": Check("run", (f"{BROWSER_PY}::TestOnnxruntimeWeb",)),
    "transformers-js": Check("run", (f"{TARGETS_PY}::TestTransformersJs", f"{BROWSER_PY}::TestTransformersJs")),
    "go": Check("run", ("tests/consumers/test_go.py::test_the_live_session_has_it",)),
    "rust": Check("compared", ("tests/test_export_providers.py::TestRust", "tests/test_export.py::NAMES")),
    "yobx": Check("compared", ("tests/test_export.py::TestYobx",)),
    "optimum": Check("run", (f"{TARGETS_PY}::TestOptimum",)),
    "sentence-transformers": Check("run", (f"{TARGETS_PY}::TestSentenceTransformers",)),
    "triton": Check("parsed", (f"{TARGETS_PY}::TestTriton", "tests/test_export_providers.py::TestTriton")),
    "genai": Check("run", (f"{TARGETS_PY}::TestGenai", "tests/test_export_providers.py::TestGenai")),
    "sherpa-onnx": Check("run", (f"{TARGETS_PY}::TestSherpaOnnx",)),
    "rapidocr": Check("run", (f"{TARGETS_PY}::TestRapidOCR", "tests/test_export_providers.py::TestRapidOCR")),
    "fastembed": Check("run", (f"{TARGETS_PY}::TestFastembed",)),
    "vespa": Check("compared", (f"{TARGETS_PY}::TestVespa",)),
    "djl": Check("compared", ("tests/test_export.py::DJL_OPTIONS", "tests/test_export.py::TestDjl")),
    "environment": Check("run", ("tests/test_export.py::READERS", "tests/test_export.py::test_read_back")),
    "gunicorn": Check("run", (f"{PLAN_TARGETS_PY}::TestGunicorn",)),
    "uvicorn": Check("run", (f"{PLAN_TARGETS_PY}::TestUvicorn",)),
    "ray-serve": Check(
        "run", ("tests/consumers/test_ray.py::test_it_serves_http", "tests/consumers/test_ray.py::write")
    ),
    "bentoml": Check("run", ("tests/consumers/test_bentoml.py::test_the_service_has_the_deployment",)),
    "kubernetes": Check("parsed", (f"{PLAN_TARGETS_PY}::TestKubernetes",)),
    "compose": Check("parsed", (f"{PLAN_TARGETS_PY}::TestCompose",)),
    "systemd": Check("parsed", (f"{PLAN_TARGETS_PY}::TestSystemd",)),
    "embedded": Check("run", ("tests/test_export.py::TestFiles",)),
    "ort": Check("run", ("tests/test_export.py::TestFiles",)),
}


@functools.cache
def read_places(path: str) -> dict[str, str]:
    """Return the source of each test, class and constant of a file."""
    text = (ROOT / path).read_text()
    found = {}
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        for target in targets:
            name = getattr(target, "id", None) or getattr(target, "name", None)
            if name:
                found[name] = ast.get_source_segment(text, node) or ""
    return found


def read_table() -> dict[str, tuple[str, str]]:
    """Return output and check of each target in the table of docs/apply.md."""
    text = (ROOT / "docs" / "apply.md").read_text().split("## Exports")[1]
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (output, check) for name, output, check in rows}


def test_each_target_has_a_check() -> None:
    assert set(CHECKS) == set(TARGETS), "add the check of a new target to CHECKS"


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_exists_and_is_about_the_target(name: str) -> None:
    sources = []
    for place in CHECKS[name].places:
        path, _, what = place.partition("::")
        assert what in read_places(path), f"{place} does not exist"
        sources.append(read_places(path)[what])
    assert any(re.match(r"(class Test|(async )?def test_)", source) for source in sources), "there is no test"
    assert any(f'"{name}"' in source for source in sources), f"none of the places has {name!r}"


@pytest.mark.parametrize("name", [name for name, check in CHECKS.items() if check.kind == "compared"])
def test_names_that_are_compared_have_a_source(name: str) -> None:
    """A table of names that nobody can look up is worth nothing."""
    module = importlib.import_module(TARGETS[name].write.__module__)
    assert re.search(r"^Source: \S", module.__doc__ or "", re.MULTILINE), module.__name__


def test_the_table_of_the_documentation_has_each_target() -> None:
    assert set(read_table()) == set(TARGETS), "add a row for a new target to the table of docs/apply.md"


@pytest.mark.parametrize("name", CHECKS)
def test_the_table_states_the_check(name: str) -> None:
    assert re.match(rf"{CHECKS[name].kind}\b", read_table()[name][1])


def test_consumers_are_installed_by_the_session() -> None:
    """A test whose package is missing is skipped, so the packages of `nox -s consumers` are those that tests need."""
    wanted = re.compile(r'\bneed\("([\w.]+)"\)')
    needed = {
        found.split(".")[0]
        for path in sorted((ROOT / "tests" / "consumers").glob("test_*.py"))
        for found in wanted.findall(path.read_text())
    }
    files = Path(ROOT / "tests" / "consumers").glob("requirements*.txt")
    listed = {
        re.split(r"[\[=;]", line)[0].replace("-", "_")
        for path in files
        for line in path.read_text().splitlines()
        if line and not line.startswith("#")
    }
    other_names = {"optimum": "optimum_onnx", "grpc": "tritonclient", "vespa": "pyvespa"}
    assert {other_names.get(name, name) for name in needed} <= listed
