"""Text from records, models and hosts, where people and CI services read it: it is shown, and has no other effect."""

from __future__ import annotations

import ast
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ortune import Config, Export, GateResult, InputsError, ModelError, Progress, Record, UsageError, Verification
from ortune.apply.check import CheckResult
from ortune.apply.fit import Mismatch
from ortune.apply.inside import explain
from ortune.console.apply import show_apply, show_export
from ortune.console.bench import show_comparison
from ortune.console.doctor import show_diagnosis
from ortune.console.gate import GateDisplay
from ortune.console.merge import show_bundle
from ortune.console.progress import SearchProgress
from ortune.console.report import show_history
from ortune.console.safe_console import SafeConsole
from ortune.console.verdict import show_verdict
from ortune.console.verify import show_verification
from ortune.console.widgets import make_console, show_note
from ortune.doctor.checks.loading import check_loading
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import Diagnosis, DoctorFinding, SkippedCheck
from ortune.export import render
from ortune.gates.reporters.github import render_annotations
from ortune.gates.reporters.history import HistoryEntry
from ortune.gates.reporters.junit import render_junit
from ortune.gates.reporters.markdown import render_markdown
from ortune.gates.results import GateError
from ortune.knobs import CPU, Candidate
from ortune.planning.files import encode_plan
from ortune.record.schema import RECORD_SCHEMA, Bundle
from ortune.record.select import Sourced
from ortune.sanitize import (
    BREAK,
    escape_annotation,
    escape_json,
    escape_markdown,
    escape_workflow_commands,
    printable,
    printable_lines,
    printable_log,
)
from ortune.worker import Failure
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.gate_results import make_interval, make_result
from tests.hostile import ALL_TEXTS, CONFIGS, TEXTS, hostile_record
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import make_record, write
from tests.test_console import make_bench_result

LOG_COMMANDS = re.compile(r"##\w*\[")
"""Commands of CI services, anywhere in a line of their logs."""

