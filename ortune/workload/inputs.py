"""Input data: given by the user, or synthesised so that the model runs and does what it does in production.

Unknown dimensions are the trap: a detector on a 1x1 image runs, and its timing means nothing. So every dimension
that the model leaves open gets a size by its role, and every such guess is shown.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.errors import InputsError
from ortune.model import Dim, InputInfo, ModelInfo
from ortune.workload.values import InputData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

BATCH, SEQUENCE, CHANNELS, IMAGE_SIDE, DEPTH = 1, 128, 3, 224, 8
"""Sizes by role: one request, a sentence or two, a colour image of the usual size (a multiple of 32)."""

PLACEHOLDERS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Symbols that exporters write where they know no name: equal ones do not mean equal sizes."""

BATCH_NAME = re.compile(r"^(n|b|bs|bsz|.*batch.*)$", re.IGNORECASE)
SEQUENCE_NAME = re.compile(r".*(seq|len|token|time|frame|sample|step|word).*|^[tls]$", re.IGNORECASE)
HEIGHT_NAME = re.compile(r".*(height|width).*|^[hw]$", re.IGNORECASE)
CHANNEL_NAME = re.compile(r".*channel.*|^c$", re.IGNORECASE)

FLOATS = frozenset({"float16", "float32", "float64"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

STATE_NAME = re.compile(r"state|hidden|cell|cache|past|^[hc]_?\d*$")

SAMPLE_RATE = 16000


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about inputs.

    Attributes:
        dims: Sizes by symbolic dimension name (`--dim batch=4`); several sizes of one dimension (`--dim batch=1,8`)
            make a case each, and all cases count alike.
        shapes: Whole shapes by input name (`--shape data=1x3x224x224`).
        cases: Whole shapes by input name, for one case each, as a record holds them; empty where `dims` say it.
        data: An .npz file with an array for each input, or with arrays of one more axis that stack many samples; or
            a folder with `input_0.pb`, `input_1.pb`, ..., with several such folders, or with several .npz files.
        seed: Seed of the synthesised values.
    """

    dims: Mapping[str, tuple[int, ...]] = {}
    shapes: Mapping[str, tuple[int, ...]] = {}
    cases: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    data: str | None = None
    seed: int = 0


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One input's data.

    Attributes:
        array: The values; strings as an array of NumPy's `str_` type.
        origin: Where values and sizes come from, as it is shown to the user.
        guessed: The dimensions that were guessed, as "axis 2 = 224".
    """

    array: Array
    origin: str
    guessed: tuple[str, ...] = ()


Sample = dict[str, Tensor]
"""What is fed to the model in one call, by input name."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """What is fed to the model: samples that are cycled through, call after call.

    Attributes:
        samples: At least one, each with all inputs.
        cases: Which case each sample belongs to. Percentiles are taken case by case, and all cases count alike: the
            median of calls with one and with eight images would tell of neither.
    """

    samples: tuple[Sample, ...]
    cases: tuple[int, ...] = (0,)

    @property
    def tensors(self) -> Sample:
        """The first sample."""
        return self.samples[0]

    @property
    def n_cases(self) -> int:
        """How many cases there are."""
        return len(set(self.cases))

    def describe(self) -> dict[str, InputData]:
        """Return a description of each input, as it is written to the record."""
        return {name: self.describe_input(name) for name in self.tensors}

    def describe_input(self, name: str) -> InputData:
        """Return type, sizes and origin of one input."""
        first = self.tensors[name]
        shapes = [sample[name].array.shape for sample in self.samples]
        return InputData(
            dtype="string" if first.array.dtype.kind == "U" else str(first.array.dtype),
            shapes=tuple(shapes) if len(set(shapes)) > 1 else (shapes[0],),
            origin=first.origin,
        )

    def save(self, path: Path) -> None:
        """Write all arrays to an .npz file for the workers."""
        import numpy as np

        # Positional names: an input's own name may hold characters that a file name cannot.
        arrays: dict[str, Any] = {
            f"{number:06}-{position:04}": tensor.array
            for number, sample in enumerate(self.samples)
            for position, tensor in enumerate(sample.values())
        }
        with path.open("wb") as file:
            np.savez(file, names=np.array(list(self.tensors), dtype=np.str_), cases=np.array(self.cases), **arrays)


def load_feed(path: Path) -> tuple[list[dict[str, Array]], list[int]]:
    """Read the samples and their cases that `Feed.save` wrote.

    Strings are object arrays, which is how ONNX Runtime takes them.
    """
    import numpy as np

    with np.load(path, allow_pickle=False) as saved:
        names = [str(name) for name in saved["names"]]
        cases = [int(case) for case in saved["cases"]]
        samples = []
        for number in range(len(cases)):
            arrays = [saved[f"{number:06}-{position:04}"] for position in range(len(names))]
            samples.append(
                {
                    name: array.astype(object) if array.dtype.kind == "U" else array
                    for name, array in zip(names, arrays, strict=True)
                }
            )
    return samples, cases


def make_feed(model: ModelInfo, options: InputOptions) -> Feed:
    """Return the data to feed: the user's where given, else synthesised.

    Raises:
        InputsError: An option names no input or dimension, the data does not fit, or an input is of a kind
            that cannot be synthesised.
    """
    by_name = {info.name: info for info in model.inputs}
    _check_options(by_name, options)
    names = list(options.dims)
    cases = [dict(zip(names, sizes, strict=True)) for sizes in itertools.product(*options.dims.values())]
    if options.data and len(cases) > 1:
        raise InputsError(
            "--dim with several sizes and --inputs exclude each other: data has its sizes already.",
            "Put samples of all sizes into the data, or leave --inputs out.",
        )
    given = _load_data(Path(options.data), model.inputs) if options.data else [{}]
    samples: list[Sample] = []
    if options.cases and not options.data:
        for shapes in options.cases:
            own = msgspec.structs.replace(options, shapes=shapes)
            samples.append({info.name: _synthesise(info, {}, own) for info in model.inputs})
        return Feed(samples=tuple(samples), cases=tuple(range(len(samples))))
    for case in cases:
        for arrays in given:
            sample = {}
            for info in model.inputs:
                if info.name in arrays:
                    array = _fit(info, arrays[info.name])
                    sample[info.name] = Tensor(array=array, origin=f"from {Path(options.data or '').name}")
                else:
                    sample[info.name] = _synthesise(info, case, options)
            samples.append(sample)
    return Feed(samples=tuple(samples), cases=tuple(range(len(cases))) if len(cases) > 1 else (0,) * len(samples))


def _check_options(by_name: Mapping[str, InputInfo], options: InputOptions) -> None:
    symbols = {dim for info in by_name.values() for dim in info.shape or () if isinstance(dim, str)}
    for name in options.dims:
        if name not in symbols:
            known = f"Its symbolic dimensions are {', '.join(sorted(symbols))}." if symbols else "It has none."
            raise InputsError(
                f"--dim {name}: the model has no dimension of that name. {known}",
                "Use --shape INPUT=1x3x224x224 for dimensions without a name.",
            )
    for name, shape in options.shapes.items():
        if name not in by_name:
            raise InputsError(f"--shape {name}: the model has no input of that name.", _names(by_name))
        wanted = by_name[name].shape
        fits = wanted is None or (
            len(wanted) == len(shape)
            and all(not isinstance(dim, int) or dim == size for dim, size in zip(wanted, shape, strict=True))
        )
        if not fits:
            raise InputsError(
                f"--shape {name}={format_shape(shape)} does not fit the model, "
                f"which says {format_shape(wanted or ())}.",
                "Change the sizes that are symbolic in the model, and keep the others.",
            )


def _names(names: Iterable[str]) -> str:
    return f"The model's inputs are: {', '.join(names)}."


def format_shape(shape: Iterable[Dim]) -> str:
    """Return a shape as `1x3x224x224`, open dimensions as their symbol or `?`."""
    return "x".join("?" if dim is None else str(dim) for dim in shape)


def _load_data(path: Path, inputs: tuple[InputInfo, ...]) -> list[dict[str, Array]]:
    """Return the user's samples, each with some inputs at least."""
    if path.is_file():
        samples = _load_npz(path, inputs)
    elif not path.is_dir():
        raise InputsError(f"--inputs {path}: there is no such file or folder.")
    elif any(path.glob("input_*.pb")):
        samples = [_load_folder(path, inputs)]
    else:
        folders = sorted({file.parent for file in path.glob("*/input_*.pb")}, key=_natural)
        files = sorted(path.glob("*.npz"), key=_natural)
        samples = [_load_folder(folder, inputs) for folder in folders]
        samples += [sample for file in files for sample in _load_npz(file, inputs)]
        if not samples:
            raise InputsError(
                f"--inputs {path}: the folder holds no data.",
                "It may hold input_*.pb files, folders with such files, or .npz files.",
            )
        if any(sample.keys() != samples[0].keys() for sample in samples):
            raise InputsError(f"--inputs {path}: not all samples in it have the same inputs.")
    known = [info.name for info in inputs]
    for name in samples[0]:
        if name not in known:
            raise InputsError(f"--inputs {path.name} holds {name!r}, which is no input of the model.", _names(known))
    return samples


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts sample_2 before sample_10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _load_npz(path: Path, inputs: tuple[InputInfo, ...]) -> list[dict[str, Array]]:
    """Read one sample, or many that are stacked along an axis in front of the model's own."""
    import numpy as np

    try:
        saved = np.load(path, allow_pickle=False)
        if not isinstance(saved, np.lib.npyio.NpzFile):
            raise InputsError(f"--inputs {path} holds a bare array.", "Save it with numpy.savez(path, NAME=array).")
        with saved:
            arrays = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, EOFError) as error:
        # NumPy takes whatever it does not know for a pickle, and says how to load that unsafely.
        reason = "" if "pickle" in str(error) else f": {error}"
        raise InputsError(
            f"--inputs {path} cannot be read as an .npz file{reason}",
            "Write it with numpy.savez(path, NAME=array); strings as arrays of type str, not object.",
        ) from None
    ranks = {info.name: len(info.shape) for info in inputs if info.shape is not None}
    counts = {name: len(array) for name, array in arrays.items() if array.ndim == ranks.get(name, array.ndim) + 1}
    if not counts:
        return [arrays]
    if len(set(counts.values())) > 1 or 0 in counts.values():
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise InputsError(
            f"--inputs {path.name} stacks {told}: all stacks must hold as many samples.",
            "Give each stacked array the same length along its first axis.",
        )
    n_samples = next(iter(counts.values()))
    return [
        {name: array[number] if name in counts else array for name, array in arrays.items()}
        for number in range(n_samples)
    ]


def _load_folder(path: Path, inputs: tuple[InputInfo, ...]) -> dict[str, Array]:
    """Read the `input_*.pb` files of a folder in the layout of ONNX's own test data."""
    from google.protobuf.message import DecodeError
    from onnx import TensorProto, numpy_helper

    arrays: dict[str, Array] = {}
    for position, file in enumerate(sorted(path.glob("input_*.pb"), key=_natural)):
        tensor = TensorProto()
        try:
            tensor.ParseFromString(file.read_bytes())
            array = numpy_helper.to_array(tensor)
        except (DecodeError, ValueError, TypeError, OSError) as error:
            raise InputsError(f"--inputs {file}: this is not a tensor ({error}).") from None
        if not tensor.name and position >= len(inputs):
            raise InputsError(f"--inputs {file}: the model has only {len(inputs)} inputs.")
        arrays[tensor.name or inputs[position].name] = array
    return arrays


def _fit(info: InputInfo, array: Array) -> Array:
    """Return the array in the input's type, after checking that it fits.

    Raises:
        InputsError: It does not fit.
    """
    import numpy as np

    if info.shape is not None:
        same = len(info.shape) == array.ndim and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(info.shape, array.shape, strict=True)
        )
        if not same:
            raise InputsError(
                f"--inputs: {info.name} has shape {format_shape(array.shape)}, "
                f"the model says {format_shape(info.shape)}."
            )
    if info.dtype == "string":
        return array.astype(np.str_)
    wanted = np.dtype(info.dtype) if info.dtype in FLOATS | INTEGERS | {"bool"} else None
    if wanted is None or array.dtype == wanted:
        return array
    if not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise InputsError(f"--inputs: {info.name} is of type {array.dtype}, the model wants {info.dtype}.")
    return array.astype(wanted)


