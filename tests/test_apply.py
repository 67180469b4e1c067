"""`ortune apply ... -- PROGRAM`, ORTUNE_CONFIG and ortune.install, all with real programs and real sessions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from ortune.apply.command import make_parser
from ortune.apply.exec import STARTUP, make_environment
from ortune.apply.inside import hook
from ortune.apply.inside.finder import OFF, PLAN_VARIABLE
from ortune.apply.inside.hook import AFFINITY, _combine
from ortune.apply.install import install
from ortune.apply.messages import load_of
from ortune.apply.plan import Wish, choose_records, encode_plan, environment_of
from ortune.errors import RecordError, UsageError
from ortune.knobs import Config, ThreadPool
from ortune.record.files import read_record
from ortune.record.schema import FrontPoint, Record, Trial, tried_by
from ortune.record.select import Choice
from ortune.workload import Load
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import EXAMPLE, make_record, write

PROGRAM = Path(__file__).parent / "programs" / "sessions.py"
ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})

TUNED = Config(
    session_options={"intra_op_num_threads": 1, "graph_optimization_level": "ORT_ENABLE_EXTENDED"},
    session_config={"session.intra_op.allow_spinning": "0"},
)


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write(make_record(TINY_CNN, TUNED), tmp_path / "tuned.json")


def run(
    *command: object,
    record: Path | None = None,
    options: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, with a record in force if there is one."""
    before = [sys.executable, "-P", "-m", "ortune", "apply", str(record), *options, "--"] if record else []
    return subprocess.run(
        [*before, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OTHER_MODEL": str(TINY_ENCODER), **(environment or {})},
    )


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def sessions(*ways: str, **how: Any) -> list[dict[str, Any]]:
    return answers(run(sys.executable, PROGRAM, TINY_CNN, *ways, **how))


class TestProgram:
    """An unmodified program."""

    def test_sessions_of_the_model_get_the_tuned_options(self, tuned: Path) -> None:
        ways = ("by_path", "by_bytes", "by_pathlike", "subclass")
        plain, found = sessions(*ways), sessions(*ways, record=tuned)
        for before, after in zip(plain, found, strict=True):
            assert (after["intra"], after["level"], after["spinning"]) == (1, "ORT_ENABLE_EXTENDED", "0")
            assert before["intra"] != 1
            assert after["output"] == pytest.approx(before["output"], abs=1e-5)
            assert after["kind"] == before["kind"]

    @pytest.mark.parametrize("way", ["spawned", "forked", "forked_after_import"])
    def test_child_processes_do_too(self, way: str, tuned: Path) -> None:
        (found,) = sessions(way, record=tuned)
        assert (found["intra"], found["spinning"]) == (1, "0")

    def test_other_models_are_left_alone(self, tuned: Path) -> None:
        (plain,), (found,) = sessions("shared"), sessions("shared", record=tuned)
        assert found == plain
        assert found["intra"] == 2
        assert found["spinning"] is None

    def test_a_model_of_another_record_behaves_as_without(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_ENCODER, TUNED), tmp_path / "other.json")
        ways = ("by_path", "explicit", "subclass", "spawned", "broken")
        done = run(sys.executable, PROGRAM, TINY_CNN, *ways, record=record)
        assert answers(done) == sessions(*ways)
        # One line at its end, beside those of the start; nothing of the model that it does not find.
        assert "no session got tuned options" in done.stderr
        assert len(done.stderr.splitlines()) == 4  # the spawned child tells its own

    def test_tracebacks_are_the_programs_own(self, tuned: Path) -> None:
        code = "import onnxruntime; onnxruntime.InferenceSession('missing.onnx', enable_fallback=0)"
        plain, done = run(sys.executable, "-c", code), run(sys.executable, "-c", code, record=tuned, options=("-q",))
        assert plain.returncode == done.returncode == 1
        assert plain.stderr.splitlines()[-1] == done.stderr.splitlines()[-1]
        assert "During handling" not in done.stderr

    def test_tuned_options_win(self, tuned: Path) -> None:
        (found,) = sessions("explicit", record=tuned)
        assert (found["intra"], found["spinning"]) == (1, "0")
        # An affinity string for two threads does not go with one; what was not tuned stays; the object too.
        assert found["affinity"] is None
        assert found["severity"] == 3
        assert found["own"] == [2, "1"]

    def test_explicit_options_can_win(self, tuned: Path) -> None:
        (found,) = sessions("explicit", record=tuned, options=("--keep-explicit",))
        assert (found["intra"], found["spinning"], found["affinity"]) == (2, "1", "1")
        assert found["level"] == "ORT_ENABLE_EXTENDED"

    def test_what_the_search_tried_and_left_at_the_default_is_the_default(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config(session_config={"session.intra_op.allow_spinning": "0"}))
        trials = (Trial(number=0, config=Config(session_options={"intra_op_num_threads": 2}), stage="screening"),)
        record = msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, trials=trials))
        (found,) = sessions("explicit", record=write(record, tmp_path / "r.json"))
        assert (found["intra"], found["affinity"], found["spinning"]) == (0, None, "0")

    def test_any_model(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_ENCODER, TUNED), tmp_path / "other.json")
        (found,) = sessions("by_path", record=record, options=("--any-model",))
        assert found["intra"] == 1

    def test_explain_reads_back(self, tuned: Path, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        done = run(
            *(sys.executable, PROGRAM, TINY_CNN, "explicit", "shared"),
            record=tuned,
            options=("--explain", "--explain-json", str(log)),
        )
        answers(done)
        matched, again, other = [json.loads(line) for line in log.read_text().splitlines()]
        assert matched["matched"] and again["matched"] and not other["matched"]
        assert matched["set"] == {**TUNED.session_options, **TUNED.session_config}
        assert matched["instead_of"] == {
            "intra_op_num_threads": 2,
            AFFINITY: "1",
            "session.intra_op.allow_spinning": "1",
        }
        assert matched["read_back"]["graph_optimization_level"] == "ORT_ENABLE_EXTENDED"
        assert matched["threads"] == []
        assert other["why"] == "another model"
        assert "tuned by" in done.stderr
        assert "left alone, another model" in done.stderr
        assert "tuned options win" in done.stderr

    def test_onnxruntime_is_imported_when_the_program_does(self, tuned: Path) -> None:
        (found,) = sessions("nothing", record=tuned)
        assert found["onnxruntime"] is False
        assert found["numpy"] is False
        assert str(STARTUP) not in found["path"]

    def test_a_program_without_python_runs(self, tuned: Path) -> None:
        done = run("sh", "-c", "cat; exit 7", record=tuned)
        assert done.returncode == 7

    def test_stdin_and_exit_code_are_the_programs(self, tuned: Path) -> None:
        code = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(5)"
        command = [sys.executable, "-P", "-m", "ortune", "apply", str(tuned), "-q", "--", sys.executable, "-c", code]
        done = subprocess.run(command, input="quiet", capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode, done.stderr) == ("QUIET", 5, "")

    def test_signals_reach_it(self, tuned: Path) -> None:
        code = "import signal, time; signal.signal(15, lambda *_: exit(9)); print(1, flush=True); time.sleep(60)"
        command = [sys.executable, "-P", "-m", "ortune", "apply", str(tuned), "-q", "--", sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout
            assert child.stdout.readline() == "1\n"
            child.send_signal(signal.SIGTERM)
            assert child.wait(30) == 9

    def test_a_broken_pipe_ends_it_as_always(self, tuned: Path) -> None:
        """Python ignores SIGPIPE; a program that it becomes must not."""
        command = f"{sys.executable} -P -m ortune apply {tuned} -q -- sh -c 'kill -s PIPE $$; echo alive'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.stdout == ""

    def test_modules_and_console_scripts(self, tuned: Path, tmp_path: Path) -> None:
        shutil.copy(PROGRAM, tmp_path / "appmodule.py")
        (found,) = answers(
            run(
                sys.executable,
                "-m",
                "appmodule",
                TINY_CNN,
                "by_path",
                record=tuned,
                environment={"PYTHONPATH": str(tmp_path)},
            )
        )
        assert found["intra"] == 1
        script = tmp_path / "app"
        script.write_text(f"#!{sys.executable}\n" + PROGRAM.read_text())
        script.chmod(0o755)
        (found,) = answers(
            run(
                "app",
                TINY_CNN,
                "by_path",
                record=tuned,
                environment={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            )
        )
        assert found["intra"] == 1

    def test_another_sitecustomize_is_imported_too(self, tuned: Path, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.CUSTOMIZED = True\n")
        code = "import sitecustomize, sys; print(CUSTOMIZED, sitecustomize.__file__)"
        done = run(sys.executable, "-c", code, record=tuned, environment={"PYTHONPATH": str(tmp_path)})
        assert done.stdout.split() == ["True", str(tmp_path / "sitecustomize.py")]

    def test_a_broken_sitecustomize_is_told_of_as_without(self, tuned: Path, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import nowhere\n")
        done = run(sys.executable, "-c", "print(1)", record=tuned, environment={"PYTHONPATH": str(tmp_path)})
        assert done.stdout == "1\n"
        assert "No module named 'nowhere'" in done.stderr

    def test_python_without_ortune(self, tuned: Path) -> None:
        """The program's Python may be another one: what runs there needs the standard library alone."""
        code = textwrap.dedent(
            """
            import sys
            class Nowhere:
                def find_spec(self, name, path=None, target=None):
                    if name.split(".")[0] in {"ortune", "msgspec"}:
                        raise ImportError(name)
            sys.meta_path.insert(0, Nowhere())
            import onnxruntime
            session = onnxruntime.InferenceSession(sys.argv[1])
            print(session.get_session_options().intra_op_num_threads)
            """
        )
        assert run(sys.executable, "-c", code, TINY_CNN, record=tuned).stdout == "1\n"

    def test_environment(self, tmp_path: Path) -> None:
        config = msgspec.structs.replace(TUNED, environment={"ORTUNE_TEST_A": "1", "LD_PRELOAD": ""})
        record = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        done = run(sys.executable, "-c", "import os; print(os.environ['ORTUNE_TEST_A'])", record=record)
        assert done.stdout == "1\n"

    def test_several_records(self, tuned: Path, tmp_path: Path) -> None:
        other = write(
            make_record(TINY_ENCODER, Config(session_options={"enable_mem_pattern": False, "intra_op_num_threads": 2})),
            tmp_path / "other.json",
        )
        log = tmp_path / "log"
        done = run(
            *(sys.executable, PROGRAM, TINY_CNN, "shared"),
            record=tuned,
            options=(str(other), "--explain-json", str(log)),
        )
        assert done.returncode == 0
        first, second = [json.loads(line) for line in log.read_text().splitlines()]
        assert first["why"] == str(tuned)
        assert second["why"] == str(other)
        assert second["read_back"]["enable_mem_pattern"] is False


class TestSettings:
    """Settings that are no plain options."""

    def program(self, code: str, config: Config, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        record = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        head = f"import numpy as np, onnxruntime as ort\nMODEL = {str(TINY_CNN)!r}\n"
        head += "image = {'image': np.zeros((1, 3, 32, 32), np.float32)}\n"
        return run(sys.executable, "-c", head + textwrap.dedent(code), record=record, options=options)

    def test_run_options_reach_every_call(self, tmp_path: Path) -> None:
        """An arena that is shrunk where there is none is refused by `run` itself: so it is seen that they arrive."""
        config = Config(
            session_options={"enable_cpu_mem_arena": False},
            run_config={"memory.enable_memory_arena_shrinkage": "cpu:0"},
            run_options={"log_severity_level": 3},
        )
        code = """
        session = ort.InferenceSession(MODEL)
        own = ort.RunOptions()
        binding = session.io_binding()
        binding.bind_cpu_input("image", image["image"])
        binding.bind_output(session.get_outputs()[0].name)
        for call in (
            lambda: session.run(None, image),
            lambda: session.run(None, image, own),
            lambda: session.run(output_names=None, input_feed=image, run_options=own),
            lambda: session.run_with_iobinding(binding),
        ):
            try:
                call()
                print("ran")
            except Exception as error:
                print("shrink" if "arena" in str(error) else error)
        def entry(options):
            try:
                return options.get_run_config_entry("memory.enable_memory_arena_shrinkage")
            except RuntimeError:
                return "none"
        print(own.log_severity_level, entry(own))
        """
        done = self.program(code, config, tmp_path)
        assert done.stdout.split() == ["shrink"] * 4 + ["-1", "none"], done.stderr
        assert "already exists" not in done.stderr

    def test_run_options_of_the_program_are_in_force_too(self, tmp_path: Path) -> None:
        """Those that are set later, and by another thread meanwhile, as well."""
        code = """
        session = ort.InferenceSession(MODEL)
        own = ort.RunOptions()
        for _ in range(2):
            try:
                session.run(None, image, own)
                print("ran")
            except Exception as error:
                print("terminated" if "terminate" in str(error) else error)
            own.terminate = True
        """
        done = self.program(code, Config(run_options={"log_severity_level": 3}), tmp_path)
        assert done.stdout.split() == ["ran", "terminated"], done.stderr

    def test_sessions_of_other_models_run_as_ever(self, tmp_path: Path) -> None:
        config = Config(run_config={"memory.enable_memory_arena_shrinkage": "cpu:7"})
        other = tmp_path / "other.onnx"
        other.write_bytes(TINY_CNN.read_bytes() + b"\x7a\x00")  # an unknown field, which is empty
        code = f"""
        own = ort.RunOptions()
        for path in (MODEL, {str(other)!r}):
            try:
                ort.InferenceSession(path).run(None, image, own)
                print("ran")
            except Exception as error:
                print("refused")
        """
        assert self.program(code, config, tmp_path).stdout.split() == ["refused", "ran"]

    def test_a_session_is_freed_as_ever(self, tmp_path: Path) -> None:
        code = """
        import gc, weakref
        gc.disable()
        session = ort.InferenceSession(MODEL)
        session.run(None, image, ort.RunOptions())
        seen = weakref.ref(session)
        del session
        print(seen() is None)
        """
        done = self.program(code, Config(run_options={"log_severity_level": 3}), tmp_path)
        assert done.stdout == "True\n", done.stderr

    def test_what_cancels_a_load_reaches_the_copy_that_is_loaded(self) -> None:
        class Options:
            cancelled = False

            def set_load_cancellation_flag(self, value: bool) -> None:
                self.cancelled = value

        log = hook.Log(Options)
        own = Options()
        copy = log.copy(own)
        own.set_load_cancellation_flag(True)
        assert copy.cancelled

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_fork_while_a_model_is_hashed(self, tmp_path: Path) -> None:
        big = tmp_path / "big.onnx"
        with big.open("wb") as file:
            file.truncate(300_000_000)
        record = make_record(TINY_CNN, TUNED)
        (known,) = record.model.files
        alike = msgspec.structs.replace(known, size_bytes=300_000_000)
        other = msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, files=(alike,)))
        code = f"""
        import numpy as np, onnxruntime as ort
        import os, signal, threading, time
        MODEL = {str(TINY_CNN)!r}
        def load():
            try:
                ort.InferenceSession({str(big)!r})
            except Exception:
                pass
        thread = threading.Thread(target=load)
        thread.start()
        time.sleep(0.05)
        child = os.fork()
        if not child:
            signal.alarm(60)
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            ort.InferenceSession(MODEL, options)
            os._exit(0)
        print(os.waitpid(child, 0)[1])
        thread.join()
        """
        paths = (write(record, tmp_path / "a.json"), write(other, tmp_path / "b.json"))
        done = run(
            *(sys.executable, "-P", "-m", "ortune", "apply", *paths, "-q"),
            *("--", sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)),
        )
        assert done.stdout == "0\n", done.stderr

    @pytest.mark.parametrize("how", ["sys.stderr = None", "sys.stderr.close()"])
    def test_a_program_without_stderr(self, how: str, tmp_path: Path) -> None:
        code = f"import sys; {how}; ort.InferenceSession(MODEL); print('alive')"
        for options in ([], ["--explain"]):
            assert self.program(code, TUNED, tmp_path, *options).stdout == "alive\n"

    def test_what_is_set_to_the_default_is_kept_too(self, tmp_path: Path) -> None:
        code = """
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        read = ort.InferenceSession(MODEL, options).get_session_options()
        print(read.graph_optimization_level.name, read.intra_op_num_threads)
        """
        kept = self.program(code, TUNED, tmp_path, "--keep-explicit").stdout.split()
        assert kept == ["ORT_ENABLE_ALL", "1"]
        assert self.program(code, TUNED, tmp_path).stdout.split() == ["ORT_ENABLE_EXTENDED", "1"]

    def test_a_session_lives_as_long_as_its_calls(self, tmp_path: Path) -> None:
        config = Config(run_options={"log_severity_level": 3})
        done = self.program("run = ort.InferenceSession(MODEL).run; print(run(None, image)[0].shape)", config, tmp_path)
        assert done.stdout == "(1, 10)\n", done.stderr

    def test_nothing_is_between_the_program_and_its_calls(self, tmp_path: Path) -> None:
        code = "session = ort.InferenceSession(MODEL); print([n for n in vars(session) if n.startswith('run')])"
        assert self.program(code, TUNED, tmp_path).stdout == "[]\n"

    def test_each_of_several_sessions_has_its_own(self, tmp_path: Path) -> None:
        entries = ({"session.dynamic_block_base": "4"}, {"session.dynamic_block_base": "8"})
        code = """
        for _ in range(3):
            read = ort.InferenceSession(MODEL).get_session_options()
            print(read.get_session_config_entry("session.dynamic_block_base"))
        """
        assert self.program(code, Config(per_session=entries), tmp_path).stdout.split() == ["4", "8", "4"]

    def test_a_global_pool(self, tmp_path: Path) -> None:
        config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1))
        code = """
        import os
        before = len(os.listdir("/proc/self/task"))
        sessions = [ort.InferenceSession(MODEL) for _ in range(3)]
        print(sessions[0].get_session_options().use_per_session_threads, sessions[1].run(None, image)[0].shape)
        """
        done = self.program(code, config, tmp_path)
        assert done.stdout.startswith("False"), done.stderr

    def test_io_binding_is_said_to_be_the_programs_to_do(self, tmp_path: Path) -> None:
        done = self.program("ort.InferenceSession(MODEL)", Config(io_binding=True), tmp_path, "--explain")
        assert "io_binding (the program would have to call run_with_iobinding)" in done.stderr

    def test_a_provider_that_is_not_there(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 1}, providers=(("NowhereExecutionProvider", {}),))
        code = "print(ort.InferenceSession(MODEL).get_session_options().intra_op_num_threads)"
        done = self.program(code, config, tmp_path)
        assert done.stdout == "0\n"
        assert "has no NowhereExecutionProvider" in done.stderr

    def test_a_provider_that_the_program_asks_for_can_be_kept(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 1})
        code = """
        for providers in (["AzureExecutionProvider", "CPUExecutionProvider"], [("CPUExecutionProvider", {})]):
            print(ort.InferenceSession(MODEL, providers=providers).get_session_options().intra_op_num_threads)
        """
        assert self.program(code, config, tmp_path, "--keep-explicit").stdout.split() == ["0", "1"]

    def test_tuned_options_that_fail_are_left_out(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 2}, session_config={AFFINITY: "nonsense"})
        code = "print(ort.InferenceSession(MODEL).get_session_options().intra_op_num_threads)"
        done = self.program(code, config, tmp_path)
        assert done.stdout == "0\n"
        assert "the tuned options fail" in done.stderr

    def test_options_that_cannot_be_copied_are_called_again(self, tmp_path: Path) -> None:
        code = """
        options = ort.SessionOptions()
        weight = ort.InferenceSession(MODEL).get_overridable_initializers()
        options.add_free_dimension_override_by_name("nothing", 3)
        options.add_session_config_entry("session.disable_prepacking", "1")
        read = ort.InferenceSession(MODEL, options).get_session_options()
        print(read.get_session_config_entry("session.disable_prepacking"), read.intra_op_num_threads)
        """
        done = self.program(code, TUNED, tmp_path)
        assert done.stdout == "1 1\n", done.stderr

    def test_an_onnxruntime_of_another_version_is_told(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, TUNED)
        record = msgspec.structs.replace(record, runtime=msgspec.structs.replace(record.runtime, onnxruntime="1.2.3"))
        path = write(record, tmp_path / "r.json")
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", "by_path", record=path)
        assert done.stderr.count("was tuned with onnxruntime 1.2.3") == 1
        assert answers(done)[0]["intra"] == 1

    def test_external_data_belongs_to_the_model(self, tmp_path: Path) -> None:
        for name in ("right", "wrong"):
            (tmp_path / name).mkdir()
            onnx.save_model(
                onnx.load(TINY_CNN),
                tmp_path / name / "model.onnx",
                save_as_external_data=True,
                location="weights.bin",
                size_threshold=0,
            )
        data = tmp_path / "wrong" / "weights.bin"
        changed = bytearray(data.read_bytes())
        changed[-1] ^= 1
        data.write_bytes(changed)
        record = write(make_record(tmp_path / "right" / "model.onnx", TUNED), tmp_path / "r.json")
        for name, intra in (("right", 1), ("wrong", 0)):
            (found,) = answers(run(sys.executable, PROGRAM, tmp_path / name / "model.onnx", "by_path", record=record))
            assert found["intra"] == intra


