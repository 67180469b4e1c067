"""Compare ortune-apply with ortune: size on disk, and what they add to the start of a program.

    python -m benchmarks.footprint [--runs 40] [--json FILE]

Both are installed from this checkout into new virtual environments that have onnxruntime, and are compared with an
environment that has only onnxruntime. Each start runs `python -c pass`, directly and under each command, in random
order. The CPU time of a start hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.host import describe_run, write_header
from ortune.knobs import Config
from tests.records import make_record, write

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "models" / "tiny_cnn.onnx"

PROJECTS = {"onnxruntime": None, "ortune": ROOT, "ortune-apply": ROOT / "ortune" / "apply" / "distribution"}
MODULES = {"ortune": ("ortune", "apply"), "ortune-apply": ("ortune_apply",)}
"""Arguments of `python -m` that begin the command."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {**describe_run()}
    print(write_header())
    with tempfile.TemporaryDirectory() as folder:
        pythons = {name: install(Path(folder, name), project) for name, project in PROJECTS.items()}
        sizes = {name: measure_size(Path(folder, name)) for name in PROJECTS}
        for name in MODULES:
            row = {key: sizes[name][key] - sizes["onnxruntime"][key] for key in sizes[name]}
            found[name] = row
            print(
                f"{name:<13} adds {row['packages']:2} packages, {row['files']:5} files, {row['bytes'] / 1e6:6.1f} MB "
                "to onnxruntime"
            )
        record = write(make_record(MODEL, Config(session_options={"intra_op_num_threads": 1})), Path(folder, "r.json"))
        times = time_starts(pythons, record, options.runs)
    for name in MODULES:
        starts: dict[str, float] = {}
        for index, kind in enumerate(("wall", "cpu")):
            plain, median = (statistics.median(start[index] for start in times[side]) for side in ("python", name))
            starts |= {f"{kind}_ratio": median / plain, f"{kind}_added_ms": (median - plain) * 1e3}
        found[f"start under {name}"] = starts
        print(
            f"{name:<13} python -c pass takes {starts['wall_ratio']:.2f} times as long "
            f"({starts['wall_added_ms']:.0f} ms more) and {starts['cpu_ratio']:.2f} times the CPU time "
            f"({starts['cpu_added_ms']:.0f} ms more)"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def install(folder: Path, project: Path | None) -> Path:
    """Create an environment with onnxruntime and a project. Return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    what = ["onnxruntime", *([str(project)] if project else [])]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *what], check=True)
    return python


def measure_size(folder: Path) -> dict[str, int]:
    """Return the number of packages and files of an environment, and their bytes, without bytecode."""
    (packages,) = folder.glob("lib/*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {
        "packages": len(list(packages.glob("*.dist-info"))),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def time_starts(pythons: dict[str, Path], record: Path, n_runs: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall time and CPU time of starts in seconds, of `python -c pass` alone and under each command."""
    program = [str(pythons["onnxruntime"]), "-c", "pass"]
    commands = {"python": program} | {
        name: [str(pythons[name]), "-P", "-m", *module, str(record), "--quiet", "--", *program]
        for name, module in MODULES.items()
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for run in range(n_runs + 1):
        for name in random.sample(sorted(commands), len(commands)):
            start, cpu = time.perf_counter(), read_cpu_s()
            subprocess.run(commands[name], check=True)
            if run:  # the first run writes bytecode
                times[name].append((time.perf_counter() - start, read_cpu_s() - cpu))
    return times


def read_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
