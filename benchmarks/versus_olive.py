"""Compare ortune with Microsoft's Olive: same model, same knobs, same machine, same run.

    python -m benchmarks.versus_olive [--runs 3] [--home FOLDER] [--json FILE] [MODEL ...]

Olive's tuning of session parameters measures all combinations of execution mode, optimization level, intra-op and
inter-op threads: 32 points on two cores. ortune gets the same knobs, and less than a third of the time that Olive took.
Then both results and the default are compared in a paired run with several launches and interleaved rounds. If it
shows a difference between the two tools, it is repeated. Only a difference in both runs counts.

The first run installs Olive in a virtual environment in FOLDER, which takes several gigabytes because of torch. Olive
uses its dummy data, zeros and ones, so models must have fixed shapes. Run this on an idle host.

Source of Olive's settings: https://microsoft.github.io/Olive/ ("OrtSessionParamsTuning"), olive-ai 0.13.0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.host import describe_run, write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.knobs import DEFAULT, Config, ids
from ortune.knobs.canonical import canonical
from ortune.measure.block_plan import plan_paired_run
from ortune.measure.comparison import Speedup
from ortune.measure.evaluate import compute_speedup
from ortune.measure.open import open_comparison
from ortune.measure.paired_run import PairedRun, Side
from ortune.requests import SearchRequest
from ortune.tuning.prepare import PreparedSearch, prepare
from ortune.tuning.search import search

MODELS = ("squeezenet", "shufflenet", "squeezenet_qdq", "minilm_l6_int8")

OLIVE = (
    "torch==2.13.0",
    "olive-ai==0.13.0",
    "onnxruntime",
    "onnx",
    # Packages that olive-ai needs but does not declare.
    "requests",
    "psutil",
    "tabulate",
    "pydantic==2.12.5",
)

KNOBS = (
    ids.EXECUTION_MODE,
    ids.GRAPH_OPTIMIZATION_LEVEL,
    ids.INTRA_OP_NUM_THREADS,
    ids.INTER_OP_NUM_THREADS,
)

LEVELS = {0: "ORT_DISABLE_ALL", 1: "ORT_ENABLE_BASIC", 2: "ORT_ENABLE_EXTENDED", 3: "ORT_ENABLE_LAYOUT"}

TYPES = {1: "float32", 2: "uint8", 6: "int32", 7: "int64", 9: "bool", 10: "float16"}
"""Olive's names of element types, by ONNX's numbers."""

RUN_S = 40.0

RATIOS = ("ortune_over_olive", "ortune_over_default", "olive_over_default")

BUDGET_SHARE = 0.32
"""Budget of ortune as a share of Olive's time. The target is a third of Olive's time from start to result."""


def install(home: Path) -> Path:
    """Return the path of the `olive` command. Install it if it is missing."""
    command = home / "bin" / "olive"
    if not command.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *OLIVE], check=True)
    return command


def fix_shapes(source: Path, target: Path, shapes: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Write the model with fixed input shapes and without initializers among its inputs; return its inputs."""
    import onnx

    model = onnx.load(source)
    initializers = {initializer.name for initializer in model.graph.initializer}
    inputs = [model_input for model_input in model.graph.input if model_input.name not in initializers]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    described = []
    for model_input in inputs:
        kind = model_input.type.tensor_type
        dims = shapes[model_input.name]
        for dim, size in zip(kind.shape.dim, dims, strict=True):
            dim.dim_value = size
        described.append({"name": model_input.name, "shape": dims, "type": TYPES[kind.elem_type]})
    onnx.save(model, target)
    return described


