"""Converts documents of older schemas to the newest.

Each step changes only the fields that it knows. The strict conversion that follows rejects whatever does not belong
in a record, and reports its JSON path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from ortune.compare.comparison import Stage
from ortune.host.allocators import LIBRARIES
from ortune.knobs.config import Config
from ortune.numbers import Count
from ortune.record.schema import SCHEMA
from ortune.record.trials import Trial, summarize_trials
from ortune.worker import Failure
from ortune.workload.workload import BackgroundProgram

STAGES: dict[Any, Stage] = {"screen": "screening", "race": "racing", "duel": "confirmation"}
"""Names of the stages before schema 4."""


NEW_NAMES_OF_NOISE = {
    "blocks": "n_blocks",
    "contended": "n_contended",
    "repeated": "n_repeated",
    "slowed": "n_throttled",
}


class OldTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial as schemas 1 to 3 have it, in the record itself."""

    number: Count
    config: Config
    stage: Literal["screen", "race", "duel"]
    speedups: tuple[float, ...] | None = None
    over_limits: tuple[str, ...] = ()
    blocks: Count = 0
    failure: Failure | None = None

    def to_new(self) -> Trial:
        """Return the trial as it is now."""
        return Trial(
            number=self.number,
            config=self.config,
            stage=STAGES[self.stage],
            speedups=self.speedups,
            over_limits=self.over_limits,
            n_blocks=self.blocks,
            failure=self.failure,
        )


class _OldSearch(msgspec.Struct):
    trials: tuple[OldTrial, ...]


class _OldDocument(msgspec.Struct):
    search: _OldSearch


def migrate(document: dict[str, Any], version: int) -> tuple[Trial, ...] | None:
    """Convert a document of an older schema to the newest, in place.

    Args:
        document: Dictionaries and lists, as they were read.
        version: Its schema.

    Returns:
        The trials that it contained; None if they are in a separate file.

    Raises:
        msgspec.ValidationError: It has no trials, or they are malformed.
    """
    if version < 2:
        _from_1(document)
    # From 2 to 3, and from 4 on, fields were added that have defaults. Without those of 5, a host class is coarse.
    trials = _from_3(document) if version < 4 else None
    document["schema"] = SCHEMA
    return trials


def _from_1(document: dict[str, Any]) -> None:
    """Convert single values to loads, objectives, shapes and speedups."""
    workload = _dict(document.get("workload"))
    if isinstance(workload.get("load"), str):
        workload["load"] = {"scenario": workload["load"]}
    if "objective" in workload:
        workload["objectives"] = [workload.pop("objective")]
    for data in _dict(workload.get("inputs")).values():
        if "shape" in _dict(data):
            data["shapes"] = [data.pop("shape")]
    for trial in _dicts(_dict(document.get("search")).get("trials")):
        if "speedup" in trial:
            speedup = trial.pop("speedup")
            trial["speedups"] = None if speedup is None else [speedup]


def _from_3(document: dict[str, Any]) -> tuple[Trial, ...]:
    """Rename fields, add the base, and remove the trials and redundant fields."""
    _name_allocators(document)
    found = msgspec.convert(document, type=_OldDocument)
    trials = tuple(trial.to_new() for trial in found.search.trials)
    evidence, search = _dict(document.get("evidence")), document["search"]
    if base := _base_of(document, evidence):
        document["base"] = base
    for summary in _summaries(evidence):
        _rename(summary, "utilisation", "utilization")
        session = _dict(summary.pop("session", None))
        summary |= {name: session[name] for name in ("nodes", "build_s") if name in session}
    _dict(evidence.get("best_so_far")).pop("proven", None)
    check, noise, speedup = (_dict(evidence.get(name)) for name in ("output_check", "noise", "speedup"))
    check.pop("tolerance", None)
    _rename(check, "rejected", "n_rejected")
    for old, new in NEW_NAMES_OF_NOISE.items():
        _rename(noise, old, new)
    for each in (speedup, *_speedups_of_front(evidence)):
        _rename(each, "pairs", "n_pairs")
        _rename(each, "restarts", "n_launches")
    workload = _dict(document.get("workload"))
    _rename(workload, "neighbour", "background_load")
    if isinstance(workload.get("background_load"), str):
        workload["background_load"] = msgspec.to_builtins(BackgroundProgram.of(workload["background_load"]))
    for time in _dicts(search.get("stages")):
        if isinstance(time.get("stage"), str):
            time["stage"] = STAGES.get(time["stage"], time["stage"])
    search.setdefault("strategy", "tpe")
    _rename(search, "hints", "n_hints")
    del search["trials"]
    search |= msgspec.to_builtins(summarize_trials(trials))
    return trials


def _base_of(document: dict[str, Any], evidence: dict[str, Any]) -> Any:
    """Return the config that the recommended config was compared with, or None for ONNX Runtime's default.

    Without a confirmation, the recommended config is the base itself.
    """
    if isinstance(evidence.get("baseline"), dict):
        return evidence["baseline"].get("config")
    return None if evidence.get("verdict") in ("faster", "within_limits") else document.get("config")


def _name_allocators(value: Any) -> None:
    """Replace the path of an allocator in `LD_PRELOAD` by its name, in all configs of a document."""
    if isinstance(value, list):
        for each in value:
            _name_allocators(each)
    elif isinstance(value, dict):
        environment = _dict(value.get("environment"))
        path = environment.get("LD_PRELOAD")
        library = path.rpartition("/")[2] if isinstance(path, str) else ""
        for name, libraries in LIBRARIES.items():
            if library.startswith(libraries):
                del environment["LD_PRELOAD"]
                value["allocator"] = name
        for each in value.values():
            _name_allocators(each)


def _summaries(evidence: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (evidence[side] for side in ("baseline", "winner") if isinstance(evidence.get(side), dict))
    for point in _dicts(evidence.get("front")):
        if isinstance(point.get("summary"), dict):
            yield point["summary"]


def _speedups_of_front(evidence: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for point in _dicts(evidence.get("front")):
        yield from map(_dict, _dict(point.get("speedups")).values())


def _rename(value: dict[str, Any], old: str, new: str) -> None:
    if old in value:
        value[new] = value.pop(old)


def _dict(value: Any) -> dict[str, Any]:
    """Return a value if it is a dictionary, else an empty one."""
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    """Return the dictionaries of a list; none if the value is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
