"""Numbers of threads and processes in a record are limited to what this host can run, wherever it is used here."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ortune
from ortune import Config, Record, RecordError
from ortune.apply.bench import read_sides
from ortune.errors import ThreadsWarning
from ortune.gates.sides import read_side
from ortune.host import read_host
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import ModelSettings, ThreadPool
from ortune.knobs.thread_limits import Excess, HostSize, limit_config
from tests.conftest import TINY_CNN, run_ortune
from tests.records import make_local_record, write

MOST = HostSize.of(read_host()).most_threads

AFFINITY = "session.intra_op_thread_affinities"

GREEDY = Config(
    session_options={"intra_op_num_threads": 9999, "inter_op_num_threads": 9998},
    session_config={"session.intra_op_thread_affinities": "1;" * 4000 + "1"},
    environment={"ORT_INTRA_OP_NUM_THREADS": "9997", "OMP_NUM_THREADS": "1"},
    workers=1024,
)


def greedy(folder: Path, config: Config = GREEDY) -> Path:
    return write(make_local_record(TINY_CNN, config), folder / "r.json")


def test_a_program_gets_what_the_host_can_run(tmp_path: Path) -> None:
    code = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ)]))"
    done = run_ortune("apply", greedy(tmp_path), "--", sys.executable, "-c", code, "{workers}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (_, workers), environment = json.loads(done.stdout)
    (rule,) = json.loads(environment["ORTUNE_APPLY"])["rules"]
    assert rule["config"]["session_options"] == {"intra_op_num_threads": MOST, "inter_op_num_threads": MOST}
    assert rule["config"]["session_config"] == {}
    assert (environment["ORT_INTRA_OP_NUM_THREADS"], environment["OMP_NUM_THREADS"]) == (str(MOST), "1")
    assert workers == str(MOST)
    assert "warning: " in done.stderr
    assert f"is more than {len(read_host().limits.usable)} usable CPUs can run; {MOST} is used instead" in done.stderr
    for setting in ("intra_op_num_threads=9999", "ORT_INTRA_OP_NUM_THREADS=9997", "workers=1024"):
        assert setting in done.stderr


def read_intra(side: Any) -> int:
    """Return the number of threads of what has a config."""
    return int(side.config.session_options["intra_op_num_threads"])


def verify(path: Path) -> Record:
    """Return the record that a verification would measure."""
    seen: list[Record] = []

    def note(record: Record, *_: Any) -> None:
        seen.append(record)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ortune.api.prepare_verification", note, raising=False)
        patch.setattr("ortune.apply.verify.prepare_verification", note)
        ortune.verify(path, TINY_CNN, budget=1)
    return seen[0]


USES: dict[str, Callable[[Path], int]] = {
    "options": lambda path: ortune.session_options(path).intra_op_num_threads,
    "session": lambda path: ortune.create_session(TINY_CNN, path).get_session_options().intra_op_num_threads,
    "record": lambda path: ortune.session_options(ortune.read_record(path)).intra_op_num_threads,
    "verify": lambda path: read_intra(verify(path)),
    "bench": lambda path: read_intra(read_sides([path], (), str(TINY_CNN))[0]),
    "bench of a record": lambda path: read_intra(read_sides([ortune.read_record(path)], ())[0]),
    "gate": lambda path: read_intra(read_side(f"{TINY_CNN}@{path}").record),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_on_this_host(use: str, tmp_path: Path) -> None:
    path = greedy(tmp_path, Config(session_options={"intra_op_num_threads": 9999}))
    with pytest.warns(ThreadsWarning, match="(r.json|the record|record 1): intra_op_num_threads=9999"):
        assert USES[use](path) == MOST
    path = greedy(tmp_path, Config(session_options={"intra_op_num_threads": 2}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ThreadsWarning)
        assert USES[use](path) == 2


def test_a_session_without_a_command(tmp_path: Path) -> None:
    """The check of a record runs on this host, too."""
    path = greedy(tmp_path, Config(session_options={"intra_op_num_threads": 9999}))
    done = run_ortune("apply", path, TINY_CNN, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["config"]["session_options"]["intra_op_num_threads"] == MOST
    assert len(document["run"]["loaded"]["threads"]) <= MOST
    assert "intra_op_num_threads=9999" in done.stderr


def test_exports_are_for_other_hosts(tmp_path: Path) -> None:
    path = greedy(tmp_path, Config(session_options={"intra_op_num_threads": 9999}))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ThreadsWarning)
        assert "9999" in ortune.export_config(path, "python").text
    done = run_ortune("apply", path, "--to", "python", cwd=tmp_path)
    assert "9999" in done.stdout
    assert "usable CPUs can run" not in done.stderr


def test_a_record_that_is_not_used_is_not_limited(tmp_path: Path) -> None:
    record = make_local_record(TINY_CNN, Config(session_options={"intra_op_num_threads": 9999}))
    elsewhere = msgspec.structs.replace(record, host=msgspec.structs.replace(record.host, machine="vax"))
    done = run_ortune("apply", write(elsewhere, tmp_path / "r.json"), "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "is not used" in done.stderr
    assert "usable CPUs can run" not in done.stderr


def test_every_number_of_threads() -> None:
    """In all places of a config."""
    config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=70, inter_op_num_threads=1))
    for knob in KNOBS.values():
        if knob.threads:
            value = 70 if knob.is_attribute else "70"
            if knob.provider:
                config = msgspec.structs.replace(
                    config, providers=((knob.provider, {knob.name: str(value)}), *config.providers)
                )
            else:
                config = config.with_setting(knob.where, knob.name, value)
    own = ModelSettings(session_options={"intra_op_num_threads": 70})
    config = msgspec.structs.replace(config, models={"m": own}, per_session=({"a": "70"},))
    size = HostSize(most_threads=8, n_cpu_ids=8)
    limited, excess = limit_config(config, size)
    assert "70" not in msgspec.json.encode(msgspec.structs.replace(limited, per_session=())).decode()
    assert limited.per_session == config.per_session
    assert set(excess.numbers.values()) == {70}
    assert limit_config(limited, size) == (limited, Excess())


def test_knobs_that_are_numbers_of_threads() -> None:
    """By their names: a new knob must say whether it is one. Those with a small maximum need no other limit."""
    words = ("threads", "thread_count")
    named = {
        knob.id
        for knob in KNOBS.values()
        if knob.kind == "integer" and any(word in knob.name.lower() for word in words) and (knob.high or 9999) > 64
    }
    assert named == {knob.id for knob in KNOBS.values() if knob.threads}


@pytest.mark.parametrize(("affinity", "fits"), [("1", True), ("1;2", True), ("1-3", False), ("2;16384", False)])
def test_cpus_that_the_host_does_not_have(affinity: str, fits: bool) -> None:
    """ONNX Runtime would log a line for each of them, in each session."""
    threads = affinity.count(";") + 2
    config = Config(session_options={"intra_op_num_threads": threads}, session_config={AFFINITY: affinity})
    limited, excess = limit_config(config, HostSize(most_threads=8, n_cpu_ids=2))
    assert limited.session_config == ({AFFINITY: affinity} if fits else {})
    assert limited.session_options == config.session_options
    assert excess == Excess(affinity="" if fits else affinity)


def test_a_program_does_not_get_foreign_cpus(tmp_path: Path) -> None:
    config = Config(session_options={"intra_op_num_threads": 2}, session_config={AFFINITY: "1-16384"})
    done = run_ortune("apply", greedy(tmp_path, config), TINY_CNN, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the affinity 1-16384 names CPUs that this host does not have; it is left out" in done.stderr
    for affinity in ("1-16385", "999999999"):
        path = greedy(tmp_path, msgspec.structs.replace(config, session_config={AFFINITY: affinity}))
        with pytest.raises(RecordError, match="affinities"):
            ortune.read_record(path)
