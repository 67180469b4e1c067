"""The messages between the parent and a worker, and the pipe that carries them.

The pipe is separate from stdout, because ONNX Runtime and custom operators print to stdout.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, TYPE_CHECKING, Any

import msgspec

from ortune.knobs.config import Config
from ortune.worker.block import Block, BlockFigures, BlockPlan
from ortune.worker.failure import Failure, make_failure
from ortune.worker.session_info import Runtime, SessionInfo
from ortune.workload import Tolerance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to create the sessions, run them once, and compare the outputs with the reference.

    Attributes:
        model_path: Path of the ONNX file.
        config: Settings of the sessions.
        feed_path: File with the samples; see `ortune.workload.feed.load_feed`.
        reference_path: File with the reference outputs. The worker writes it if `is_reference` is set.
        is_reference: Whether this candidate is the baseline that the others are compared with.
        n_sessions: Number of sessions in the worker, all of the same model.
        tolerance: Tolerance for differences in outputs.
        quanta: For each output that is dequantized at the end: the step between two adjacent values.
        compare_values: Whether to compare values. If not, only types and shapes are compared.
        repeats: Number of times that the compared samples are run again at launch, at most. If it is not 0, one of them
            is also run again before each block.
        is_baseline: Whether it is the config whose outputs are the reference, also in later launches. That its outputs
            differ in a repeated call is then no fault of a candidate.
        memory_limit_bytes: Maximum private memory of the worker; None for no limit.
        usable: CPUs on which the use by other processes is monitored.
        n_cores: Number of physical cores that these CPUs belong to; 0 if unknown.
        background_load: Process id of the background load, or None. Its CPU use is not counted as noise.
        check_waiting: Whether threads that wait for a CPU show that other processes disturb the worker. With a CPU
            quota or a background load, they wait in any case.
        cpus: CPUs that the worker may run on; empty for those of its parent.
        nodes: Number of nodes that each provider runs, if an earlier launch of the config has counted them.
        memory_callers: Concurrent callers that make the same calls of each candidate before its memory is read, once
            for all blocks; 0 if it is read after each block.
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
    repeats: int = 0
    is_baseline: bool = False
    memory_limit_bytes: int | None
    usable: tuple[int, ...]
    n_cores: int = 0
    background_load: int | None
    check_waiting: bool = False
    cpus: tuple[int, ...] = ()
    nodes: dict[str, int] = {}
    memory_callers: int = 0


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to measure one block.

    Attributes:
        plan: How to measure it. Its load is that of all processes together.
        group: Ids of the processes that are measured together; empty for one that is measured alone.
        number: Place of the worker in the group.
    """

    plan: BlockPlan
    group: tuple[int, ...] = ()
    number: int = 0


class ExchangeRequest(msgspec.Struct, frozen=True, tag=True):
    """The numbers that all processes of a group sent with `ExchangeReply`, in the order of the group."""

    values: tuple[int, ...]


Request = LoadRequest | MeasureRequest | ExchangeRequest


class CreatedReply(msgspec.Struct, frozen=True, tag=True):
    """The sessions exist. They are run for the first time next, to check their outputs."""


class LoadedReply(msgspec.Struct, frozen=True, tag=True):
    """The sessions exist, and their outputs were checked. Sent after `CreatedReply`."""

    session_info: SessionInfo
    runtime: Runtime


