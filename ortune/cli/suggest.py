"""`ortune suggest`: suggest settings without measuring."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortune.cli.command import Values, command
from ortune.cli.output import encode_json, print_json
from ortune.errors import spell_as_flag, spell_options
from ortune.options import Request, make_request, options_of
from ortune.requests import BenchRequest, JsonOptions, SearchRequest, SuggestRequest

NOT_IN_COMMANDS = frozenset({"model", "output", "history"})
"""Options of `ortune suggest` that the commands which prove the suggestion do not get."""


@command(SuggestRequest, JsonOptions, has_steps=True)
def suggest(values: Values, output: JsonOptions) -> None:
    """Suggest settings for MODEL and its load within about a second, without measuring. They are not proven."""
    from ortune.console.suggest import show_answer
    from ortune.console.warnings import warn_missing_runtime
    from ortune.console.widgets import make_console, show_warning
    from ortune.host import HostClass, read_host
    from ortune.knobs import CPU, build_space
    from ortune.knobs.build import fixed_options
    from ortune.limited import STANDARD_STREAM
    from ortune.model import read_model
    from ortune.record.files import check_writable, write_atomically
    from ortune.tuning.effects import read_effects
    from ortune.tuning.hints import find_similar_searches
    from ortune.tuning.prepare import find_history, make_space_options
    from ortune.tuning.situation import Situation
    from ortune.tuning.suggest import SuggestedConfig
    from ortune.tuning.suggest import suggest as find
    from ortune.worker.installed import is_installed
    from ortune.worker.providers import choose_providers

    request = make_request(SuggestRequest, values, "cli")
    path = request.output or Path(STANDARD_STREAM)
    check_writable(path, may_replace=is_suggestion)
    info, host = read_model(request.model), read_host()
    goal = request.goal.on_host(throttled=host.limits.throttled)
    choice = choose_providers(request.provider or (CPU,), fixed_options(request.fix))
    if not is_installed():
        show_warning(make_console(stderr=True), warn_missing_runtime())
    host_class = HostClass.of(host)
    history = find_history(request)
    answer = find(
        build_space(host, info, make_space_options(request, choice)),
        Situation.of(host_class, goal, has_background_load=request.beside is not None),
        read_effects(),
        traits=info.traits,
        past=find_similar_searches(history, host_class, info.traits, goal) if history else (),
    )
    commands = {"prove": spell_command("search", SearchRequest, values)}
    if isinstance(answer, SuggestedConfig):
        settings = ",".join(f"{name}={value}" for name, value in answer.config.settings.items())
        commands["measure"] = spell_command("bench", BenchRequest, {**values, "set": [settings]})
    to_stdout = output.json or (request.output is not None and str(path) == STANDARD_STREAM)
    document = {**describe_answer(answer), "commands": commands}
    if request.output and str(path) != STANDARD_STREAM:
        write_atomically(path, encode_json(document))
    if to_stdout:
        print_json(document)
        return
    show_answer(make_console(), info, host_class, goal, request, answer, commands, choice.faults)


def describe_answer(answer: Any) -> dict[str, Any]:
    """Return a suggestion, or why there is none, as JSON data."""
    from ortune.record.layout import to_plain
    from ortune.tuning.suggest import SuggestedConfig

    if isinstance(answer, SuggestedConfig):
        return {
            "proven": False,
            "config": to_plain(answer.config),
            "reasons": answer.reasons,
            "gain": answer.gain,
            "basis": answer.basis,
            "evidence": answer.evidence,
            "recordings": answer.recordings,
        }
    return {"proven": False, "config": None, "why": answer.why, "hint": spell_options(answer.hint, spell_as_flag)}


def is_suggestion(content: bytes) -> bool:
    """Return whether a file was written by this command."""
    import msgspec

    try:
        document = msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("proven") is False and "config" in document


def spell_command(name: str, request: type[Request], values: Mapping[str, Any]) -> str:
    """Return a command with the options that the user gave, as far as it has them.

    Args:
        name: Name of the command.
        request: Its options.
        values: Values from the command line, by option name.
    """
    declared = options_of(request)
    words = ["ortune", name, str(values["model"])]
    for key, value in values.items():
        if key in NOT_IN_COMMANDS or key not in declared:
            continue
        flag = declared[key].flag
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            for item in value if isinstance(value, list) else [value]:
                words += [flag, str(item)]
    return shlex.join(words)
