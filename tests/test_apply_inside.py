"""Code that runs inside other people's programs, and what prepares it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import Config, Load, RecordError, UsageError, read_record
from ortune.apply.command import make_parser, notes
from ortune.apply.exec import STARTUP, make_environment
from ortune.apply.inside import hook, providers, settings
from ortune.apply.inside.finder import OFF, PARTS, PLAN_VARIABLE
from ortune.apply.inside.options_log import OptionsLog
from ortune.apply.inside.settings import combine
from ortune.apply.plan import encode_plan, environment_of, find_foreign_settings, make_hook_plan, plan_process
from ortune.gates.sides import check_python
from ortune.knobs import DEFAULT, ThreadPool
from ortune.knobs.config import ALIASES, CUDA_BASED
from ortune.program_options import LoadOptions, ProgramRequest
from ortune.record.select import SelectedRecord
from ortune.worker.runtime import NOT_FOR_SEARCHES, find_provider_fault, read_installed_runtime
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import EXAMPLE, make_record, write

INSIDE = Path(hook.__file__).parent
MODULES = sorted(INSIDE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports, wherever the import statement is."""
    found: set[str] = set()
    # Programs may run on Python 3.10.
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module
            found.add(node.module)
    return found


class TestImports:
    @pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
    def test_only_the_standard_library_and_onnxruntime(self, path: Path) -> None:
        others = {
            name
            for name in imports_of(path)
            if name.split(".")[0] not in {*sys.stdlib_module_names, "onnxruntime", "sitecustomize"}
        }
        assert all(name.startswith("ortune.apply.inside.") for name in others), others

    def test_the_hook_loads_all_that_it_imports_in_order(self) -> None:
        """Parts are loaded by path, one after another: an import of a later one would import the package `ortune`."""
        parts = [INSIDE / f"{part}.py" for part in PARTS]
        assert {*parts, INSIDE / "finder.py"} == {path for path in INSIDE.glob("*.py") if path.name != "__init__.py"}
        for index, path in enumerate(parts):
            loaded = {f"ortune.apply.inside.{part}" for part in PARTS[:index]}
            assert {name for name in imports_of(path) if name.startswith("ortune")} <= loaded
        for path in (INSIDE / "finder.py", *INSIDE.glob("startup/*.py")):
            assert not any(name.startswith("ortune") for name in imports_of(path))

    def test_the_startup_folder_holds_no_other_module(self) -> None:
        assert [path.name for path in STARTUP.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]


