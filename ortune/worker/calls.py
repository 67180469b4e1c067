"""Ways to call a session: with `run`, with IO binding, and distributed over several sessions."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortune.knobs.captures import captures_graphs
from ortune.knobs.config import CUDA_BASED, Config
from ortune.worker.gpu import find_number
from ortune.worker.session import make_run_options, make_session

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
    from numpy.typing import NDArray

Sample = dict[str, Any]
Call = Callable[[Sample], list[Any]]

DEVICES = {**dict.fromkeys(CUDA_BASED, "cuda"), "WebGpuExecutionProvider": "gpu"}
"""Name of a provider's device in calls with IO binding; "cpu" for others."""


def make_call(
    sessions: Sequence[onnxruntime.InferenceSession], config: Config, reference: Sequence[NDArray[np.generic]] | None
) -> Call:
    """Return a function that makes one call with one sample and returns its outputs.

    If there are several sessions, they are assigned in turn to the threads that call.

    Args:
        sessions: Sessions of the same model.
        config: The config of the sessions.
        reference: Outputs of an earlier run, for their shapes; None if there was none.
    """
    names = [output.name for output in sessions[0].get_outputs()]
    if config.io_binding:
        return _make_call_per_thread(
            lambda number: BoundCall(sessions[number], names, config, reference), len(sessions)
        )
    options = make_run_options(config)

    def make_plain_call(session: onnxruntime.InferenceSession) -> Call:
        run = session.run
        return lambda sample: list(run(names, sample, options))

    if len(sessions) == 1:
        return make_plain_call(sessions[0])
    return _make_call_per_thread(lambda number: make_plain_call(sessions[number]), len(sessions))


def _make_call_per_thread(make: Callable[[int], Call], n_sessions: int) -> Call:
    """Return a call that has its own instance in each thread.

    Args:
        make: Makes an instance for the session with this number.
        n_sessions: Number of sessions.
    """
    local = threading.local()
    numbers = itertools.count()

    def call(sample: Sample) -> list[Any]:
        call_of_thread = getattr(local, "call", None)
        if call_of_thread is None:
            call_of_thread = local.call = make(next(numbers) % n_sessions)
        outputs: list[Any] = call_of_thread(sample)
        return outputs

    return call


class BoundCall:
    """A call with IO binding.

    On the CPU, inputs are used in place, and outputs stay in the buffers that ONNX Runtime allocated. On a GPU, each
    call copies its inputs to buffers that are reused, and its outputs back to the host, as a caller with data on the
    host must. IO binding then saves only the allocations. With a captured graph, outputs have fixed buffers, too.

    With WebGPU, onnxruntime cannot allocate values on the GPU from Python. Outputs stay there if they are bound to it,
    and ONNX Runtime copies inputs, except with a captured graph, which needs them in fixed buffers.

    Args:
        session: The session to call.
        names: Names of its outputs.
        config: The config of the session.
        reference: Outputs of an earlier run, for their shapes; None if there was none.
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
        self._config = config
        self._device = DEVICES.get(config.provider, "cpu")
        self._place = self._device, find_number(config) if self._device == "cuda" else 0
        captured = captures_graphs(config)
        self._allocates = self._device != "gpu"  # whether onnxruntime can allocate values on the device
        self._copies = self._device == "cuda" or (captured and self._device != "cpu")
        self._inputs: dict[str, Any] = {}
        self._owners: list[Any] = []  # sessions whose memory the inputs are
        self._rebound: list[str] = []
        if captured and self._allocates and reference is not None:
            import onnxruntime

            for name, array in zip(names, reference, strict=True):
                fixed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype, *self._place)
                self._binding.bind_ortvalue_output(name, fixed)
        else:
            # ONNX Runtime reuses the output buffers of the previous call, and fails if the shape differs. A captured
            # graph always writes to those of the first call, and only works with constant shapes.
            has_fixed_shapes = all(isinstance(size, int) for output in session.get_outputs() for size in output.shape)
            if not has_fixed_shapes and not captured:
                self._rebound = list(names)
            for name in names:
                self._binding.bind_output(name, *self._place)

    def __call__(self, sample: Mapping[str, NDArray[np.generic]]) -> list[Any]:
        """Make one call with one sample, and return its outputs."""
        binding = self._binding
        for name in self._rebound:
            binding.bind_output(name, *self._place)
        if self._copies:
            self._copy_inputs(sample)
        else:
            for name, array in sample.items():
                binding.bind_cpu_input(name, array)
        self._session.run_with_iobinding(binding, self._options)
        return list(binding.get_outputs() if self._device == "cpu" else binding.copy_outputs_to_cpu())

    def _copy_inputs(self, sample: Mapping[str, NDArray[np.generic]]) -> None:
        import onnxruntime

        for name, array in sample.items():
            value = self._inputs.get(name)
            if value is not None and tuple(value.shape()) == array.shape:
                if self._allocates:
                    value.update_inplace(array)
                else:
                    onnxruntime.copy_tensors([onnxruntime.OrtValue.ortvalue_from_numpy(array)], [value])
                continue
            if self._allocates:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(array, *self._place)
            else:
                value, owner = make_device_value(array, self._config, self._device)
                self._owners.append(owner)
            self._inputs[name] = value
            self._binding.bind_ortvalue_input(name, value)


def make_device_value(array: NDArray[np.generic], config: Config, device: str) -> tuple[Any, Any]:
    """Return a copy of an array on the device of a provider, for which onnxruntime cannot allocate values from Python.

    It is the output of a graph that copies its input. Its memory is that of the session, which is returned, too.

    Args:
        array: The array.
        config: A config whose first provider has the device.
        device: Name of the device.
    """
    from ortune.model.onnx_file import encode_identity

    plugins = {name: plugin for name, plugin in config.plugins.items() if name == config.provider}
    # A call of this session is the only one.
    copying = Config(providers=config.providers[:1], plugins=plugins).without_captures()
    session = make_session(encode_identity(array.dtype, array.shape), copying)
    binding = session.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y", device)
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0], (binding, session)


def to_arrays(outputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of a call as `run` returns them."""
    # Copy them, because the next call may write to the same buffer.
    return [output.numpy().copy() if hasattr(output, "numpy") else output for output in outputs]
