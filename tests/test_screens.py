"""What a search shows on terminals of three sizes, and in a pipe, as text files in tests/data/screens.

`pytest tests/test_screens.py --golden` writes the files.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest

from docs.transcript.render import HERE, OUTPUT, Recording, prepare_on
from ortune.console.progress import SearchProgress
from ortune.console.safe_console import SafeConsole
from ortune.console.search import show_search
from ortune.console.verdict import show_verdict
from ortune.console.widgets import LOG_WIDTH
from ortune.knobs import Candidate, Config
from ortune.record.files import read_record
from ortune.tuning.outcome import Progress
from tests.conftest import ROOT, run_ortune

pytestmark = pytest.mark.usefixtures("models_read_here")

SCREENS = ROOT / "tests" / "data" / "screens"

TERMINALS = {"45x20": (45, 20), "80x24": (80, 24), "200x50": (200, 50)}

LONG = Config(
    session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL", "enable_cpu_mem_arena": False},
    session_config={"session.intra_op.allow_spinning": "0", "session.dynamic_block_base": "4"},
)


def draw_screens(console: SafeConsole) -> str:
    """Return what a search prints: the header, the progress in each stage, the verdict."""
    recording = msgspec.json.decode((HERE / "search.json").read_bytes(), type=Recording)
    record = read_record(HERE / OUTPUT)
    show_search(console, prepare_on(recording.host))
    terminal = SafeConsole(file=io.StringIO(), width=console.width, force_terminal=True)
    with SearchProgress(terminal) as progress:
        for number, each in enumerate(recording.reports):
            report = Progress(
                stage=each.stage,
                done=each.done // 2,
                total=each.total,
                share=0.5,
                left_s=40.0 - 15 * number,
                may_end_early=each.stage != "confirmation",
                best=Candidate(config=LONG),
                speedup=each.speedup,
            )
            progress(report)
            console.print(progress.render())
            console.print()
    progress.finish()
    console.print(progress.render())
    show_verdict(console, record, Path(OUTPUT))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def check_file(name: str, text: str, config: pytest.Config) -> None:
    path = SCREENS / f"{name}.txt"
    if config.getoption("golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", TERMINALS)
def test_a_terminal_without_color(name: str, pytestconfig: pytest.Config) -> None:
    width, height = TERMINALS[name]
    console = SafeConsole(file=io.StringIO(), width=width, height=height, force_terminal=True, no_color=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", draw_screens(console))
    assert "\x1b" not in text
    # The last line is a command to copy.
    assert all(len(line) <= width for line in text.splitlines()[:-1])
    assert "…" not in text
    assert "graph_optimization_level" in text
    assert text.count("1.33x [1.33, 1.33]") == 4
    check_file(name, text, pytestconfig)


def test_a_pipe(pytestconfig: pytest.Config) -> None:
    text = draw_screens(SafeConsole(file=io.StringIO(), width=LOG_WIDTH, force_terminal=False))
    assert "\x1b" not in text
    check_file("piped", text, pytestconfig)


@pytest.mark.parametrize("columns", [45, 80, 200])
def test_help_shows_no_type_of_flags(columns: int, tmp_path: Path) -> None:
    for arguments in (["--help"], ["search", "--help"], ["apply", "--help"]):
        assert "<bool>" not in run_ortune(*arguments, cwd=tmp_path, columns=columns).stdout


def test_help_has_panels(tmp_path: Path) -> None:
    text = run_ortune("search", "--help", cwd=tmp_path).stdout
    titles = re.findall(r"^╭─ ([\w ]+?) ─", text, re.MULTILINE)
    assert titles == [
        "Arguments",
        "Options",
        "Load",
        "Objective",
        "Inputs",
        "Search space",
        "Measuring",
        "Output check",
        "Output",
    ]
