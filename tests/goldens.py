"""The commands of `test_goldens.py`, each on a simulated host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.simulated import Effect, Scenario

FASTER = Scenario()
"""One thread is twice as fast as the default, and keeps one CPU busy instead of 1.8."""

NOTHING = Scenario(effects=())
"""No setting changes anything."""

NOISY = Scenario(
    effects=(Effect(settings={"intra_op_num_threads": 1}, factor=0.98),), block_noise=0.3, launch_noise=0.1
)
"""One thread is 2 % faster, which this host is too noisy to show."""

BUSY = Scenario(contended_share=0.7, block_noise=0.05)
"""Other processes use the CPUs in most blocks."""

QUOTA = Scenario(n_cores=8, quota=2.0, effects=(Effect(settings={"intra_op_num_threads": 2}, factor=0.4),))
"""A container with 2 CPUs of a host with 8 cores."""

SERVER = Scenario(
    n_cores=16,
    smt=2,
    n_nodes=2,
    memory_bytes=64_000_000_000,
    effects=(
        Effect(cpus=16.0),
        Effect(settings={"intra_op_num_threads": 8}, factor=0.7, cpus=8.0),
        Effect(settings={"session.intra_op.allow_spinning": "0"}, factor=1.1),
        Effect(settings={"allocator": "jemalloc"}, factor=0.9),
    ),
    allocators=("jemalloc",),
)
"""Two NUMA nodes, jemalloc."""

FAILING = Scenario(
    effects=(
        *FASTER.effects,
        Effect(settings={"execution_mode": "ORT_PARALLEL"}, failure="crash"),
        Effect(settings={"graph_optimization_level": "ORT_ENABLE_EXTENDED"}, failure="wrong_output"),
        Effect(settings={"session.intra_op.allow_spinning": "0"}, dies=True),
        Effect(settings={"enable_cpu_mem_arena": False}, failure="out_of_memory"),
    )
)
"""Several candidates fail, each in another way."""

BROKEN = Scenario(effects=(Effect(failure="crash"),))
"""The default crashes."""

SHARED = Scenario(
    competes=True,
    effects=(Effect(cpus=2.0), Effect(settings={"intra_op_num_threads": 1}, factor=1.2, cpus=1.0)),
)
"""Callers share two cores, so that one thread is best under load."""

WORSE = Scenario(effects=(Effect(settings={"intra_op_num_threads": 1}, factor=1.5),))
"""One thread is slower than the default."""

SLOWER_HEAD = Scenario(models={"new.onnx": 1.2})
"""The new model is 20 % slower."""

FASTER_HEAD = Scenario(models={"new.onnx": 0.8})
"""The new model is 20 % faster."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a golden.

    Attributes:
        command: Its arguments, as in a shell.
        scenario: The host.
        columns: Width of the terminal.
        files: Files that are written before.
        environment: Environment variables.
        without: Endings of names of files whose content is not compared.
    """

    command: str
    scenario: Scenario = FASTER
    columns: int = 80
    files: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    without: tuple[str, ...] = (".trials.jsonl.gz", ".unfinished.jsonl", ".journal", ".lock")


def step(command: str, scenario: Scenario = FASTER, **options: Any) -> Step:
    """Return a step."""
    return Step(command=command, scenario=scenario, **options)


SEARCH = "search model.onnx -o tuned.json --budget 20s"

SCREEN_ONLY = (".json", ".gz")

RECORD = step(f"{SEARCH} --quiet", without=SCREEN_ONLY)

GATES = """
[gate.model]
base = "model.onnx"
head = "new.onnx"
budget = "20s"

