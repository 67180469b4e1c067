"""The background load: it runs during the measurements, and ends with them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ortune import BackgroundLoadError
from ortune.worker import cpu
from ortune.worker.background_load import BackgroundLoad
from ortune.worker.cpu import tree_ns
from tests.conftest import ROOT

linux = pytest.mark.skipif(sys.platform != "linux", reason="adopting orphans and reading /proc need Linux")


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("the condition did not become true within 20 s")


def write_program(folder: Path, code: str) -> tuple[str, Path]:
    """Return a command that runs the code, and the file to which it appends its process id at READY."""
    program, pids = folder / "program.py", folder / "pids"
    ready = f"import os, time\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    program.write_text(code.replace("READY", ready.rstrip().replace("\n", "; ")))
    return shlex.join([sys.executable, str(program)]), pids


def read_pids(path: Path, n: int) -> list[int]:
    """Wait until `n` processes have written their process ids, and return the ids."""
    wait_until(lambda: path.exists() and path.read_text().count("\n") >= n)
    return [int(line) for line in path.read_text().split()]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_command_runs_and_is_ended(tmp_path: Path) -> None:
    command, file = write_program(tmp_path, "READY\ntime.sleep(600)")
    with BackgroundLoad(command) as background_load:
        (pid,) = read_pids(file, 1)
        assert is_alive(pid)
        background_load.check()
    assert not is_alive(pid)


DAEMON = """
import subprocess, sys
if len(sys.argv) == 1:
    # A grandchild in a new session, whose parent ends: without a subreaper, it would become a child of init.
    again = [sys.executable, __file__, "x"]
    code = f"import subprocess; subprocess.Popen({again!r}, start_new_session=True)"
    subprocess.Popen([sys.executable, "-c", code])
READY
time.sleep(600)
"""


@linux
def test_daemons_are_ended(tmp_path: Path) -> None:
    command, file = write_program(tmp_path, DAEMON)
    with BackgroundLoad(command):
        pids = read_pids(file, 2)
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


def test_processes_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nREADY\ntime.sleep(600)"
    command, file = write_program(tmp_path, code)
    with BackgroundLoad(command):
        (pid,) = read_pids(file, 1)
    assert not is_alive(pid)


def test_command_ends_when_the_parent_is_killed(tmp_path: Path) -> None:
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


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_command_ends_when_the_supervisor_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    code = "import subprocess, sys\nif len(sys.argv) == 1: subprocess.Popen([sys.executable, __file__, 'x'])\n"
    # Its own pid comes first.
    command, file = write_program(tmp_path, f"READY\n{code}time.sleep(600)")
    with BackgroundLoad(command) as background_load:
        pids = read_pids(file, 2)
        psutil.Process(background_load.pid).send_signal(number)
        wait_until(lambda: not any(is_alive(pid) for pid in pids[:1]))
        with pytest.raises(BackgroundLoadError, match="exited with status"):
            for _ in range(400):
                background_load.check()
                time.sleep(0.05)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_parent_that_is_killed_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    """The supervisor cannot report that it has started the command. It ended with a traceback, without the command."""
    command, file = write_program(tmp_path, "READY\ntime.sleep(600)")
    here, there = os.pipe()
    os.close(here)
    supervisor = subprocess.Popen(
        [sys.executable, "-P", "-m", "ortune.worker.background_load", *shlex.split(command)],
        stdin=subprocess.PIPE,
        stdout=there,
        stderr=subprocess.PIPE,
    )
    os.close(there)
    (pid,) = read_pids(file, 1)
    _, errors = supervisor.communicate()  # closes stdin
    assert errors == b""
    assert not is_alive(pid)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "the command is empty"),
        ("no-such-program --now", "there is no program no-such-program"),
        ("sh -c 'unclosed", "No closing quotation"),
        ("sh -c 'echo no port >&2; exit 7'", "exited with status 7: no port"),
        ("true", "exited with status 0"),
    ],
)
def test_error_if_the_command_does_not_run(command: str, message: str) -> None:
    def run() -> None:
        with BackgroundLoad(command) as background_load:
            # On a busy host, it may end only after SETTLE_S.
            for _ in range(400):
                background_load.check()
                time.sleep(0.05)

    with pytest.raises(BackgroundLoadError, match=message):
        run()


def has_ended(background_load: BackgroundLoad) -> bool:
    """Return whether a check reports the end. A process that is a zombie may still have other threads."""
    try:
        background_load.check()
    except BackgroundLoadError:
        return True
    return False


def test_each_check_reports_that_the_command_has_ended(tmp_path: Path) -> None:
    command, file = write_program(
        tmp_path,
        f"import sys\nREADY\nwhile not os.path.exists({str(tmp_path / 'stop')!r}): time.sleep(0.05)\nsys.exit('bye')",
    )
    with BackgroundLoad(command) as background_load:
        read_pids(file, 1)
        background_load.check()
        (tmp_path / "stop").touch()
        wait_until(lambda: has_ended(background_load))
        for _ in range(2):
            with pytest.raises(BackgroundLoadError, match="status 1: bye"):
                background_load.check()


def test_only_the_end_of_stderr_is_kept(tmp_path: Path) -> None:
    code = "import sys\nfor number in range(20000): print('x' * 100, file=sys.stderr)\nREADY\nsys.exit('the end')"
    command, _ = write_program(tmp_path, code)

    def run() -> None:
        with BackgroundLoad(command) as background_load:
            wait_until(lambda: has_ended(background_load))
            background_load.check()

    with pytest.raises(BackgroundLoadError, match="the end") as caught:
        run()
    assert len(caught.value.message) < 1000


@linux
def test_cpu_time_of_all_descendants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    list_folder = Path.iterdir

    def watch(path: Path) -> Iterator[Path]:
        listed.append(path)
        return list_folder(path)

    monkeypatch.setattr(Path, "iterdir", watch)
    spend = "import time\nwhile time.process_time() < 0.3: pass"
    command, file = write_program(
        tmp_path, f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {spend!r}])\nREADY\ntime.sleep(600)"
    )
    with BackgroundLoad(command) as background_load:
        read_pids(file, 1)
        # The process that used the CPU has ended. Its parent keeps the time.
        assert tree_ns(background_load.pid) >= 300_000_000
        # Other processes are not read: a host may have thousands of them.
        assert Path("/proc") not in listed
        # They are where the kernel does not list children.
        monkeypatch.setattr(cpu, "lists_children", lambda: False)
        assert tree_ns(background_load.pid) >= 300_000_000
        assert Path("/proc") in listed
