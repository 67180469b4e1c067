"""Timing the calls of a function of a program, and the gate that they pass."""

from __future__ import annotations

import fcntl
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortune.apply.inside.call_timer import CALL, is_main
from ortune.apply.inside.gate import CALLS, TURNSTILE
from ortune.errors import ProgramError
from ortune.program.observation import ObservedProcess, read_processes
from tests.observing import run_observed, start_observed

PROGRAM = Path(__file__).parent / "programs" / "calls.py"

KINDS = {
    "threads": "work",
    "forks": "work",
    "generators": "items",
    "coroutines": "work_async",
    "async_generators": "items_async",
}
"""Ways to call, and the functions that are called."""


def read_calls(folder: Path) -> list[tuple[int, int]]:
    """Return the calls of all processes, each with its start and its end."""
    return sorted(call for path in folder.glob("calls-*.bin") for call in CALL.iter_unpack(path.read_bytes()))


def run_code(folder: Path, code: str, function: str) -> tuple[list[str], list[tuple[int, int]], ObservedProcess]:
    """Run code. Return the lines that it prints, the calls of a function, and the process."""
    script = folder / "app.py"
    script.write_text(textwrap.dedent(code))
    done = run_observed(
        folder, sys.executable, script, plan={"call": function}, environment={"PYTHONPATH": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    (process,) = read_processes(folder).processes
    return done.stdout.splitlines(), read_calls(folder), process


class TestFunctions:
    @pytest.mark.parametrize(
        ("body", "call"),
        [
            ("def work(n):\n    return n", "work(1)"),
            ("def work(n):\n    return work(n - 1) if n else 1", "work(3)"),
            ("def work(n):\n    for item in range(n): yield item\n    return 1", "list(work(1))[0] + 1"),
            ("async def work(n):\n    return n", "asyncio.run(work(1))"),
            (
                "async def work(n):\n    for item in range(n): yield item",
                "asyncio.run(collect())[0] + 1",
            ),
        ],
        ids=["function", "recursion", "generator", "coroutine", "async-generator"],
    )
    def test_each_outermost_call_is_timed(self, body: str, call: str, tmp_path: Path) -> None:
        code = f"import asyncio\n{body}\nasync def collect(): return [item async for item in work(1)]\n"
        code += f"print({call})\nprint({call})\n"
        lines, calls, process = run_code(tmp_path, code, "__main__:work")
        assert lines == ["1", "1"]
        assert len(calls) == 2
        assert all(start <= end for start, end in calls)
        assert process.function is not None
        assert (process.function.found, process.function.n_calls) == (True, 2)

    def test_the_first_statement_after_the_definition(self, tmp_path: Path) -> None:
        """No call of Python or C comes between the definition and the call."""
        _, calls, _ = run_code(tmp_path, "def work():\n    return 1\nwork()\n", "__main__:work")
        assert len(calls) == 1

    def test_a_generator_that_calls_itself(self, tmp_path: Path) -> None:
        code = """
        def walk(n):
            if n:
                yield n
                yield from walk(n - 1)
        for number in walk(4):
            print(number, sum(walk(1)))
        """
        lines, calls, _ = run_code(tmp_path, code, "__main__:walk")
        assert lines == ["4 1", "3 1", "2 1", "1 1"]
        assert len(calls) == 5  # the loop's, and four from its body

    def test_values_and_exceptions_reach_a_generator(self, tmp_path: Path) -> None:
        code = """
        def talk():
            got = yield 0
            try:
                got = yield got
            except KeyError:
                got = yield "caught"
            return got
        own = talk()
        print(next(own), own.send("a"), own.throw(KeyError()))
        try:
            own.send("end")
        except StopIteration as error:
            print(error.value)
        """
        lines, calls, _ = run_code(tmp_path, code, "__main__:talk")
        assert lines == ["0 a caught", "end"]
        assert len(calls) == 1

    def test_values_and_exceptions_reach_an_async_generator(self, tmp_path: Path) -> None:
        code = """
        import asyncio
        async def talk():
            got = yield 0
            try:
                got = yield got
            except KeyError:
                yield "caught"
        async def main():
            own = talk()
            print(await anext(own), await own.asend("a"), await own.athrow(KeyError()))
            await own.aclose()
        asyncio.run(main())
        """
        lines, calls, _ = run_code(tmp_path, code, "__main__:talk")
        assert lines == ["0 a caught"]
        assert len(calls) == 1

    @pytest.mark.parametrize("kind", ["", "@staticmethod", "@classmethod"])
    def test_methods(self, kind: str, tmp_path: Path) -> None:
        (tmp_path / "library.py").write_text(
            f"class Reader:\n    class Page:\n        {kind or '# plain'}\n        def read(*args): return len(args)\n"
        )
        code = "from library import Reader\nprint(Reader.Page().read(1))"
        lines, calls, _ = run_code(tmp_path, code, "library:Reader.Page.read")
        assert lines == ["1" if kind == "@staticmethod" else "2"]
        assert len(calls) == 1

    def test_a_function_of_a_module_that_is_imported_by_name(self, tmp_path: Path) -> None:
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").write_text("from package.inner import work\n")
        (tmp_path / "package" / "inner.py").write_text("def work():\n    '''Say it.'''\n    return 7\n")
        code = (
            "from package import work\nimport pickle\nprint(work(), work.__doc__, pickle.loads(pickle.dumps(work))())"
        )
        lines, calls, _ = run_code(tmp_path, code, "package.inner:work")
        assert lines == ["7 Say it. 7"]
        assert len(calls) == 2

    def test_exceptions_are_the_programs_own(self, tmp_path: Path) -> None:
        code = """
        def work():
            raise KeyError("x")
        try:
            work()
        except KeyError as error:
            print(error)
        """
        lines, calls, _ = run_code(tmp_path, code, "__main__:work")
        assert lines == ["'x'"]
        assert len(calls) == 1

    def test_a_function_that_is_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "library.py").write_text("")
        done = run_observed(
            tmp_path,
            sys.executable,
            "-c",
            "import library, onnxruntime",
            plan={"call": "library:work"},
            environment={"PYTHONPATH": str(tmp_path)},
        )
        assert "library has no function work" in done.stderr
        (process,) = read_processes(tmp_path).processes
        assert process.function is not None
        assert not process.function.found

    def test_processes_that_multiprocessing_spawns(self, tmp_path: Path) -> None:
        script = tmp_path / "app.py"
        script.write_text(
            "import multiprocessing\ndef work():\n    pass\n"
            "if __name__ == '__main__':\n"
            "    children = [multiprocessing.get_context('spawn').Process(target=work) for _ in range(2)]\n"
            "    [child.start() for child in children]\n    [child.join() for child in children]\n    work()\n"
        )
        done = run_observed(tmp_path, sys.executable, script, plan={"call": "__main__:work"})
        assert done.returncode == 0, done.stderr
        assert len(read_calls(tmp_path)) == 3
        assert len(list(tmp_path.glob("calls-*.bin"))) == 3

    def test_modules_that_are_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "appmodule.py").write_text("def work(): pass\nwork()\nwork()\n")
        run_observed(
            tmp_path,
            sys.executable,
            "-m",
            "appmodule",
            plan={"call": "appmodule:work"},
            environment={"PYTHONPATH": str(tmp_path)},
        )
        assert len(read_calls(tmp_path)) == 2
        for arguments, expected in {
            "python -X importtime -m app.tool": True,
            "python -mapp.tool": True,
            "python app.py -m app.tool": False,
            "python -c pass": False,
        }.items():
            monkeypatch.setattr(sys, "orig_argv", arguments.split())
            assert is_main("app.tool") is expected, arguments


