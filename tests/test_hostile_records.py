"""Hostile records through everything that reads them, up to the start of workers.

An audit hook sees every file that is opened for writing and every process that is started.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ortune
from ortune import Config, OrtuneError, Record, RecordError, UsageError, read_record
from ortune.apply.bench import read_sides
from ortune.apply.plan import choose_records, encode_plan, environment_of, make_hook_plan
from ortune.apply.verify import prepare_verification
from ortune.cli.search import check_default_path
from ortune.gates.prepare import make_gate
from ortune.host.allocators import find_allocators
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.legal import find_faults
from ortune.program_options import ProgramRequest
from ortune.record.files import encode_record
from ortune.record.select import merge, read_sourced
from ortune.requests import GateRequest, VerifyRequest
from tests.conftest import TINY_CNN, long_params
from tests.records import ONE_THREAD, make_local_record, read_once, write

EVENTS: list[tuple[str, str]] = []
"""What the audit hook has seen: the event and its subject."""

_watching = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            EVENTS.append((event, os.fsdecode(arguments[0])))
    elif event in {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.chmod"}:
        EVENTS.append((event, str(arguments[0])))
    elif event == "subprocess.Popen":
        EVENTS.append((event, " ".join(map(str, arguments[1] or ()))))
    elif event == "os.posix_spawn" and EVENTS and EVENTS[-1][0] == "subprocess.Popen":
        pass  # how Python 3.13 starts that process
    elif event in {"os.exec", "os.posix_spawn", "os.system", "os.fork", "ctypes.dlopen", "pty.spawn"}:
        EVENTS.append((event, str(arguments[:1])))


@functools.cache
def install_hook() -> None:
    sys.addaudithook(_hook)


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Yield the events of the block, which are complete when it ends."""
    global _watching
    install_hook()
    EVENTS.clear()
    found: list[tuple[str, str]] = []
    _watching = True
    try:
        yield found
    finally:
        _watching = False
        found += EVENTS


@functools.cache
def benign() -> dict[str, Any]:
    return dict(msgspec.to_builtins(make_local_record(TINY_CNN, ONE_THREAD)))


TEXTS = st.sampled_from(
    [
        "/etc/passwd",
        "../../victim",
        "/dev/zero",
        "/dev/stdin",
        "-",
        "",
        ".",
        "..",
        "C:\\x",
        "\\\\host\\share",
        "$(touch victim)",
        "`touch victim`",
        "; touch victim",
        "| sh",
        "a\nimport os",
        "\x1b]0;x\x07",
        "\x00",
        "[/red]",
        "[bold]",
        "${{ secrets }}",
        "\u202egpj",
        "\ud800",
        "🦊" * 50,
        "x" * 100_000,
        "{trust}",
        "%s%n",
        "LD_PRELOAD",
        "PYTHONPATH",
        "__class__",
        "ORTUNE_APPLY",
        "1e400",
        "NaN",
        "0",
        "-1",
    ]
) | st.text(max_size=30)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
PLACES = ("session_options", "session_config", "run_options", "run_config", "environment")


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Return a config with names of the catalogue, some in the wrong place, and any values."""
    config: dict[str, Any] = {}
    chain: list[Any] = []
    knobs = draw(st.lists(st.sampled_from(sorted(KNOBS.values(), key=lambda knob: knob.id)), max_size=4))
    for knob in knobs:
        legal = st.sampled_from([*knob.values, knob.default, 1, "1", True]) if draw(st.booleans()) else VALUES
        where = knob.where if draw(st.integers(0, 9)) else draw(st.sampled_from(PLACES))
        if where in PLACES:
            config.setdefault(where, {})[knob.name] = draw(legal)
        elif where == "provider_options":
            chain.append([knob.provider, {knob.name: draw(legal)}])
        else:
            config[knob.name] = draw(legal)
    if chain:
        config["providers"] = chain
    if draw(st.integers(0, 3)) == 0:
        config.setdefault(draw(st.sampled_from(PLACES)), {})[draw(TEXTS)] = draw(VALUES)
    return config


def all_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    for key, item in items:
        yield from all_paths(item, (*path, key))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Return a record with hostile configs, and hostile values in some fields."""
    document = json.loads(msgspec.json.encode(benign()))
    for place in draw(st.lists(st.sampled_from(["config", "base"]), max_size=2)):
        document[place] = draw(configs())
    paths = sorted(all_paths(document), key=str)
    texts = [path for path in paths if isinstance(read(document, path), str)]
    for _ in range(draw(st.integers(0, 3))):
        # Most fields are not text, and strict types reject what is not of their type.
        if draw(st.booleans()):
            replace(document, draw(st.sampled_from(texts)), draw(TEXTS))
        else:
            replace(document, draw(st.sampled_from(paths)), draw(VALUES))
    if draw(st.integers(0, 9)) == 0:
        document[draw(TEXTS)] = draw(VALUES)
    return dict(document)


