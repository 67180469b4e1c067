"""A supervisor that is killed ends its program, which is launched again as after any other sudden end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from ortune import Config, HostError
from ortune.measure.open import OpenComparison
from ortune.options import make_request
from ortune.program import prepare as preparing
from ortune.program import runner
from ortune.program.prepare import PreparedProgram, prepare_program
from ortune.program.process import SUPERVISOR_ENDED, ProgramProcess
from ortune.program.server import LoadGenerator
from ortune.requests import ProgramSearchRequest
from ortune.worker import Block, BlockPlan, Failure
from tests.conftest import TINY_CNN, long_params
from tests.light_programs import light_sessions, open_uncalibrated

PROGRAM = Path(__file__).parent / "programs" / "worker.py"

PLAN = BlockPlan(duration_ns=100_000_000, lead_in_ns=0, min_calls=2, deadline_s=60)

WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "runs": (("run", "3"), {}),
    "calls": (("forever", "0"), {"call": "__main__:work"}),
    "server": (("serve", "{port}"), {"url": "http://127.0.0.1:{port}/"}),
}

ONE_WAY = ["calls", *long_params("runs", "server")]
"""The ways, of which the suite takes only one."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has guards that adopt what is left")


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    with light_sessions():
        yield


def prepare(way: str) -> PreparedProgram:
    arguments, options = WAYS[way]
    command = (sys.executable, str(PROGRAM), str(TINY_CNN), *arguments)
    values = {"command": command, "only": ("intra_op_num_threads",), "budget": 15.0, **options}
    return prepare_program(make_request(ProgramSearchRequest, values, "python"))


def find_supervisors() -> list[psutil.Process]:
    """Return the supervisors of this process, without their guards."""
    family = psutil.Process().children(recursive=True)
    found = []
    for child in family:
        with contextlib.suppress(psutil.Error):
            found += [child] if "ortune.program.supervisor" in child.cmdline() else []
    guards = {supervisor.pid for supervisor in found if supervisor.ppid() == os.getpid()}
    return [supervisor for supervisor in found if supervisor.pid not in guards]


class Killed(ProgramProcess):
    """A program whose supervisor is killed soon after it was started, for some times."""

    n_left = 0

    def start(self, *arguments: Any, **options: Any) -> None:
        super().start(*arguments, **options)
        if Killed.n_left:
            Killed.n_left -= 1
            assert self.supervisor_pid
            os.kill(self.supervisor_pid, signal.SIGKILL)


class KilledLoad(LoadGenerator):
    """A load during whose first request the supervisors are killed."""

    n_left = 0

    def open(self, port: int, root: int) -> bytes | Failure:
        if KilledLoad.n_left:
            KilledLoad.n_left -= 1
            for supervisor in find_supervisors():
                supervisor.kill()
                supervisor.wait()
        return super().open(port, root)


def prepare_killed(way: str, n_times: int) -> PreparedProgram:
    """Prepare a program whose supervisor is killed while it is observed, for some times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "ProgramProcess", Killed)
        patch.setattr(Killed, "n_left", n_times)
        found = prepare(way)
        assert Killed.n_left == 0
        return found


@pytest.fixture(scope="module")
def prepared_calls() -> PreparedProgram:
    """A program whose function is timed."""
    return prepare_killed("calls", 2)


@pytest.fixture(scope="module")
def prepared_server() -> PreparedProgram:
    """A server whose supervisor was killed once while it was observed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "LoadGenerator", KilledLoad)
        patch.setattr(KilledLoad, "n_left", 1)
        found = prepare("server")
        assert KilledLoad.n_left == 0
        return found


def test_a_program_is_observed_again(prepared_calls: PreparedProgram, prepared_server: PreparedProgram) -> None:
    """The first attempts were cut short, so what was seen is that of the last one."""
    assert [model.name for model in prepared_calls.models] == ["tiny_cnn.onnx"]
    assert [model.name for model in prepared_server.models] == ["tiny_cnn.onnx"]
    assert prepared_calls.keeps_running


@pytest.fixture
def calls(prepared_calls: PreparedProgram) -> Iterator[OpenComparison]:
    with open_uncalibrated(prepared_calls) as opened:
        yield opened


@pytest.fixture
def server(prepared_server: PreparedProgram) -> Iterator[OpenComparison]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "LoadGenerator", KilledLoad)
        with open_uncalibrated(prepared_server) as opened:
            yield opened


@pytest.fixture
def runs() -> Iterator[OpenComparison]:
    """A program that is run to completion."""
    with open_uncalibrated(prepare_killed("runs", 1)) as opened:
        yield opened


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> OpenComparison:
    """A program in one of three ways."""
    found: OpenComparison = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("opened", ONE_WAY, indirect=True)
def test_a_candidate_is_measured_again(opened: OpenComparison) -> None:
    (executor,) = opened.executors
    (live,) = executor.launch([Config()], deadline_s=60)
    assert not isinstance(live, Failure)
    assert isinstance(live.measure(PLAN), Block)
    for supervisor in find_supervisors():
        supervisor.kill()
    failure = live.measure(PLAN)
    assert isinstance(failure, Failure)
    assert failure.is_sudden
    assert failure.message == SUPERVISOR_ENDED
    live.close()
    (again,) = executor.launch([Config()], deadline_s=60)
    assert not isinstance(again, Failure)
    assert isinstance(again.measure(PLAN), Block)


@pytest.mark.parametrize("opened", list(WAYS), indirect=True)
def test_a_search_goes_on(opened: OpenComparison) -> None:
    """A search launches the program again."""
    (live,) = opened.runner.launch([Config()])
    assert not isinstance(live, Failure)
    for supervisor in find_supervisors():
        supervisor.kill()
    assert isinstance(live.measure(PLAN), Block)
    assert opened.runner.n_launched_again == 1


def test_a_block_whose_program_was_lost_is_no_block(calls: OpenComparison) -> None:
    """CPU time of the program is not known then."""
    (executor,) = calls.executors
    (live,) = executor.launch([Config()], deadline_s=60)
    assert not isinstance(live, Failure)
    (supervisor,) = find_supervisors()
    timer = threading.Timer(0.3, supervisor.kill)
    timer.start()
    failure = live.measure(msgspec.structs.replace(PLAN, duration_ns=1_000_000_000))
    timer.join()
    assert isinstance(failure, Failure)
    assert failure.message == SUPERVISOR_ENDED


def test_a_server_that_ends_while_it_answers(server: OpenComparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """That its requests fail is not the reason."""
    monkeypatch.setattr(KilledLoad, "n_left", 1)
    (live,) = server.runner.launch([Config()])
    assert KilledLoad.n_left == 0
    assert not isinstance(live, Failure)
    (executor,) = server.executors
    monkeypatch.setattr(KilledLoad, "n_left", 1)
    (failure,) = executor.launch([Config()], deadline_s=60)
    assert isinstance(failure, Failure)
    assert failure.message == SUPERVISOR_ENDED
    monkeypatch.setattr(KilledLoad, "n_left", 1)
    assert isinstance(live.measure(PLAN), Block)


@pytest.mark.parametrize("way", ONE_WAY)
def test_it_is_not_observed_again_and_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "ProgramProcess", Killed)
    monkeypatch.setattr(Killed, "n_left", 100)
    with pytest.raises(HostError, match="supervises") as caught:
        prepare(way)
    assert caught.value.hint
    assert Killed.n_left > 90
