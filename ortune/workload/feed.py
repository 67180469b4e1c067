"""Input data of the model: samples with a tensor for each input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.workload.workload import InputData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options for inputs.

    Attributes:
        dims: Sizes by name of a symbolic dimension. Each of several sizes is a separate case; all cases have the same
            weight.
        shapes: Whole shapes by input name.
        cases: For each case, whole shapes by input name, as in a record; empty where `dims` defines the cases.
        data: An .npz file with an array for each input, optionally with an additional first axis for many samples; or
            a folder with `input_0.pb`, `input_1.pb`, ..., with several such folders, or with several .npz files.
        seed: Random seed of the synthesized values.
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
        origin: Source of values and sizes, as shown to the user.
        guessed: The dimensions that were guessed, as "axis 2 = 224".
    """

    array: Array
    origin: str
    guessed: tuple[str, ...] = ()


Sample = dict[str, Tensor]
"""Input of one call, by input name."""


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """Samples, which calls use in turn.

    Attributes:
        samples: At least one, each with all inputs.
        cases: The case that each sample belongs to. Percentiles are computed for each case, and all cases have the
            same weight: the median of calls with one and with eight images would describe neither.
        options: The user's options from which it was made.
    """

    samples: tuple[Sample, ...]
    cases: tuple[int, ...] = (0,)
    options: InputOptions = InputOptions()

    @property
    def tensors(self) -> Sample:
        """The first sample."""
        return self.samples[0]

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return len(set(self.cases))

    def describe(self) -> dict[str, InputData]:
        """Return a description of each input for the record."""
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

        # Positional names, because the name of an input may contain characters that a file name cannot.
        arrays: dict[str, Any] = {
            f"{number:06}-{position:04}": tensor.array
            for number, sample in enumerate(self.samples)
            for position, tensor in enumerate(sample.values())
        }
        with path.open("wb") as file:
            np.savez(file, names=np.array(list(self.tensors), dtype=np.str_), cases=np.array(self.cases), **arrays)


def load_feed(path: Path) -> tuple[list[dict[str, Array]], list[int]]:
    """Read the samples and their cases that `Feed.save` wrote.

    Strings are object arrays, as ONNX Runtime expects them.
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
