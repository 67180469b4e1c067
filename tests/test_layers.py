"""The structure of the package: allowed imports, no import cycles, homes of libraries, light imports.

The allowed imports are the arrows of the first diagram in docs/architecture.md. There are no exemptions: imports in
functions and imports for type checkers count like all others.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ortune
from tests.conftest import ROOT, TINY_CNN
from tests.records import ONE_THREAD, make_local_record, write
from tests.simulated import SimulatedLive, simulate

PACKAGE = ROOT / "ortune"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

ENTRY_POINTS = {"__init__", "__main__"}
"""Modules at the top that may import all others."""

INSIDE = "ortune.apply.inside"
"""Package that may import only the standard library, onnxruntime and itself."""

STANDARD_LIBRARY = sys.stdlib_module_names | {"sitecustomize"}
"""Its modules, with the one that `site` imports if there is one."""

HEAVY = ("onnxruntime", "optuna", "onnx", "numpy", "scipy")


def read_diagrams() -> list[list[tuple[str, str]]]:
    """Return the arrows of each Mermaid diagram."""
    diagrams = re.findall(r"```mermaid\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    return [re.findall(r"(\w+) -->(?:\|[^|]*\|)? (\w+)", diagram) for diagram in diagrams]


def read_homes() -> dict[str, set[str]]:
    """Return the packages that may import each library, by the table in docs/architecture.md."""
    rows = re.findall(r"^\| (\w+) \| (`.*`) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    return {
        library: {f"ortune.{home.strip('/').replace('/', '.')}" for home in re.findall(r"`([\w/]+)`", homes)}
        for library, homes in rows
    }


def name_module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def list_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements of a module, those in other statements included. It is much faster than `ast.walk`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inside = getattr(node, name, ())
            if isinstance(inside, list):  # the body of a lambda is an expression
                pending += inside


def test_all_statements_are_listed() -> None:
    text = (ROOT / "tests" / "fork_server.py").read_text() + (
        "match x:\n    case 1:\n        import a\n"
        "try:\n    import b\nexcept ValueError:\n    import c\nelse:\n    import d\nfinally:\n    import e\n"
        "for item in x:\n    import f\nelse:\n    import g\nasync def f():\n    async with x:\n        import h\n"
    )
    tree = ast.parse(text)
    assert {id(statement) for statement in list_statements(tree) if isinstance(statement, ast.stmt)} == {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.stmt)
    }


@functools.cache
def parse(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(MODULES[module].read_text())


@functools.cache
def imports_of(module: str) -> frozenset[str]:
    """Return the modules that a module imports anywhere in its code; for names of a package, the package."""
    found: set[str] = set()
    for node in list_statements(parse(module)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in MODULES else str(node.module) for name in names)
    return frozenset(found)


def package_of(module: str) -> str:
    """Return the package or top-level module of ortune that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def reachable(start: str, arrows: list[tuple[str, str]]) -> set[str]:
    """Return all packages that arrows from `start` lead to."""
    found: set[str] = set()
    pending = [start]
    while pending:
        current = pending.pop()
        for source, target in arrows:
            if source == current and target not in found:
                found.add(target)
                pending.append(target)
    return found


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for target in graph[node]:
            if target not in number:
                visit(target)
            if target in stack:
                lowest[node] = min(lowest[node], lowest[target])
        if lowest[node] == number[node]:
            place = stack.index(node)
            group = stack[place:]
            del stack[place:]
            if len(group) > 1:
                cycles.append(sorted(group))

    for node in graph:
        if node not in number:
            visit(node)
    return cycles


def import_graph() -> dict[str, set[str]]:
    return {module: {name for name in imports_of(module) if name in MODULES} - {module} for module in MODULES}


def test_imports_follow_the_diagram() -> None:
    arrows, _ = read_diagrams()
    faults = []
    for module in MODULES:
        package = package_of(module)
        if package in ENTRY_POINTS:
            continue
        allowed = reachable(package, arrows) | {package}
        # The root holds the version.
        names = [name for name in imports_of(module) if name.startswith("ortune.")]
        faults += [f"{module} must not import {name}" for name in names if package_of(name) not in allowed]
    assert not faults


def test_the_diagram_has_every_package() -> None:
    arrows, _ = read_diagrams()
    drawn = {package for arrow in arrows for package in arrow}
    assert drawn == {package_of(module) for module in MODULES} - ENTRY_POINTS


def test_the_diagram_has_no_cycle_and_no_arrow_too_many() -> None:
    arrows, _ = read_diagrams()
    packages = {package for arrow in arrows for package in arrow}
    assert (
        find_cycles({package: {target for source, target in arrows if source == package} for package in packages}) == []
    )
    for arrow in arrows:
        others = [other for other in arrows if other != arrow]
        assert arrow[1] not in reachable(arrow[0], others), f"{arrow} follows from the other arrows"