def read(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def replace(document: Any, path: tuple[Any, ...], value: Any) -> None:
    with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change removed it
        read(document, path[:-1])[path[-1]] = value


def attempt(action: Callable[[], Any]) -> Any:
    """Return the result of an action, or None if it ends with a message."""
    try:
        return action()
    except OrtuneError as error:
        message = "\n".join(error.render())
        assert message
        message.encode()
        return None


ALLOWED = {knob.name for knob in KNOBS.values() if knob.where == "environment" and not knob.unsafe} | {"LD_PRELOAD"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all examples use, as making one takes longer than most examples."""
    return tmp_path_factory.mktemp("records")


@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(document=documents())
def test_records_through_all_that_reads_them(document: dict[str, Any], folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        info = read_once(str(TINY_CNN), TINY_CNN.stat().st_mtime_ns)
        for module in ("ortune.apply.verify", "ortune.gates.prepare", "ortune.measure.open"):
            patch.setattr(f"{module}.read_model", lambda *_: info, raising=False)
        patch.chdir(folder)
        path = folder / "r.json"
        path.write_text(json.dumps(document))
        with watched() as events:
            record = attempt(lambda: read_record(path))
            if record is not None:
                check_record(record, path)
        assert events == []
        assert sorted(file.name for file in folder.iterdir()) == ["r.json"]


def check_record(record: Record, path: Path) -> None:
    """Take a record that can be read to where workers would be started."""
    for config in (record.config, record.base):
        assert not list(find_faults(config))
    request = ProgramRequest(any_host=True)
    choices = attempt(lambda: choose_records([path], request))
    if choices:
        environment = environment_of(choices)
        assert environment.keys() <= ALLOWED
        assert set(environment.get("LD_PRELOAD", "").split()) <= set(find_allocators().values())
        attempt(lambda: encode_plan(make_hook_plan(choices, request, "")))
    attempt(lambda: prepare_verification(record, VerifyRequest(config=record, model=str(TINY_CNN))))
    attempt(lambda: read_sides([path], (), str(TINY_CNN)))
    attempt(lambda: make_gate(GateRequest(base=f"{TINY_CNN}@default", head=f"{TINY_CNN}@{path}")))
    attempt(lambda: make_gate(GateRequest(base=str(path))))
    attempt(lambda: merge(read_sourced([path])))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "../../../etc/passwd", "-", "\x00", "x" * 5000])
def test_the_model_that_a_record_names(path: str, tmp_path: Path) -> None:
    """Only regular files are read, and only if their digest is that of the record."""
    document = copy.deepcopy(benign())
    document["model"]["path"] = path
    file = tmp_path / "r.json"
    file.write_text(json.dumps(document))
    with pytest.raises(OrtuneError), watched() as events:
        ortune.verify(file, budget=1)
    assert events == []


def test_nesting(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text in ('{"schema": 1, "config": ' + "[" * 100_000 + "]" * 100_000 + "}", "[" * 10**6):
        path.write_text(text)
        with pytest.raises(RecordError):
            read_record(path)


@pytest.mark.usefixtures("no_workers_left")
@pytest.mark.parametrize("command", ["gate", *long_params("verify", "bench")])
def test_only_workers_are_started(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a record whose texts are hostile and whose settings are legal."""
    document = json.loads(msgspec.json.encode(make_local_record(TINY_CNN, Config(session_options={"logid": "$(x)"}))))
    document["evidence"]["reason"] = document["model"]["path"] = "`touch victim`; $(touch victim) [/red]\x1b[31m"
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    actions: dict[str, Callable[[], object]] = {
        "verify": lambda: ortune.verify(path, TINY_CNN, any_host=True),
        "bench": lambda: ortune.bench(TINY_CNN, path),
        "gate": lambda: ortune.gate(f"{TINY_CNN}@default", f"{TINY_CNN}@{path}", budget=1, busy=True),
    }
    temporary = Path(tempfile.gettempdir())
    # pytest rewrites modules whose names end with _test, and writes the result.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with watched() as events:
        actions[command]()
    started = [subject for event, subject in events if event == "subprocess.Popen"]
    assert started
    assert all("-m ortune." in subject or "-c" in subject.split() for subject in started), started
    for event, subject in events:
        if event == "open":
            inside = Path(subject).is_relative_to(temporary) and not Path(subject).is_relative_to(tmp_path)
            assert inside or subject == os.devnull or not Path(subject).is_absolute(), (event, subject)
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_a_record_that_was_written_can_be_read(tmp_path: Path) -> None:
    """The document that the tests above change is legal itself."""
    path = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
    with watched() as events:
        check_record(read_record(path), path)
    assert all(event == "subprocess.Popen" for event, _ in events)


@pytest.mark.parametrize("started", ["0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "yesterday", ""])
def test_times_that_no_clock_shows(started: str, tmp_path: Path) -> None:
    """They cannot be converted to another time zone."""
    document = json.loads(encode_record(make_local_record(TINY_CNN, ONE_THREAD)))
    document["search"]["started"] = started
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"started|year|isoformat"):
        read_record(path)


def test_the_default_file_has_a_path_with_a_null_character(tmp_path: Path) -> None:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    model = msgspec.structs.replace(record.model, path="a\0b.onnx")
    path = write(msgspec.structs.replace(record, model=model), tmp_path / "a.ortune.json")
    with pytest.raises(UsageError, match="exists"):
        check_default_path(path, str(TINY_CNN))
