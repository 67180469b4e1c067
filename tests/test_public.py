"""The public names, and that they work."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import ortune
from ortune.planning.files import write_plan
from ortune.record.files import encode_record
from tests.conftest import TINY_CNN, run_program
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import ONE_THREAD, make_local_record

PUBLIC = """
BackgroundLoadError BenchResult Config Deployment Evidence Export GateResult Goal HostError HostPlan InputsError
InterimResult Limit Load MeasureError ModelError Objective Observation OrtuneError Plan Progress Record RecordError
Speedup Summary Tolerance UsageError Value Verdict Verification Workload __version__ bench create_session
export_config gate inspect_program install plan plan_host read_host_plan read_plan read_record run_options search
search_program session_options verify
"""


def test_public_names_are_frozen() -> None:
    """The README and the documentation promise these names, so a change must be made here too."""
    assert set(ortune.__all__) == set(PUBLIC.split())
    assert {name for name in vars(ortune) if not name.startswith("_")} <= set(PUBLIC.split()) | SUBMODULES


SUBMODULES = {path.stem for path in Path(ortune.__file__).parent.iterdir()} | {"annotations", "Any"}
"""What imports put into the package."""

FUNCTIONS = (
    "search",
    "search_program",
    "bench",
    "verify",
    "gate",
    "inspect_program",
    "create_session",
    "session_options",
    "run_options",
    "install",
    "export_config",
)


def test_functions_stay_functions() -> None:
    """No module has the name of a public function, which would take its place when it is imported."""
    for name in FUNCTIONS:
        assert importlib.util.find_spec(f"ortune.{name}") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, the program and the record that examples use."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "model.onnx").write_bytes(TINY_CNN.read_bytes())
    record = make_local_record(TINY_CNN, ONE_THREAD)
    (folder / "tuned.json").write_bytes(encode_record(record))
    write_plan(make_plan(DEPLOYMENTS["processes"], replicas=1), folder / "plan.json")
    (folder / "app.py").write_text(
        "import numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession('model.onnx')\n"
        "one = session.get_inputs()[0]\n"
        "values = numpy.ones([size if isinstance(size, int) else 1 for size in one.shape], numpy.float32)\n"
        "def answer():\n"
        "    session.run(None, {one.name: values})\n"
        "while True:\n"
        "    answer()\n"
    )
    return folder


@pytest.mark.parametrize("name", (*FUNCTIONS, "read_record"))
def test_examples_run(name: str, folder: Path) -> None:
    """Each in a process of its own, as some change the process. What measures does so on a simulated host."""
    code = (
        "import doctest, ortune, sys\n"
        f"function = ortune.{name}\n"
        "tests = doctest.DocTestFinder(recurse=False).find(function, 'example', globs={}, module=False)\n"
        "assert tests and tests[0].examples, 'there is no example'\n"
        "results = doctest.DocTestRunner().run(tests[0])\n"
        "sys.exit(results.failed)\n"
    )
    done = run_program(code, cwd=folder, simulate=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FUNCTIONS)
def test_documentation_describes_every_parameter(name: str) -> None:
    function = getattr(ortune, name)
    document = inspect.getdoc(function) or ""
    for section in ("Args:", "Raises:", "Example:"):
        assert f"\n{section}\n" in document
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^    {parameter}: \S", document, re.MULTILINE), parameter


@pytest.mark.parametrize("name", ortune.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(ortune, name) is not None


def test_other_names_raise_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        ortune.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_errors_say_what_failed_and_what_to_do() -> None:
    error = ortune.UsageError("It is wrong.", "Do it right.")
    assert isinstance(error, ortune.OrtuneError)
    assert str(error) == "It is wrong.\nDo it right."
