"""Reads the data files of the catalog: knobs, execution providers, and what a search tries with them.

A file in `data/` describes the knobs of one place, a file in `data/providers/` those of one execution provider. A
string `$name` stands for the entry `name` of the file's `[shared]` table. Unknown fields and names are errors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ortune.knobs.knob import Knob, Where

FOLDER = Path(__file__).with_name("data")

FILES = ("session_options", "session_config", "run_options", "run_config", "dynamic_options", "environment", "usage")
PROVIDER_FILES = (
    "cpu",
    "cuda",
    "tensorrt",
    "nv_tensorrt_rtx",
    "openvino",
    "webgpu",
    "migraphx",
    "rocm",
    "dml",
    "qnn",
    "coreml",
    "vitisai",
    "xnnpack",
)


CACHE_FOLDER = "{folder}"
"""Stands for the folder of compiled models in the options of a provider."""


class CapturedGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The option that captures the work of a call and replays it, and the value that turns it on."""

    option: str
    value: str


class Suggestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of a knob that a search tries by default.

    Knobs that may change outputs beyond rounding are tried only if the user allows approximations.

    Attributes:
        option: Name of the knob, which is in the same file.
        values: Reason to try each value, by value.
        if_operators: Tried only if the graph has one of these operators; empty for any graph.
        if_memory: Tried only if memory or session creation is an objective or has a limit.
        if_compared: Tried only if another provider is the baseline.
        alone: Whether it is tried one at a time; see `Dimension`. Knobs that belong to no provider always are.
        no_effect_when: Labels under which it has no effect, by id of the other knob.
    """

    option: str
    values: Mapping[str, str]
    if_operators: frozenset[str] = frozenset()
    if_memory: bool = False
    if_compared: bool = False
    alone: bool = False
    no_effect_when: Mapping[str, frozenset[str]] = {}


class ExecutionProvider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An execution provider.

    Attributes:
        name: ONNX Runtime's name.
        alias: Short name.
        package: Package to install for it.
        needs: What must be installed in addition to the package, in words.
        fallback: Providers that run the nodes that it does not support, in order; the CPU is last.
        builds: Whether session creation, or the first run, compiles the model, which may take minutes.
        io_binding: Whether a search tries IO binding.
        captured_graph: The option for captured graphs, or None.
        threads: Name of the option for the size of the provider's thread pool, or empty.
        streams: Name of the option for the number of parallel calls, or empty.
        cache: Options that keep the compiled model, by name; `{folder}` in a value stands for the folder.
        memory_unknown: Whether it has its own memory, whose use ortune cannot read. Then, only one of its sessions is
            live at a time.
        suggestions: What a search tries, in this order.
    """

    name: str
    alias: str
    package: str
    needs: str = ""
    fallback: tuple[str, ...] = ()
    builds: bool = False
    io_binding: bool = False
    captured_graph: CapturedGraph | None = None
    threads: str = ""
    streams: str = ""
    cache: Mapping[str, str] = {}
    memory_unknown: bool = False
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def keeps_builds(self) -> bool:
        """Whether compiled models are kept in a folder, so that later sessions need not compile them."""
        return self.builds and bool(self.cache)

    def cache_options(self, folder: str) -> dict[str, str]:
        """Return the options that keep the compiled model in a folder."""
        return {name: value.replace(CACHE_FOLDER, folder) for name, value in self.cache.items()}

    @property
    def folder_options(self) -> tuple[str, ...]:
        """The options that name the folder of compiled models."""
        return tuple(name for name, value in self.cache.items() if value == CACHE_FOLDER)


class _KnobFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A data file.

    Attributes:
        where: How its knobs are set.
        source: Where its knobs are documented, unless a knob says otherwise.
        shared: Values that several entries share, by name.
        knob: The knobs, without what all of the file have in common.
        provider: The execution provider to which the knobs belong, or None.
        suggestion: What a search tries by default.
    """

    where: Where
    source: str = ""
    shared: dict[str, str | list[str]] = {}
    knob: list[dict[str, Any]] = []
    provider: dict[str, Any] | None = None
    suggestion: list[dict[str, Any]] = []


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a data file."""

    knobs: tuple[Knob, ...]
    provider: ExecutionProvider | None
    suggestions: tuple[Suggestion, ...]


@functools.cache
def read_file(name: str) -> Data:
    """Return the content of a data file, given its path in the folder without the ending.

    Raises:
        msgspec.ValidationError: The file has an unknown field, a wrong type, or lacks a field.
        ValueError: A `$name` is not in the `[shared]` table.
    """
    return parse_file((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def parse_file(text: str) -> Data:
    """Return the content of a data file; raises as `read_file` does."""
    file = msgspec.toml.decode(text, type=_KnobFile)
    common: dict[str, Any] = {"where": file.where, "source": file.source}
    suggestions = [_resolve(suggestion, file.shared) for suggestion in file.suggestion]
    provider = None
    if file.provider is not None:
        provider = msgspec.convert({**file.provider, "suggestions": suggestions}, ExecutionProvider)
        common |= {"provider": provider.name, "alias": provider.alias}
    knobs = [_resolve({**common, **knob}, file.shared) for knob in file.knob]
    return Data(
        knobs=msgspec.convert(knobs, tuple[Knob, ...]),
        provider=provider,
        suggestions=msgspec.convert(suggestions, tuple[Suggestion, ...]),
    )


def _resolve(entry: dict[str, Any], shared: Mapping[str, str | list[str]]) -> dict[str, Any]:
    """Return an entry with each `$name` replaced.

    Raises:
        ValueError: There is no such name.
    """
    resolved = {}
    for field, value in entry.items():
        if isinstance(value, str) and value.startswith("$"):
            if value[1:] not in shared:
                raise ValueError(f"{entry.get('name', entry)}: {field}: {value} is not in [shared]")
            value = shared[value[1:]]
        resolved[field] = value
    return resolved
