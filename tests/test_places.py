"""On which CPUs the threads of a worker ran."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from ortune.worker.places import PlaceReader, ThreadPlace, find_frequency_hz, find_place, read_places, sum_places
from tests.conftest import long_params
from tests.hosts import write_files
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


CPUFREQ = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"

CPUINFO = """\
processor\t: 0
model name\t: a CPU: 1
cpu MHz\t\t: 2100.250

processor\t: 1
model name\t: one that does not say it

processor\t: 2
cpu MHz\t\t: 3000.000
"""


class TestFrequencies:
    """The frequency of a block is that of the CPUs on which its threads ran, by their time."""

    def read(self, root: Path, *spent_ns: int) -> float | None:
        """Return the mean frequency of CPUs in GHz, given the time that threads spent on each."""
        places = (CpuPlace(cpu=cpu, pool_ns=own_ns, calls_ns=1) for cpu, own_ns in enumerate(spent_ns) if own_ns)
        found_hz = find_frequency_hz(tuple(places), root)
        return found_hz and found_hz / 1e9

    def test_the_driver_of_a_cpu_says_it(self, tmp_path: Path) -> None:
        files = {CPUFREQ.format(cpu): f"{ghz}00000\n" for cpu, ghz in ((0, 10), (1, 8), (3, 31))}
        write_files(tmp_path, files | {"proc/cpuinfo": CPUINFO})
        assert self.read(tmp_path, 99) == pytest.approx(1)
        assert self.read(tmp_path, 999, 0, 0, 1999) == pytest.approx((1 + 2 * 3.1) / 3)
        assert self.read(tmp_path, 0, 0, 99, 99) == pytest.approx(3.1)

    def test_without_a_driver_cpuinfo_does(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, 99) is None
        write_files(tmp_path, {"proc/cpuinfo": CPUINFO})
        assert self.read(tmp_path, 99, 99, 99) == pytest.approx((2.10025 + 3) / 2)
        assert self.read(tmp_path, 0, 99) is None
        assert self.read(tmp_path) is None

    def test_the_idlest_of_many_cpus_are_not_read(self, tmp_path: Path) -> None:
        write_files(tmp_path, {CPUFREQ.format(cpu): str(9 if cpu < 32 else 2_000_000) for cpu in range(64)})
        assert self.read(tmp_path, *range(1000, 1064)) == pytest.approx(2)

    @given(*[st.text("0123456789.-\nprocessorcpu MHz:\t")] * 2)
    def test_invalid_files_never_raise(
        self, tmp_path_factory: pytest.TempPathFactory, frequency: str, cpuinfo: str
    ) -> None:
        root = tmp_path_factory.mktemp("host")
        write_files(root, {CPUFREQ.format(0): frequency, "proc/cpuinfo": cpuinfo})
        assert (self.read(root, 9) or 1) > 0


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
    assert not any(session.places for session in earlier)


def test_a_page_shows_where_threads_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortune.report.write.read_vega", str)  # the script that draws charts takes seconds to make
    result = read_source(str(BENCH))
    assert isinstance(result, BenchResult)
    places = (CpuPlace(cpu=0, pool_ns=1, calls_ns=2), CpuPlace(cpu=1, pool_ns=5, calls_ns=0))
    rows = tuple(msgspec.structs.replace(row, places=places) for row in result.rows)
    before, after = (
        render_page(make_page(bench_result, "bench.json"))
        for bench_result in (result, msgspec.structs.replace(result, rows=rows))
    )
    assert "<em>38%</em>" in after
    assert "37.5% of the CPU time (pool threads 12.5%, threads that make calls 25.0%)" in after
    assert "<em>" not in before
