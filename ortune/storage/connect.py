"""Opens a storage of Optuna, and turns its many exceptions into one."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy.event
from sqlalchemy.exc import DatabaseError, NoSuchModuleError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool
from sqlalchemy.util import queue

from ortune.errors import OrtuneError, UsageError
from ortune.storage.driver_options import make_arguments
from ortune.storage.errors import StorageError, UnreadableError
from ortune.storage.journal import JournalError, SharedJournal, check_lines
from ortune.storage.location import DRIVERS, Location

CONNECT_TIMEOUT_S = 10
IDLE_S = 0.3
"""After so long, a connection that is not used is closed."""

BUSY_S = 60
"""Longest wait for a database that has no connection left."""

ANSWER_TIMEOUT_S = 30
"""After so long, a connection counts as lost."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "psycopg": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "options": f"-c statement_timeout={ANSWER_TIMEOUT_S * 1000}",
        "tcp_user_timeout": ANSWER_TIMEOUT_S * 1000,
        "application_name": "ortune",
        # Poolers give each transaction another connection, where a prepared statement of this name may exist.
        "prepare_threshold": None,
    },
    "pymysql": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": ANSWER_TIMEOUT_S,
        "write_timeout": ANSWER_TIMEOUT_S,
    },
}
"""Arguments of drivers when they connect. Options of the URL take precedence."""

MOST_SHOWN = 64
"""Number of characters of a version that a message shows."""

PACKAGES = {"postgresql": "psycopg[binary]", "mysql": "pymysql", "grpc": "grpcio protobuf"}


BUSY = ("too many", "remaining connection slots", "max_client_conn", "starting up")
"""Parts of the messages of databases and poolers that accept no connection at the moment."""

LATE = ("timed out", "timeout expired", "connection timeout")
"""Parts of the messages of drivers that got no connection in time: the host is away, or its database is busy."""

PORTS = {"postgresql": 5432, "mysql": 3306}
REACHABLE_S = 2.0
"""Usual ports of databases, and the time in which a host accepts a connection if only its database is busy."""

MOST_WAIT_S = 10.0
"""Longest time until the next try to get a connection. Each try costs the database milliseconds: if hundreds of hosts
try several times per second, it has no time left for those that are connected."""


CREATED = ("already exists", "duplicate")
CREATION_TRIES = 5
CREATION_S = 1.0
"""Parts of the messages of databases in which another host creates the same tables at this moment, the number of times
that they are then opened, and the longest wait between two, in seconds."""

REASONS = (
    (("does not exist", "unknown database", "to database"), "it has no database {database!r} that {user!r} may use."),
    (
        ("password authentication failed", "access denied", "no password supplied", "no pg_hba.conf entry"),
        "it refuses the user {user!r} or the password.",
    ),
    (("connection refused",), "nothing listens there. Check host and port, and whether the server runs."),
    (
        ("name or service not known", "failed to resolve", "name resolution", "nodename nor servname"),
        "the host is not known.",
    ),
    (("timed out", "connection timeout", "no route to host", "unreachable"), "the host does not answer."),
    (
        ("packet sequence", "invalid response to ssl", "unsupported protocol", "unsupported frontend protocol"),
        "what listens there is not a server of this kind. Check the port.",
    ),
)
"""Parts of messages of drivers when they cannot connect, and what is said instead."""


