"""Compares a candidate's outputs with the default's: tensors, strings, and lists of dicts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ortune.workload import Tolerance


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How far outputs lie apart.

    Attributes:
        max_error: Largest absolute difference as a share of the output's largest value, over all outputs.
        fault: Why the outputs do not agree, for people; empty when they do.
    """

    max_error: float = 0.0
    fault: str = ""


class _Pickler(pickle.Pickler):
    """Writes arrays so that every NumPy reads them: by itself, NumPy 2 names modules that NumPy 1 does not have."""

    def reducer_override(self, value: Any) -> Any:
        """Return what makes an array anew, for arrays of numbers and of objects (strings)."""
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
    """Write outputs for other workers, whose NumPy may be another one, to compare theirs with."""
    with path.open("wb") as file:
        _Pickler(file, protocol=5).dump(list(outputs))


def load_outputs(path: Path) -> list[Any]:
    """Read what `save_outputs` wrote. The file is in a folder that only this user can write to."""
    with path.open("rb") as file:
        return list(pickle.load(file))  # noqa: S301


def describe_outputs(names: Sequence[str], outputs: Sequence[Any]) -> dict[str, str]:
    """Return each output's type and shape, such as `float32[1,1000]`."""
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

    NaN equals NaN, and an infinity equals the same infinity. Floats must lie within the tolerance, or within one step
    where they come out of a dequantization; 8-bit integers may differ by one, which is a rounding the other way; all
    else must be equal.

    Args:
        names: Names of the outputs.
        reference: The default's outputs.
        outputs: The candidate's.
        tolerance: How far floats may lie apart.
        quanta: By output, the step between neighbouring values of dequantized ones.
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
        return Difference(fault=f"a {type(actual).__name__} instead of a {type(expected).__name__}")
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
        return Difference(fault="other keys")
    if expected and all(isinstance(value, float) for value in expected.values()):
        # One array, so that a tolerance that is a share of the largest value sees all of them.
        keys = list(expected)
        left, right = ([mapping[key] for key in keys] for mapping in (expected, actual))
        return _compare_arrays(np.asarray(left), np.asarray(right), tolerance)
    return _worst(_compare(expected[key], actual[key], tolerance) for key in expected)


def _worst(differences: Any) -> Difference:
    worst = Difference()
    for difference in differences:
        if difference.fault:
            return Difference(max_error=max(worst.max_error, difference.max_error), fault=difference.fault)
        worst = max(worst, difference, key=lambda each: each.max_error)
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
            fault=f"{unlike} of {expected.size} values are NaN or infinite on one side",
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
            fault=f"{outside} of {expected.size} values differ too much, by up to {share:.2g} of the largest",
        )
    return Difference(max_error=share)
