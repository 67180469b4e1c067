"""Real servers for tests of shared storages: PostgreSQL, MariaDB, and Optuna's gRPC proxy.

Each process of pytest starts a server when the first of its tests needs it, on a free port of the loopback interface,
and keeps it: PostgreSQL takes 1.5 seconds. Each test gets a database of its own, with its own user and password. A test
may stop or restart the server: the other tests of this process run before or after it, and those of other processes
have other servers.

Servers run under `tests/supervise.py`, which stops them when pytest ends, also if it is interrupted or killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HOST = "127.0.0.1"

PATIENCE_S = 60.0
"""How long a server may take to start."""

FAST_POSTGRES = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200"}
FAST_MARIADB = ("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-log-file-size=4M")
"""Settings for tests: nothing waits for disks."""

SUPERVISE = Path(__file__).parent / "supervise.py"


class Database(NamedTuple):
    """A database of one test.

    Attributes:
        scheme: Beginning of its URL, such as `postgresql`.
        driver: The driver that SQLAlchemy loads for it.
        port: Port of the server, on the loopback interface.
        name: Its name, which is also that of its user.
        password: The password of its user: random letters and digits.
    """

    scheme: str
    driver: str
    port: int
    name: str
    password: str

    @property
    def url(self) -> str:
        """The URL as users write it."""
        return f"{self.scheme}://{self.name}:{self.password}@{HOST}:{self.port}/{self.name}"

    @property
    def url_without_password(self) -> str:
        """The URL for clients that get the password elsewhere, such as from the variable PGPASSWORD."""
        return f"{self.scheme}://{self.name}@{HOST}:{self.port}/{self.name}"

    @property
    def url_of_sqlalchemy(self) -> str:
        """The URL with the driver."""
        return self.url.replace("://", f"+{self.driver}://", 1)


class Server:
    """A server that can be stopped and started again, with the same port and data.

    Args:
        user: The user that runs it; empty for the user of this process.
        stop_signal: The signal that stops it.
    """

    def __init__(self, user: str = "", stop_signal: str = "SIGTERM") -> None:
        self.user, self.stop_signal = user, stop_signal
        self.folder = Path(tempfile.mkdtemp(prefix="ortune-server-"))
        self.port = find_free_port()
        self.pid = 0
        self._is_prepared = False
        self._supervisor: subprocess.Popen[str] | None = None
        if user:
            shutil.chown(self.folder, user, None)

    @property
    def command(self) -> list[str]:
        """The command line of the server, which must not hold a password."""
        raise NotImplementedError

    @property
    def environment(self) -> dict[str, str]:
        """Further variables of the server."""
        return {}

    @property
    def first(self) -> list[str]:
        """The command that runs once, before the first start of the server; empty for none."""
        return []

    def check(self) -> None:
        """Connect to the server.

        Raises:
            Exception: It does not answer yet.
        """
        with socket.create_connection((HOST, self.port), timeout=1):
            pass

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        assert self._supervisor is None, "it runs already"
        job: dict[str, Any] = {
            "command": self.command,
            "user": self.user,
            "stop": self.stop_signal,
            "folder": str(self.folder),
        }
        job |= {"first": [] if self._is_prepared else self.first, "environment": self.environment}
        self._is_prepared = True
        log = self.folder / "server.log"
        with log.open("a") as file:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", str(SUPERVISE), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,  # Ctrl-C is for pytest, which then stops the server
            )
        assert self._supervisor.stdout
        line = self._supervisor.stdout.readline()
        if not line:
            self.stop()
            raise AssertionError(f"{self.command[0]} cannot be prepared:\n{log.read_text()}")
        self.pid = int(line)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.check()
            except Exception as error:
                if not Path(f"/proc/{self.pid}").exists() or time.monotonic() > end:
                    self.stop()
                    raise AssertionError(f"{self.command[0]} does not start:\n{log.read_text()}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server, which keeps its data. Connections are closed."""
        self._end("keep")

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server, and remove its data."""
        if self._supervisor:
            self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, word: str) -> None:
        if self._supervisor is None:
            return
        supervisor, self._supervisor = self._supervisor, None
        supervisor.communicate(word)


class DatabaseServer(Server):
    """A database server on which each test gets a database."""

    def make_database(self) -> Database:
        """Create a database with a user of its own."""
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Leave the server running, also if the block stops it."""
        try:
            yield
        finally:
            if self._supervisor is None:
                self.start()