def run_olive(command: Path, model: Path, inputs: list[dict[str, Any]], folder: Path) -> tuple[Config, float, int]:
    """Run Olive; return its config, the time in seconds, and the number of points measured."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = sorted({1, max(1, n // 2), n})
    data = {
        "name": "zeros",
        "type": "DummyDataContainer",
        "load_dataset_config": {
            "type": "dummy_dataset",
            "input_shapes": [model_input["shape"] for model_input in inputs],
            "input_names": [model_input["name"] for model_input in inputs],
            "input_types": [model_input["type"] for model_input in inputs],
            "max_samples": 1,
        },
    }
    latency = {"name": "avg", "priority": 1, "metric_config": {"warmup_num": 10, "repeat_test_num": 20}}
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(model)},
        "systems": {
            "here": {
                "type": "LocalSystem",
                "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}],
            }
        },
        "data_configs": [data],
        "evaluators": {
            "latency": {
                "metrics": [{"name": "latency", "type": "latency", "data_config": "zeros", "sub_types": [latency]}]
            }
        },
        "passes": {
            "tune": {
                "type": "OrtSessionParamsTuning",
                "data_config": "zeros",
                "execution_mode_list": [0, 1],
                "opt_level_list": [0, 1, 2, 99],
                "intra_thread_num_list": threads,
                "inter_thread_num_list": threads,
            }
        },
        "search_strategy": {"execution_order": "joint", "sampler": "sequential"},
        "host": "here",
        "target": "here",
        "evaluator": "latency",
        "evaluate_input_model": True,
        "cache_dir": str(folder / "cache"),
        # A stale cache would replay old timings instead of measuring.
        "clean_cache": True,
        "clean_evaluation_cache": True,
        "output_dir": str(folder / "out"),
    }
    path = folder / "olive.json"
    path.write_text(json.dumps(workflow))
    shutil.rmtree(folder / "out", ignore_errors=True)
    start_s = time.monotonic()
    done = subprocess.run(
        [str(command), "run", "--config", str(path), "--disable_telemetry"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OLIVE_DISABLE_TELEMETRY": "1"},
    )
    wall_s = time.monotonic() - start_s
    answer = folder / "out" / "model_config.json"
    if done.returncode or not answer.exists():
        raise SystemExit(f"Olive failed on {model}:\n{(done.stdout + done.stderr)[-3000:]}")
    settings = json.loads(answer.read_text())["config"].get("inference_settings") or {}
    footprint = json.loads((folder / "out" / "footprint.json").read_text())
    nodes = footprint.get("nodes", footprint)
    nodes = nodes.values() if isinstance(nodes, dict) else nodes
    n_points = sum(1 for node in nodes if node.get("metrics") and node.get("from_pass"))
    return config_of(settings.get("session_options") or {}), wall_s, n_points


def config_of(options: dict[str, Any]) -> Config:
    """Return Olive's session options as a config."""
    config = DEFAULT
    for name in ("intra_op_num_threads", "inter_op_num_threads"):
        if options.get(name):
            config = config.with_setting("session_options", name, int(options[name]))
    if options.get("execution_mode"):
        config = config.with_setting("session_options", "execution_mode", "ORT_PARALLEL")
    level = options.get("graph_optimization_level")
    if level in LEVELS:
        config = config.with_setting("session_options", "graph_optimization_level", LEVELS[level])
    for name, value in (options.get("extra_session_config") or {}).items():
        config = config.with_setting("session_config", name, str(value))
    return config


def run_ortune(prepared: PreparedSearch, budget_s: float, seed: int) -> tuple[Config, float, Speedup | None, str]:
    """Search the same knobs with ortune; return its config, the time in seconds, its claim and its verdict."""
    dimensions = tuple(dimension for dimension in prepared.space.dimensions if dimension.name in KNOBS)
    names = {dimension.name for dimension in dimensions}
    rules = tuple(rule for rule in prepared.space.rules if names.issuperset(rule.labels))
    space = msgspec.structs.replace(prepared.space, dimensions=dimensions, rules=rules)
    request = prepared.request.replace(budget=budget_s, seed=seed)
    start_s = time.monotonic()
    outcome = search(msgspec.structs.replace(prepared, space=space, request=request, seed=seed)).outcome
    return outcome.config, time.monotonic() - start_s, outcome.evidence.speedup, outcome.evidence.verdict