class TestPieces:
    def test_combining_settings(self) -> None:
        theirs, ours = {"a": 1, "b": 1, "c": 1}, {"a": 2}
        assert combine(theirs, ours, ["a", "b"], keep=False) == {"a": 2, "c": 1}
        assert combine(theirs, ours, ["a", "b"], keep=True) == {"a": 1, "b": 1, "c": 1}

    def test_what_a_search_tried(self) -> None:
        assert read_record(EXAMPLE).tried.session_options

    def choice(self, **environment: str) -> SelectedRecord:
        record = make_record(TINY_CNN, Config(environment=environment))
        return SelectedRecord(record=record, source="r.json", fits=True, why="")

    def test_contradicting_environments(self) -> None:
        with pytest.raises(UsageError, match="OMP_NUM_THREADS=2, but another record needs OMP_NUM_THREADS=1"):
            environment_of([self.choice(OMP_NUM_THREADS="1"), self.choice(OMP_NUM_THREADS="2")])
        first, second = (
            SelectedRecord(record=make_record(TINY_CNN, config), source="r.json", fits=True, why="")
            for config in (Config(allocator="mimalloc"), Config(allocator="jemalloc"))
        )
        with pytest.raises(UsageError, match="needs allocator=jemalloc, but another record needs allocator=mimalloc"):
            environment_of([first, second])
        assert environment_of([self.choice(A="1"), self.choice(B="2")]) == {"A": "1", "B": "2"}

    def test_settings_that_another_record_needs(self) -> None:
        pool = ThreadPool(intra_op_num_threads=2, inter_op_num_threads=1)
        configs = {
            "variable": Config(environment={"A": "1"}),
            "both": Config(environment={"A": "1"}, allocator="mimalloc"),
            "pool": Config(global_thread_pool=pool),
        }
        variable, both, shared = (
            SelectedRecord(record=make_record(TINY_CNN, config), source=f"{name}.json", fits=True, why="")
            for name, config in configs.items()
        )
        assert find_foreign_settings([both]) == find_foreign_settings([variable, variable]) == []
        expected = ["variable.json was measured without allocator=mimalloc, which both.json needs"]
        assert find_foreign_settings([variable, both]) == expected
        assert find_foreign_settings([variable, shared]) == [
            "variable.json was measured without global_thread_pool=2,1, which pool.json needs",
            "pool.json was measured without A=1, which variable.json needs",
        ]
        unused = msgspec.structs.replace(both, fits=False)
        assert find_foreign_settings([variable, unused]) == []
        assert f"warning: {expected[0]}" in notes((variable, both), keep_explicit=False)

    def test_warnings_of_a_running_process(self, tmp_path: Path) -> None:
        paths = [
            write(make_record(model, Config(environment=variables)), tmp_path / f"{model.stem}.json")
            for model, variables in (
                (TINY_CNN, {"OMP_NUM_THREADS": "1"}),
                (TINY_ENCODER, {"OMP_WAIT_POLICY": "PASSIVE"}),
            )
        ]
        warned: list[str] = []
        plan_process(paths, ProgramRequest(), warned.append)
        assert f"{paths[0]} was measured without OMP_WAIT_POLICY=PASSIVE, which {paths[1]} needs" in warned

    def test_contradicting_global_pools(self) -> None:
        one, two = (
            SelectedRecord(
                record=make_record(TINY_CNN, Config(global_thread_pool=pool)), source=f"{n}.json", fits=True, why=""
            )
            for n, pool in enumerate(ThreadPool(intra_op_num_threads=n, inter_op_num_threads=1) for n in (1, 2))
        )
        with pytest.raises(UsageError, match=r"1\.json needs global_thread_pool=2,1, but 0\.json needs .*=1,1"):
            make_hook_plan([self.choice(), one, two], ProgramRequest(), "")
        assert make_hook_plan([one, self.choice(), one], ProgramRequest(), "")["rules"]

    def test_options_of_the_program_for_a_global_pool(self) -> None:
        class Options:
            use_per_session_threads = property(
                lambda self: self.__dict__.get("own", True), lambda self, value: self.__dict__.update(own=value)
            )
            threads = property(
                lambda self: self.__dict__.get("n", 0), lambda self, value: self.__dict__.update(n=value)
            )

            def __init__(self) -> None:
                self.entries: dict[str, str] = {}

            def add_session_config_entry(self, name: str, text: str) -> None:
                self.entries[name] = text

        early = Options()
        log = OptionsLog(Options)
        own = Options()
        own.threads = 2
        own.add_session_config_entry("a", "1")
        shared = settings.share_pool(own, log)
        assert shared is not own
        assert own.use_per_session_threads
        assert (shared.use_per_session_threads, shared.threads, shared.entries) == (False, 2, {"a": "1"})
        assert settings.share_pool(shared, log) is shared
        assert not settings.share_pool(None, log).use_per_session_threads
        # It was created before the log began, so that it cannot be copied.
        assert settings.share_pool(early, log) is early
        assert not early.use_per_session_threads

    def test_the_environment_of_a_program(self) -> None:
        made = make_environment("{}", {"X": "1"}, {"X": "0", "Y": "2", "PYTHONPATH": "/p"})
        assert (made["X"], made["Y"]) == ("1", "2")
        assert made["PYTHONPATH"] == f"{STARTUP}{os.pathsep}/p"
        assert make_environment("{}", {}, {})["PYTHONPATH"] == str(STARTUP)

    def test_a_plan_that_is_too_long(self) -> None:
        with pytest.raises(RecordError, match="too many records"):
            encode_plan({"rules": ["x" * 200_000]})

    def test_loads(self) -> None:
        assert LoadOptions().given_load is None
        assert LoadOptions(clients=4).given_load == Load(scenario="multi-client", clients=4)

    def test_the_options_of_both_parsers_are_the_same(self) -> None:
        """`--help` comes from typer, which does not run when there is a command."""
        help_text = run_ortune("apply", "--help", cwd=Path.cwd()).stdout
        for action in make_parser()._actions:
            for option in action.option_strings:
                assert option in help_text, option
        section = help_text.split("With a command")[1].split("╰")[0]
        known = {option for action in make_parser()._actions for option in action.option_strings}
        assert {word for word in section.split() if word.startswith("--") and word != "--"} <= known

    def test_workers_ignore_plans(self) -> None:
        from ortune.worker.child_process import APPLY_OFF

        assert APPLY_OFF == {PLAN_VARIABLE: OFF}

    def test_probes_ignore_plans(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Under `ortune apply`, an inner ortune examines onnxruntime as it is."""
        log = tmp_path / "log.jsonl"
        plan = {
            "rules": [],
            "any_model": False,
            "keep_explicit": False,
            "explain": False,
            "explain_json": str(log),
            "quiet": True,
            "hint": "",
        }
        for name, value in make_environment(json.dumps(plan), {}, os.environ).items():
            monkeypatch.setenv(name, value)
        code = f"import onnxruntime; onnxruntime.InferenceSession({str(TINY_CNN)!r})"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert len(log.read_text().splitlines()) == 1
        assert find_provider_fault(DEFAULT) == ""
        assert len(log.read_text().splitlines()) == 1

    def test_reading_the_runtime_ignores_plans(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environments = []
        run = subprocess.run

        def spy(*arguments: Any, **how: Any) -> Any:
            environments.append(how.get("env", os.environ).get(PLAN_VARIABLE))
            return run(*arguments, **how)

        monkeypatch.setattr(subprocess, "run", spy)
        assert read_installed_runtime()
        check_python(sys.executable, "python")
        assert environments == [OFF, OFF]

    def test_copies_in_the_hook_are_the_same(self) -> None:
        """The hook runs where ortune is not installed, and so has its own copies."""
        from ortune.model import hash_file
        from ortune.worker import session

        assert settings.ENUMS == session.ENUMS
        assert set(providers.CUDA_BASED) == CUDA_BASED
        assert set(providers.REMOTE) == NOT_FOR_SEARCHES
        assert providers.ALIASES == ALIASES
        assert hook.hash_file(TINY_CNN) == hash_file(TINY_CNN.parent, TINY_CNN.name).sha256
