"""Classify images in two processes, each with a session of its own. The path of the model is in the variable MODEL."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time

import numpy as np
import onnxruntime


def classify(seed: int, n_images: int, ready: multiprocessing.Barrier) -> None:  # type: ignore[valid-type]
    """Classify images one after another, as soon as all processes have loaded the model."""
    session = onnxruntime.InferenceSession(os.environ["MODEL"], providers=["CPUExecutionProvider"])
    image = np.random.default_rng(seed).random((1, 3, 224, 224), dtype=np.float32)
    feed = {session.get_inputs()[0].name: image}
    session.run(None, feed)
    ready.wait()  # type: ignore[attr-defined]
    for _ in range(n_images):
        session.run(None, feed)
    ready.wait()  # type: ignore[attr-defined]


def main() -> None:
    """Classify as many images as the first argument says in each process, and print how many a second that were."""
    n_images = int(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    processes = [context.Process(target=classify, args=(seed, n_images, ready)) for seed in range(2)]
    for process in processes:
        process.start()
    ready.wait()
    start_s = time.perf_counter()
    ready.wait()
    print(f"{2 * n_images / (time.perf_counter() - start_s):.1f} images/s")
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
