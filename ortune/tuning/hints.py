"""Hints from earlier searches on this host: a small local file of the best configs by model and load.

Hints only affect which candidates are screened early, and what `ortune suggest` suggests, as not proven. Every claim
rests on new measurements. Set `ORTUNE_HISTORY` to the path of another file, or to `off`. A device or a pipe, such as
`/dev/null`, has the same effect as `off`.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ortune.errors import UsageError
from ortune.host import HostClass
from ortune.knobs import Config
from ortune.model import Traits
from ortune.record.files import write_atomically
from ortune.sanitize import encode_json, printable
from ortune.state_folder import find_state_folder
from ortune.workload import Feed, Goal

VARIABLE = "ORTUNE_HISTORY"

MAX_KEPT = 300
"""Number of searches to keep. Older ones are dropped."""

MOST_PAST_BYTES = 64 << 20
"""Bytes that are read from the end of the file: ortune keeps it below a few megabytes."""

FIRST_FIELD = b'{"host":'
"""How each line of a history begins."""

MAX_HINTS = 4
MAX_SIMILAR = 3
"""Maximum number of configs that a search starts with, and of earlier searches that they come from."""

MAX_INPUTS = 4
MAX_SHAPES = 3
"""Maximum number of inputs that are named, and of shapes of each."""

MIN_SIMILARITY = 0.6
"""Minimum similarity of two graphs, from 0 to 1, for a search of one to give hints for the other."""


class PastSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an earlier search.

    Attributes:
        host: Class of the host.
        traits: Traits of the model's graph.
        load: How calls arrived: the scenario, with the number of callers, and whether calls had several items.
        objectives: Its objectives.
        configs: Its best configs, the winner first.
        speedup: The interval of the winner's speedup over ONNX Runtime's default if that was proven, or None.
        has_background_load: Whether it had a background load.
        inputs: Shapes of the inputs, as text.
    """

    host: HostClass
    traits: Traits
    load: str
    objectives: tuple[str, ...]
    configs: tuple[Config, ...]
    speedup: tuple[float, float] | None = None
    has_background_load: bool = False
    inputs: str = ""


def history_path() -> Path | None:
    """Return the file, or None if it is turned off, or the user has no home folder to keep it in."""
    setting = os.environ.get(VARIABLE, "")
    if setting == "off":
        return None
    if setting:
        path = Path(setting)
        return path if path.is_file() or not path.exists() else None
    folder = find_state_folder()
    return folder / "history.jsonl" if folder else None


def describe_search(
    host: HostClass,
    traits: Traits,
    goal: Goal,
    configs: Sequence[Config],
    *,
    speedup: tuple[float, float] | None = None,
    has_background_load: bool = False,
    inputs: str = "",
) -> PastSearch:
    """Return the parts of a search to keep."""
    return PastSearch(
        host=host,
        traits=traits,
        load=describe_load(goal),
        objectives=tuple(goal.objectives),
        configs=tuple(configs),
        speedup=speedup,
        has_background_load=has_background_load,
        inputs=inputs,
    )


def name_shapes(feed: Feed) -> str:
    """Return the shapes of the inputs as text, such as `ids 1x8 or 1x128, mask 1x8 or 1x128`, cut where it is long."""
    named = []
    for name, data in feed.describe().items():
        shapes = ["x".join(map(str, shape)) or "scalar" for shape in dict.fromkeys(data.shapes)]
        named.append(f"{printable(name)} {_join(shapes, ' or ', MAX_SHAPES, 'others')}")
    return _join(named, ", ", MAX_INPUTS, "...")


def _join(parts: Sequence[str], separator: str, most: int, rest: str) -> str:
    return separator.join(parts if len(parts) <= most else [*parts[:most], rest])


def describe_load(goal: Goal) -> str:
    """Return how calls arrive. Searches with and without batches are not compared: throughput differs in its unit."""
    return f"{goal.load}, in batches" if goal.batches else f"{goal.load}"


def remember(path: Path, search: PastSearch) -> None:
    """Add a search to the file. If the file cannot be written, or is not a history, do nothing."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_history(_read_end(path)):
            return
        # The leading newline protects this line from one that was cut off.
        line = b"\n" + encode_json(search) + b"\n"
        with path.open("ab") as file:  # a single write, so that concurrent searches do not mix their lines
            file.write(line)
        lines = [line for line in _read_end(path).splitlines(keepends=True) if line.strip()]
        if len(lines) > 2 * MAX_KEPT:
            with contextlib.suppress(UsageError):
                write_atomically(path, b"".join(lines[-MAX_KEPT:]))


def _is_history(data: bytes) -> bool:
    """Return whether the file is empty, or a line of it begins like a search, also one that was cut off."""
    lines = [line for line in data.splitlines() if line.strip()]
    return not lines or any(line.startswith(FIRST_FIELD) for line in lines)


def read_past_searches(path: Path) -> list[PastSearch]:
    """Return all searches, the oldest first. Lines that cannot be read are skipped."""
    searches = []
    with contextlib.suppress(OSError):
        for line in _read_end(path).splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # covers invalid UTF-8
                searches.append(msgspec.json.decode(line, type=PastSearch))
    return searches


def _read_end(path: Path) -> bytes:
    """Return the last bytes of the file, at most `MOST_PAST_BYTES`."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - MOST_PAST_BYTES, 0))
        return file.read(MOST_PAST_BYTES)


def recall(path: Path, host: HostClass, traits: Traits, goal: Goal) -> tuple[Config, ...]:
    """Return the best configs of similar models, on a host of this class, under this load.

    Args:
        path: The file.
        host: Class of this host.
        traits: Traits of this model's graph.
        goal: Load and objectives.
    """
    hints: dict[str, Config] = {}
    for search in find_similar_searches(path, host, traits, goal)[:MAX_SIMILAR]:
        for config in search.configs:
            if not config.is_default:
                hints.setdefault(config.key, config)
    return tuple(hints.values())[:MAX_HINTS]


def find_similar_searches(path: Path, host: HostClass, traits: Traits, goal: Goal) -> list[PastSearch]:
    """Return earlier searches for similar models, on a host of this class, under this load, the most similar first.

    Args:
        path: The file.
        host: Class of this host.
        traits: Traits of this model's graph.
        goal: Load and objectives.
    """
    fitting = [
        search
        for search in read_past_searches(path)
        if search.host.includes(host)
        and search.load == describe_load(goal)
        and search.objectives == tuple(goal.objectives)
        and measure_similarity(search.traits, traits) >= MIN_SIMILARITY
    ]
    # Among equally similar models, the newest search comes first.
    fitting.reverse()
    fitting.sort(key=lambda search: -round(measure_similarity(search.traits, traits), 2))
    return fitting


def measure_similarity(one: Traits, other: Traits) -> float:
    """Return how similar two graphs are, from 0 to 1: by their operators, and whether they branch and are quantized.

    Operator counts are compared as square roots, so that a very frequent operator does not dominate.
    """
    mix = _cosine(one.ops, other.ops)
    unlike = (one.quantized != other.quantized) + ((one.width > 1) != (other.width > 1))
    return mix * 0.7**unlike


def _cosine(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    # Counts come from a file, which may have negative ones.
    product = sum(math.sqrt(max(count, 0) * max(other.get(name, 0), 0)) for name, count in one.items())
    norms = math.sqrt(sum(max(count, 0) for count in one.values()) * sum(max(count, 0) for count in other.values()))
    return product / norms if norms else 0.0