def compare(prepared: PreparedSearch, olive: Config, ours: Config, seed: int) -> tuple[Speedup, Speedup, Speedup]:
    """Return the speedups of ortune's config over Olive's, of ortune's over the default, and of Olive's over it."""
    configs = {"default": DEFAULT, "ortune": ours, "olive": olive}
    with open_comparison(msgspec.structs.replace(prepared, seed=seed, n_sides=len(configs))) as opened:
        goal, calibration = opened.goal, opened.calibration
        plan = plan_paired_run(RUN_S, goal, calibration.pace, calibration.launch_s, len(configs))
        sides = [Side(name=name, config=config) for name, config in configs.items()]
        run = PairedRun(sides, goal.load, seed=seed)
        run.measure(opened.runner, plan, end_s=math.inf)
    counting = run.in_one_regime()
    over_default, olive_over_default = (compute_speedup(counting, position, goal.objective) for position in (1, 2))
    direct = compute_speedup(counting, 1, goal.objective, base=2)
    assert direct and over_default and olive_over_default
    return direct, over_default, olive_over_default


def show(interval: Speedup | None) -> str:
    """Return an interval as text."""
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]" if interval else "-"


def main() -> None:
    """Compare the two on each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--home", type=Path, default=Path("models/cache/olive"), help="where Olive is installed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    command = install(arguments.home.resolve())
    print(write_header())
    rows = []
    for name in arguments.models:
        folder = Path(tempfile.mkdtemp())
        feed = prepare(SearchRequest(model=str(build(name)), shape=shapes_of(name))).feed
        shapes = {key: list(value.array.shape) for key, value in feed.tensors.items()}
        model = folder / "model.onnx"
        inputs = fix_shapes(Path(build(name)), model, shapes)
        prepared = prepare(SearchRequest(model=str(model)))
        for seed in range(arguments.runs):
            olive, olive_s, n_points = run_olive(command, model, inputs, folder)
            # ORT_PARALLEL with one inter-op thread is sequential. Without this, the config would count as not applied.
            olive = canonical(olive, prepared.space.n_default_threads)
            ours, ours_s, claim, verdict = run_ortune(prepared, BUDGET_SHARE * olive_s, seed)
            runs = [compare(prepared, olive, ours, seed)]
            # One of forty intervals is above 1 by chance, and one below: a difference must be confirmed.
            if runs[0][0].high < 1 or runs[0][0].low > 1:
                runs.append(compare(prepared, olive, ours, seed + 1000))
            print(
                f"{name:16} Olive {olive_s:5.1f} s, {n_points} points; ortune {ours_s:5.1f} s, {verdict} {show(claim)}"
            )
            for direct, over_default, olive_over_default in runs:
                print(
                    f"{'':16} paired run: ortune/Olive {show(direct)}, ortune/default {show(over_default)}, "
                    f"Olive/default {show(olive_over_default)}"
                )
            print(
                f"{'':16} ortune {dict(ours.settings) or 'default'}; Olive {dict(olive.settings) or 'default'}",
                flush=True,
            )
            rows.append(
                {
                    "model": name,
                    "seed": seed,
                    "olive_s": olive_s,
                    "ortune_s": ours_s,
                    "olive": olive.settings,
                    "ortune": ours.settings,
                    "verdict": verdict,
                    "claim": msgspec.to_builtins(claim),
                    "runs": [dict(zip(RATIOS, map(msgspec.to_builtins, ratios), strict=True)) for ratios in runs],
                }
            )
            if arguments.json:
                arguments.json.write_text(json.dumps({**describe_run(), "runs": rows}, indent=1) + "\n")
        shutil.rmtree(folder)
    worse = sum(all(run["ortune_over_olive"]["high"] < 1 for run in row["runs"]) for row in rows)
    in_time = sum(row["ortune_s"] <= row["olive_s"] / 3 for row in rows)
    print(f"ortune's answer is worse than Olive's beyond the interval in {worse} of {len(rows)}; in time in {in_time}")


if __name__ == "__main__":
    main()
