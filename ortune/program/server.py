"""A server under test: where its requests go, when it is ready, and what makes the requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ortune.apply.placeholders import PORT_PLACEHOLDER
from ortune.program.http_load import HttpLoad, check_unused, find_free_port, wait_until_up
from ortune.program.http_protocol import Response, add_content_type, is_error
from ortune.worker import Block, BlockPlan, Failure

REQUEST_TIMEOUT_S = 60.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is loaded.

    Attributes:
        url: URL of the requests; may contain `{port}`.
        bodies: Files with the bodies of the requests; without any, they are GET requests.
        first_body: What the first of them contains. The file may be missing later.
        headers: Header fields.
        health_url: URL that answers once the server is ready; empty for that of the requests.
        has_port: Whether the command or the URL names a port to be chosen.
    """

    url: str
    bodies: tuple[Path, ...] = ()
    first_body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    health_url: str = ""
    has_port: bool = False

    def choose_port(self) -> int:
        """Return a free port, or 0 if the server has a fixed one.

        Raises:
            OSError: There is none.
            UsageError: Another program listens at the fixed one. Its answers would be measured.
        """
        if self.has_port:
            return find_free_port()
        check_unused(self.url)
        return 0

    def wait_until_up(self, port: int, find_end: Callable[[], Failure | None], deadline_s: float) -> Failure | None:
        """Wait until the server answers. Return a failure if it ends before, or does not answer in time."""
        ended: list[Failure] = []

        def is_alive() -> bool:
            if failure := find_end():
                ended.append(failure)
            return not ended

        failure = wait_until_up(
            fill(self.url, port),
            fill(self.health_url, port) or None,
            is_alive=is_alive,
            deadline_s=deadline_s,
            method=self.method,
            headers=add_content_type(self.headers, self.bodies[0]) if self.bodies else self.headers,
            body=self.first_body,
        )
        return ended[0] if ended else failure

    @property
    def method(self) -> str:
        """Method of the requests."""
        return "POST" if self.bodies else "GET"


class LoadGenerator:
    """Makes the requests, in a process of its own.

    Args:
        server: How the server is loaded.
        log_path: File for what the process prints.
        usable: CPUs on which the use by other processes is monitored.
        n_cores: Number of physical cores that they belong to; 0 if unknown.
        background_load: Process id of the background load, or None.
    """

    def __init__(
        self, server: Server, log_path: Path, usable: tuple[int, ...], n_cores: int, background_load: int | None
    ) -> None:
        self._server = server
        self._log_path = log_path
        self._load = HttpLoad(log_path)
        self._usable = usable
        self._n_cores = n_cores
        self._background_load = background_load
        self._port = 0

    def open(self, port: int, root: int) -> bytes | Failure:
        """Make one request to the server on this port, and return the body of its answer.

        Args:
            port: The port.
            root: Id of the process whose tree serves the requests.
        """
        server = self._server
        self._port = port
        if self._load.has_ended:
            # A server that hangs ends it. That must not affect the next one.
            self._load = HttpLoad(self._log_path)
        answer = self._load.open(
            fill(server.url, port),
            root=root,
            usable=self._usable,
            timeout_s=REQUEST_TIMEOUT_S,
            method=server.method,
            headers=server.headers,
            body_paths=server.bodies,
            n_cores=self._n_cores,
            background_load=self._background_load,
        )
        return self._read_body(answer)

    def fetch(self, position: int) -> bytes | Failure:
        """Make the request with the body at a position, and return the body of its answer."""
        return self._read_body(self._load.fetch(position))

    def _read_body(self, answer: Response | Failure) -> bytes | Failure:
        if isinstance(answer, Failure):
            return answer
        if is_error(answer.status):
            text = answer.body[:200].decode("utf-8", "replace").partition("\n")[0]
            message = f"{self._server.method} {fill(self._server.url, self._port)} answers with status {answer.status}"
            return Failure(kind="exception", stage="check", message=f"{message}: {text}")
        # What was not kept counts by its digest.
        return answer.body if answer.is_complete else answer.body + answer.sha256.encode()

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure one block of requests."""
        return self._load.measure(plan)

    def close(self) -> None:
        """End the process."""
        self._load.close()


def fill(url: str, port: int) -> str:
    """Return a URL with its port."""
    return url.replace(PORT_PLACEHOLDER, str(port))
