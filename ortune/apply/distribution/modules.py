"""Finds the modules of ortune that applying a record needs, and copies them into a package of another name.

The build of ortune-apply runs this file. It imports only the standard library.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = "ortune"
TARGET_PACKAGE = "ortune_apply"

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]
"""Folder of the package ortune, unless this is a source distribution."""

OVERLAY = HERE / TARGET_PACKAGE
"""Folder with modules that replace those of ortune, or that ortune does not have."""

ROOTS = ("ortune.apply.api", "ortune.apply.command", "ortune.apply.install", "ortune.enable")
"""Modules that the package is for. All others are those that they import."""

FILES = {
    "ortune.apply.inside.finder": ("apply/inside/startup/sitecustomize.py",),
    "ortune.knobs.data_files": ("knobs/data/**/*.toml",),
    "ortune.knobs.legal": ("knobs/data/legal.json",),
}
"""Files that modules open or execute by path, as patterns relative to the package."""

LOADERS = {"ortune.apply.inside.finder": "ortune.apply.inside"}
"""Modules that load all modules of a package by path."""


class Import(NamedTuple):
    """One import: a module, or a name of a module or package.

    Attributes:
        module: The module.
        name: The name that is imported from it; empty for `import module`.
    """

    module: str
    name: str = ""


def is_sdist() -> bool:
    """Return whether this is the source distribution of ortune-apply, which contains the finished package."""
    return (HERE / "PKG-INFO").is_file()


def read_version() -> str:
    """Return the version: that of ortune."""
    path, pattern = (
        (HERE / "PKG-INFO", r"^Version: (.+)$") if is_sdist() else (PACKAGE / "__init__.py", r'^__version__ = "(.+)"$')
    )
    found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise ValueError(f"{path} has no version")
    return found[1]


def copy_package(target: Path) -> None:
    """Write the package.

    Args:
        target: Its folder, which is created.
    """
    closure = find_closure()
    files = {path: path.relative_to(PACKAGE) for path in list_files(closure)}
    for path in closure.values():
        files[path] = path.relative_to(OVERLAY if path.is_relative_to(OVERLAY) else PACKAGE)
    files[OVERLAY / "py.typed"] = Path("py.typed")
    for path, relative in files.items():
        copy = target / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8")
        copy.write_text(rename(text, closure) if path.suffix == ".py" else text, encoding="utf-8")


def rename(text: str, closure: Collection[str]) -> str:
    """Return the text of a module that imports from the new package. Comments and documentation stay the same.

    Args:
        text: The text of the module.
        closure: Names of all modules. A string that is one of these names is replaced, too.

    Raises:
        ValueError: The module imports ortune with a statement without `from`.
    """
    lines = text.encode().splitlines(keepends=True)  # positions are in bytes
    places = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == SOURCE for alias in node.names):
            raise ValueError(f"line {node.lineno}: write `from {SOURCE} import ...`")
        is_import = isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == SOURCE
        is_name = isinstance(node, ast.Constant) and node.value in closure and node.value != SOURCE
        if is_import or is_name:
            places.append((node.lineno - 1, node.col_offset))  # type: ignore[attr-defined]
    for line, column in places:
        before, after = lines[line][:column], lines[line][column:]
        lines[line] = before + after.replace(SOURCE.encode(), TARGET_PACKAGE.encode(), 1)
    return b"".join(lines).decode()


def list_files(closure: Collection[str]) -> list[Path]:
    """Return the files that modules open or execute by path."""
    patterns = [pattern for module, patterns in FILES.items() if module in closure for pattern in patterns]
    return sorted(path for pattern in patterns for path in PACKAGE.glob(pattern))


def find_closure() -> dict[str, Path]:
    """Return all modules that the package needs, with their packages.

    They are the modules of the overlay, and all modules that these or the roots import, directly or through others.
    Imports in functions count. Imports for type checkers do not. For a name that a package imports on first use, the
    module that defines it counts.

    Returns:
        Paths of the modules, by their names in ortune.

    Raises:
        ValueError: A module is missing.
    """
    overlay = list_modules(OVERLAY)
    modules = list_modules(PACKAGE) | overlay
    found: dict[str, Path] = {}
    pending = [*ROOTS, *overlay]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        if name not in modules:
            raise ValueError(f"there is no module {name}")
        found[name] = modules[name]
        parts = name.split(".")
        pending += [".".join(parts[:n]) for n in range(1, len(parts))]
        pending += [module for module in modules if name in LOADERS and module.startswith(f"{LOADERS[name]}.")]
        for imported in imports_of(modules[name]):
            if imported.module.split(".")[0] == SOURCE:
                pending += [imported.module, *_find_home(imported, modules)]
    return dict(sorted(found.items()))


def _find_home(imported: Import, modules: dict[str, Path]) -> list[str]:
    """Return the module that an imported name is, or that defines it if its package imports it on first use."""
    own = f"{imported.module}.{imported.name}"
    if own in modules:
        return [own]
    home = lazy_exports(modules[imported.module]).get(imported.name) if imported.module in modules else None
    return [home] if home else []


def list_modules(folder: Path) -> dict[str, Path]:
    """Return the modules in the folder of a package, by their names in ortune. Other folders are not packages."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if all(folder.joinpath(*parts[:n], "__init__.py").is_file() for n in range(1, len(parts))):
            modules[".".join((SOURCE, *parts)).removesuffix(".__init__")] = path
    return modules


@functools.cache
def imports_of(path: Path) -> list[Import]:
    """Return all imports of a module that are executed."""
    return list(_imports(ast.parse(path.read_text(encoding="utf-8")), type_checking=False))


@functools.cache
def lazy_exports(path: Path) -> dict[str, str]:
    """Return the names that a package imports for type checkers only, with their modules: those of PEP 562."""
    imports = _imports(ast.parse(path.read_text(encoding="utf-8")), type_checking=True)
    return {imported.name: imported.module for imported in imports}


def third_party(closure: dict[str, Path], standard: frozenset[str]) -> dict[str, set[str]]:
    """Return the top-level packages outside the standard library that modules import, with these modules."""
    found: dict[str, set[str]] = {}
    for name, path in closure.items():
        for imported in imports_of(path):
            top = imported.module.split(".")[0]
            if top != SOURCE and top not in standard:
                found.setdefault(top, set()).add(name)
    return found


def _imports(tree: ast.AST, *, type_checking: bool) -> Iterator[Import]:
    """Yield imports: those for type checkers, or all others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            if type_checking:
                yield from _statements(node.body)
            else:
                for other in node.orelse:
                    yield from _imports(ast.Module(body=[other], type_ignores=[]), type_checking=False)
        elif not type_checking:
            yield from _statements([node])
            yield from _imports(node, type_checking=False)


def _statements(nodes: list[ast.stmt] | list[ast.AST]) -> Iterator[Import]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("relative imports are not supported")
            yield from (Import(str(node.module), alias.name) for alias in node.names)
