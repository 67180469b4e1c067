"""What a shell offers when the user presses Tab after an option: names of knobs and their values, providers, and so on.

Typer writes the scripts of the shells. An option offers what the placeholder of its value says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping

Completions = list[tuple[str, str]]
"""Words, each with a description that some shells show."""

COMPLETION_VARIABLE = "_ORTUNE_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""

BEFORE = "ORTUNE_COMPLETE_AFTER"
"""The environment variable with the beginning of the word that bash completes, which it does not replace."""

SIGNS = ("=", ":")
"""What ends a word in bash, besides spaces."""

CHOICES = re.compile(r"[a-z0-9]+(\|[a-z0-9]+)+")
"""A placeholder that lists all values."""

SMALL_INTEGERS = (0, 1, 2, 4, 8, 16)
"""Offered for integers, such as numbers of threads."""

MOST_OFFERED_VALUES = 20
"""Number of values of a knob that are offered."""


def make_completer(metavar: str) -> Callable[[str], Completions] | None:
    """Return a function that completes values of an option; None if nothing is offered, so that shells offer files.

    Args:
        metavar: Placeholder of the value in the help.
    """
    name = metavar.removesuffix(",...")
    if name not in WORDS and not metavar.startswith("KNOB=") and not CHOICES.fullmatch(metavar):
        return None

    def complete_value(incomplete: str) -> Completions:
        before = os.environ.get(BEFORE, "")
        return [(word[len(before) :], text) for word, text in complete(metavar, before + incomplete)]

    return complete_value


def complete(metavar: str, incomplete: str) -> Completions:
    """Return what may stand in place of an incomplete value.

    Args:
        metavar: Placeholder of the value in the help.
        incomplete: What the user has written.
    """
    if CHOICES.fullmatch(metavar):
        return find_matches(((part, "") for part in metavar.split("|")), incomplete)
    if metavar.startswith("KNOB="):
        before, comma, last = incomplete.rpartition(",") if metavar.endswith("VALUE,...") else ("", "", incomplete)
        return [(f"{before}{comma}{word}", text) for word, text in complete_setting(last)]
    list_words = WORDS.get(metavar.removesuffix(",..."))
    if list_words is None:
        return []
    before, comma, last = incomplete.rpartition(",") if metavar.endswith(",...") else ("", "", incomplete)
    given = set(before.split(","))
    words = ((word, text) for word, text in list_words() if word not in given)
    return [(f"{before}{comma}{word}", text) for word, text in find_matches(words, last)]


def find_matches(words: Iterable[tuple[str, str]], incomplete: str) -> Completions:
    """Return the words that begin with a text."""
    return [(word, text) for word, text in words if word.startswith(incomplete)]


def complete_setting(incomplete: str) -> Completions:
    """Return names of knobs with `=`, or settings of the only knob that a text is the beginning of."""
    from ortune.knobs import KNOBS

    name, equals, value = incomplete.partition("=")
    if not equals:
        found = [known for known in KNOBS.values() if known.is_settable and known.id.startswith(name)]
        if len(found) != 1:
            return [(f"{known.id}=", known.summary) for known in found]
        # A single word would end with a space. Several words with the same beginning do not.
        name = found[0].id
    knob = KNOBS.get(name)
    if knob is None:
        return []
    before, comma, last = value.rpartition(",")
    values = [choice for choice in list_values(name) if choice.startswith(last)][:MOST_OFFERED_VALUES]
    return [(f"{name}={before}{comma}{choice}", "") for choice in values] or [(f"{name}=", knob.summary)] * (not equals)


def list_values(name: str) -> list[str]:
    """Return values of a knob: all of a choice, some of others."""
    from ortune.knobs import KNOBS
    from ortune.knobs.knob import LARGEST_INTEGER

    knob = KNOBS[name]
    if knob.kind == "boolean":
        return ["True", "False"] if knob.is_attribute else ["1", "0"]
    if knob.kind == "choice":
        return [value for value in knob.values if value]
    if knob.examples or knob.kind == "text":
        return [*knob.examples]
    low, high = knob.low or 0, LARGEST_INTEGER if knob.high is None else knob.high
    return [str(number) for number in SMALL_INTEGERS if low <= number <= high]


def prepare_completion(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to change if a shell asks for completions; none if it does not.

    Bash makes words of their own of `=` and of what follows it. The last word then stays alone, because it is what bash
    replaces, and `BEFORE` has what is before it.

    Args:
        environment: The environment variables.
    """
    shell = environment.get(COMPLETION_VARIABLE)
    if not shell:
        return {}
    # Descriptions are not folded: fish reads a word from each line.
    changes = {"COLUMNS": "10000"}
    current = environment.get("COMP_CWORD", "")
    if shell != "complete_bash" or not current.isdecimal():
        return changes
    joined: list[str] = []
    for word in environment.get("COMP_WORDS", "").split("\n")[: int(current) + 1]:
        # A sign after an option stays alone: Typer knows it.
        previous = joined[-1] if joined and not joined[-1].startswith("-") and joined[-1] not in SIGNS else ""
        if previous and (previous.endswith(SIGNS) or word in SIGNS):
            joined[-1] += word
        else:
            joined.append(word)
    last = joined[-1] if joined else ""
    n_before = 0 if last in SIGNS or last.startswith("-") else max(last.rfind(sign) for sign in SIGNS) + 1
    words = [*joined[:-1], last[n_before:]]
    return {**changes, "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), BEFORE: last[:n_before]}


def _list_knobs() -> Completions:
    from ortune.knobs import KNOBS

    return [(knob.id, knob.summary) for knob in KNOBS.values()]


def _list_providers() -> Completions:
    from ortune.knobs.providers import PROVIDERS

    return [("auto", "those that work here"), *((provider.alias, provider.name) for provider in PROVIDERS.values())]


def _list_targets() -> Completions:
    from ortune.errors import OrtuneError
    from ortune.export import TARGETS
    from ortune.export.installed import NAME, describe_package, find_installed

    # The code of other packages is not imported, so their summaries are unknown.
    try:
        found = find_installed(TARGETS)
    except OrtuneError:
        found = {}
    others = [
        (name, f"target of {describe_package(entries[0])}") for name, entries in found.items() if NAME.fullmatch(name)
    ]
    return [*((target.name, target.summary) for target in TARGETS.values()), *others]


def _list_figures() -> Completions:
    from ortune.workload.figures import list_figures_of_models

    return [(figure.name, figure.title) for figure in list_figures_of_models()]


def _list_metrics() -> Completions:
    from ortune.workload import list_figures

    return [(figure.name, figure.title) for figure in list_figures("fleet", ())]


def _list_gates() -> Completions:
    from ortune.errors import OrtuneError
    from ortune.gates.file import list_names

    try:
        return [(name, "") for name in list_names()]
    except OrtuneError:
        return []


WORDS: Mapping[str, Callable[[], Completions]] = {
    "KNOB": _list_knobs,
    "PROVIDER": _list_providers,
    "TARGET": _list_targets,
    "FIGURE": _list_figures,
    "METRIC": _list_metrics,
    "GATE": _list_gates,
}
"""Lists the words that a placeholder stands for."""
