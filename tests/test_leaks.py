"""The search for secrets finds each secret that a program leaks, and nothing in a program that leaks none."""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from tests.leaks import (
    CHUNK_BYTES,
    Leak,
    list_forms,
    read_process,
    search_bytes,
    search_folder,
    search_processes,
    search_texts,
    watch,
)

SECRET = 'hunter2 "/+ü'
"""A password with characters that encodings change."""

PROGRAM = """
import os, subprocess, sys
place, secret = sys.argv[1], os.environ["SECRET"]
if place == "stdout":
    print("postgresql://user:" + secret + "@host/name")
if place == "traceback":
    raise ValueError("cannot connect to postgresql://user:" + secret + "@host/name")
code = "import sys; kept = sys.stdin.readline(); print('started', flush=True); sys.stdin.read()"
child = [sys.executable, "-c", code]
variables = {name: value for name, value in os.environ.items() if name != "SECRET"}
if place == "cmdline":
    child.append(secret)
if place == "environ":
    variables["ORTUNE_STORAGE"] = "mysql://user:" + secret + "@host/name"
worker = subprocess.Popen(child, env=variables, stdin=subprocess.PIPE, text=True)
worker.stdin.write((secret if place == "memory" else "nothing") + "\\n")
worker.stdin.flush()
sys.stdin.read()
worker.communicate()
"""


@contextlib.contextmanager
def running(place: str) -> Iterator[subprocess.Popen[str]]:
    """Run the program until the end of the block. It starts a worker, and leaks its secret in one place."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECRET": SECRET},
    )
    assert process.stdout
    try:
        assert process.stdout.readline() == "started\n"
        yield process
    finally:
        process.communicate("")


class TestForms:
    @pytest.mark.parametrize(
        "text",
        [
            SECRET,
            quote(SECRET),
            quote(SECRET, safe=""),
            json.dumps(SECRET),
            SECRET.encode().hex(),
            repr(SECRET),
            *(base64.b64encode(f"{'x' * n}{SECRET}{'y' * m}".encode()).decode() for n in range(4) for m in range(3)),
            *(base64.urlsafe_b64encode(f"{'~' * n}{SECRET}".encode()).decode() for n in range(3)),
        ],
    )
    def test_it_is_found_in_each(self, text: str) -> None:
        assert search_texts(SECRET, stderr=f"error: {text}.")

    def test_utf_16(self) -> None:
        assert search_bytes(SECRET, SECRET.encode("utf-16-le"), "there") == [Leak("there", "UTF-16")]

    def test_other_texts_are_not_it(self) -> None:
        other = SECRET[:-1]
        assert search_texts(SECRET, a=other, b=base64.b64encode(other.encode()), c=None, d="", e="\udc80") == []

    def test_a_short_secret_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least 8"):
            list_forms("hunter2")

    def test_messages_do_not_hold_it(self) -> None:
        leaks = search_texts(SECRET, stdout=SECRET)
        assert search_texts(SECRET, stdout=str(leaks)) == []


class TestFolder:
    def test_a_clean_folder(self, tmp_path: Path) -> None:
        (tmp_path / "record.json").write_text("{}")
        np.savez_compressed(tmp_path / "a.npz", a=np.zeros(9))
        (tmp_path / "half.gz").write_bytes(gzip.compress(b"x" * 99)[:-5])
        (tmp_path / "false.npz").write_bytes(b"PK but no archive")
        assert search_folder(SECRET, tmp_path) == []

    @pytest.mark.parametrize("place", ["name", "target", "content", "folder", "gzip", "npz", "boundary"])
    def test_planted_ones(self, place: str, tmp_path: Path) -> None:
        secret = "correct-horse"
        match place:
            case "name":
                (tmp_path / f"log of {secret}.txt").touch()
            case "target":
                (tmp_path / "link").symlink_to(f"/nowhere/{secret}")
            case "content":
                (tmp_path / "trials.jsonl").write_text(f'{{"storage": "{secret}"}}')
            case "folder":
                (tmp_path / "a" / "b").mkdir(parents=True)
                (tmp_path / "a" / "b" / "core.123").write_bytes(os.urandom(100) + secret.encode() + os.urandom(100))
            case "gzip":
                (tmp_path / "trials.jsonl.gz").write_bytes(gzip.compress(secret.encode()))
            case "npz":
                np.savez_compressed(tmp_path / "a.npz", a=np.array([secret.encode()]))
            case "boundary":
                (tmp_path / "core").write_bytes(bytes(CHUNK_BYTES - 5) + secret.encode())
        assert len(search_folder(secret, tmp_path)) == 1

    def test_the_file_that_holds_it(self, tmp_path: Path) -> None:
        path = tmp_path / "storage"
        path.write_text(SECRET)
        assert search_folder(SECRET, tmp_path, allowed=[path]) == []


def test_output() -> None:
    for place in ("stdout", "traceback"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, place],
            input="",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SECRET": SECRET},
        )
        where = "stdout" if place == "stdout" else "stderr"
        assert {leak.where for leak in search_texts(SECRET, stdout=done.stdout, stderr=done.stderr)} == {where}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestProcesses:
    @pytest.mark.parametrize("place", ["cmdline", "environ"])
    def test_a_worker_that_has_it(self, place: str) -> None:
        with running(place) as process:
            (leak,) = search_processes(SECRET, process.pid, allowed=["environ"])
        assert leak.where.startswith(f"{place} of ")
        assert str(process.pid) not in leak.where

    def test_the_memory_of_a_worker(self) -> None:
        with running("memory") as process:
            assert search_processes(SECRET, process.pid, allowed=["environ"]) == []
            (leak,) = search_processes(SECRET, process.pid, allowed=["memory"], kinds=["memory"])
        assert leak.where.startswith("memory of ")

    def test_nothing(self) -> None:
        with running("nowhere") as process:
            assert search_processes(SECRET, process.pid, allowed=["environ"]) == []
            assert search_processes(SECRET, process.pid, allowed=["memory"], kinds=["memory"]) == []

    def test_the_program_itself_needs_permission(self) -> None:
        with running("nowhere") as process:
            (leak,) = search_processes(SECRET, process.pid)
        assert leak.where.startswith(f"environ of {process.pid} ")

    def test_the_program_itself_may_have_it_while_it_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel sets its arguments after `Popen` has returned, so that the first look may not see it."""
        n_looks = itertools.count()
        with running("nowhere") as process:
            monkeypatch.setattr("tests.leaks.read_process", lambda pid: read_process(pid) if next(n_looks) else None)
            assert search_processes(SECRET, process.pid, allowed=["environ"]) == []

    @pytest.mark.parametrize("place", ["environ", "nowhere"])
    def test_watching(self, place: str) -> None:
        with running(place) as process, watch(process.pid, SECRET, allowed=["environ"]) as watcher:
            while watcher.n_looks < 3 and not watcher.fault:  # limited by the timeout of the test
                time.sleep(0.001)
        assert {leak.where.split()[0] for leak in watcher.leaks} == ({place} - {"nowhere"})

    def test_a_watcher_that_cannot_look_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(pid: int) -> None:
            raise PermissionError(pid)

        monkeypatch.setattr("tests.leaks.read_process", refuse)
        with pytest.raises(PermissionError), watch(os.getpid(), SECRET):
            pass