class BlockReply(BlockFigures, frozen=True, kw_only=True, tag=True):
    """A block was measured. It is a `Block` whose arrays are bytes: 64-bit integers, little-endian."""

    samples_ns: bytes
    cases: bytes | None = None
    processes: bytes | None = None
    creations_ns: bytes | None = None

    @classmethod
    def of(cls, block: Block) -> BlockReply:
        """Return the message that holds a block."""
        fields = msgspec.structs.asdict(block)
        for name in ARRAYS:
            fields[name] = None if fields[name] is None else _bytes(fields[name])
        return cls(**{name: fields[name] for name in cls.__struct_fields__})

    def map_arrays(self, change: Callable[[bytes], bytes]) -> BlockReply:
        """Return the message with other bytes for each array."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        changed = {name: change(data) for name, data in arrays.items() if data is not None}
        return msgspec.structs.replace(self, **changed)

    def to_block(self) -> Block:
        """Return the block.

        Raises:
            ValueError: It is not one that a worker sends.
        """
        fields = msgspec.structs.asdict(self)
        for name in ARRAYS:
            fields[name] = None if fields[name] is None else _integers(fields[name])
        return Block(**fields)


ARRAYS = ("samples_ns", "cases", "processes", "creations_ns")
"""The fields of a block that are arrays."""


def _bytes(values: NDArray[np.int64]) -> bytes:
    return values.astype("<i8").tobytes()


def _integers(data: bytes) -> NDArray[np.int64]:
    import numpy as np

    return np.frombuffer(data, dtype="<i8")


class FailureReply(msgspec.Struct, frozen=True, tag=True):
    """The request failed."""

    failure: Failure


class ExchangeReply(msgspec.Struct, frozen=True, tag=True):
    """A number for all processes of the group. The worker waits for an `ExchangeRequest` with those of all of them."""

    value: int


Reply = CreatedReply | LoadedReply | BlockReply | ExchangeReply | FailureReply

MOST_MESSAGE_BYTES = 1 << 30
"""Largest size of a message. What claims to be larger is not a message."""

REST_S = 60.0
"""Time in which the next part of a message arrives. The worker writes it without a pause."""

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def encode_reply(reply: object, stage: str) -> bytes:
    """Return a reply as bytes, or a failure of this stage instead if there is no memory for them.

    The figures of a long block need much, and memory may be limited.
    """
    try:
        return encode(reply)
    except MemoryError as error:
        return encode(FailureReply(make_failure(error, stage)))


def spawn(
    command: Sequence[str], *, environment: Mapping[str, str], log: IO[bytes]
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a worker, and return its process and the parent's end of its pipe.

    Args:
        command: Program and arguments. The handle of the worker's end of the pipe is appended as the last argument.
        environment: The complete environment of the worker.
        log: File for the worker's stdout and stderr.
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
        # With a separate process group, Ctrl-C reaches only the parent, which then ends its workers in order.
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


def receive(connection: Connection, deadline_s: float) -> bytes:
    """Wait for a message, for at most `deadline_s`, and return it.

    `Connection.recv_bytes` would wait without limit for the rest of a message whose sender stopped in the middle.

    Raises:
        TimeoutError: There is no complete message in time.
        EOFError: The other end was closed.
        ValueError: What arrives is not a message, or stops in its middle.
        OSError: The pipe does not work.
    """
    if sys.platform == "win32":  # pragma: no cover  (pipes transmit whole messages there)
        if not connection.poll(deadline_s):
            raise TimeoutError
        return connection.recv_bytes(MOST_MESSAGE_BYTES)
    end_s = rest_end_s = time.monotonic() + deadline_s

    def read(n_bytes: int) -> bytes:
        nonlocal rest_end_s
        parts = bytearray()
        while len(parts) < n_bytes:
            if not wait([connection], max(min(end_s, rest_end_s) - time.monotonic(), 0.0)):
                if rest_end_s < end_s:
                    raise ValueError(f"its end did not arrive within {REST_S:.0f} s")
                raise TimeoutError
            rest_end_s = time.monotonic() + REST_S
            part = os.read(connection.fileno(), min(n_bytes - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    # The framing of multiprocessing.connection: the size as 4 bytes, or -1 and the size as 8 bytes.
    (size,) = struct.unpack("!i", read(4))
    if size == -1:
        (size,) = struct.unpack("!Q", read(8))
    if not 0 <= size <= MOST_MESSAGE_BYTES:
        raise ValueError(f"it claims to have {size} bytes")
    return read(size)


def connect(handle: str) -> Connection:
    """Return the worker's end of the pipe, given the last argument of the worker's command line."""
    if sys.platform == "win32":  # pragma: no cover
        from multiprocessing.connection import PipeConnection

        return PipeConnection(int(handle))  # type: ignore[no-any-return]
    return Connection(int(handle))
