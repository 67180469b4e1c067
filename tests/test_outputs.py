"""Comparing outputs with the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune import Tolerance
from ortune.worker.outputs import compare_outputs, describe_outputs, load_outputs, save_outputs

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


MATCHING: dict[str, tuple[Any, Any]] = {
    "equal": (floats(1, 2), floats(1, 2)),
    "within relative tolerance": (floats(1000, 1), floats(1000.9, 1)),
    "within absolute tolerance": (floats(1000, 0), floats(1000, 0.09)),
    "NaN in both": (floats(NAN, 1), floats(NAN, 1)),
    "the same infinity": (floats(-INF, 1), floats(-INF, 1)),
    "empty": (floats(), floats()),
    "all zero": (floats(0, 0), floats(0, 1e-5)),
    "one step of int8": (np.array([3, 4], np.int8), np.array([4, 4], np.int8)),
    "strings": (np.array(["a", "b"], object), np.array(["a", "b"], object)),
    "list of dicts": ([{"a": 0.2, "b": 0.8}], [{"a": 0.20001, "b": 0.8}]),
    "dict of strings": ({"a": "x"}, {"a": "x"}),
    "float16": (np.array([1], np.float16), np.array([1], np.float16)),
    "bool": (np.array([True]), np.array([True])),
}

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "beyond the tolerance": (floats(1, 2), floats(1, 2.01)),
    "NaN in only one of the two": (floats(1, 2), floats(NAN, 2)),
    "infinities of different signs": (floats(INF), floats(-INF)),
    "different shapes": (floats(1, 2), floats(1)),
    "different types": (floats(1), np.array([1], np.float64)),
    "integers": (np.array([1, 2]), np.array([1, 3])),
    "two steps of int8": (np.array([3], np.int8), np.array([5], np.int8)),
    "strings": (np.array(["a", "b"], object), np.array(["a", "c"], object)),
    "a dict's value": ([{"a": 0.2, "b": 0.8}], [{"a": 0.3, "b": 0.7}]),
    "a dict's keys": ([{"a": 0.2}], [{"b": 0.2}]),
    "a list's length": ([1, 2], [1]),
    "list and array": ([1.0], floats(1)),
    "all zero": (floats(0, 0), floats(0, 1)),
}


@pytest.mark.parametrize("name", MATCHING)
def test_matching_outputs(name: str) -> None:
    expected, actual = MATCHING[name]
    assert compare_outputs(["y"], [expected], [actual], Tolerance()).fault == ""


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_outputs(name: str) -> None:
    expected, actual = DIFFERENT[name]
    assert "output y" in compare_outputs(["y"], [expected], [actual], Tolerance()).fault


def test_dequantized_output_may_differ_by_one_step() -> None:
    expected, one, two = floats(0.5, 0.1), floats(0.5, 0.104), floats(0.5, 0.108)
    assert compare_outputs(["y"], [expected], [one], Tolerance(), {"y": 0.004}).fault == ""
    assert compare_outputs(["y"], [expected], [two], Tolerance(), {"y": 0.004}).fault
    assert compare_outputs(["y"], [expected], [one], Tolerance()).fault


def test_error_is_relative_to_the_largest_value() -> None:
    difference = compare_outputs(["y"], [floats(100, 1)], [floats(100, 1.005)], Tolerance(absolute=0.1))
    assert difference.max_error == pytest.approx(0.00005, rel=1e-3)


def test_saved_outputs_are_loaded_unchanged(tmp_path: Path) -> None:
    outputs = [
        floats(1, NAN),
        np.array([["a", "b"]], object),
        [{"x": 1.0}],
        np.array(3, np.int8),
        np.zeros((0, 2), bool),
        np.array(["a", "bcd"]),
        np.float16(1.5),
        np.array([], object),
    ]
    save_outputs(tmp_path / "o", outputs)
    found = load_outputs(tmp_path / "o")
    names = [str(position) for position in range(len(outputs))]
    assert compare_outputs(names, outputs, found, Tolerance()).fault == ""
    assert describe_outputs(names, found) == describe_outputs(names, outputs)
    assert found[1].tolist() == [["a", "b"]]
    assert type(found[6]) is np.float16


def test_saved_outputs_contain_no_names_of_numpy_modules(tmp_path: Path) -> None:
    """The module `numpy._core` of NumPy 2 does not exist in NumPy 1, which older versions of onnxruntime need."""
    save_outputs(tmp_path / "o", [floats(1), np.array(["a"], object), [{"x": np.float32(1)}]])
    assert b"numpy" not in (tmp_path / "o").read_bytes()


def test_descriptions_of_outputs() -> None:
    described = describe_outputs(["a", "b", "c"], [floats(1, 2), np.array(["x"], object), [{"k": 1.0}]])
    assert described == {"a": "float32[2]", "b": "string[1]", "c": "list of 1 dict of 1"}
