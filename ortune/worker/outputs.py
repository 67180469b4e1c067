"""Compares the outputs of a candidate with the reference: tensors, strings, and lists of dicts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ortune.workload import Tolerance


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two sets of outputs.

    Attributes:
        max_error: Largest absolute difference, as a fraction of the output's largest value, over all outputs.
        fault: Human-readable reason why the outputs do not match; empty if they match.
    """

    max_error: float = 0.0
    fault: str = ""


class _Pickler(pickle.Pickler):
    """Writes arrays so that every version of NumPy can read them.

    NumPy 2's own pickles contain names of modules that NumPy 1 does not have.
    """

    def reducer_override(self, value: Any) -> Any:
        """Return a function and its arguments that rebuild an array of numbers or of objects (strings)."""
        if isinstance(value, np.ndarray) and type(value) is np.ndarray and value.dtype.kind != "V":
            if value.dtype == object:
                return _make_objects, (value.shape, value.ravel().tolist())
            return _make_array, (value.shape, value.dtype.str, value.tobytes())
        if isinstance(value, np.generic) and value.dtype.kind not in "OV":
            return _make_scalar, (value.dtype.str, value.tobytes())
        return NotImplemented


def _make_array(shape: tuple[int, ...], dtype: str, data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype).reshape(shape)


def _make_objects(shape: tuple[int, ...], values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _make_scalar(dtype: str, data: bytes) -> Any:
    return np.frombuffer(data, dtype)[0]


def save_outputs(path: Path, outputs: Sequence[Any]) -> None:
    """Write outputs to a file that other workers can read, even with another version of NumPy."""
    with path.open("wb") as file:
        _Pickler(file, protocol=5).dump(list(outputs))


def load_outputs(path: Path) -> list[Any]:
    """Read the file of `save_outputs`. It must be in a folder that only this user can write to."""
    with path.open("rb") as file:
        return list(pickle.load(file))  # noqa: S301  # nosec B301


def describe_outputs(names: Sequence[str], outputs: Sequence[Any]) -> dict[str, str]:
    """Return the type and shape of each output, such as `float32[1,1000]`."""
    return {name: _describe(value) for name, value in zip(names, outputs, strict=True)}


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        dtype = "string" if value.dtype == object else str(value.dtype)
        return f"{dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return f"list of {len(value)} {_describe(value[0])}" if value else "empty list"
    if isinstance(value, dict):
        return f"dict of {len(value)}"
    return type(value).__name__


def compare_outputs(
    names: Sequence[str],
    reference: Sequence[Any],
    outputs: Sequence[Any],
    tolerance: Tolerance,
    quanta: Mapping[str, float] | None = None,
) -> Difference:
    """Compare all outputs with the reference.

    NaN equals NaN, and an infinity equals the same infinity. Floats must be within the tolerance, or within one step
    if they are dequantized. 8-bit integers may differ by one, which is a difference in rounding. Everything else must
    be equal.

    Args:
        names: Names of the outputs.
        reference: The reference outputs.
        outputs: The outputs of the candidate.
        tolerance: Tolerance for floats.
        quanta: For each output that is dequantized at the end: the step between two adjacent values.
    """
    worst = 0.0
    for name, expected, actual in zip(names, reference, outputs, strict=True):
        step = (quanta or {}).get(name, 0.0)
        if step and isinstance(expected, np.ndarray) and expected.shape == getattr(actual, "shape", None):
            difference = _compare_floats(expected, actual, tolerance, step)
        else:
            difference = _compare(expected, actual, tolerance)
        worst = max(worst, difference.max_error)
        if difference.fault:
            return Difference(max_error=worst, fault=f"output {name}: {difference.fault}")
    return Difference(max_error=worst)


def _compare(expected: Any, actual: Any, tolerance: Tolerance) -> Difference:
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        return _compare_arrays(expected, actual, tolerance)
    if type(expected) is not type(actual):
        return Difference(fault=f"type {type(actual).__name__} instead of {type(expected).__name__}")
    if isinstance(expected, Mapping):
        return _compare_mappings(expected, actual, tolerance)
    if isinstance(expected, list | tuple):
        if len(expected) != len(actual):
            return Difference(fault=f"{len(actual)} elements instead of {len(expected)}")
        return _worst(_compare(left, right, tolerance) for left, right in zip(expected, actual, strict=True))
    if isinstance(expected, float):
        return _compare_arrays(np.asarray(expected), np.asarray(actual), tolerance)
    return Difference() if expected == actual else Difference(fault=f"{actual!r} instead of {expected!r}")


def _compare_mappings(expected: Mapping[Any, Any], actual: Mapping[Any, Any], tolerance: Tolerance) -> Difference:
    if expected.keys() != actual.keys():
        return Difference(fault="different keys")
    if expected and all(isinstance(value, float) for value in expected.values()):
        # Compare them as one array: the tolerance is relative to the largest value of all.
        keys = list(expected)
        left, right = ([mapping[key] for key in keys] for mapping in (expected, actual))
        return _compare_arrays(np.asarray(left), np.asarray(right), tolerance)
    return _worst(_compare(expected[key], actual[key], tolerance) for key in expected)


def _worst(differences: Any) -> Difference:
    worst = Difference()
    for difference in differences:
        if difference.fault:
            return Difference(max_error=max(worst.max_error, difference.max_error), fault=difference.fault)
        worst = max(worst, difference, key=lambda found: found.max_error)
    return worst


def _compare_arrays(expected: np.ndarray, actual: np.ndarray, tolerance: Tolerance) -> Difference:
    if expected.shape != actual.shape:
        return Difference(fault=f"shape {actual.shape} instead of {expected.shape}")
    if expected.dtype != actual.dtype:
        return Difference(fault=f"type {actual.dtype} instead of {expected.dtype}")
    if expected.dtype.kind in "fc" or str(expected.dtype) in {"bfloat16"}:
        return _compare_floats(expected, actual, tolerance)
    if expected.dtype.itemsize == 1 and expected.dtype.kind in "iu":
        steps = int(np.abs(expected.astype(np.int16) - actual.astype(np.int16)).max(initial=0))
        fault = f"8-bit integers differ by up to {steps}" if steps > 1 else ""
        return Difference(max_error=steps / 255, fault=fault)
    unequal = int(np.count_nonzero(expected != actual))
    return Difference(fault=f"{unequal} of {expected.size} values differ") if unequal else Difference()


def _compare_floats(expected: np.ndarray, actual: np.ndarray, tolerance: Tolerance, step: float = 0.0) -> Difference:
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(expected) & np.isfinite(actual)
    same = (np.isnan(expected) & np.isnan(actual)) | (expected == actual)
    unlike = int(np.count_nonzero(~finite & ~same))
    if unlike:
        return Difference(
            max_error=float("inf"),
            fault=f"{unlike} of {expected.size} values are NaN or infinite in only one of the two",
        )
    scale = float(np.abs(expected[finite]).max(initial=0.0))
    error = np.abs(actual[finite] - expected[finite])
    largest = float(error.max(initial=0.0))
    share = largest / scale if scale else largest
    allowed = tolerance.absolute * scale + tolerance.relative * np.abs(expected[finite]) + step * (1 + 1e-6)
    outside = int(np.count_nonzero(error > allowed)) if scale else int(largest > tolerance.absolute)
    if outside:
        return Difference(
            max_error=share,
            fault=f"{outside} of {expected.size} values differ too much, by up to {share:.2g} of the largest value",
        )
    return Difference(max_error=share)
