"""Measured runs of programs: they are not observed, and it is still noticed if settings had no effect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ortune import Config
from ortune.apply.inside.hook import SESSIONS_FILE
from ortune.model import compute_digest, read_model
from ortune.options import make_request
from ortune.program.applied import NO_SESSION, find_others, find_untuned
from ortune.program.launcher import LaunchedProgram, Launcher, TunedModel
from ortune.program.prepare import prepare_program
from ortune.program.process import ProgramProcess
from ortune.program.search import search_program
from ortune.program.task import ProgramTask
from ortune.requests import ProgramSearchRequest
from ortune.worker.installed import find_installed_version
from ortune.worker.owned_folder import OwnedFolder
from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.test_external_data import save as save_external

PROGRAM = Path(__file__).parent / "programs" / "worker.py"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems")

TUNED = {"model": "a.onnx", "has_rule": True, "is_tuned": True, "reason": ""}
MISSED = {"model": "b.onnx", "has_rule": True, "is_tuned": False, "reason": "onnxruntime here has no CUDA"}
ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})

CODE = """
import sys, onnxruntime
for path in sys.argv[1:]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    print(session.get_session_options().intra_op_num_threads)
"""


class TestReading:
    @pytest.mark.parametrize(
        ("lines", "reason"),
        [([TUNED, TUNED], ""), ([TUNED, MISSED], "b.onnx: onnxruntime here has no CUDA"), ([], NO_SESSION)],
    )
    def test_reasons(self, lines: list[dict[str, Any]], reason: str, tmp_path: Path) -> None:
        (tmp_path / SESSIONS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert find_untuned(tmp_path) == reason

    def test_no_file(self, tmp_path: Path) -> None:
        assert find_untuned(tmp_path) == NO_SESSION

    @pytest.mark.parametrize(
        "data", [b"\n", b"[" * 100_000, b"\xff", b"{}", json.dumps({**TUNED, "x": 1}).encode(), b"1\n2"]
    )
    def test_what_no_program_notes(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / SESSIONS_FILE).write_bytes(data)
        assert "cannot be read" in find_untuned(tmp_path)

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / SESSIONS_FILE)
        assert "cannot be read" in find_untuned(tmp_path)


class TestRuns:
    def run(
        self, folder: OwnedFolder, config: Config, *paths: Path, model_path: Path = TINY_CNN
    ) -> tuple[LaunchedProgram, str]:
        """Run a program to its end, with settings for the sessions of one model. Return what it printed, too."""
        task = ProgramTask(command=(sys.executable, "-c", CODE, *map(str, paths)))
        model = TunedModel(name=model_path.name, path=str(model_path), files=read_model(model_path).files)
        launcher = Launcher(task, [model], find_installed_version(), folder, os.environ)
        process = ProgramProcess()
        try:
            run = launcher.start(process, config)
            assert isinstance(run, LaunchedProgram)
            ended = process.wait(60)
        finally:
            process.close()
        assert ended and ended.status == 0, run.stderr.read_text()
        return run, (run.read_output() or b"").decode()

    def test_sessions_that_got_the_settings(self) -> None:
        with OwnedFolder() as folder:
            run, printed = self.run(folder, ONE_THREAD, TINY_CNN, TINY_ENCODER, TINY_CNN)
            assert printed.split() == ["1", "0", "1"]
            assert find_untuned(run.folder) == ""
            assert len((run.folder / SESSIONS_FILE).read_text().splitlines()) == 3
            assert find_others(run.folder) == {"tiny_encoder.onnx"}
            # It is not observed, which would take CPU time.
            assert {path.name for path in run.folder.iterdir()} <= {"stdout", "stderr", SESSIONS_FILE}

    def test_a_run_without_settings_notes_nothing(self) -> None:
        with OwnedFolder() as folder:
            run, printed = self.run(folder, Config(), TINY_CNN)
            assert printed.split() == ["0"]
            assert {path.name for path in run.folder.iterdir()} <= {"stdout", "stderr", SESSIONS_FILE}

    def test_no_session_of_the_model(self) -> None:
        with OwnedFolder() as folder:
            run, _ = self.run(folder, ONE_THREAD, TINY_ENCODER)
            assert find_untuned(run.folder) == NO_SESSION

    def test_settings_that_cannot_be_applied(self) -> None:
        config = Config(session_options={"optimized_model_filepath": "/missing/folder/x.onnx"})
        with OwnedFolder() as folder:
            run, _ = self.run(folder, config, TINY_CNN)
            assert "failed" in find_untuned(run.folder)

    def test_a_model_with_external_data(self, tmp_path: Path) -> None:
        """Its weights belong to it: with other ones, it is another model."""
        path, other = (save_external(tmp_path / name) for name in ("a", "b"))
        weights = other.with_name("weights.bin")
        weights.write_bytes(bytes(weights.stat().st_size))
        with OwnedFolder() as folder:
            run, printed = self.run(folder, ONE_THREAD, path, other, model_path=path)
            assert printed.split() == ["1", "0"]
            assert find_untuned(run.folder) == ""

    @pytest.mark.long
    def test_the_search_of_a_program_whose_model_has_external_data(self, tmp_path: Path) -> None:
        path, output = save_external(tmp_path), tmp_path / "tuned.json"
        command = (sys.executable, str(PROGRAM), str(path), "run", "60")
        values = {
            "command": command,
            "call": "__main__:work",
            "only": ("intra_op_num_threads",),
            "budget": "20s",
            "output": output,
        }
        prepared = prepare_program(make_request(ProgramSearchRequest, values, "python"))
        (identity,) = prepared.identities
        assert identity.digest == compute_digest(read_model(path).files)
        assert [file.name for file in identity.files] == ["model.onnx", "weights.bin"]
        assert search_program(prepared).outcome.evidence.verdict == "faster"
        run = [sys.executable, "-m", "ortune", "apply", str(output), "--explain", "--", sys.executable, "-c", CODE]
        done = subprocess.run([*run, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["1"]
        weights = path.with_name("weights.bin")
        weights.write_bytes(bytes(weights.stat().st_size))
        done = subprocess.run([*run, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["0"]
        assert "no record is for this model" in done.stderr
