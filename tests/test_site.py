"""The documentation site builds without warnings, works without a network, and has all pages."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from docs import gains, knob_page, man_page, python_page
from docs.commands import read_rules
from docs.generate import TABLES
from docs.record_page import replace_part
from docs.site.build import build, draw_tables, find_pages, indent_lists, rewrite_links, unescape_pipes
from docs.site.check import check
from docs.tutorial import PAGE, Step, find_commands, follow, replace_output
from ortune.errors import ExitCode
from ortune.knobs.catalogue import KNOBS
from ortune.options import accepted_options
from ortune.requests import COMMANDS
from tests.conftest import ROOT

needs_zensical = pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build(folder)
    return folder


@needs_zensical
@pytest.mark.long
def test_the_site_has_no_faults(site: Path) -> None:
    assert check(site) == []


@needs_zensical
@pytest.mark.long
def test_faults_are_found(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(site, copy)
    page = copy / "plan.html"
    added = '<script src="https://unpkg.com/a.js"></script><a href="gone.html">a</a><a href="when.html#gone">b</a><li>'
    page.write_text(page.read_text().replace("</article>", f"{added}</article>", 1))
    (copy / "when.html").unlink()
    faults = check(copy)
    for fault in (
        "plan.html loads https://unpkg.com/a.js from another host",
        "plan.html links to gone.html, which does not exist",
        "index.html links to ./when.html, which does not exist",
        "docs/when.md is not in the site",
    ):
        assert fault in faults
    assert any(fault.startswith("docs/plan.md has ") and " li, and in the site " in fault for fault in faults)


class TestPages:
    def test_links_lead_to_pages_and_files(self) -> None:
        text, files = rewrite_links(
            "[a](../load.md#batches) [b](../../CONTRIBUTING.md) [c](../ci/github.yml)", "docs/how-to/ci.md"
        )
        assert text == "[a](../load.md#batches) [b](../contributing.md) [c](../files/docs/ci/github.yml)"
        assert files == ["docs/ci/github.yml"]

    def test_links_in_code_stay(self) -> None:
        page = "```\n[a](../CONTRIBUTING.md)\n```"
        assert rewrite_links(page, "docs/load.md") == (page, [])

    def test_every_page_of_the_repository_is_a_page(self) -> None:
        assert {path for path in find_pages() if path.startswith("docs/")} == {
            path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")
        }

    def test_a_diagram_is_a_table(self) -> None:
        table = draw_tables("```mermaid\nflowchart LR\n    A -->|by| B\n    A --> C\n```\n")
        assert "| `A` | `B` by `by`, `C` |" in table

    def test_blocks_in_lists(self) -> None:
        assert indent_lists("1. a\n\n   b\n2. c") == "1. a\n\n    b\n\n2. c"
        assert indent_lists("- a\n  b\n- c") == "- a\n    b\n- c"

    def test_pipes_in_tables(self) -> None:
        assert unescape_pipes("| `a\\|b` | c\\|d |") == "| `a|b` | c\\|d |"


class TestGeneratedPages:
    """If one of these fails, run `python -m docs.generate`."""

    def test_they_are_up_to_date(self) -> None:
        assert (ROOT / "docs/knob-reference.md").read_text() == knob_page.render()
        assert (ROOT / "docs/python.md").read_text() == python_page.render()
        assert (ROOT / "docs/man/ortune.1").read_text() == man_page.render()
        for name, part, table in TABLES:
            page = (ROOT / name).read_text()
            assert replace_part(page, part, table()) == page

    def test_every_knob_has_a_row(self) -> None:
        rows = [line for line in knob_page.render().splitlines() if line.startswith("| `")]
        assert len(rows) == len(KNOBS)

    def test_the_man_page_has_all_commands_and_options(self) -> None:
        page = man_page.render().replace("\\-", "-")
        for command, requests in COMMANDS.items():
            section = page.split(f".SS ortune {command}\n")[1].split("\n.S")[0]
            for request in requests:
                for declaration in accepted_options(request).values():
                    assert (
                        declaration.option.metavar in section
                        if declaration.option.positional
                        else declaration.flag in section
                    )
        assert set(man_page.EXIT_CODES) == set(ExitCode)

    @pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
    def test_the_man_page_has_no_faults(self) -> None:
        command = ["groff", "-man", "-ww", "-z", "-Tutf8", str(ROOT / "docs/man/ortune.1")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""

    def test_gains_are_those_of_the_results(self) -> None:
        searches = [
            {
                "model": "m",
                "arguments": "--clients 2 --budget 60s",
                "quota": None,
                "verdict": "faster",
                "estimate": ratio,
            }
            for ratio in (1.5, 1.25, 2.0)
        ]
        assert gains.describe(searches) == "| 2 clients | m | throughput | 1.5x (1.25 to 2, 3 searches) | `faster` |"


class TestTutorial:
    def test_its_commands_are_followed_word_for_word(self, tmp_path: Path) -> None:
        page = "# A\n\n```console\n$ a=1\n$ echo $a\nold\n```\n\nText\n\n```console\n$ cd / && false\n```\n"
        steps = [*follow(find_commands(page), tmp_path)]
        assert steps == [Step("a=1", "", 0), Step("echo $a", "1\n", 0), Step("cd / && false", "", 1)]
        assert replace_output(page, steps) == page.replace("old", "1")

    def test_it_shows_what_was_printed(self) -> None:
        page = PAGE.read_text()
        assert len(find_commands(page)) == page.count("\n$ ")
        assert "with 95% confidence" in page


def test_every_reason_is_given() -> None:
    assert all(len(rule.reason) > 5 for rules in read_rules().values() for rule in rules)
