"""When the work of a call can be captured as a graph, and replayed in later calls."""

from __future__ import annotations

from ortune.knobs.config import Config, is_capture

OFF = frozenset({"", "0", "false"})
"""Values that turn captures off, in lower case."""


def captures_graphs(config: Config) -> bool:
    """Return whether sessions with a config capture graphs."""
    settings = [*(options for _, options in config.providers), config.session_config]
    return any(is_capture(name) and value.lower() not in OFF for setting in settings for name, value in setting.items())


def find_capture_obstacle(*, control_flow: bool, has_one_caller: bool, has_rate: bool, n_cases: int) -> str:
    """Return why calls cannot be captured, a clause; empty if they can.

    Args:
        control_flow: Whether the graph has subgraphs.
        has_one_caller: Whether each process has one session and makes at most one call at a time.
        has_rate: Whether requests arrive at a rate.
        n_cases: Number of different shapes of inputs.
    """
    if control_flow:
        return "the graph has an If, Loop or Scan"
    if not has_one_caller:
        return "several callers would share its buffers"
    if has_rate:
        return "requests come from several threads, each of which captures the graph again and keeps its memory"
    if n_cases > 1:
        return "the shapes of the inputs change"
    return ""
