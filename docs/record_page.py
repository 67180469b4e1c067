"""The generated parts of record.md: an example, and tables of all fields from the types and their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import inspect as types

from ortune.record.layout import to_plain
from ortune.record.schema import Bundle, Record
from ortune.workload import Objective

EXAMPLE = Path(__file__).parent / "transcript" / "tuned.json"


def render(page: str) -> str:
    """Return a page with its generated parts."""
    page = replace_part(page, "example", make_example())
    return replace_part(page, "fields", f"\n{make_tables()}")


def make_example() -> str:
    """Return the record of the default search of the bundled model, and its size."""
    text = EXAMPLE.read_text()
    size = f"This record has {len(text.splitlines())} lines and {len(text.encode()):,} bytes:"
    return f"\n{size}\n\n```json\n{text}```\n\n"


def replace_part(page: str, name: str, text: str) -> str:
    """Return a page with another text between the lines `<!-- name -->` and `<!-- end of name -->`."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, rest = page.split(start)
    return f"{before}{start}{text}{end}{rest.split(end)[1]}"


def make_tables() -> str:
    """Return a section with a table for each type, in the order of the document."""
    return "\n".join(_make_section(kind) for kind in (*find_types(Record), Bundle))


def find_types(root: type) -> list[type]:
    """Return a struct and all structs in its fields, each once, outer ones first."""
    found: dict[type, None] = {}

    def visit(kind: type) -> None:
        if kind in found:
            return
        found[kind] = None
        for field in types.type_info(kind).fields:  # type: ignore[attr-defined]
            for inner in _structs_in(field.type):
                visit(inner)

    visit(root)
    return list(found)


def describe_fields(kind: type) -> dict[str, str]:
    """Return the meaning of each field, from the section Attributes of a docstring."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        section = (inspect.getdoc(base) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(meaning.split())
    return found


def _make_section(kind: type) -> str:
    meanings = describe_fields(kind)
    summary = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    lines = [f"### {kind.__name__}", "", summary, "", "| field | type | default | meaning |", "|---|---|---|---|"]
    for field in types.type_info(kind).fields:  # type: ignore[attr-defined]
        meaning = meanings.get(field.encode_name, "").replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {_name_type(field.type)} | {_show_default(field)} | {meaning} |")
    return "\n".join([*lines, ""])


def _show_default(field: types.Field) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:  # it may be absent
        return ""
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if default is None or default == "":
        return ""
    text = msgspec.json.encode(to_plain(default)).decode()
    return "" if text in ("[]", "{}") else f"`{text}`"


def _structs_in(kind: types.Type) -> Iterator[type]:
    for part in _parts_of(kind):
        if isinstance(part, types.StructType):
            yield part.cls
        else:
            yield from _structs_in(part)


def _parts_of(kind: types.Type) -> tuple[types.Type, ...]:
    match kind:
        case types.StructType():
            return (kind,)
        case types.UnionType():
            return kind.types
        case types.VarTupleType() | types.ListType():
            return (kind.item_type,)
        case types.TupleType():
            return kind.item_types
        case types.DictType():
            return (kind.value_type,)
    return ()


SIMPLE: dict[type, str] = {
    types.IntType: "integer",
    types.FloatType: "number",
    types.StrType: "string",
    types.BoolType: "boolean",
}


OBJECTIVE = cast("types.StrType", types.type_info(Objective))


def _name_type(kind: types.Type) -> str:
    match kind:
        case types.StructType():
            return f"[{kind.cls.__name__}](#{kind.cls.__name__.lower()})"
        case types.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case types.UnionType():
            return " or ".join(_name_type(member) for member in kind.types if not isinstance(member, types.NoneType))
        case types.VarTupleType():
            return f"array of {_name_type(kind.item_type)}"
        case types.TupleType():
            return f"array: {', '.join(map(_name_type, kind.item_types))}"
        case types.DictType():
            return f"object: {_name_type(kind.key_type)} to {_name_type(kind.value_type)}"
    is_figure = isinstance(kind, types.StrType) and kind.pattern == OBJECTIVE.pattern
    return "[figure](load.md#objectives)" if is_figure else SIMPLE[type(kind)]


def find_undocumented() -> list[str]:
    """Return all fields without a meaning, as `Type.field`."""
    return [
        f"{kind.__name__}.{name}"
        for kind in (*find_types(Record), Bundle)
        for name in _field_names(kind)
        if name not in describe_fields(kind)
    ]


def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(kind.__struct_encode_fields__)
