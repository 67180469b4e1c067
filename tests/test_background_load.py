"""The command beside the measurements: it runs as long as the search does, and not a moment longer."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ortune.errors import BackgroundLoadError
from ortune.worker.background_load import BackgroundLoad
from ortune.worker.cpu import tree_ns
from tests.conftest import ROOT

linux = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted, and /proc is read, on Linux alone")


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it never came to that")


def write_program(folder: Path, code: str) -> tuple[str, Path]:
    """Return a command that runs the code, and the file to which it then appends its process id."""
    program, pids = folder / "program.py", folder / "pids"
    ready = f"import os, time\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    program.write_text(code.replace("READY", ready.rstrip().replace("\n", "; ")))
    return f"{sys.executable} {program}", pids


def read_pids(path: Path, n: int) -> list[int]:
    """Wait until so many have said that they run, and return their process ids."""
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= n)
    return [int(line) for line in path.read_text().split()]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_it_runs_and_is_ended(tmp_path: Path) -> None:
    command, file = write_program(tmp_path, "READY\ntime.sleep(600)")
    with BackgroundLoad(command) as background_load:
        (pid,) = read_pids(file, 1)
        assert is_alive(pid)
        background_load.check()
    assert not is_alive(pid)


DAEMON = """
import subprocess, sys
if len(sys.argv) == 1:
    # A child that leaves the group and whose parent ends: it would be init's.
    again = [sys.executable, __file__, "x"]
    code = f"import subprocess; subprocess.Popen({again!r}, start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", code])
READY
time.sleep(600)
"""


@linux
def test_daemons_that_it_starts_are_ended_too(tmp_path: Path) -> None:
    command, file = write_program(tmp_path, DAEMON)
    with BackgroundLoad(command):
        pids = read_pids(file, 2)
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


def test_what_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nREADY\ntime.sleep(600)"
    command, file = write_program(tmp_path, code)
    with BackgroundLoad(command):
        (pid,) = read_pids(file, 1)
    assert not is_alive(pid)


def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    command, file = write_program(tmp_path, "READY\ntime.sleep(600)")
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from ortune.worker.background_load import BackgroundLoad
with BackgroundLoad({command!r}):
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        (pid,) = read_pids(file, 1)
        assert is_alive(pid)
        parent.kill()
    wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "the command is empty"),
        ("no-such-program --now", "there is no program no-such-program"),
        ("sh -c 'unclosed", "No closing quotation"),
        ("sh -c 'echo no port >&2; exit 7'", "ended with status 7, having said: no port"),
        ("true", "ended with status 0"),
    ],
)
def test_what_does_not_start_is_told(command: str, message: str) -> None:
    def run() -> None:
        with BackgroundLoad(command) as background_load:
            # It may have been slow to end; it is told then.
            for _ in range(400):
                background_load.check()
                time.sleep(0.05)

    with pytest.raises(BackgroundLoadError, match=message):
        run()


def test_what_ends_later_is_told_each_time(tmp_path: Path) -> None:
    command, file = write_program(
        tmp_path,
        f"import sys\nREADY\nwhile not os.path.exists({str(tmp_path / 'die')!r}): time.sleep(0.05)\nsys.exit('bye')",
    )
    with BackgroundLoad(command) as background_load:
        read_pids(file, 1)
        background_load.check()
        (tmp_path / "die").touch()
        wait_until(lambda: psutil.Process(background_load.pid).status() == psutil.STATUS_ZOMBIE)
        for _ in range(2):
            with pytest.raises(BackgroundLoadError, match="status 1, having said: bye"):
                background_load.check()


def test_what_it_writes_does_not_pile_up(tmp_path: Path) -> None:
    code = "import sys\nfor number in range(20000): print('x' * 100, file=sys.stderr)\nREADY\nsys.exit('the end')"
    command, _ = write_program(tmp_path, code)

    def run() -> None:
        with BackgroundLoad(command) as background_load:
            wait_until(lambda: psutil.Process(background_load.pid).status() == psutil.STATUS_ZOMBIE)
            background_load.check()

    with pytest.raises(BackgroundLoadError, match="the end") as caught:
        run()
    assert len(caught.value.message) < 1000


@linux
def test_the_cpu_time_of_the_whole_tree_is_read(tmp_path: Path) -> None:
    spend = "import time\nwhile time.process_time() < 0.3: pass"
    command, file = write_program(
        tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spend!r}])\nREADY\ntime.sleep(600)"
    )
    with BackgroundLoad(command) as background_load:
        read_pids(file, 1)
        # The one that spent it has ended; its time is kept.
        assert tree_ns(background_load.pid) >= 300_000_000
