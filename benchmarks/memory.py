"""Search a model of several gigabytes in containers with little memory, whose page cache already holds the model.

    python -m benchmarks.memory [--limits 12 5] [--model-size 3] [--budget 60]

Sizes are in GB. Each limit is that of a cgroup with the memory controller, v1 or v2, below that of this process. Making
one needs root. The model is a chain of matrix multiplications with external data, in a temporary folder.

Target: each search runs and ends by its budget, with several live workers if their sessions fit into memory, else with
one at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from benchmarks.host import write_header
from ortune.host.linux import cgroup_directories
from ortune.record.files import read_record

WIDTH = 4096
GB = 10**9

TIMEOUT_FACTOR = 3
"""A search that takes this many times its budget is ended."""


def write_model(folder: Path, size_bytes: int) -> Path:
    """Write a chain of matrix multiplications, whose weights are in an external file."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
    count = round(size_bytes / weights.nbytes)
    tensors, nodes = [], []
    with (folder / "weights.bin").open("wb") as file:
        for number in range(count):
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=weights.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", file.tell()), ("length", weights.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            file.write(np.roll(weights, number, axis=0).tobytes())
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"x{number + 1}"]))
        os.fsync(file.fileno())
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    path = folder / "chain.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return path


def drop_cache(path: Path) -> None:
    """Drop a file from the page cache, which is charged to the cgroup that reads the file first."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def limit_memory(limit_bytes: int) -> Iterator[Path]:
    """Make a cgroup with a memory limit below that of this process, and remove it at the end."""
    for controller, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        for directory in cgroup_directories(Path("/"), controller)[:1]:
            group = directory / f"ortune-{os.getpid()}"
            try:
                group.mkdir()
                try:
                    (group / name).write_text(str(limit_bytes))
                    yield group
                    return
                finally:
                    group.rmdir()
            except OSError as error:
                raise SystemExit(f"cannot use a cgroup in {directory}: {error}") from None
    raise SystemExit("there is no cgroup with the memory controller")


def run_within(group: Path, command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command in a cgroup."""
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return subprocess.run(
        ["sh", "-c", enter, str(group), *command], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def read_number(group: Path, *names: str) -> float:
    """Return the first of some files of a cgroup that exists, in GB."""
    return next((int((group / name).read_text()) / GB for name in names if (group / name).exists()), float("nan"))


def read_cache(group: Path) -> float:
    """Return the page cache of a cgroup, in GB."""
    return (
        sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE))) / GB
    )


def search_within(model: Path, limit_gb: float, budget_s: float) -> None:
    """Search within a memory limit, and print how it went."""
    weights = model.with_name("weights.bin")
    drop_cache(weights)
    output = model.with_name(f"{limit_gb:g}.json")
    options = ["--budget", f"{budget_s:g}s", "--no-history", "-o", str(output)]
    with limit_memory(int(limit_gb * GB)) as group:
        for _ in range(2):  # the second time makes the cache active, so that the kernel prefers to keep it
            run_within(group, ["sha256sum", str(model), str(weights)], 300)
        used, cache = read_number(group, "memory.usage_in_bytes", "memory.current"), read_cache(group)
        print(f"\n{limit_gb:g} GB: before the search, {used:.1f} GB are used, {cache:.1f} GB of it as page cache")
        start_s = time.monotonic()
        command = [sys.executable, "-P", "-m", "ortune", "search", str(model), *options]
        done = run_within(group, command, TIMEOUT_FACTOR * budget_s)
        wall_s = time.monotonic() - start_s
        peak = read_number(group, "memory.max_usage_in_bytes", "memory.peak")
    print(f"exit code {done.returncode} after {wall_s:.0f} s; with page cache, at most {peak:.1f} GB were in use")
    if not output.exists():
        print(done.stdout + done.stderr)
        return
    record = read_record(output)
    evidence, search = record.evidence, record.search
    how = "one worker at a time" if evidence.noise.one_at_a_time else "several live workers"
    failed = ", ".join(f"{count} {kind}" for kind, count in search.failed.items()) or "none"
    print(f"{how}; {search.n_tried} candidates tried; failed: {failed}; {evidence.noise.n_blocks} blocks")
    print("; ".join(f"{stage.stage} {stage.wall_s:.0f} s" for stage in search.stages))
    print(f"{evidence.verdict}: {evidence.reason}")
    if evidence.speedup and evidence.baseline and evidence.winner:
        speedup = evidence.speedup
        print(
            f"{speedup.estimate:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}] from {speedup.n_pairs} pairs in "
            f"{speedup.n_launches} launches; p50 {evidence.baseline.p50_ns / 1e6:.0f} and "
            f"{evidence.winner.p50_ns / 1e6:.0f} ms; a worker took {(evidence.baseline.peak_bytes or 0) / GB:.1f} GB, "
            f"and {evidence.baseline.load_ns / 1e9:.1f} s to create its session"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=float, nargs="+", default=[12, 5], help="memory limits in GB")
    parser.add_argument("--model-size", type=float, default=3, help="size of the weights in GB")
    parser.add_argument("--budget", type=float, default=60, help="budget of each search in seconds")
    arguments = parser.parse_args()
    print(write_header())
    with tempfile.TemporaryDirectory(prefix="ortune-memory-") as folder:
        model = write_model(Path(folder), int(arguments.model_size * GB))
        print(f"model with {model.with_name('weights.bin').stat().st_size / GB:.2f} GB of weights")
        for limit_gb in arguments.limits:
            search_within(model, limit_gb, arguments.budget)


if __name__ == "__main__":
    main()
