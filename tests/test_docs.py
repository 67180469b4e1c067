"""The documentation agrees with the code: commands, options, exit codes, links, the transcript of a search.

Results name where they are from.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.host import describe_run, write_header
from docs.commands import build_group
from docs.record_page import find_undocumented
from docs.record_page import render as render_record_page
from docs.transcript.render import COMMAND, find, normalize, render, replace
from ortune.errors import ExitCode
from ortune.options import options_of
from ortune.record.schema import RECORD_SCHEMA
from ortune.requests import COMMANDS, GROUPS
from tests.conftest import ROOT, run_ortune

README = (ROOT / "README.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RESULTS = sorted(path for path in (ROOT / "benchmarks" / "results").iterdir() if path.is_file())
ORIGIN = {
    "commit": r"\b[0-9a-f]{7,}\b",
    "date": r"\b\d{4}-\d{2}-\d{2}\b",
    "host": r"\d cores\b",
    "versions": r"\bonnxruntime\S* \S.*\bortune \S",
}
"""What a result says about its origin."""


def block(name: str) -> str:
    """Return the command between the comments `<!-- name -->` and `<!-- end -->`."""
    found = re.search(rf"<!-- {name} -->\n((?:    .+\n)+)<!-- end -->", README)
    assert found, name
    lines = found[1].strip().splitlines()
    assert len(lines) == 1
    return lines[0].strip()


@functools.cache
def commands() -> dict[str, set[str]]:
    """Return the options that the help of each command lists, by the name of the command."""
    found: dict[str, set[str]] = {}
    for name, command in build_group().commands.items():
        if name in GROUPS:
            found |= {f"{name} {member_name}": list_options(member) for member_name, member in command.commands.items()}
        elif not command.hidden:
            found[name] = list_options(command)
    return found


def list_options(command: Any) -> set[str]:
    """Return the options that the help of a command lists."""
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    names = {name for parameter in shown for name in (*parameter.opts, *parameter.secondary_opts)}
    return {name for name in names if name.startswith("--")} - {"--help"}


def test_commands_and_options_are_those_of_the_help() -> None:
    help_text = run_ortune("fleet", "--help", cwd=ROOT).stdout
    assert set(re.findall(r"^│ (\w+) ", help_text.split("─ Commands ─")[1], re.MULTILINE)) == {
        name.split()[1] for name in commands() if name.startswith("fleet ")
    }
    help_text = run_ortune("fleet", "compare", "--help", cwd=ROOT, columns=160).stdout
    assert set(re.findall(r"^│ +(--[a-z-]+)", help_text, re.MULTILINE)) - {"--help"} == commands()["fleet compare"]


def test_the_space_of_the_transcript_is_the_one_that_was_searched(transcript: str) -> None:
    (size,) = re.findall(r"^ +space  (\d+) candidates", transcript, re.MULTILINE)
    (searched,) = re.findall(r"^ +screening .* of (\d+) ", transcript, re.MULTILINE)
    assert size == searched


@pytest.mark.parametrize("name", ["tutorial", "record"])
def test_records_that_pages_show_are_of_this_version(name: str) -> None:
    """If this fails, record them anew: see CONTRIBUTING.md."""
    shown = re.findall(r'^  "schema": (\d+),$', (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE)
    assert shown == [str(RECORD_SCHEMA)]


def test_the_marked_commands_name_existing_files() -> None:
    words = block("try").split()
    assert (ROOT / words[words.index("search") + 1]).is_file()
    assert "pip install -q '.[cpu]'" in block("try")
    assert block("tests").endswith("python -m pytest")


def test_every_command_and_option_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")
    for command, options in commands().items():
        assert f"ortune {command}" in text, f"no page shows ortune {command}"
        for option in options:
            assert option in text, f"no page explains {option} of ortune {command}"


def test_every_documented_option_exists() -> None:
    known = commands()
    of_programs = {
        name.split()[0]: {known_option.flag for request in requests for known_option in options_of(request).values()}
        for name, requests in COMMANDS.items()
        if name.endswith(" --")
    }
    for page in PAGES:
        for line in page.read_text().splitlines():
            match = re.match(rf"(?:    |\$ |.*`)ortune ((?:(?:{'|'.join(GROUPS)}) )?\w+)(.*)", line)
            if not match or match[1] not in known:
                continue
            before, separator, _ = match[2].partition(" -- ")
            names = known[match[1]] | (of_programs.get(match[1], set()) if separator else set())
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", before):
                assert option in names, f"{page.name}: {line.strip()}"


def test_the_exit_codes_are_those_of_the_code() -> None:
    lists = [
        found[1]
        for page in PAGES
        for found in re.finditer(r"^Exit codes of all commands: (.+)$", page.read_text(), re.M)
    ]
    assert lists
    for codes in lists:
        assert [int(code) for code in re.findall(r"\d+", codes)] == sorted(ExitCode)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_local_links_exist(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def transcript() -> str:
    return render()


def test_the_transcript_is_what_the_console_prints(transcript: str) -> None:
    """If this fails, run `python -m docs.transcript`."""
    assert normalize(find(README)[1]) == normalize(transcript)


@pytest.mark.parametrize("words", ["confirmation", "paired blocks", "throughput", "session creation", "written"])
def test_a_changed_text_is_noticed(words: str, transcript: str) -> None:
    assert words in transcript
    assert normalize(transcript.replace(words, "another text")) != normalize(transcript)


def test_changed_numbers_are_ignored(transcript: str) -> None:
    assert normalize(transcript.replace("1", "7")) == normalize(transcript)


def test_the_transcript_is_found_wherever_it_is() -> None:
    page = f"# Title\n\n```bash\nls\n```\n\n```console\n$ {COMMAND}\nold\n```\n\n```\nlast\n```\n"
    assert find(page)[1] == f"$ {COMMAND}\nold"
    assert replace(page, f"$ {COMMAND}\nnew") == page.replace("old", "new")


def test_the_page_of_the_record_is_that_of_the_code() -> None:
    """If this fails, run `python -m docs.generate`."""
    page = (ROOT / "docs" / "record.md").read_text()
    assert render_record_page(page) == page


def test_every_field_of_a_record_has_a_meaning() -> None:
    assert find_undocumented() == []


def read_origin(path: Path) -> Mapping[str, Any]:
    """Return what a result says about its origin: keys of JSON, or the first lines of a text."""
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return dict(re.findall(r"^(\w+): (.+)$", "\n".join(path.read_text().splitlines()[: len(ORIGIN)]), re.MULTILINE))


def find_missing(origin: Mapping[str, Any]) -> list[str]:
    """Return what is not said about the origin of a result."""
    return [
        key for key, pattern in ORIGIN.items() if not re.search(f"{pattern}|not recorded", str(origin.get(key, "")))
    ]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_every_result_names_commit_date_host_and_versions(path: Path) -> None:
    assert not find_missing(read_origin(path))


def test_the_header_of_results_names_commit_date_host_and_versions(tmp_path: Path) -> None:
    text, data = tmp_path / "result.txt", tmp_path / "result.json"
    text.write_text(f"{write_header()}\n\nfigures\n")
    data.write_text(json.dumps({**describe_run(), "rows": []}))
    assert read_origin(text).items() <= read_origin(data).items()
    assert not find_missing(read_origin(text))
    assert [*read_origin(text)] == [*ORIGIN]


def test_the_header_of_several_runs_names_all_of_them() -> None:
    runs = {"commit": "1234567", "host": "one, 2 cores"}, {"commit": "7654321", "host": "one, 2 cores"}
    assert describe_run(*runs) == {
        "commit": "1234567; 7654321",
        "date": "not recorded",
        "host": "one, 2 cores",
        "versions": "not recorded",
    }


@pytest.mark.parametrize("key", ORIGIN)
def test_a_result_that_lacks_a_part_of_its_origin_is_noticed(key: str) -> None:
    assert find_missing({**describe_run(), key: ""}) == [key]
