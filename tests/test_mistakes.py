"""Typical mistakes on the command line: each message names the mistake and the fix."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_record, write

MODEL, OTHER, RECORD, SCRIPT = "cnn.onnx", "other.onnx", "tuned.json", "app.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    for name in (MODEL, OTHER):
        shutil.copy(TINY_CNN, folder / name)
    write(make_record(TINY_CNN, ONE_THREAD), folder / RECORD)
    (folder / SCRIPT).write_text("print('hello')\n")
    (folder / "weights.pt").write_bytes(b"PK\x03\x04")
    (folder / "data.npz").write_bytes(b"PK\x03\x04")
    return folder


MISTAKES = [
    # Swapped arguments.
    (f"search {RECORD}", "is a record, not a model", f"ortune apply {RECORD}"),
    (f"doctor {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"profile {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"space {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"suggest {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"bench {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"bench {MODEL} {OTHER}", "is an ONNX model, not a record", "ortune search"),
    (f"apply {MODEL} {RECORD}", "CONFIG and MODEL are swapped", f"ortune apply {RECORD} {MODEL}"),
    (f"apply {MODEL}", "is a model, and there is no CONFIG", f"ortune apply CONFIG {MODEL}"),
    (f"apply {MODEL} {OTHER}", "are models, and there is no CONFIG", "Pass a record"),
    (f"apply {SCRIPT}", "is a Python script, not a record", "ortune search"),
    # Other files.
    (f"doctor {SCRIPT}", "is a Python script, not an ONNX model", f"ortune inspect -- python {SCRIPT}"),
    ("doctor weights.pt", "is a PyTorch model, not an ONNX model", "torch.onnx.export"),
    ("search data.npz", "is a file of arrays, not an ONNX model", "--inputs data.npz"),
    ("search cnn.onx", "There is no file cnn.onx", "Did you mean cnn.onnx?"),
    ("bench nowhere/model.onnx", "There is no file nowhere/model.onnx", "Pass the path"),
    # A forgotten --, and an interpreter in place of a model.
    (f"search {SCRIPT}", "There is no -- before", f"ortune search -- python {SCRIPT}"),
    (f"search python {SCRIPT}", "There is no -- before python", f"ortune search -- python {SCRIPT}"),
    (f"apply {RECORD} python {SCRIPT}", "python is a command", f"ortune apply {RECORD} -- python"),
    (f"inspect python {SCRIPT}", "There is no -- before python", "ortune inspect -- python"),
    (f"inspect {SCRIPT}", "There is no -- before", f"ortune inspect -- python {SCRIPT}"),
    # Programs.
    ("search -- python nowhere.py", "can't open file", "Run the command without ortune"),
    (f"search -- python {SCRIPT}", "did not import onnxruntime", "ortune inspect -- COMMAND"),
    (f"search -- ./{SCRIPT}", "is not an executable file", f"-- python ./{SCRIPT}"),
    (f"search {MODEL} -- python {SCRIPT}", f"{MODEL} is a model, not a program", "after --, without the model"),
    ("search --", "Missing argument", "{COMMAND}"),
    # Reports.
    (f"report {MODEL}", f"{MODEL} is an ONNX model, not a record", f"ortune search {MODEL} -o tuned.json"),
    (f"report {SCRIPT}", "is a Python script, not a record", "ortune search, ortune merge, ortune bench --json"),
    ("report nowhere.json", "There is no file nowhere.json", "ortune search"),
    (f"report {RECORD} --format pdf", "--format: ortune report has no such option", "ortune report --help"),
    # Plans.
    (f"plan {RECORD}", "is a record, not an ONNX model", "Pass the model"),
    (f"plan {SCRIPT}", "is a Python script, not an ONNX model", f"ortune inspect -- python {SCRIPT}"),
    (f"plan {MODEL} --slo 50ms", "--slo 50ms: is not a limit", "Write 'p99<20ms'"),
    (f"plan {MODEL} --rate fast", "--rate fast: is not a rate of requests", "Write 50/s"),
    (f"plan {MODEL}=10/s", "is a single model", f"ortune plan {MODEL} --rate 10/s"),
    # Bundles.
    (f"merge {MODEL} {RECORD} -o bundle.json", f"{MODEL} is an ONNX model, not a record", "ortune search"),
    (f"merge {RECORD} nowhere.json -o bundle.json", "There is no file nowhere.json", "ortune search MODEL -o FILE"),
    (f"merge {RECORD}", "Missing option", "--output"),
    # Gates.
    (f"gate {MODEL}", "a gate has two sides", "Pass BASE and HEAD"),
    (f"gate nowhere.onnx {MODEL}", "there is no file nowhere.onnx", "Pass the model"),
    (f"gate {MODEL} {OTHER} --max-slowdown 3", "a share of 1 or more needs a unit", "Write 3% for 3 percent"),
    (f"gate {MODEL} {OTHER} --config x.toml", "--config: ortune gate has no such option", "ortune fleet compare"),
    # Commands.
    (f"searchx {MODEL}", "searchx: there is no such command", f"ortune search {MODEL}"),
    (f"tune {MODEL}", "tune: there is no such command", f"ortune search {MODEL}"),
    (f"benchmark {MODEL}", "benchmark: there is no such command", f"ortune bench {MODEL}"),
    (MODEL, "there is no such command", f"ortune search {MODEL}"),
    ("xyz", "xyz: there is no such command", "The commands are search"),
    # Options.
    (f"search {MODEL} --budgt 9s", "--budgt: ortune search has no such option", "Did you mean --budget?"),
    (f"search {MODEL} --threads 2", "--threads: ortune search has no such option", "--tune intra_op_num_threads"),
    (f"search {MODEL} --batch-size 8", "--batch-size: ", "Write --batch 1"),
    (f"search {MODEL} --timeout=60", "--timeout: ", "Write --budget 60s"),
    (f"search --model {MODEL}", "--model: ", "MODEL is an argument"),
    ("search --no-history -- python app.py", "--no-history: ortune search has this option for models only", "Leave it"),
    (f"doctor {MODEL} --budget 9s", "--budget: ortune doctor has no such option", "It is an option of ortune search"),
    (f"search {MODEL} --device gpu", "--device: ", "Write --provider cuda"),
    # Values.
    (f"search {MODEL} --provider gpu", "gpu: there is no such execution provider", "Did you mean cuda or tensorrt?"),
    (f"search {MODEL} --provider cudaa", "there is no such execution provider", "Did you mean cuda?"),
    (f"apply {RECORD} --to k8s", "k8s: there is no such target", "Did you mean kubernetes?"),
    (f"apply {RECORD} --to pythonx", "pythonx: there is no such target", "Did you mean python?"),
    (f"search {MODEL} --tune intra_threads=1", "intra_threads: there is no such knob", "intra_op_num_threads"),
    (f"search {MODEL} --objective p9", "p9: is not a figure", "Choose one of p50"),
    (f"search {MODEL} --limit p99=20ms", "is not a limit", "Write 'p99<20ms'"),
    (f"search {MODEL} --shape 1x3x32x32", "is not an input and a shape", "Write --shape"),
    (f"search {MODEL} --budget 5minutes", "is not a duration", "such as 90s"),
    (f"search {MODEL} --dim batch", "is not a name and a size", "Write --dim batch=4"),
]


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40


@pytest.mark.parametrize(("arguments", "mistake", "fix"), MISTAKES)
def test_a_mistake_is_named_with_its_fix(folder: Path, arguments: str, mistake: str, fix: str) -> None:
    done = run_ortune(*arguments.split(), cwd=folder, columns=300)
    assert done.returncode == 2
    assert mistake in done.stderr
    assert fix in done.stderr
    assert "Traceback" not in done.stderr
