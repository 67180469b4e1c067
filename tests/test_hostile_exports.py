"""Exports of hostile records: each text is parsed by its language, and has exactly the statements and values expected.

The expected result comes from a harmless config with the same settings, whose values are numbered marks. Both exports
are parsed to trees of plain values. With the hostile values in place of the marks, the trees must be equal.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ortune import Config, OrtuneError, RecordError, UsageError
from ortune.export import TARGETS, export, literals, render
from ortune.export.comments import make_comment
from ortune.export.target import Job
from ortune.host import HostClass
from ortune.knobs import ThreadPool
from ortune.sanitize import LOG_COMMAND
from tests.conftest import TINY_CNN, long_params
from tests.hostile import ALL_TEXTS, CONFIGS, EVERYTHING, FRAGMENTS, TEXTS, hostile_record
from tests.records import ELSEWHERE, make_record

pytestmark = pytest.mark.usefixtures("models_read_here")

TARGET_NAMES = [name for name, target in TARGETS.items() if not target.binary]

CASES_PER_TARGET = 8
"""Drawn for each target, besides three that have all fragments."""

MODEL = "folder/model.onnx"
"""The path in harmless exports."""

Tree = Any
"""What a parser returns, as lists, dictionaries, strings and numbers."""


# The harmless twin of a config.


class Marks:
    """Replaces texts by marks, and marks by texts."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def mark(self, value: Any) -> Any:
        """Return a mark for a text; other values, and words with a meaning, stay."""
        if not isinstance(value, str) or value.startswith("ORT_") or value in {"0", "1"}:
            return value
        if re.fullmatch(r"0|[1-9][0-9]{0,8}", value):
            return value
        mark = f"mark{len(self.texts)}"
        self.texts[mark] = value
        return mark

    def mark_all(self, entries: dict[str, Any]) -> dict[str, Any]:
        return {name: self.mark(value) for name, value in entries.items()}

    def restore(self, tree: Tree) -> Tree:
        """Return a tree with the texts in place of the marks."""
        if isinstance(tree, str):
            return self.texts.get(tree, tree)
        if isinstance(tree, dict):
            return {self.restore(key): self.restore(value) for key, value in tree.items()}
        return [self.restore(child) for child in tree] if isinstance(tree, (list, tuple)) else tree


def make_twin(config: Config) -> tuple[Config, Marks]:
    marks = Marks()
    twin = msgspec.structs.replace(
        config,
        **{
            name: marks.mark_all(getattr(config, name))
            for name in ("session_options", "session_config", "run_options", "run_config", "environment")
        },
        providers=tuple((name, marks.mark_all(own)) for name, own in config.providers),
        per_session=tuple(marks.mark_all(entries) for entries in config.per_session),
    )
    return twin, marks


# Parsers: each returns everything in a text except its comments.


def parse_python(text: str) -> Tree:
    # As bytes, so that a comment could change the encoding.
    return _plain_ast(ast.parse(text.encode()))


def _plain_ast(node: Any) -> Tree:
    if isinstance(node, ast.AST):
        return [type(node).__name__, *(_plain_ast(value) for _, value in ast.iter_fields(node))]
    return [_plain_ast(child) for child in node] if isinstance(node, list) else node


def parse_javascript(text: str) -> Tree:
    return _parse_code("javascript", text)


def parse_rust(text: str) -> Tree:
    return _parse_code("rust", text)


def parse_go(text: str) -> Tree:
    return _parse_code("go", text)


def parse_kotlin(text: str) -> Tree:
    imports = [line for line in text.split("\n") if line.startswith("import ")]
    body = "\n".join(line for line in text.split("\n") if not line.startswith("import "))
    return [imports, _parse_code("kotlin", f"fun f() {{\n{body}\n}}")]


def parse_swift(text: str) -> Tree:
    # Line by line, as the code is written: the parser joins strings of several lines where they contain all fragments.
    return [_parse_code("swift", f"{line}\n") for line in text.split("\n") if line and not line.startswith("//")]


def parse_csharp(text: str) -> Tree:
    return _parse_code("c_sharp", text)