class ShortPool(QueuePool):
    """Connections to a database that many hosts use, each of them seldom.

    Hundreds of hosts, which measure most of the time, would otherwise hold more connections than databases accept. When
    none is left, as when many hosts start at the same time, it waits. One that was not used for `IDLE_S` is closed.

    Attributes:
        address: Host and port of the database; None if unknown.
    """

    address: tuple[str, int] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: threading.Timer | None = None
        sqlalchemy.event.listen(self, "checkin", self._restart_timer)

    def _restart_timer(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = threading.Timer(IDLE_S, self._close_idle)
        self._timer.daemon = True
        self._timer.start()

    def connect(self) -> PoolProxiedConnection:
        """Return a connection.

        Raises:
            Exception: The driver's, if there is none after `BUSY_S`.
        """
        end = time.monotonic() + BUSY_S
        wait_s = 0.1
        while True:
            try:
                return super().connect()
            except Exception as error:
                if time.monotonic() > end or not self._may_connect_later(str(error).lower()):
                    raise
            time.sleep(random.uniform(0, wait_s))  # noqa: S311  # nosec B311
            wait_s = min(wait_s * 2, MOST_WAIT_S)

    def _may_connect_later(self, text: str) -> bool:
        """Return whether the message of an error says that the database is busy."""
        if any(part in text for part in BUSY):
            return True
        if self.address is None or not any(part in text for part in LATE):
            return False
        try:
            socket.create_connection(self.address, timeout=REACHABLE_S).close()
        except OSError:
            return False
        return True

    def _close_idle(self) -> None:
        """Close the connection that is not in use, if there is one. The next use opens it again."""
        try:
            record = self._pool.get(False)
        except queue.Empty:
            return
        record.invalidate()
        self._do_return_conn(record)


CONTENT_ERRORS = (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What Optuna raises at values that it did not write. Those of drivers and of connections are of other types."""


def open_storage(location: Location) -> optuna.storages.BaseStorage:
    """Return Optuna's storage.

    Raises:
        UsageError: The driver is not installed.
        StorageError: It does not answer.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("sqlalchemy").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    with guard(location):
        if location.kind == "journal":
            return optuna.storages.JournalStorage(SharedJournal(location.url))
        if location.kind == "grpc":
            return _open_proxy(location)
        return _open_database(location)


def _open_proxy(location: Location) -> optuna.storages.BaseStorage:
    try:
        import grpc  # noqa: F401
    except ImportError:
        raise _lack_package("grpc") from None
    host, _, port = location.url.rpartition(":")
    proxy = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
    proxy.wait_server_ready(timeout=CONNECT_TIMEOUT_S)
    return proxy


def _open_database(location: Location) -> optuna.storages.BaseStorage:
    url = sqlalchemy.make_url(location.url)
    driver = url.drivername.partition("+")[2]
    port = url.port or PORTS.get(url.get_backend_name())
    address = (url.host, port) if url.host and port else None
    # The pool tries a connection before it is used: the database may have been restarted.
    options: dict[str, Any] = {
        "poolclass": type("ShortPool", (ShortPool,), {"address": address}),
        "pool_size": 1,
        "max_overflow": 1,
        "pool_pre_ping": True,
        "hide_parameters": True,
        "connect_args": {**ARGUMENTS.get(driver, {}), **make_arguments(driver, dict(location.options))},
    }
    try:
        storage = _open_tables(location.url, options)
    except (ImportError, NoSuchModuleError):
        raise _lack_package(url.drivername) from None
    # Optuna's own check holds a connection while it opens another one. Many hosts that do so would wait for each other.
    current, head = storage.get_current_version(), storage.get_head_version()
    if current != head:
        raise StorageError(
            f"{location.title}: its tables have the version {current[:MOST_SHOWN]!r}, and Optuna "
            f"{optuna.__version__} needs {head!r}. Update Optuna here, or the tables with 'optuna storage upgrade'."
        )
    return storage


def _open_tables(url: str, options: dict[str, Any]) -> optuna.storages.RDBStorage:
    """Return the storage, whose tables Optuna creates if there are none. Several hosts may do so at the same time."""
    # Optuna formats the URL as a template.
    template = url.replace("{", "{{").replace("}", "}}")
    open_tables = functools.partial(
        optuna.storages.RDBStorage, template, engine_kwargs=options, skip_compatibility_check=True
    )
    for _ in range(CREATION_TRIES - 1):
        try:
            return open_tables()
        except DatabaseError as error:
            if not any(part in str(error).lower() for part in CREATED):
                raise
        time.sleep(random.uniform(0, CREATION_S))  # noqa: S311  # nosec B311
    return open_tables()


def _lack_package(scheme: str) -> UsageError:
    kind, _, driver = scheme.partition("+")
    if driver and not DRIVERS.get(kind, "").endswith(f"+{driver}"):
        return UsageError(
            f"The driver {driver[:32]!r} for storages of the kind {kind!r} is not installed.",
            f"Install it, or write {kind}:// for the driver of ortune[fleet].",
            option="storage",
        )
    return UsageError(
        f"A package for storages of the kind {kind!r} is not installed: {PACKAGES.get(kind, 'its driver')}.",
        "Install ortune[fleet].",
        option="storage",
    )


@contextlib.contextmanager
def guard(location: Location) -> Iterator[None]:
    """Turn each exception of a storage into `StorageError`, without the password.

    Optuna passes on the exceptions of SQLAlchemy, of database drivers, of gRPC and of the file system.
    """
    try:
        yield
    except (OrtuneError, optuna.exceptions.DuplicatedStudyError):
        raise
    except Exception as error:  # noqa: BLE001
        cause = find_cause(location, error)
        kind = UnreadableError if isinstance(cause, CONTENT_ERRORS) else StorageError
        raise kind(f"{location.title}: {explain(location, cause)}") from None


def find_cause(location: Location, error: Exception) -> Exception:
    """Return what is wrong with a line of a journal at which Optuna failed, or the error itself."""
    if location.kind == "journal" and not isinstance(error, (OSError, JournalError)):
        try:
            check_lines(Path(location.url))
        except Exception as cause:  # noqa: BLE001
            return cause
    return error


def explain(location: Location, error: BaseException) -> str:
    """Return what an exception of a storage says, in one line and without the password."""
    # Optuna wraps exceptions of databases, whose cause says what happened.
    cause = getattr(error, "orig", None) or error.__cause__ or error
    cause = getattr(cause, "orig", None) or cause
    if isinstance(cause, RecursionError):
        return "it holds a value that is nested too deeply."
    details = getattr(cause, "details", None)
    text = str(details() if callable(details) else cause).strip() or type(cause).__name__
    line = location.hide(" ".join(text.split()))
    for parts, sentence in REASONS:
        if location.kind != "journal" and any(part in line.lower() for part in parts):
            url = location.engine_url
            user, database = (url.username or "", url.database or "") if url else ("", "")
            return sentence.format(user=user, database=database)
    return line if line.endswith(".") else f"{line}."
