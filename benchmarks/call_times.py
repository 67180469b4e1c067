"""Times calls of a model with onnxruntime and NumPy only, to check what ortune claims.

    python call_times.py MODEL CODE [--seconds 3] [--dim NAME=N]

CODE is a file with Python code that creates `session`, such as one that `ortune apply --to python` writes. If it also
defines a function `run`, this function makes the calls. If it creates `binding`, calls use it: each one copies its
inputs to the device and its outputs back. The inputs of a call are in `inputs`. Calls cycle through three samples of
inputs: random floats, and random zeros and ones for integers. The output is one line of JSON: the median time of a call
in milliseconds in the second half of the calls, the number of calls, the sum of the absolute values of the outputs of
one call with each sample, and the providers of the session.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
N_SAMPLES = 3


def make_samples(model: str, sizes: dict[str, int]) -> list[dict[str, Any]]:
    """Return random inputs. Symbolic dimensions have their size in `sizes`, or 1."""
    rng = np.random.default_rng(1)
    inputs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()
    samples = []
    for _ in range(N_SAMPLES):
        sample = {}
        for model_input in inputs:
            shape = [size if isinstance(size, int) else sizes.get(size, 1) for size in model_input.shape]
            # Token ids and masks: 0 and 1 are valid for both.
            values = rng.random(shape) if model_input.type == "tensor(float)" else rng.integers(0, 2, shape)
            sample[model_input.name] = values.astype(TYPES[model_input.type])
        samples.append(sample)
    return samples


def make_call(scope: dict[str, Any]) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function that calls the session of the code, with the binding if there is one."""
    session, binding = scope["session"], scope.get("binding")
    options = scope.get("run_options")
    if "run" in scope:
        run: Callable[[dict[str, Any]], list[Any]] = scope["run"]
        return run
    if binding is None:
        return lambda inputs: list(session.run(None, inputs, options))
    device = session.get_providers()[0] in ("CUDAExecutionProvider", "TensorrtExecutionProvider")

    def call(inputs: dict[str, Any]) -> list[Any]:
        for name, array in inputs.items():
            if device:
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda"))
            else:
                binding.bind_cpu_input(name, array)
        session.run_with_iobinding(binding, options)
        return list(binding.copy_outputs_to_cpu())

    return call


def main() -> None:
    """Time the calls of the command line."""
    parser = argparse.ArgumentParser(description="Time calls of a model.")
    parser.add_argument("model")
    parser.add_argument("code")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    arguments = parser.parse_args()
    sizes = {name: int(size) for name, _, size in (text.partition("=") for text in arguments.dim)}
    samples = make_samples(arguments.model, sizes)
    with open(arguments.code, encoding="utf-8") as file:  # noqa: PTH123  (onnxruntime and NumPy only)
        code = file.read()
    scope: dict[str, Any] = {"ort": ort, "inputs": samples[0]}
    exec(compile(code, arguments.code, "exec"), scope)
    call = make_call(scope)
    total = sum(float(np.sum(np.abs(output))) for sample in samples for output in call(sample))
    times_s: list[float] = []
    end_s = time.perf_counter() + arguments.seconds
    for sample in itertools.cycle(samples):
        start_s = time.perf_counter()
        call(sample)
        now_s = time.perf_counter()
        times_s.append(now_s - start_s)
        if now_s > end_s:
            break
    half = times_s[len(times_s) // 2 :]  # the first half is warm-up
    found = {"ms": 1e3 * statistics.median(half), "calls": len(times_s), "sum": total}
    print(json.dumps(found | {"providers": scope["session"].get_providers()}))


if __name__ == "__main__":
    main()
