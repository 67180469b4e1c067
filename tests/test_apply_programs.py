"""`ortune apply ... -- PROGRAM`, with real programs and real sessions."""

from __future__ import annotations

import json
import os
import shlex
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

from ortune import Config
from ortune.apply.exec import STARTUP
from ortune.apply.inside.options_log import OptionsLog
from ortune.apply.inside.settings import AFFINITY, TunedSession
from ortune.knobs import ThreadPool
from ortune.record.schema import Tried
from tests.applying import PROGRAM, TUNED, outputs, run, sessions, write_tuned
from tests.conftest import TINY_CNN, TINY_ENCODER
from tests.environments import OLDER, find_python, write_script
from tests.programs.light import SessionOptions
from tests.records import ONE_THREAD, make_record, write


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write_tuned(tmp_path)


Found = dict[str, dict[str, Any]]
"""What a program prints, by the way in which it creates sessions."""

WAYS = (
    "nothing",
    "forked",
    "by_path",
    "by_bytes",
    "by_pathlike",
    "subclass",
    "explicit",
    "shared",
    "spawned",
    "forked_after_import",
    "broken",
)
"""Ways of `tests/programs/sessions.py` to create sessions. The first two come before any that imports onnxruntime."""


@pytest.fixture(scope="module")
def plain() -> Found:
    """What a program finds in each way."""
    return dict(zip(WAYS, sessions(*WAYS), strict=True))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a program finds in each way with a record in force."""
    record = write_tuned(tmp_path_factory.mktemp("ways"))
    return dict(zip(WAYS, sessions(*WAYS, record=record), strict=True))


class TestProgram:
    """Unmodified programs."""

    def test_sessions_of_the_model_get_the_tuned_options(self, plain: Found, found: Found) -> None:
        for way in ("by_path", "by_bytes", "by_pathlike", "subclass"):
            before, after = plain[way], found[way]
            assert (after["intra"], after["level"], after["spinning"]) == (1, "ORT_ENABLE_EXTENDED", "0")
            assert before["intra"] != 1
            assert after["output"] == pytest.approx(before["output"], abs=1e-5)
            assert after["kind"] == before["kind"]

    @pytest.mark.parametrize("way", ["spawned", "forked", "forked_after_import"])
    def test_child_processes_do_too(self, way: str, found: Found) -> None:
        assert (found[way]["intra"], found[way]["spinning"]) == (1, "0")

    def test_other_models_are_left_alone(self, plain: Found, found: Found) -> None:
        assert found["shared"] == plain["shared"]
        assert found["shared"]["intra"] == 2
        assert found["shared"]["spinning"] is None

    def test_a_model_of_another_record_behaves_as_without(self, plain: Found, tmp_path: Path) -> None:
        record = write(make_record(TINY_ENCODER, TUNED), tmp_path / "other.json")
        ways = ("by_path", "explicit", "subclass", "spawned", "broken")
        done = run(sys.executable, PROGRAM, TINY_CNN, *ways, record=record)
        assert outputs(done) == [plain[way] for way in ways]
        # One line at the end, besides those of the start; none for the model that is not there.
        assert "no session got tuned options" in done.stderr
        assert len(done.stderr.splitlines()) == 4  # the spawned child prints its own

    def test_tracebacks_are_the_programs_own(self, tuned: Path) -> None:
        code = "import onnxruntime; onnxruntime.InferenceSession('missing.onnx', enable_fallback=0)"
        plain, done = run(sys.executable, "-c", code), run(sys.executable, "-c", code, record=tuned, options=("-q",))
        assert plain.returncode == done.returncode == 1
        assert plain.stderr.splitlines()[-1] == done.stderr.splitlines()[-1]
        assert "During handling" not in done.stderr

    def test_tuned_options_win(self, found: Found) -> None:
        explicit = found["explicit"]
        assert (explicit["intra"], explicit["spinning"]) == (1, "0")
        # An affinity string for two threads is not valid for one. What was not tuned stays, and so does the object.
        assert explicit["affinity"] is None
        assert explicit["severity"] == 3
        assert explicit["own"] == [2, "1"]

    def test_explicit_options_can_win(self, tuned: Path) -> None:
        (found,) = sessions("explicit", record=tuned, options=("--keep-explicit",))
        assert (found["intra"], found["spinning"], found["affinity"]) == (2, "1", "1")
        assert found["level"] == "ORT_ENABLE_EXTENDED"

    def test_what_the_search_tried_and_left_at_the_default_is_the_default(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config(session_config={"session.intra_op.allow_spinning": "0"}))
        tried = Tried(session_options=("intra_op_num_threads",))
        record = msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, tried=tried))
        (found,) = sessions("explicit", record=write(record, tmp_path / "r.json"))
        assert (found["intra"], found["affinity"], found["spinning"]) == (0, None, "0")

    def test_any_model(self, tmp_path: Path) -> None:
        record = write(make_record(TINY_ENCODER, TUNED), tmp_path / "other.json")
        (found,) = sessions("by_path", record=record, options=("--any-model",))
        assert found["intra"] == 1

    def test_explain_reads_back(self, tuned: Path, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        done = run(
            sys.executable,
            PROGRAM,
            TINY_CNN,
            "explicit",
            "shared",
            record=tuned,
            options=("--explain", "--explain-json", str(log)),
        )
        outputs(done)
        matched, again, other = [json.loads(line) for line in log.read_text().splitlines()]
        assert matched["matched"] and again["matched"] and not other["matched"]
        assert matched["set"] == {**TUNED.session_options, **TUNED.session_config}
        assert matched["replaced"] == {
            "intra_op_num_threads": 2,
            AFFINITY: "1",
            "session.intra_op.allow_spinning": "1",
        }
        assert matched["read_back"]["graph_optimization_level"] == "ORT_ENABLE_EXTENDED"
        assert matched["threads"] == []
        assert other["reason"] == "no record is for this model"
        assert "uses the tuned options of" in done.stderr
        assert "keeps the program's own options: no record is for this model" in done.stderr
        assert "tuned options take precedence" in done.stderr

    def test_onnxruntime_is_imported_when_the_program_does(self, found: Found) -> None:
        assert found["nothing"]["onnxruntime"] is False
        assert found["nothing"]["numpy"] is False
        assert str(STARTUP) not in found["nothing"]["path"]

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

    def test_a_broken_pipe_ends_the_program(self, tuned: Path) -> None:
        """Python ignores SIGPIPE. The program that replaces it must not."""
        apply = shlex.join([sys.executable, "-P", "-m", "ortune", "apply", str(tuned), "-q"])
        command = f"{apply} -- sh -c 'kill -s PIPE $$; echo alive'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.stdout == ""

    def test_modules_and_console_scripts(self, tuned: Path, tmp_path: Path) -> None:
        shutil.copy(PROGRAM, tmp_path / "appmodule.py")
        (found,) = outputs(
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
        write_script(tmp_path / "app", PROGRAM.read_text())
        (found,) = outputs(
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

    def test_a_broken_sitecustomize_is_reported_as_without_ortune(self, tuned: Path, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import nowhere\n")
        done = run(sys.executable, "-c", "print(1)", record=tuned, environment={"PYTHONPATH": str(tmp_path)})
        assert done.stdout == "1\n"
        assert "No module named 'nowhere'" in done.stderr

    @pytest.mark.parametrize("version", OLDER)
    def test_an_older_python_keeps_its_own_sitecustomize(self, version: str, tuned: Path, tmp_path: Path) -> None:
        """Such as a tool that the program starts."""
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = True\n")
        code = "import sys; sys.stdout.write('%s %s' % (hasattr(sys, 'own'), hasattr(sys, '_ortune_plan')))"
        # Python 2.7 would write what it compiled next to the module that is under test.
        own = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = run(find_python(version), "-c", code, record=tuned, options=("-q",), environment=own)
        assert (done.stdout, done.stderr) == ("True False", "")

    def test_what_an_older_python_executes(self, tmp_path: Path) -> None:
        """Where this Python says that it is older."""
        (tmp_path / "sitecustomize.py").write_text("OWN = True\n")
        code = (
            f"import sys; sys.version_info = (3, 8); sys.path[:0] = [{str(STARTUP)!r}, {str(tmp_path)!r}]\n"
            "import sitecustomize; print(sys.modules['sitecustomize'].OWN, hasattr(sys, '_ortune_plan'))"
        )
        done = run(sys.executable, "-S", "-c", code, environment={"ORTUNE_APPLY": "{}"})
        assert (done.stdout, done.stderr) == ("True False\n", "")

    def test_a_plan_that_cannot_be_activated_leaves_the_own_sitecustomize(self, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("print('own')\n")
        path = os.pathsep.join([str(STARTUP), str(tmp_path)])
        done = run(sys.executable, "-c", "print(1)", environment={"PYTHONPATH": path, "ORTUNE_APPLY": '"observe"{'})
        assert done.stdout == "own\n1\n"
        assert "Error in sitecustomize" in done.stderr

    def test_python_without_ortune(self, tuned: Path) -> None:
        """The program's Python may have no ortune: what runs there needs only the standard library."""
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
        config = msgspec.structs.replace(TUNED, environment={"OMP_WAIT_POLICY": "PASSIVE"})
        record = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        done = run(sys.executable, "-c", "import os; print(os.environ['OMP_WAIT_POLICY'])", record=record)
        assert done.stdout == "PASSIVE\n"

    def test_several_records(self, tuned: Path, tmp_path: Path) -> None:
        other = write(
            make_record(TINY_ENCODER, Config(session_options={"enable_mem_pattern": False, "intra_op_num_threads": 2})),
            tmp_path / "other.json",
        )
        log = tmp_path / "log"
        done = run(
            sys.executable,
            PROGRAM,
            TINY_CNN,
            "shared",
            record=tuned,
            options=(str(other), "--explain-json", str(log)),
        )
        assert done.returncode == 0
        first, second = [json.loads(line) for line in log.read_text().splitlines()]
        assert first["record"] == str(tuned)
        assert second["record"] == str(other)
        assert second["read_back"]["enable_mem_pattern"] is False


