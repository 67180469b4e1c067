"""Runs a benchmark in parts: its rows are added to a file, and reported together in the end."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.host import describe_run, write_header

Row = dict[str, Any]


def add_part_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark that can be run in parts."""
    parser.add_argument("--first", type=int, default=0, help="number of the first row")
    parser.add_argument("--json", type=Path, help="file to which rows are added")
    parser.add_argument("--report", type=Path, help="report the rows of this file, and run nothing")


def reopen_rows(path: Path) -> list[Row]:
    """Print where the rows of a file are from, and return them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print(write_header(*rows))
    return rows


def run_part(rows: Iterable[Row], path: Path | None, show: Callable[[Row], str]) -> list[Row]:
    """Print rows as soon as they are measured, and add each to a file.

    Args:
        rows: The rows, which are measured meanwhile.
        path: The file; None for none.
        show: Returns what is printed of a row.

    Returns:
        The rows.
    """
    print(write_header())
    done = []
    for measured in rows:
        row = {**describe_run(), **measured}
        done.append(row)
        if path:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(show(measured), flush=True)
    return done


def take_signals() -> None:
    """Let this process and the searches that it starts be interrupted.

    A background job of a script ignores SIGINT, and one of nohup SIGHUP. Its processes would do so, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def show_without_output(row: Row) -> str:
    """Return a row as JSON, without what a search printed."""
    return json.dumps({key: value for key, value in row.items() if key != "output"})


def show_faulty(rows: Sequence[Row]) -> None:
    """Print rows with a fault, with what their searches printed."""
    for row in rows:
        if row["faults"]:
            print(show_without_output(row))
            print(row.get("output", ""))
