"""The load generator of a server: a process that makes HTTP requests and measures blocks.

The parent starts it as `python -m ortune.program.http_worker HANDLE`, where HANDLE is its end of a pipe. It answers one
message at a time and ends when the pipe is closed.

A call is a request with its whole response. CPU time and memory are those of the server's processes. What this process
itself uses is neither counted as the server's nor as noise.

Latency is the time from when the first byte of a request is sent until the last byte of its response was received. What
Python needs to make the request before that, and to parse the response after that, is a quarter of a millisecond and
more. It is not the server's, would make all servers look alike, and differs from client to client. So it is subtracted
from the latency of each call. On Linux, the kernel says when the response was received, except with HTTPS: before the
client wakes up, and before its thread gets the interpreter lock. Clients do not send during this time, so that the
throughput of a closed loop is that of clients that pause for as long between two requests.

With a rate, a client that is free also wakes up late, by a tenth of a millisecond. The server does not know of the
request yet. This is subtracted from the latency of each request, too, up to `MOST_LATE_NS`: a client that waits longer
waits for a CPU, which the server uses. The wait for a free client is not subtracted.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from ortune.limited import TooLargeError, read_limited
from ortune.prctl import die_with_parent
from ortune.program.http_protocol import (
    MOST_KEPT_BYTES,
    FetchRequest,
    OpenRequest,
    Reply,
    Response,
    add_content_type,
    collect_fields,
    decode_request,
    is_error,
)
from ortune.sanitize import printable
from ortune.worker import cpu, protocol
from ortune.worker.block import Block, BlockPlan
from ortune.worker.failure import Failure, make_failure
from ortune.worker.main import disable_garbage_collection
from ortune.worker.window import RealClock

if TYPE_CHECKING:
    from ortune.worker.open_loop import RequestStream

MOST_BODY_BYTES = 1 << 28
"""Largest size of the body of a request."""

MOST_RESPONSE_BYTES = 1 << 30
"""Largest size of the body of a response. A stream of events that never ends cannot be measured."""

BODY_CHUNK_BYTES = 1 << 16

MOST_LATE_NS = 500_000
"""Time that clients may wake up late on a host with free CPUs."""

LONGEST_IDLE_S = 1.0
"""A connection that was idle for longer is opened again. Servers close idle connections, often after 2 or 5 s, and a
request that is sent at that moment would fail. Between blocks, a server is suspended, and closes them when it goes on.
Within a closed loop, no connection is idle for that long."""

SO_TIMESTAMPNS = 35
"""Option of a socket on Linux (socket(7)): the kernel says when what was read arrived, on the clock of `time.time_ns`.
TCP does since Linux 4.16: of the last byte."""

STAMP = struct.Struct("qq")

STAMP_BYTES = 64
"""Room for such a message."""

SAME_MOMENT_NS = 50_000
CLOCK_ATTEMPTS = 3
"""Two clocks are read at the same moment if it takes less time, and again otherwise."""

LONGEST_BODY_EXCERPT = 200
"""Characters of the body of a response in a message."""


STAGES: dict[type[object], str] = {
    OpenRequest: "load",
    FetchRequest: "check",
    protocol.MeasureRequest: "measure",
}
"""The stage of a failure, by the message that it answers."""


class _Stamps(threading.local):
    """When a client sent the first byte of its last request, and received the last byte of the response."""

    sent_ns = 0
    received_ns = 0
    own_ns = 0


_stamps = _Stamps()


class _StampedReader(io.RawIOBase):
    """Reads from a socket, and notes when something arrived."""

    def __init__(self, raw: Any, source: socket.socket) -> None:
        self._raw = raw
        is_stamped = sys.platform == "linux" and not isinstance(source, ssl.SSLSocket)
        self._source = source if is_stamped else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._source is None:
            n_bytes: int | None = self._raw.readinto(buffer)
            _stamps.received_ns = time.perf_counter_ns()
        else:
            n_bytes, extra, _, _ = self._source.recvmsg_into([buffer], STAMP_BYTES)
            _stamps.received_ns = read_stamp_ns(extra)
        return n_bytes

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


def read_clocks() -> tuple[int, int]:
    """Return the time on the clocks of `time.perf_counter_ns` and `time.time_ns` at the same moment.

    If the thread was suspended between the two, they are read again.
    """
    for _ in range(CLOCK_ATTEMPTS):
        unix_ns, now_ns = time.time_ns(), time.perf_counter_ns()
        if time.time_ns() - unix_ns < SAME_MOMENT_NS:
            break
    return now_ns, unix_ns


def read_stamp_ns(messages: Sequence[tuple[int, int, bytes]]) -> int:
    """Return when the kernel received what was just read, on the clock of `time.perf_counter_ns`.

    Args:
        messages: The ancillary messages that were read with it. Without one of the kernel's, the time is now.
    """
    now_ns, unix_ns = read_clocks()
    for level, kind, data in messages:
        if (level, kind, len(data)) == (socket.SOL_SOCKET, SO_TIMESTAMPNS, STAMP.size):
            seconds, nanoseconds = STAMP.unpack(data)
            age_ns = unix_ns - int(seconds) * 10**9 - int(nanoseconds)
            # That clock may be set meanwhile.
            return max(now_ns - max(age_ns, 0), _stamps.sent_ns)
    return now_ns


class _StampedResponse(http.client.HTTPResponse):
    """A response that notes when it was received."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fp = io.BufferedReader(_StampedReader(self.fp.detach(), arguments[0]), BODY_CHUNK_BYTES)