class TestSettings:
    """Settings other than session options."""

    def program(self, code: str, config: Config, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
        record = write(make_record(TINY_CNN, config), tmp_path / "r.json")
        head = f"import numpy as np, onnxruntime as ort\nMODEL = {str(TINY_CNN)!r}\n"
        head += "image = {'image': np.zeros((1, 3, 32, 32), np.float32)}\n"
        return run(sys.executable, "-c", head + textwrap.dedent(code), record=record, options=options)

    def test_run_options_reach_every_call(self, tmp_path: Path) -> None:
        """`run` fails if it is asked to shrink an arena that does not exist, which shows that the options arrive."""
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

    def test_run_options_of_the_program_are_used_too(self, tmp_path: Path) -> None:
        """Also those that are set later, or by another thread."""
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

    def test_sessions_of_other_models_do_not_change(self, tmp_path: Path) -> None:
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

    def test_a_session_is_freed(self, tmp_path: Path) -> None:
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

    def test_cancelling_a_load_reaches_the_copy(self) -> None:
        class Options:
            cancelled = False

            def set_load_cancellation_flag(self, value: bool) -> None:
                self.cancelled = value

        log = OptionsLog(Options)
        own = Options()
        copy = log.copy(own)
        own.set_load_cancellation_flag(True)
        assert copy.cancelled

    def test_options_that_were_changed_in_place_are_as_before_if_the_session_fails(self) -> None:
        """A program created them before the log began, so that they cannot be copied."""
        own = SessionOptions()
        own.intra_op_num_threads = 2
        own.add_session_config_entry("session.intra_op.allow_spinning", "1")
        config = {
            "session_options": {"intra_op_num_threads": 3},
            "global_thread_pool": None,
            "providers": [["CPUExecutionProvider", {}]],
        }
        rule = {"config": config, "tried": {"options": [], "entries": []}}
        tuned = TunedSession(rule, "m.onnx", {})
        entries = {"session.intra_op.allow_spinning": "0", AFFINITY: "1;2"}
        tuned.set_options(own, entries, OptionsLog(SessionOptions), keep=False)
        assert tuned.options is own
        assert own.intra_op_num_threads == 3
        assert own.entries == {"session.intra_op.allow_spinning": "0"}
        assert [text.partition("=")[0].partition(" ")[0] for text in tuned.not_set] == [AFFINITY]
        tuned.undo()
        assert own.intra_op_num_threads == 2
        assert own.entries == {"session.intra_op.allow_spinning": "1"}
        # The pool of another record replaces that of the session.
        config["session_options"] = {"intra_op_num_threads": 3, "enable_mem_pattern": False}
        shared = TunedSession(rule, "m.onnx", {})
        shared.set_options(None, entries, OptionsLog(SessionOptions), keep=False, shares_pool=True)
        assert list(shared.set) == ["enable_mem_pattern"]
        assert all(text.endswith(" (the process has a global thread pool)") for text in shared.not_set)
        assert len(shared.not_set) == 3

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
            sys.executable,
            "-P",
            "-m",
            "ortune",
            "apply",
            *paths,
            "-q",
            "--",
            sys.executable,
            "-W",
            "ignore",
            "-c",
            textwrap.dedent(code),
        )
        assert done.stdout == "0\n", done.stderr

    @pytest.mark.parametrize("how", ["sys.stderr = None", "sys.stderr.close()"])
    def test_a_program_without_stderr(self, how: str, tmp_path: Path) -> None:
        code = f"import sys; {how}; ort.InferenceSession(MODEL); print('alive')"
        for options in ([], ["--explain"]):
            assert self.program(code, TUNED, tmp_path, *options).stdout == "alive\n"

    def test_an_explicit_default_can_be_kept(self, tmp_path: Path) -> None:
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

    def test_calls_are_not_wrapped(self, tmp_path: Path) -> None:
        code = "session = ort.InferenceSession(MODEL); print([n for n in vars(session) if n.startswith('run')])"
        assert self.program(code, TUNED, tmp_path).stdout == "[]\n"

    def test_each_of_several_sessions_has_its_own_options(self, tmp_path: Path) -> None:
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

    def test_all_sessions_share_a_global_pool(self, tmp_path: Path) -> None:
        """onnxruntime refuses any other session of the process: without a record, with another one, or a fallback."""
        config = Config(global_thread_pool=ThreadPool(intra_op_num_threads=1, inter_op_num_threads=1))
        second, third = (tmp_path / f"{name}.onnx" for name in ("second", "third"))
        for number, path in enumerate((second, third)):
            path.write_bytes(TINY_CNN.read_bytes() + b"\x7a\x00" * (number + 1))  # unknown fields, which are empty
        failing = Config(session_config={"session.load_model_format": "ORT"})
        others = [
            str(write(make_record(path, config), tmp_path / f"{path.stem}.json"))
            for path, config in ((second, ONE_THREAD), (third, failing))
        ]
        code = f"""
        import os
        own = ort.SessionOptions()
        own.log_severity_level = 3
        for model, options in (
            (MODEL, None), (os.environ["OTHER_MODEL"], None), (os.environ["OTHER_MODEL"], own), ({str(second)!r}, own),
            ({str(third)!r}, None), (open(os.environ["OTHER_MODEL"], "rb").read(), None),
        ):
            session = ort.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
            read = session.get_session_options()
            assert session._enable_fallback
            print(int(read.use_per_session_threads), read.intra_op_num_threads, read.log_severity_level)
        print(own.use_per_session_threads)
        """
        done = self.program(code, config, tmp_path, *others)
        assert done.stdout.splitlines() == ["0 0 -1", "0 0 -1", "0 0 3", "0 1 3", "0 0 -1", "0 0 -1", "True"], (
            done.stderr
        )
        assert done.stderr.count("has a global thread pool. All other sessions") == 1
        assert "creating the session with the tuned options failed" in done.stderr

    def test_io_binding_is_reported(self, tmp_path: Path) -> None:
        done = self.program("ort.InferenceSession(MODEL)", Config(io_binding=True), tmp_path, "--explain")
        assert "was tuned with IO binding, which a program must do itself" in done.stderr
        assert "io_binding (the program would have to call run_with_iobinding)" in done.stderr

    def test_a_provider_that_is_not_there(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 1}, providers=(("NowhereExecutionProvider", {}),))
        code = "print(ort.InferenceSession(MODEL).get_session_options().intra_op_num_threads)"
        done = self.program(code, config, tmp_path)
        assert done.stdout == "0\n"
        assert "has no NowhereExecutionProvider" in done.stderr

    def test_tuned_options_that_fail_are_left_out(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 3}, session_config={AFFINITY: "1"})
        code = "print(ort.InferenceSession(MODEL).get_session_options().intra_op_num_threads)"
        done = self.program(code, config, tmp_path)
        assert done.stdout == "0\n"
        assert "creating the session with the tuned options failed" in done.stderr

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

    def test_another_version_of_onnxruntime_is_reported(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, TUNED)
        record = msgspec.structs.replace(record, runtime=msgspec.structs.replace(record.runtime, onnxruntime="1.2.3"))
        path = write(record, tmp_path / "r.json")
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", "by_path", record=path)
        assert done.stderr.count("was tuned with onnxruntime 1.2.3") == 1
        assert outputs(done)[0]["intra"] == 1

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
            (found,) = outputs(run(sys.executable, PROGRAM, tmp_path / name / "model.onnx", "by_path", record=record))
            assert found["intra"] == intra


def test_threads_create_sessions_at_the_same_time(tuned: Path) -> None:
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
