"""`ortune.install`, and sessions created from Python."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ortune import Config, session_options
from ortune.knobs import ThreadPool
from ortune.knobs.config import Provider
from tests.applying import run, write_tuned
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.records import ONE_THREAD, make_record, write


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write_tuned(tmp_path)


class TestInstall:
    """ortune.install."""

    @pytest.mark.long
    def test_measurements_are_not_affected(self, tuned: Path, tmp_path: Path) -> None:
        """What ortune measures as the default is the default, wherever it runs."""
        budget = f"--budget={scale_budget(5)}s"
        done = run(
            sys.executable, "-P", "-m", "ortune", "bench", str(TINY_CNN), budget, "--json", "--quiet", record=tuned
        )
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["rows"]
        assert row["session"]["settings"].get("intra_op_num_threads") != 1

    def install(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-P", "-c", textwrap.dedent(code), TINY_CNN, environment=environment)

    def test_install(self, tuned: Path) -> None:
        done = self.install(
            """
            import os, sys, ortune
            ortune.install(os.environ["RECORD"])
            import onnxruntime
            print(onnxruntime.InferenceSession(sys.argv[1]).get_session_options().intra_op_num_threads)
            try:
                ortune.install(os.environ["RECORD"])
            except ortune.UsageError as error:
                print("already installed in this process" in str(error))
            """,
            RECORD=str(tuned),
        )
        assert done.stdout.split() == ["1", "True"], done.stderr

    def test_install_after_onnxruntime_was_imported(self, tuned: Path) -> None:
        done = self.install(
            """
            import sys, onnxruntime, os
            from onnxruntime import InferenceSession, SessionOptions
            early = SessionOptions()
            early.add_session_config_entry("session.disable_prepacking", "1")
            early.intra_op_num_threads = 2
            import ortune
            ortune.install([os.environ["RECORD"]])
            for options in (None, early, SessionOptions()):
                read = InferenceSession(sys.argv[1], options).get_session_options()
                print(read.intra_op_num_threads, read.get_session_config_entry("session.intra_op.allow_spinning"))
            print(read is not None and early.get_session_config_entry("session.disable_prepacking"))
            """,
            RECORD=str(tuned),
        )
        assert done.stdout.split() == ["1", "0"] * 3 + ["1"], done.stderr

    def test_install_without_a_record(self, tuned: Path) -> None:
        done = self.install("import ortune; ortune.install()", ORTUNE_CONFIG="")
        assert "There is no record to install" in done.stderr

    def test_install_of_the_records_that_the_variable_names(self, tuned: Path) -> None:
        code = """
        import sys, ortune
        ortune.install()
        import onnxruntime
        print(onnxruntime.InferenceSession(sys.argv[1]).get_session_options().intra_op_num_threads)
        """
        assert self.install(code, ORTUNE_CONFIG=str(tuned)).stdout == "1\n"
        assert "ORTUNE_CONFIG: - is not a file" in self.install(code, ORTUNE_CONFIG="-").stderr

    def test_install_under_apply(self, tuned: Path) -> None:
        """A program that installs records also works where the environment has records in force."""
        code = """
        import os, sys, ortune
        ortune.install(os.environ["RECORD"])
        import onnxruntime
        print(onnxruntime.InferenceSession(sys.argv[1]).get_session_options().intra_op_num_threads)
        """
        done = run(
            sys.executable,
            "-P",
            "-c",
            textwrap.dedent(code),
            TINY_CNN,
            record=tuned,
            environment={"RECORD": str(tuned), "ORTUNE_CONFIG": str(tuned)},
        )
        assert done.stdout == "1\n", done.stderr
        assert "already uses" not in done.stderr

    def test_install_warns_of_another_host(self, tmp_path: Path) -> None:
        record = write(
            make_record(TINY_CNN, Config(environment={"OMP_DYNAMIC": "true"}), here=False), tmp_path / "r.json"
        )
        code = """
        import os, warnings, ortune
        warnings.simplefilter("always")
        ortune.install(os.environ["RECORD"], any_host=bool(os.environ.get("ANY")))
        """
        assert "tuned on another class of host" in self.install(code, RECORD=str(record)).stderr
        done = self.install(code, RECORD=str(record), ANY="1")
        assert "OMP_DYNAMIC=true" in done.stderr
        assert "another class" not in done.stderr


class TestSessions:
    """Options and sessions from Python."""

    def python(self, code: str, record: Path) -> list[str]:
        done = run(sys.executable, "-P", "-c", textwrap.dedent(code), TINY_CNN, environment={"RECORD": str(record)})
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def test_session_options_do_not_change_the_process(self, tmp_path: Path) -> None:
        """A process can create the global thread pool once."""
        config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1))
        code = """
        import os, sys, onnxruntime, ortune
        options = ortune.session_options(os.environ["RECORD"])
        print(options.use_per_session_threads)
        onnxruntime.set_global_thread_pool_sizes(1, 1)
        print(onnxruntime.InferenceSession(sys.argv[1], options).get_session_options().use_per_session_threads)
        """
        assert self.python(code, write(make_record(TINY_CNN, config), tmp_path / "r.json")) == ["False", "False"]

    def test_session_options_leave_captured_graphs_out(self, tmp_path: Path) -> None:
        dml, webgpu = "ep.dml.enable_graph_capture", "ep.webgpuexecutionprovider.enableGraphCapture"
        chain: tuple[Provider, ...] = (
            ("WebGpuExecutionProvider", {"enableGraphCapture": "1"}),
            ("CPUExecutionProvider", {}),
        )
        config = Config(session_config={dml: "1", "session.set_denormal_as_zero": "1"}, providers=chain)
        path = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        with pytest.warns(UserWarning, match="captures calls, which the options leave out"):
            options = session_options(path)
        assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
        for name in (dml, webgpu):
            with pytest.raises(RuntimeError, match="does not have"):
                options.get_session_config_entry(name)

    def test_create_session_creates_the_global_pool_once(self, tmp_path: Path) -> None:
        config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1))
        code = """
        import os, sys, onnxruntime, ortune
        for _ in range(2):
            session = ortune.create_session(sys.argv[1], os.environ["RECORD"])
            print(session.get_session_options().use_per_session_threads)
        options = ortune.session_options(os.environ["RECORD"])
        print(onnxruntime.InferenceSession(sys.argv[1], options).get_session_options().use_per_session_threads)
        """
        assert self.python(code, write(make_record(TINY_CNN, config), tmp_path / "r.json")) == ["False"] * 3

    def test_sessions_of_other_records_share_the_global_pool(self, tmp_path: Path) -> None:
        config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1))
        other = write(make_record(TINY_ENCODER, ONE_THREAD), tmp_path / "other.json")
        code = f"""
        import os, sys, warnings, ortune
        ortune.create_session(sys.argv[1], os.environ["RECORD"])
        with warnings.catch_warnings(record=True) as warned:
            session = ortune.create_session(os.environ["OTHER_MODEL"], {str(other)!r})
        print(session.get_session_options().use_per_session_threads, len(warned), str(warned[0].message).split()[:2])
        """
        found = self.python(code, write(make_record(TINY_CNN, config), tmp_path / "r.json"))
        assert found == ["False", "1", "['this',", "'session']"]
