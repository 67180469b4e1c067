"""The password of a storage appears nowhere: output, files, command lines, environments of child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortune.storage import list_studies, parse_location
from tests.conftest import TINY_CNN
from tests.leaks import Kind, search_folder, search_texts, watch
from tests.servers import DatabaseServer

pytestmark = pytest.mark.servers

OWN: tuple[Kind, ...] = ("environ",)
"""Where ortune itself, which gets the password in an environment variable, must have it."""


def search(url: str, folder: Path) -> subprocess.Popen[str]:
    """Begin a search with a storage that the environment names."""
    command = [sys.executable, "-P", "-m", "ortune", "search", str(TINY_CNN), "--budget", "20s", "-o", "tuned.json"]
    return subprocess.Popen(
        [*command, "--beside", f"{sys.executable} -c 'import time; time.sleep(600)'"],
        cwd=folder,
        env={**os.environ, "ORTUNE_STORAGE": url, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("is_lost", [False, True], ids=["kept", "lost"])
def test_a_search_shows_the_password_nowhere(postgres: DatabaseServer, tmp_path: Path, *, is_lost: bool) -> None:
    database = postgres.make_database()
    with (
        search(database.url, tmp_path) as process,
        watch(process.pid, database.password, allowed=OWN, interval_s=0.02) as watcher,
    ):
        if is_lost:
            location = parse_location(database.url, "")
            while process.poll() is None and not any(study.n_trials for study in list_studies(location)):
                time.sleep(0.1)
            postgres.stop()
        try:
            output, messages = process.communicate(timeout=120)
        finally:
            if is_lost:
                postgres.start()
    assert process.returncode in {0, 3}, messages
    assert (tmp_path / "tuned.json").exists()
    assert ("storage: postgresql" in " ".join(output.split())) == is_lost, output + messages
    assert watcher.n_looks > 10
    assert not [*watcher.leaks, *search_texts(database.password, output=output, messages=messages)]
    assert not search_folder(database.password, tmp_path)


@pytest.mark.parametrize("command", [("fleet", "status"), ("fleet", "collect", "-o", "all.json"), ("search", TINY_CNN)])
def test_a_wrong_password_is_not_shown(postgres: DatabaseServer, tmp_path: Path, command: tuple[object, ...]) -> None:
    database = postgres.make_database()
    wrong = "never/right {x} %41"
    url = database.url.replace(database.url.split(":")[2].rpartition("@")[0], "never%2Fright%20%7Bx%7D%20%2541")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ortune", *map(str, command)],
        cwd=tmp_path,
        env={**os.environ, "ORTUNE_STORAGE": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "password" in done.stderr
    assert "Traceback" not in done.stderr
    assert not search_texts(wrong, output=done.stdout, messages=done.stderr)
    assert not search_folder(wrong, tmp_path)