class TestWhichRecords:
    def test_a_search_that_proved_nothing_changes_nothing(self, tmp_path: Path) -> None:
        """The default is in such a record because nothing else was proven, not because it was."""
        record = write(make_record(TINY_CNN, Config()), tmp_path / "r.json")
        assert read_record(record).evidence.verdict == "inconclusive"
        code = f"""
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        print(ort.InferenceSession({str(TINY_CNN)!r}, options).get_session_options().intra_op_num_threads)
        """
        done = run(sys.executable, "-c", textwrap.dedent(code), record=record, options=("--explain",))
        assert done.stdout == "2\n"
        assert "is not used: its search proved nothing" in done.stderr
        assert "left alone, its search proved nothing" in done.stderr

    def test_a_default_that_was_proven_to_be_best_is_used(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config())
        best = msgspec.structs.replace(record.evidence, verdict="default_is_best")
        path = write(msgspec.structs.replace(record, evidence=best), tmp_path / "r.json")
        (choice,) = choose_records([path], Wish())
        assert choice.applies

    def front(self) -> Record:
        record = make_record(TINY_CNN, Config())
        winner = record.evidence.winner
        assert winner
        points = tuple(
            FrontPoint(
                summary=msgspec.structs.replace(winner, config=config), speedups={}, limits=(), recommended=number == 0
            )
            for number, config in enumerate((Config(), ONE_THREAD))
        )
        evidence = msgspec.structs.replace(record.evidence, verdict="trade_off", front=points)
        return msgspec.structs.replace(record, evidence=evidence)

    def test_another_point_of_a_front(self, tmp_path: Path) -> None:
        path = write(self.front(), tmp_path / "r.json")
        code = f"""
        import onnxruntime as ort
        print(ort.InferenceSession({str(TINY_CNN)!r}).get_session_options().intra_op_num_threads)
        """
        for options, threads in (((), "0"), (("--pick", "2"), "1")):
            done = run(sys.executable, "-c", textwrap.dedent(code), record=path, options=options)
            assert done.stdout.strip() == threads, done.stderr
        done = run(sys.executable, "-c", "", record=path, options=("--pick", "3"))
        assert done.returncode == 2
        assert "--pick 3: the front has the points 1 to 2" in done.stderr
        inside = f"import ortune; ortune.install({str(path)!r}, pick=2)\n" + textwrap.dedent(code)
        assert run(sys.executable, "-P", "-c", inside).stdout.strip() == "1"

    def test_a_point_is_one_of_one_record(self, tmp_path: Path) -> None:
        paths = [
            write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "a.json"),
            write(make_record(TINY_ENCODER, ONE_THREAD), tmp_path / "b.json"),
        ]
        with pytest.raises(UsageError, match="--pick: the records are for several models"):
            choose_records(paths, Wish(pick=1))

    def test_no_records_are_none(self) -> None:
        with pytest.raises(UsageError, match="no record to install"):
            install([])