class _Stamped:
    """Notes when requests are sent, and opens connections again that were idle; mixed into those of urllib3."""

    _used_s = 0.0

    def request(self, *arguments: Any, **options: Any) -> None:
        if time.monotonic() - self._used_s > LONGEST_IDLE_S:
            self.close()  # type: ignore[attr-defined]
        _stamps.sent_ns = 0
        super().request(*arguments, **options)  # type: ignore[misc]

    def send(self, data: Any) -> None:
        if self.sock is None:  # type: ignore[attr-defined]
            self.connect()  # type: ignore[attr-defined]
        if not _stamps.sent_ns:
            _stamps.sent_ns = time.perf_counter_ns()
        super().send(data)  # type: ignore[misc]

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        self._used_s = time.monotonic()
        return response


class _Connection(_Stamped, HTTPConnection):
    response_class = _StampedResponse

    def connect(self) -> None:
        super().connect()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class _SecureConnection(_Stamped, HTTPSConnection):
    response_class = _StampedResponse


class RequestError(Exception):
    """A request failed; the message says which and why."""


class NoResponseError(RequestError):
    """The response did not arrive in time."""


class Sample(NamedTuple):
    """What distinguishes one request from others."""

    body: bytes | None
    headers: Mapping[str, str]


class Requester:
    """Makes requests over connections that are kept open, one for each client.

    Args:
        request: What to request.
        n_clients: Number of threads that make requests at the same time.
    """

    def __init__(self, request: OpenRequest, n_clients: int) -> None:
        url = urllib3.util.parse_url(request.url)
        timeout = urllib3.Timeout(connect=request.timeout_s, read=request.timeout_s)
        if url.scheme == "https":
            requirement = "CERT_REQUIRED" if request.verify else "CERT_NONE"
            self._pool: urllib3.HTTPConnectionPool = urllib3.HTTPSConnectionPool(
                str(url.host), url.port, timeout=timeout, maxsize=n_clients, block=True, cert_reqs=requirement
            )
            self._pool.ConnectionCls = _SecureConnection
        else:
            self._pool = urllib3.HTTPConnectionPool(
                str(url.host), url.port, timeout=timeout, maxsize=n_clients, block=True
            )
            self._pool.ConnectionCls = _Connection
        self._request = request
        self._target = url.request_uri

    def send(self, sample: Sample) -> urllib3.BaseHTTPResponse:
        """Send a request, and return the response, whose body is not read yet.

        Raises:
            RequestError: There is no response.
        """
        try:
            return self._pool.urlopen(
                self._request.method,
                self._target,
                body=sample.body,
                headers=sample.headers,
                retries=False,
                redirect=False,
                assert_same_host=False,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            raise self._explain(error) from error

    def call(self, sample: Sample) -> None:
        """Make a request, and read the whole response.

        Raises:
            RequestError: There is no complete response, or its status is that of an error.
        """
        begin_ns = time.perf_counter_ns()
        response = self.send(sample)
        if is_error(response.status):
            excerpt = self._read_excerpt(response)
            response.close()
            raise RequestError(f"{self._name()}: status {response.status} {response.reason or ''}{excerpt}")
        for _ in self._read(response):
            pass
        _stamps.own_ns = _stamps.sent_ns - begin_ns + time.perf_counter_ns() - _stamps.received_ns

    def own_ns(self) -> int:
        """Return the part of the last call of this thread in which neither the server nor the network did anything."""
        return _stamps.own_ns

    def fetch(self, sample: Sample) -> Response:
        """Make a request, and return the response.

        Raises:
            RequestError: There is no complete response.
        """
        response = self.send(sample)
        digest, kept, n_bytes = hashlib.sha256(), bytearray(), 0
        for chunk in self._read(response):
            digest.update(chunk)
            n_bytes += len(chunk)
            kept += chunk[: MOST_KEPT_BYTES - len(kept)]
        return Response(
            status=response.status,
            content_type=response.headers.get("Content-Type", ""),
            body=bytes(kept),
            n_bytes=n_bytes,
            sha256=digest.hexdigest(),
        )

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _read(self, response: urllib3.BaseHTTPResponse) -> Any:
        """Yield the parts of a body, and return its connection to the pool."""
        n_bytes = 0
        try:
            while chunk := response.read(BODY_CHUNK_BYTES):
                n_bytes += len(chunk)
                if n_bytes > MOST_RESPONSE_BYTES:
                    response.close()
                    raise RequestError(f"{self._name()}: the response has more than {MOST_RESPONSE_BYTES >> 20} MiB")
                yield chunk
        except (HTTPError, OSError) as error:
            raise self._explain(error) from error
        finally:
            response.release_conn()

    def _read_excerpt(self, response: urllib3.BaseHTTPResponse) -> str:
        try:
            text = response.read(4 * LONGEST_BODY_EXCERPT).decode("utf-8", "replace")
        except (HTTPError, OSError):
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f": {printable(lines[0][:LONGEST_BODY_EXCERPT])}" if lines else ""

    def _name(self) -> str:
        return f"{self._request.method} {self._request.url}"

    def _explain(self, error: Exception) -> RequestError:
        limit = f"within {self._request.timeout_s:g} s"
        # A connection that is refused is a kind of ConnectTimeoutError in urllib3 2.
        if isinstance(error, NewConnectionError):
            cause = error.__cause__ or error
            return RequestError(f"{self._name()}: cannot connect: {printable(str(cause))}")
        if isinstance(error, ConnectTimeoutError):
            return NoResponseError(f"{self._name()}: cannot connect {limit}")
        if isinstance(error, ReadTimeoutError):
            return NoResponseError(f"{self._name()}: no response {limit}")
        # The messages of urllib3 contain the exception that they are caused by.
        cause = error.args[-1] if error.args and isinstance(error.args[-1], Exception) else error
        return RequestError(f"{self._name()}: the connection failed: {printable(str(cause))[:LONGEST_BODY_EXCERPT]}")


class ServerClock(RealClock):
    """The monotonic clock of this host, with the CPU time of the server's processes.

    The load generators read the CPU time at both ends of the window in the thread that measures the block. There, the
    processes of the server are looked for again. In an open loop, clients read it too, before and after each request;
    this must not take long.
    """

    def __init__(self, tree: cpu.TreeClock) -> None:
        super().__init__()
        self._tree = tree
        self._thread = threading.get_ident()
        self.cpu_ns = self._read_cpu_ns

    def _read_cpu_ns(self) -> int:
        return self._tree.refresh_ns() if threading.get_ident() == self._thread else self._tree.read_ns()


class RequestSender:
    """The requests to one server.

    Args:
        request: What to request.

    Raises:
        OSError: A body cannot be read.
        ValueError: A body is too large, or the URL is not one.
    """

    def __init__(self, request: OpenRequest) -> None:
        self.request = request
        self.usable = frozenset(request.usable)
        self.samples = read_samples(request)
        self.tree = cpu.TreeClock(request.root)
        self.stream: RequestStream | None = None
        self._n_clients = 1
        self._requester = Requester(request, self._n_clients)

    def fetch(self, position: int) -> Response:
        """Return the response to the request with the body at this position.

        Raises:
            RequestError: There is no complete response.
        """
        return self._requester.fetch(self.samples[position])

    def close(self) -> None:
        """Close the connections."""
        self._requester.close()

    def read_cpu_times(self) -> cpu.CpuTimes:
        """Return the CPU times so far."""
        background_load = self.request.background_load
        own_ns = self.tree.refresh_ns() + time.process_time_ns()
        processes = (*self.tree.processes, os.getpid())
        return cpu.CpuTimes(
            at_ns=time.perf_counter_ns(),
            busy_ns=cpu.busy_ns(self.usable),
            own_ns=own_ns,
            background_load_ns=cpu.tree_ns(background_load) if background_load is not None else 0,
            threads=cpu.read_thread_times(processes) if self.request.check_waiting else {},
        )

    def measure(self, plan: BlockPlan) -> Block:
        """Measure one block, after its lead-in.

        Raises:
            RequestError: A request failed.
        """
        import numpy as np

        from ortune.worker.load_generator import generate_load
        from ortune.worker.open_loop import RequestStream

        if plan.load.clients != self._n_clients:
            self._requester.close()
            self._n_clients = plan.load.clients
            self._requester = Requester(self.request, self._n_clients)
        if self.stream is None or self.stream.load != plan.load:
            self.stream = RequestStream(plan.load)
        window = generate_load(
            self._requester.call,
            self.samples,
            plan,
            self.read_cpu_times,
            ServerClock(self.tree),
            self.stream,
            own_ns=self._requester.own_ns,
        )
        share, contended = cpu.find_foreign(window.before, window.after, len(self.usable), self.request.n_cores)
        assert window.own_ns is not None
        late_ns = 0 if window.late_ns is None else np.minimum(window.late_ns, MOST_LATE_NS)
        return Block(
            samples_ns=np.maximum(window.latencies_ns - window.own_ns - late_ns, 1),
            cases=None,
            n_calls=window.n_calls,
            wall_ns=window.wall_ns,
            lead_in_ns=window.lead_in_ns,
            service_ns=max(window.service_ns - float(window.own_ns.mean()), 1.0),
            service_sd_ns=window.service_sd_ns,
            cpu_ns=window.cpu_ns,
            cpu_between_ns=window.cpu_between_ns,
            memory=cpu.read_tree_memory(self.request.root),
            foreign_share=share,
            contended=contended,
        )


def read_samples(request: OpenRequest) -> Sequence[Sample]:
    """Return what the requests consist of, one for each body.

    Raises:
        OSError: A body cannot be read.
        ValueError: It is too large.
    """
    if not request.body_paths:
        return [Sample(None, collect_fields(request.headers))]
    samples = []
    for path in request.body_paths:
        try:
            body = read_limited(Path(path), MOST_BODY_BYTES, only_regular=True)
        except TooLargeError as error:
            raise ValueError(f"{path}: {error}") from None
        samples.append(Sample(body, collect_fields(add_content_type(request.headers, path))))
    return samples


def serve(connection: Any) -> None:
    """Answer messages until the pipe is closed."""
    load: RequestSender | None = None
    while True:
        try:
            request = decode_request(connection.recv_bytes())
        except EOFError:
            return
        stage = STAGES[type(request)]
        try:
            reply: Reply
            if isinstance(request, OpenRequest):
                if load is not None:
                    load.close()
                load = RequestSender(request)
                reply = load.fetch(0)
                disable_garbage_collection()
            elif load is None:
                raise RuntimeError("a block was requested before a server was named")
            elif isinstance(request, FetchRequest):
                reply = load.fetch(request.position)
            else:
                reply = protocol.BlockReply.of(load.measure(request.plan))
        except NoResponseError as error:
            reply = protocol.FailureReply(Failure(kind="timeout", stage=stage, message=str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001  (any error is a failure of the candidate)
            reply = protocol.FailureReply(make_failure(error, stage))
        connection.send_bytes(protocol.encode_reply(reply, stage))


def main() -> None:
    """Serve the parent. The last command-line argument is the handle of the pipe."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    urllib3.disable_warnings()  # that the certificate of a server on this host is not verified
    try:
        serve(protocol.connect(sys.argv[-1]))
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)  # clients may still wait for a response


if __name__ == "__main__":
    main()
