"""Why a candidate cannot be measured, as a value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from ortune.errors import OrtuneError
from ortune.worker.session_log import LINE

FailureKind = Literal["exception", "crash", "exit", "timeout", "out_of_memory", "wrong_output", "not_applied"]

SUDDEN: tuple[FailureKind, ...] = ("crash", "exit", "timeout")

OUT_OF_MEMORY = re.compile(
    r"bad_alloc|bad allocation|failed to allocate|cannot allocate memory|EAGAIN"
    # cuBLAS and cuDNN; CUDA's arena with gpu_mem_limit
    r"|STATUS_ALLOC_FAILED|is smaller than requested bytes"
    # Vulkan: VK_ERROR_OUT_OF_DEVICE_MEMORY; Direct3D: E_OUTOFMEMORY; CUDA: CUDA_ERROR_OUT_OF_MEMORY
    r"|out[ _]?of[ _]?(?:(?:device|host|pool)[ _])?memory"
    # Dawn, for a tensor that no buffer of the GPU can hold
    r"|exceeds the max buffer size limit",
    re.IGNORECASE,
)
"""What libraries write in the message of an exception when memory runs out."""

CONSEQUENCE = "is invalid due to a previous error"
"""What Dawn, on which WebGPU runs, writes in the message of an exception after an error that is only in the log."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a candidate cannot be measured. It is a value: the search goes on without the candidate.

    Attributes:
        kind: "exception" (ONNX Runtime raised one), "crash" (a signal ended the process), "exit" (the process exited),
            "timeout", "out_of_memory", "wrong_output" (the outputs differ from the baseline's), or "not_applied"
            (ONNX Runtime accepted a setting that did not take effect).
        stage: What the worker was doing: "start", "build", "load", "check", "files" (it wrote a file for other workers)
            or "measure"; "skipped" if there was no time to compile the model for this candidate.
        message: Human-readable cause.
    """

    kind: FailureKind
    stage: str
    message: str

    @property
    def is_sudden(self) -> bool:
        """Whether a process ended or stopped to answer, which may have nothing to do with the candidate."""
        return self.kind in SUDDEN and self.stage not in {"build", "skipped"}

    @property
    def is_of_candidate(self) -> bool:
        """Whether the candidate itself was tried and failed, as far as is known."""
        return not self.is_sudden and self.stage != "skipped"

    @property
    def title(self) -> str:
        """The kind in words."""
        return self.kind.replace("_", " ")


def make_failure(error: BaseException, stage: str) -> Failure:
    """Return an exception as a failure of this stage."""
    if isinstance(error, SystemExit):
        return Failure(kind="exit", stage=stage, message=f"the process called exit with status {error.code}")
    # The hint of an OrtuneError is advice on a command. The user did not choose this candidate.
    message = error.message if isinstance(error, OrtuneError) else f"{error}".strip() or type(error).__name__
    is_out_of_memory = isinstance(error, MemoryError) or OUT_OF_MEMORY.search(message)
    return Failure(kind="out_of_memory" if is_out_of_memory else "exception", stage=stage, message=message)


def find_cause(failure: Failure, log: Sequence[str]) -> Failure:
    """Return a failure with the cause that the log of its process has, if its message only refers to an earlier error.

    Args:
        failure: The failure.
        log: The last lines of the log.
    """
    if failure.kind != "exception" or CONSEQUENCE not in failure.message:
        return failure
    errors = [found[1] for line in log if (found := LINE.fullmatch(line)) and OUT_OF_MEMORY.search(line)]
    return msgspec.structs.replace(failure, kind="out_of_memory", message=errors[0]) if errors else failure
