"""The parent's side of a load of HTTP requests: checks URLs, waits for servers, and starts the load generator."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from ortune.apply.placeholders import PORT_PLACEHOLDER
from ortune.errors import UsageError
from ortune.interpreter import PYTHON
from ortune.prctl import name_parent
from ortune.program import http_protocol
from ortune.program.http_protocol import MOVED, collect_fields
from ortune.sanitize import printable
from ortune.secret_variables import inherit_environment
from ortune.worker import protocol
from ortune.worker.block import Block, BlockPlan
from ortune.worker.child_process import APPLY_OFF
from ortune.worker.clocks import Clocks
from ortune.worker.exit_status import count_oom_kills, explain_closed_pipe
from ortune.worker.failure import Failure

HTTP_WORKER_COMMAND = (*PYTHON, "-m", "ortune.program.http_worker")

LOAD_START_TIMEOUT_S = 60.0
"""Maximum time for the load generator to start, in addition to the first request."""

FIRST_POLL_S = 0.02
LONGEST_POLL_S = 0.5
"""Time between two attempts to reach a server, at first and at most."""

LONGEST_POLL_TIMEOUT_S = 10.0
"""Maximum time to wait for a health URL. Other requests may take as long as the server is waited for."""

REFUSAL_GRACE_S = 10.0
"""Time for which a server may answer the request itself with a status of 400 to 499 while it starts up."""

LONGEST_ANSWER = 200
"""Characters of an answer in a message."""


def check_url(url: str, *, option: str = "url") -> None:
    """Check that ortune may send requests to a URL: one of this host. `{port}` may stand for its port.

    Args:
        url: The URL.
        option: Option that the URL belongs to.

    Raises:
        UsageError: It may not.
    """
    # Options in braces are spelled as the interface has them, so the port must not be in the message like that.
    shown = printable(url)
    example = "For example: http://127.0.0.1:8000/predict."
    try:
        parts = urlsplit(url.replace(PORT_PLACEHOLDER, "80"))
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{shown}: is not a URL: {error}.", example, option=option) from None
    if not url.isprintable() or " " in url:
        raise UsageError(f"{shown}: has a space or a control character.", "Write it as %20.", option=option)
    if parts.scheme not in {"http", "https"} or not host:
        raise UsageError(f"{shown}: must begin with http:// or https:// and a host.", example, option=option)
    if PORT_PLACEHOLDER in url and not is_port_only(url):
        raise UsageError(f"{shown}: a port in braces may only stand where the port is.", example, option=option)
    if port == 0:
        raise UsageError(f"{shown}: there is no port 0.", example, option=option)
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"{printable(str(parts.hostname))}: a user name and password in a URL are not sent.",
            "Send them in a header.",
            option=option,
        )
    if not is_loopback(host):
        raise UsageError(
            f"{shown}: {printable(host)} is not this host. ortune sends as many requests as a server can answer.",
            "Run the server here, and use 127.0.0.1.",
            option=option,
        )


def is_port_only(url: str) -> bool:
    """Return whether `{port}` occurs once in a URL, as its port."""
    return re.match(r"[a-z]+://[^/?#]*:\{port\}(?=[/?#]|$)", url) is not None and url.count(PORT_PLACEHOLDER) == 1


def is_loopback(host: str) -> bool:
    """Return whether a host, as in a URL, is this one."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_free_port(excluded: Collection[int] = ()) -> int:
    """Return a TCP port that nothing listens on, on any address of this host.

    Another program may take it before it is used.

    Args:
        excluded: Ports that are not wanted, such as those of servers that are about to start.

    Raises:
        OSError: There is none.
    """
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as found:
            found.bind(("", 0))
            port: int = found.getsockname()[1]
        if port not in excluded:
            return port


def check_unused(url: str) -> None:
    """Check that nothing listens where a server is going to be started.

    Only addresses of this host are checked: what listens elsewhere may pass requests on to the server.

    Raises:
        UsageError: Something does.
    """
    host, port = find_address(urlsplit(url))
    if not is_loopback(host):
        return
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        raise UsageError(
            f"{printable(url)}: something listens on port {port} already.",
            "End it, or use another port.",
            option="url",
        )


