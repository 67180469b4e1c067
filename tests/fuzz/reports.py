"""Files that reports are made of: records, results of benches, histories."""

from __future__ import annotations

import functools
import json

from tests.fuzz.mutation import make_json_mutation
from tests.fuzz.records import names_of_settings, record_seeds
from tests.fuzz.target import DATA, Target, attempt, write_input


@functools.cache
def report_seeds() -> tuple[bytes, ...]:
    bench = json.loads((DATA / "report" / "bench.json").read_bytes())
    for row in bench["rows"]:
        row["pairs"] = [launch[:2] for launch in row.get("pairs", ())]
    front = (DATA / "report" / "front.json").read_bytes()
    return (json.dumps(bench).encode(), json.dumps(bench).encode(), front, *record_seeds()[:4])


def run_report(data: bytes) -> None:
    """Recognize a file, make the page about it, and write the page as HTML."""
    from ortune.report.make import make_page
    from ortune.report.source import read_source
    from ortune.report.write import render_page

    path = write_input("x.json", data)
    if source := attempt(read_source, str(path)):
        render_page(make_page(source, "x.json")).encode("utf-8", "replace")


REPORTS = Target(run_report, report_seeds, make_json_mutation(names_of_settings))
