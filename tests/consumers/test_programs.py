"""Unmodified programs from PyPI under `ortune apply ... -- PROGRAM`.

Each program gets its tuned options and returns the same answers as without ortune. A record for another model does not
change it.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ortune import Config
from ortune.fleet.canary_metrics import read_metrics
from ortune.fleet.compare import compare_arms
from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.consumers.running import apply_command, draw_text, environment, need, program, run
from tests.records import make_record, write

pytestmark = pytest.mark.consumers

READY_S = 60

START_S = 240
"""Two workers import OpenCV and load three models, or are replaced several times, beside other tests."""

PATIENT = f"""
import functools
import uvicorn
uvicorn.run = functools.partial(uvicorn.run, timeout_worker_healthcheck={START_S})
from rapidocr_api.main import main
main()
"""
"""Runs rapidocr_api. uvicorn replaces workers that do not answer it within 5 s. Beside other tests, the first request
takes longer, so that workers would be replaced again and again."""

SPINNING = "session.intra_op.allow_spinning"

TUNED = {
    "det": Config(session_options={"intra_op_num_threads": 1}, session_config={SPINNING: "0"}),
    "cls": Config(session_options={"inter_op_num_threads": 2, "enable_mem_pattern": False}),
    "rec": Config(
        session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL"}, session_config={SPINNING: "0"}
    ),
}
"""Settings by the model of a program. They differ between its models, and from the defaults of the program."""


def records_of(package: str, folder: Path) -> dict[str, Path]:
    """Write a record for each model in a package of RapidOCR. Return the records by the file name of the model."""
    records = {}
    for path in sorted((need(package) / "models").glob("*.onnx")):
        part = next(part for part in TUNED if f"_{part}_" in path.name)
        records[path.name] = write(make_record(path, TUNED[part]), folder / f"{part}.json")
    assert len(records) == len(TUNED)
    return records


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return a record for a model that no program uses."""
    return write(make_record(TINY_ENCODER, TUNED["det"]), tmp_path / "other.json")


def read_log(log: Path) -> list[dict[str, Any]]:
    """Return the sessions in a log, without what is said of records that do not fit their calls."""
    lines = map(json.loads, log.read_text().splitlines()) if log.exists() else []
    return [line for line in lines if "misfits" not in line]


def check_tuned(session: dict[str, Any], config: Config) -> None:
    """Check that the settings that were read back from a session are those of its config."""
    assert session["matched"], session
    expected = config.settings
    assert {name: session["read_back"][name] for name in expected} == expected


def check_not_tuned(log: Path) -> None:
    sessions = read_log(log)
    assert sessions
    assert not any(session["matched"] for session in sessions)
    assert {session["reason"] for session in sessions} == {"no record is for this model"}