def find_address(parts: SplitResult) -> tuple[str, int]:
    """Return the host and port of a URL."""
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def wait_until_up(
    url: str,
    health_url: str | None = None,
    *,
    is_alive: Callable[[], bool],
    deadline_s: float,
    method: str = "GET",
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | None = None,
) -> Failure | None:
    """Wait until a server answers.

    Args:
        url: URL of the requests. If there is no other, it is requested, and the server is up when the status is below
            400.
        health_url: URL that is requested with GET instead. The server is up when the status is below 500.
        is_alive: Returns whether the program runs.
        deadline_s: Maximum time to wait.
        method: Method of requests to `url`.
        headers: Names and values of header fields of requests to `url`.
        body: Body of requests to `url`.

    Returns:
        None, or why the server is not up.
    """
    import urllib3

    start_s = time.monotonic()
    refused_s: float | None = None
    poll_s = FIRST_POLL_S
    name = f"GET {health_url}" if health_url else f"{method} {url}"
    answer, was_answered = "there was no answer", False
    requirement = "CERT_NONE" if is_loopback(urlsplit(url).hostname or "") else "CERT_REQUIRED"
    with urllib3.PoolManager(retries=False, cert_reqs=requirement) as pool:
        while True:
            if not is_alive():
                message = f"the program ended before it answered {name}; {answer}"
                return Failure(kind="exit", stage="load", message=message)
            left_s = deadline_s - (time.monotonic() - start_s)
            if left_s <= 0:
                message = f"{name} was tried for {deadline_s:g} s; {answer}"
                return Failure(kind="timeout", stage="load", message=message)
            try:
                status, answer = _ask(pool, url, health_url, method, headers, body, left_s)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                # An attempt that the deadline cut short says less than the answer before it.
                if left_s > LONGEST_POLL_S or not was_answered:
                    answer, was_answered = f"the last attempt: {_explain(error)}", False
            else:
                was_answered = True
                if status in MOVED and not health_url:
                    return Failure(kind="exception", stage="load", message=f"{name}: {answer}")
                if status < (500 if health_url else 400):
                    return None
                now_s = time.monotonic()
                refused_s = (refused_s or now_s) if status < 500 else None
                if refused_s is not None and now_s - refused_s > REFUSAL_GRACE_S:
                    return Failure(kind="exception", stage="load", message=f"{name}: {answer}")
            time.sleep(max(min(poll_s, left_s), 0.0))
            poll_s = min(1.5 * poll_s, LONGEST_POLL_S)


def _ask(
    pool: object,
    url: str,
    health_url: str | None,
    method: str,
    headers: Sequence[tuple[str, str]],
    body: bytes | None,
    left_s: float,
) -> tuple[int, str]:
    """Make one request, and return the status, and what was answered in words."""
    import urllib3

    assert isinstance(pool, urllib3.PoolManager)
    fields = collect_fields(() if health_url else headers)
    fields.setdefault("Connection", "close")
    response = pool.urlopen(
        "GET" if health_url else method,
        health_url or url,
        body=None if health_url else body,
        headers=fields,
        timeout=min(left_s, LONGEST_POLL_TIMEOUT_S) if health_url else left_s,
        redirect=False,
        preload_content=False,
    )
    try:
        # What arrived with the header, or next: a stream may never end.
        text = response.read1(4 * LONGEST_ANSWER).decode("utf-8", "replace")
    finally:
        response.close()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    end = f": {printable(first[:LONGEST_ANSWER])}" if first else ""
    if response.status in MOVED:
        place = printable(str(response.headers.get("Location", ""))[:LONGEST_ANSWER])
        end = f", which sends requests to {place}: pass that URL" if place else end
    return response.status, f"the last answer was status {response.status} {printable(response.reason or '')}{end}"


def _explain(error: Exception) -> str:
    """Return why there was no answer."""
    cause: BaseException = error
    while cause.__cause__ or (cause.args and isinstance(cause.args[-1], Exception)):
        cause = cause.__cause__ or cause.args[-1]
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return printable(text or type(cause).__name__)[:LONGEST_ANSWER]


