"""The documentation says what is there, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ortune.errors import ExitCode
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def block(name: str) -> str:
    """Return the one command between the marks `<!-- name -->` and `<!-- end -->`."""
    found = re.search(rf"<!-- {name} -->\n((?:    .+\n)+)<!-- end -->", README)
    assert found, name
    lines = found[1].strip().splitlines()
    assert len(lines) == 1
    return lines[0].strip()


def help_of(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ortune", *command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "160", "PATH": "", "NO_COLOR": "1", "TERMINAL_WIDTH": "160"},
    )
    return done.stdout


def commands() -> list[str]:
    return re.findall(r"^│ (\w+) ", help_of().split("Commands")[1], re.MULTILINE)


def options_of(command: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", help_of(command))) - {"--help"}


def test_the_two_commands_name_what_is_there() -> None:
    words = block("try").split()
    assert (ROOT / words[words.index("search") + 1]).is_file()
    assert "pip install -q ." in block("try")
    assert block("tests").endswith("python -m pytest")


def test_every_command_and_option_is_documented() -> None:
    for command in commands():
        assert f"ortune {command}" in README, f"README does not show ortune {command}"
    for command in commands():
        for option in options_of(command):
            assert option in README, f"README does not say what {option} of ortune {command} means"


def test_every_option_that_is_shown_exists() -> None:
    known = {command: options_of(command) for command in commands()}
    for page in PAGES:
        for line in page.read_text().splitlines():
            match = re.match(r"(?:    |\$ |.*`)ortune (\w+)(.*)", line)
            if not match or match[1] not in known:
                continue
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", match[2].split(" -- ")[0]):
                assert option in known[match[1]], f"{page.name}: {line.strip()}"


def test_the_exit_codes_are_those_of_the_code() -> None:
    table = README.split("## Exit codes")[1].split("\n## ")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) ", table, re.MULTILINE)] == sorted(ExitCode)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_transcript_is_of_this_version_of_the_screen() -> None:
    """What a search prints as headings must occur in the transcript of the README."""
    first_screen = README.split("## What makes it different")[0]
    for word in (
        "model",
        "input",
        "host",
        "space",
        "screening",
        "racing",
        "confirmation",
        "paired blocks over",
        "p50",
        "written",
    ):
        assert word in first_screen, word
