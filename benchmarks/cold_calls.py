"""Measure how long the first calls after a pause take: how many of them must a block leave out?

    python -m benchmarks.cold_calls [--launches 3] [--rounds 8] [MODEL ...]

Four configs are live at the same time, as in a search, and are resumed in turn. Printed is the duration of each of the
first ten calls after a resume, relative to the median of the later half of the block: the median over all blocks of a
config. Run this on an idle host.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.host import write_header
from benchmarks.inputs import shapes_of
from models.build import build
from ortune.knobs import DEFAULT, Config, describe
from ortune.measure.open import open_comparison
from ortune.options import make_request
from ortune.requests import SearchRequest
from ortune.tuning.prepare import prepare
from ortune.worker import BlockPlan, Failure

MODELS = ("squeezenet", "shufflenet", "ppocrv4_rec", "minilm_l6_int8")

CONFIGS = (
    DEFAULT,
    Config(session_options={"intra_op_num_threads": 1}),
    Config(session_config={"session.intra_op.allow_spinning": "0"}),
    Config(allocator="mimalloc"),
)

N_SHOWN = 10
"""Calls of a block that are shown; it has twice as many at least."""


def measure(name: str, n_launches: int, n_rounds: int) -> list[np.ndarray | None]:
    """Return the relative durations of the first calls of each config; None for one that fails."""
    request = make_request(SearchRequest, {"model": str(build(name)), "shape": shapes_of(name), "budget": "60s"})
    plan = BlockPlan(duration_ns=1, lead_in_ns=0, min_calls=2 * N_SHOWN, deadline_s=60)
    found: list[list[np.ndarray]] = [[] for _ in CONFIGS]
    with open_comparison(prepare(request)) as opened:
        for _ in range(n_launches):
            lives = opened.runner.launch(CONFIGS)
            for _ in range(n_rounds):
                for place, live in enumerate(lives):
                    block = live if isinstance(live, Failure) else live.measure(plan)
                    if isinstance(block, Failure):
                        continue
                    samples = block.samples_ns
                    found[place].append(samples[:N_SHOWN] / np.median(samples[len(samples) // 2 :]))
            for live in lives:
                if not isinstance(live, Failure):
                    live.close()
    return [np.median(series, axis=0) if series else None for series in found]


def main() -> None:
    """Measure the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    print(write_header())
    for name in arguments.models or MODELS:
        for config, figures in zip(CONFIGS, measure(name, arguments.launches, arguments.rounds), strict=True):
            shown = "fails" if figures is None else " ".join(f"{figure:5.2f}" for figure in figures)
            print(f"{name:16} {describe(config) or 'default':20} {shown}", flush=True)


if __name__ == "__main__":
    main()
