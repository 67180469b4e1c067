"""Change the package in small ways, and see whether the tests notice: the share of changes that they do is the score.

    python3.12 -m pytest -p tests.reach --reach reach.jsonl -p tests.costs --costs costs.json
    python -m benchmarks.mutation --reach reach.jsonl --costs costs.json --json FILE [--count 1000] [--jobs 2]

Each change is one operator, constant or condition of a function. The tests that reach the function run, the cheapest
first, until one fails. For functions that are called only in child processes, the tests that name the module run.
Which changes are sampled depends on --seed alone; `--again FILE` tries those of another result instead.

pytest collects all tests once, in a copy of the repository. Each change is made in a fork of this process, in the code
of the functions that are loaded, and in the file for the processes that the tests start. What a module computed when
it was imported stays as it was.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import gc
import json
import math
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from benchmarks.host import describe_run, write_header

ROOT = Path(__file__).parent.parent

TASKS = "ORTUNE_MUTATION_TASKS"
"""Environment variable with the path of the changes that pytest tries, with the tests of each."""

RESULTS = "ORTUNE_MUTATION_RESULTS"
"""Environment variable with the path of the results, one JSON object per line."""

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
}

MOST_TEST_S = 15.0
"""Time that the tests of one change usually take. The cheapest tests within it run."""

MOST_TESTS = 200
"""Tests of one change."""

PATIENCE_S = 20.0
"""CPU time by which the tests of a change may exceed twice the usual. If they need more, it is noticed: it loops."""

LONGEST_WAIT_S = 180.0
"""How long the tests of a change may wait."""

Change = dict[str, Any]


def list_changes(path: Path) -> Iterator[Change]:
    """Return the changes of a module: where, what is there, and what takes its place."""

    def visit(node: ast.AST, function: int | None) -> Iterator[Change]:
        if function is not None and isinstance(node, ast.expr) and (new := change_expression(node)):
            yield {
                "file": str(path.relative_to(ROOT)),
                "function": function,
                "at": [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset],
                "old": ast.unparse(node),
                "new": new,
            }
        if not isinstance(node, ast.FunctionDef):
            for child in ast.iter_child_nodes(node):
                yield from visit(child, function)
            return
        # Decorators are part of a function's first line, as its code object has it.
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for statement in node.body:
            yield from visit(statement, first)

    yield from visit(ast.parse(path.read_text()), None)


def change_expression(node: ast.expr) -> str | None:
    """Return what takes the place of an expression, or None if it is left as it is."""

    def text(part: ast.AST) -> str:
        return f"({ast.unparse(part)})"

    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            return f"({text(node.left)} {COMPARISONS[type(operator)]} {text(node.comparators[0])})"
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            return f"({text(node.left)} {OPERATORS[type(operator)]} {text(node.right)})"
        case ast.BoolOp(op=ast.And()):
            return f"({' or '.join(map(text, node.values))})"
        case ast.BoolOp(op=ast.Or()):
            return f"({' and '.join(map(text, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            return text(node.operand)
        case ast.Constant(value=bool(value)):
            return str(not value)
        case ast.Constant(value=int(value) | float(value)):
            return repr(value + 1)
        case ast.IfExp():
            return f"({text(node.orelse)} if {text(node.test)} else {text(node.body)})"
    return None


def change_source(change: Change, source: bytes) -> bytes:
    """Return the source of a module with a change. Columns of `at` count bytes, as those of `ast`."""
    lines = source.splitlines(keepends=True)
    first, begin, last, end = change["at"]
    lines[first - 1 : last] = [lines[first - 1][:begin] + change["new"].encode() + lines[last - 1][end:]]
    return b"".join(lines)


def read_reach(path: Path) -> dict[str, set[str]]:
    """Return the tests that reach each function."""
    reach: dict[str, set[str]] = collections.defaultdict(set)
    with path.open() as lines:
        for line in lines:
            entry = json.loads(line)
            for function in entry["functions"]:
                reach[function].add(entry["test"])
    return reach


def choose_tests(change: Change, reach: dict[str, set[str]], costs: dict[str, dict[str, float]]) -> list[str]:
    """Return the tests that may notice a change, the cheapest first."""
    tests = reach.get(f"{change['file']}:{change['function']}", set())
    if not tests:
        module = change["file"].removesuffix(".py").replace("/", ".")
        naming = {
            str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("test_*.py") if module in path.read_text()
        }
        tests = {test for test in costs if test.partition("::")[0] in naming}
    chosen: list[str] = []
    total_s = 0.0
    for test in sorted((test for test in tests if test in costs), key=lambda test: costs[test]["wall_s"]):
        total_s += costs[test]["wall_s"]
        if chosen and total_s > MOST_TEST_S:
            break
        chosen.append(test)
    return chosen[:MOST_TESTS]


def order_tests(names: list[str], items: dict[str, pytest.Item], costs: dict[str, float]) -> list[pytest.Item]:
    """Return tests, the cheapest first. Those of a file that cost alike are neighbors, as they share fixtures."""

    def rank(name: str) -> tuple[int, str, str]:
        return math.ceil(math.log10(costs[name] + 0.01)), name.partition("::")[0], name

    return [items[name] for name in sorted(names, key=rank) if name in items]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Try the changes instead of running all tests."""
    if TASKS not in os.environ:
        return None
    tasks = json.loads(Path(os.environ[TASKS]).read_text())
    items = {item.nodeid: item for item in session.items}
    reliable: set[str] = set()
    functions = find_functions()
    gc.freeze()  # or collections in forks would copy the memory of all modules
    with Path(os.environ[RESULTS]).open("a") as results:
        for change in tasks:
            costs = change.pop("costs")
            tests = order_tests([*costs], items, costs)
            if killer := items.get(change.pop("before", "")):
                tests = [killer, *(test for test in tests if test is not killer)]
            result = try_change(change, tests, sum(costs.values()), functions)
            while (name := result.get("by")) in items and not passes(items[name], reliable):
                # The test fails anyway: it says nothing about this change, nor about others.
                tests.remove(items.pop(name))
                result = try_change(change, tests, sum(costs.values()), functions)
            print(json.dumps(result), file=results, flush=True)
    return True


