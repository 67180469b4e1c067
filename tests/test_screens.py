"""What commands show on terminals of three sizes, and a search in a pipe, as text files in tests/data/screens.

`pytest tests/test_screens.py --golden` writes the files.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from docs.transcript.render import HERE, OUTPUT, Recording, prepare_on
from ortune import Config, Progress, read_record
from ortune.console.bench import show_comparison
from ortune.console.doctor import show_diagnosis
from ortune.console.gate import GateDisplay
from ortune.console.plan import show_plan
from ortune.console.progress import SearchProgress
from ortune.console.safe_console import SafeConsole
from ortune.console.search import show_search
from ortune.console.verdict import show_verdict
from ortune.console.widgets import LOG_WIDTH
from ortune.doctor.findings import Diagnosis, DoctorFinding, SkippedCheck
from ortune.export import TARGETS, render
from ortune.knobs import Candidate
from ortune.numbers import format_interval, format_ratio
from ortune.report.make import make_page
from ortune.report.source import read_source
from tests.conftest import ROOT, long_params, run_ortune
from tests.gate_results import make_result, make_results
from tests.simulated import Scenario, simulate
from tests.test_console import make_bench_result
from tests.test_planning import make_example

pytestmark = pytest.mark.usefixtures("models_read_here")

SCREENS = ROOT / "tests" / "data" / "screens"

TERMINALS = {"45x20": (45, 20), "80x24": (80, 24), "200x50": (200, 50)}

LONG = Config(
    session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL", "enable_cpu_mem_arena": False},
    session_config={"session.intra_op.allow_spinning": "0", "session.dynamic_block_base": "4"},
)


def read_recording() -> Recording:
    return msgspec.json.decode((HERE / "search.json").read_bytes(), type=Recording)


def draw_screens(console: SafeConsole) -> str:
    """Return what a search prints: the header, the progress in each stage, the verdict."""
    recording = read_recording()
    record = read_record(HERE / OUTPUT)
    show_search(console, prepare_on(recording))
    terminal = SafeConsole(file=io.StringIO(), width=console.width, force_terminal=True)
    with SearchProgress(terminal) as progress:
        for number, recorded in enumerate(recording.reports):
            report = Progress(
                stage=recorded.stage,
                done=recorded.done // 2,
                total=recorded.total,
                share=0.5,
                left_s=40.0 - 15 * number,
                may_end_early=recorded.stage != "confirmation",
                best=Candidate(config=LONG),
                speedup=recorded.speedup,
            )
            progress(report)
            console.print(progress.render())
            console.print()
    progress.finish()
    console.print(progress.render())
    show_verdict(console, record, Path(OUTPUT))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def draw_bench(console: SafeConsole) -> None:
    """Print a bench of two configs, one of which failed."""
    show_comparison(console, make_bench_result())


def draw_gates(console: SafeConsole) -> None:
    """Print a gate with its charts, then one of each decision."""
    GateDisplay(console).show(make_result())
    display = GateDisplay(console)
    results = make_results()
    for result in results:
        display.finish(result)
    display.show_all(results)


def draw_doctor(console: SafeConsole) -> None:
    """Print a diagnosis with findings of all severities."""
    finding = DoctorFinding(
        check="threads",
        severity="problem",
        what="8 threads for a quota of 2 CPUs",
        why="They use up the quota early in each period, and all calls then wait for the next one",
        fix="Use as many threads as the quota has CPUs",
        command="ortune bench model.onnx --set intra_op_num_threads=2",
    )
    findings = (
        finding,
        msgspec.structs.replace(finding, check="shapes", severity="advice", what="the batch has no fixed size"),
        DoctorFinding(check="opset", severity="ok", what="opset 17 is supported", why="", fix=""),
        DoctorFinding(check="providers", severity="ok", what="all nodes run on the CPU", why="", fix=""),
    )
    diagnosis = Diagnosis(
        model="model.onnx",
        size_bytes=4_950_000,
        opset=17,
        n_nodes=66,
        n_optimized=34,
        onnxruntime="1.32.0",
        findings=findings,
        skipped=(SkippedCheck(check="speed", why="the model needs inputs", fix="Add --shape image=1x3x224x224"),),
    )
    show_diagnosis(console, diagnosis)


def draw_plan(console: SafeConsole) -> None:
    """Print a plan of three deployments."""
    show_plan(console, make_example(), Path("plan.json"))


def check_file(name: str, text: str, config: pytest.Config) -> None:
    path = SCREENS / f"{name}.txt"
    if config.getoption("golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


DRAWN = (draw_bench, draw_gates, draw_doctor, draw_plan)


@pytest.mark.parametrize("name", TERMINALS)
def test_a_terminal_without_color(name: str, pytestconfig: pytest.Config) -> None:
    width, height = TERMINALS[name]
    console = SafeConsole(file=io.StringIO(), width=width, height=height, force_terminal=True, no_color=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", draw_screens(console))
    assert "\x1b" not in text
    # The last line is a command to copy.
    assert all(len(line) <= width for line in text.splitlines()[:-1])
    assert "…" not in text
    assert all(name in text for name in read_record(HERE / OUTPUT).config.session_options)
    # Of screening, in each stage and at the end.
    reports = read_recording().reports
    first = reports[0].speedup
    assert text.count(f"{format_ratio(first.estimate)} {format_interval(first.low, first.high)}") == 1 + len(reports)
    check_file(name, text, pytestconfig)


@pytest.mark.parametrize("size", TERMINALS)
@pytest.mark.parametrize(("command", "draw"), [(function.__name__[5:], function) for function in DRAWN])
def test_other_commands(
    command: str, draw: Callable[[SafeConsole], None], size: str, pytestconfig: pytest.Config
) -> None:
    width, height = TERMINALS[size]
    console = SafeConsole(file=io.StringIO(), width=width, height=height, force_terminal=True, no_color=True)
    draw(console)
    printed: str = console.file.getvalue()  # type: ignore[attr-defined]
    text = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()) + "\n"
    # Commands to copy are never wrapped.
    assert all(len(line) <= width or "ortune bench" in line for line in text.splitlines())
    assert "\x1b" not in text and "…" not in text
    check_file(f"{command}-{size}", text, pytestconfig)


def test_a_pipe(pytestconfig: pytest.Config) -> None:
    text = draw_screens(SafeConsole(file=io.StringIO(), width=LOG_WIDTH, force_terminal=False))
    assert "\x1b" not in text
    check_file("piped", text, pytestconfig)


def test_a_record_is_drawn_alike_on_all_hosts() -> None:
    """Whatever they have: their CPUs, their quota, and the allocator that the record names."""
    found = []
    for scenario in (Scenario(quota=1.5), Scenario(n_cores=48, smt=2, allocators=("jemalloc", "tcmalloc"))):
        with simulate(scenario):
            screen = draw_screens(SafeConsole(file=io.StringIO(), width=LOG_WIDTH, force_terminal=False))
            page = make_page(read_source(str(HERE / OUTPUT)), OUTPUT)
            recorded = read_record(HERE / OUTPUT)
            config = msgspec.structs.replace(recorded.config, allocator="jemalloc")
            record = msgspec.structs.replace(recorded, config=config)
            console = SafeConsole(file=io.StringIO(), width=LOG_WIDTH, force_terminal=False)
            show_verdict(console, record, Path(OUTPUT))
            screen += console.file.getvalue()  # type: ignore[attr-defined]
            exports = [render(name, record, "m.onnx") for name, target in TARGETS.items() if not target.binary]
            found.append((screen, page, exports))
    assert found[0] == found[1]
    assert "LD_PRELOAD=libjemalloc.so.2" in found[0][0]


@pytest.mark.parametrize("columns", [200, *long_params(45, 80)])
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