class Postgres(DatabaseServer):
    """PostgreSQL with passwords (SCRAM-SHA-256).

    Args:
        programs: Folder of its programs.
        settings: Its settings that differ from the defaults.
    """

    def __init__(self, programs: Path, settings: Mapping[str, str] = FAST_POSTGRES) -> None:
        super().__init__("postgres" if os.getuid() == 0 else "", "SIGINT")  # SIGINT: a fast shutdown
        self.programs = programs
        self.settings = settings
        self.password = secrets.token_hex(16)
        path = self.folder / "password"
        path.write_text(self.password)
        if self.user:
            shutil.chown(path, self.user, None)

    @property
    def first(self) -> list[str]:
        """The command that writes an empty cluster, in less than a second."""
        return [
            str(self.programs / "initdb"),
            f"--pgdata={self.folder / 'data'}",
            "--username=postgres",
            "--no-sync",
            "--auth=scram-sha-256",
            f"--pwfile={self.folder / 'password'}",
            "--encoding=UTF8",
            "--locale=C",
            "--wal-segsize=1",
        ]

    @property
    def command(self) -> list[str]:
        """The command line of the server."""
        settings = [f"{name}={value}" for name, value in {**self.settings, "unix_socket_directories": ""}.items()]
        return [
            str(self.programs / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-h",
            HOST,
            "-p",
            str(self.port),
            *(word for setting in settings for word in ("-c", setting)),
        ]

    def connect(self) -> Any:
        """Return a connection of the administrator."""
        import psycopg

        return psycopg.connect(
            host=HOST,
            port=self.port,
            user="postgres",
            password=self.password,
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def check(self) -> None:
        """Log in."""
        self.connect().close()

    def make_database(self) -> Database:
        """Create a database with a user of its own."""
        made = Database("postgresql", "psycopg", self.port, f"test_{secrets.token_hex(8)}", secrets.token_hex(16))
        with contextlib.closing(self.connect()) as connection:
            connection.execute(f"CREATE ROLE {made.name} LOGIN PASSWORD '{made.password}'")
            connection.execute(f"CREATE DATABASE {made.name} OWNER {made.name}")
        return made


class MariaDB(DatabaseServer):
    """MariaDB.

    Args:
        program: Path of `mariadbd`.
        settings: Options of its command line.
    """

    def __init__(self, program: str, settings: Sequence[str] = FAST_MARIADB) -> None:
        super().__init__()
        self.program = program
        self.password = secrets.token_hex(16)
        self.options = [
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--skip-name-resolve",
            *settings,
            *(["--user=root"] if os.getuid() == 0 else []),
        ]

        # Each start runs these statements.
        (self.folder / "first.sql").write_text(
            f"CREATE OR REPLACE USER 'admin'@'{HOST}' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO 'admin'@'{HOST}' WITH GRANT OPTION;\n"
        )

    @property
    def first(self) -> list[str]:
        """The command that writes the system tables."""
        return ["mariadb-install-db", *self.options, "--skip-test-db"]

    @property
    def command(self) -> list[str]:
        """The command line of the server."""
        return [
            self.program,
            *self.options,
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--socket={self.folder / 'socket'}",
            f"--init-file={self.folder / 'first.sql'}",
        ]

    def connect(self) -> Any:
        """Return a connection of the administrator."""
        import pymysql

        return pymysql.connect(
            host=HOST, port=self.port, user="admin", password=self.password, autocommit=True, connect_timeout=5
        )

    def check(self) -> None:
        """Log in."""
        self.connect().close()

    def make_database(self) -> Database:
        """Create a database with a user of its own."""
        made = Database("mysql", "pymysql", self.port, f"test_{secrets.token_hex(8)}", secrets.token_hex(16))
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {made.name}")
            cursor.execute(f"CREATE USER '{made.name}'@'{HOST}' IDENTIFIED BY '{made.password}'")
            cursor.execute(f"GRANT ALL ON {made.name}.* TO '{made.name}'@'{HOST}'")
        return made


SERVE = """
import os, warnings
warnings.simplefilter("ignore")
from optuna.storages import get_storage, run_grpc_proxy_server
storage = get_storage(os.environ["TEST_STORAGE"])
run_grpc_proxy_server(storage, host=os.environ["TEST_HOST"], port=int(os.environ["TEST_PORT"]))
"""


class GrpcProxy(Server):
    """Optuna's gRPC proxy in front of a database. It needs no password.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database

    @property
    def command(self) -> list[str]:
        """The command line of the server."""
        return [sys.executable, "-P", "-c", SERVE]

    @property
    def environment(self) -> dict[str, str]:
        """The URL of the database, which holds a password, and where to listen."""
        return {
            "TEST_STORAGE": self.database.url_of_sqlalchemy,
            "TEST_HOST": HOST,
            "TEST_PORT": str(self.port),
        }

    @property
    def url(self) -> str:
        """The URL as users write it."""
        return f"grpc://{HOST}:{self.port}"


def find_free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def find_postgres() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None. Debian has them outside of PATH."""
    on_path = shutil.which("initdb")
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    found = [folder for folder in folders if (folder / "postgres").exists()]
    if found:
        return found[-1]
    return Path(on_path).resolve().parent if on_path else None


def find_mariadb() -> str | None:
    """Return the path of `mariadbd`, or None if MariaDB is not installed."""
    program = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
    return program if shutil.which("mariadb-install-db") else None


def serve(make: Callable[[], DatabaseServer]) -> Iterator[DatabaseServer]:
    """Start a server, yield it, and remove it."""
    server = make()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[DatabaseServer]:
    """PostgreSQL, started once for each process of pytest."""
    pytest.importorskip("psycopg")
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    yield from serve(lambda: Postgres(programs))


@pytest.fixture
def postgres(postgres_of_session: DatabaseServer) -> Iterator[DatabaseServer]:
    """PostgreSQL, which the test may stop and restart."""
    with postgres_of_session.running():
        yield postgres_of_session


@pytest.fixture
def postgres_database(postgres: DatabaseServer) -> Database:
    """A new database on PostgreSQL."""
    return postgres.make_database()


@pytest.fixture(scope="session")
def mariadb_of_session() -> Iterator[DatabaseServer]:
    """MariaDB, started once for each process of pytest."""
    pytest.importorskip("pymysql")
    program = find_mariadb()
    if program is None:
        pytest.skip("MariaDB is not installed")
    yield from serve(lambda: MariaDB(program))


@pytest.fixture
def mariadb(mariadb_of_session: DatabaseServer) -> Iterator[DatabaseServer]:
    """MariaDB, which the test may stop and restart."""
    with mariadb_of_session.running():
        yield mariadb_of_session


@pytest.fixture
def mariadb_database(mariadb: DatabaseServer) -> Database:
    """A new database on MariaDB."""
    return mariadb.make_database()


@pytest.fixture
def grpc_proxy(postgres_database: Database) -> Iterator[GrpcProxy]:
    """Optuna's gRPC proxy in front of a new database on PostgreSQL."""
    pytest.importorskip("grpc")
    proxy = GrpcProxy(postgres_database)
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.close()