def _synthesise(info: InputInfo, dims: Mapping[str, int], options: InputOptions) -> Tensor:
    if not info.dtype or info.dtype not in FLOATS | INTEGERS | {"bool", "string"}:
        kind = info.dtype or "a sequence, map or optional value"
        raise InputsError(
            f"Input {info.name} is {kind}, which cannot be synthesised.",
            f"Pass real data: --inputs data.npz, with an array called {info.name}.",
        )
    shape, guessed = resolve_shape(info, dims, options.shapes)
    seed = [options.seed, zlib.crc32(info.name.encode())]
    array, origin = _values(info, shape, seed)
    return Tensor(array=array, origin=origin, guessed=guessed)


def resolve_shape(
    info: InputInfo, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the input's sizes, and a description of each that was guessed.

    Args:
        info: The input.
        dims: Sizes by symbolic dimension name.
        shapes: Whole shapes by input name.

    Raises:
        InputsError: The model does not even say how many dimensions there are.
    """
    if info.name in shapes:
        return shapes[info.name], ()
    if info.shape is None:
        raise InputsError(
            f"The model does not say how many dimensions input {info.name} has.",
            f"Pass --shape {info.name}=... or real data with --inputs.",
        )
    sizes, guessed = [], []
    for axis, dim in enumerate(info.shape):
        if isinstance(dim, int):
            sizes.append(dim)
        elif dim is not None and dim in dims:
            sizes.append(dims[dim])
        else:
            size = _guess(info, axis)
            sizes.append(size)
            name = f"axis {axis}" if dim is None or dim in PLACEHOLDERS else dim
            guessed.append(f"{name}={size}")
    return tuple(sizes), tuple(guessed)


def _guess(info: InputInfo, axis: int) -> int:
    """Return a sensible size for an open dimension, by its name, else by its position."""
    shape = info.shape or ()
    dim = shape[axis]
    name = dim if isinstance(dim, str) and dim not in PLACEHOLDERS else ""
    for pattern, size in (
        (BATCH_NAME, BATCH),
        (HEIGHT_NAME, IMAGE_SIDE),
        (CHANNEL_NAME, CHANNELS),
        (SEQUENCE_NAME, SEQUENCE),
    ):
        if name and pattern.fullmatch(name):
            return size
    if axis == 0:
        return BATCH
    rank = len(shape)
    if axis == 1 and rank == 3 and STATE_NAME.search(info.name.lower()):
        return BATCH  # ONNX's recurrent operators keep their state as [directions, batch, size]
    if rank >= 4 and info.dtype in FLOATS | {"uint8"}:
        channels_last = shape[-1] in {1, 3, 4} and shape[1] not in {1, 3, 4}
        if axis == (rank - 1 if channels_last else 1):
            return CHANNELS
        return IMAGE_SIDE if axis >= rank - 2 - channels_last else DEPTH
    # An axis that is one for all neighbours in the graph (a column) would be fixed; open ones are sequences.
    return SEQUENCE


def _values(info: InputInfo, shape: tuple[int, ...], seed: list[int]) -> tuple[Array, str]:
    """Return seeded values that the model accepts, and how they were made."""
    import numpy as np

    rng = np.random.default_rng(seed)
    name = info.name.lower()
    if info.dtype == "string":
        words = info.strings or ("a", "b", "c")
        origin = "one of the strings in the graph" if info.strings else "the letters a, b and c"
        return np.array(rng.choice(np.array(words, dtype=np.str_), shape)), origin
    dtype = np.dtype(info.dtype)
    if info.dtype == "bool" or "mask" in name:
        return np.ones(shape, dtype), "all 1"
    if info.dtype in FLOATS:
        if STATE_NAME.search(name):
            return np.zeros(shape, dtype), "all 0 (a state)"
        return rng.standard_normal(shape).astype(dtype), "random, normal"
    if re.fullmatch(r"sr|.*sample_?rate.*", name):
        return np.full(shape, SAMPLE_RATE, dtype), f"all {SAMPLE_RATE} (a sample rate)"
    if "position" in name and len(shape) > 0:
        steps = np.broadcast_to(np.arange(shape[-1]) % (info.index_size or shape[-1] or 1), shape)
        return steps.astype(dtype), "0, 1, 2, ... (positions)"
    if "token_type" in name or "segment" in name:
        return np.zeros(shape, dtype), "all 0 (one segment)"
    if info.index_size is not None:
        high = min(info.index_size, int(np.iinfo(dtype).max))
        return rng.integers(0, max(high, 1), shape).astype(dtype), f"random, 0 to {high - 1} (rows of a table)"
    if info.dtype == "uint8":
        return rng.integers(0, 256, shape).astype(dtype), "random, 0 to 255"
    return rng.integers(0, 2, shape).astype(dtype), "random, 0 or 1"


def explain_failure(model: ModelInfo, feed: Feed, message: str) -> InputsError:
    """Turn ONNX Runtime's message about a failed first run into one that says which option to pass."""
    lines = [f"The model does not run on these inputs: {message}"]
    for name, tensor in feed.tensors.items():
        guessed = f"; guessed: {', '.join(tensor.guessed)}" if tensor.guessed else ""
        lines.append(f"  {name}: {feed.describe_input(name)}, {tensor.origin}{guessed}")
    by_name = {info.name: info for info in model.inputs}
    options = []
    for name, tensor in feed.tensors.items():
        for dim in by_name[name].shape or ():
            if isinstance(dim, str) and dim not in PLACEHOLDERS and tensor.guessed:
                options.append(f"--dim {dim}=N")
        if tensor.guessed:
            options.append(f"--shape {name}={format_shape(tensor.array.shape)} with other sizes")
    hints = list(dict.fromkeys(options))[:4]
    if re.search(r"indices element out of data bounds|out of (data )?bounds|inclusive range", message):
        hints.insert(0, "--inputs data.npz with integers in the range that the message names")
    elif re.search(r"[Pp]ad", message) or "reflect" in message:
        hints.insert(0, "a longer axis: the model pads its input by reflection, which needs a minimum length")
    elif re.search(r"non concat axis|must match|broadcast|Incompatible", message, re.IGNORECASE):
        hints.insert(0, "sides that are multiples of 32, or sizes that are equal between inputs")
    hints.append("--inputs data.npz (or a test_data_set folder) with real data")
    return InputsError("\n".join(lines), "Try " + "; or ".join(hints) + ".")
