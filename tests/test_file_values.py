"""A file in the working folder decides nothing that can harm: all options of all commands are checked."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from ortune import UsageError
from ortune.cli.defaults import TABLES, read_defaults
from ortune.file_values import REFUSED
from ortune.gates.file import read_gates
from ortune.options import DeclaredOption, options_of
from ortune.requests import COMMANDS
from tests.conftest import TINY_CNN, run_ortune

PLAIN = {int, float, bool, types.NoneType, Ellipsis}
"""Types of values that name nothing."""

PLACEHOLDERS = {
    "COMMAND": {"program"},
    "URL": {"host"},
    "FILE": {"file"},
    "FOLDER": {"file"},
    "PATH": {"file", "program"},
}
"""What options name, by the words of their placeholders."""


def list_options() -> Iterator[tuple[str, str, DeclaredOption, Any]]:
    """Yield each option of each command: the command, the name, the declaration, and the type of its values."""
    for command, requests in COMMANDS.items():
        for request in requests:
            hints = typing.get_type_hints(request)
            for name, declared in options_of(request).items():
                yield command, name, declared, hints[name]


OPTIONS = list(list_options())
IN_FILES = [
    pytest.param(command, declared, id=f"{command} {name}")
    for command, name, declared, _ in OPTIONS
    if command == "gate" or command.split()[0] in TABLES
]
"""Options of the commands whose options files may have."""


def holds_text(hint: Any) -> bool:
    """Return whether values of a type may hold texts that the user chose."""
    if typing.get_origin(hint) is Literal or hint in PLAIN:
        return False
    arguments = typing.get_args(hint)
    return any(map(holds_text, arguments)) if arguments else True


def test_each_option_says_what_its_texts_name() -> None:
    """If this fails, say in the declaration of the option what its value names; see `ortune.options.Option.names`."""
    assert not [
        f"{command}: {name}"
        for command, name, declared, hint in OPTIONS
        if "toml" in declared.option.interfaces and holds_text(hint) and declared.option.names is None
    ]


def test_what_options_name_is_what_their_placeholders_say() -> None:
    for command, name, declared, _ in OPTIONS:
        if "toml" not in declared.option.interfaces:
            continue
        for word in declared.option.metavar.strip("- ").split("|"):
            allowed = PLACEHOLDERS.get(word, {declared.option.names})
            assert declared.option.names in allowed, f"{command}: {name}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which has a link to a file outside of it."""
    found = tmp_path / "work"
    found.mkdir()
    (tmp_path / "outside.npz").write_text("1\n")
    (found / "link.npz").symlink_to(tmp_path / "outside.npz")
    (found / "loop.npz").symlink_to("loop.npz")
    monkeypatch.chdir(found)
    return found


def read(command: str, key: str, value: str, *, trust: bool = False) -> object:
    """Read a file with one option, as the command does."""
    if command == "gate":
        base = "" if key == "base" else "base = 'base.onnx'\n"
        Path("ortune.toml").write_text(f"[gate.a]\n{base}{key} = {value}\n")
        return read_gates(None, trust=trust)
    table = command.split()[0]
    Path("ortune.toml").write_text(f"[{table}]\n{key} = {value}\n")
    return read_defaults(table, COMMANDS[command][0])


