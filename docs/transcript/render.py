"""Records a search, and renders what the console prints for it.

`search.json` has the host and the last progress report of each stage, `tuned.json` is the record.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ortune.console.progress import SearchProgress
from ortune.console.safe_console import SafeConsole
from ortune.console.search import show_search
from ortune.console.verdict import show_verdict
from ortune.host import Host, read_host
from ortune.host.allocators import find_allocators
from ortune.knobs import Candidate, Config, build_space
from ortune.knobs.twins import list_graph_variants
from ortune.measure.comparison import Stage
from ortune.measure.interval import Interval
from ortune.record.files import path_of_trials, read_record
from ortune.replaceable import replaced
from ortune.requests import SearchRequest
from ortune.tuning.outcome import Progress
from ortune.tuning.prepare import PreparedSearch, make_space_options, prepare
from ortune.tuning.search import search
from ortune.worker.graphs import digest_graphs
from ortune.worker.installed import RuntimePackage, find_runtime_packages
from ortune.worker.providers import choose_providers
from ortune.worker.runtime import ask_for_runtime

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
README = ROOT / "README.md"

MODEL = "models/tiny_cnn.onnx"
OUTPUT = "tuned.json"
COMMAND = f"ortune search {MODEL} -o {OUTPUT}"

WIDTH = 80
"""Columns of the terminal."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress report of a stage, as in `Progress`."""

    stage: Stage
    done: int
    total: int | None
    best: Config
    speedup: Interval


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What the record of a search does not have, but the console prints.

    Attributes:
        host: The host.
        allocators: Names of the installed allocators, which the space contains.
        digests: Digests of the optimized graphs that the search compared; empty if it compared none.
        reports: The last progress report of each stage.
    """

    host: Host
    allocators: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    reports: tuple[Report, ...]


def record_search() -> None:
    """Run the search on this host, and write its record and its recording."""
    output = HERE / OUTPUT
    output.unlink(missing_ok=True)
    last: dict[str, Progress] = {}
    # The record has the path of the model as it is given.
    with contextlib.chdir(ROOT):
        prepared = prepare(SearchRequest(model=MODEL, output=output, provider=("cpu",), history=False))
        result = search(prepared, lambda progress: last.__setitem__(progress.stage, progress))
        options = make_space_options(prepared.request, choose_providers(("cpu",), {}))
        variants = list_graph_variants(build_space(prepared.host, prepared.model, options))
        digests = digest_graphs(prepared.model, [variant.config for variant in variants])
    path_of_trials(output).unlink()
    reports = tuple(make_report(progress) for progress in last.values())
    recording = Recording(host=prepared.host, allocators=tuple(find_allocators()), digests=digests, reports=reports)
    (HERE / "search.json").write_bytes(msgspec.json.format(msgspec.json.encode(recording)) + b"\n")
    assert result.record.evidence.verdict == "faster", "the transcript shows a search that finds something"


def make_report(progress: Progress) -> Report:
    """Return what to record of a progress report."""
    assert progress.best and progress.speedup
    speedup = progress.speedup
    return Report(
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
        best=progress.best.config,
        speedup=Interval(estimate=speedup.estimate, low=speedup.low, high=speedup.high, confidence=speedup.confidence),
    )


def render() -> str:
    """Return the command and its output."""
    recording = msgspec.json.decode((HERE / "search.json").read_bytes(), type=Recording)
    record = read_record(HERE / OUTPUT)
    console = SafeConsole(file=io.StringIO(), width=WIDTH, no_color=True)
    show_search(console, prepare_on(recording))
    console.print(draw_progress(recording.reports).render())
    show_verdict(console, record, Path(OUTPUT))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in (f"$ {COMMAND}", *text.splitlines()))


def prepare_on(recording: Recording) -> PreparedSearch:
    """Return the prepared search as on the host of a recording. Nothing of this host changes it."""
    runtime = read_record(HERE / OUTPUT).runtime
    replacements: dict[Callable[..., Any], Callable[..., Any]] = {
        read_host: lambda **options: recording.host,
        find_allocators: lambda: dict.fromkeys(recording.allocators, ""),
        find_runtime_packages: lambda: (RuntimePackage("onnxruntime", runtime.onnxruntime),),
        ask_for_runtime: lambda: runtime,
        digest_graphs: lambda model, configs: recording.digests or ("",) * len(configs),
    }
    with replaced(replacements):
        return prepare(SearchRequest(model=str(ROOT / MODEL), provider=("cpu",), history=False))


def draw_progress(reports: tuple[Report, ...]) -> SearchProgress:
    """Return the progress as it is when the search is done."""
    progress = SearchProgress(SafeConsole(file=io.StringIO(), width=WIDTH, force_terminal=True))
    for report in reports:
        best = Candidate(config=report.best)
        progress(
            Progress(
                stage=report.stage, done=report.done, total=report.total, left_s=0.0, best=best, speedup=report.speedup
            )
        )
    progress.finish()
    return progress


def find(page: str) -> re.Match[str]:
    """Return the transcript in a page: a fenced block that starts with the command. Group 1 is its text."""
    found = re.search(rf"^```\w*\n(\$ {re.escape(COMMAND)}\n.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    assert found, f"there is no fenced block that starts with `$ {COMMAND}`"
    return found


def replace(page: str, transcript: str) -> str:
    """Return a page with another transcript."""
    found = find(page)
    return page[: found.start(1)] + transcript + page[found.end(1) :]


def normalize(text: str) -> list[str]:
    """Return the lines of a transcript with all numbers alike and without alignment."""
    return [" ".join(re.sub(r"\d+(?:[.,]\d+)*", "0", line).split()) for line in text.splitlines()]
