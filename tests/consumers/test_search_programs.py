"""Unmodified programs from PyPI under `ortune inspect` and `ortune search ... -- COMMAND`.

What is inspected is right, a search ends with a verdict, and a program prints the same with the settings that it found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ortune.record.files import read_records
from tests.conftest import TINY_CNN
from tests.consumers.running import draw_text, need, program, run

pytestmark = pytest.mark.consumers

ORTUNE = (sys.executable, "-P", "-m", "ortune")

READ_PAGE = """
import sys
from rapidocr_onnxruntime import RapidOCR

def read(engine, path):
    return [line[1] for line in engine(path)[0] or []]

engine = RapidOCR()
for _ in range(int(sys.argv[1])):
    lines = read(engine, sys.argv[2])
print(lines)
"""

NAME_TYPE = """
import sys
from magika import Magika

def identify(magika, data):
    return magika.identify_bytes(data).output.label

magika = Magika()
data = b"#include <stdio.h>\\nint main(void) { return 0; }\\n" * 20
for _ in range(int(sys.argv[1])):
    label = identify(magika, data)
print(label)
"""


def inspect(command: list[str], folder: Path) -> dict[str, Any]:
    done = run([*ORTUNE, "inspect", "-q", "-o", folder / "seen.json", "--", *command])
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return {model["name"]: model for model in seen["models"]}


def search(options: list[str], command: list[str], path: Path, **variables: str) -> None:
    """Search the settings of a program in a short time. What it finds depends on the host."""
    words = [*ORTUNE, "search", *options, "--budget", "25s", "-q", "-o", path, "--", *command]
    done = run(words, cwd=None, **variables)
    assert done.returncode in {0, 3}, done.stderr


def check_same_output(command: list[str], path: Path) -> None:
    plain, tuned = run(command), run([*ORTUNE, "apply", path, "--quiet", "--", *command])
    assert (plain.returncode, tuned.returncode) == (0, 0), plain.stderr + tuned.stderr
    assert tuned.stdout == plain.stdout


@pytest.mark.long
def test_ocr_with_three_models(tmp_path: Path) -> None:
    models = {path.name for path in (need("rapidocr_onnxruntime") / "models").glob("*.onnx")}
    (tmp_path / "app.py").write_text(READ_PAGE)
    image = draw_text(tmp_path / "image.png", "HELLO")
    command = [sys.executable, str(tmp_path / "app.py"), "2", str(image)]
    seen = inspect(command, tmp_path)
    assert set(seen) == models
    for model in seen.values():
        assert (model["n_sessions"], model["n_calls"], model["package"]) == (1, 2, "rapidocr_onnxruntime")
        assert model["options"][0]["enable_cpu_mem_arena"] is False
    path = tmp_path / "tuned.json"
    search(["--call", "__main__:read"], [*command[:2], "500", *command[3:]], path)
    records = read_records(path)
    assert {Path(record.model.path).name for record in records} == models
    assert {record.base.session_options["enable_cpu_mem_arena"] for record in records} == {False}
    check_same_output(command, path)


@pytest.mark.long
def test_a_detector_of_file_types(tmp_path: Path) -> None:
    need("magika")
    (tmp_path / "app.py").write_text(NAME_TYPE)
    command = [sys.executable, str(tmp_path / "app.py"), "3"]
    (model,) = inspect(command, tmp_path).values()
    assert (model["n_sessions"], model["n_calls"], model["package"]) == (1, 3, "magika")
    path = tmp_path / "tuned.json"
    search(["--call", "__main__:identify"], [*command[:2], "100000"], path)
    (record,) = read_records(path)
    assert record.workload.program
    assert record.workload.program.kind == "call"
    check_same_output(command, path)


def test_a_server_with_two_workers(tmp_path: Path) -> None:
    place = ["--app-dir", str(Path(__file__).parent), "--port", "{port}"]
    command = [program("uvicorn"), "asgi_app:app", *place, "--workers", "2", "--lifespan", "off"]
    path = tmp_path / "tuned.json"
    # Its answers name the process and the settings.
    options = ["--url", "http://127.0.0.1:{port}/", "--clients", "2", "--ignore-outputs"]
    search(options, command, path, MODEL=str(TINY_CNN))
    (record,) = read_records(path)
    assert record.workload.program
    assert record.workload.program.n_processes == 2
    assert record.base.session_options == {"intra_op_num_threads": 2}