class TestCommand:
    """Programs that run and exit."""

    @staticmethod
    def without_times(text: str) -> str:
        """Return the log of rapidocr_onnxruntime without the time at the start of each line."""
        return re.sub(r"^\d{4}-\d\d-\d\d [\d:,]+ ", "", text, flags=re.MULTILINE)

    def read(self, log: str) -> list[Any]:
        """Return boxes, words and scores from the log."""
        (line,) = [line for line in log.splitlines() if " INFO: " in line]
        return list(ast.literal_eval(line.split(" INFO: ")[1]))

    def test_rapidocr_onnxruntime(self, tmp_path: Path, other: Path) -> None:
        command = [program("rapidocr_onnxruntime"), "-img", draw_text(tmp_path / "image.png", "HELLO")]
        records = records_of("rapidocr_onnxruntime", tmp_path)
        log = tmp_path / "log"
        plain = run(command)
        tuned = run([*apply_command(list(records.values()), log), *command])
        assert (plain.returncode, tuned.returncode) == (0, 0), plain.stderr + tuned.stderr
        before, after = self.read(plain.stderr), self.read(tuned.stderr)
        assert [word for _, word, _ in before] == ["HELLO"]
        assert [detection[:2] for detection in after] == [detection[:2] for detection in before]
        assert [detection[2] for detection in after] == pytest.approx([detection[2] for detection in before], abs=1e-4)
        sessions = read_log(log)
        assert {Path(session["model"]).name for session in sessions} == set(records)
        for session in sessions:
            check_tuned(session, TUNED[Path(session["record"]).stem])
            assert session["record"] == str(records[Path(session["model"]).name])

        left = run([*apply_command([other], tmp_path / "left"), *command])
        assert (left.returncode, left.stdout) == (0, plain.stdout)
        assert self.without_times(left.stderr) == self.without_times(plain.stderr)
        check_not_tuned(tmp_path / "left")

    def test_magika(self, tmp_path: Path, other: Path) -> None:
        """Magika creates its session without SessionOptions, and has no parameter for them."""
        model = next((need("magika") / "models").glob("*/model.onnx"))
        record = write(make_record(model, TUNED["det"]), tmp_path / "magika.json")
        text = tmp_path / "unknown"
        text.write_text('#include <stdio.h>\nint main(void) {\n    printf("hello\\n");\n    return 0;\n}\n' * 20)
        code = "import sys, magika; found = magika.Magika().identify_path(sys.argv[1]); print(found.output.label)"
        command = [sys.executable, "-P", "-c", code + "; print(found.score)", text]
        plain = run(command)
        tuned = run([*apply_command([record], tmp_path / "log"), *command])
        assert (plain.returncode, tuned.returncode) == (0, 0), plain.stderr + tuned.stderr
        label, score = plain.stdout.split()
        assert label == "c"
        assert tuned.stdout.split()[0] == label
        assert float(tuned.stdout.split()[1]) == pytest.approx(float(score), abs=1e-4)
        (session,) = read_log(tmp_path / "log")
        check_tuned(session, TUNED["det"])

        left = run([*apply_command([other], tmp_path / "left"), *command])
        assert left.stdout == plain.stdout
        check_not_tuned(tmp_path / "left")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int, output: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until it accepts connections, and stop all of its processes at the end."""
    with output.open("wb") as file:
        server = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment(**variables)
        )
    try:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, output.read_text(errors="replace")
                assert time.monotonic() < deadline, output.read_text(errors="replace")
                time.sleep(0.1)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(READY_S)


def processes_of(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the running processes of a server's process group."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == server.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def stop(server: subprocess.Popen[bytes]) -> None:
    """Stop a server as a supervisor does, and check that no process of it is left."""
    assert processes_of(server)
    server.send_signal(signal.SIGTERM)
    server.wait(READY_S)
    deadline = time.monotonic() + READY_S
    while (left := processes_of(server)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def ask(port: int, path: str = "/", form: dict[str, str] | None = None) -> Any:
    """Return the response of a server. Retry if it is not ready yet."""
    data = urllib.parse.urlencode(form).encode() if form else None
    for attempt in range(3):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=READY_S) as answer:
                return json.load(answer)
        except (ConnectionError, urllib.error.URLError):
            if attempt == 2:
                raise
            time.sleep(0.5)
    raise AssertionError


class TestRapidocrApi:
    """A server for text recognition: one supervising process and two workers."""

    def command(self, port: int, workers: int) -> list[str]:
        need("rapidocr_api")
        return [sys.executable, "-P", "-c", PATIENT, "-ip", "127.0.0.1", "-p", str(port), "-workers", str(workers)]

    @pytest.mark.timeout(2 * START_S)
    @pytest.mark.long
    def test_both_workers(self, tmp_path: Path, other: Path) -> None:
        image = draw_text(tmp_path / "image.png", "HELLO")
        form = {"image_data": base64.b64encode(image.read_bytes()).decode()}
        records = records_of("rapidocr", tmp_path)
        log, port = tmp_path / "log", free_port()
        answers: list[Any] = []

        def tuned_by_process() -> dict[int, set[str]]:
            found: dict[int, set[str]] = {}
            for session in read_log(log):
                found.setdefault(session["pid"], set()).add(Path(session["model"]).name)
            return found

        def two_answered() -> bool:
            """Return whether two workers have all models."""
            return sum(models == set(records) for models in tuned_by_process().values()) >= 2

        command = [*apply_command(list(records.values()), log), *self.command(port, 2)]
        with serving(command, port, tmp_path / "tuned.txt") as server:
            # A worker creates its sessions at its first request, and one worker may get many requests.
            with ThreadPoolExecutor(4) as pool:
                deadline = time.monotonic() + START_S
                while not two_answered() and time.monotonic() < deadline:
                    answers += pool.map(lambda _: ask(port, "/ocr", form), range(4))
            assert two_answered(), (tuned_by_process(), (tmp_path / "tuned.txt").read_text(errors="replace"))
            assert server.pid not in tuned_by_process()
            stop(server)
        for session in read_log(log):
            check_tuned(session, TUNED[Path(session["record"]).stem])
            assert session["record"] == str(records[Path(session["model"]).name])

        plain, left = [
            self.answer_of(before, form, tmp_path / f"plain{number}.txt")
            for number, before in enumerate(([], apply_command([other], tmp_path / "left")))
        ]
        assert left == plain
        check_not_tuned(tmp_path / "left")
        assert [detection["rec_txt"] for detection in plain.values()] == ["HELLO"]
        for answer in answers:
            for number, before in plain.items():
                assert answer[number]["rec_txt"] == before["rec_txt"]
                assert answer[number]["dt_boxes"] == before["dt_boxes"]
                assert answer[number]["score"] == pytest.approx(before["score"], abs=1e-4)

    def answer_of(self, before: list[str], form: dict[str, str], output: Path) -> Any:
        """Return the response of a server with one worker."""
        port = free_port()
        with serving([*before, *self.command(port, 1)], port, output) as server:
            answer = ask(port, "/ocr", form)
            stop(server)
        return answer


SERVERS = {
    "uvicorn": "uvicorn asgi_app:app --app-dir {folder} --port {port} --workers 2 --lifespan off",
    "gunicorn": "gunicorn asgi_app:app --chdir {folder} -b 127.0.0.1:{port} -w 2 -k uvicorn_worker.UvicornWorker",
}


def split_command(name: str, port: int) -> list[str]:
    """Return the words of the command that starts a server. Its folder may contain spaces."""
    return [word.format(folder=Path(__file__).parent, port=port) for word in SERVERS[name].split()]


class TestServers:
    """A small application with two workers, which uvicorn spawns and gunicorn forks."""

    def serve(self, name: str, before: list[str], output: Path) -> list[Any]:
        """Return the responses of a server, at least one of each worker."""
        if name == "gunicorn":
            need("uvicorn_worker")
        port = free_port()
        answers: list[Any] = []
        command, *arguments = split_command(name, port)
        with serving([*before, program(command), *arguments], port, output, MODEL=str(TINY_CNN)) as server:
            with ThreadPoolExecutor(4) as pool:
                deadline = time.monotonic() + READY_S
                while len({answer["pid"] for answer in answers}) < 2 and time.monotonic() < deadline:
                    answers += pool.map(lambda _: ask(port), range(8))
            pids = {answer["pid"] for answer in answers}
            assert len(pids) == 2, output.read_text()
            assert server.pid not in pids
            stop(server)
        return answers

    @pytest.mark.parametrize("name", SERVERS)
    @pytest.mark.timeout(2 * START_S)
    def test_canary(self, name: str, tmp_path: Path) -> None:
        """A worker that is killed is replaced by one that may be in the other arm: so both arms are seen in time."""
        if name == "gunicorn":
            need("uvicorn_worker")
        record, folder = write(make_record(TINY_CNN, TUNED["det"]), tmp_path / "tuned.json"), tmp_path / "metrics"
        options = ["--canary", "50%", "--metrics", str(folder), "--quiet", "--"]
        before = [sys.executable, "-P", "-m", "ortune", "apply", str(record), *options]
        port, output = free_port(), tmp_path / "output.txt"
        command, *arguments = split_command(name, port)
        answers: list[Any] = []
        killed: set[int] = set()

        def workers() -> dict[int, int]:
            """Return the threads of the session of each worker that has not been killed."""
            return {answer["pid"]: answer["intra"] for answer in answers if answer["pid"] not in killed}

        with serving([*before, program(command), *arguments], port, output, MODEL=str(TINY_CNN)) as server:
            deadline = time.monotonic() + START_S
            with ThreadPoolExecutor(4) as pool:
                while set(workers().values()) != {1, 2} and time.monotonic() < deadline:
                    answers += pool.map(lambda _: ask(port), range(8))
                    if len(workers()) == 2 and len(set(workers().values())) == 1:
                        time.sleep(2)  # so that it has written, at the next call
                        answers += pool.map(lambda _: ask(port), range(8))
                        time.sleep(0.5)
                        killed.add(pid := min(workers()))
                        os.kill(pid, signal.SIGKILL)
                assert set(workers().values()) == {1, 2}, output.read_text()
                done = False
                while not done and time.monotonic() < deadline:
                    answers += pool.map(lambda _: ask(port), range(40))
                    counts = [sum(answer["pid"] == pid for answer in answers) for pid in workers()]
                    done = min(counts) >= 30
            stop(server)
        processes = {process.pid: process for process in read_metrics(folder).processes}
        assert processes.keys() >= workers().keys()
        assert server.pid not in processes
        for pid, process in processes.items():
            own = [answer for answer in answers if answer["pid"] == pid]
            assert {(answer["intra"], process.arm) for answer in own} <= {(1, "canary"), (2, "control")}
            assert len({answer["intra"] for answer in own}) == 1
            assert process.n_calls == len(own) or pid in killed
        comparison = compare_arms(read_metrics(folder))
        arms = [comparison.total[0].canary, comparison.total[0].control]
        assert all(arm.n_processes >= 1 for arm in arms)
        if len(processes) == 2:
            assert (comparison.verdict, comparison.total[0].speedup) == ("inconclusive", None)

    @pytest.mark.parametrize("name", SERVERS)
    def test_workers(self, name: str, tmp_path: Path, other: Path) -> None:
        record, log = write(make_record(TINY_CNN, TUNED["det"]), tmp_path / "tuned.json"), tmp_path / "log"
        tuned = self.serve(name, apply_command([record], log), tmp_path / "tuned.txt")
        left = self.serve(name, apply_command([other], tmp_path / "left"), tmp_path / "left.txt")
        plain = self.serve(name, [], tmp_path / "plain.txt")
        assert {(answer["intra"], answer["spinning"]) for answer in tuned} == {(1, "0")}
        assert {(answer["intra"], answer["spinning"]) for answer in left + plain} == {(2, None)}
        assert {tuple(answer["output"]) for answer in left} == {tuple(answer["output"]) for answer in plain}
        for answer in tuned:
            assert answer["output"] == pytest.approx(plain[0]["output"], abs=1e-5)
        sessions = read_log(log)
        assert {session["pid"] for session in sessions} >= {answer["pid"] for answer in tuned}
        for session in sessions:
            check_tuned(session, TUNED["det"])
        check_not_tuned(tmp_path / "left")
