"""A program that does not use ortune. It creates sessions in various ways and prints the options that they have.

Its arguments are a model and names of functions below, each of which prints a line of JSON.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path


def describe(session):
    import numpy as np

    read = session.get_session_options()
    image = np.linspace(-1, 1, 3 * 32 * 32, dtype=np.float32).reshape(1, 3, 32, 32)
    names = [model_input.name for model_input in session.get_inputs()]
    output = session.run(None, {"image": image})[0].ravel().tolist() if names == ["image"] else None

    def entry(name):
        try:
            return read.get_session_config_entry(name)
        except RuntimeError:
            return None

    return {
        "intra": read.intra_op_num_threads,
        "level": read.graph_optimization_level.name,
        "spinning": entry("session.intra_op.allow_spinning"),
        "affinity": entry("session.intra_op_thread_affinities"),
        "severity": read.log_severity_level,
        "providers": session.get_providers(),
        "output": output,
        "kind": type(session).__name__,
    }


def own_options(**attributes):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in attributes.items():
        setattr(options, name, value)
    return options


def by_path(model):
    import onnxruntime

    return describe(onnxruntime.InferenceSession(model))


def by_bytes(model):
    from onnxruntime import InferenceSession

    return describe(InferenceSession(Path(model).read_bytes(), providers=["CPUExecutionProvider"]))


def by_pathlike(model):
    import onnxruntime

    return describe(onnxruntime.InferenceSession(path_or_bytes=Path(model), sess_options=None))


def explicit(model):
    import onnxruntime

    options = own_options(intra_op_num_threads=2, log_severity_level=3)
    options.add_session_config_entry("session.intra_op_thread_affinities", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    description = describe(onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"]))
    # The program's own object must not change.
    return {
        **description,
        "own": [options.intra_op_num_threads, options.get_session_config_entry("session.intra_op_thread_affinities")],
    }


def subclass(model):
    import onnxruntime

    class Model(onnxruntime.InferenceSession):
        def __init__(self, path):
            super().__init__(path, own_options(intra_op_num_threads=2))

    session = Model(model)
    assert isinstance(session, onnxruntime.InferenceSession)
    return describe(session)


def shared(model):
    """Options that two models share. Tuned options of one model must not reach the other."""
    import onnxruntime

    options = own_options(intra_op_num_threads=2)
    onnxruntime.InferenceSession(model, options)
    return describe(onnxruntime.InferenceSession(os.environ["OTHER_MODEL"], options))


def broken(model):
    import onnxruntime

    try:
        onnxruntime.InferenceSession(model + ".missing")
    except Exception as error:  # noqa: BLE001
        return {"error": type(error).__name__}


def _child(model, queue):
    queue.put(by_path(model))


def _in_child(method, model):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_child, args=(model, queue))
    child.start()
    description = queue.get(timeout=60)
    child.join()
    return description


def spawned(model):
    return _in_child("spawn", model)


def forked(model):
    return _in_child("fork", model)


def forked_after_import(model):
    import onnxruntime  # noqa: F401

    return _in_child("fork", model)


def nothing(model):
    return {"onnxruntime": "onnxruntime" in sys.modules, "numpy": "numpy" in sys.modules, "path": sys.path[:3]}


if __name__ == "__main__":
    for way in sys.argv[2:]:
        print(json.dumps(globals()[way](sys.argv[1])), flush=True)