def passes(test: pytest.Item, reliable: set[str]) -> bool:
    """Return whether a test passes without a change. Those that do are remembered."""
    if test.nodeid in reliable:
        return True
    if run_in_fork(lambda: run_until_failure([test]), LONGEST_WAIT_S) != "null":
        return False
    reliable.add(test.nodeid)
    return True


def run_in_fork(work: Callable[[], str | None], usual_s: float) -> str | None:
    """Run tests in a fork of this process, in which they may change what they want.

    Args:
        work: Runs them, and returns the name of the first that fails.
        usual_s: CPU time that they usually take, in seconds.

    Returns:
        What it returns, as JSON; empty if the process died, and None if it waited for too long.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        most_s = math.ceil(2 * usual_s + PATIENCE_S)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
        try:
            failed = work()
        except BaseException as error:  # noqa: BLE001  (an end of pytest is a failure, too)
            failed = repr(error)
        os.write(writer, json.dumps(failed)[:4000].encode())
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], LONGEST_WAIT_S)
        return os.read(reader, 4096).decode() if ready else None
    finally:
        os.close(reader)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def find_functions() -> dict[str, list[FunctionType]]:
    """Return the loaded functions of the package, for each file."""
    gc.unfreeze()  # tests/conftest.py froze all, which hides it
    functions = collections.defaultdict(list)
    for candidate in gc.get_objects():
        if isinstance(candidate, FunctionType):
            functions[candidate.__code__.co_filename].append(candidate)
    return functions


def list_codes(code: CodeType) -> Iterator[CodeType]:
    """Return a code object and those in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_codes(constant)


def try_change(
    change: Change, tests: list[pytest.Item], usual_s: float, functions: dict[str, list[FunctionType]]
) -> Change:
    """Run tests with a change, in a fork. Return the change with what came of it."""
    if not tests:
        return {**change, "result": "not reached"}
    path = ROOT / change["file"]
    before = path.read_bytes()
    source = change_source(change, before)

    def work() -> str | None:
        change_code(path, source, functions[str(path)])
        return run_until_failure(tests)

    begin_s = time.monotonic()
    path.write_bytes(source)
    try:
        answer = run_in_fork(work, usual_s)
    finally:
        path.write_bytes(before)
    change = {**change, "s": round(time.monotonic() - begin_s, 2)}
    if answer is None:
        return {**change, "result": "noticed", "by": "the longest wait"}
    if not answer:
        return {**change, "result": "noticed", "by": "the end of the process"}
    if failed := json.loads(answer):
        return {**change, "result": "noticed", "by": failed}
    return {**change, "result": "not noticed", "n_tests": len(tests)}


