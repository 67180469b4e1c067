"""Every option is declared once, and each interface offers it under its name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import ortune
from docs.generate import describe_interface, describe_options
from ortune import UsageError
from ortune.cli import app, choose_command
from ortune.errors import PLACEHOLDERS, spell_as_flag, spell_in_python, spell_in_toml
from ortune.gates.file import read_gates
from ortune.options import (
    DeclaredOption,
    accepted_options,
    make_request,
    parse_dims,
    parse_duration_s,
    parse_shapes,
)
from ortune.requests import COMMANDS, BenchRequest, GateRequest, SearchRequest, VerifyRequest
from tests.conftest import ROOT, run_ortune

PYTHON = {"search": SearchRequest, "bench": BenchRequest, "verify": VerifyRequest, "gate": GateRequest}
"""Requests of the public functions."""


def declared_of(command: str) -> dict[str, DeclaredOption]:
    return {name: declared for request in COMMANDS[command] for name, declared in accepted_options(request).items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_offers_what_is_declared(command: str) -> None:
    context = typer.Context(get_command(app))
    all_of_them = get_command(app).get_command(context, command).params  # type: ignore[attr-defined]
    hidden = {param.name for param in all_of_them if getattr(param, "hidden", False)}
    assert hidden == {name for request in COMMANDS[command] for name in request.refused}
    parameters = {
        param.name: set(param.opts + param.secondary_opts) for param in all_of_them if param.name not in hidden
    }
    expected = {}
    for name, declared in declared_of(command).items():
        flags = {
            *declared.option.flags,
            declared.flag,
            *([f"--no-{declared.key}"] if declared.option.negatable else []),
        }
        expected[name] = {name} if declared.option.positional else flags
    assert parameters == expected


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["frobnicate"]], ids=str)
def test_without_a_command_all_are_there(arguments: list[str]) -> None:
    assert choose_command(app, ["ortune", *arguments]) is app


@pytest.mark.parametrize("name", get_command(app).commands)  # type: ignore[attr-defined]
def test_only_the_command_that_runs_is_built(name: str) -> None:
    def describe(group: Any) -> dict[str, Any]:
        commands = getattr(group, "commands", {})
        own = {param.name: (param.opts, param.help) for param in group.params}
        return {"": own, **{command_name: describe(command) for command_name, command in commands.items()}}

    chosen: Any = get_command(choose_command(app, ["ortune", name, "--help"]))
    every: Any = get_command(app)
    assert list(chosen.commands) == [name]
    assert describe(chosen.commands[name]) == describe(every.commands[name])


@pytest.mark.parametrize("name", PYTHON)
def test_python_offers_what_is_declared(name: str) -> None:
    parameters = set(inspect.signature(getattr(ortune, name)).parameters) - {"progress"}
    offered = {
        declared.name for declared in accepted_options(PYTHON[name]).values() if "python" in declared.option.interfaces
    }
    assert parameters == offered
    document = inspect.getdoc(getattr(ortune, name)) or ""
    assert all(re.search(rf"^    {parameter}: ", document, re.MULTILINE) for parameter in offered)


def test_the_file_offers_what_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    for declared in accepted_options(GateRequest).values():
        if "toml" not in declared.option.interfaces:
            path.write_text(f"[gate.a]\nbase = 'b'\n{declared.key} = true\n")
            with pytest.raises(UsageError, match=f"{declared.key} cannot be in a file"):
                read_gates(str(path))
            continue
        # A value that no option takes is refused with the key, which is therefore known.
        path.write_text(f"[gate.a]\nbase = 'b'\n{'' if declared.key == 'base' else f'{declared.key} = [[1]]'}\n")
        if declared.key == "base":
            assert read_gates(str(path))[0].base == "b"
            continue
        with pytest.raises(UsageError) as caught:
            read_gates(str(path))
        assert caught.value.message.startswith(f"{path}, line 3: {declared.key} ")
        assert "is not an option" not in caught.value.message


def test_generated_files_are_up_to_date() -> None:
    """If this fails, run `python -m docs.generate`."""
    assert (ROOT / "docs/options.md").read_text() == describe_options()
    assert (ROOT / "ortune/__init__.pyi").read_text() == describe_interface()


def test_all_options_are_in_the_reference() -> None:
    text = (ROOT / "docs/options.md").read_text()
    for command in COMMANDS:
        section = text.split(f"\n## ortune {command}\n")[1].split("\n## ")[0]
        rows = [line for line in section.splitlines() if line.startswith("| `")]
        assert len(rows) == len(declared_of(command))


class TestValues:
    @pytest.mark.parametrize(
        ("value", "seconds"),
        [("90", 90), ("90s", 90), ("1.5m", 90), ("1m30s", 90), ("1h", 3600), ("250ms", 0.25), (60, 60), (2.5, 2.5)],
    )
    def test_durations(self, value: Any, seconds: float) -> None:
        assert parse_duration_s(value) == seconds

    @pytest.mark.parametrize("value", ["", "soon", "1 fortnight", "-5s", "0s", 0, -1, True, None, float("nan")])
    def test_what_is_not_a_duration(self, value: Any) -> None:
        with pytest.raises(UsageError):
            parse_duration_s(value)

    def test_dims_and_shapes_in_each_form(self) -> None:
        for value in ({"batch": [1, 8]}, {"batch": (1, 8)}, "batch=1,8", ["batch=1,8"]):
            assert parse_dims(value) == {"batch": (1, 8)}
        for value in ({"x": (1, 3)}, {"x": [1, 3]}, "x=1x3", ["x=1,3"]):
            assert parse_shapes(value) == {"x": (1, 3)}
        assert parse_shapes("x=") == {"x": ()}

    def test_an_input_or_a_dimension_has_one_value(self) -> None:
        with pytest.raises(UsageError, match="batch=8: batch is given twice"):
            parse_dims(["batch=1", "batch=8"])
        with pytest.raises(UsageError, match="x=2x3: x is given twice"):
            parse_shapes(["x=1x3", "x=2x3"])
        assert parse_dims(["batch=1", "width=8"]) == {"batch": (1,), "width": (8,)}

    def test_the_same_request_from_each_interface(self) -> None:
        typed: dict[str, Any] = {"model": "m", "clients": 2, "budget": 60, "dim": {"b": 4}, "limit": ["p99<20ms"]}
        texts: dict[str, Any] = {"model": "m", "clients": "2", "budget": "1m", "dim": ["b=4"], "limit": ["p99<20ms"]}
        assert make_request(SearchRequest, typed) == make_request(SearchRequest, texts, "cli")

    def test_knobs_are_values_in_python_and_texts_elsewhere(self) -> None:
        asked: dict[str, Any] = {"model": "m", "tune": {"intra_op_num_threads": [1, 2]}}
        typed = make_request(SearchRequest, {**asked, "fix": {"session.intra_op.allow_spinning": "0"}})
        texts = make_request(
            SearchRequest,
            {"model": "m", "tune": ["intra_op_num_threads=1,2"], "fix": ["session.intra_op.allow_spinning=0"]},
            "cli",
        )
        assert typed == texts
        assert typed.tune == {"intra_op_num_threads": (1, 2)}


def read_text(node: ast.expr) -> str:
    """Return the text of a string in code, with an X for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(map(read_text, node.values)) if isinstance(node, ast.JoinedStr) else "X"