def test_modules_do_not_import_each_other() -> None:
    assert find_cycles(import_graph()) == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d"}}
    assert find_cycles(graph) == [["a", "b", "c"]]


def importers(library: str) -> Iterator[str]:
    for module in MODULES:
        if any(name == library or name.startswith(f"{library}.") for name in imports_of(module)):
            yield module


@pytest.mark.parametrize(
    "library", ["onnxruntime", "onnx", "optuna", "rich", "jinja2", "vl_convert", "typer", "urllib3"]
)
def test_libraries_have_one_home(library: str) -> None:
    homes = read_homes()[library]
    found = list(importers(library))
    assert found
    for module in found:
        assert any(f"{module}.".startswith(f"{home}.") for home in homes), f"{module} must not import {library}"


def test_what_is_only_computed_does_not_reach_the_worker() -> None:
    """Only modules of `measure/` that do not import it are used."""
    pending = [module for module in MODULES if f"{module}.".startswith("ortune.queueing.")]
    found = set(pending)
    assert len(pending) > 1
    while pending:
        new = {name for name in imports_of(pending.pop()) if name in MODULES} - found
        found |= new
        pending += new
    assert not {name for name in found if f"{name}.".startswith("ortune.worker.")}


def test_code_inside_programs_imports_the_standard_library_only() -> None:
    inside = [module for module in MODULES if f"{module}.".startswith(f"{INSIDE}.")]
    assert len(inside) > 1
    for module in inside:
        for name in imports_of(module):
            allowed = name.split(".")[0] in {*STANDARD_LIBRARY, "onnxruntime"} or name.startswith(INSIDE)
            assert allowed, f"{module} must not import {name}"


def test_the_path_of_a_measurement_names_what_is_there() -> None:
    """Each type of the second diagram is in the table, and each is a class of its module."""
    _, arrows = read_diagrams()
    types = dict(re.findall(r"^\| `(\w+)` \|.*\| `([\w/.]+)` \|$", ARCHITECTURE.read_text(), re.MULTILINE))
    assert {name for arrow in arrows for name in arrow} == set(types)
    for name, path in types.items():
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        assert isinstance(getattr(module, name), type)


@pytest.mark.parametrize("end", ["Outcome", "GateResult"])
def test_a_measurement_passes_at_most_five_types(end: str) -> None:
    _, arrows = read_diagrams()
    paths = [["Block"]]
    for path in paths:
        paths += [[*path, target] for source, target in arrows if source == path[-1]]
    (found,) = (path for path in paths if path[-1] == end)
    assert len(found) == 5


def test_the_stack_of_a_search_is_that_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the job to the executor; the first and the last row are a command and a worker process.

    The table has the stack of screening. In racing and confirmation, another step is in the place of `screen`.
    """
    text = ARCHITECTURE.read_text()
    table = re.findall(r"^\| `(\w+)` \| `(ortune/[\w/]+\.py)` \| ", text, re.MULTILINE)
    others = re.findall(r"while [^`]*`(\w+)`\s\(`(ortune/tuning/\w+\.py)`\)", text, re.IGNORECASE)
    assert len(table) == 8
    assert [name for name, _ in others] == ["race", "confirm"]
    stacks: set[tuple[tuple[str, str], ...]] = set()
    measure = SimulatedLive.measure

    def note_stack(live: SimulatedLive, plan: Any) -> Any:
        frames = traceback.extract_stack()[:-1]
        stacks.add(tuple((frame.name, frame.filename.removeprefix(f"{ROOT}/")) for frame in frames[-6:]))
        return measure(live, plan)

    monkeypatch.setattr(SimulatedLive, "measure", note_stack)
    with simulate():
        ortune.search(str(TINY_CNN), budget=20.0, output=tmp_path / "c.json")
    assert table[3][0] == "screen"
    for step in (table[3], *others):
        assert (*table[1:3], step, *table[4:-1]) in stacks
    for name, path in (table[0], table[-1]):
        assert f"def {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("statement", ["import ortune", "import ortune.cli", "import ortune.requests"])
def test_importing_is_light(statement: str) -> None:
    code = f"{statement}; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_light() -> None:
    code = (
        "import sys; from ortune.cli import app\n"
        "try: app(['search', '--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_a_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        for node in list_statements(parse(module)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(module)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


COMMANDS_WITHOUT_SEARCH: dict[str, tuple[str, ...]] = {
    "space": ("space", "MODEL"),
    "suggest": ("suggest", "MODEL"),
    "bench": ("bench", "MODEL", "--budget", "1s"),
    "plan": ("plan", "MODEL", "--rate", "10/s", "--budget", "1s"),
    "gate": ("gate", "MODEL@default", "MODEL@default", "--budget", "1s"),
    "apply": ("apply", "r.json", "MODEL"),
    "verify": ("apply", "r.json", "MODEL", "--verify", "--budget", "1s"),
}
"""What imports all that it needs, and then ends soon, some with an error: there is no time to measure."""


@pytest.mark.parametrize("name", COMMANDS_WITHOUT_SEARCH)
def test_only_searches_and_storages_import_optuna(name: str, tmp_path: Path) -> None:
    """Importing it takes 0.4 s."""
    write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
    arguments = [text.replace("MODEL", str(TINY_CNN)) for text in COMMANDS_WITHOUT_SEARCH[name]]
    code = (
        "import contextlib, sys; from ortune.cli import app; from ortune.errors import OrtuneError\n"
        f"with contextlib.suppress(SystemExit, OrtuneError): app({arguments})\n"
        "print('optuna' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False"), done.stderr


STAND_IN = "ortune.apply.distribution.ortune_apply.naming"
"""The module that takes the place of `ortune.naming` in the distribution ortune-apply, so it has the same names."""


def is_number_or_text(value: ast.expr) -> bool:
    """Return whether an expression is a number or a text, or is computed from one."""
    match value:
        case ast.Constant():
            return isinstance(value.value, int | float | str | bytes)
        case ast.UnaryOp():
            return is_number_or_text(value.operand)
        case ast.BinOp():
            return is_number_or_text(value.left) or is_number_or_text(value.right)
    return isinstance(value, ast.JoinedStr)


def list_assignments(module: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets and values of the assignments of a module, outside of its functions and classes."""
    for node in parse(module).body:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from zip(targets, values, strict=True)
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value


