"""Search programs whose answer is known: is harm by another library found and mended, and is nothing else claimed?

    python -m benchmarks.program_harm [--searches 20] [--first 0] [--budget 60] [--objective mean] [--json FILE]
                                      [blas|plain ...]
    python -m benchmarks.program_harm --report FILE

blas: a program multiplies matrices with NumPy between the calls of a session. ONNX Runtime's threads spin meanwhile and
take CPU time from BLAS's threads, so that there is much to gain. Every search must find a faster setting, and prove it.

plain: a program hashes a small buffer, and calls a session of a model that adds four numbers. No search may claim a
gain. Even the tiny model of the tests would be too large: on a CPU with AVX-512, convolutions that ONNX Runtime lays
out for it slow down what follows, and another optimization level gains 2%.

The objective is the mean. In some blocks, calls wait for a CPU; in others, they do not. The median of a block is that
of one or of the other, and differs more between blocks: of 11 searches with `--objective p50`, 6 were inconclusive.

Each search is a process of its own, `ortune search --call ... -- python benchmarks/harm_program.py ...`, with a seed of
its own. Run this on an idle host with at least two cores, after `python -m models.build` for the models. `--first` is
the first seed. With `--json`, results are added to a file, so that a run can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.host import describe_run, write_header
from benchmarks.parts import reopen_rows
from models.build import build
from ortune.knobs import describe
from ortune.record.files import read_records

Row = dict[str, Any]

PROGRAM = Path(__file__).parent / "harm_program.py"

MODEL = "squeezenet"
"""The model of the program with BLAS."""

NOTHING = frozenset({"default_is_best", "nothing_found", "inconclusive"})
"""Verdicts without a claim."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that are removed: BLAS has its usual threads."""


PROGRAMS = ("blas", "plain")


def find_model(program: str, folder: Path) -> Path:
    """Return the path of the model of a program; the smaller one is written to a folder."""
    if program == "blas":
        return Path(build(MODEL))
    path = folder / "addition.onnx"
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "addition", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def search(program: str, budget_s: float, objective: str, seed: int) -> Row:
    """Search one program once, and return what the search says."""
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    with tempfile.TemporaryDirectory(prefix="program-harm-") as folder:
        output = Path(folder) / "tuned.json"
        command = [sys.executable, "-P", "-m", "ortune", "search", "--quiet", "--call", "__main__:Program.step"]
        command += ["--objective", objective]
        command += ["--budget", f"{budget_s:g}s", "--seed", str(seed), "-o", str(output), "--"]
        command += [sys.executable, str(PROGRAM), str(find_model(program, Path(folder))), program]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**environment, "ORTUNE_HISTORY": "off"},
        )
        row: Row = {"program": program, "seed": seed, "code": done.returncode}
        if not output.exists():
            return row | {"verdict": "none", "error": done.stderr[-1000:]}
        (record,) = read_records(output)
    evidence = record.evidence
    row |= {"verdict": evidence.verdict, "reason": evidence.reason, "settings": describe(record.config)}
    row |= {"contended": evidence.noise.n_contended, "blocks": evidence.noise.n_blocks}
    if speedup := evidence.speedup:
        row |= {"estimate": speedup.estimate, "low": speedup.low, "high": speedup.high}
    return row


def is_right(row: Row) -> bool:
    """Return whether a search says what is true of its program."""
    if row["program"] == "blas":
        return bool(row["verdict"] == "faster" and row["low"] > 1)
    return row["verdict"] in NOTHING


def report(rows: Sequence[Row]) -> bool:
    """Print all results, and return whether all searches are right."""
    print()
    for program in PROGRAMS:
        some = [row for row in rows if row["program"] == program]
        if not some:
            continue
        verdicts = ", ".join(f"{name} {count}" for name, count in Counter(row["verdict"] for row in some).most_common())
        print(f"{program}: {sum(map(is_right, some))} of {len(some)} right; {verdicts}")
        lows = [row["low"] for row in some if row["verdict"] == "faster"]
        if lows:
            print(f"  lower bound of the gain: {min(lows):.3f} to {max(lows):.3f}, median {np.median(lows):.3f}")
        for settings, count in Counter(row.get("settings", "") for row in some).most_common():
            print(f"  {count:3} {settings or 'no settings'}")
        for row in some:
            if row["verdict"] == "none":
                print(f"  seed {row['seed']}: {row['error']}")
    return all(map(is_right, rows))


def main() -> int:
    """Run the searches, the programs in turn, so that a busy period of the host does not affect only one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=" or ".join(PROGRAMS))
    parser.add_argument("--searches", type=int, default=20, help="searches of each program")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0, help="budget of each search, in seconds")
    parser.add_argument("--objective", default="mean")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(PROGRAMS)}")
    if options.report:
        return not report(reopen_rows(options.report))
    print(write_header())
    rows = []
    for seed in range(options.first, options.first + options.searches):
        for program in options.programs or PROGRAMS:
            row = search(program, options.budget, options.objective, seed)
            rows.append(row)
            if options.json:
                with options.json.open("a") as file:
                    file.write(json.dumps({**describe_run(), **row}) + "\n")
            gain = f"{row['estimate']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if "low" in row else ""
            print(f"{seed:3} {program:5} {row['verdict']:15} {gain:22} {row.get('settings', '')}", flush=True)
    return not report(rows)


if __name__ == "__main__":
    sys.exit(main())
