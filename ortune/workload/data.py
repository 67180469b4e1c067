"""Input data that the user gives: .npz files, and folders in the layout of ONNX's test data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.errors import InputsError
from ortune.model import Dim, InputInfo
from ortune.workload.npz import read_npz
from ortune.workload.size import check_size
from ortune.workload.synthesis import FLOATS, INTEGERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


def name_inputs(names: Iterable[str]) -> str:
    """Return a sentence with the names of the model's inputs."""
    return f"The model's inputs are: {', '.join(names)}."


def format_shape(shape: Iterable[Dim]) -> str:
    """Return a shape as `1x3x224x224`, open dimensions as their symbol or `?`."""
    return "x".join("?" if dim is None else str(dim) for dim in shape)


def fits_shape(wanted: Sequence[Dim] | None, shape: Sequence[int]) -> bool:
    """Return whether a shape is possible for an input; any shape is if the model specifies none."""
    return wanted is None or (
        len(wanted) == len(shape)
        and all(not isinstance(dim, int) or dim == size for dim, size in zip(wanted, shape, strict=True))
    )


def load_data(path: Path, inputs: tuple[InputInfo, ...]) -> list[dict[str, Array]]:
    """Return the user's samples, each with at least one input."""
    if path.is_file():
        samples = _load_npz(path, inputs)
    elif not path.is_dir():
        raise InputsError(f"{path}: there is no such file or folder.", option="inputs")
    elif any(path.glob("input_*.pb")):
        samples = [_load_folder(path, inputs)]
    else:
        folders = sorted({file.parent for file in path.glob("*/input_*.pb")}, key=_natural)
        files = sorted(path.glob("*.npz"), key=_natural)
        samples = [_load_folder(folder, inputs) for folder in folders]
        samples += [sample for file in files for sample in _load_npz(file, inputs)]
        if not samples:
            raise InputsError(
                f"{path}: the folder holds no data.",
                "It may hold input_*.pb files, folders with such files, or .npz files.",
                option="inputs",
            )
        if any(sample.keys() != samples[0].keys() for sample in samples):
            raise InputsError(f"{path}: not all samples have the same inputs.", option="inputs")
    known = [info.name for info in inputs]
    for name in samples[0]:
        if name not in known:
            raise InputsError(
                f"{path.name}: {name!r} is not an input of the model.", name_inputs(known), option="inputs"
            )
    return samples


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts sample_2 before sample_10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _load_npz(path: Path, inputs: tuple[InputInfo, ...]) -> list[dict[str, Array]]:
    """Read one sample, or many samples stacked along an additional first axis."""
    arrays = read_npz(path)
    ranks = {info.name: len(info.shape) for info in inputs if info.shape is not None}
    counts = {name: len(array) for name, array in arrays.items() if array.ndim == ranks.get(name, array.ndim) + 1}
    if not counts:
        return [arrays]
    if len(set(counts.values())) > 1 or 0 in counts.values():
        stacked = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputsError(
            f"{path.name}: holds {stacked}; all stacks must hold the same number of samples.",
            "Give each stacked array the same length along its first axis.",
            option="inputs",
        )
    n_samples = next(iter(counts.values()))
    return [
        {name: array[number] if name in counts else array for name, array in arrays.items()}
        for number in range(n_samples)
    ]


def _load_folder(path: Path, inputs: tuple[InputInfo, ...]) -> dict[str, Array]:
    """Read the `input_*.pb` files of a folder in the layout of ONNX's own test data."""
    from onnx import TensorProto, numpy_helper

    arrays: dict[str, Array] = {}
    for position, file in enumerate(sorted(path.glob("input_*.pb"), key=_natural)):
        tensor = TensorProto()
        try:
            check_size(file.stat().st_size, f"{file}: the tensor takes", option="inputs")
            tensor.ParseFromString(file.read_bytes())
            if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
                raise ValueError("its values are in another file")
            array = numpy_helper.to_array(tensor)
        except InputsError:
            raise
        except Exception as error:  # noqa: BLE001  (onnx raises many kinds for malformed tensors)
            raise InputsError(f"{file}: is not a tensor ({error}).", option="inputs") from None
        if not tensor.name and position >= len(inputs):
            raise InputsError(f"{file}: the model has only {len(inputs)} inputs.", option="inputs")
        arrays[tensor.name or inputs[position].name] = array
    return arrays


def fit_array(info: InputInfo, array: Array) -> Array:
    """Check that the array fits the input, and return it in the input's type.

    Raises:
        InputsError: It does not fit.
    """
    import numpy as np

    if not fits_shape(info.shape, array.shape):
        raise InputsError(
            f"{info.name} has shape {format_shape(array.shape)}; the model has {format_shape(info.shape or ())}.",
            option="inputs",
        )
    if info.dtype == "string":
        return array.astype(np.str_)
    wanted = np.dtype(info.dtype) if info.dtype in FLOATS | INTEGERS | {"bool"} else None
    if wanted is None or array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise InputsError(f"{info.name} has type {array.dtype}; the model has {info.dtype}.", option="inputs")
    return array.astype(wanted)
