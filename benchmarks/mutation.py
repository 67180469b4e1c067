"""Change the package in small ways, and see whether the tests notice: the share of changes that they do is the score.

    pytest -p tests.reach --reach reach.jsonl -p tests.costs --costs costs.json
    python -m benchmarks.mutation --reach reach.jsonl --costs costs.json --json FILE [--count 1000] [--jobs 2]

Each change is one operator, constant or condition of a function. It is made in a copy of the repository, where the
tests that reach the function run, the cheapest first, until one fails. For functions that are called only in child
processes, the tests that name the module run. Changes that FILE has are not tried again. Which ones are sampled depends
on --seed alone.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import json
import os
import queue
import random
import shutil
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.host import describe_commit, describe_host

ROOT = Path(__file__).parent.parent

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

MOST_TEST_S = 300.0
"""Time of the tests of one change. A change with which they take longer is noticed: it loops."""

MOST_TESTS = 150
"""Tests of one change, the cheapest ones that reach it."""

Change = dict[str, Any]


def list_changes(path: Path) -> Iterator[Change]:
    """Return the changes of a module: where, what is there, and what takes its place."""
    source = path.read_text()
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        # Decorators are part of a function's first line, as its code object has it.
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for statement in function.body:
            for node in ast.walk(statement):
                if isinstance(node, ast.expr) and (new := change_expression(node, source)):
                    yield {
                        "file": str(path.relative_to(ROOT)),
                        "function": first,
                        "at": [node.lineno, node.col_offset, node.end_lineno, node.end_col_offset],
                        "old": ast.get_source_segment(source, node),
                        "new": new,
                    }


def change_expression(node: ast.expr, source: str) -> str | None:
    """Return what takes the place of an expression, or None if it is left as it is."""

    def text(part: ast.AST) -> str:
        return f"({ast.get_source_segment(source, part)})"

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


def apply_change(change: Change, folder: Path) -> None:
    """Make a change in a copy of the repository."""
    path = folder / change["file"]
    lines = path.read_bytes().splitlines(keepends=True)
    first, begin, last, end = change["at"]
    lines[first - 1 : last] = [lines[first - 1][:begin] + change["new"].encode() + lines[last - 1][end:]]
    path.write_bytes(b"".join(lines))


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
    known = [test for test in tests if test in costs]
    return sorted(known, key=lambda test: costs[test]["wall_s"])[:MOST_TESTS]


def try_change(change: Change, tests: list[str], folder: Path) -> Change:
    """Run the tests with a change. Return the change with what came of it."""
    if not tests:
        return {**change, "result": "not reached"}
    path = folder / change["file"]
    before = path.read_bytes()
    apply_change(change, folder)
    python = str(folder / ".venv" / "bin" / "python")
    command = [python, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=MOST_TEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**change, "result": "noticed", "by": "the time limit"}
    finally:
        path.write_bytes(before)
    if done.returncode == 0:
        return {**change, "result": "not noticed", "n_tests": len(tests)}
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {**change, "result": "noticed", "by": failed[0] if failed else done.stdout[-200:]}


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


def main() -> None:
    """Try the changes that are missing, and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reach", type=Path, required=True, help="what the plugin tests.reach wrote")
    parser.add_argument("--costs", type=Path, required=True, help="what the plugin tests.costs wrote")
    parser.add_argument("--json", type=Path, required=True, help="file with the results, which are added to it")
    parser.add_argument("--count", type=int, default=1000, help="number of changes")
    parser.add_argument("--jobs", type=int, default=2, help="changes that are tried at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sample")
    arguments = parser.parse_args()
    reach, costs = read_reach(arguments.reach), json.loads(arguments.costs.read_text())["tests"]
    changes = [change for path in sorted((ROOT / "ortune").rglob("*.py")) for change in list_changes(path)]
    sample = random.Random(arguments.seed).sample(changes, min(arguments.count, len(changes)))
    known = json.loads(arguments.json.read_text())["changes"] if arguments.json.exists() else []
    done = {(each["file"], *each["at"], each["new"]) for each in known}
    missing = [each for each in sample if (each["file"], *each["at"], each["new"]) not in done]
    with tempfile.TemporaryDirectory() as name:
        folders: queue.Queue[Path] = queue.Queue()
        for number in range(arguments.jobs):
            folders.put(copy_repository(Path(name, str(number))))

        def run(change: Change) -> Change:
            folder = folders.get()
            try:
                return try_change(change, choose_tests(change, reach, costs), folder)
            finally:
                folders.put(folder)

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for result in pool.map(run, missing):
                known.append(result)
                content = {"host": describe_host(), "commit": describe_commit(), "changes": known}
                arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    counts = collections.Counter(each["result"] for each in known)
    print(describe_host())
    print(f"{describe_commit()}; {len(changes)} possible changes, {len(known)} tried")
    for name, count in counts.most_common():
        print(f"{name:12} {count:5}  {count / len(known):.1%}")


if __name__ == "__main__":
    main()
