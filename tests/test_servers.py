"""The servers for tests of shared storages: Optuna works through each, across restarts, and none is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT
from tests.servers import Database, DatabaseServer, GrpcProxy, find_postgres

pytestmark = [pytest.mark.servers]

NAME = "a study"


def run_trials(storage: Any, n: int) -> int:
    """Run trials of a study in a storage, and return how many trials the study has."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=storage, study_name=NAME, load_if_exists=True)
    for _ in range(n):
        trial = study.ask()
        study.tell(trial, trial.suggest_float("x", 0, 1))
    return len(study.get_trials(deepcopy=False))


def open_database(url: str) -> Any:
    """Return Optuna's storage. Connections are checked before they are used, as the server may have restarted."""
    from optuna.storages import RDBStorage

    return RDBStorage(url, engine_kwargs={"pool_pre_ping": True})


def close(storage: Any) -> None:
    storage.remove_session()
    storage.engine.dispose()


def test_a_journal_file(tmp_path: Path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = str(tmp_path / "journal.log")
    assert run_trials(JournalStorage(JournalFileBackend(path)), 2) == 2
    assert run_trials(JournalStorage(JournalFileBackend(path)), 1) == 3


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_database_that_restarts(kind: str, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    database: Database = request.getfixturevalue(f"{kind}_database")
    storage = open_database(database.url_of_sqlalchemy)
    assert run_trials(storage, 2) == 2
    before = server.pid
    server.restart()
    assert server.pid != before
    assert run_trials(storage, 1) == 3
    close(storage)


def test_the_proxy_before_a_database_that_restarts(postgres: DatabaseServer, grpc_proxy: GrpcProxy) -> None:
    from optuna.storages import GrpcStorageProxy

    with pytest.warns(match="experimental"):
        storage = GrpcStorageProxy(host="127.0.0.1", port=grpc_proxy.port)
    assert run_trials(storage, 2) == 2
    grpc_proxy.stop()
    postgres.restart()
    grpc_proxy.start()
    assert run_trials(storage, 1) == 3
    storage.close()
    storage = open_database(grpc_proxy.database.url_of_sqlalchemy)
    assert run_trials(storage, 0) == 3
    close(storage)


class TestPostgres:
    def test_a_wrong_password_is_refused(self, postgres_database: Database) -> None:
        import psycopg

        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(postgres_database._replace(password="wrong").url)

    def test_the_password_may_be_in_the_environment(
        self, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import psycopg

        monkeypatch.setenv("PGPASSWORD", postgres_database.password)
        psycopg.connect(postgres_database.url_without_password).close()

    def test_each_test_has_its_own_database(self, postgres: DatabaseServer) -> None:
        import psycopg

        one, other = postgres.make_database(), postgres.make_database()
        assert (one.name, one.password) != (other.name, other.password)
        with psycopg.connect(one.url) as connection:
            connection.execute("CREATE TABLE of_one (n int)")
        connection.close()
        with psycopg.connect(other.url) as connection, pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM of_one")
        connection.close()

    def test_while_it_is_stopped_nothing_answers(self, postgres: DatabaseServer, postgres_database: Database) -> None:
        import psycopg

        postgres.stop()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(postgres_database.url)
        postgres.start()
        psycopg.connect(postgres_database.url).close()


PROGRAM = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs in the background ignore it
from tests.servers import Postgres, find_postgres
server = Postgres(find_postgres())
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_servers_end_with_the_process_that_started_them(number: signal.Signals) -> None:
    # A session of its own: like a terminal, the test sends the interrupt to all processes of the group.
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    pid, folder = process.stdout.readline().split()
    server = psutil.Process(int(pid))
    everything = [server, *server.children(recursive=True), server.parent()]
    os.killpg(process.pid, number)
    process.wait()
    process.stdout.close()
    _, alive = psutil.wait_procs([server_process for server_process in everything if server_process], timeout=60)
    assert alive == []
    while Path(folder).exists():  # limited by the timeout of the test
        time.sleep(0.05)


def test_a_killed_supervisor_takes_its_server_along(postgres: DatabaseServer) -> None:
    server = psutil.Process(postgres.pid)
    supervisor = server.parent()
    assert supervisor
    assert "supervise" in " ".join(supervisor.cmdline())
    supervisor.kill()
    _, alive = psutil.wait_procs([server], timeout=60)
    assert alive == []
    postgres.restart()


@pytest.mark.skipif(find_postgres() is None, reason="PostgreSQL is not installed")
def test_nothing_is_left_of_a_process_that_is_killed_before_its_server_answers() -> None:
    """Not even its folder, although initdb is still running then."""
    program = "from tests.servers import Postgres, find_postgres; Postgres(find_postgres()).start()"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL runs as another user
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "TMPDIR": name})
        while not [*folder.glob("ortune-server-*/data")]:  # limited by the timeout of the test
            time.sleep(0.001)
        process.kill()
        process.wait()
        while [*folder.iterdir()]:
            time.sleep(0.01)
