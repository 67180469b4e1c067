"""Storages that are started for these tests: PostgreSQL, MariaDB if it is installed, and Optuna's gRPC proxy."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
import sqlalchemy

from ortune.storage import (
    PROOF,
    RESULT,
    Location,
    Proof,
    SharedResult,
    SharedRound,
    SharedStudy,
    StorageError,
    list_studies,
    open_storage,
    parse_location,
)
from ortune.storage.schema import MOST_TEXT_BYTES, NodeState
from ortune.tuning.shared_exchange import SharedExchange
from ortune.worker import Failure
from tests.conftest import TINY_CNN, run_ortune
from tests.servers import (
    FAST_POSTGRES,
    Database,
    DatabaseServer,
    GrpcProxy,
    Postgres,
    find_free_port,
    find_postgres,
    serve,
)
from tests.test_shared_search import IDENTITY as SEARCH
from tests.test_shared_search import open_exchange, search
from tests.test_storage import IDENTITY, make_measurement

pytestmark = pytest.mark.servers

N_HOSTS = 6

of_tables = pytest.mark.parametrize("kind", ["postgres", "mariadb"], indirect=True)
"""For tests of what ortune does in the tables of a database itself, which needs a connection to it."""


@pytest.fixture(params=["postgres", "mariadb", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> DatabaseServer:
    found: DatabaseServer = request.getfixturevalue("postgres" if kind == "grpc" else kind)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Database:
    return server.make_database()


@pytest.fixture
def url(kind: str, database: Database) -> Iterator[str]:
    if kind != "grpc":
        yield database.url
        return
    proxy = GrpcProxy(database)
    try:
        proxy.start()
        yield proxy.url
    finally:
        proxy.close()


@of_tables
def test_hosts_that_begin_at_the_same_time_create_the_tables_once(kind: str, database: Database) -> None:
    begin = threading.Barrier(N_HOSTS)

    def open_at_once(_: int) -> list[str]:
        location = parse_location(database.url, "ORTUNE_STORAGE")
        begin.wait()
        return [study.name for study in list_studies(location)]

    with ThreadPoolExecutor(N_HOSTS) as pool:
        assert list(pool.map(open_at_once, range(N_HOSTS))) == [[]] * N_HOSTS


@pytest.fixture
def location(url: str) -> Location:
    return parse_location(url, "ORTUNE_STORAGE")


def open_study(location: Location, name: str) -> SharedStudy:
    return SharedStudy(location, {**IDENTITY, "host": name})


def test_each_measurement_is_read_once_while_others_write(location: Location) -> None:
    reader = open_study(location, "concurrent")

    def write(worker: int) -> None:
        study = open_study(location, "concurrent")
        for batch in range(5):
            found = [make_measurement(k, id=f"{worker}:{batch}:{k}") for k in range(8)]
            study.add_all(found)

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, worker) for worker in range(4)]
        received = []
        while not all(future.done() for future in writing):
            received += reader.receive()
        for future in writing:
            future.result()
    received += reader.receive()
    ids = [measurement.id for measurement in received]
    assert len(ids) == len(set(ids)) == 160
    stored = optuna.load_study(study_name=reader.name, storage=open_storage(location)).get_trials(deepcopy=False)
    assert [trial.number for trial in stored] == list(range(20))


@of_tables
def test_a_trial_that_is_committed_late_is_not_missed(location: Location) -> None:
    """Another writer has an identifier already when this one begins. Both are read, in the order of identifiers."""
    study, reader = open_study(location, "late"), open_study(location, "late")
    reached = threading.Event()
    may_end = threading.Event()

    def stop_at_first(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INTO trials" in statement and not reached.is_set():
            reached.set()
            may_end.wait(20)

    sqlalchemy.event.listen(sqlalchemy.Engine, "after_cursor_execute", stop_at_first)
    try:
        with ThreadPoolExecutor(2) as pool:
            late = pool.submit(study.add, make_measurement(0))
            assert reached.wait(20)
            other = pool.submit(open_study(location, "late").add, make_measurement(1))
            threading.Event().wait(0.5)
            received = reader.receive()
            may_end.set()
            assert (late.result(), other.result()) == (0, 1)
    finally:
        may_end.set()
        sqlalchemy.event.remove(sqlalchemy.Engine, "after_cursor_execute", stop_at_first)
    received += reader.receive()
    assert [measurement.id for measurement in received] == ["w:0", "w:1"]


SLOWER = (SharedRound(log_ratios=(0.5,)),)


def test_optuna_reads_what_is_written_and_goes_on(location: Location) -> None:
    study = open_study(location, "optuna")
    failure = Failure(kind="crash", stage="load", message="x")
    failed_measurement = make_measurement(1, rounds=(), failure=failure)
    study.add_all([make_measurement(0), failed_measurement, make_measurement(2, rounds=SLOWER)])
    study.add_all([failed_measurement])
    plain = optuna.load_study(study_name=study.name, storage=open_storage(location))
    complete, failed = plain.get_trials()
    assert complete.values == [pytest.approx(0.8607079764250578)]
    assert complete.datetime_complete
    assert abs((optuna.trial.create_trial(value=0.0).datetime_start - complete.datetime_start).total_seconds()) < 3600
    assert (complete.state.name, failed.state.name, failed.values) == ("COMPLETE", "FAIL", None)
    trial = plain.ask()
    plain.tell(trial, 1.0)
    assert trial.number == 2
    assert study.add(make_measurement(3)) == 3
    assert [measurement.id for measurement in study.receive()] == ["w:0", "w:1", "w:2", "w:3"]
    assert any(info.identity["host"] == "optuna" for info in list_studies(location))


@of_tables
def test_tables_of_another_version_are_named(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    open_study(location, "versions")
    monkeypatch.setattr(optuna.storages.RDBStorage, "get_head_version", lambda _: "v99.0.0.a")
    with pytest.raises(StorageError, match=r"needs 'v99\.0\.0\.a'. Update Optuna here, or the tables with"):
        open_study(location, "versions")


def test_long_values_and_all_characters(location: Location) -> None:
    study, reader = open_study(location, "long"), open_study(location, "long")
    message = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 900)) + '😀"\\\n'
    failure = Failure(kind="crash", stage="load", message=message)
    study.add(make_measurement(0, rounds=(), failure=failure))
    assert reader.receive()[0].failure == failure
    study._study.set_user_attr("node:longest", '"' * (MOST_TEXT_BYTES // 2 - 2))
    state = NodeState(node="b", worker="2", leased=tuple(f"{k:04}" * 2000 for k in range(64)))
    study.announce(state)
    assert reader.read_nodes() == [state]
    trial = study._study.ask()
    trial.set_user_attr("ortune", "x" * (MOST_TEXT_BYTES - 2))
    study._study.tell(trial, 1.0)
    assert reader.receive() == []


def test_states_are_read_without_other_attributes(location: Location) -> None:
    study, reader = open_study(location, "states"), open_study(location, "states")
    study.announce(NodeState(node="b", worker="%", number=2))
    study.announce(NodeState(node="a", worker="_", number=1))
    study._study.set_user_attr("nodes", "x")
    study._study.set_user_attr("node:y", "{")
    assert [state.worker for state in reader.read_nodes()] == ["_", "%"]


def test_a_study_goes_on_after_the_database_was_restarted(server: DatabaseServer, location: Location) -> None:
    study, reader = open_study(location, "restart"), open_study(location, "restart")
    study.add(make_measurement(0))
    assert len(reader.receive()) == 1
    server.stop()
    with pytest.raises(StorageError):
        study.add(make_measurement(1))
    with pytest.raises(StorageError):
        reader.receive()
    server.start()
    assert not study.has("w:1")
    study.add(make_measurement(1))
    assert [measurement.id for measurement in reader.receive()] == ["w:1"]


@of_tables
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("password", "refuses the user '{user}' or the password"),
        ("database", "has no database 'nothing'"),
        ("port", "nothing listens there"),
        ("host", "the host is not known"),
    ],
)
def test_faults_are_explained_in_a_sentence(database: Database, change: str, said: str) -> None:
    url = {
        "password": database.url.replace(database.password, "geheim"),
        "database": f"{database.url.removesuffix(database.name)}nothing",
        "port": database.url.replace(f":{database.port}/", f":{find_free_port()}/"),
        "host": database.url.replace("@127.0.0.1:", "@nowhere.invalid:"),
    }[change]
    location = parse_location(url, "ORTUNE_STORAGE")
    with pytest.raises(StorageError) as caught:
        open_storage(location)
    message = str(caught.value)
    assert said.format(user=database.name) in message
    assert message.startswith(location.title)
    assert "geheim" not in message
    assert database.password not in message
    assert "\n" not in message


@pytest.fixture
def crowded() -> Iterator[DatabaseServer]:
    """PostgreSQL with six connections, besides the three that it reserves for its administrator."""
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    yield from serve(lambda: Postgres(programs, {**FAST_POSTGRES, "max_connections": "9"}))


def test_more_nodes_than_connections(crowded: DatabaseServer) -> None:
    location = parse_location(crowded.make_database().url, "ORTUNE_STORAGE")
    first = open_study(location, "many")

    def join(number: int) -> None:
        study = open_study(location, "many")
        study.add(make_measurement(number))
        study.announce(NodeState(node="n", worker=str(number)))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(join, range(12)))
    assert len(first.receive()) == len(first.read_nodes()) == 12


def test_two_nodes_share_one_search(location: Location, tmp_path: Path) -> None:
    """Both are on simulated hosts, and search at the same time."""
    exchanges = {node: open_exchange(tmp_path, node, location=location, outbox=True) for node in "ab"}
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(search, exchanges.values(), (0, 1)))
    assert {outcome.config.session_options.get("intra_op_num_threads") for outcome in outcomes} == {1}
    assert [outcome.evidence.verdict for outcome in outcomes] == ["faster", "faster"]
    study = SharedStudy(location, SEARCH)
    measurements = study.receive()
    assert {measurement.node for measurement in measurements} == {"a", "b"}
    sent = {
        f"{exchange.worker}:{number}" for exchange in exchanges.values() for number in ("aa", *numbers_of(exchange))
    }
    assert sorted(measurement.id for measurement in measurements) == sorted(sent)
    assert {state.node: state.stage for state in study.read_nodes()} == {"a": "done", "b": "done"}
    # One node did racing and confirmation, the other repeated the confirmation of its result.
    (result,) = study.read_all(RESULT, SharedResult).values()
    proofs = study.read_all(PROOF, Proof).values()
    assert {proof.node: proof.digest for proof in proofs} == {"a": result.digest, "b": result.digest}
    assert all(proof.speedup and proof.speedup.low > 1 for proof in proofs)
    assert not list(tmp_path.iterdir())


def numbers_of(exchange: SharedExchange) -> Iterable[int]:
    """Return the numbers of what a node measured."""
    return range(1, exchange.state.n_measured + 1)


@pytest.mark.parametrize("kind", ["grpc"], indirect=True)
def test_the_command_searches_on_two_nodes(url: str, location: Location, tmp_path: Path) -> None:
    for node in "ab":
        done = run_ortune(
            "search",
            TINY_CNN,
            "--no-history",
            "-o",
            f"{node}.json",
            cwd=tmp_path,
            simulate=True,
            environment={"ORTUNE_NODE": node, "ORTUNE_STORAGE": url},
        )
        assert done.returncode == 0, done.stderr
    records = [json.loads((tmp_path / f"{node}.json").read_text()) for node in "ab"]
    assert records[0]["config"] == records[1]["config"]
    (info,) = list_studies(location)
    assert {proof.node for proof in SharedStudy(location, info.identity).read_all(PROOF, Proof).values()} == {"a", "b"}