def list_constants(module: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield the public constants of a module that are numbers or texts, with their values."""
    for target, value in list_assignments(module):
        is_public = isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]*", target.id)
        if is_public and is_number_or_text(value):
            yield ast.unparse(target), value


def test_a_constant_has_a_name_of_its_own() -> None:
    """Equal constants are one constant, which other modules import.

    Code inside programs imports nothing else of ortune, so it may repeat a constant, with the same value.
    """
    homes: dict[str, dict[str, str]] = {}
    for module in MODULES.keys() - {STAND_IN}:
        for name, value in list_constants(module):
            homes.setdefault(name, {})[module] = ast.dump(value)
    found = set()
    for name, values in homes.items():
        is_inside = {f"{module}.".startswith(f"{INSIDE}.") for module in values}
        is_copy = len(values) == len(is_inside) == 2 and len(set(values.values())) == 1
        if len(values) > 1 and not is_copy:
            found.add(name)
    assert found == set()


def name_lines(found: Callable[[ast.AST], bool]) -> list[str]:
    """Return the places in the package, as module and line, of the nodes for which `found` is true."""
    return [
        f"{module}:{getattr(node, 'lineno', 0)}"
        for module in MODULES
        for node in ast.walk(parse(module))
        if found(node)
    ]


def test_lists_are_not_packed_by_stars() -> None:
    """The formatter puts a long list one item a line, where a diff shows what changed."""
    assert not name_lines(
        lambda node: isinstance(node, ast.Starred) and isinstance(node.value, ast.List | ast.Set | ast.Tuple)
    )


def test_conditional_expressions_are_not_nested() -> None:
    """Two of them in one expression are read twice. Write if statements, a dictionary or a function."""

    def is_nested(node: ast.AST) -> bool:
        if not isinstance(node, ast.IfExp):
            return False
        return any(isinstance(inside, ast.IfExp) for inside in ast.walk(node) if inside is not node)

    assert name_lines(is_nested) == []


def test_variables_say_what_they_hold() -> None:
    """`each` says only that there are several."""

    def is_unnamed(node: ast.AST) -> bool:
        return (isinstance(node, ast.Name) and node.id == "each") or (isinstance(node, ast.arg) and node.arg == "each")

    folders = ("ortune", "tests", "benchmarks", "examples", "models", "docs")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert not [path.name for path in paths if any(map(is_unnamed, ast.walk(ast.parse(path.read_text()))))]


MOST_DEEP_IMPORTS = 2650
"""Names that files of tests import from modules of the package, in all. Tests go through what users see, so this only
falls: lower it when you move tests to the public interface, the command line or `tests/simulated`."""


def test_tests_import_ever_less_from_inside_the_package() -> None:
    n_deep = 0
    for path in (ROOT / "tests").rglob("*.py"):
        if path.parent.name == "simulated":
            continue
        for node in list_statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ortune."):
                n_deep += len(node.names)
            elif isinstance(node, ast.Import):
                n_deep += sum(alias.name.startswith("ortune.") for alias in node.names)
    assert MOST_DEEP_IMPORTS - 30 < n_deep <= MOST_DEEP_IMPORTS


def test_what_a_change_runs_besides_exists() -> None:
    """The table of noxfile.py, from parts of `nox -s full` to the files that they test."""
    noxfile = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {node.name for node in noxfile.body if isinstance(node, ast.FunctionDef)}
    table = next(
        node.value for node in noxfile.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS"
    )
    for name, paths in ast.literal_eval(table).items():
        assert name in sessions
        assert [path for path in paths if not (ROOT / path).exists()] == []
