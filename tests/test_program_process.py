"""Programs under a supervisor: they end as a whole, whatever ends them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ortune.program.process import Ended, ProgramProcess
from ortune.program.tree import list_descendants

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups and signals")

MARK = "ORTUNE_TEST_MARK"


@pytest.fixture
def process() -> Iterator[ProgramProcess]:
    with contextlib.closing(ProgramProcess()) as process:
        yield process


def start(process: ProgramProcess, folder: Path, code: str, stdin: Path | None = None) -> None:
    process.start(
        [sys.executable, "-c", code],
        {**os.environ, MARK: str(folder)},
        stdout=folder / "out",
        stderr=folder / "err",
        stdin=stdin or Path(os.devnull),
    )


def find_marked(folder: Path) -> list[int]:
    """Return the processes that were started for a test, also daemons."""
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if candidate.environ().get(MARK) == str(folder) and candidate.status() != psutil.STATUS_ZOMBIE:
                found.append(candidate.pid)
    return found


def open_processes(numbers: list[int]) -> list[psutil.Process]:
    """Return those of some processes that have not ended."""
    found = []
    for number in numbers:
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(number))
    return found


def wait_for(path: Path) -> str:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def states_of(processes: list[int]) -> set[str]:
    return {psutil.Process(pid).status() for pid in processes}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what happens soon: a signal is delivered when the process next runs."""
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


FAMILY = """
import os, subprocess, sys, time
from pathlib import Path
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
daemon = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", daemon]).wait()
Path({ready!r}).write_text("ready")
time.sleep({seconds})
"""
"""A program with a child and with a daemon that left its process group, its session and its parent."""


