"""Synthetic landscapes of large hosts: 64 to 512 CPUs, several NUMA nodes, more than 10,000 candidates.

The cost of a candidate is a formula, so it is known exactly. There are four kinds, from easy to hard:

- `additive`: each choice multiplies the cost by a factor, independently of the others.
- `interacting`: a model of parallel work. Amdahl's law with a serial part; a barrier that costs more with each thread
  and each node that it spans; bandwidth that grows with the nodes in use; imbalance that smaller blocks reduce;
  threads that take time to wake up if they do not spin; optimization levels that matter more with fewer threads.
- `cliffs`: the same with steps: both hardware threads of a core in use, threads outside of their L3 domain, and more
  threads than cores.
- `rugged`: each combination of threads, placement and mode has a random factor, and each candidate another one. No
  candidate says anything about another one.

The constants of a landscape are drawn with its seed. The noise is that of a shared machine: heavy-tailed blocks,
variation between launches, a slow drift, and busy periods.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.landscape import N_QUANTILES, Landscape, Pool
from ortune.host import Core, Host, HostLimits, NumaNode, Topology
from ortune.knobs import Candidate, Config, SearchSpace, build_space, ids
from ortune.knobs.dimension import make_dimension
from ortune.model import ModelFile, ModelInfo, OutputInfo, Traits
from ortune.workload import Goal

Kind = Literal["additive", "interacting", "cliffs", "rugged"]

CALL_NS = 5e6
"""Duration of a call with the default."""

N_BLOCKS = 400
"""Blocks in the pool from which noise is drawn."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Number of packages, NUMA nodes per package, cores per node, and hardware threads per core."""

    packages: int
    nodes: int
    cores: int
    threads: int

    @property
    def n_nodes(self) -> int:
        """Total number of NUMA nodes."""
        return self.packages * self.nodes

    @property
    def n_cores(self) -> int:
        """Total number of cores."""
        return self.n_nodes * self.cores

    @property
    def n_cpus(self) -> int:
        """Total number of hardware threads."""
        return self.n_cores * self.threads


MACHINES = {
    "64": Machine(packages=1, nodes=2, cores=16, threads=2),
    "128": Machine(packages=2, nodes=1, cores=32, threads=2),
    "256": Machine(packages=2, nodes=4, cores=16, threads=2),
    "512": Machine(packages=2, nodes=4, cores=32, threads=2),
}

EXTRA = (
    ("enable_cpu_mem_arena", (0,)),
    ("enable_mem_pattern", (0,)),
    ("session.disable_prepacking", ("1",)),
    ("session.use_device_allocator_for_initializers", ("1",)),
)
"""Additional dimensions of the largest spaces. Their effects are synthetic, like all others."""


def make_host(machine: Machine) -> Host:
    """Return a host. CPUs are numbered as Linux usually does: the first hardware threads of all cores come first."""
    cores = tuple(
        Core(cpus=tuple(core + machine.n_cores * thread for thread in range(machine.threads)))
        for core in range(machine.n_cores)
    )

    def cpus(first: int, n: int) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in cores[first : first + n] for cpu in core.cpus))

    per_package = machine.nodes * machine.cores
    nodes = tuple(NumaNode(id=k, cpus=cpus(k * machine.cores, machine.cores)) for k in range(machine.n_nodes))
    online = tuple(range(machine.n_cpus))
    topology = Topology(
        online=online,
        cores=cores,
        packages=tuple(cpus(k * per_package, per_package) for k in range(machine.packages)),
        numa_nodes=nodes,
        l3_domains=tuple(cpus(first, 8) for first in range(0, machine.n_cores, 8)),
        source="sysfs",
    )
    return Host(
        system="Linux",
        machine="x86_64",
        cpu_model=f"Synthetic, {machine.n_cpus} CPUs",
        topology=topology,
        limits=HostLimits(usable=online),
    )


def make_model(width: int) -> ModelInfo:
    """Return a model whose graph has this width."""
    traits = Traits(
        opset=17, ir_version=8, n_nodes=120, width=width, quantized=False, control_flow=False, ops={"Conv": 60}
    )
    return ModelInfo(
        path="synthetic.onnx",
        files=(ModelFile(name="synthetic.onnx", size_bytes=1, sha256="0" * 64),),
        inputs=(),
        outputs=(OutputInfo(name="y"),),
        traits=traits,
    )


@functools.lru_cache(maxsize=4)
def list_space(machine: Machine, width: int, n_extra: int) -> SearchSpace:
    """Return the candidates for a model whose graph has this width; see `widen`."""
    return widen(build_space(make_host(machine), make_model(width)), n_extra)


@functools.lru_cache(maxsize=4)
def list_whole_space(machine: Machine, width: int) -> SearchSpace:
    """Return the same with all candidates that refinement can add."""
    return list_between(list_space(machine, width, 0))


