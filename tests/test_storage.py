"""Storages that several hosts share: locations, credentials, and what is exchanged."""

from __future__ import annotations

import base64
import random
import socket
import sqlite3
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Config, UsageError
from ortune.storage import (
    Location,
    Measurement,
    NodeState,
    SharedRound,
    SharedStudy,
    StorageError,
    find_location,
    list_studies,
    open_storage,
    parse_location,
)
from ortune.storage.connect import ShortPool
from ortune.storage.schema import MOST_MEASUREMENTS, MOST_TEXT_BYTES, decode, encode
from ortune.worker import Failure

PASSWORD = "p@ss{w}ord:/%"
SPELLED = "p%40ss%7Bw%7Dord%3A%2F%25"
IDENTITY = {"model_name": "model.onnx", "model": "0" * 64, "host": "Zen 4, 2 cores"}
CONFIG = Config(session_options={"intra_op_num_threads": 1})


def make_measurement(number: int = 0, **changes: object) -> Measurement:
    values = {
        "id": f"w:{number}",
        "node": "a",
        "worker": "w",
        "config": CONFIG,
        "launch": number,
        "rounds": (SharedRound(log_ratios=(-0.1,)), SharedRound(log_ratios=(-0.2,), contended=True)),
        "spent_s": 0.5,
    }
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]


def open_study(folder: Path, **identity: str) -> SharedStudy:
    return SharedStudy(parse_location(str(folder / "fleet.journal"), "storage"), {**IDENTITY, **identity})


@pytest.mark.parametrize(
    ("text", "title", "url"),
    [
        (
            "postgresql://ann@db:5432/tuning",
            "postgresql://ann@db:5432/tuning",
            "postgresql+psycopg://ann@db:5432/tuning",
        ),
        ("postgres://db/tuning?sslmode=require", "postgresql://db/tuning", "postgresql+psycopg://db/tuning"),
        ("postgresql://a%40b@db1,db2/t%2Fx", "postgresql://a@b@db1,db2/t/x", "postgresql+psycopg://a%40b@db1,db2/t/x"),
        ("mysql+mysqldb://db/tuning", "mysql://db/tuning", "mysql+mysqldb://db/tuning"),
        ("grpc://proxy:13000", "grpc://proxy:13000", "proxy:13000"),
        ("grpc://[::1]:13000", "grpc://[::1]:13000", "[::1]:13000"),
    ],
)
def test_locations(text: str, title: str, url: str) -> None:
    location = parse_location(text, "storage")
    assert (location.title, location.url) == (title, url)


@pytest.mark.parametrize(
    "text",
    [
        "x/fl",
        "redis://host",
        "grpc://host",
        "grpc://a:1/x",
        "postgresql://host",
        "postgresql://h:x/d",
        "a\nb.journal",
        "postgresql://h:70000/d",
        "postgresql://h/d%0A",
        "mysql:/u@h/d.log",
        "mysql+x:h.journal",
    ],
)
def test_illegal_locations_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_location(text, "ORTUNE_STORAGE")
    assert text not in str(caught.value)
    assert "ORTUNE_STORAGE" in caught.value.message


def test_a_password_is_hidden_in_each_spelling() -> None:
    location = parse_location(f"postgresql://ann:{SPELLED}@db/tuning?sslpassword=geheim", "ORTUNE_STORAGE")
    shown = f"{location!r} {location} {location.title}"
    for secret in (PASSWORD, SPELLED, "geheim"):
        assert secret not in shown
        assert secret not in location.hide(f"connection with {secret} failed")


@pytest.mark.parametrize("password", ["12/S3CRET", "S3CRET#x", "?S3CRET", "[S3CRET", "x:S3CRET", "S3CRET/y?z=1"])
def test_a_password_is_what_the_engine_takes_for_it(password: str) -> None:
    """Other parsers of URLs would show the part after the slash as the name of the database."""
    location = parse_location(f"postgresql://ann:{password}@db/tuning", "ORTUNE_STORAGE")
    assert location.title == "postgresql://ann@db/tuning"
    assert location.engine_url
    assert location.engine_url.password == password
    assert "S3CRET" not in location.hide(f"{password} and {location.url}")
    with pytest.raises(UsageError, match="contains a password") as caught:
        find_location(f"postgresql://ann:{password}@db/tuning")
    assert "S3CRET" not in str(caught.value)


