"""The password of a storage appears nowhere: output, files, command lines, environments and memory of child processes.

Only ortune itself has it, in its environment and in its memory: it cannot connect to the database without. A core dump
of ortune therefore holds the password, and one of its child processes does not.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ortune import Record, Speedup
from ortune.fleet.proofs import open_studies
from ortune.fleet.shared_metrics import MetricsSender
from ortune.storage import list_studies, parse_location
from tests.conftest import TINY_CNN, run_ortune
from tests.leaks import (
    Kind,
    Leak,
    list_descendants,
    read_process,
    search_folder,
    search_processes,
    search_texts,
    watch,
)
from tests.metrics import make_rollout, write_metrics
from tests.records import ONE_THREAD, make_local_record, write
from tests.servers import Database, DatabaseServer
from tests.test_fleet_storage import make_proof, prove

pytestmark = pytest.mark.servers

OWN: tuple[Kind, ...] = ("environ", "memory")
"""Where ortune itself, which gets the password in an environment variable, must have it."""

COMMANDS: dict[str, tuple[object, ...]] = {
    "status": ("fleet", "status"),
    "status as JSON": ("fleet", "status", "--json"),
    "collect": ("fleet", "collect", "-o", "bundle.json"),
    "expire": ("fleet", "expire", TINY_CNN, "--older-than", "1d", "--remove"),
    "send": ("fleet", "send", "metrics"),
    "compare": ("fleet", "compare"),
    "verify": ("apply", "tuned.json", TINY_CNN, "--verify", "--update", "--budget", "6s"),
    "gate": ("gate", f"{TINY_CNN}@storage", f"{TINY_CNN}@default", "--budget", "6s"),
    "search": ("search", TINY_CNN, "--budget", "2s", "-o", "new.json"),
}
"""All commands that use a storage."""


def start(url: str, folder: Path, *command: object) -> subprocess.Popen[str]:
    """Start ortune with a storage that the environment names."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "ortune", *map(str, command)],
        cwd=folder,
        env={**os.environ, "ORTUNE_STORAGE": url, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


NOT_FIT = "This host is not fit to take part in the search"
ATTEMPTS = 4
"""What a search says of a host that is too busy, as this one may be for a moment, and how often it is tried."""


def search(url: str, folder: Path, budget_s: int = 20) -> subprocess.Popen[str]:
    """Begin a search beside a program."""
    beside = shlex.join([sys.executable, "-c", "import time; time.sleep(600)"])
    return start(url, folder, "search", TINY_CNN, "--budget", f"{budget_s}s", "-o", "tuned.json", "--beside", beside)


def wait_for_trials(process: subprocess.Popen[str], url: str) -> None:
    """Wait until a search has shared a measurement, or has ended."""
    location = parse_location(url, "")
    while process.poll() is None and not any(study.receive() for study in open_studies(location)):
        time.sleep(0.1)


@pytest.fixture(scope="module")
def record() -> Record:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    gain = Speedup(estimate=1.3, low=1.2, high=1.4, confidence=0.95, n_pairs=60, n_launches=6)
    return msgspec.structs.replace(
        record, evidence=msgspec.structs.replace(record.evidence, verdict="faster", speedup=gain, baseline=None)
    )


@pytest.fixture
def fleet(postgres_database: Database, record: Record, tmp_path: Path) -> Database:
    """A database with a record that two hosts verified and the metrics of a rollout, which are also in a folder."""
    write(record, tmp_path / "tuned.json")
    write_metrics(tmp_path / "metrics", *make_rollout())
    location = parse_location(postgres_database.url, "")
    prove(location, record, make_proof("a"), make_proof("b"))
    MetricsSender(tmp_path / "metrics", location).send()
    return postgres_database


@pytest.mark.timeout(600)  # all attempts
@pytest.mark.parametrize("is_lost", [False, True], ids=["kept", "lost"])
def test_a_search_shows_the_password_nowhere(postgres: DatabaseServer, tmp_path: Path, *, is_lost: bool) -> None:
    for number in range(ATTEMPTS):
        database = postgres.make_database()
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            # On a busy host, a search may end before it needs the storage again.
            search(database.url, folder, 20 * (1 + number)) as process,
            watch(process.pid, database.password, allowed=OWN, interval_s=0.02) as watcher,
        ):
            if is_lost:
                wait_for_trials(process, database.url)
                postgres.stop()
            try:
                output, messages = process.communicate(timeout=120)
            finally:
                if is_lost:
                    postgres.start()
        assert watcher.n_looks > 10
        assert not [*watcher.leaks, *search_texts(database.password, output=output, messages=messages)]
        assert not search_folder(database.password, folder)
        is_noted = "storage: postgresql" in " ".join(output.split())
        if NOT_FIT not in messages and is_noted == is_lost:
            break
    assert process.returncode in {0, 3}, messages
    assert (folder / "tuned.json").exists()
    assert is_noted == is_lost, output + messages


def test_workers_do_not_have_the_password_in_memory(postgres_database: Database, tmp_path: Path) -> None:
    """Nor what else a search starts. The messages that it sent to workers are in their memory."""
    password, location = postgres_database.password, parse_location(postgres_database.url, "")
    leaks: set[Leak] = set()
    n_looks = 0
    with search(postgres_database.url, tmp_path) as process:
        while process.poll() is None and n_looks < 2:
            children = [read_process(pid) for pid in list_descendants(process.pid)]
            n_workers = sum(child is not None and b"ortune.worker." in child.cmdline for child in children)
            if n_workers >= 2 and list_studies(location):
                leaks.update(search_processes(password, process.pid, kinds=["memory"]))
                n_looks += 1
            time.sleep(0.5)
        process.terminate()
        messages = process.communicate(timeout=60)[1]
    assert n_looks, messages
    own = {leak for leak in leaks if f" {process.pid} " in leak.where}
    assert "plain" in {leak.form for leak in own}  # what is there is found
    assert leaks == own


def test_all_that_a_gate_starts(fleet: Database, tmp_path: Path) -> None:
    with (
        start(fleet.url, tmp_path, "gate", f"{TINY_CNN}@storage", f"{TINY_CNN}@default", "--budget", "1s") as process,
        watch(process.pid, fleet.password, allowed=OWN, interval_s=0.02) as watcher,
    ):
        output, messages = process.communicate(timeout=120)
    assert process.returncode == 3, messages
    assert watcher.n_looks > 10
    assert not [*watcher.leaks, *search_texts(fleet.password, output=output, messages=messages)]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "search"])
def test_commands_do_not_show_the_password(fleet: Database, tmp_path: Path, name: str) -> None:
    done = run_ortune(*COMMANDS[name], cwd=tmp_path, environment={"ORTUNE_STORAGE": fleet.url}, simulate=True)
    assert done.returncode in {0, 1, 3}, done.stderr
    assert not search_texts(fleet.password, output=done.stdout, messages=done.stderr)
    assert not search_folder(fleet.password, tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_password_is_not_shown(postgres_database: Database, record: Record, tmp_path: Path, name: str) -> None:
    write(record, tmp_path / "tuned.json")
    write_metrics(tmp_path / "metrics", *make_rollout())
    wrong = "never/right {x} %41"
    url = postgres_database.url.replace(postgres_database.password, "never%2Fright%20%7Bx%7D%20%2541")
    done = run_ortune(*COMMANDS[name], cwd=tmp_path, environment={"ORTUNE_STORAGE": url}, simulate=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "password" in done.stderr
    assert "Traceback" not in done.stderr
    assert not search_texts(wrong, output=done.stdout, messages=done.stderr)
    assert not search_folder(wrong, tmp_path)
