"""Input data that the user gives: .npz files, and folders in the layout of ONNX's test data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortune.errors import InputsError
from ortune.file_kinds import name_special
from ortune.limited import explain_no_access, read_limited
from ortune.model import Dim, InputInfo
from ortune.workload.npz import MOST_AXES, ArrayHeader, read_npz
from ortune.workload.size import check_size
from ortune.workload.synthesis import FLOATS, INTEGERS
from ortune.workload.workload import MOST_SAMPLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    DType = np.dtype[np.generic]

PARSED_SHARE = 8
"""How many times larger a tensor may be than its file: a byte may be an integer of 64 bits."""

MOST_ITEMS_PER_BYTE = 4
"""Largest number of values that a byte of a tensor's file holds: four of 2 bits."""


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
    """Return the user's samples, each with at least one input.

    Raises:
        InputsError: There is no data, it cannot be read, it does not fit the inputs, or it does not fit into memory.
    """
    if why := explain_no_access(path):
        raise InputsError(f"{path}: {why}.", option="inputs")
    if path.is_file():
        samples = _load_npz(path, inputs)
    elif not path.is_dir():
        special = name_special(path)
        fault = f"is {special}, and a file or folder is needed" if special else "there is no such file or folder"
        raise InputsError(f"{path}: {fault}.", option="inputs")
    elif any(path.glob("input_*.pb")):
        samples = [_load_folder(path, inputs)]
    else:
        samples = _load_samples(path, inputs)
    known = [info.name for info in inputs]
    for name in samples[0]:
        if name not in known:
            raise _reject_name(path, name, inputs)
    return samples


def _load_samples(path: Path, inputs: tuple[InputInfo, ...]) -> list[dict[str, Array]]:
    """Read a folder of folders with tensors, or of archives."""
    folders = sorted({file.parent for file in path.glob("*/input_*.pb")}, key=_natural)
    files = sorted(path.glob("*.npz"), key=_natural)
    samples: list[dict[str, Array]] = []
    loaded_bytes = 0
    for source in (*folders, *files):
        found = (
            [_load_folder(source, inputs, loaded_bytes)]
            if source in folders
            else _load_npz(source, inputs, loaded_bytes)
        )
        samples += found
        loaded_bytes += sum(array.nbytes for sample in found for array in sample.values())
        _check_count(path, len(samples))
    if not samples:
        raise InputsError(
            f"{path}: the folder holds no data.",
            "It may hold input_*.pb files, folders with such files, or .npz files.",
            option="inputs",
        )
    if any(sample.keys() != samples[0].keys() for sample in samples):
        raise InputsError(f"{path}: not all samples have the same inputs.", option="inputs")
    return samples


def _check_count(path: Path, n_samples: int) -> None:
    if n_samples > MOST_SAMPLES:
        raise InputsError(
            f"{path}: there are {n_samples} samples; at most {MOST_SAMPLES} are read.",
            "Pass some of them: a search uses a few hundred.",
            option="inputs",
        )


def _reject_name(path: Path, name: str, inputs: tuple[InputInfo, ...]) -> InputsError:
    known = name_inputs(info.name for info in inputs)
    return InputsError(f"{path.name}: {name[:200]!r} is not an input of the model.", known, option="inputs")


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts sample_2 before sample_10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _load_npz(path: Path, inputs: tuple[InputInfo, ...], loaded_bytes: int = 0) -> list[dict[str, Array]]:
    """Read one sample, or many samples stacked along an additional first axis."""

    def check(headers: Mapping[str, ArrayHeader]) -> None:
        _check_headers(path, headers, inputs, loaded_bytes)

    arrays = read_npz(path, check, loaded_bytes=loaded_bytes)
    ranks = _ranks_of(inputs)
    counts = {name: len(array) for name, array in arrays.items() if array.ndim == ranks.get(name, array.ndim) + 1}
    if not counts:
        return [arrays]
    n_samples = next(iter(counts.values()))
    return [
        {name: array[number] if name in counts else array for name, array in arrays.items()}
        for number in range(n_samples)
    ]


def _ranks_of(inputs: tuple[InputInfo, ...]) -> dict[str, int]:
    return {info.name: len(info.shape) for info in inputs if info.shape is not None}


