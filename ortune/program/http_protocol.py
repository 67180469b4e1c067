"""The messages between the parent and the load generator of a server, over the pipe of `ortune.worker.protocol`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortune.worker.protocol import BlockReply, FailureReply, MeasureRequest

if TYPE_CHECKING:
    from urllib3 import HTTPHeaderDict

MOVED = frozenset((301, 307, 308))
"""Status codes that send the request, as it is, to another URL: nothing was computed for it."""

ERROR_STATUS = 400
"""Status codes from this one on are errors, and so are those of `MOVED`."""

MOST_KEPT_BYTES = 10_000_000
"""Size up to which the body of a response is sent to the parent."""


def is_error(status: int) -> bool:
    """Return whether an answer with this status code is not the result of a request."""
    return status >= ERROR_STATUS or status in MOVED


def add_content_type(headers: Sequence[tuple[str, str]], path: str | Path) -> tuple[tuple[str, str], ...]:
    """Return header fields with the content type of a body, by the name of its file, if they do not have one."""
    import mimetypes

    if any(name.lower() == "content-type" for name, _ in headers):
        return tuple(headers)
    return (("Content-Type", mimetypes.guess_type(path)[0] or "application/octet-stream"), *headers)


def collect_fields(headers: Sequence[tuple[str, str]]) -> HTTPHeaderDict:
    """Return header fields as urllib3 takes them. Of several with the same name, all are sent."""
    from urllib3 import HTTPHeaderDict

    fields = HTTPHeaderDict()
    for name, value in headers:
        fields.add(name, value)
    return fields


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What to request, and which processes answer.

    Attributes:
        url: URL with scheme, host and port.
        method: Method of the requests.
        headers: Names and values of header fields.
        body_paths: Files with the bodies, which are sent in turn, or drawn at random at a rate. Without any,
            requests have no body.
        timeout_s: Maximum time to wait for a connection, and for the next part of a response.
        verify: Whether the certificate of the server must be valid.
        root: Id of the process whose tree serves the requests.
        usable: CPUs on which the use by other processes is monitored.
        n_cores: Number of physical cores that these CPUs belong to; 0 if unknown.
        background_load: Process id of the background load, or None. Its CPU use is not counted as noise.
        check_waiting: Whether threads that wait for a CPU show that other processes disturb the server. With a CPU
            quota or a background load, they wait in any case.
    """

    url: str
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_paths: tuple[str, ...] = ()
    timeout_s: float
    verify: bool = True
    root: int
    usable: tuple[int, ...]
    n_cores: int = 0
    background_load: int | None = None
    check_waiting: bool = False


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request to return the response to one of the bodies, without measuring."""

    position: int


class Response(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The response to one request.

    Attributes:
        status: Status code.
        content_type: Value of its header field; empty without one.
        body: The body, up to `MOST_KEPT_BYTES`.
        n_bytes: Size of the whole body.
        sha256: SHA-256 of the whole body, in hexadecimal.
    """

    status: int
    content_type: str
    body: bytes
    n_bytes: int
    sha256: str

    @property
    def is_complete(self) -> bool:
        """Whether `body` is the whole body."""
        return len(self.body) == self.n_bytes


Request = OpenRequest | FetchRequest | MeasureRequest
Reply = Response | BlockReply | FailureReply

decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