@pytest.mark.parametrize(("command", "declared"), IN_FILES)
def test_no_option_of_a_file_leads_out_of_the_folder(command: str, declared: DeclaredOption) -> None:
    if "toml" not in declared.option.interfaces:
        with pytest.raises(UsageError, match=rf"line \d: {declared.key} (cannot be in a file|is not an option)"):
            read(command, declared.key, "'x'")
        return
    if declared.option.names in REFUSED:
        with pytest.raises(UsageError, match=rf"line \d: {declared.key} .*: this names a (host|program) to"):
            read(command, declared.key, "'x'")
    if declared.option.names == "file":
        for path in ("/dev/zero", "../outside.npz", "a/../../outside.npz", "link.npz", "loop.npz", "a.onnx@../b.json"):
            with pytest.raises(
                UsageError, match=rf"line \d: {declared.key} .*: this file is not in the working folder"
            ):
                read(command, declared.key, f"'{path}'")
        if declared.option.repeatable:
            with pytest.raises(UsageError, match="is not in the working folder"):
                read(command, declared.key, "['inside.npz', '../outside.npz']")


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("search", "inputs", "data/x.npz"),
        ("search --", "body", "a.json"),
        ("search --", "stdin", "./a/../a.txt"),
        ("plan", "lengths", "lognormal:29,8-256"),
        ("gate", "base", ".base/model.onnx@tuned.json"),
        ("gate", "head", "model.onnx@storage"),
    ],
)
def test_files_of_the_folder_are_allowed(command: str, key: str, value: str) -> None:
    read(command, key, f"'{value}'")


@pytest.mark.parametrize("name", ["x.npz", "input_0.pb", "set/input_0.pb", "set"])
def test_no_link_in_a_folder_of_inputs_leads_out(name: str, folder: Path) -> None:
    (folder / "data" / name).parent.mkdir(parents=True)
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "input_0.pb").write_bytes(b"")
    target = folder.parent / ("outside" if name == "set" else "outside.npz")
    (folder / "data" / name).symlink_to(target)
    with pytest.raises(UsageError, match=r"inputs data/.*: this file is not in the working folder"):
        read("search", "inputs", "'data'")


def test_an_absolute_path_of_the_folder_is_allowed(folder: Path) -> None:
    assert read("search", "inputs", f"'{folder / 'x.npz'}'") == {"inputs": str(folder / "x.npz")}


def test_a_trusted_gate_file_may_name_programs_and_other_files() -> None:
    for key, value in {"base": "../base.onnx", "beside": "sleep 1", "head-python": "/usr/bin/python3"}.items():
        with pytest.raises(UsageError) as caught:
            read("gate", key, f"'{value}'")
        assert "--trust" in caught.value.hint
        assert read("gate", key, f"'{value}'", trust=True)


@pytest.mark.parametrize(
    ("command", "settings", "why"),
    [
        ("search", '["optimized_model_filepath=/home/u/.bashrc"]', "it names or writes files"),
        ("space", '{"FooExecutionProvider.library" = "/tmp/evil.so"}', "it is not in the catalog"),
    ],
)
def test_settings_of_a_file_are_some_that_a_record_may_have(command: str, settings: str, why: str) -> None:
    with pytest.raises(UsageError, match=rf"line 2: fix .*{why}"):
        read(command, "fix", settings)


@pytest.mark.parametrize("storage", ["../empty.log", "mysql://127.0.0.1:1/x?local_infile=1", "postgresql://h/d"])
@pytest.mark.parametrize("name", ["ortune.toml", "pyproject.toml"])
def test_no_file_names_the_storage(storage: str, name: str, folder: Path) -> None:
    """It would get the password of the environment, and could be a file anywhere."""
    table = "tool.ortune.search" if name == "pyproject.toml" else "search"
    (folder / name).write_text(f'[{table}]\nstorage = "{storage}"\n')
    done = run_ortune("search", TINY_CNN, cwd=folder, environment={"PGPASSWORD": "geheim"})
    assert done.returncode == 2
    assert f"{name}, line 2: storage cannot be in a file" in done.stderr
    assert "command line" in done.stderr
    assert not (folder.parent / "empty.log").exists()


def test_a_gate_file_that_leads_out_ends_the_command(folder: Path) -> None:
    (folder / "ortune.toml").write_text('[gate.a]\nbase = "../a.onnx"\nhead = "b.onnx"\n')
    done = run_ortune("gate", "--all", cwd=folder)
    assert done.returncode == 2
    assert "ortune.toml, line 2: base ../a.onnx: this file is not in the working folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_is_too_long_is_read(length: int) -> None:
    """It names no file and no folder of this folder. The command says so when it looks for the file."""
    read("gate", "base", f"'{'a' * length}.onnx'")