@given(
    user=st.text(alphabet="a:/@?#[]%=&.", max_size=4),
    before=st.text(alphabet="1:/@?#[]%=&.", max_size=4),
    after=st.text(alphabet="1:/@?#[]%=&.", max_size=4),
    scheme=st.sampled_from(["postgresql://", "mysql://", "mysql+pymysql://", "grpc://", "postgresql:/", "mysql:"]),
    end=st.sampled_from(["/tuning", "/tuning?sslmode=require", "", ":1", "/x.journal", ":1/x.log"]),
)
def test_no_spelling_shows_a_password(user: str, before: str, after: str, scheme: str, end: str) -> None:
    text = f"{scheme}{user}ann:{before}S3CRET{after}@db{end}"
    try:
        shown = parse_location(text, "ORTUNE_STORAGE").title
    except UsageError as error:
        shown = str(error)
    assert "S3CRET" not in shown


def test_a_password_is_refused_on_the_command_line() -> None:
    with pytest.raises(UsageError) as caught:
        find_location(f"postgresql://ann:{SPELLED}@db/tuning")
    assert SPELLED not in str(caught.value)


def test_the_environment_names_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "storage"
    file.write_text(f"mysql://ann:{SPELLED}@db/tuning\n")
    monkeypatch.setenv("ORTUNE_STORAGE_FILE", str(file))
    found = find_location(None)
    assert found and found.title == "mysql://ann@db/tuning"
    monkeypatch.setenv("ORTUNE_STORAGE", "grpc://proxy:1")
    assert find_location(None) == parse_location("grpc://proxy:1", "")
    assert find_location("other.journal") != find_location(None)


def test_the_file_of_the_environment_must_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTUNE_STORAGE_FILE", str(tmp_path))
    with pytest.raises(UsageError, match="regular file"):
        find_location(None)