def parse_cpp(text: str) -> Tree:
    for letter, character in {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}"}.items():
        text = text.replace(f"??{letter}", character)
    # A backslash continues a line, for g++ also with white space after it.
    text = re.sub(r"\\[ \t]*\n", "", text)
    includes = [line for line in text.splitlines() if line.startswith("#include")]
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#include"))
    return [includes, _parse_code("cpp", f"int main() {{\n{body}\n}}")]


def parse_java(text: str) -> Tree:
    # Java replaces escape sequences before anything else: a backslash after an even number of them, one or more u's.
    text = re.sub(r"(\\\\)|\\u+([0-9a-fA-F]{4})", lambda found: found[1] or chr(int(found[2], 16)), text)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    lines = text.splitlines(keepends=True) if "\r" in text else text.split("\n")
    imports = [line for line in lines if line.startswith("import ")]
    body = "\n".join(line for line in lines if not line.startswith("import "))
    return [imports, _parse_code("java", f"class A {{ void f() {{\n{body}\n}} }}")]


STRINGS = {"string_literal", "string", "interpreted_string_literal", "line_string_literal"}


@functools.cache
def _make_parser(language: str) -> Any:
    import importlib

    import tree_sitter

    module = importlib.import_module(f"tree_sitter_{language}")
    return tree_sitter.Parser(tree_sitter.Language(module.language()))


def _parse_code(language: str, code: str) -> Tree:
    tree = _make_parser(language).parse(code.encode())
    assert not tree.root_node.has_error, code
    return _plain_node(tree.root_node)


def _plain_node(node: Any) -> Tree:
    if node.type in STRINGS:
        return _decode(node.text.decode())
    children = [_plain_node(child) for child in node.children if "comment" not in child.type]
    return [node.type, *children] if children else [node.type, node.text.decode()]


def _decode(literal: str) -> str:
    """Return the value of a string literal. The sequences are those that at least one of the languages has."""
    assert literal[0] == literal[-1] == '"', literal
    data = bytearray()
    units = bytearray()

    def flush() -> None:
        data.extend(units.decode("utf-16-be").encode())
        units.clear()

    simple = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "?": "?", "$": "$"}
    pattern = r'\\u\{([0-9a-f]+)\}|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\([nrtbf"\\?$])|([^"\\])'
    end = 1
    for found in re.finditer(pattern, literal[1:-1], re.DOTALL):
        assert found.start() == end - 1, literal
        end = found.end() + 1
        braced, four, eight, letter, plain = found.groups()
        if four:
            units.extend(bytes.fromhex(four))
            continue
        flush()
        data.extend((simple[letter] if letter else plain or chr(int(braced or eight, 16))).encode())
    flush()
    assert end == len(literal) - 1, literal
    return data.decode()


def parse_yaml(text: str) -> Tree:
    return yaml.safe_load(text)


def parse_kubernetes(text: str) -> Tree:
    """Return the manifest, with the values of variables as Kubernetes expands them where no other variable exists."""
    found = yaml.safe_load(text)
    for variable in found.get("env", ()):
        assert set(variable) == {"name", "value"}
        parts = re.findall(r"\$\$|\$\([^)]*\)|[^$]|\$", variable["value"], re.DOTALL)
        assert not any(part.startswith("$(") for part in parts)
        variable["value"] = "".join("$" if part == "$$" else part for part in parts)
    return found


def parse_json(text: str) -> Tree:
    return json.loads(text)


def parse_xml(text: str) -> Tree:
    def plain(element: ElementTree.Element) -> Tree:
        return [element.tag, element.attrib, (element.text or "").strip(), [plain(child) for child in element]]

    # Comments before the root, too, must be comments.
    return plain(ElementTree.fromstring(text))


def parse_triton(text: str) -> Tree:
    from google.protobuf import json_format, text_format

    return json_format.MessageToDict(text_format.Parse(text, _make_triton_message()))


