"""Compare settings that were chosen by hand with a program as it is: what can a search find at most on this host?

    python -m benchmarks.program_compare [--home FOLDER] [--budget 120] [--json FILE] [NAME ...]

The programs are those of `benchmarks.program_zoo` that profit from settings: OCR, a server, two processes. All settings
and the program as it is are measured in interleaved rounds, in fresh launches. The intervals are those of single
comparisons. Run this on an idle host.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from benchmarks.host import describe_run, write_header
from benchmarks.parts import Row
from benchmarks.program_zoo import ZOO, install, make_command
from models.build import build
from ortune.knobs import DEFAULT, Config
from ortune.measure.evaluate import evaluate
from ortune.measure.paired_run import PairedRun, Side
from ortune.options import make_request
from ortune.program.prepare import prepare_program
from ortune.program.search import open_program
from ortune.requests import ProgramSearchRequest
from ortune.tuning.plan import split_budget

NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}

SETTINGS = {
    "spinning off": Config(session_config=NO_SPINNING),
    "spinning off, arena on": Config(session_options={"enable_cpu_mem_arena": True}, session_config=NO_SPINNING),
    "arena on": Config(session_options={"enable_cpu_mem_arena": True}),
    "one thread": Config(session_options={"intra_op_num_threads": 1}),
}
"""Settings for all sessions of a program. The OCR package turns the memory arena off."""

CHOSEN = {
    "ocr": ("spinning off", "arena on", "spinning off, arena on", "one thread"),
    "server": ("spinning off", "one thread"),
    "processes": ("spinning off", "one thread"),
}


def compare(name: str, commands: Path, budget_s: float) -> list[Row]:
    """Compare the settings of one program."""
    program = ZOO[name]
    options = dict(zip(program.measure[::2], program.measure[1::2], strict=False))
    values: dict[str, Any] = {option.removeprefix("--"): value for option, value in options.items()}
    values |= {"maximize": "--maximize" in program.measure}
    values |= {"command": make_command(program, commands, program.n), "budget": budget_s}
    sides = [Side(name="as it is", config=DEFAULT)]
    sides += [Side(name=setting, config=SETTINGS[setting]) for setting in CHOSEN[name]]
    with open_program(prepare_program(make_request(ProgramSearchRequest, values))) as opened:
        runner = opened.runner
        plan = split_budget(
            opened.goal,
            opened.calibration,
            left_s=budget_s,
            free_bytes=opened.free_bytes,
            one_at_a_time=runner.one_at_a_time,
        )
        run = PairedRun(sides, opened.goal.load)
        run.measure(runner, plan.confirmation, end_s=runner.now_s() + budget_s)
        comparison = evaluate(run.in_one_regime(), opened.goal, runner)
    baseline, *others = comparison.rows
    rows = []
    for row in others:
        found: Row = {"program": name, "settings": row.name}
        if row.speedup and row.summary and baseline.summary:
            found |= {"estimate": row.speedup.estimate, "low": row.speedup.low, "high": row.speedup.high}
            found["cpu"] = row.summary.cpu_ns_per_call / baseline.summary.cpu_ns_per_call
        else:
            found["failure"] = str(row.failure)
        rows.append(found)
    return rows


def main() -> None:
    """Compare the settings of the programs that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(CHOSEN))
    parser.add_argument("--home", type=Path, default=Path("models/cache/programs"), help="where packages are installed")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each program")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    commands = install(arguments.home.resolve())
    print(write_header(), flush=True)
    rows: list[Row] = []
    for name in arguments.names:
        os.environ["MODEL"] = str(build(ZOO[name].model).resolve())
        for row in compare(name, commands, arguments.budget):
            rows.append(row)
            shown = (
                row.get("failure")
                or f"{row['estimate']:.3f}x [{row['low']:.3f}, {row['high']:.3f}], CPU {row['cpu']:.2f}x"
            )
            print(f"{name:9} {row['settings']:22} {shown}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({**describe_run(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