class TestVariable:
    """ORTUNE_CONFIG, and ortune.install from inside."""

    def test_the_variable_alone(self, tuned: Path) -> None:
        found, spawned = sessions("by_path", "spawned", environment={"ORTUNE_CONFIG": str(tuned)})
        assert found["intra"] == spawned["intra"] == 1

    def test_a_file_that_is_not_there_is_told_and_no_more(self, tmp_path: Path) -> None:
        done = run(
            sys.executable, PROGRAM, TINY_CNN, "by_path", environment={"ORTUNE_CONFIG": str(tmp_path / "nothing.json")}
        )
        assert answers(done)[0]["intra"] == 0
        assert "There is no file" in done.stderr
        assert "Traceback" not in done.stderr

    def test_another_host_is_told(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, TUNED, here=False), tmp_path / "r.json")
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", environment={"ORTUNE_CONFIG": str(record)})
        assert answers(done)[0]["intra"] == 0
        assert "is not used: tuned on another class of host" in done.stderr

    def test_measurements_are_not_tuned_behind_their_back(self, tuned: Path, tmp_path: Path) -> None:
        """What ortune measures as the default must be the default, wherever it runs."""
        command = [sys.executable, "-P", "-m", "ortune", "bench", str(TINY_CNN), "--json", "-q"]
        for done in (run(*command, environment={"ORTUNE_CONFIG": str(tuned)}), run(*command, record=tuned)):
            assert done.returncode == 0, done.stderr
            (row,) = json.loads(done.stdout)["rows"]
            assert row["summary"]["session"]["settings"].get("intra_op_num_threads") != 1

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
                print("installed in this process already" in str(error))
            """,
            RECORD=str(tuned),
        )
        assert done.stdout.split() == ["1", "True"], done.stderr

    def test_install_when_onnxruntime_is_there_already(self, tuned: Path) -> None:
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

    def test_install_of_the_variable(self, tuned: Path) -> None:
        done = self.install("import ortune; ortune.install()", ORTUNE_CONFIG="")
        assert "There is no record to install" in done.stderr

    def test_install_under_apply(self, tuned: Path) -> None:
        """A program that installs records itself goes on to work where they are in force from outside."""
        code = """
        import os, sys, ortune
        ortune.install(os.environ["RECORD"])
        ortune.install()
        import onnxruntime
        print(onnxruntime.InferenceSession(sys.argv[1]).get_session_options().intra_op_num_threads)
        """
        done = self.install(code, RECORD=str(tuned), ORTUNE_CONFIG=str(tuned))
        assert done.stdout == "1\n", done.stderr

    def test_install_warns_of_another_host(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_CNN, Config(environment={"A_VARIABLE": "1"}), here=False), tmp_path / "r.json")
        code = """
        import os, warnings, ortune
        warnings.simplefilter("always")
        ortune.install(os.environ["RECORD"], any_host=bool(os.environ.get("ANY")))
        """
        assert "tuned on another class of host" in self.install(code, RECORD=str(record)).stderr
        done = self.install(code, RECORD=str(record), ANY="1")
        assert "A_VARIABLE=1" in done.stderr
        assert "another class" not in done.stderr


class TestBadInput:
    def refused(self, *arguments: object, tmp_path: Path) -> str:
        done = run_ortune("apply", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--"], "There is no command after --."),
            (["--", "nothere"], "There is no command nothere."),
            (["--", "app.py"], "Write: -- python app.py."),
            (["--", "./notes.txt"], "cannot be executed"),
            (["--nonsense", "--", "true"], "unrecognized arguments: --nonsense"),
            (["--clients", "x", "--", "true"], "invalid int value: 'x'"),
            (["--clients", "0", "--", "true"], "--clients 0"),
            (["model.onnx", "--", "true"], "model.onnx is a model"),
            (["--explain-json", "nowhere/x", "--", "true"], "there is no folder"),
        ],
    )
    def test_commands(self, arguments: list[str], message: str, tuned: Path, tmp_path: Path) -> None:
        (tmp_path / "app.py").write_text("")
        (tmp_path / "notes.txt").write_text("")
        assert message in self.refused(tuned, *arguments, tmp_path=tmp_path)

    def test_no_record(self, tmp_path: Path) -> None:
        assert "There is no CONFIG." in self.refused("--", "true", tmp_path=tmp_path)
        assert "There is no CONFIG." in self.refused(tmp_path=tmp_path)
        assert "is a model, and there is no CONFIG" in self.refused("model.onnx", tmp_path=tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is not JSON"),
            ('{"schema": 99}', "has schema 99; this version of ortune reads up to"),
            ('{"schema": 3, "nonsense": 1}', "is not a valid record"),
            ('{"schema": 3, "records": []}', "is a bundle without records"),
            ('{"schema": 3, "records": [{}]}', "`$.records[0]`"),
            ('{"schema": 3, "records": 5}', "`$.records`"),
        ],
    )
    def test_records_that_are_none(self, content: str, message: str, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.write_text(content)
        assert message in self.refused(path, "--", "true", tmp_path=tmp_path)

    def test_a_host_of_another_class(self, tmp_path: Path) -> None:
        path = write(make_record(TINY_CNN, TUNED, here=False), tmp_path / "r.json")
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", record=path, options=("--explain",))
        assert answers(done)[0]["intra"] == 0
        assert "warning" in done.stderr
        assert "tuned on another class of host" in done.stderr
        (found,) = sessions("by_path", record=path, options=("--any-host",))
        assert found["intra"] == 1

    def test_another_model_is_named_with_both_digests(self, tuned: Path, tmp_path: Path) -> None:
        other = make_record(TINY_ENCODER, TUNED).model.digest
        for arguments in (["--to", "python"], ["--verify"], []):
            text = self.refused(tuned, TINY_ENCODER, *arguments, tmp_path=tmp_path)
            assert other in text
            assert read_record(tuned).model.digest in text

    def test_options_that_exclude_each_other(self, tuned: Path, tmp_path: Path) -> None:
        assert "are for a command" in self.refused(tuned, "--any-model", tmp_path=tmp_path)
        assert "--to and --verify" in self.refused(tuned, "--to", "python", "--verify", tmp_path=tmp_path)
        assert "nothing to write without --to" in self.refused(tuned, "-o", "x", tmp_path=tmp_path)

    def test_any_model_of_several(self, tuned: Path, tmp_path: Path) -> None:
        other = write(make_record(TINY_ENCODER, TUNED), tmp_path / "o.json")
        assert "--any-model" in self.refused(tuned, other, "--any-model", "--", "true", tmp_path=tmp_path)
        assert "There are records for several models" in self.refused(tuned, other, tmp_path=tmp_path)


class TestPieces:
    def test_settings_are_combined(self) -> None:
        theirs, ours = {"a": 1, "b": 1, "c": 1}, {"a": 2}
        assert _combine(theirs, ours, ["a", "b"], keep=False) == {"a": 2, "c": 1}
        assert _combine(theirs, ours, ["a", "b"], keep=True) == {"a": 1, "b": 1, "c": 1}

    def test_what_a_search_tried(self) -> None:
        assert tried_by(read_record(EXAMPLE))["options"]

    def choice(self, **environment: str) -> Choice:
        record = make_record(TINY_CNN, Config(environment=environment))
        return Choice(record=record, source="r.json", fits=True, why="")

    def test_environments_that_contradict_each_other(self) -> None:
        with pytest.raises(UsageError, match="LD_PRELOAD=b"):
            environment_of([self.choice(LD_PRELOAD="a"), self.choice(LD_PRELOAD="b")])
        assert environment_of([self.choice(A="1"), self.choice(B="2")]) == {"A": "1", "B": "2"}

    def test_a_preloaded_library_goes_in_front_of_others(self) -> None:
        made = make_environment("{}", {"LD_PRELOAD": "/a.so", "X": "1"}, {"LD_PRELOAD": "/b.so", "PYTHONPATH": "/p"})
        assert made["LD_PRELOAD"] == "/a.so /b.so"
        assert made["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/p"
        assert make_environment("{}", {}, {})["PYTHONPATH"] == str(STARTUP)

    def test_a_plan_that_is_too_long_for_the_system(self) -> None:
        with pytest.raises(RecordError, match="too many records"):
            encode_plan({"rules": ["x" * 200_000]})

    def test_loads(self) -> None:
        assert load_of(None, None, None) is None
        assert load_of(4, None, None) == Load(scenario="multi-client", clients=4)

    def test_the_options_of_both_parsers_are_the_same(self) -> None:
        """`--help` is typer's, and a command is run without it: what the one shows the other must know."""
        help_text = run_ortune("apply", "--help", cwd=Path.cwd()).stdout
        for action in make_parser()._actions:
            for option in action.option_strings:
                assert option in help_text, option
        section = help_text.split("With a command")[1].split("╰")[0]
        known = {option for action in make_parser()._actions for option in action.option_strings}
        assert {word for word in section.split() if word.startswith("--")} <= known

    def test_workers_are_told_to_be_left_alone(self) -> None:
        from ortune.worker.child_process import APPLY_OFF

        assert APPLY_OFF == {PLAN_VARIABLE: OFF}

    def test_what_the_hook_repeats_is_the_same(self) -> None:
        """It runs where ortune is not, and has its own copies."""
        from ortune.model import hash_file
        from ortune.worker import session

        assert hook.ENUMS == session.ENUMS
        assert set(hook.CUDA_BASED) == session.CUDA_BASED
        assert hook._hash_file(TINY_CNN) == hash_file(TINY_CNN.parent, TINY_CNN.name).sha256

    def test_the_folder_on_the_path_holds_nothing_else(self) -> None:
        assert [path.name for path in STARTUP.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


def test_many_starts_at_once(tuned: Path) -> None:
    """Threads of one program may create sessions at the same time."""
    code = textwrap.dedent(
        """
        import sys, threading, onnxruntime as ort
        found = []
        def create():
            found.append(ort.InferenceSession(sys.argv[1]).get_session_options().intra_op_num_threads)
        threads = [threading.Thread(target=create) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(found)
        """
    )
    assert run(sys.executable, "-c", code, TINY_CNN, record=tuned).stdout == f"{[1] * 8}\n"
