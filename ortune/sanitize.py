"""Makes text from records, models, hosts or other programs safe to show.

Such a text may hold escape sequences of terminals, characters that reorder or hide a line, line breaks that forge
another message, and the markup of the medium that shows it. Each function prepares a text for one medium. All replace
characters visibly, so that a reader sees that something was there.

`ortune.console.safe_console` applies `printable` to everything that the commands print.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"

BREAK = "&#8203;"
"""A zero-width space as an HTML entity. In Markdown, it separates characters that would start a mention or a link."""

LOG_COMMAND = re.compile(r"(?<=#)#(?=\w*\[)")
"""The second `#` of `##[NAME ...]TEXT`, `##vso[...]` and `##teamcity[...]`: commands of GitHub Actions, Azure Pipelines
and TeamCity, anywhere in a line of a log. Those of GitLab contain control characters.

Source: `ActionCommand.cs` of https://github.com/actions/runner, `Command.cs` of
https://github.com/microsoft/azure-pipelines-agent, https://www.jetbrains.com/help/teamcity/service-messages.html,
https://docs.gitlab.com/ci/jobs/job_logs/#custom-collapsible-sections.
"""


def printable(text: str) -> str:
    """Return a text as one line without control characters, for terminals, logs, XML and plots.

    Line breaks and other whitespace become spaces. Control characters become their Unicode pictures, such as `␛`.
    Other characters without a glyph become `�`: those that change the direction of text or are invisible, surrogates,
    and code points without a character. What CI services take for a command in a log gets a wide number sign. The text
    keeps its length.
    """
    if not text.isprintable():
        text = "".join(character if character.isprintable() else _picture(character) for character in text)
    return LOG_COMMAND.sub("\N{FULLWIDTH NUMBER SIGN}", text)


def _picture(character: str) -> str:
    """Return what stands for a character that is not printable."""
    code = ord(character)
    if character.isspace() and code not in range(0x1C, 0x20):
        return " "
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else REPLACEMENT_CHARACTER


def printable_lines(text: str) -> str:
    """Return a text without control characters that keeps its line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def printable_log(text: str) -> str:
    """Return a text for a log that keeps its line breaks. None of its lines is a command of GitHub Actions."""
    return re.sub(r"^(\s*:):", "\\1\N{RATIO}", printable_lines(text), flags=re.MULTILINE)


def escape_workflow_commands(text: str) -> str:
    """Return a printable text that the runner of GitHub Actions does not take for a command, wherever it is wrapped.

    Besides those that `printable` replaces, commands are `::NAME ...::TEXT` at the start of a line. The length of the
    text does not change.

    Source: `ActionCommand.cs` of https://github.com/actions/runner.
    """
    return re.sub("(?<=:):", "\N{RATIO}", text)


def escape_annotation(text: str) -> str:
    """Return a text as the message of a GitHub annotation.

    Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    """
    return printable(text).replace("%", "%25")


def escape_annotation_property(text: str) -> str:
    """Return a text as a property of a GitHub annotation, such as its title."""
    return escape_annotation(text).replace(":", "%3A").replace(",", "%2C")


_MARKDOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"&"), "&amp;"),
    (re.compile(r"<"), "&lt;"),
    (re.compile(r">"), "&gt;"),
    # A single underscore within a word has no effect.
    (re.compile(r"[\\`*~|$\[\]]|(?<![^\W_])_|_(?![^\W_])"), r"\\\g<0>"),
    # Mentions, email addresses, issues and links, as GitHub and GitLab find them in plain text.
    (re.compile(r"@|#(?=\w)|(?<=:)//|(?<=www)\.|!(?=\d)|%(?=\d)"), "\0"),
)


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, also in a table: without HTML, links, mentions and formatting."""
    text = printable(text)
    *others, (linking, _) = _MARKDOWN
    for pattern, replacement in others:
        text = pattern.sub(replacement, text)
    return linking.sub(_separate, text)


def _separate(found: re.Match[str]) -> str:
    return BREAK + found[0] if found[0] in {"//", "."} else found[0] + BREAK


def encode_json(value: object, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as one line of JSON.

    A file name that is not valid UTF-8 does not cause an error: Python has surrogates for its bytes, which become
    question marks, as in records.

    Args:
        value: The value.
        enc_hook: Converts types that msgspec does not know.
    """
    import msgspec

    try:
        return msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
        return msgspec.json.encode(_replace_surrogates(plain))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(name): _replace_surrogates(inner) for name, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_replace_surrogates(element) for element in value]
    return value


def escape_json(document: str) -> str:
    """Return a JSON document in which characters that are not printable are escaped.

    JSON requires this of the ASCII control characters only. Terminals interpret others, too. So do CI services, see
    `LOG_COMMAND`.
    """
    if not document.replace("\n", "").isprintable():
        document = "".join(
            character if character == "\n" or character.isprintable() else escape_utf16(character)
            for character in document
        )
    return LOG_COMMAND.sub(lambda found: escape_utf16(found[0]), document)


def escape_utf16(character: str) -> str:
    r"""Return a character as one or two escape sequences `\uXXXX`, as JSON, JavaScript and Java have them."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
