"""Measure by how much the recorded costs of twins differ in landscapes: the error of the recordings themselves.

    python -m benchmarks.twins
    python -m benchmarks.twins --find [NAME ...]
    python -m benchmarks.twins --spaces

Twins are candidates that are the same program: their settings differ, but ONNX Runtime makes the same graph with them.
Recordings that were made before ortune merged twins measured each of them on its own. For each of these recordings, the
first command prints the absolute log-ratios of the fitted costs of all pairs of twins: the median, the 90th percentile,
and that between the recorded best and the one of its twins that differs most from it.

The second command finds the twins: it makes the graphs of the models on this host, and stores their digests in the
recordings, of all models or of those that are named.

The third command prints for each model, under one and two clients, how many candidates a search has before and after
twins are merged, how many combinations of graph settings and graphs there are, and how long finding out takes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.host import write_header
from benchmarks.landscape import Graphs, Recording, fit, merge_space, recorded_paths
from models.build import GENERATED, build, read_manifest
from ortune.host import HostClass, read_host
from ortune.knobs import SpaceOptions, build_space
from ortune.knobs.twins import list_graph_variants, merge_twins
from ortune.model import compute_digest, read_model
from ortune.worker.graphs import digest_graphs
from ortune.worker.installed import find_installed_version


def find_graphs(recording: Recording) -> Graphs | None:
    """Return the graphs of the model of a recording; None if its space has no candidates that may be twins.

    Raises:
        SystemExit: The model was recorded with another content.
    """
    about = recording.about
    variants = list_graph_variants(about.space)
    if about.space.twins or len(variants) < 2:
        return None
    name, _, digest = about.model.partition(" ")
    model = read_model(build(name))
    if compute_digest(model.files) != digest:
        raise SystemExit(f"{about.name}: {model.path} is not the model that was recorded")
    return Graphs(
        host=HostClass.of(read_host()),
        runtime=find_installed_version(),
        digests=digest_graphs(model, [variant.config for variant in variants]),
    )


def store_graphs(path: Path) -> None:
    """Store the graphs of the model in the file of a recording, unless it has the same."""
    recording = Recording.load(path)
    graphs = find_graphs(recording)
    if graphs is None or graphs == recording.about.graphs:
        return
    recording.replace(msgspec.structs.replace(recording.about, graphs=graphs)).save(path)
    print(f"{path.stem}: stored the graphs")


def compare_twins(recording: Recording) -> tuple[NDArray[np.float64], float | None]:
    """Return by how much recorded costs of twins differ, as absolute log-ratios.

    These are those of all pairs of twins, and the largest one between the recorded best and its twins, or None if the
    best has no twins.
    """
    _, numbers = merge_space(recording.about)
    groups: dict[int, list[int]] = {}
    for candidate, number in enumerate(numbers.tolist()):
        groups.setdefault(number, []).append(candidate)
    # Without graphs, each candidate has a cost of its own.
    landscape = fit(recording.replace(msgspec.structs.replace(recording.about, graphs=None)))
    costs = landscape.log_costs
    pairs = np.array([pair for group in groups.values() for pair in itertools.combinations(group, 2)])
    ratios = np.abs(costs[pairs[:, 0]] - costs[pairs[:, 1]])
    of_best = costs[groups[int(numbers[landscape.best])]] - costs[landscape.best]
    return ratios[np.isfinite(ratios)], float(np.nanmax(of_best)) if len(of_best) > 1 else None


def format_percent(log_ratio: float | None) -> str:
    """Return a log-ratio as a difference in percent; a dash for None."""
    return "-" if log_ratio is None else f"{100 * math.expm1(log_ratio):.1f}"


def describe_ratios(ratios: NDArray[np.float64]) -> str:
    """Return the number of log-ratios, their median and their 90th percentile, as columns."""
    median, high = np.quantile(ratios, [0.5, 0.9])
    return f"{len(ratios):5}  {format_percent(median):>6}  {format_percent(high):>15}"


def report() -> None:
    """Print the table."""
    print(f"{write_header()}\n\nDifferences between recorded costs of twins, in percent:")
    print("recording                 candidates  programs  pairs  median  90th percentile  best and its twins")
    everything = []
    for path in recorded_paths():
        recording = Recording.load(path)
        if recording.about.graphs is None:
            continue
        ratios, of_best = compare_twins(recording)
        everything.append(ratios)
        n, n_programs = len(recording.about.space.candidates), len(merge_space(recording.about)[0].candidates)
        print(f"{path.stem:26}{n:10}  {n_programs:8}  {describe_ratios(ratios)}  {format_percent(of_best):>18}")
    print(f"{'all':46}{describe_ratios(np.concatenate(everything))}")


def report_spaces() -> None:
    """Print how many candidates each model has."""
    host = read_host()
    print(f"{write_header()}\n\nCandidates with one client and with two, before and after:")
    print("model                        MB    one client    two clients  combinations  graphs  seconds")
    for name in [*read_manifest(), *GENERATED]:
        model = read_model(build(name))
        counts = []
        start_s = time.perf_counter()
        listed = build_space(host, model, SpaceOptions())
        variants = list_graph_variants(listed)
        digests = digest_graphs(model, [variant.config for variant in variants])
        took_s = time.perf_counter() - start_s
        for clients in (1, 2):
            space = build_space(host, model, SpaceOptions(clients=clients))
            counts.append(f"{len(space.candidates)} -> {len(merge_twins(space, variants, digests).candidates)}")
        n_graphs = len({digest for digest in digests if digest}) + digests.count("")
        size_mb = sum(file.size_bytes for file in model.files) / 1e6
        sizes = f"{name:26}{size_mb:6.1f}  {counts[0]:>12}  {counts[1]:>13}"
        print(f"{sizes}  {len(variants):>12}  {n_graphs:>6}  {took_s:7.2f}")


def main() -> None:
    """Print a table, or find the twins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--find", action="store_true", help="find the twins, and store them in the recordings")
    parser.add_argument("names", metavar="NAME", nargs="*", help="landscapes for --find (default: all)")
    parser.add_argument("--spaces", action="store_true", help="print the sizes of the spaces of the models")
    arguments = parser.parse_args()
    if arguments.spaces:
        report_spaces()
        return
    if not arguments.find:
        report()
        return
    for path in recorded_paths():
        if not arguments.names or path.stem in arguments.names:
            store_graphs(path)


if __name__ == "__main__":
    main()