def _check_headers(
    path: Path, headers: Mapping[str, ArrayHeader], inputs: tuple[InputInfo, ...], loaded_bytes: int
) -> None:
    """Check the arrays of an archive before their values are read.

    Raises:
        InputsError: One is not an input, does not fit, or will not fit into memory in the type of the input.
    """
    import numpy as np

    by_name = {info.name: info for info in inputs}
    ranks = _ranks_of(inputs)
    counts = {}
    total_bytes = loaded_bytes
    for name, header in headers.items():
        if name not in by_name:
            raise _reject_name(path, name, inputs)
        shape = header.shape
        if len(shape) == ranks.get(name, len(shape)) + 1:
            counts[name], *rest = shape
            shape = tuple(rest)
        wanted = check_fit(by_name[name], shape, np.dtype(header.dtype))
        total_bytes += header.n_bytes if wanted is None else math.prod(header.shape) * wanted.itemsize
    if counts and (len(set(counts.values())) > 1 or 0 in counts.values()):
        stacked = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputsError(
            f"{path.name}: holds {stacked}; all stacks must hold the same number of samples.",
            "Give each stacked array the same length along its first axis.",
            option="inputs",
        )
    _check_count(path, max(counts.values(), default=1))
    check_size(total_bytes, f"{path}: in the types of the inputs, its arrays take", option="inputs")


def _load_folder(path: Path, inputs: tuple[InputInfo, ...], loaded_bytes: int = 0) -> dict[str, Array]:
    """Read the `input_*.pb` files of a folder in the layout of ONNX's own test data."""
    arrays: dict[str, Array] = {}
    for position, file in enumerate(sorted(path.glob("input_*.pb"), key=_natural)):
        name, array = _read_tensor(file, loaded_bytes)
        if not name and position >= len(inputs):
            raise InputsError(f"{file}: the model has only {len(inputs)} inputs.", option="inputs")
        arrays[name or inputs[position].name] = array
        loaded_bytes += array.nbytes
    return arrays


def _read_tensor(file: Path, loaded_bytes: int) -> tuple[str, Array]:
    """Return the name and the values of a tensor in ONNX's format.

    Raises:
        InputsError: It is not a tensor, or does not fit into memory.
    """
    from onnx import TensorProto, numpy_helper

    tensor = TensorProto()
    try:
        n_bytes = file.stat().st_size
        check_size(PARSED_SHARE * n_bytes + loaded_bytes, f"{file}: reading the tensor takes", option="inputs")
        tensor.ParseFromString(read_limited(file, n_bytes, only_regular=True))
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise ValueError("its values are in another file")
        if len(tensor.dims) > MOST_AXES or any(size < 0 for size in tensor.dims):
            raise ValueError("its shape is malformed")
        if math.prod(tensor.dims) > MOST_ITEMS_PER_BYTE * n_bytes:
            raise ValueError(f"it declares {math.prod(tensor.dims)} values, and has {n_bytes} bytes")
        array: Array = numpy_helper.to_array(tensor)
    except InputsError:
        raise
    except Exception as error:  # noqa: BLE001  (onnx raises many kinds for malformed tensors)
        reason = f"{error}".partition("\n")[0][:300] or type(error).__name__
        raise InputsError(f"{file}: is not a tensor ({reason}).", option="inputs") from None
    return tensor.name, array


def fit_array(info: InputInfo, array: Array) -> Array:
    """Check that the array fits the input, and return it in the input's type.

    Raises:
        InputsError: It does not fit.
    """
    import numpy as np

    wanted = check_fit(info, array.shape, array.dtype)
    if info.dtype == "string":
        return array.astype(np.str_)
    return array if wanted is None or array.dtype == wanted else array.astype(wanted)


def check_fit(info: InputInfo, shape: Sequence[int], dtype: DType) -> DType | None:
    """Check that an array fits an input, and return the type that it will have; None if the type remains as it is.

    Raises:
        InputsError: It does not fit.
    """
    import numpy as np

    if not fits_shape(info.shape, shape):
        raise InputsError(
            f"{info.name} has shape {format_shape(shape)}; the model has {format_shape(info.shape or ())}.",
            option="inputs",
        )
    if info.dtype == "string":
        if dtype.kind == "S":
            # NumPy has four bytes for each character.
            return np.dtype(f"U{dtype.itemsize}")
        return dtype if dtype.kind == "U" else np.dtype("U32")
    wanted = np.dtype(info.dtype) if info.dtype in FLOATS | INTEGERS | {"bool"} else None
    if wanted is not None and dtype != wanted and not np.can_cast(dtype, wanted, casting="same_kind"):
        raise InputsError(f"{info.name} has type {dtype}; the model has {info.dtype}.", option="inputs")
    return wanted