@functools.cache
def _make_triton_class() -> Any:
    """Return the part of Triton's ModelConfig that exports use."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package="t", syntax="proto2")
    fields: dict[str, list[tuple[str, str, bool]]] = {
        "Parameter": [("string_value", "string", False)],
        "Graph": [("level", "int32", False)],
        "Accelerator": [("name", "string", False), ("parameters", "map string", True)],
        "Accelerators": [
            ("gpu_execution_accelerator", "Accelerator", True),
            ("cpu_execution_accelerator", "Accelerator", True),
        ],
        "InstanceGroup": [("kind", "enum Kind", False), ("gpus", "int32", True)],
        "Optimization": [("graph", "Graph", False), ("execution_accelerators", "Accelerators", False)],
        "ModelConfig": [
            ("backend", "string", False),
            ("optimization", "Optimization", False),
            ("parameters", "map Parameter", True),
            ("instance_group", "InstanceGroup", True),
        ],
    }
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")):
        kinds.value.add(name=name, number=number)
    kind = descriptor_pb2.FieldDescriptorProto
    for message_name, members in fields.items():
        message = file.message_type.add(name=message_name)
        for number, (name, value, repeated) in enumerate(members, 1):
            label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
            field = message.field.add(name=name, number=number, label=label)
            if value.startswith("map "):
                entry = message.nested_type.add(name=f"{name.title()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=kind.LABEL_OPTIONAL, type=kind.TYPE_STRING)
                item = entry.field.add(name="value", number=2, label=kind.LABEL_OPTIONAL)
                _set_type(item, value.removeprefix("map "))
                field.type, field.type_name = kind.TYPE_MESSAGE, f".t.{message_name}.{entry.name}"
            else:
                _set_type(field, value)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))


def _set_type(field: Any, name: str) -> None:
    if name in {"string", "int32"}:
        field.type = getattr(field, f"TYPE_{name.upper()}")
    elif name.startswith("enum "):
        field.type, field.type_name = field.TYPE_ENUM, f".t.{name.removeprefix('enum ')}"
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".t.{name}"


def _make_triton_message() -> Any:
    return _make_triton_class()()


def parse_sherpa_onnx(text: str) -> Tree:
    """Return the settings: one for each line that is not a comment."""
    lines = [line for line in re.split(r"[\r\n]", text) if line and not line.startswith("#")]
    assert all("=" in line for line in lines)
    return [line.split("=", 1) for line in lines]


def parse_environment(text: str) -> Tree:
    """Let bash read it in an empty folder, and return the variables that it exports, and the Docker lines."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variables.sh"
        path.write_text(text)
        subprocess.run(["bash", "-n", str(path)], check=True, capture_output=True, timeout=10)
        done = subprocess.run(
            ["env", "-i", "PATH=/usr/bin:/bin", "bash", "-c", "source ./variables.sh; env -0"],
            cwd=folder,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
        )
        assert done.stderr == b""
        assert [file.name for file in Path(folder).iterdir()] == ["variables.sh"]
    pairs = dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)
    docker = [shlex.split(line[2:]) for line in text.splitlines() if line.startswith(("# ENV", "# docker"))]
    # The last comment is ortune's note.
    docker = [[part for part in line if not part.startswith("#")] for line in docker]
    return [{name: value for name, value in pairs.items() if name not in {"PATH", "PWD", "SHLVL", "_"}}, docker]


def parse_shell(text: str) -> Tree:
    """Return the words of each line that is not a comment. bash must accept all of it."""
    subprocess.run(["bash", "-n"], input=text.encode(), check=True, capture_output=True, timeout=10)
    return [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]


