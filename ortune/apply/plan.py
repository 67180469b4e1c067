"""Makes of some records the plan that `ortune.apply.inside.hook` follows inside of a program."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.errors import RecordError, UsageError
from ortune.host import HostClass, read_host
from ortune.record.schema import pick_point, tried_by
from ortune.record.select import Choice, choose_all, read_sourced
from ortune.workload.values import Load


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How records are to be put to use in a program.

    Attributes:
        load: How calls will arrive, or None where that is not told.
        pick: Which point of the record's front, counted from 1; None for what it recommends.
        any_model: Whether every session gets the settings, whatever its model.
        any_host: Whether a record for another class of host is used.
        keep_explicit: Whether options that the program sets by itself win over tuned ones.
        explain: Whether each session is told of on stderr.
        explain_json: File to which a line is added for each session, or None.
        quiet: Whether nothing is told on stderr but errors.
    """

    load: Load | None = None
    pick: int | None = None
    any_model: bool = False
    any_host: bool = False
    keep_explicit: bool = False
    explain: bool = False
    explain_json: Path | None = None
    quiet: bool = False


def choose_records(configs: Sequence[str | Path], wish: Wish) -> tuple[Choice, ...]:
    """Read records, and pick one for each model.

    Raises:
        RecordError: A file holds no records.
        UsageError: They are for several models, and one is needed.
    """
    choices = choose_all(
        read_sourced(configs), HostClass.of(read_host(memory=False)), wish.load, any_host=wish.any_host
    )
    if wish.any_model and len(choices) > 1:
        models = ", ".join(choice.record.model.path for choice in choices)
        raise UsageError(f"--any-model: the records are for several models: {models}.", "Pass one of them.")
    if wish.pick is not None:
        if len(choices) > 1:
            models = ", ".join(choice.record.model.path for choice in choices)
            raise UsageError(f"--pick: the records are for several models: {models}.", "Pass one of them.")
        (choice,) = choices
        choices = (msgspec.structs.replace(choice, record=pick_point(choice.record, wish.pick)),)
    return choices


def make_plan(choices: Sequence[Choice], wish: Wish, hint: str) -> dict[str, Any]:
    """Return the plan, as plain as JSON: see `ortune.apply.inside.finder.Plan`.

    Args:
        choices: A record for each model.
        wish: How they are to be used.
        hint: How more is told of each session.
    """
    return {
        "rules": [_rule(choice) for choice in choices],
        "any_model": wish.any_model,
        "keep_explicit": wish.keep_explicit,
        "explain": wish.explain,
        "explain_json": None if wish.explain_json is None else os.fspath(wish.explain_json.absolute()),
        "quiet": wish.quiet,
        "hint": "" if wish.explain or wish.explain_json else hint,
    }


def _rule(choice: Choice) -> dict[str, Any]:
    record = choice.record
    return {
        "source": choice.source,
        "path": record.model.path,
        "files": msgspec.to_builtins(record.model.files),
        "config": msgspec.to_builtins(record.config) if choice.applies else None,
        "reason": choice.why if not choice.fits else "its search proved nothing",
        "tried": tried_by(record),
        "onnxruntime": record.runtime.onnxruntime,
    }


def environment_of(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the environment variables that the chosen configs need.

    Raises:
        UsageError: Two of them need different values of one.
    """
    found: dict[str, str] = {}
    for choice in choices:
        for name, value in choice.record.config.environment.items() if choice.applies else ():
            if found.setdefault(name, value) != value:
                raise UsageError(
                    f"{choice.source} needs {name}={value}, another record {name}={found[name]}: "
                    "a process can have one of them.",
                    "Tune both models with one of them: ortune search MODEL --fix "
                    f"{name}={value}, or apply one record alone.",
                )
    return found


def encode_plan(plan: dict[str, Any]) -> str:
    """Return the plan as it is handed on in an environment variable.

    Raises:
        RecordError: It does not fit into one.
    """
    text = json.dumps(plan, separators=(",", ":"))
    # Linux takes 128 KiB for one variable (MAX_ARG_STRLEN).
    if len(text) > 120_000:
        raise RecordError("There are too many records for one program.", "Pass those of the models that it loads.")
    return text
