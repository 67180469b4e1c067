"""Sessions that take next to no CPU time, for programs of which something else is tested.

The import of onnxruntime and NumPy takes a third of a second of CPU time in each process, and threads that wait for the
next call keep a CPU busy. `install` puts modules in their place that have only what the programs of this folder use:
sessions with options. They call it if the variable LIGHT_SESSIONS is set.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

INPUTS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "tiny_cnn.onnx": {"image": (1, 3, 32, 32)},
    "tiny_encoder.onnx": {"input_ids": ("batch", "sequence"), "attention_mask": ("batch", "sequence")},
}
"""Shapes of the inputs of models, by the names of their files."""


class Array:
    """An array whose elements are all the same."""

    def __init__(self, shape: Sequence[int], dtype: str, value: float = 1.0) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.value = value

    def __add__(self, other: float) -> Array:
        return Array(self.shape, self.dtype, self.value + other)


def sum_up(array: Array) -> float:
    """Return the sum of all elements, as `numpy.sum` does."""
    return array.value * math.prod(array.shape)


def make_attribute(name: str, default: object) -> property:
    """Return an attribute of options. The hook replaces it, as that of onnxruntime."""

    def write(options: SessionOptions, value: object) -> None:
        options.values[name] = value

    return property(lambda options: options.values.get(name, default), write)


class GraphOptimizationLevel(enum.Enum):
    """Levels of optimization."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class SessionOptions:
    """Options of a session."""

    intra_op_num_threads = make_attribute("intra_op_num_threads", 0)
    graph_optimization_level = make_attribute("graph_optimization_level", GraphOptimizationLevel.ORT_ENABLE_ALL)
    enable_cpu_mem_arena = make_attribute("enable_cpu_mem_arena", True)
    log_severity_level = make_attribute("log_severity_level", -1)
    use_per_session_threads = make_attribute("use_per_session_threads", True)

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, name: str, text: str) -> None:
        """Set an entry."""
        self.entries[name] = text

    def get_session_config_entry(self, name: str) -> str:
        """Return an entry."""
        if name not in self.entries:
            raise RuntimeError(name)
        return self.entries[name]


class RunOptions:
    """Options of a call. There are none."""


class IOBinding:
    """A binding, which no program of this folder uses."""


class InferenceSession:
    """A session. Its arguments are those of onnxruntime."""

    def __init__(
        self,
        path_or_bytes: str,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[dict[str, str]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._inputs = INPUTS[Path(path_or_bytes).name]
        self._options = sess_options or SessionOptions()

    def get_session_options(self) -> SessionOptions:
        """Return the options that it has."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the names of its execution providers."""
        return ["CPUExecutionProvider"]

    def get_inputs(self) -> list[SimpleNamespace]:
        """Return its inputs."""
        return [SimpleNamespace(name=name, shape=list(shape)) for name, shape in self._inputs.items()]

    def run(self, output_names: Sequence[str] | None, input_feed: dict[str, Any], run_options: Any = None) -> list[Any]:
        """Return the only output."""
        assert set(input_feed) == set(self._inputs)
        return [Array((1, 10), "float32", 0.1)]


COLLECTION = "onnxruntime.capi.onnxruntime_inference_collection"
"""The module that the hook looks for."""

OPTIONS = {"SessionOptions": SessionOptions, "RunOptions": RunOptions}

MODULES: dict[str, dict[str, Any]] = {
    "numpy": {
        "ones": Array,
        "sum": sum_up,
        "float32": "float32",
        "int64": "int64",
    },
    "onnxruntime": {
        "__version__": "1.32.0",
        "GraphOptimizationLevel": GraphOptimizationLevel,
        "InferenceSession": InferenceSession,
        "get_available_providers": lambda: ["CPUExecutionProvider"],
        **OPTIONS,
    },
    "onnxruntime.capi": {},
    COLLECTION: {
        "C": SimpleNamespace(**OPTIONS),
        "InferenceSession": InferenceSession,
        "IOBinding": IOBinding,
    },
}
"""What is in each module."""


class LightFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds these modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return how a module is imported."""
        if name not in MODULES:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=name != COLLECTION)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        vars(module).update(MODULES[module.__name__])
        if module.__name__ == "onnxruntime":
            importlib.import_module(COLLECTION)


def install() -> None:
    """Let this process find these modules instead of the installed ones."""
    # After the finder of the hook, which asks the others.
    places = [place for place, finder in enumerate(sys.meta_path) if "ortune" in type(finder).__module__]
    sys.meta_path.insert(max(places, default=-1) + 1, LightFinder())
