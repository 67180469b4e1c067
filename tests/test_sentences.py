"""Every sentence that ortune prints about a result is in a table, with the condition under which it is printed.

The table is tests/data/sentences.toml. A sentence that is new, changed or gone fails here, so that whoever writes one
states when it is true, and what it rests on. `pytest tests/test_sentences.py --golden` brings the table up to date: new
sentences get `TODO`, which fails, too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

TABLE = ROOT / "tests" / "data" / "sentences.toml"

MODULES = (
    "apply/verify",
    "measure/comparison",
    "console/bench",
    "console/explain",
    "console/few_calls",
    "console/fleet",
    "console/front",
    "console/gate",
    "console/host_plan",
    "console/hosts",
    "console/plan",
    "console/plan_lengths",
    "console/program",
    "console/progress",
    "console/sentence",
    "console/verdict",
    "console/verify",
    "console/warnings",
    "fleet/compare",
    "gates/acceptance",
    "gates/reporters/markdown",
    "gates/reporters/messages",
    "gates/run",
    "gates/sequential_test",
    "planning/choose",
    "planning/colocation/choose",
    "planning/colocation/run",
    "planning/run",
    "program/verify",
    "report/bench",
    "report/history",
    "report/host_map",
    "report/record",
    "report/shared",
    "report/trials",
    "tuning/agreement",
    "tuning/conclude",
    "tuning/fitting_pool",
    "tuning/front",
    "tuning/plan",
    "tuning/screening",
    "tuning/job",
    "tuning/verdict",
    "workload/goal",
    "workload/figures",
)
"""Modules that say something about a result."""

FEWEST_WORDS = 3
"""Words of a text that says something. Shorter ones are names, headings and units."""

TODO = "TODO"

Sentences = dict[str, dict[str, tuple[str, str]]]
"""By the function that prints it: each sentence, with its condition and the figures that it rests on."""


def find_names(node: ast.AST) -> str:
    """Return what an expression is about: the names in it, without those of functions that are called."""
    called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    names: dict[str, None] = {}

    def visit(one: ast.AST) -> None:
        if isinstance(one, ast.Attribute | ast.Name) and id(one) not in called:
            names[ast.unparse(one)] = None
            return
        for child in ast.iter_child_nodes(one):
            visit(child)

    visit(node)
    return ", ".join(names)


def render(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a text with a placeholder for each value in it, which names the value; empty for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            parts.append(f"{{{find_names(part.value)}}}")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value))
    return "".join(parts)


def count_words(template: str) -> int:
    return sum(any(map(str.isalpha, word)) for word in re.sub(r"\{[^{}]*\}", "", template).split())


def is_error(node: ast.AST) -> bool:
    """Return whether a node raises an error or makes one: messages of errors are not about results."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise)
    return isinstance(node.func, ast.Name) and node.func.id.endswith("Error")


def find_sentences(node: ast.AST, where: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences in a node, each with the function that it is in."""
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if is_docstring or is_error(node):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}"
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Constant | ast.JoinedStr):
        template = render(node)
        if count_words(template) >= FEWEST_WORDS:
            yield where, template
        # The words of the sentence itself are no sentences of their own.
        parts = [child for child in parts if isinstance(child, ast.FormattedValue)]
    for part in parts:
        yield from find_sentences(part, where)


def read_source() -> dict[str, set[str]]:
    """Return the sentences in the source, by the function that prints them."""
    found: dict[str, set[str]] = {}
    for module in MODULES:
        tree = ast.parse((ROOT / "ortune" / f"{module}.py").read_text())
        for where, template in find_sentences(tree, module.replace("/", ".")):
            found.setdefault(where, set()).add(template)
    return found


def read_table() -> Sentences:
    table = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
    return {where: {text: (row[0], row[1]) for text, row in rows.items()} for where, rows in table.items()}


def quote(text: str) -> str:
    """Return a text as a string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def write_table(source: dict[str, set[str]], table: Sentences) -> None:
    lines = [
        "# Each sentence that ortune prints about a result: when it is printed, and what it rests on.",
        "# tests/test_sentences.py compares it with the source.",
    ]
    for where in sorted(source):
        lines += ["", f"[{quote(where)}]"]
        for text in sorted(source[where]):
            condition, figures = table.get(where, {}).get(text, (TODO, TODO))
            lines.append(f"{quote(text)} = [{quote(condition)}, {quote(figures)}]")
    TABLE.write_text("\n".join(lines) + "\n")


def test_each_sentence_about_a_result_has_a_condition(pytestconfig: pytest.Config) -> None:
    source = read_source()
    if pytestconfig.getoption("golden"):
        write_table(source, read_table())
    table = read_table()
    known = {where: set(rows) for where, rows in table.items()}
    places = sorted(source.keys() | known.keys())
    new = [(where, text) for where in places for text in sorted(source.get(where, set()) - known.get(where, set()))]
    gone = [(where, text) for where in places for text in sorted(known.get(where, set()) - source.get(where, set()))]
    assert not new, "state when these sentences are true, in tests/data/sentences.toml"
    assert not gone, "these sentences are not in the source any more: remove them from tests/data/sentences.toml"
    unstated = [(where, text) for where, rows in table.items() for text, row in rows.items() if TODO in row]
    assert not unstated, "state when these sentences are true, and what they rest on"
    assert all(condition.strip() for rows in table.values() for condition, _ in rows.values())


def test_what_a_sentence_shows_is_part_of_it() -> None:
    """Another value in a sentence needs another look at its condition."""
    tree = ast.parse('def f(a):\n    """Doc string of f."""\n    return f"it gains {fmt(a.high - 1):.1%} at most"')
    assert list(find_sentences(tree, "m")) == [("m.f", "it gains {a.high} at most")]
    raising = ast.parse('def f():\n    raise UsageError("there is no such file", "Look again.")\n    x = "one two"')
    assert list(find_sentences(raising, "m")) == []