def widen(space: SearchSpace, n_extra: int) -> SearchSpace:
    """Return the space with additional dimensions, and without those that are tried one at a time."""
    more = tuple(make_dimension(name, *((value, "") for value in values)) for name, values in EXTRA[:n_extra])
    kept = tuple(dimension for dimension in space.dimensions if not dimension.alone)
    return msgspec.structs.replace(space, dimensions=kept + more)


def list_between(space: SearchSpace) -> SearchSpace:
    """Return the space with all candidates that refinement can add to it."""
    return space.extend(
        candidate
        for dimension in space.dimensions
        for choice in dimension.between
        for candidate in space.combine({dimension.name: choice.label})
    )


def drop_between(space: SearchSpace) -> SearchSpace:
    """Return the space without the values between the others."""
    dimensions = (msgspec.structs.replace(dimension, between=()) for dimension in space.dimensions)
    return msgspec.structs.replace(space, dimensions=tuple(dimensions))


class Formula:
    """The cost of candidates relative to the default, as a logarithm."""

    def __init__(self, machine: Machine, space: SearchSpace, kind: Kind, seed: int) -> None:
        self.machine = machine
        self.space = space
        self.kind = kind
        self.seed = seed
        rng = np.random.default_rng([seed, 1])
        self.serial = rng.uniform(0.02, 0.15)
        self.barrier = 10 ** rng.uniform(-3.6, -2.6)
        self.per_node = rng.uniform(0.5, 2.0)
        self.memory = rng.uniform(0.1, 0.7)
        self.bandwidth = rng.uniform(6, 20)
        self.imbalance = rng.uniform(0.02, 0.3)
        self.wake = 10 ** rng.uniform(-3.5, -2)
        self.side_by_side = rng.uniform(0.1, 0.6)
        self.levels = {
            "ORT_DISABLE_ALL": rng.uniform(0.2, 0.6),
            "ORT_ENABLE_BASIC": rng.uniform(0.05, 0.3),
            "ORT_ENABLE_EXTENDED": rng.uniform(-0.02, 0.1),
            "ORT_ENABLE_LAYOUT": rng.uniform(-0.03, 0.03),
        }
        self.effects = {
            (dimension.name, choice.label): float(rng.normal(0, 0.08))
            for dimension in space.dimensions
            for choice in dimension.choices[1:]
        }

    def log_cost(self, candidate: Candidate) -> float:
        """Return the log-cost of a candidate."""
        if self.kind == "additive":
            return sum(self.effects.get(item, 0.0) for item in candidate.labels.items())
        if self.kind == "rugged":
            return self._rugged(candidate)
        extra = sum(
            self.effects[(name, candidate.labels[name])] / 4
            for name, _ in EXTRA
            if (name, candidate.labels.get(name, "")) in self.effects
        )
        return math.log(self._work(candidate)) + extra

    def _work(self, candidate: Candidate) -> float:
        machine, settings = self.machine, candidate.config.settings
        n = int(settings.get(ids.INTRA_OP_NUM_THREADS, 0)) or self.space.n_default_threads
        place = candidate.labels.get(ids.INTRA_OP_THREAD_AFFINITIES, "default")
        parallel = settings.get(ids.EXECUTION_MODE) == "ORT_PARALLEL"
        inter = int(settings.get(ids.INTER_OP_NUM_THREADS, 0)) or machine.n_cores
        inter = min(inter, 16) if parallel else 1
        fewest = math.ceil(n / machine.cores)
        nodes = {"scattered": min(n, machine.n_nodes), "node": 1}.get(place, fewest)
        if place == "default" and n != self.space.n_default_threads:
            nodes = min(machine.n_nodes, fewest + 1)  # the kernel spreads threads that are not pinned
        in_all = n * inter
        speed = min(n, machine.n_cores) + 0.25 * max(min(n, machine.n_cpus) - machine.n_cores, 0)
        if place == "node":
            speed = min(speed, machine.cores * 1.25)
        compute = (1 - self.memory) / speed
        transfer = self.memory / min(speed, self.bandwidth * nodes)
        sync = self.barrier * math.log2(n + 1) * (1 + self.per_node * (nodes - 1) / machine.n_nodes)
        bases = {"2": 0.8, "4": 0.5, "8": 0.6, "16": 0.8}
        base = settings.get(ids.DYNAMIC_BLOCK_BASE)
        uneven = self.imbalance / n * math.log2(n + 1) * (bases[str(base)] if base else 1.0)
        blocks = self.barrier * 0.5 * math.log2(n + 1) if base else 0.0
        asleep = settings.get(ids.INTRA_OP_ALLOW_SPINNING) == "0"
        wake = self.wake * math.log2(n + 1) if asleep and n > 1 else 0.0
        work = self.serial + (1 - self.serial) * (compute + transfer + uneven) + sync + blocks + wake
        if parallel:
            gain = 1 - self.side_by_side * (1 - 1 / inter)
            crowding = max(in_all / machine.n_cpus, 1.0) ** 0.5
            work = work * gain * crowding + self.barrier * inter
        level = str(settings.get(ids.GRAPH_OPTIMIZATION_LEVEL, ""))
        work *= math.exp(self.levels.get(level, 0.0) * (0.5 + 1 / math.sqrt(n)))
        if self.kind == "cliffs":
            work *= 1.25 if n > machine.n_cores else 1.0
            work *= 1.15 if n > 8 and place in {"compact", "l3"} else 1.0
            work *= 1.8 if in_all > machine.n_cores and parallel else 1.0
        return work

    def _rugged(self, candidate: Candidate) -> float:
        settings = candidate.config.settings
        if not settings:
            return 0.0
        place = candidate.labels.get(ids.INTRA_OP_THREAD_AFFINITIES, "default")
        group = (
            settings.get(ids.INTRA_OP_NUM_THREADS, 0),
            place,
            settings.get(ids.EXECUTION_MODE, ""),
        )
        return self._draw(str(group), 0.15) + self._draw(text_of(candidate.config), 0.05)

    def _draw(self, text: str, sigma: float) -> float:
        """Return a random number that depends only on the text and the seed."""
        return float(np.random.default_rng([self.seed, 2, *text.encode()]).normal(0, sigma))