def change_code(path: Path, source: bytes, functions: list[FunctionType]) -> None:
    """Give the loaded functions of a module the code of a changed source."""
    codes = {
        (code.co_qualname, code.co_firstlineno, code.co_freevars): code
        for code in list_codes(compile(source, str(path), "exec", dont_inherit=True))
    }
    for function in functions:
        old = function.__code__
        if new := codes.get((old.co_qualname, old.co_firstlineno, old.co_freevars)):
            function.__code__ = new


def run_until_failure(tests: list[pytest.Item]) -> str | None:
    """Run tests. Return the name of the first that fails, or None."""
    failed: list[str] = []

    class Listener:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    tests[0].config.pluginmanager.register(Listener())
    for test, following in zip(tests, [*tests[1:], None], strict=True):
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if failed:
            return failed[0]
    return None


def copy_repository(folder: Path) -> Path:
    """Copy what the tests need, with an environment that imports the copy and the packages of this one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    venv.create(folder / ".venv", symlinks=True)
    packages = next((folder / ".venv" / "lib").glob("python*/site-packages"))
    (packages / "copy.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n")
    return folder


def start_pytest(folder: Path, changes: list[Change], results: Path) -> subprocess.Popen[bytes]:
    """Start pytest in a copy of the repository, which tries changes."""
    tasks = folder / "changes.json"
    tasks.write_text(json.dumps(changes))
    python = str(folder / ".venv" / "bin" / "python")
    return subprocess.Popen(
        [python, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-p", "benchmarks.mutation"],
        cwd=folder,
        env={**os.environ, TASKS: str(tasks), RESULTS: str(results), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
    )


def sample_changes(arguments: argparse.Namespace) -> list[Change]:
    """Return the changes to try."""
    if arguments.again:
        keys = ("file", "function", "at", "old", "new")
        known = json.loads(arguments.again.read_text())["changes"]
        possible = {file: [*list_changes(ROOT / file)] for file in {change["file"] for change in known}}
        return [
            {**change, "before": tried.get("by", "")}
            for tried in known
            if (change := {key: tried[key] for key in keys}) in possible[change["file"]]
        ]
    changes = [change for path in sorted((ROOT / "ortune").rglob("*.py")) for change in list_changes(path)]
    print(f"{len(changes)} possible changes")
    return random.Random(arguments.seed).sample(changes, min(arguments.count, len(changes)))


def main() -> None:
    """Try the changes, and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reach", type=Path, required=True, help="what the plugin tests.reach wrote")
    parser.add_argument("--costs", type=Path, required=True, help="what the plugin tests.costs wrote")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    parser.add_argument("--again", type=Path, metavar="FILE", help="try the changes of this result")
    parser.add_argument("--count", type=int, default=1000, help="number of changes")
    parser.add_argument("--jobs", type=int, default=2, help="changes that are tried at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sample")
    arguments = parser.parse_args()
    reach, costs = read_reach(arguments.reach), json.loads(arguments.costs.read_text())["tests"]
    changes = sample_changes(arguments)
    for change in changes:
        change["costs"] = {test: costs[test]["wall_s"] for test in choose_tests(change, reach, costs)}
    with tempfile.TemporaryDirectory() as name:
        results = Path(name, "results.jsonl")
        started = []
        for number in range(arguments.jobs):
            folder = copy_repository(Path(name, str(number)))
            started.append(start_pytest(folder, changes[number :: arguments.jobs], results))
        with contextlib.suppress(KeyboardInterrupt):  # what was tried until then is written
            for process in started:
                process.wait()
        tried = [json.loads(line) for line in results.read_text().splitlines()]
    content = {**describe_run(), "changes": tried}
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    print(write_header())
    print(f"{len(tried)} changes")
    for result, count in collections.Counter(change["result"] for change in tried).most_common():
        print(f"{result:12} {count:5}  {count / len(tried):.1%}")


if __name__ == "__main__":
    main()