def parse_compose(text: str) -> Tree:
    """Return the file as compose reads it where no variable is set: it replaces $$ by $."""

    def expand(tree: Tree) -> Tree:
        if isinstance(tree, dict):
            return {key: expand(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [expand(child) for child in tree]
        if isinstance(tree, str):
            assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", tree), tree
            return tree.replace("$$", "$")
        return tree

    return expand(yaml.safe_load(text))


def parse_systemd(text: str) -> Tree:
    """Return the sections of a unit with their settings, and commands as lists of words."""
    sections: dict[str, list[Any]] = {}
    for line in text.split("\n"):
        if not line or line.startswith(("#", ";")):
            continue
        assert not line.endswith("\\"), line
        if found := re.fullmatch(r"\[([A-Z][a-z]+)\]", line):
            settings: list[Any] = []
            sections[found[1]] = settings
            continue
        name, _, value = line.partition("=")
        assert name.isalpha(), line
        settings.append([name, _split_command(value) if name == "ExecStart" else value])
    return sections


def _decode_escape(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else found[2]


def _split_command(line: str) -> list[str]:
    """Return the words of a command as systemd splits them: see systemd.syntax(7) and systemd.service(5)."""
    words = []
    for found in re.finditer(r'"((?:[^"\\]|\\.)*)"|([^\s"\\]+)', line):
        quoted, plain = found.groups()
        word = plain if quoted is None else re.sub(r"\\(?:x([0-9a-f]{2})|(.))", _decode_escape, quoted)
        assert not re.search(r"(?<!%)(%%)*%(?![%i])", word), line
        words.append(word.replace("%%", "%").replace("$$", "$"))
    return words


PARSERS: dict[str, Callable[[str], Tree]] = {
    "python": parse_python,
    "yobx": parse_python,
    "optimum": parse_python,
    "sentence-transformers": parse_python,
    "fastembed": parse_python,
    "cpp": parse_cpp,
    "csharp": parse_csharp,
    "aspose": parse_csharp,
    "java": parse_java,
    "kotlin": parse_kotlin,
    "swift": parse_swift,
    "javascript": parse_javascript,
    "onnxruntime-web": parse_javascript,
    "transformers-js": parse_javascript,
    "rust": parse_rust,
    "go": parse_go,
    "triton": parse_triton,
    "genai": parse_json,
    "sherpa-onnx": parse_sherpa_onnx,
    "rapidocr": parse_yaml,
    "vespa": parse_xml,
    "djl": parse_sherpa_onnx,
    "kubernetes": parse_kubernetes,
    "environment": parse_environment,
    "gunicorn": parse_python,
    "uvicorn": parse_shell,
    "ray-serve": parse_python,
    "bentoml": parse_python,
    "compose": parse_compose,
    "systemd": parse_systemd,
}


def test_all_targets_have_a_parser() -> None:
    assert set(PARSERS) == set(TARGET_NAMES)


@pytest.mark.parametrize("target", TARGET_NAMES)
@settings(max_examples=CASES_PER_TARGET, suppress_health_check=[HealthCheck.too_slow])
@given(config=CONFIGS, name=ALL_TEXTS, model=TEXTS)
@example(config=EVERYTHING, name=" ".join(FRAGMENTS), model="\n".join(FRAGMENTS))
@example(config=Config(session_options={"logid": "".join(FRAGMENTS)}), name="", model="\n".join(FRAGMENTS))
@example(config=EVERYTHING, name="C:\\users\\u000a", model="\\")
def test_values_stay_values(target: str, config: Config, name: str, model: str) -> None:
    check_values(target, config, name, model)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGET_NAMES)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(config=CONFIGS, name=ALL_TEXTS, model=TEXTS)
def test_many_values_stay_values(target: str, config: Config, name: str, model: str) -> None:
    check_values(target, config, name, model)


def check_values(target: str, config: Config, name: str, model: str) -> None:
    """A config whose values are hostile has the statements of its harmless twin, with the hostile values in them."""
    twin, marks = make_twin(config)
    expected = PARSERS[target](render(target, hostile_record(twin, "m.onnx"), MODEL, "r.json").text)
    text = render(target, hostile_record(config, name), model, "r.json").text
    check_characters(text)
    if target in {"optimum", "sentence-transformers"}:
        marks.texts |= {
            Path(MODEL).parent.as_posix(): Path(model).parent.as_posix(),
            Path(MODEL).name: Path(model).name,
        }
    else:
        marks.texts[MODEL] = model
    found = PARSERS[target](text)
    if target == "sherpa-onnx":
        # What has no place on a line is reported as not supported.
        expected = [
            [key, value]
            for key, value in marks.restore(expected)
            if value.isprintable() and value.strip() == value and not LOG_COMMAND.search(value)
        ]
        assert found == expected
    elif target == "rapidocr":
        # RapidOCR would replace variables: options with them are reported as not supported.
        expected = marks.restore(expected)
        part = expected["EngineConfig"]["onnxruntime"]
        for key in [key for key in part if key.endswith("_ep_cfg")]:
            part[key] = {option: value for option, value in part[key].items() if "${" not in str(value)}
        assert found == expected
    elif target == "environment":
        variables, docker = found
        assert variables == marks.restore(expected[0])
        assert docker == [
            [re.sub(r"(?<==)mark\d+$", lambda mark: marks.texts[mark[0]], part) for part in line]
            for line in expected[1]
        ]
    else:
        assert found == marks.restore(expected)


def check_characters(text: str) -> None:
    """Check that nothing in a text is more than a printable character of its line, also in the log of a CI service."""
    assert text.encode()
    assert not LOG_COMMAND.search(text)
    # Code in Go is indented by tabs.
    assert all(line.lstrip("\t").isprintable() for line in text.split("\n"))


# Names and enum members: an illegal one is never written.

HOSTILE_NAMES = ALL_TEXTS.filter(lambda text: re.fullmatch(r"[A-Za-z_][\w.]*", text, re.ASCII) is None)

Change = Callable[[str], Config]

PLACES: dict[str, Change] = {
    "attribute": lambda text: Config(session_options={text: 1}),
    "dunder": lambda text: Config(session_options={"__class__": text}),
    "run attribute": lambda text: Config(run_options={text: True}),
    "enum": lambda text: Config(session_options={"execution_mode": text}),
    "level": lambda text: Config(session_options={"graph_optimization_level": text}),
    "number": lambda text: Config(session_options={"intra_op_num_threads": text}),
    "switch": lambda text: Config(session_options={"enable_mem_pattern": text}),
    "entry": lambda text: Config(session_config={text: "1"}),
    "run entry": lambda text: Config(run_config={text: "1"}),
    "session entry": lambda text: Config(per_session=({text: "1"},)),
    "provider": lambda text: Config(providers=((f"{text} ", {}),)),
    "provider option": lambda text: Config(providers=(("CUDAExecutionProvider", {text: "1"}),)),
    "variable": lambda text: Config(environment={text.replace("=", "-").replace("\0", "-") or "-": "1"}),
    "variable value": lambda text: Config(environment={"A": text.replace("\0", "") + "\n"}),
}


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=8)
@given(text=HOSTILE_NAMES)
def test_illegal_names_and_members_are_refused(place: str, text: str) -> None:
    record = hostile_record(PLACES[place](text), "m.onnx")
    for target in TARGET_NAMES:
        with pytest.raises(RecordError) as caught:
            render(target, record, MODEL)
        check_characters(str(caught.value))


@pytest.mark.parametrize(
    "config",
    [
        Config(session_options={"intra_op_num_threads": 10**5000}),
        Config(session_options={"intra_op_num_threads": True}),
        Config(session_options={"enable_mem_pattern": 1}),
        Config(session_options={"logid": 3}),
        Config(session_options={"logid": "a\0b"}),
        Config(session_config={"session.x": "\ud800"}),
        Config(session_config={"session.__proto__": "1"}),
        Config(global_thread_pool=ThreadPool(intra_op_num_threads=-1, inter_op_num_threads=1)),
        Config(providers=(("CUDAExecutionProvider", {}), ("CUDAExecutionProvider", {}))),
    ],
)
def test_values_of_another_kind_are_refused(config: Config) -> None:
    for target in TARGET_NAMES:
        with pytest.raises(RecordError):
            render(target, hostile_record(config, "m.onnx"), MODEL)


@pytest.mark.parametrize(
    "change", [{"cpu_quota": float("nan")}, {"cpu_quota": float("inf")}, {"cpu_quota": -1.0}, {"n_usable": 10**5000}]
)
def test_numbers_of_the_host_are_checked(change: dict[str, Any]) -> None:
    record = msgspec.structs.replace(hostile_record(Config(), "m"), host=msgspec.structs.replace(ELSEWHERE, **change))
    for target in TARGET_NAMES:
        with pytest.raises(RecordError, match=next(iter(change))):
            render(target, record, MODEL)


def test_an_error_names_the_setting_and_the_value() -> None:
    record = make_record(TINY_CNN, Config(session_options={"execution_mode": "ORT_PARALLEL\nimport os"}))
    with pytest.raises(RecordError) as caught:
        render("python", record, MODEL)
    message, hint = caught.value.render()
    assert message.startswith("execution_mode=ORT_PARALLEL import os: this is not one of ORT_SEQUENTIAL, ORT_PARALLEL")
    assert "record" in hint


@pytest.mark.parametrize("device", ["0); System.exit(1", "¹", "٣", "-1", "01", "", "9999999999"])
def test_device_ids_are_numbers(device: str) -> None:
    config = Config(providers=(("CUDAExecutionProvider", {"device_id": device}),))
    for target in ("java", "kotlin", "javascript", "triton"):
        with pytest.raises(RecordError, match="device_id"):
            render(target, make_record(TINY_CNN, config), MODEL)
    part = yaml.safe_load(render("rapidocr", make_record(TINY_CNN, config), MODEL).text)
    assert part["EngineConfig"]["onnxruntime"]["cuda_ep_cfg"] == {"device_id": device}


@pytest.mark.parametrize("number", ["²", "٣", "1);x(", "007", "12345678901"])
def test_numbers_in_rust_are_numbers(number: str) -> None:
    config = Config(session_config={"session.dynamic_block_base": number, "session.intra_op.allow_spinning": number})
    text = render("rust", make_record(TINY_CNN, config), MODEL).text
    assert f'.with_config_entry("session.dynamic_block_base", "{number}")?' in text
    assert "with_dynamic_block_base" not in text and "with_intra_op_spinning" not in text


def test_javascript_objects_have_no_prototype_from_a_record() -> None:
    config = Config(session_config={"session.a": "1", "session.a.b": "2"})
    with pytest.raises(RecordError, match=r"session\.a=1: onnxruntime-node cannot have this entry together"):
        render("javascript", make_record(TINY_CNN, config), MODEL)


def test_genai_has_no_key_of_its_own_from_a_record(tmp_path: Path) -> None:
    """A library to load is a key next to configuration entries."""
    config = Config(session_config={"custom_ops_library": "/tmp/evil.so", "session.x": "1"})
    path = tmp_path / "genai_config.json"
    done = export("genai", make_record(TINY_CNN, config), MODEL, "r.json", path)
    options = json.loads(path.read_text())["model"]["decoder"]["session_options"]
    assert options == {"intra_op_num_threads": 0, "session.x": "1", "provider_options": []}
    assert any(line.startswith("custom_ops_library=/tmp/evil.so (") for line in done.unsupported)


@pytest.mark.parametrize("path", ["a\0b.onnx", "a\udc80.onnx"])
def test_paths_that_are_not_text(path: str) -> None:
    record = make_record(TINY_CNN, Config())
    for target in TARGET_NAMES:
        with pytest.raises(UsageError, match="this path contains"):
            render(target, record, path)


def test_the_record_in_a_dockerfile(tmp_path: Path) -> None:
    record = make_record(TINY_CNN, Config())
    text = render("environment", record, MODEL, "my $(record).json").text
    assert "# ENV ORTUNE_CONFIG='my $(record).json'\n" in text
    with pytest.raises(UsageError, match="not printable"):
        render("environment", record, MODEL, "a\nRUN x.json")


def test_a_comment_does_not_set_the_encoding_of_python() -> None:
    record = hostile_record(Config(), "coding: utf-7 +AAo-import os+AAo-#")
    text = render("python", record, MODEL).text
    names = [node for node in ast.walk(ast.parse(text.encode())) if isinstance(node, ast.Import)]
    assert [name.names[0].name for name in names] == ["onnxruntime"]


def test_the_number_of_cpus_is_at_least_one() -> None:
    host: HostClass = msgspec.structs.replace(ELSEWHERE, n_usable=0)
    record = msgspec.structs.replace(hostile_record(Config(), "m"), host=host)
    assert yaml.safe_load(render("kubernetes", record, MODEL).text)


def test_unchecked_records_do_not_reach_a_target() -> None:
    with pytest.raises(OrtuneError):
        Job(hostile_record(Config(session_options={"a b": 1}), "m"), MODEL, "r.json")


# Real compilers: literals have the value of the text, and comments do not end.

LITERAL_TEXTS = [
    *FRAGMENTS,
    "".join(map(chr, range(1, 0x180))),
    *(f"{a}{b}" for a in ("\\", "?", '"', "\x01", "\x85") for b in ("u0022", "0", "n", "??/", "\U000e0041", "\\")),
]


def _run(commands: list[list[str]], folder: Path) -> bytes:
    """Compile and run a program, and return what it prints. Skip the test if the compiler is not installed."""
    if shutil.which(commands[0][0]) is None:
        pytest.skip(f"{commands[0][0]} is not installed")
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")[-3000:]
    return done.stdout


def _check(output: bytes) -> None:
    assert output.decode().split("\0")[:-1] == [*LITERAL_TEXTS, str(len(LITERAL_TEXTS))]


def _write_lines(language: literals.Language, count: str) -> list[str]:
    """Return a statement for each text, each with a comment, and with a statement that counts in the next line."""
    return [f"put({language.quote(text)}); {make_comment('//', text)}\n{count}" for text in LITERAL_TEXTS]


@pytest.mark.parametrize("standard", ["c++11", *long_params("gnu++17")])
def test_cpp_reads_literals_and_comments(standard: str, tmp_path: Path) -> None:
    lines = _write_lines(literals.CPP, "n++;")
    code = "\n".join(
        [
            "#include <string>\n#include <cstdio>",
            "void put(const std::string& text) { fwrite(text.c_str(), 1, text.size() + 1, stdout); }",
            "int main() { int n = 0;",
            *lines,
            "put(std::to_string(n)); }",
        ]
    )
    (tmp_path / "a.cpp").write_text(code)
    _check(_run([["g++", f"-std={standard}", "-w", "a.cpp", "-o", "a.out"], ["./a.out"]], tmp_path))


def test_java_reads_literals_and_comments(tmp_path: Path) -> None:
    lines = _write_lines(literals.JAVA, "n++;")
    code = "\n".join(
        [
            "class A {",
            "static void put(String text) {",
            'byte[] data = (text + "\\0").getBytes(java.nio.charset.StandardCharsets.UTF_8);',
            "System.out.write(data, 0, data.length); }",
            "public static void main(String[] a) { int n = 0;",
            *lines,
            "put(Integer.toString(n)); System.out.flush(); } }",
        ]
    )
    (tmp_path / "A.java").write_text(code)
    _check(
        _run(
            [
                ["javac", "-encoding", "UTF-8", "-J-XX:TieredStopAtLevel=1", "A.java"],
                ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "A"],
            ],
            tmp_path,
        )
    )


