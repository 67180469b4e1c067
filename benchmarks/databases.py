"""Database servers for benchmarks: those of the tests, with the defaults of their packages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil

from tests.servers import HOST, Database, DatabaseServer, MariaDB, Postgres, Server, find_mariadb, find_postgres


class Started:
    """A database server that runs, with a database.

    Args:
        server: The server.

    Attributes:
        server: The server.
        database: The database.
        url: Its URL, with the password.
    """

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.database = server.make_database()
        self.url = self.database.url

    def cpu_s(self) -> float:
        """Return the CPU time of the server, also of its processes that ended."""
        found = psutil.Process(self.server.pid)
        own = found.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in found.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                total += times.user + times.system
        return float(total)


class PgBouncer(Server):
    """PgBouncer in front of PostgreSQL, with a connection per transaction.

    Args:
        database: The database.
        pool_size: Connections to PostgreSQL.
    """

    def __init__(self, database: Database, pool_size: int = 20) -> None:
        super().__init__("postgres")
        self.url = database.url.replace(f":{database.port}/", f":{self.port}/")
        users = self.folder / "users"
        users.write_text(f'"{database.name}" "{database.password}"\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"""[databases]
{database.name} = host={HOST} port={database.port} dbname={database.name} pool_size={pool_size}
[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
max_client_conn = 2000
ignore_startup_parameters = options
"""
        )

    @property
    def command(self) -> list[str]:
        """The command line of the server."""
        return ["pgbouncer", "-q", str(self.folder / "pgbouncer.ini")]


@contextlib.contextmanager
def run(server: Server) -> Iterator[None]:
    """Start a server, and remove it at the end."""
    try:
        server.start()
        yield
    finally:
        server.close()


@contextlib.contextmanager
def start_postgres(max_connections: int = 100) -> Iterator[Started]:
    """Run PostgreSQL with its defaults."""
    programs = find_postgres()
    assert programs, "PostgreSQL is not installed"
    server = Postgres(programs, {"max_connections": str(max_connections)})
    with run(server):
        yield Started(server)


@contextlib.contextmanager
def start_mariadb() -> Iterator[Started]:
    """Run MariaDB with its defaults."""
    program = find_mariadb()
    assert program, "MariaDB is not installed"
    server = MariaDB(program, ())
    with run(server):
        yield Started(server)


@contextlib.contextmanager
def start_pgbouncer(database: Database) -> Iterator[str]:
    """Run PgBouncer in front of a database of PostgreSQL, and yield the URL."""
    proxy = PgBouncer(database)
    with run(proxy):
        yield proxy.url