[gate.throughput]
base = "model.onnx"
head = "new.onnx"
clients = 2
budget = "20s"
"""

GOLDENS: dict[str, tuple[Step, ...]] = {
    "search-faster": (step(f"{SEARCH} --explain"),),
    "search-trials": (step(f"{SEARCH} --quiet", without=(".ortune.json",)),),
    "search-45-columns": (step(SEARCH, columns=45, without=SCREEN_ONLY),),
    "search-200-columns": (step(SEARCH, columns=200, without=SCREEN_ONLY),),
    "search-json": (step("search model.onnx -o - --budget 20s --json"),),
    "search-nothing": (step(SEARCH, NOTHING),),
    "search-inconclusive": (step(SEARCH, NOISY),),
    "search-busy": (step(SEARCH, BUSY),),
    "search-quota": (step(SEARCH, QUOTA),),
    "search-server": (step(SEARCH.replace("20s", "60s"), SERVER),),
    "search-clients": (step(f"{SEARCH} --clients 4", SHARED),),
    "search-rate": (step(f"{SEARCH} --rate 200/s --limit 'p99<20ms'", SHARED),),
    "search-overload": (step(f"{SEARCH} --rate 500000/s"),),
    "search-p99": (step("search model.onnx -o tuned.json --budget 60s --objective p99"),),
    "search-p95": (step("search model.onnx -o tuned.json --budget 60s --objective p95"),),
    "search-percentiles": (
        step("search model.onnx -o tuned.json --budget 60s --objective p99.9 --limit 'p97.5<20ms'"),
        step("apply tuned.json model.onnx --explain"),
    ),
    "search-limits": (step(f"{SEARCH} --limit 'memory<1MB'"),),
    "search-pareto": (step(f"{SEARCH} --pareto p50,cpu", SHARED),),
    "search-batches": (step("search encoder.onnx -o tuned.json --budget 30s --dim sequence=16 --batch 1,4"),),
    "search-processes": (step(f"{SEARCH} --processes 2", SHARED),),
    "search-failures": (step(SEARCH.replace("20s", "40s"), FAILING),),
    "search-broken": (step(SEARCH, BROKEN),),
    "search-resumed": (
        step(SEARCH, Scenario(interrupt_at=60)),
        step(f"{SEARCH} --resume"),
    ),
    "search-shared": (
        step(f"{SEARCH} --storage s.journal"),
        step("search model.onnx -o second.json --budget 20s --storage s.journal"),
        step("fleet status --storage s.journal"),
        step("fleet collect --storage s.journal -o bundle.json"),
    ),
    "search-program": (step("search -o tuned.json --budget 60s -- python3 app.py"),),
    "search-program-wrong": (
        step("search -o tuned.json --budget 60s -- python3 app.py", Scenario(wrong_program=True)),
    ),
    "search-mistakes": (
        step("search"),
        step("search missing.onnx"),
        step("search model.onnx --budjet 3s"),
        step("search model.onnx --budget never"),
        step("search encoder.onnx --dim sequence=0"),
        step("search model.onnx --fix intra_op_threads=1"),
    ),
    "space": (step("space model.onnx", SERVER), step("space model.onnx --only intra_op_num_threads --json", QUOTA)),
    "suggest": (
        step("suggest model.onnx -o suggested.json", SERVER),
        step("suggest model.onnx"),
        step("suggest model.onnx --clients 8", QUOTA),
    ),
    "bench": (
        RECORD,
        step("bench model.onnx tuned.json --set execution_mode=ORT_PARALLEL --budget 20s"),
        step("bench model.onnx tuned.json --budget 20s --json"),
    ),
    "verify": (
        RECORD,
        step("apply tuned.json --verify --budget 20s --update"),
        step("apply tuned.json --verify --budget 20s", WORSE),
        step("apply tuned.json --verify --budget 20s --update", NOISY),
    ),
    "verify-program": (
        step("search -o tuned.json --budget 60s --quiet -- python3 app.py", without=SCREEN_ONLY),
        step("apply tuned.json --verify --budget 60s -- python3 app.py"),
        step("apply tuned.json --verify --budget 60s -- python3 app.py", NOTHING),
    ),
    "bench-objectives": (
        step("bench model.onnx --set intra_op_num_threads=1 --budget 20s --objective p95"),
        step("bench model.onnx --set intra_op_num_threads=1 --budget 20s --objective load-time"),
    ),
    "gate-percentiles": (
        step("gate model.onnx new.onnx --budget 20s --objective p97.5 --limit 'p99.5<20ms'", columns=120),
    ),
    "gate": (
        step("gate model.onnx new.onnx --budget 20s --explain"),
        step("gate model.onnx new.onnx --budget 20s", SLOWER_HEAD),
        step("gate model.onnx new.onnx --budget 20s --also memory,throughput", FASTER_HEAD),
        step("gate model.onnx new.onnx --budget 20s", NOISY),
        step("gate model.onnx new.onnx --budget 20s", BUSY),
    ),
    "gate-file": (
        step(
            "gate --all --junit gates.xml --markdown gates.md --history gates.jsonl",
            SLOWER_HEAD,
            files={"ortune.toml": GATES},
        ),
        step("report gates.jsonl -o gates.html"),
    ),
    "gate-json": (step("gate model.onnx new.onnx --budget 20s --json", SLOWER_HEAD),),
    "gate-program": (
        step("search -o tuned.json --budget 60s --quiet -- python3 app.py", without=SCREEN_ONLY),
        step("gate tuned.json --budget 60s -- python3 app.py"),
        step("gate tuned.json --budget 60s -- python3 app.py", NOTHING),
    ),
    "plan": (
        step("plan model.onnx --budget 60s -o plan.json", SHARED),
        step("apply plan.json --to gunicorn", SHARED),
        step("apply plan.json --to triton", SHARED),
    ),
    "plan-slo": (step("plan model.onnx --slo 'p99<20ms' --rate 300/s --price 0.2/h --budget 60s", SHARED),),
    "plan-impossible": (step("plan model.onnx --slo 'p99<1us' --budget 60s", SHARED),),
    "plan-batches": (step("plan encoder.onnx --dim sequence=16 --batch 1,4 --budget 60s -o plan.json", SHARED),),
    "plan-lengths": (step("plan encoder.onnx --lengths lognormal:29,8-256 --budget 60s -o plan.json", SHARED),),
    "plan-several": (
        step(
            "plan model.onnx=100/s encoder.onnx=50/s --dim sequence=16 --slo 'p99<50ms' --budget 60s -o plan.json",
            SHARED,
        ),
    ),
    "apply": (
        RECORD,
        step("apply tuned.json"),
        step("apply tuned.json --to python"),
        step("apply tuned.json --to environment"),
        step("apply --list"),
        step("apply tuned.json model.onnx --explain", SERVER),
        step("apply missing.json"),
    ),
    "merge": (
        RECORD,
        step("search model.onnx -o server.json --budget 60s --quiet", SERVER, without=SCREEN_ONLY),
        step("merge tuned.json server.json -o bundle.json"),
        step("apply bundle.json"),
        step("apply bundle.json", SERVER),
        step("apply bundle.json", QUOTA),
    ),
    "report": (RECORD, step("report tuned.json -o tuned.html")),
    "report-p95": (
        step("search model.onnx -o tuned.json --budget 60s --objective p95 --quiet", without=SCREEN_ONLY),
        step("report tuned.json -o tuned.html"),
    ),
    "report-pareto": (
        step(f"{SEARCH} --pareto p50,cpu --quiet", SHARED, without=SCREEN_ONLY),
        step("report tuned.json -o tuned.html"),
    ),
    "fleet-deploy": (
        step("fleet deploy --target kubernetes-job --nodes 3 --memory 8Gi -- /models/model.onnx"),
        step("fleet deploy --target slurm --nodes 3 --storage s.journal -- /models/model.onnx"),
        step("fleet deploy --target ssh --run verify --storage s.journal -- /models/tuned.json"),
    ),
    "knobs": (step("knobs intra_op_num_threads"), step("knobs session.intra_op.allow_spinning", columns=45)),
    "host": (step("host", SERVER), step("host", QUOTA), step("host --json", QUOTA)),
}
