"""The messages between the parent and a worker, and the pipe that carries them.

ONNX Runtime and custom operators print to stdout, so the messages go through a pipe of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

import msgspec

from ortune.knobs.config import Config
from ortune.worker.block import BlockPlan, GpuState, Memory
from ortune.worker.failure import Failure
from ortune.worker.session_info import Runtime, SessionInfo
from ortune.workload import Tolerance


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create the session, run it once, and compare its outputs with the reference.

    Attributes:
        reference_path: File with the default's outputs; the worker writes it if `is_reference`.
        n_sessions: Sessions of the model that run side by side.
        quanta: By output: the step between neighbouring values of outputs that are dequantized at the end.
        compare_values: Whether values are compared; else types and shapes alone.
        memory_limit_bytes: Private memory that the worker may take, or None.
        usable: CPUs on which foreign use is watched.
        background_load: Process id of the background load, or None. Its CPU use is part of the load, not noise.
    """

    model_path: str
    config: Config
    feed_path: str
    reference_path: str
    is_reference: bool
    n_sessions: int = 1
    tolerance: Tolerance
    quanta: dict[str, float]
    compare_values: bool
    memory_limit_bytes: int | None
    usable: tuple[int, ...]
    background_load: int | None


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Measure one block."""

    plan: BlockPlan


Request = LoadRequest | MeasureRequest


class LoadedReply(msgspec.Struct, frozen=True, tag=True):
    """The session is there."""

    loaded: SessionInfo
    runtime: Runtime


class BlockReply(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A block was measured. The arrays are little-endian 64-bit integers; see `Block` for what they mean."""

    samples: bytes
    cases: bytes | None
    n_calls: float
    wall_ns: int
    lead_in_ns: int
    service_ns: float
    cpu_ns: int
    cpu_between_ns: float | None
    creations: bytes | None
    memory: Memory
    foreign_share: float | None
    contended: bool
    gpu: GpuState | None = None


class FailureReply(msgspec.Struct, frozen=True, tag=True):
    """It did not work."""

    failure: Failure


Reply = LoadedReply | BlockReply | FailureReply

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a worker and return it with the parent's end of its pipe.

    Args:
        command: Program and arguments; the worker's end of the pipe is appended as a last argument.
        environment: Its whole environment.
        log: Where its stdout and stderr go.
    """
    here, there = Pipe(duplex=True)
    inherited: dict[str, Any]
    if sys.platform == "win32":  # pragma: no cover
        os.set_handle_inheritable(there.fileno(), True)
        inherited = {
            "startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [there.fileno()]}),
            "creationflags": subprocess.CREATE_NEW_PROCESS_GROUP,
        }
    else:
        # A process group of its own: Ctrl-C reaches the parent alone, which ends its workers in order.
        inherited = {"pass_fds": [there.fileno()], "process_group": 0}
    try:
        process = subprocess.Popen(
            [*command, str(there.fileno())],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **inherited,
        )
    except BaseException:
        here.close()
        raise
    finally:
        there.close()
    return process, here


def connect(handle: str) -> Connection:
    """Return the worker's end of the pipe, given the last argument of its command line."""
    if sys.platform == "win32":  # pragma: no cover
        from multiprocessing.connection import PipeConnection

        return PipeConnection(int(handle))  # type: ignore[no-any-return]
    return Connection(int(handle))
