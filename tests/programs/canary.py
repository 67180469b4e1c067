"""A program that does not use ortune. It makes calls of a model in several processes.

Its arguments are a model and one of the functions below. Each process prints its id and the threads of its session.
"""

import contextlib
import os
import signal
import sys
import threading
import time

if os.environ.get("LIGHT_SESSIONS"):
    import light

    light.install()

import numpy as np
import onnxruntime as ort

MODEL = sys.argv[1]
IMAGE = {"image": np.ones((1, 3, 32, 32), np.float32)}


def make_session():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    return ort.InferenceSession(MODEL, options)


def work(session, n_calls=30):
    for _ in range(n_calls):
        session.run(None, IMAGE)
    # In one piece, as processes share stdout.
    os.write(1, f"{os.getpid()} {session.get_session_options().intra_op_num_threads}\n".encode())


def once():
    work(make_session())


def threads():
    session = make_session()
    own = [threading.Thread(target=work, args=(session, 500)) for _ in range(4)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()


def failing():
    session = make_session()
    work(session)
    for _ in range(3):
        with contextlib.suppress(Exception):
            session.run(None, {"another": IMAGE["image"]})


def _fork(count, child):
    children = []
    for _ in range(count):
        pid = os.fork()
        if not pid:
            child()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def forks():
    """Each child creates its own session, as the workers of a server do."""
    _fork(6, once)


def inherits():
    """The children use the session of their parent."""
    session = ort.InferenceSession(MODEL, _single())
    work(session)
    _fork(3, lambda: work(session, 40))


def _single():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def killed():
    """The process is killed some time after its calls began."""
    session = make_session()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        session.run(None, IMAGE)
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGKILL)


def terminated():
    """The process ends by a signal that it sends to itself, as workers of uvicorn do."""
    work(make_session())
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    globals()[sys.argv[2]]()