@contextmanager
def close_gate(folder: Path) -> Iterator[None]:
    """Keep calls from beginning, and wait until none is in progress."""
    with (folder / TURNSTILE).open("rb+") as turnstile, (folder / CALLS).open("rb+") as calls:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(calls, fcntl.LOCK_EX)
        yield


def wait_for_calls(log: Path, n_calls: int) -> None:
    """Wait until so many calls have begun."""
    end_s = time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"+") < n_calls:
        assert time.monotonic() < end_s, "no further calls"
        time.sleep(0.005)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs flock")
class TestGate:
    @pytest.mark.parametrize("kind", KINDS)
    def test_no_call_is_in_progress_while_it_is_closed(self, kind: str, tmp_path: Path) -> None:
        for name in (TURNSTILE, CALLS):
            (tmp_path / name).touch()
        stop, log = tmp_path / "stop", tmp_path / "log"
        plan = {"call": f"__main__:{KINDS[kind]}", "gate": str(tmp_path)}
        process = start_observed(tmp_path, sys.executable, "-W", "ignore", PROGRAM, kind, stop, log, plan=plan)
        try:
            n_calls = 10
            for _ in range(8):
                wait_for_calls(log, n_calls)
                with close_gate(tmp_path):
                    seen = log.read_bytes()
                    assert seen.count(b"+") == seen.count(b"-")
                    time.sleep(0.03)
                    assert log.read_bytes() == seen
                n_calls = seen.count(b"+") + 10
        finally:
            stop.touch()
            _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, "")
        assert len(read_calls(tmp_path)) == log.read_bytes().count(b"+")

    def test_other_coroutines_run_while_it_is_closed(self, tmp_path: Path) -> None:
        for name in (TURNSTILE, CALLS):
            (tmp_path / name).touch()
        stop, log, ticks = tmp_path / "stop", tmp_path / "log", tmp_path / "ticks"
        plan = {"call": "__main__:work_async", "gate": str(tmp_path)}
        with close_gate(tmp_path):
            process = start_observed(tmp_path, sys.executable, PROGRAM, "coroutines", stop, log, plan=plan)
            end_s = time.monotonic() + 60
            while not ticks.exists() or ticks.stat().st_size < 10:
                assert time.monotonic() < end_s
                time.sleep(0.01)
            stop.touch()
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, "")

    def test_a_process_that_is_killed_in_a_call_does_not_hold_it(self, tmp_path: Path) -> None:
        for name in (TURNSTILE, CALLS):
            (tmp_path / name).touch()
        stop, log = tmp_path / "stop", tmp_path / "log"
        plan = {"call": "__main__:work", "gate": str(tmp_path)}
        process = start_observed(tmp_path, sys.executable, PROGRAM, "threads", stop, log, plan=plan)
        wait_for_calls(log, 20)
        process.kill()
        process.communicate(timeout=60)
        with close_gate(tmp_path):
            pass

    def test_where_there_are_no_locks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from ortune.program.gate import GateControl

        folder = tmp_path / "of-owner" / "run-1"
        folder.mkdir(parents=True)
        gate = GateControl(folder)
        with close_gate(folder):
            pass
        gate.remove()
        monkeypatch.setattr("ortune.program.gate.try_to_lock", lambda descriptor: None)
        with pytest.raises(ProgramError, match="has no file locks") as caught:
            GateControl(folder)
        assert str(tmp_path) in caught.value.message
        assert "TMPDIR" in caught.value.hint

    def test_a_program_continues_without_it(self, tmp_path: Path) -> None:
        script = tmp_path / "app.py"
        script.write_text("def work(): return 3\nprint(work())\n")
        plan = {"call": "__main__:work", "gate": str(tmp_path / "missing")}
        done = run_observed(tmp_path, sys.executable, script, plan=plan)
        assert (done.stdout, done.stderr) == ("3\n", "")