def list_texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings in an expression, f-strings as a whole."""
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        yield read_text(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from list_texts(child)


def list_named_options() -> Iterator[tuple[str, str]]:
    """Yield each option that an error names in braces or as its own, with the place in the code."""
    for path in sorted((ROOT / "ortune").rglob("*.py")):
        code = path.read_text()
        for node in ast.walk(ast.parse(code)) if "Error(" in code else ():
            if not isinstance(node, ast.Call) or not getattr(node.func, "id", "").endswith("Error"):
                continue
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            for argument in [*node.args, *(named.value for named in node.keywords if named.arg in {"hint", "details"})]:
                for text in list_texts(argument):
                    yield from ((place, found[1]) for found in re.finditer(r"\{([a-z][a-z_]*)(?:=[^{}]*)?\}", text))
            for keyword in node.keywords:
                if keyword.arg == "option" and (name := read_text(keyword.value)) not in {"", "X"}:
                    yield place, name


def test_errors_name_options_that_exist() -> None:
    known = {name for command in COMMANDS for name in declared_of(command)} | PLACEHOLDERS
    named = list(list_named_options())
    assert len(named) > 100
    assert not [(place, name) for place, name in named if name not in known]


class TestFaults:
    """A fault names the option as the user wrote it."""

    def test_spellings(self) -> None:
        error = UsageError("-1: must be positive.", "Write {max_slowdown=3%}.", option="max_slowdown")
        assert error.render(spell_as_flag) == (
            "--max-slowdown -1: must be positive.",
            "Write --max-slowdown 3%.",
        )
        assert error.render(spell_in_toml, "ortune.toml, line 3") == (
            "ortune.toml, line 3: max-slowdown -1: must be positive.",
            'Write max-slowdown = "3%".',
        )
        assert error.render(spell_in_python)[1] == 'Write max_slowdown="3%".'

    def test_in_python(self) -> None:
        with pytest.raises(UsageError, match=r"^budget -1s: is not a duration"):
            ortune.search("model.onnx", budget="-1s")
        with pytest.raises(UsageError, match=r"^budgets is not an option.*\nDid you mean budget\?"):
            ortune.search("model.onnx", budgets=1)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match=r"^seed 1.5: is not a whole number"):
            ortune.search("model.onnx", seed=1.5)  # type: ignore[arg-type]

    def test_on_the_command_line(self, tmp_path: Path) -> None:
        done = run_ortune("search", "model.onnx", "--budget", "soon", cwd=tmp_path)
        assert done.returncode == 2
        assert "--budget soon: is not a duration" in done.stderr

    def test_in_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "ortune.toml"
        path.write_text('[gate]\nclients = "two"\n\n[gate.a]\nbase = "b"\n')
        done = run_ortune("gate", "--all", "--file", str(path), cwd=tmp_path)
        assert done.returncode == 2
        assert f"{path}, line 2: clients two: is not a whole number" in " ".join(done.stderr.split())


class TestPrecedence:
    """The command line takes precedence over the gate, the gate over what all gates share."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        path = tmp_path / "ortune.toml"
        path.write_text('[gate]\nseed = 5\nbusy = true\nclients = 2\n\n[gate.a]\nbase = "b"\nclients = 3\n')
        return str(path)

    def test_file(self, path: str) -> None:
        (gate,) = read_gates(path)
        assert (gate.name, gate.seed, gate.busy, gate.clients) == ("a", 5, True, 3)

    def test_a_seed_of_0_on_the_command_line_wins(self, path: str) -> None:
        (gate,) = read_gates(path, (), {"seed": "0", "clients": "1"})
        assert (gate.seed, gate.clients) == (0, 1)


def test_defaults_of_fields_are_valid_values() -> None:
    for requests in COMMANDS.values():
        for request in requests:
            for name, declared in accepted_options(request).items():
                default = getattr(request, name, None)
                if not declared.option.is_switch and isinstance(default, (int, float, str)):
                    assert declared.option.parse(default) == default


def test_a_value_of_an_option_in_a_message_may_contain_a_placeholder() -> None:
    error = UsageError("{port} needs a URL.", "Add {url=http://127.0.0.1:{port}/}, or {budget=20s}.")
    assert error.render(spell_as_flag) == (
        "{port} needs a URL.",
        "Add --url http://127.0.0.1:{port}/, or --budget 20s.",
    )