def make_pool(rng: np.random.Generator, mean: float, sigma: float, foreign: tuple[float, float], n: int) -> Pool:
    """Return blocks with heavy-tailed noise: Student's distribution with four degrees of freedom."""
    residuals = mean + sigma * rng.standard_t(4, N_BLOCKS) / math.sqrt(2)
    profiles = np.sort(np.exp(rng.normal(0, 0.03, (N_BLOCKS, N_QUANTILES))), axis=1)
    return Pool(
        residuals=residuals - (residuals.mean() - mean),
        foreign=rng.uniform(*foreign, N_BLOCKS),
        profiles=profiles / profiles[:, [N_QUANTILES // 2 - 1]],
        first=np.zeros(n, dtype=int),
        last=np.zeros(n, dtype=int),
    )


def make_landscape(size: str, kind: Kind, seed: int, *, n_extra: int = 0) -> Landscape:
    """Return a landscape.

    Args:
        size: Number of CPUs, a key of `MACHINES`.
        kind: Kind of costs.
        seed: Random seed of its constants.
        n_extra: Number of additional dimensions, each of which doubles the space.
    """
    machine = MACHINES[size]
    rng = np.random.default_rng([seed, 3])
    width = int(rng.integers(1, 9))
    listed = list_space(machine, width, n_extra)
    is_smooth = kind in {"interacting", "cliffs"} and not n_extra
    space = list_whole_space(machine, width) if is_smooth else drop_between(listed)
    formula = Formula(machine, space, kind, seed)
    costs = np.array([formula.log_cost(candidate) for candidate in space.candidates])
    n = len(costs)
    name = f"{kind}_{size}" + (f"_{n}" if n_extra else "")
    found = assemble(name, space, costs - costs[0] + math.log(CALL_NS), rng)
    return msgspec.structs.replace(found, unrefined=listed) if is_smooth else found


def assemble(
    name: str,
    space: SearchSpace,
    log_costs: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    quiet: Pool | None = None,
    luck: float = 0.008,
) -> Landscape:
    """Return a landscape with these costs and the noise of a shared machine.

    A launch starts a process, loads the model, and makes one call. Processes start side by side, while the calls use
    all cores, so that they take as long as one after the other.

    Args:
        name: Its name.
        space: The candidates.
        log_costs: Their log-costs.
        rng: Source of the noise.
        quiet: Blocks of a quiet host, or None for the usual ones.
        luck: Standard deviation of launches, in log-cost.
    """
    n = len(log_costs)
    steps = rng.normal(0, 0.004, 600)
    return Landscape(
        name=name,
        space=space,
        goal=Goal(),
        log_costs=log_costs,
        lucks=rng.normal(0, luck, N_BLOCKS),
        quiet=quiet or make_pool(rng, 0.0, 0.02, (0.0, 0.03), n),
        contended=make_pool(rng, 0.35, 0.2, (0.06, 0.5), n),
        contended_share=0.1,
        spell_s=2.0,
        drift=np.cumsum(steps) - np.linspace(0, steps.sum(), len(steps)),
        drift_step_s=0.5,
        launch_s=0.06 + math.exp(log_costs[0]) / 1e9,
        start_s=0.15,
    )


def text_of(config: Config) -> str:
    """Return a text that identifies a config, and does not change if configs get more fields."""
    fields = ("session_options", "session_config", "run_config", "providers", "environment")
    parts = (
        f'"{name}":{msgspec.json.encode(getattr(config, name), order="deterministic").decode()}' for name in fields
    )
    return f"{{{','.join(parts)}}}"


def all_landscapes() -> list[Landscape]:
    """Return the landscapes on which methods are compared."""
    kinds: tuple[Kind, ...] = ("additive", "interacting", "cliffs", "rugged")
    found = [make_landscape(size, kind, seed=int(size) + k) for k, kind in enumerate(kinds) for size in ("64", "256")]
    found.append(make_landscape("512", "interacting", seed=7))
    found.append(make_landscape("512", "cliffs", seed=11, n_extra=3))
    return found