HOSTILE = "[/red]\x1b[31m\x9b2J\nforged: line\r\u202ereversed\u2066 [bold]x :smile:"
"""Closes markup that is not open, colors, clears the screen, forges a line, and reverses the rest."""


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain [text] é 漢 🙂", "plain [text] é 漢 🙂"),
            ("a\x1b[31mb", "a␛[31mb"),
            ("a\nb\r\nc\td", "a b  c d"),
            ("\x00\x07\x1f\x7f", "␀␇␟␡"),
            ("##[error]x ##vso[task.x]y ##teamcity[z]", "#＃[error]x #＃vso[task.x]y #＃teamcity[z]"),
            ("## [x] #[x] # ##", "## [x] #[x] # ##"),
            ("\x1b[0Ksection_start:1:x\r\x1b[0K", "␛[0Ksection_start:1:x ␛[0K"),
            ("\x9b\u202e\u200b\ufeff\ud800\U000e0041\ufffe", "�" * 7),
            ("a\u2028b\u2029c\x85d\xa0e\u3000f", "a b c d e f"),
        ],
    )
    def test_texts(self, text: str, shown: str) -> None:
        assert printable(text) == shown

    @given(text=ALL_TEXTS | st.text())
    def test_one_line_of_the_same_length(self, text: str) -> None:
        shown = printable(text)
        assert shown.isprintable() and len(shown) == len(text)
        assert printable(shown) == shown
        assert printable_lines(text).count("\n") == text.count("\n")
        assert not LOG_COMMANDS.search(shown)
        assert not any(line.lstrip().startswith("::") for line in printable_log(text).split("\n"))

    @given(text=ALL_TEXTS)
    def test_the_program_of_a_user_gets_the_same_protection(self, text: str) -> None:
        assert explain.printable(text).isprintable() and len(explain.printable(text)) == len(text)
        assert not LOG_COMMANDS.search(explain.printable(text))

    def test_a_report_in_the_program_of_a_user(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = {HOSTILE: HOSTILE}
        description = {
            "pid": 1,
            "model": HOSTILE,
            "matched": True,
            "record": HOSTILE,
            "set": settings,
            "replaced": settings,
            "not_set": [HOSTILE],
            "read_back": settings,
            "run_options": settings,
            "providers": [HOSTILE],
            "providers_dropped": [HOSTILE],
            "providers_reordered": False,
        }
        explain.write_stderr(explain.render(description))
        explain.write_stderr(explain.render({**description, "matched": False, "reason": HOSTILE}))
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 7
        assert all(line.startswith("ortune: ") and line.isprintable() for line in lines)


# Terminals.


class TestConsole:
    def show(self, renderable: Any, **options: Any) -> str:
        console = SafeConsole(file=io.StringIO(), width=200, **options)
        console.print(renderable)
        return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

    def test_markup_in_a_table(self) -> None:
        """It closed a style that was not open, which ended the command with a traceback."""
        table = Table("a [/red] [bold]head[/]")
        table.add_row("[/red]", Text("[/red]", "red"))
        page = self.show(table)
        assert page.count("[/red]") == 3 and "[bold]head[/]" in page

    @pytest.mark.parametrize(
        "make", [str, Text, lambda text: Group(text, Text(text)), lambda text: Text.assemble((text, "red"))]
    )
    def test_escape_sequences(self, make: Callable[[str], Any]) -> None:
        for terminal in (False, True):
            page = self.show(make("a\x1b]0;title\x9bm\u202e\nb"), force_terminal=terminal, no_color=True)
            assert "␛]0;title�m� b" in page
            assert "\x9b" not in page and "\u202e" not in page and "\x1b]" not in page

    def test_styles_stay_where_they_are(self) -> None:
        text = Text.assemble("\x1b\x1b", ("red", "red"), "\x1b")
        assert self.show(text, force_terminal=True, color_system="standard") == "␛␛\x1b[31mred\x1b[0m␛\n"

    def test_emoji_names_are_not_replaced(self) -> None:
        assert self.show(":smile:") == ":smile:\n"

    def test_commands_of_github_actions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "a\n::stop-commands::x ##[add-mask]x"
        assert self.show(text) == "a ::stop-commands::x #＃[add-mask]x\n"
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        assert self.show(text) == "a :∶stop-commands:∶x #＃[add-mask]x\n"

    def test_all_output_goes_through_it(self) -> None:
        """Nothing else of ortune makes a console, reads markup, or prints."""
        assert isinstance(make_console(), SafeConsole)
        for path in (ROOT / "ortune").rglob("*.py"):
            code = path.read_text()
            assert "rich.markup" not in code and "from_markup" not in code, path
            if "Console" in code:
                calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
                assert "Console" not in calls, path
            for column in re.findall(r"TextColumn\((.*?)\)", code, re.DOTALL):
                assert "markup=False" in column or not re.search("fields|description", column), column


def check_page(page: str) -> None:
    """Check that a page has no characters that a terminal obeys, and no forged line."""
    assert all(character == "\n" or character.isprintable() for character in page), ascii(page)
    assert not any(line.startswith("forged") for line in page.splitlines())
    assert "[/red]" in page


def hostile_config() -> Config:
    return Config(
        session_options={"logid": HOSTILE},
        session_config={"session.x": HOSTILE},
        providers=((f"{HOSTILE}ExecutionProvider", {HOSTILE: HOSTILE}), (CPU, {})),
        environment={"A\x1b[/red]": HOSTILE},
        run_config={HOSTILE: HOSTILE},
    )


def hostile_gate(**changes: Any) -> GateResult:
    found = make_result(HOSTILE, "fail", reason=HOSTILE)
    runtime = msgspec.structs.replace(found.base.runtime, onnxruntime=HOSTILE)
    base = msgspec.structs.replace(found.base, text=HOSTILE, runtime=runtime, config=hostile_config())
    host = msgspec.structs.replace(found.host, cpu_model=HOSTILE)
    return msgspec.structs.replace(found, base=base, host=host, **changes)


FAILURE = Failure(kind="exception", stage="load", message=HOSTILE)


def hostile_verdict(verdict: Any) -> Record:
    record = hostile_record(hostile_config(), HOSTILE)
    evidence = record.evidence
    assert evidence.winner
    winner = msgspec.structs.replace(evidence.winner, nodes={HOSTILE: 1})
    return msgspec.structs.replace(record, evidence=msgspec.structs.replace(evidence, verdict=verdict, winner=winner))


def show_doctor(console: SafeConsole) -> None:
    finding = DoctorFinding(check="x", severity="problem", what=HOSTILE, why=HOSTILE, fix=HOSTILE, command=HOSTILE)
    findings = (finding, msgspec.structs.replace(finding, severity="ok"))
    skipped = (SkippedCheck(check="y", why=HOSTILE, fix=HOSTILE),)
    show_diagnosis(
        console,
        Diagnosis(
            model=HOSTILE,
            size_bytes=1,
            opset=1,
            n_nodes=1,
            n_optimized=None,
            onnxruntime=HOSTILE,
            findings=findings,
            skipped=skipped,
        ),
    )


def show_gates(console: SafeConsole) -> None:
    display = GateDisplay(console)
    display.show(hostile_gate())
    display.finish(hostile_gate())
    display.finish(GateError(name=HOSTILE, message=HOSTILE, hint=HOSTILE))


def show_search_progress(console: SafeConsole) -> None:
    progress = SearchProgress(console)
    report = Progress(
        stage="screening",
        done=1,
        total=1,
        left_s=1.0,
        best=Candidate(config=hostile_config()),
        speedup=make_interval(1, 1, 1),
        notes=(HOSTILE,),
    )
    with progress:
        progress(report)


def show_bench(console: SafeConsole) -> None:
    result = make_bench_result()
    row = msgspec.structs.replace(result.rows[2], name=HOSTILE, failure=FAILURE)
    show_comparison(console, msgspec.structs.replace(result, rows=(result.rows[0], row)))


def show_check(console: SafeConsole) -> None:
    mismatch = Mismatch(what=HOSTILE, recorded=HOSTILE, here=HOSTILE, hint=HOSTILE)
    result = CheckResult(runtime=hostile_gate().base.runtime, loaded=FAILURE, mismatches=(mismatch,))
    show_apply(console, hostile_verdict("faster"), result, "import x\n\nx = 1\n")


def show_merged(console: SafeConsole) -> None:
    record = hostile_verdict("faster")
    dropped = [Sourced(record=record, source=HOSTILE)]
    show_bundle(console, Bundle(schema=RECORD_SCHEMA, records=(record,)), dropped, Path(HOSTILE))


def show_entries(console: SafeConsole) -> None:
    entry = HistoryEntry(time=HOSTILE, name=HOSTILE, decision=HOSTILE, reason=HOSTILE, head=HOSTILE)
    show_history(console, [entry])


SHOWN: dict[str, Callable[[SafeConsole], None]] = {
    "note": lambda console: show_note(console, "written", HOSTILE),
    "verdict": lambda console: show_verdict(console, hostile_verdict("faster"), Path(HOSTILE), Path(HOSTILE)),
    "no verdict": lambda console: show_verdict(console, hostile_verdict("inconclusive"), None),
    "check": show_check,
    "export": lambda console: show_export(
        console, Export(target="ort", text="[/red]\x1b", binary=True, unsupported=(HOSTILE,)), HOSTILE
    ),
    "bench": show_bench,
    "doctor": show_doctor,
    "gates": show_gates,
    "merge": show_merged,
    "history": show_entries,
    "progress": show_search_progress,
    "verification": lambda console: show_verification(console, Verification(answer="holds", reason=HOSTILE)),
}


@pytest.mark.parametrize("width", [60, 300])
@pytest.mark.parametrize("name", SHOWN)
def test_hostile_texts_in_all_output(name: str, width: int) -> None:
    console = SafeConsole(file=io.StringIO(), width=width)
    SHOWN[name](console)
    page = console.file.getvalue()  # type: ignore[attr-defined]
    if width < 100:
        # Lines are broken anywhere.
        assert all(character == "\n" or character.isprintable() for character in page), ascii(page)
    else:
        check_page(page)


@settings(max_examples=40)
@given(config=CONFIGS, name=ALL_TEXTS)
def test_hostile_records_are_shown(config: Config, name: str) -> None:
    console = SafeConsole(file=io.StringIO(), width=100)
    show_verdict(console, hostile_record(config, name), Path("r.json"))
    page = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(character == "\n" or character.isprintable() for character in page)


# Errors.


class TestErrors:
    @pytest.mark.parametrize("kind", [UsageError, ModelError])
    def test_errors_of_the_command_line(self, kind: type[UsageError], capsys: pytest.CaptureFixture[str]) -> None:
        from ortune.cli import show_error

        show_error(kind(HOSTILE, HOSTILE, option="output"))
        page = capsys.readouterr().err
        check_page(page)
        assert len(page.splitlines()) == 2

    def test_details_have_lines_of_their_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        from ortune.cli import show_error

        error = InputsError(HOSTILE, details=[HOSTILE, HOSTILE])
        show_error(error)
        page = capsys.readouterr().err
        check_page(page)
        assert [line[:2] for line in page.splitlines()] == ["er", "  ", "  "]
        check_page(str(error))

    def test_a_record_on_a_terminal(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config(), here=False)
        model = msgspec.structs.replace(record.model, path=f"{HOSTILE}.onnx", digest="sha256:x")
        path = write(msgspec.structs.replace(record, model=model), tmp_path / "r.json")
        for arguments in (("apply", path, TINY_CNN), ("apply", path), ("merge", path, "-o", "m.json")):
            done = run_ortune(*arguments, cwd=tmp_path)
            page = done.stdout + done.stderr
            assert "red]␛[31m�2J" in page
            assert page.replace("\n", "").isprintable()
            assert "Traceback" not in page
        bundle = run_ortune("merge", path, "-o", "-", cwd=tmp_path).stdout
        assert bundle.replace("\n", "").isprintable()
        assert json.loads(bundle)["records"][0]["model"]["path"] == f"{HOSTILE}.onnx"

    def test_json_escapes_what_a_terminal_obeys(self) -> None:
        from ortune.cli.output import encode_json

        data = {"a": HOSTILE, "é\x9b": ["\u202e", "🙂", "\U000e0041"]}
        document = encode_json(data)
        assert json.loads(document) == data
        assert all(character == "\n" or character.isprintable() for character in document.decode())
        assert "🙂" in document.decode()

    def test_bytes_of_names_that_are_not_utf8_are_replaced(self) -> None:
        from ortune.cli.output import encode_json

        odd = os.fsdecode(b"\xff.json")
        data = {
            odd: [odd, 1.5, None, float("nan")],
            "kinds": {1: Mismatch(what="a", recorded=odd, here="c", hint="")},
            "names": frozenset({odd}),
        }
        assert json.loads(encode_json(data, sorted)) == {
            "?.json": ["?.json", 1.5, None, None],
            "kinds": {"1": {"what": "a", "recorded": "?.json", "here": "c", "hint": ""}},
            "names": ["?.json"],
        }

    @given(text=ALL_TEXTS)
    def test_json(self, text: str) -> None:
        document = escape_json(json.dumps({"a": text}, ensure_ascii=False, indent=1))
        assert json.loads(document) == {"a": text}
        assert document.replace("\n", "").isprintable()
        assert not LOG_COMMANDS.search(document)

    def test_the_command_of_a_finding_is_quoted(self) -> None:
        error = Failure(kind="exception", stage="load", message="odd")
        facts = ModelFacts(path='$(touch x)".onnx', original=None, load_error=error)  # type: ignore[arg-type]
        assert check_loading(facts).command.startswith("python -P -c 'import onnx; ")


# Markdown.


def show_markdown(text: str) -> str:
    """Return a page as HTML."""
    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


def read_html(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<page>{html}</page>")


class TestMarkdown:
    @pytest.mark.parametrize(
        ("text", "escaped"),
        [
            ("intra_op_num_threads=1", "intra_op_num_threads=1"),
            ("a|b `c` *d* _e_", "a\\|b \\`c\\` \\*d\\* \\_e\\_"),
            ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
            ("[x](y)", "\\[x\\](y)"),
            ("@team #12 https://x www.x", f"@{BREAK}team #{BREAK}12 https:{BREAK}//x www{BREAK}.x"),
            ("a\nb\x1b", "a b␛"),
        ],
    )
    def test_texts(self, text: str, escaped: str) -> None:
        assert escape_markdown(text) == escaped

    @given(text=ALL_TEXTS)
    def test_a_cell_shows_the_text(self, text: str) -> None:
        page = read_html(show_markdown(f"| head |\n|---|\n| x{escape_markdown(text)}x |\n"))
        (cell,) = page.iter("td")
        assert len(cell) == 0
        assert re.sub(r"\s", "", (cell.text or "").replace("\u200b", "")) == re.sub(r"\s", "", f"x{printable(text)}x")

    @given(text=ALL_TEXTS)
    def test_there_are_no_mentions_and_links(self, text: str) -> None:
        page = read_html(show_markdown(f"x {escape_markdown(text)}"))
        shown = "".join(page.itertext())
        assert not re.search(r"@\w|#\d|://|www\.", shown)

    def test_a_hostile_gate(self) -> None:
        text = f"{HOSTILE} | <script>x</script> @team"
        gate = hostile_gate(reason=text)
        page = render_markdown([gate, GateError(name=text, message=text)])
        assert all(character == "\n" or character.isprintable() for character in page)
        html = read_html(show_markdown(page))
        assert {element.tag for element in html.iter()} == {
            "page",
            "h3",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "ul",
            "li",
            "strong",
        }
        assert [len(row) for row in html.iter("tr")] == [6, 6, 6]


# XML, annotations, plots.


def test_junit() -> None:
    document = render_junit(
        [hostile_gate(), GateError(name=HOSTILE, message="\x00\ufffe]]>")], inconclusive_fails=False
    )
    (suite,) = ElementTree.fromstring(document)
    assert [case.get("name") for case in suite] == [printable(f"{HOSTILE}")] * 2
    assert len((suite[0].findtext("system-out") or "").splitlines()) == 3
    (fault,) = suite[1].iter("error")
    assert fault.get("message") == "␀�]]>"


@given(text=ALL_TEXTS)
def test_junit_is_xml(text: str) -> None:
    document = render_junit([GateError(name=text, message=text)], inconclusive_fails=False)
    (suite,) = ElementTree.fromstring(document)
    assert suite[0].get("name") == printable(text)


@given(text=ALL_TEXTS)
def test_annotations_are_one_command(text: str) -> None:
    (line,) = render_annotations([GateError(name=text, message=text)]).split("\n")[:-1]
    assert line.isprintable()
    # What the runner reads.
    found = re.fullmatch(r"::error title=([^:,]*)::(.*)", line)
    assert found
    title, message = (re.sub("%(25|3A|2C)", lambda code: chr(int(code[1], 16)), group) for group in found.groups())
    assert title == printable(f"ortune gate: {text}")
    assert message == printable(text.strip())
    assert escape_annotation("50%\n") == "50%25 "


@given(text=TEXTS)
def test_no_command_of_github_actions_is_left(text: str) -> None:
    shown = escape_workflow_commands(printable(text))
    assert "::" not in shown and not LOG_COMMANDS.search(shown) and len(shown) == len(text)


COMMANDS = "##[error]forged ##vso[task.setvariable variable=x]y ##teamcity[buildStatus text='x']"
"""Commands of CI services, where a text of a record has them."""


class TestLogs:
    """What a CI service reads in its log."""

    @pytest.mark.parametrize("how", [(), ("--json",), ("--markdown", "-"), ("--junit", "-")])
    @pytest.mark.parametrize("service", [{"GITHUB_ACTIONS": "true"}, {"GITHUB_ACTIONS": None}])
    def test_a_gate_on_a_hostile_record(
        self, how: tuple[str, ...], service: dict[str, str | None], tmp_path: Path
    ) -> None:
        record = make_record(TINY_CNN, Config(), here=False)
        model = msgspec.structs.replace(record.model, path=f"::error::{COMMANDS}.onnx")
        path = write(msgspec.structs.replace(record, model=model), tmp_path / "r.json")
        done = run_ortune("gate", path, path, *how, cwd=tmp_path, environment=service)
        assert done.returncode == 2
        page = f"{done.stdout}\n{done.stderr}"
        assert "forged" in page
        assert not LOG_COMMANDS.search(page)
        # The annotation is a command. It is ortune's own.
        commands = [line for line in page.splitlines() if line.lstrip().startswith("::")]
        assert [line.startswith("::error title=ortune gate%3A gate::") for line in commands] == [True] * len(commands)
        assert len(commands) == bool(service["GITHUB_ACTIONS"])

    @pytest.mark.parametrize("target", ["python", "cpp", "java", "rust", "triton", "onnxruntime-web", "kubernetes"])
    def test_an_export(self, target: str) -> None:
        config = Config(session_options={"logid": COMMANDS}, run_options={"logid": COMMANDS})
        record = make_record(TINY_CNN, config, here=False)
        text = render(target, record, f"{COMMANDS}.onnx").text
        assert not LOG_COMMANDS.search(text)

    def test_a_plan(self) -> None:
        plan = msgspec.structs.replace(make_plan(DEPLOYMENTS["default"]), reason=COMMANDS)
        document = encode_plan(plan)
        assert not LOG_COMMANDS.search(document.decode())
        assert json.loads(document)["reason"] == COMMANDS
