"""Compare several processes of one model with a single one: by default, with one thread each, and without spinning.

    python -m benchmarks.processes [--processes 2] [--batch 4] [--launches 8] [--rounds 8] [--block 0.5] [MODEL ...]

MODEL is a model of models/manifest.toml, or `encoder`: one of the size of MiniLM-L3, with random weights. With --batch,
processes whose calls have several items are measured as well. Throughput and CPU time are then those of items.

All are measured in interleaved blocks, by the executor that `ortune search` uses. The throughput of each is that of all
of its processes together, divided by the throughput of the single process in the same round. On hosts with enough
cores, processes with the default settings on CPUs of their own are measured as well.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.host import write_header
from benchmarks.inputs import shapes_of
from benchmarks.lengths import find_model
from ortune.host import Host, read_host
from ortune.knobs import DEFAULT, Config
from ortune.measure.block_runner import BlockRunner
from ortune.measure.compute_figures import compute_figure, compute_worst_percentile
from ortune.measure.open import find_cpus
from ortune.measure.stats import clustered_interval
from ortune.model import read_model
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.executor import ProcessExecutor, launch_reference
from ortune.workload import InputOptions, Load, Tolerance, make_feed, make_load
from ortune.workload.batching import list_batches

LEAD_IN_SHARE = 0.1
DEADLINE_S = 300.0

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})
NO_SPINNING = Config(session_config={"session.intra_op.allow_spinning": "0"})


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run a model: processes, and their settings.

    Attributes:
        title: What it is.
        load: Number of processes, each with one client.
        config: Settings of each process.
    """

    title: str
    load: Load
    config: Config = DEFAULT


def list_deployments(host: Host, n_processes: int, n_items: int = 1) -> list[Deployment]:
    """Return what is compared, the single process first."""
    several = make_load(processes=n_processes)
    found = [
        Deployment(title="1 x default", load=Load()),
        Deployment(title=f"{n_processes} x default", load=several),
        Deployment(title=f"{n_processes} x 1 thread", load=several, config=ONE_THREAD),
        Deployment(title=f"{n_processes} x spinning off", load=several, config=NO_SPINNING),
    ]
    share = len(host.usable_cores) // n_processes
    if share:
        pinned = make_load(processes=n_processes, pinned=True)
        config = Config(session_options={"intra_op_num_threads": share})
        title = f"{n_processes} x {share} thread{'s' * (share > 1)}, pinned apart"
        found.append(Deployment(title=title, load=pinned, config=config))
    if n_items > 1:
        title = f"{n_processes} x 1 thread, batch {n_items}"
        found.append(Deployment(title=title, load=several, config=msgspec.structs.replace(ONE_THREAD, batch=n_items)))
    return found


def measure(
    name: str, folder: Path, deployments: Sequence[Deployment], host: Host, arguments: argparse.Namespace
) -> list[list[list[Block]]]:
    """Return the blocks of each launch and round, one for each deployment.

    Raises:
        SystemExit: A deployment fails.
    """
    model = read_model(find_model(name, folder))
    shapes = {} if name == "encoder" else shapes_of(name)
    feed = make_feed(model, InputOptions(shapes=shapes), list_batches(1, arguments.batch))
    rng = np.random.default_rng(arguments.seed)
    duration_ns = int(arguments.block * 1e9)
    launches = []
    with contextlib.ExitStack() as stack:
        executors: list[ProcessExecutor] = []
        for deployment in deployments:
            executor = ProcessExecutor(
                model,
                feed,
                Tolerance(),
                usable=host.limits.usable,
                n_cores=len(host.usable_cores),
                n_processes=deployment.load.processes,
                pinned_to=find_cpus(host, deployment.load),
                reference=executors[0].reference if executors else None,
            )
            executors.append(stack.enter_context(executor))
            if len(executors) == 1:
                launch_reference(executor, model, feed).close()
        runner = BlockRunner(executors[0], rng)
        for _ in range(arguments.launches):
            lives = []
            for deployment, executor in zip(deployments, executors, strict=True):
                (live,) = runner.launch([deployment.config], executor)
                if isinstance(live, Failure):
                    raise SystemExit(f"{name}, {deployment.title}: {live.message}")
                lives.append(live)
            rounds = []
            for number in range(arguments.rounds):
                plan = BlockPlan(
                    duration_ns=duration_ns,
                    lead_in_ns=int(LEAD_IN_SHARE * duration_ns),
                    min_calls=2,
                    seed=number,
                    deadline_s=DEADLINE_S,
                )
                blocks: dict[int, Block] = {}
                for position in rng.permutation(len(lives)).tolist():
                    load = deployments[position].load
                    block = lives[position].measure(msgspec.structs.replace(plan, load=load))
                    if isinstance(block, Failure):
                        raise SystemExit(f"{name}, {deployments[position].title}: {block.message}")
                    blocks[position] = block
                rounds.append([blocks[position] for position in range(len(lives))])
            for live in lives:
                live.close()
            launches.append(rounds)
    return launches


def report(name: str, deployments: Sequence[Deployment], launches: Sequence[Sequence[Sequence[Block]]]) -> None:
    """Print a line for each deployment."""
    print(f"\n{name}: throughput relative to a single process with the default settings, 95 % interval")
    for position, deployment in enumerate(deployments):
        blocks = [[blocks[position] for blocks in rounds] for rounds in launches]
        every = [block for launch in blocks for block in launch]
        ratios = [
            [
                float(np.log(compute_figure("throughput", [own]) / compute_figure("throughput", [blocks[0]])))
                for own, blocks in zip(launch, rounds, strict=True)
            ]
            for launch, rounds in zip(blocks, launches, strict=True)
        ]
        interval = clustered_interval(ratios).exp()
        worst_ns = compute_worst_percentile(blocks, 99)
        p50_ns, p99_ns, cpu_ns = (compute_figure(figure, every) for figure in ("p50", "p99", "cpu"))
        print(
            f"  {deployment.title:30} {interval.estimate:5.2f} [{interval.low:5.2f}, {interval.high:5.2f}]  "
            f"{compute_figure('throughput', every):9.1f}/s  p50 {p50_ns / 1e6:7.2f} ms  p99 {p99_ns / 1e6:7.2f} ms  "
            f"worst process {(worst_ns or p99_ns) / 1e6:7.2f} ms  CPU {cpu_ns / 1e6:7.2f} ms  "
            f"{sum(block.contended for block in every)} of {len(every)} blocks contended",
            flush=True,
        )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["minilm_l6_int8", "squeezenet"], metavar="MODEL")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    parser.add_argument("--batch", type=int, default=1, help="items in a call of further processes; 1 for none")
    parser.add_argument("--launches", type=int, default=8, help="launches of each")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each launch")
    parser.add_argument("--block", type=float, default=0.5, help="duration of a block in seconds")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order")
    arguments = parser.parse_args()
    host = read_host()
    print(write_header())
    rounds = f"{arguments.launches} launches of {arguments.rounds} rounds"
    print(f"{rounds}, blocks of {arguments.block:g} s, one client for each process")
    deployments = list_deployments(host, arguments.processes, arguments.batch)
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            report(name, deployments, measure(name, Path(folder), deployments, host, arguments))


if __name__ == "__main__":
    main()