class HttpLoad:
    """A process that makes HTTP requests to a server, and measures blocks. As a context manager, it ends on exit.

    After a failure to send or measure, `open` and `measure` may be called again. After one of the process itself, they
    return the same failure.

    Args:
        log_path: File for stdout and stderr of the process.
        command: Program and arguments that start it.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, log_path: Path, *, command: Sequence[str] = HTTP_WORKER_COMMAND) -> None:
        self._log_path = log_path
        self._ended: Failure | None = None
        self._timeout_s = 0.0
        self._n_oom_kills = count_oom_kills()
        with log_path.open("wb") as log:
            environment = {**inherit_environment(), **APPLY_OFF, **name_parent()}
            self._process, self._pipe = protocol.spawn(command, environment=environment, log=log)

    def __enter__(self) -> HttpLoad:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def open(
        self,
        url: str,
        *,
        root: int,
        usable: tuple[int, ...],
        timeout_s: float,
        method: str = "GET",
        headers: Sequence[tuple[str, str]] = (),
        body_paths: Sequence[Path] = (),
        n_cores: int = 0,
        background_load: int | None = None,
        check_waiting: bool = False,
    ) -> http_protocol.Response | Failure:
        """Name a server that is up, make one request, and return the response, whatever its status.

        Args:
            url: URL of the requests. Call `check_url` first.
            root: Id of the process whose tree answers.
            usable: CPUs on which the use by other processes is monitored.
            timeout_s: Maximum time to wait for a connection, and for the next part of a response.
            method: Method of the requests.
            headers: Names and values of header fields.
            body_paths: Files with the bodies, which are sent in turn, or drawn at random at a rate. If no header has
                the content type, it is that of the file's name.
            n_cores: Number of physical cores that the CPUs belong to; 0 if unknown.
            background_load: Process id of the background load, or None.
            check_waiting: Whether threads that wait for a CPU show that other processes disturb the server.
        """
        self._timeout_s = timeout_s
        request = http_protocol.OpenRequest(
            url=url,
            method=method,
            headers=tuple(headers),
            body_paths=tuple(str(path.absolute()) for path in body_paths),
            timeout_s=timeout_s,
            verify=not is_loopback(urlsplit(url).hostname or ""),
            root=root,
            usable=usable,
            n_cores=n_cores,
            background_load=background_load,
            check_waiting=check_waiting,
        )
        return self._ask_for_response(request, "load")

    def fetch(self, position: int) -> http_protocol.Response | Failure:
        """Return the response to the request with the body at this position, whatever its status."""
        return self._ask_for_response(http_protocol.FetchRequest(position=position), "check")

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure one block. This process sleeps in the meantime."""
        before = Clocks.read()
        reply = self._ask(protocol.MeasureRequest(plan=plan), plan.deadline_s, "measure")
        jump_s = Clocks.read().find_jump_s(before)
        if isinstance(reply, Failure):
            return reply
        try:
            if isinstance(reply, protocol.BlockReply):
                return msgspec.structs.replace(reply, clock_jump_s=jump_s).to_block()
        except ValueError:
            pass
        return self._refuse("measure", "it is not the result of a block")

    @property
    def has_ended(self) -> bool:
        """Whether the process has failed. Nothing more can be asked then."""
        return self._ended is not None

    def close(self) -> None:
        """End the process. It may be called more than once."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _ask_for_response(self, request: http_protocol.Request, stage: str) -> http_protocol.Response | Failure:
        reply = self._ask(request, LOAD_START_TIMEOUT_S + 2 * self._timeout_s, stage)
        if isinstance(reply, Failure | http_protocol.Response):
            return reply
        return self._refuse(stage, "it is not a response")

    def _ask(self, request: http_protocol.Request, deadline_s: float, stage: str) -> http_protocol.Reply | Failure:
        if self._ended:
            return self._ended
        with contextlib.suppress(OSError):  # it has ended, which reading the reply reports
            self._pipe.send_bytes(protocol.encode(request))
        try:
            reply: http_protocol.Reply = http_protocol.decode_reply(protocol.receive(self._pipe, deadline_s))
        except TimeoutError:
            message = f"the server did not answer all requests within {deadline_s:.0f} s"
            return self._end(Failure(kind="timeout", stage=stage, message=message))
        except (EOFError, OSError):
            return self._end(self._explain_end(stage))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            return self._refuse(stage, str(error))
        return reply.failure if isinstance(reply, protocol.FailureReply) else reply

    def _refuse(self, stage: str, fault: str) -> Failure:
        message = f"the load generator was ended, as it sent an invalid message: {fault}"
        return self._end(Failure(kind="exit", stage=stage, message=message))

    def _end(self, failure: Failure) -> Failure:
        self._ended = failure
        self.close()
        return failure

    def _explain_end(self, stage: str) -> Failure:
        failure = explain_closed_pipe(self._process, "it", self._log_path, stage, n_oom_kills=self._n_oom_kills)
        return msgspec.structs.replace(failure, message=f"the load generator: {failure.message}")
