"""Finds the ways to share a host that are worth measuring, from durations of calls of each model alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from ortune.bounds import MOST_PROCESSES
from ortune.host.placement import describe_placement, pack_processes, place_processes
from ortune.knobs import ids
from ortune.planning.colocation.predict import Predictor
from ortune.planning.colocation.sharing import Demand, Sharing
from ortune.planning.colocation.timings import ModelTimings, Size, Timing, divide_cores, list_first_sizes
from ortune.planning.deployment import Deployment
from ortune.planning.space import DeploymentSpace, Shape

QUIET = ((ids.INTRA_OP_ALLOW_SPINNING, "0"),)
"""Threads that spin take the cores from other models."""

ROUNDS = 4
"""How often the best division is measured and found anew, at most."""

PASSES = 2
"""How often the sizes of all models are changed in turn."""

NEARLY = 0.8
"""Scale of a sharing with less memory that is measured as well, as a part of the largest one."""

CAPACITY_RESERVE = 1.25
"""Where the processes of a model are counted: capacity as a multiple of the rate."""

MeasureAlone = Callable[[int, Sequence[Size]], Sequence[Timing | None]]
"""Measures deployments of one model of these sizes alone, and returns what was found of each; None for failures."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A sharing that may be worth measuring.

    Attributes:
        sharing: How the models share the host.
        timings: What is known of the deployment of each model alone.
        scale: Predicted number by which all rates can be multiplied.
    """

    sharing: Sharing
    timings: tuple[Timing, ...]
    scale: float = math.nan

    @property
    def n_bytes(self) -> int:
        """Memory of all processes together."""
        return sum(timing.peak_bytes for timing in self.timings)


class SharingSearch:
    """Finds sharings of one host.

    Args:
        spaces: The deployments of each model.
        demands: What each model must serve.
        measure: Measures deployments alone.
        has_time: Whether there is time to measure more.
        most_bytes: Memory that all processes may take; infinite if unknown.
        seed: Random seed of predictions.

    Attributes:
        timings: What is known of each model.
        unfit: Sharings that do not fit into memory.
    """

    def __init__(
        self,
        spaces: Sequence[DeploymentSpace],
        demands: Sequence[Demand],
        measure: MeasureAlone,
        *,
        has_time: Callable[[], bool] = lambda: True,
        most_bytes: float = math.inf,
        seed: int = 0,
    ) -> None:
        self.spaces = tuple(spaces)
        self.demands = tuple(demands)
        self.measure = measure
        self.has_time = has_time
        self.most_bytes = most_bytes
        self.n_cores = spaces[0].n_cores
        self.host = spaces[0].host
        self.predictor = Predictor(demands=self.demands, n_cores=min(self.n_cores, spaces[0].quota), seed=seed)
        self.timings = [ModelTimings() for _ in spaces]
        self.defaults: list[Timing] = []
        self.unfit: dict[str, Proposal] = {}

    def run(self, defaults: Sequence[Timing]) -> tuple[Proposal, list[Proposal]]:
        """Return the default deployment of all models, and what is worth measuring along with it, the best first.

        Args:
            defaults: What was measured of the default deployment of each model.
        """
        self.defaults = list(defaults)
        default = Proposal(
            sharing=Sharing(kind="default", deployments=tuple(space.default for space in self.spaces)),
            timings=tuple(defaults),
        )
        first = list_first_sizes(self.n_cores, len(self.spaces), MOST_PROCESSES)
        for number in range(len(self.spaces)):
            self.measure_sizes(number, first)
        divided = self.divide()
        found = self.find_unpinned(divided)
        found += [divided] if divided else []
        fitting = [sharing for sharing in found if self.fits(sharing)]
        return self.predict(default), sorted(map(self.predict, fitting), key=lambda proposal: -proposal.scale)

    def predict(self, proposal: Proposal) -> Proposal:
        """Return a proposal with the number by which all rates can be multiplied."""
        scale = self.predictor.find_scale(proposal.sharing, proposal.timings)
        return msgspec.structs.replace(proposal, scale=scale)

    def fits(self, proposal: Proposal) -> bool:
        """Return whether all processes fit into memory, and keep the proposal if they do not."""
        if proposal.n_bytes <= self.most_bytes:
            return True
        self.unfit[proposal.sharing.key] = proposal
        return False

    def measure_sizes(self, number: int, sizes: Sequence[Size]) -> bool:
        """Measure deployments of a model alone, unless they are known, and return whether any was measured."""
        known = self.timings[number]
        new = [size for size in sizes if size not in known.measured and size not in known.failed]
        if not new or (known.measured and not self.has_time()):
            return False
        for size, timing in zip(new, self.measure(number, new), strict=True):
            if timing is None:
                known.failed.add(size)
            else:
                known.measured[size] = timing
        return True

    def divide(self) -> Proposal | None:
        """Return the best division of the cores, all of whose deployments were measured if there was time."""
        if self.host is None or len(self.spaces) > self.n_cores:
            return None
        for _ in range(ROUNDS):
            best = self.choose_division(self.most_bytes)
            if best is None:
                break
            # What is known of a number of threads holds for any number of processes.
            threads = [(size.threads - 1, size.threads + 1, size.n_cores) for size in best[0]]
            n_new = 0
            for number, size in enumerate(best[0]):
                others = [Size(1, n_threads) for n_threads in threads[number] if 1 <= n_threads < self.n_cores]
                n_new += self.measure_sizes(number, [size, *others])
            if not n_new:
                break
        unlimited = self.choose_division(math.inf)
        if unlimited and (proposal := self.make_divided(unlimited[0])):
            self.fits(proposal)
        best = self.choose_division(self.most_bytes)
        return self.make_divided(best[0]) if best else None

    def choose_division(self, most_bytes: float) -> tuple[tuple[Size, ...], float] | None:
        """Return the best division by what is known."""
        if not all(known.measured for known in self.timings):
            return None
        demands = [(demand.rate_per_s, demand.slo) for demand in self.demands]
        return divide_cores(self.timings, demands, self.n_cores, most_processes=MOST_PROCESSES, most_bytes=most_bytes)

    def make_divided(self, sizes: Sequence[Size]) -> Proposal | None:
        """Return the sharing in which each process has cores of its own."""
        assert self.host
        cpus = pack_processes(self.host, [size.threads for size in sizes for _ in range(size.processes)])
        if cpus is None:
            return None
        deployments, place = [], 0
        for space, size in zip(self.spaces, sizes, strict=True):
            own = cpus[place : place + size.processes]
            place += size.processes
            made = space.make(Shape(processes=size.processes, threads=size.threads))
            deployments.append(msgspec.structs.replace(made, placement=describe_placement(self.host, own)))
        return self.propose(Sharing(kind="divided", deployments=tuple(deployments)), sizes)

    def make_unpinned(self, sizes: Sequence[Size]) -> Proposal:
        """Return the sharing in which all processes run on all cores, and idle threads do not spin."""
        shapes = [Shape(processes=size.processes, threads=size.threads, settings=QUIET) for size in sizes]
        deployments = [space.make(shape) for space, shape in zip(self.spaces, shapes, strict=True)]
        return self.propose(Sharing(kind="unpinned", deployments=tuple(deployments)), sizes)

    def propose(self, sharing: Sharing, sizes: Sequence[Size]) -> Proposal:
        """Return a sharing with what is known of its deployments."""
        timings = tuple(known.estimate(size) for known, size in zip(self.timings, sizes, strict=True))
        return Proposal(sharing=sharing, timings=timings)

    def find_unpinned(self, divided: Proposal | None) -> list[Proposal]:
        """Return the best sharings in which all processes run on all cores."""
        if not all(known.measured for known in self.timings):
            return []
        starts = [tuple(self.count_processes(number) for number in range(len(self.spaces)))]
        for n_threads in sorted({size.threads for size in self.timings[0].measured}):
            if all(any(size.threads == n_threads for size in known.measured) for known in self.timings):
                starts.append(tuple(Size(1, n_threads) for _ in self.spaces))
        if divided:
            starts.append(
                tuple(
                    Size(deployment.processes, max(deployment.n_threads, 1))
                    for deployment in divided.sharing.deployments
                )
            )
        scores: dict[tuple[Size, ...], float] = {}

        def score(sizes: tuple[Size, ...]) -> float:
            """Return the predicted scale of some sizes, roughly if it is not the largest; 0 if they do not fit."""
            if sizes not in scores:
                scores[sizes] = self.score(self.make_unpinned(sizes), max(scores.values(), default=0.0))
            return scores[sizes]

        best = max(starts, key=score)
        for _ in range(PASSES):
            before = best
            for number in range(len(best)):
                options = [
                    (*best[:number], near, *best[number + 1 :])
                    for near in list_near(best[number], self.n_cores)
                    if any(size.threads == near.threads for size in self.timings[number].measured)
                    and near not in self.timings[number].failed
                ]
                best = max([best, *options], key=score)
            if best == before:
                break
        # One that needs less memory is worth measuring if it can take nearly as much.
        good = [
            combination for combination in scores if scores[combination] >= max(NEARLY * scores[best], math.ulp(0.0))
        ]
        least = min(
            good, key=lambda combination: (self.make_unpinned(combination).n_bytes, -scores[combination]), default=best
        )
        return [self.make_unpinned(combination) for combination in dict.fromkeys((best, least))]

    def score(self, proposal: Proposal, best: float) -> float:
        """Return the predicted scale of a proposal; less than the best one, and only roughly, if it is not larger."""
        if proposal.n_bytes > self.most_bytes:
            return 0.0
        if best > 0:
            ratio = self.predictor.find_ratio(proposal.sharing, proposal.timings, best)
            if ratio > 1:
                return best / ratio
        return self.predictor.find_scale(proposal.sharing, proposal.timings, start=best or 1.0)

    def count_processes(self, number: int) -> Size:
        """Return as many processes with one thread as serve the rate of a model with a reserve, if they run alone."""
        known, demand = self.timings[number], self.demands[number]
        sizes = [size for size in known.list_sizes(self.n_cores, MOST_PROCESSES) if size.threads == 1]
        enough = [
            size for size in sizes if known.find_capacity(size, demand.slo) >= CAPACITY_RESERVE * demand.rate_per_s
        ]
        return min(enough or sizes or known.measured)

    def make_alone(self, number: int, size: Size) -> Deployment:
        """Return the deployment of a model that is measured alone: on cores of its own if it can be pinned."""
        made = self.spaces[number].make(Shape(processes=size.processes, threads=size.threads))
        if self.host is None:
            return made
        if size.processes > 1:
            placement = place_processes(self.host, size.processes, threads=size.threads)
        else:
            cpus = pack_processes(self.host, [size.threads])
            placement = describe_placement(self.host, cpus) if cpus else None
        return msgspec.structs.replace(made, placement=placement)


def list_near(size: Size, n_cores: int) -> list[Size]:
    """Return sizes with one more or fewer, or twice or half as many processes or threads, which have enough cores."""
    processes, threads = size.processes, size.threads
    found = [
        Size(n_processes, threads) for n_processes in (processes - 1, processes + 1, processes * 2, processes // 2)
    ]
    found += [Size(processes, n_threads) for n_threads in (threads - 1, threads + 1, threads * 2, threads // 2)]
    found += [Size(processes * 2, threads // 2), Size(processes // 2, threads * 2)]
    return [
        near
        for near in dict.fromkeys(found)
        if 1 <= near.processes <= MOST_PROCESSES and near.threads >= 1 and near.n_cores <= n_cores and near != size
    ]
