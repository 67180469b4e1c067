"""Models of packages from PyPI on guessed inputs. `nox -s zoo` tests more of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.guessed_inputs import check_model
from tests.consumers.running import need

pytestmark = pytest.mark.consumers

NEED_OPTIONS = {"ch_PP-OCRv4_rec_infer.onnx"}
"""A text recognizer, whose images must be 48 pixels high."""


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx"),
        ("rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer.onnx"),
        ("rapidocr_onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx"),
        ("magika", "model.onnx"),
    ],
)
def test_a_model_runs_without_options_or_its_advice_works(package: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "models" / name
    path.parent.mkdir()
    shutil.copy(next((need(package) / "models").rglob(name)), path)
    checked = check_model(path, tmp_path)
    assert checked.runs == (name not in NEED_OPTIONS), checked.message
    assert checked.runs or checked.advised_runs, checked.message
