"""A program that does not use ortune. It runs models in various ways, one for each function below.

Its arguments are a model with an image as input, a model of texts, and names of functions.
"""

import multiprocessing
import os
import sys
import threading
from pathlib import Path

if os.environ.get("LIGHT_SESSIONS"):
    import light

    light.install()

import numpy as np
import onnxruntime as ort

CNN, ENCODER = sys.argv[1:3]
IMAGE = {"image": np.ones((1, 3, 32, 32), np.float32)}


def texts(length):
    return {name: np.ones((1, length), np.int64) for name in ("input_ids", "attention_mask")}


def mix():
    """Two models, a mix of lengths, options."""
    image = ort.InferenceSession(CNN)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_free_dimension_override_by_name("nothing", 1)
    text = ort.InferenceSession(ENCODER, options, providers=["CPUExecutionProvider"])
    for number in range(100):
        image.run(None, IMAGE)
        text.run(None, texts(8 if number % 4 else 32))


def methods():
    """All methods that run a model."""
    session = ort.InferenceSession(CNN)
    session.run(None, IMAGE)
    session.run(output_names=None, input_feed=IMAGE)
    value = ort.OrtValue.ortvalue_from_numpy(IMAGE["image"])
    session.run_with_ort_values(None, {"image": value})
    binding = session.io_binding()
    binding.bind_cpu_input("image", IMAGE["image"])
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding)
    ended = threading.Event()
    found = []

    def callback(results, user_data, error):
        found.append((len(results), user_data, error))
        ended.set()

    session.run_async(None, IMAGE, callback, "own")
    ended.wait(60)
    print(found)
    try:
        session.run(None, {"image": np.zeros((1, 3, 32), np.float32)})
    except Exception as error:  # noqa: BLE001
        print(type(error).__name__)


def threads():
    """Calls that overlap."""
    session = ort.InferenceSession(ENCODER)
    barrier = threading.Barrier(3)

    def call():
        for _ in range(20):
            barrier.wait()
            session.run(None, {name: np.ones((64, 64), np.int64) for name in texts(1)})

    own = [threading.Thread(target=call) for _ in range(3)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()


def _work(n_calls):
    session = ort.InferenceSession(CNN)
    for _ in range(n_calls):
        session.run(None, IMAGE)


def _start(method):
    children = [multiprocessing.get_context(method).Process(target=_work, args=(n,)) for n in (3, 5)]
    for child in children:
        child.start()
    for child in children:
        child.join()


def forked():
    _start("fork")


def spawned():
    _start("spawn")


def left():
    """A child that uses a session of its parent, and ends by os._exit."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(CNN, options)
    for _ in range(7):
        session.run(None, IMAGE)
    child = os.fork()
    if not child:
        for _ in range(4):
            session.run(None, IMAGE)
        os._exit(0)
    os.waitpid(child, 0)


def by_bytes():
    ort.InferenceSession(Path(CNN).read_bytes()).run(None, IMAGE)
    ort.InferenceSession(CNN).run(None, IMAGE)


def many():
    """More sessions than are described."""
    for _ in range(260):
        ort.InferenceSession(CNN).run(None, IMAGE)


if __name__ == "__main__":
    for way in sys.argv[3:]:
        globals()[way]()
