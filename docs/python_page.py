"""Writes python.md: the public names of the package, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import ortune
from ortune.workload import FIGURES

HEAD = """# Python

Generated from the docstrings by `python -m docs.generate`. All names are in the module `ortune`. `import ortune` takes
a few milliseconds: a name is imported on first use. Functions that measure take the options of the command of the same
name; [Options](options.md) lists the spelling of each on the command line and in `ortune.toml`.

Errors that ortune does not cause itself are subclasses of `OrtuneError`. Their message says what failed, with which
value, and what to do.
"""

GROUPS = {
    "Functions that measure": (
        "search",
        "search_program",
        "bench",
        "plan",
        "plan_host",
        "verify",
        "gate",
        "inspect_program",
    ),
    "Functions that apply records": ("install", "create_session", "session_options", "run_options"),
    "Functions that read files": ("read_record", "read_plan", "read_host_plan"),
}
"""Functions, in the order of the page. The types follow."""


def render() -> str:
    """Return the page."""
    functions = {name for names in GROUPS.values() for name in names}
    types = [name for name in ortune.__all__ if name not in functions and name != "__version__"]
    groups = {
        **GROUPS,
        "Types": [name for name in types if not is_error(name)],
        "Errors": [name for name in types if is_error(name)],
    }
    parts = [HEAD]
    for title, names in groups.items():
        parts.append(f"\n## {title}\n")
        parts += [describe(name) for name in names]
    return "".join(parts)


def is_error(name: str) -> bool:
    """Return whether a public name is an exception."""
    value = getattr(ortune, name)
    return isinstance(value, type) and issubclass(value, BaseException)


def describe(name: str) -> str:
    """Return the section of a public name."""
    value: Any = getattr(ortune, name)
    is_alias = not (inspect.isfunction(value) or isinstance(value, type))
    if is_alias:
        return f"\n### {name}\n\n{describe_alias(value)}\n"
    text = inspect.getdoc(value) or ""
    signature = "" if isinstance(value, type) else f"\n```python\n{write_signature(name, value)}\n```\n"
    base = f"\nA subclass of `{value.__mro__[1].__name__}`.\n" if is_error(name) and name != "OrtuneError" else ""
    return f"\n### {name}\n{signature}{base}\n{convert(text)}\n"


def describe_alias(value: Any) -> str:
    """Return the meaning of a name for a type that has no docstring: a choice of words, or several types."""
    if value is ortune.Objective:
        names = ", ".join(f"`{name}`" for name in FIGURES)
        return f"The name of a figure: one of the words {names}, or another percentile such as `p99.9`."
    words = getattr(value, "__args__", ())
    if all(isinstance(word, str) for word in words):
        return "One of the words " + ", ".join(f"`{word}`" for word in words) + "."
    return "One of the types " + ", ".join(f"`{word.__name__}`" for word in words) + "."


def write_signature(name: str, value: Any) -> str:
    """Return the parameters of a function without their types, which the stub of the package has."""
    parts = []
    keyword_only = False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        parts.append(f"{parameter.name}{default}")
    text = f"{name}({', '.join(parts)})"
    return text if len(text) <= 100 else f"{name}(\n" + textwrap.fill(", ".join(parts), 96, **INDENTED) + ",\n)"


INDENTED: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}


def convert(document: str) -> str:
    """Return a docstring in Google style as Markdown."""
    parts = []
    for block in re.split(r"\n\n(?=\S)", document):
        head, _, body = block.partition("\n")
        body = textwrap.dedent(body)
        if head in {"Args:", "Attributes:", "Raises:"}:
            title = {"Args:": "Parameters", "Attributes:": "Attributes", "Raises:": "Raises"}[head]
            items = re.findall(r"^(\w+): (.*(?:\n .*)*)", body, re.MULTILINE)
            rows = [f"| `{name}` | {escape(' '.join(text.split()))} |" for name, text in items]
            parts.append("\n".join([f"| {title} | |", "|---|---|", *rows]))
        elif head == "Example:":
            parts.append(f"```pycon\n{body.strip()}\n```")
        elif head == "Returns:":
            parts.append(f"Returns: {escape(' '.join(body.split()))}")
        else:
            parts.append(" ".join(block.split()))
    return "\n\n".join(parts)


def escape(text: str) -> str:
    """Return a text in which no character is Markdown's, except for code in backquotes."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece.replace("|", "\\|") if piece.startswith("`") else re.sub(r"([*_|])", r"\\\1", piece).replace("<", "&lt;")
        for piece in pieces
    )
