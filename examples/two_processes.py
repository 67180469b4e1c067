"""Call a model from two processes, each with a session, and print the rate. This program does not know ortune.

python examples/two_processes.py MODEL [--processes 2] [--seconds 5]
"""

import argparse
import multiprocessing
import time

import numpy
import onnxruntime


def call(model: str, seconds: float) -> int:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feed = {
        model_input.name: numpy.ones(
            [size if isinstance(size, int) else 1 for size in model_input.shape], numpy.float32
        )
        for model_input in session.get_inputs()
    }
    session.run(None, feed)
    n_calls = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        session.run(None, feed)
        n_calls += 1
    return n_calls


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="path of the ONNX file; its inputs must be float32")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    parser.add_argument("--seconds", type=float, default=5, help="time for which each process calls the model")
    arguments = parser.parse_args()
    work = [(arguments.model, arguments.seconds)] * arguments.processes
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        calls = pool.starmap(call, work, chunksize=1)
    print(f"{sum(calls) / arguments.seconds:.1f} calls per second")
