"""The benchmark that kills searches of programs."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import threading
from typing import Any, cast

import msgspec
import psutil
import pytest

from benchmarks.program_kills import SUPERVISOR, choose, judge_end, kill_search, make_folder, report
from ortune import Record
from tests.conftest import TINY_CNN, long_params
from tests.records import ONE_THREAD, make_local_record


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("seed", long_params(1, 5, 7, 8))
def test_nothing_is_left(seed: int) -> None:
    row = kill_search(seed)
    assert row["faults"] == [], json.dumps(row, indent=1)


def test_runs_are_counted_while_folders_come_and_go() -> None:
    ended = threading.Event()
    with make_folder("counted") as folder:
        counted = folder.temporary / "ortune-1-kept"
        for number in range(3):
            (counted / f"run-{number}").mkdir(parents=True)

        def change() -> None:
            while not ended.is_set():
                removed = folder.temporary / "ortune-2-removed"
                (removed / "run-9").mkdir(parents=True)
                shutil.rmtree(removed)

        changing = threading.Thread(target=change)
        changing.start()
        try:
            counts = {folder.count_runs() for _ in range(3000)}
        finally:
            ended.set()
            changing.join()
    assert {2} <= counts <= {2, 9}


class NamedProcess:
    """A process with a command line."""

    def __init__(self, pid: int, *line: str) -> None:
        self.pid = pid
        self._line = list(line)

    def cmdline(self) -> list[str]:
        return self._line


def test_a_process_that_is_ending_is_not_chosen() -> None:
    """The kernel shows no command line of it any more."""
    ending, family = NamedProcess(2), NamedProcess(3, "python", "-c", "import time; time.sleep(600)")
    processes = cast("list[psutil.Process]", [ending, family, NamedProcess(4, "python", "-m", SUPERVISOR)])
    assert choose("program", 1, processes, random.Random(0)) == [family]
    assert choose("program", 1, processes[:1], random.Random(0)) == []


@pytest.fixture(scope="module")
def finished() -> Record:
    return make_local_record(TINY_CNN, ONE_THREAD)


def interrupt(record: Record) -> Record:
    return msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, interrupted="by the user"))


def test_right_ends(finished: Record) -> None:
    kill, term = signal.SIGKILL, signal.SIGTERM
    for code, hit, number, records, measured in [
        (0, "search", term, [finished], True),
        (3, "", term, [finished], True),
        (-9, "search", kill, [], True),
        (130, "search", term, [], False),
        (130, "search and supervisor", term, [interrupt(finished)], True),
        (0, "supervisor", kill, [finished], True),
        (2, "program", kill, [interrupt(finished)], True),
    ]:
        assert judge_end(code, hit, number, records, measured=measured) == []
    assert judge_end(-signal.SIGINT, "search", term, [], measured=False, alone=True) == []


def test_wrong_ends(finished: Record) -> None:
    kill, term = signal.SIGKILL, signal.SIGTERM
    for code, hit, number, records, measured in [
        (0, "", term, [], True),
        (0, "search", term, [interrupt(finished)], True),
        (2, "", term, [], False),
        (2, "supervisor", kill, [], True),
        (2, "search and supervisor", term, [], True),
        (0, "supervisor", kill, [], False),
        (2, "search", term, [], False),
        (130, "search", kill, [], False),
        (130, "search", term, [], True),
        (-signal.SIGINT, "search", term, [], False),
        (130, "supervisor", term, [interrupt(finished)], True),
    ]:
        assert len(judge_end(code, hit, number, records, measured=measured)) == 1


def test_faults_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    good: dict[str, Any] = {"way": "runs", "hit": "search", "signal": "SIGKILL", "code": -9, "n_processes": 4}
    good |= {"measured": True, "interrupted": False, "faults": []}
    assert report([good])
    assert not report([good, {**good, "faults": ["left: sleep"], "output": "what it printed"}])
    output = capsys.readouterr().out
    assert "left: sleep" in output and "what it printed" in output
