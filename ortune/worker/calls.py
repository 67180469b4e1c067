"""How calls reach a session: by plain `run`, through IO binding, and spread over several sessions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortune.knobs.config import Config
from ortune.worker.session import CUDA_BASED, make_run_options

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
    from numpy.typing import NDArray

Sample = dict[str, Any]
Call = Callable[[Sample], list[Any]]

GRAPH_OPTIONS = frozenset({"enable_cuda_graph", "trt_cuda_graph_enable"})
"""Provider options that replay a captured graph: inputs and outputs must then stay at their addresses."""


def make_call(
    sessions: Sequence[onnxruntime.InferenceSession], config: Config, reference: Sequence[NDArray[np.generic]] | None
) -> Call:
    """Return a function that makes one call with one sample and returns its outputs.

    Of several sessions, each thread that calls gets one of its own, in turn.

    Args:
        sessions: All with the same model.
        config: How they are called.
        reference: Outputs of an earlier run, for their shapes, or None while there are none.
    """
    names = [output.name for output in sessions[0].get_outputs()]
    if config.io_binding:
        return _each_thread(lambda number: BoundCall(sessions[number], names, config, reference), len(sessions))
    options = make_run_options(config)

    def plain(session: onnxruntime.InferenceSession) -> Call:
        run = session.run
        return lambda sample: list(run(names, sample, options))

    if len(sessions) == 1:
        return plain(sessions[0])
    return _each_thread(lambda number: plain(sessions[number]), len(sessions))


def _each_thread(make: Callable[[int], Call], n_sessions: int) -> Call:
    """Return a call that each thread makes in its own way."""
    local = threading.local()
    numbers = itertools.count()

    def call(sample: Sample) -> list[Any]:
        own = getattr(local, "call", None)
        if own is None:
            own = local.call = make(next(numbers) % n_sessions)
        outputs: list[Any] = own(sample)
        return outputs

    return call


class BoundCall:
    """Calls a session through IO binding.

    On the CPU, inputs are used where they lie, and outputs are left where ONNX Runtime put them. On a GPU, each call
    copies its inputs to buffers that are kept there, and its outputs back, as a caller must whose data come from
    elsewhere; so what is saved are the allocations. Under a captured graph the outputs have fixed buffers as well.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        names: Sequence[str],
        config: Config,
        reference: Sequence[NDArray[np.generic]] | None,
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._options = make_run_options(config)
        self._device = "cuda" if config.provider in CUDA_BASED else "cpu"
        self._inputs: dict[str, Any] = {}
        self._changing: list[str] = []
        captured = any(GRAPH_OPTIONS & options.keys() for _, options in config.providers)
        if captured and reference is not None:
            import onnxruntime

            for name, array in zip(names, reference, strict=True):
                fixed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, self._device)
                self._binding.bind_ortvalue_output(name, fixed)
        else:
            # ONNX Runtime fills the buffers of the last call again, and fails where the shape is another.
            fixed_shapes = all(isinstance(size, int) for output in session.get_outputs() for size in output.shape)
            if not fixed_shapes:
                self._changing = list(names)
            for name in names:
                self._binding.bind_output(name, self._device)

    def __call__(self, sample: Mapping[str, NDArray[np.generic]]) -> list[Any]:
        """Make one call."""
        binding = self._binding
        for name in self._changing:
            binding.bind_output(name, self._device)
        if self._device == "cpu":
            for name, array in sample.items():
                binding.bind_cpu_input(name, array)
            self._session.run_with_iobinding(binding, self._options)
            return list(binding.get_outputs())
        self._fill(sample)
        self._session.run_with_iobinding(binding, self._options)
        return list(binding.copy_outputs_to_cpu())

    def _fill(self, sample: Mapping[str, NDArray[np.generic]]) -> None:
        import onnxruntime

        for name, array in sample.items():
            value = self._inputs.get(name)
            if value is not None and tuple(value.shape()) == array.shape:
                value.update_inplace(array)
            else:
                value = self._inputs[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, self._device)
                self._binding.bind_ortvalue_input(name, value)


def to_arrays(outputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of a call as plain `run` returns them."""
    # A copy: the next call may fill the same buffer.
    return [output.numpy().copy() if hasattr(output, "numpy") else output for output in outputs]
