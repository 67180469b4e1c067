"""On which CPUs the threads of a worker ran."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from ortune import BenchResult, Config, Load
from ortune.host import read_host
from ortune.measure.comparison import Comparison, Noise, Row
from ortune.record.files import read_trials
from ortune.record.schema import RECORD_SCHEMA
from ortune.record.trials import Trials, TrialsHeader, decode_trials, encode_trials
from ortune.report.make import make_page
from ortune.report.source import read_source
from ortune.report.write import render_page
from ortune.tuning.conclude import list_sessions
from ortune.worker import Block, SessionInfo
from ortune.worker.block import CpuPlace
from ortune.worker.cpu import tick_ns
from ortune.worker.places import PlaceReader, ThreadPlace, find_place, read_places, sum_places
from tests.conftest import long_params
from tests.simulated import make_host
from tests.test_report import BENCH, SEARCH
from tests.test_worker import PLAN, launch, make_executor, require_worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="places are read from procfs")

OWN = threading.get_native_id()


class Threads:
    """A folder of procfs with threads that tests move and run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, thread: int, cpu: int, user: int, system: int = 0) -> None:
        """Write where a thread ran last, and its user and system time in ticks."""
        fields = ["0"] * 50
        fields[0], fields[11], fields[12], fields[36] = "S", str(user), str(system), str(cpu)
        path = self.folder / "task" / str(thread) / "stat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{thread} (a) b) {' '.join(fields)}\n")


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path)


def test_places_are_read(threads: Threads) -> None:
    threads.write(7, 3, 20, 5)
    (threads.folder / "task" / "8").mkdir()
    (threads.folder / "task" / "8" / "stat").write_text("8 (short) S 1\n")
    assert read_places((7, 8, 9), threads.folder) == {7: ThreadPlace(3, 25 * tick_ns())}
    assert read_places((7,), threads.folder / "none") == {}


def test_time_counts_where_a_thread_ran_last(threads: Threads) -> None:
    threads.write(OWN, 0, 100)
    threads.write(7, 1, 100)
    reader = PlaceReader(frozenset({7, 8}), threads.folder)
    tick = tick_ns()
    threads.write(OWN, 0, 104)
    threads.write(7, 2, 110)
    threads.write(8, 2, 3)  # a thread that started since then
    assert reader.read() == (
        CpuPlace(cpu=0, pool_ns=0, calls_ns=4 * tick),
        CpuPlace(cpu=2, pool_ns=13 * tick, calls_ns=0),
    )
    assert reader.read() == ()
    # With several callers, this thread only waits for them.
    threads.write(OWN, 0, 110)
    threads.write(7, 1, 112)
    assert reader.read([ThreadPlace(1, 5), ThreadPlace(3, 7)]) == (
        CpuPlace(cpu=1, pool_ns=2 * tick, calls_ns=5),
        CpuPlace(cpu=3, pool_ns=0, calls_ns=7),
    )


def test_sums() -> None:
    first, second = CpuPlace(cpu=1, pool_ns=2, calls_ns=3), CpuPlace(cpu=1, pool_ns=10, calls_ns=20)
    other = CpuPlace(cpu=0, pool_ns=1, calls_ns=0)
    assert sum_places([(first,), (other, second), ()]) == (other, CpuPlace(cpu=1, pool_ns=12, calls_ns=23))


def test_a_thread_knows_where_it_is() -> None:
    place = find_place()
    assert place
    assert place.cpu in os.sched_getaffinity(0)
    assert place.cpu_ns > 0


@pytest.mark.parametrize("clients", [2, *long_params(1)])
@pytest.mark.usefixtures("forked_children")
def test_pool_threads_run_where_they_are_pinned(clients: int) -> None:
    usable = sorted(read_host().limits.usable)
    if len(usable) < 2:
        pytest.skip("one usable CPU")
    with make_executor() as executor:
        for cpu in usable[:2]:
            config = Config(
                session_options={"intra_op_num_threads": 2},
                session_config={"session.intra_op_thread_affinities": str(cpu + 1)},
            )
            worker = require_worker(launch(executor, config))
            plan = msgspec.structs.replace(PLAN.under(Load(clients=clients)), duration_ns=200_000_000)
            block = worker.measure(plan)
            worker.close()
            assert isinstance(block, Block)
            assert {place.cpu for place in block.places if place.pool_ns} == {cpu}
            assert {place.cpu for place in block.places} <= set(usable)
            assert sum(place.calls_ns for place in block.places) > 0


def test_a_search_keeps_where_threads_ran() -> None:
    place = CpuPlace(cpu=1, pool_ns=2, calls_ns=3)
    row = Row(name="x", config=Config(), session=SessionInfo(load_ns=1, providers=()), places=(place,))
    noise = Noise(n_blocks=0, n_contended=0, n_repeated=0, regime="quiet")
    comparison = Comparison(objective="p50", rows=(row,), calls_needed=1, noise=noise)
    sessions = list_sessions(comparison)
    topology = make_host(2).topology
    header = TrialsHeader(
        schema=RECORD_SCHEMA,
        model="x",
        started="",
        objectives=("p50",),
        figures=("p50",),
        topology=topology,
        usable=(0,),
    )
    trials = decode_trials(encode_trials(Trials(header=header, trials=(), sessions=sessions)))
    found = trials.find_session(Config())
    assert found
    assert found.places == (place,)
    earlier = read_trials(SEARCH).sessions
    assert earlier
    assert not any(each.places for each in earlier)


def test_a_page_shows_where_threads_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.report.write.read_vega", str)  # the script that draws charts takes seconds to make
    result = read_source(str(BENCH))
    assert isinstance(result, BenchResult)
    places = (CpuPlace(cpu=0, pool_ns=1, calls_ns=2), CpuPlace(cpu=1, pool_ns=5, calls_ns=0))
    rows = tuple(msgspec.structs.replace(row, places=places) for row in result.rows)
    before, after = (
        render_page(make_page(each, "bench.json")) for each in (result, msgspec.structs.replace(result, rows=rows))
    )
    assert "<em>38%</em>" in after
    assert "37.5% of the CPU time (pool threads 12.5%, threads that make calls 25.0%)" in after
    assert "<em>" not in before
