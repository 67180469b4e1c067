"""What tests and benchmarks have instead of a host, models and processes.

- `scenario`: a host and the speed of its programs, for whole commands and the Python API.
- `executor`: launches candidates whose durations come from a function, for parts of the package.
- `host`: hosts and models as values.
- `reading`: reads models without a child process.
- `children`: workers that are forks of a process that has imported everything.
"""

from tests.simulated.executor import (
    RUNTIME,
    Latency,
    LatencyUnder,
    Services,
    SimulatedExecutor,
    SimulatedLive,
    is_one_thread,
    open_simulated,
    open_with_journal,
    sojourn_times,
)
from tests.simulated.host import make_host, make_model
from tests.simulated.scenario import Effect, Scenario, SimulatedPrograms, simulate, start_simulation

__all__ = [
    "RUNTIME",
    "Effect",
    "Latency",
    "LatencyUnder",
    "Scenario",
    "Services",
    "SimulatedExecutor",
    "SimulatedLive",
    "SimulatedPrograms",
    "is_one_thread",
    "make_host",
    "make_model",
    "open_simulated",
    "open_with_journal",
    "simulate",
    "sojourn_times",
    "start_simulation",
]
