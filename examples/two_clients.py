"""Call a model from two threads that share a session, and print the rate. This program does not know ortune.

python examples/two_clients.py MODEL [--clients 2] [--calls 200]
"""

import argparse
import threading
import time

import numpy
import onnxruntime

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="path of the ONNX file; its inputs must be float32")
parser.add_argument("--clients", type=int, default=2, help="number of threads")
parser.add_argument("--calls", type=int, default=200, help="calls of each thread")
arguments = parser.parse_args()

session = onnxruntime.InferenceSession(arguments.model, providers=["CPUExecutionProvider"])
feed = {
    model_input.name: numpy.ones([size if isinstance(size, int) else 1 for size in model_input.shape], numpy.float32)
    for model_input in session.get_inputs()
}


def predict() -> None:
    session.run(None, feed)


def call() -> None:
    for _ in range(arguments.calls):
        predict()


predict()
threads = [threading.Thread(target=call) for _ in range(arguments.clients)]
start = time.perf_counter()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
rate = arguments.clients * arguments.calls / (time.perf_counter() - start)
print(f"{rate:.1f} calls per second")
