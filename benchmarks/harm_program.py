"""A program that another library slows down, and one with nothing to gain.

    python harm_program.py MODEL blas|plain

blas: between the calls of a session with ONNX Runtime's defaults, it multiplies matrices with NumPy, whose BLAS has
threads of its own. The threads of the session spin meanwhile.

plain: it hashes a small buffer many times, and calls a session of a single small addition with one thread. No setting
of ONNX Runtime, of BLAS or of an allocator changes how long that takes. With a buffer of 8 MB, which no private cache
holds, an allocator that uses large pages gains about 1% where other programs use the caches, too.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import onnxruntime

MATRIX_SIZE = 640
"""Rows and columns of the matrices: a product takes some milliseconds."""

HASHED_BYTES = 256 << 10
N_HASHES = 32
"""Size of the buffer, which stays in the caches of a core, and how often it is hashed: for some milliseconds."""


class Program:
    """The program. Its function `step` is what is timed.

    Args:
        path: Path of the model.
        how: "blas" or "plain".
    """

    def __init__(self, path: str, how: str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if how == "plain":
            options.intra_op_num_threads = 1
        self._how = how
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(0)
        self._feed = {
            model_input.name: rng.standard_normal(
                [size if isinstance(size, int) else 1 for size in model_input.shape], np.float32
            )
            for model_input in self._session.get_inputs()
        }
        self._buffer = rng.bytes(HASHED_BYTES)
        self._matrix = rng.standard_normal((MATRIX_SIZE, MATRIX_SIZE), np.float32)

    def step(self) -> None:
        """Do one piece of work."""
        self._session.run(None, self._feed)
        if self._how == "blas":
            self._matrix @ self._matrix
        else:
            for _ in range(N_HASHES):
                hashlib.sha256(self._buffer).digest()


def main() -> None:
    """Work until the program is ended."""
    program = Program(sys.argv[1], sys.argv[2])
    while True:
        program.step()


if __name__ == "__main__":
    main()
