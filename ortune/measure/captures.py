"""Checks that configs which capture graphs are measured only under loads that allow it."""

from __future__ import annotations

from collections.abc import Iterable

from ortune.errors import UsageError
from ortune.knobs.captures import captures_graphs, find_capture_obstacle
from ortune.knobs.config import Config
from ortune.knobs.space import SearchSpace
from ortune.measure.open import ComparisonSetup


def check_captures(configs: Iterable[tuple[str, Config]], setup: ComparisonSetup) -> None:
    """Check that calls can be captured with each config that captures graphs.

    Otherwise, the measured calls would capture the graph again in each thread, which programs do not do.

    Args:
        configs: The configs, each with what it is called in messages.
        setup: The model, its inputs and the load.

    Raises:
        UsageError: They cannot.
    """
    load = setup.goal.load
    obstacle = find_capture_obstacle(
        control_flow=setup.model.traits.control_flow,
        has_one_caller=load.clients == load.sessions == 1,
        has_rate=load.rate_per_s is not None,
        n_cases=setup.feed.n_cases,
    )
    for name, config in configs if obstacle else ():
        if captures_graphs(config):
            raise UsageError(
                f"{name} captures a graph, which is not possible here: {obstacle}.",
                "Use one client without a rate, one session, and inputs of one size, or turn captured graphs off.",
            )


def check_space_captures(space: SearchSpace, setup: ComparisonSetup) -> None:
    """Check the same for what the user fixed or added to a search space.

    Raises:
        UsageError: Calls cannot be captured.
    """
    chosen = [
        Config(providers=((knob.provider, {knob.name: str(choice.value)}),))
        for dimension in space.dimensions
        for choice in dimension.choices[1:]
        if (knob := dimension.knob).provider
    ]
    fixed = [space.base, *(Config(providers=chain) for chain in space.chains)]
    check_captures([("A candidate of this search", config) for config in (*fixed, *chosen)], setup)