def test_javascript_reads_literals_and_comments(tmp_path: Path) -> None:
    lines = _write_lines(literals.JAVASCRIPT, "n++;")
    code = "\n".join(
        [
            '"use strict"; let n = 0, all = "";',
            'function put(text) { all += text + "\\0"; }',
            *lines,
            "put(String(n)); process.stdout.write(all);",
        ]
    )
    (tmp_path / "a.js").write_text(code)
    _check(_run([["node", "a.js"]], tmp_path))


def test_rust_reads_literals_and_comments(tmp_path: Path) -> None:
    lines = _write_lines(literals.RUST, "n += 1;")
    code = "\n".join(
        [
            'fn put(text: &str) { print!("{}\\0", text); }',
            "fn main() { let mut n = 0;",
            *lines,
            "put(&n.to_string()); }",
        ]
    )
    (tmp_path / "a.rs").write_text(code)
    _check(_run([["rustc", "-o", "a.out", "a.rs"], ["./a.out"]], tmp_path))


def test_shells_read_words() -> None:
    """Null characters and line breaks are checked before."""
    words = [text for text in (*LITERAL_TEXTS, "a##[b] ##vso[c]", "'##[", "###[error]'##[x") if text]
    line = literals.SHELL.join(words)
    assert not LOG_COMMAND.search(line)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True, timeout=10, stdin=subprocess.DEVNULL
    )
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_value_that_is_a_command_of_a_log_is_reported(tmp_path: Path) -> None:
    """The file of sherpa-onnx has no escape sequences."""
    record = make_record(TINY_CNN, Config(session_config={"session.x": "##[error]y", "session.z": "# [1]"}))
    done = render("sherpa-onnx", record, MODEL)
    assert "SessionConfig.session.z=# [1]" in done.text
    assert not LOG_COMMAND.search(done.text)
    assert any(line.startswith("session.x=") for line in done.unsupported)


def test_python_yaml_and_json_read_literals() -> None:
    for text in LITERAL_TEXTS:
        assert ast.literal_eval(literals.PYTHON.quote(text)) == text
        assert yaml.safe_load(literals.YAML.quote(text)) == text
        assert json.loads(literals.format_json(text)) == text
        for literal in (literals.PYTHON.quote(text), literals.YAML.quote(text), literals.format_json(text)):
            check_characters(literal)


@given(text=st.text())
def test_comments_are_one_printable_line(text: str) -> None:
    for start in ("//", "#", "<!--"):
        comment = make_comment(start, text)
        assert comment.isprintable() and comment.startswith(start)