class TestRunning:
    def test_the_end_of_a_program(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        ended = process.wait(30)
        assert ended
        assert ended.status == 3
        assert ended.wall_ns > ended.cpu_ns / os.cpu_count() > 0  # type: ignore[operator]
        assert ended.peak_bytes > 1 << 20
        assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("out\n", "err\n")

    def test_an_end_is_seen_without_waiting(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, "pass")
        end_s = time.monotonic() + 30
        while process.wait(0) is None and time.monotonic() < end_s:
            time.sleep(0.01)
        assert process.ended

    def test_a_program_that_a_signal_ends(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, "import os; os.kill(os.getpid(), 9)")
        ended = process.wait(30)
        assert ended
        assert ended.status == -signal.SIGKILL

    def test_a_supervisor_that_cannot_be_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """The host may have no room for another process."""
        code = (
            "import errno, os\n"
            "from ortune.program.supervisor import main\n"
            "def fork(): raise BlockingIOError(errno.EAGAIN, 'Resource temporarily unavailable')\n"
            "os.fork = fork\n"
            "main()"
        )
        monkeypatch.setattr("ortune.program.process.SUPERVISOR_COMMAND", (sys.executable, "-P", "-c", code))
        with (
            contextlib.closing(ProgramProcess()) as process,
            pytest.raises(OSError, match="Resource temporarily unavailable"),
        ):
            start(process, tmp_path, "pass")
        assert capfd.readouterr().err == ""

    def test_it_can_be_launched_again(self, process: ProgramProcess, tmp_path: Path) -> None:
        for status in (1, 2):
            start(process, tmp_path, f"raise SystemExit({status})")
            ended = process.wait(30)
            assert ended
            assert ended.status == status

    def test_cpu_time_contains_that_of_children(self, process: ProgramProcess, tmp_path: Path) -> None:
        burn = "import time\nwhile time.process_time() < 0.3: pass"
        start(process, tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])")
        ended = process.wait(60)
        assert ended
        assert ended.cpu_ns > 0.3e9

    def test_a_missing_file_for_stdin_is_named(self, process: ProgramProcess, tmp_path: Path) -> None:
        """It was there when the search began."""
        with pytest.raises(OSError, match=r"stdin, .*missing, cannot be read"):
            start(process, tmp_path, "print(input())", tmp_path / "missing")

    def test_a_program_that_reads_stdin(self, process: ProgramProcess, tmp_path: Path) -> None:
        (tmp_path / "in").write_text("hello")
        start(process, tmp_path, "print(input())", tmp_path / "in")
        assert process.wait(30)
        assert (tmp_path / "out").read_text() == "hello\n"

    def test_nothing_has_ended_in_time(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, "import time; time.sleep(600)")
        assert process.wait(0.05) is None
        assert process.wait(0) is None
        assert isinstance(process.end(0), Ended)

    def test_a_program_that_does_not_exist(self, process: ProgramProcess, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No such file"):
            process.start(["/missing/program"], {}, stdout=tmp_path / "out", stderr=tmp_path / "err")
        start(process, tmp_path, "pass")
        assert process.wait(30)

    def test_names_and_values_that_are_no_text(self, process: ProgramProcess, tmp_path: Path) -> None:
        odd = os.fsdecode(b"\xff\xfe")
        process.start(
            [sys.executable, "-c", "import os; print(os.environb[b'ODD'])"],
            {**os.environ, "ODD": odd},
            stdout=tmp_path / f"out{odd}",
            stderr=tmp_path / "err",
        )
        assert process.wait(30)
        assert (tmp_path / f"out{odd}").read_text() == "b'\\xff\\xfe'\n"


class TestTree:
    def test_all_processes_are_suspended_and_resumed(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, FAMILY.format(ready=str(tmp_path / "ready"), seconds=600))
        wait_for(tmp_path / "ready")
        members = list_descendants(process.supervisor_pid)
        assert len(members) == 3
        process.suspend()
        wait_until(lambda: states_of(members) == {psutil.STATUS_STOPPED})
        process.resume()
        wait_until(lambda: psutil.STATUS_STOPPED not in states_of(members))

    def test_what_the_program_leaves_running_ends_with_it(self, process: ProgramProcess, tmp_path: Path) -> None:
        start(process, tmp_path, FAMILY.format(ready=str(tmp_path / "ready"), seconds=0))
        assert process.wait(60)
        assert find_marked(tmp_path) == []

    @pytest.mark.parametrize("suspended", [False, True])
    def test_closing_ends_all_processes(self, tmp_path: Path, suspended: bool) -> None:
        with contextlib.closing(ProgramProcess()) as process:
            start(process, tmp_path, FAMILY.format(ready=str(tmp_path / "ready"), seconds=600))
            wait_for(tmp_path / "ready")
            if suspended:
                process.suspend()
        assert find_marked(tmp_path) == []

    def test_a_program_may_clean_up(self, process: ProgramProcess, tmp_path: Path) -> None:
        code = f"""
import signal, sys, time
from pathlib import Path
def end(number, frame):
    Path({str(tmp_path / "clean")!r}).write_text("clean")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
Path({str(tmp_path / "ready")!r}).write_text("ready")
time.sleep(600)
"""
        start(process, tmp_path, code)
        wait_for(tmp_path / "ready")
        process.suspend()
        ended = process.end()
        assert ended
        assert ended.status == 0
        assert (tmp_path / "clean").exists()

    def test_a_program_that_ignores_sigterm(self, process: ProgramProcess, tmp_path: Path) -> None:
        code = f"""
import signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path({str(tmp_path / "ready")!r}).write_text("ready")
time.sleep(600)
"""
        start(process, tmp_path, code)
        wait_for(tmp_path / "ready")
        ended = process.end(0.1)
        assert ended
        assert ended.status == -signal.SIGKILL

    @pytest.mark.parametrize(
        ("number", "which", "suspended"),
        [
            (signal.SIGKILL, "supervisor", False),
            (signal.SIGTERM, "supervisor", True),
            (signal.SIGKILL, "guard", True),
            pytest.param(signal.SIGKILL, "supervisor", True, marks=pytest.mark.long),
            pytest.param(signal.SIGTERM, "supervisor", False, marks=pytest.mark.long),
            pytest.param(signal.SIGKILL, "guard", False, marks=pytest.mark.long),
            pytest.param(signal.SIGTERM, "guard", False, marks=pytest.mark.long),
            pytest.param(signal.SIGTERM, "guard", True, marks=pytest.mark.long),
        ],
    )
    def test_the_supervisor_is_killed(
        self, process: ProgramProcess, tmp_path: Path, number: signal.Signals, which: str, suspended: bool
    ) -> None:
        start(process, tmp_path, FAMILY.format(ready=str(tmp_path / "ready"), seconds=600))
        wait_for(tmp_path / "ready")
        if suspended:
            process.suspend()
        supervisor = psutil.Process(process.supervisor_pid)
        os.kill(supervisor.pid if which == "supervisor" else supervisor.ppid(), number)
        ended = process.wait(30)
        assert ended
        assert ended.is_lost
        process.suspend()
        process.resume()
        assert process.end() == ended
        psutil.wait_procs(open_processes(find_marked(tmp_path)), timeout=10)
        assert find_marked(tmp_path) == []
        start(process, tmp_path, "print('again')")
        ended = process.wait(30)
        assert ended
        assert (ended.status, ended.is_lost) == (0, False)
        assert (tmp_path / "out").read_text() == "again\n"

    def test_the_supervisor_is_terminated_in_a_destructor(self) -> None:
        """Where Python ignores exceptions."""
        code = """
import os, signal
from ortune.program import supervisor

class Closed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100):
            pass

supervisor.Supervisor.do_suspend = lambda self: (Closed(), {})[1]
supervisor.main()
"""
        here, there = socket.socketpair()
        with here, there:
            command = [sys.executable, "-c", code, str(there.fileno())]
            with subprocess.Popen(command, pass_fds=[there.fileno()], stderr=subprocess.PIPE, text=True) as process:
                there.close()
                here.sendall(b'{"do": "suspend"}\n')
                here.settimeout(30)
                while here.recv(100):
                    pass
                assert process.stderr
                assert process.stderr.read() == ""

    def test_the_program_gets_the_usual_signals(self, process: ProgramProcess, tmp_path: Path) -> None:
        code = "import signal; print(*(signal.getsignal(getattr(signal, n)) for n in ('SIGTERM', 'SIGHUP', 'SIGINT')))"
        start(process, tmp_path, code)
        assert process.wait(30)
        seen = (tmp_path / "out").read_text()
        assert seen.startswith("0 0 <built-in function default_int_handler>"), seen

    def test_the_parent_is_killed(self, tmp_path: Path) -> None:
        parent = f"""
import os, sys, time
from pathlib import Path
from ortune.program.process import ProgramProcess
process = ProgramProcess()
folder = Path({str(tmp_path)!r})
process.start([sys.executable, "-c", {FAMILY.format(ready=str(tmp_path / "ready"), seconds=600)!r}],
              {{**os.environ, {MARK!r}: {str(tmp_path)!r}}}, stdout=folder / "out", stderr=folder / "err")
time.sleep(600)
"""
        owner = subprocess.Popen([sys.executable, "-c", parent])
        wait_for(tmp_path / "ready")
        owner.kill()
        owner.wait()
        psutil.wait_procs(open_processes(find_marked(tmp_path)), timeout=10)
        assert find_marked(tmp_path) == []