@pytest.mark.parametrize(
    ("scheme", "option"),
    [
        ("mysql", "local_infile"),
        ("mysql", "init_command"),
        ("mysql", "read_default_file"),
        ("mysql", "read_default_group"),
        ("mysql", "client_flag"),
        ("mysql", "plugin"),
        ("mysql", "sslmode"),
        ("mysql+mysqldb", "ssl_ca"),
        ("postgresql", "service"),
        ("postgresql", "passfile"),
        ("postgresql", "options"),
        ("postgresql", "sslkeylogfile"),
        ("postgresql", "password"),
        ("postgresql", "plugin"),
        ("postgresql+psycopg2", "service"),
    ],
)
def test_options_of_drivers_that_are_not_known_to_be_harmless_are_refused(scheme: str, option: str) -> None:
    with pytest.raises(UsageError, match=rf"an option {option} that is not passed on") as caught:
        parse_location(f"{scheme}://ann@db/tuning?{option}=geheim", "ORTUNE_STORAGE")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://db/d?connect_timeout=geheim", "connect_timeout of the URL must be a whole number of seconds"),
        ("mysql://db/d?ssl_verify_cert=geheim", "ssl_verify_cert of the URL must be true or false"),
        ("postgresql:///d?host=geheim", "host of the URL must be the folder of a Unix domain socket"),
        ("postgresql://db/d?sslmode=geheim&sslmode=x", "has the option sslmode twice"),
        ("mysql://db/d?ssl_verify_identity=true&program_name=geheim", "ssl_verify_identity of the URL needs ssl_ca"),
        ("mysql://db/d?GEHEIM%20geheim=x", "has an option that is not passed on"),
    ],
)
def test_illegal_values_of_options_are_not_shown(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_location(url, "ORTUNE_STORAGE")
    assert "geheim" not in str(caught.value)


class ConnectedError(Exception):
    """A driver was asked for a connection."""


@pytest.mark.parametrize(
    ("driver", "url", "expected"),
    [
        (
            "psycopg",
            "postgresql://ann:a%2Fb@db:1/tuning?sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=3",
            {
                "host": "db",
                "port": 1,
                "user": "ann",
                "password": "a/b",
                "dbname": "tuning",
                "sslmode": "verify-full",
                "sslrootcert": "/ca.pem",
                "connect_timeout": 3,
                "application_name": "ortune",
            },
        ),
        (
            "psycopg",
            "postgresql://ann@/tuning?host=/run/postgresql&application_name=mine&target_session_attrs=primary",
            {"host": "/run/postgresql", "application_name": "mine", "target_session_attrs": "primary"},
        ),
        (
            "pymysql",
            "mysql://ann@db/tuning?charset=utf8mb4&read_timeout=9&ssl_ca=/ca.pem&ssl_verify_identity=true",
            {
                "host": "db",
                "charset": "utf8mb4",
                "connect_timeout": 10,
                "read_timeout": 9,
                "ssl": {"ca": "/ca.pem", "check_hostname": True},
            },
        ),
        (
            "pymysql",
            "mysql://ann@db/tuning?ssl_ca=/ca.pem&ssl_verify_cert=false",
            {"ssl": {"ca": "/ca.pem", "verify_mode": False, "check_hostname": False}},
        ),
    ],
)
def test_options_reach_the_driver(
    driver: str, url: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    received: dict[str, Any] = {}

    def connect(**arguments: Any) -> None:
        received.update(arguments)
        raise ConnectedError("no connection")

    monkeypatch.setattr(pytest.importorskip(driver), "connect", connect)
    with pytest.raises(StorageError, match="no connection"):
        open_storage(parse_location(url, "ORTUNE_STORAGE"))
    assert {name: received.get(name) for name in expected} == expected


def test_measurements_reach_others_once(tmp_path: Path) -> None:
    one, other = open_study(tmp_path), open_study(tmp_path)
    failure = Failure(kind="crash", stage="load", message="x")
    first, second = make_measurement(0), make_measurement(1, rounds=(), failure=failure)
    assert [one.add(measurement) for measurement in (first, second)] == [0, 1]
    assert other.receive() == [first, second]
    assert other.receive() == []
    assert other.has("w:1")
    assert not other.has("w:2")


def test_a_batch_is_one_trial_unless_it_is_too_long(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    many = [make_measurement(number) for number in range(MOST_MEASUREMENTS + 1)]
    study.add_all(many)
    assert study.find("w:0") == 0
    assert study.find(many[-1].id) == 1
    source = random.Random(1)
    labels = [{name: source.randbytes(500).hex() for name in "xy"} for _ in range(MOST_MEASUREMENTS)]
    long = [make_measurement(100 + number, labels=labels[number]) for number in range(MOST_MEASUREMENTS)]
    study.add_all(long)
    assert study.find(long[0].id) == 2
    assert study.find(long[-1].id) == 3
    assert open_study(tmp_path).receive() == [*many, *long]


def test_a_measurement_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = random.Random(1)
    labels = {f"{number}": source.randbytes(500).hex() for number in range(200)}
    with pytest.raises(ValueError, match="does not fit"):
        open_study(tmp_path).add_all([make_measurement(0), make_measurement(1, labels=labels)])
    assert open_study(tmp_path).receive() == []


def test_studies_with_another_identity_do_not_meet(tmp_path: Path) -> None:
    one, other = open_study(tmp_path), open_study(tmp_path, host="Zen 5, 2 cores")
    one.add(make_measurement())
    assert other.receive() == []
    assert {study.identity["host"] for study in list_studies(one.location)} == {"Zen 4, 2 cores", "Zen 5, 2 cores"}


def test_states_of_nodes(tmp_path: Path) -> None:
    one, other = open_study(tmp_path), open_study(tmp_path)
    late = NodeState(node="b", worker="2", number=5)
    early = NodeState(node="a", worker="1", number=3, leased=(CONFIG.key,))
    one.announce(late)
    other.announce(msgspec.structs.replace(early, beat=1))
    other.announce(early)
    assert one.read_nodes() == [early, late]


def test_what_others_write_is_checked(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    study._study.set_user_attr("node:x", "{")
    study._study.set_user_attr("node:y", 3)
    trial = study._study.ask()
    trial.set_user_attr("ortune", '{"measurements": [{"id": "x"}]}')
    study._study.tell(trial, 1.0)
    assert study.read_nodes() == []
    assert study.receive() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": ()},
        {"rounds": (SharedRound(log_ratios=(0.0,)), SharedRound(log_ratios=(0.0, 1.0)))},
        {"rounds": (SharedRound(log_ratios=()),)},
        {"spent_s": -1.0},
        {"id": ""},
        {"rounds": (SharedRound(log_ratios=(99.0,)),)},
    ],
)
def test_illegal_measurements_are_ignored(changes: dict[str, object]) -> None:
    legal = msgspec.to_builtins(make_measurement())
    changed = {**legal, **{name: msgspec.to_builtins(value) for name, value in changes.items()}}
    assert decode(msgspec.json.encode(changed).decode(), Measurement) is None
    assert decode(encode(make_measurement()), Measurement) == make_measurement()


def test_long_values_are_compressed() -> None:
    config = Config(session_config={"session.intra_op_thread_affinities": ";".join(["1,2,3,4,5,6,7,8"] * 96)})
    measurement = make_measurement(config=config)
    assert len(encode(measurement)) < len(config.key) / 4
    assert decode(encode(measurement), Measurement) == measurement


def test_values_that_do_not_fit_are_refused() -> None:
    source = random.Random(1)
    leased = tuple(source.randbytes(5000).hex() for _ in range(20))
    with pytest.raises(ValueError, match="does not fit"):
        encode(NodeState(node="a", worker="1", leased=leased))


@pytest.mark.parametrize(
    "text",
    [
        "zlib:",
        "zlib:!",
        "zlib:" + base64.b64encode(b"x").decode(),
        "zlib:" + base64.b64encode(zlib.compress(b" " * 30_000_000)).decode(),
        "zlib:" + base64.b64encode(zlib.compress(encode(NodeState(node="a", worker="1")).encode())[:-6]).decode(),
    ],
)
def test_illegal_compressed_values_are_ignored(text: str) -> None:
    assert len(text) < MOST_TEXT_BYTES
    assert decode(text, NodeState) is None


def test_drivers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(UsageError, match="pymysql") as caught:
        open_storage(parse_location("mysql://db/tuning", "X"))
    assert "ortune[fleet]" in str(caught.value.hint)
    for scheme in ("mysql+mysqlconnector", "postgresql+nothing"):
        with pytest.raises(UsageError, match=scheme.partition("+")[2]):
            open_storage(parse_location(f"{scheme}://db/tuning", "X"))


def test_a_storage_that_does_not_answer_is_reported_without_its_password() -> None:
    location = parse_location(f"postgresql://ann:{SPELLED}@127.0.0.1:1/tuning", "ORTUNE_STORAGE")
    with pytest.raises(StorageError, match=r"ann@127\.0\.0\.1:1/tuning") as caught:
        open_storage(location)
    assert PASSWORD not in str(caught.value)
    assert SPELLED not in str(caught.value)


def test_a_journal_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"No such file"):
        open_storage(Location(kind="journal", url=str(tmp_path / "x" / "a.journal"), title="a.journal"))


def test_a_connection_that_is_not_used_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.storage.connect.IDLE_S", 0.01)
    closed = threading.Event()

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.set()

    pool = ShortPool(lambda: sqlite3.connect(":memory:", check_same_thread=False, factory=Connection), pool_size=1)
    pool.connect().close()
    assert closed.wait(60)
    pool.connect().close()
    pool.dispose()


@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_database_that_is_late_is_tried_again_if_its_host_answers(is_reachable: bool) -> None:
    """Hundreds of nodes that start at the same time get no connection within the time limit of their driver."""
    n_tries = 0

    def connect() -> Any:
        nonlocal n_tries
        n_tries += 1
        if n_tries < 3:
            raise OSError("connection timeout expired")
        return sqlite3.connect(":memory:")

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
        if not is_reachable:
            server.close()
        pool = type("Pool", (ShortPool,), {"address": address})(connect)
        if is_reachable:
            pool.connect().close()
            pool.dispose()
            assert n_tries == 3
        else:
            with pytest.raises(OSError, match="timeout expired"):
                pool.connect()
            assert n_tries == 1
