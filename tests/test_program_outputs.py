"""What is compared of the outputs of programs, and that records do not claim more."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import psutil
import pytest

from ortune import Config, Goal, MeasureError, Objective
from ortune.apply.inside.returned import describe_returned
from ortune.console.gate import describe_measurement
from ortune.console.verdict import find_warnings
from ortune.gates.programs import check_tuned
from ortune.knobs import DEFAULT, build_space
from ortune.measure.block_plan import measure_pace
from ortune.measure.open import OpenComparison, start_comparison
from ortune.options import make_request
from ortune.prctl import HAS_DEATH_SIGNAL
from ortune.program.candidates import CallCandidate
from ortune.program.executor import ProgramExecutor, open_program_executor
from ortune.program.launcher import LaunchedProgram
from ortune.program.outputs import OutputReference, check_output, is_unjudged, read_returned
from ortune.program.prepare import PreparedProgram, can_measure_inside, prepare_program
from ortune.program.search import open_program, search_program
from ortune.program.task import ProgramTask
from ortune.program.text import compare_text
from ortune.record.journal import Journal
from ortune.replaceable import replaced
from ortune.requests import ProgramSearchRequest
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.tuning.resume import JournaledExecutor
from ortune.worker import Block, BlockPlan, Failure, LiveCandidate
from tests.conftest import TINY_CNN
from tests.gate_results import make_result
from tests.light_programs import light_sessions, open_uncalibrated
from tests.simulated import (
    Scenario,
    SimulatedExecutor,
    SimulatedLive,
    SimulatedPrograms,
    make_host,
    make_model,
    open_with_journal,
    simulate,
)
from tests.test_program_process import wait_for
from tests.test_resume import AGAIN, BEGIN
from tests.test_tuning import one_thread_wins

PROGRAM = Path(__file__).parent / "programs" / "outputs.py"

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})
"""It is fast, and wrong if the variable WRONG is set."""

TWO_THREADS = Config(session_options={"intra_op_num_threads": 2})

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems")


def prepare(how: str, n: object, *, arguments: Sequence[object] = (), **options: Any) -> PreparedProgram:
    command = (sys.executable, str(PROGRAM), str(TINY_CNN), how, str(n), *map(str, arguments))
    values = {"command": command, "only": ("intra_op_num_threads",), "budget": 20.0, **options}
    return prepare_program(make_request(ProgramSearchRequest, values, "python"))


def prepare_calls(how: str, n: int = 12, **options: Any) -> PreparedProgram:
    return prepare(how, n, call="__main__:work", **options)


def prepare_until_end(how: str, **options: Any) -> PreparedProgram:
    """Return a program that makes 25 calls. There is time to see its end, also on a host that is very busy."""
    return prepare_calls(how, 25, **{"budget": 100.0, **options})


@pytest.fixture(scope="module", autouse=True)
def light() -> Iterator[None]:
    with light_sessions():
        yield


PLAN = BlockPlan(duration_ns=100_000_000, lead_in_ns=0, min_calls=8, deadline_s=60)


@pytest.fixture
def is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread changes what the program does."""
    monkeypatch.setenv("WRONG", "1")


def get_executor(opened: OpenComparison) -> ProgramExecutor:
    (executor,) = opened.executors
    assert isinstance(executor, ProgramExecutor)
    return executor


def judge(opened: OpenComparison, config: Config) -> tuple[Failure | None, bool]:
    """Measure a candidate. Return its failure if it has one, and whether its outputs were compared."""
    (live,) = opened.runner.launch([config])
    if isinstance(live, Failure):
        return live, False
    answer = live.measure(PLAN)
    live.close()
    failure = answer if isinstance(answer, Failure) else None
    return failure, get_executor(opened).outputs.is_compared(config.key, is_baseline=False)


def judge_end(opened: OpenComparison, config: Config) -> Failure | None:
    """Run the program to its end, as that of a finalist, and return what is wrong with that."""
    assert opened.check_finalist
    assert opened.check_finalist(config, 0.1) is None, "there was no time to run it"
    return opened.check_finalist(config, 60.0)


def is_compared(opened: OpenComparison, config: Config) -> bool:
    return get_executor(opened).outputs.is_compared(config.key, is_baseline=False)


@pytest.fixture(scope="module")
def forever() -> Iterator[OpenComparison]:
    """A program that does not end, where one thread changes what its function returns."""
    with contextlib.ExitStack() as stack:
        with light_sessions(WRONG="1"):
            opened = stack.enter_context(open_program(prepare_calls("forever")))
        yield opened


@pytest.fixture(scope="module")
def ends() -> Iterator[OpenComparison]:
    """A program where one thread changes what it prints at its end."""
    with contextlib.ExitStack() as stack:
        with light_sessions(WRONG="1"):
            prepared = prepare_until_end("ends")
            assert prepared.keeps_running
            assert prepared.run_s
            opened = stack.enter_context(open_uncalibrated(prepared))
        yield opened


class TestCalls:
    """A function whose calls are timed in a program that stays alive."""

    def test_another_result(self, forever: OpenComparison) -> None:
        failure, _ = judge(forever, ONE_THREAD)
        assert failure
        assert failure.kind == "wrong_output"
        assert "call 4 of __main__:work returned something else" in failure.message

    def test_equal_results(self, forever: OpenComparison) -> None:
        """Words that differ from run to run do not count."""
        assert judge(forever, TWO_THREADS) == (None, True)
        assert forever.runner.sessions[-1].outputs_compared

    def test_nothing_to_compare(self, is_wrong: None) -> None:
        prepared = prepare_calls("silent", 10_000)
        assert prepared.keeps_running
        assert prepared.run_s is None
        with open_program(prepared) as opened:
            assert judge(opened, ONE_THREAD) == (None, False)
            assert judge_end(opened, ONE_THREAD) is None
            assert not is_compared(opened, ONE_THREAD)
            assert not any(session.outputs_compared for session in opened.runner.sessions)

    def test_calls_at_the_same_time(self, is_wrong: None) -> None:
        """Their order may depend on the settings, so that equal results would look different."""
        with open_program(prepare_calls("threads", 10_000)) as opened:
            assert judge(opened, ONE_THREAD) == (None, False)

    def test_what_is_printed_at_the_end(self, ends: OpenComparison) -> None:
        failure = judge_end(ends, ONE_THREAD)
        assert failure
        assert failure.kind == "wrong_output"
        assert "instead of" in failure.message

    def test_equal_output_at_the_end(self, ends: OpenComparison) -> None:
        assert judge_end(ends, TWO_THREADS) is None
        assert is_compared(ends, TWO_THREADS)

    def test_a_gate(self, ends: OpenComparison) -> None:
        wrong = msgspec.structs.replace(ONE_THREAD, session_config={"session.intra_op.allow_spinning": "0"})
        with pytest.raises(MeasureError, match=r"The output of it differs .* instead of"):
            check_tuned("it", wrong, ends.runner, get_executor(ends), check_s=60)

    def test_a_block_in_which_the_program_ends_has_its_memory(self) -> None:
        with open_uncalibrated(prepare_calls("ends", 10)) as opened:
            (live,) = opened.runner.launch([ONE_THREAD])
            assert not isinstance(live, Failure)
            blocks = [live.measure(PLAN) for _ in range(4)]
            live.close()
        assert all(isinstance(block, Block) and block.memory.steady_bytes > 3e6 for block in blocks)

    def test_a_block_of_complete_runs_counts_calls(self) -> None:
        """Throughput and CPU time are those of calls, not of runs."""
        prepared = prepare_calls("silent", 3)
        assert not prepared.keeps_running
        with open_uncalibrated(prepared) as opened:
            (live,) = opened.runner.launch([ONE_THREAD])
            assert not isinstance(live, Failure)
            block = live.measure(BlockPlan(duration_ns=1, lead_in_ns=0, min_calls=2, deadline_s=60))
        assert isinstance(block, Block)
        assert (block.n_calls, block.n_untimed, len(block.samples_ns)) == (6, 2, 4)
        # As many durations are needed as the figures rest on.
        pace = measure_pace(block, Goal(), n_cases=1, quota=False, load_ns=1)
        assert pace.gap_ns == block.wall_ns / 4

    @pytest.mark.long
    def test_calls_that_end_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The program has ended before the first block of each start."""
        with open_uncalibrated(prepare_calls("silent", 12)) as opened:
            monkeypatch.setattr(CallCandidate, "_pause", lambda self: self._process.wait(60) and None)
            (live,) = opened.runner.launch([ONE_THREAD])
            assert not isinstance(live, Failure)
            answer = live.measure(PLAN)
        assert isinstance(answer, Failure)
        assert answer.message.startswith("it ended before a call of __main__:work could be measured")

    def test_the_exit_status_at_the_end(self, is_wrong: None) -> None:
        with open_uncalibrated(prepare_until_end("exits", ignore_outputs=True)) as opened:
            failure = judge_end(opened, ONE_THREAD)
        assert failure
        assert "status 5" in failure.message

    def test_the_command_of_the_user_judges_the_end(self, is_wrong: None) -> None:
        code = "import sys; sys.exit(float(sys.stdin.read().split()[1]) > 1.5)"
        check = shlex.join([sys.executable, "-c", code])
        with open_uncalibrated(prepare_until_end("ends", check_command=check)) as opened:
            assert judge_end(opened, TWO_THREADS) is None
            assert is_compared(opened, TWO_THREADS)
            failure = judge_end(opened, ONE_THREAD)
        assert failure
        assert "rejects it" in failure.message


def test_calls_that_end_soon_are_not_measured_inside() -> None:
    starts_ns = np.arange(20) * 2_000_000
    calls = np.stack([starts_ns, starts_ns + 1_000_000], axis=1)
    assert not can_measure_inside(calls, has_ended=True)
    assert can_measure_inside(calls, has_ended=False)
    assert can_measure_inside(2 * calls, has_ended=True)
    assert not can_measure_inside(100 * calls[:7], has_ended=True)


class SilentPrograms(SimulatedPrograms):
    """Programs that show nothing of what they compute."""

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        answers = super().launch(configs, deadline_s=deadline_s, independent=independent)
        for live in answers:
            assert isinstance(live, SimulatedLive)
            live.session_info = msgspec.structs.replace(live.session_info, outputs_compared=False)
        return answers


def test_the_record_of_a_search_that_compared_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(TINY_CNN, "model.onnx")
    scenario = Scenario()
    with (
        simulate(scenario),
        replaced({open_program_executor: lambda *given, **_: SilentPrograms(scenario, *given[::2])}),
    ):
        (record,) = search_program(prepare_calls("silent", 10_000, budget=60.0)).records
    assert record.evidence.output_check.compared == "nothing"
    assert any("were not compared" in text for text in find_warnings(record))


WRONG = Failure(kind="wrong_output", stage="check", message="another text")


def search(check: Callable[[Config, float], Failure | None], goal: Goal, journal: Path | None = None) -> Outcome:
    """Run a search on a simulated host, where one thread is fastest."""
    executor = SimulatedExecutor(one_thread_wins)
    with contextlib.ExitStack() as stack:
        if journal:
            opened = open_with_journal(executor, stack.enter_context(Journal(journal, BEGIN, AGAIN)))
            assert isinstance(opened, OpenComparison)
            journaled = opened.executors[0]
            assert isinstance(journaled, JournaledExecutor)
            check = functools.partial(journaled.check_finalist, check=check)
        else:
            (first,) = executor.launch([DEFAULT], deadline_s=1)
            assert not isinstance(first, Failure)
            opened = start_comparison(executor, first, goal, first_launch_s=executor.now_s(), free_bytes=8_000_000_000)
        opened = msgspec.structs.replace(opened, check_finalist=check)
        return run_search(build_space(make_host(), make_model()), opened, SearchSettings(budget_s=60))


class TestFinalists:
    """Finalists whose outputs turn out to be wrong when their program is run to its end."""

    @pytest.mark.parametrize("objectives", [("p50",), ("p50", "cpu")])
    def test_they_are_not_confirmed(self, objectives: tuple[Objective, ...]) -> None:
        checked = []

        def check(config: Config, left_s: float) -> Failure | None:
            checked.append(config)
            assert 0 < left_s < 15
            return WRONG if config.session_options.get("intra_op_num_threads") == 1 else None

        outcome = search(check, Goal(objectives=objectives))
        wrong = [trial.config for trial in outcome.trials if trial.failure == WRONG]
        assert wrong
        assert len({config.key for config in checked}) == len(checked)
        assert outcome.evidence.output_check.n_rejected == len(wrong)
        assert outcome.evidence.output_check.compared == "values"
        configs = [outcome.config, *(point.summary.config for point in outcome.evidence.front)]
        assert not any(config in wrong for config in configs)

    def test_others_are_confirmed(self) -> None:
        outcome = search(lambda config, left_s: None, Goal())
        assert outcome.evidence.verdict == "faster"
        assert outcome.config.session_options["intra_op_num_threads"] == 1

    @pytest.mark.parametrize("failure", [None, WRONG])
    def test_a_search_that_goes_on_does_not_check_them_again(self, failure: Failure | None, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        done = search(lambda config, left_s: failure, Goal(), path)
        again = search(lambda config, left_s: pytest.fail("it was checked again"), Goal(), path)
        assert msgspec.json.encode(again) == msgspec.json.encode(done)


def test_a_gate_that_compared_nothing() -> None:
    assert "outputs were not compared" in describe_measurement(make_result(outputs_compared=False))
    assert "outputs were not compared" not in describe_measurement(make_result())


def test_answers_to_all_bodies(is_wrong: None, tmp_path: Path) -> None:
    bodies = (tmp_path / "a", tmp_path / "b")
    for path in bodies:
        path.write_text(path.name)
    with open_program(prepare("answers", "{port}", url="http://127.0.0.1:{port}/", body=bodies)) as opened:
        assert judge(opened, TWO_THREADS) == (None, True)
        failure, _ = judge(opened, ONE_THREAD)
    assert failure
    assert failure.kind == "wrong_output"
    assert failure.message.startswith("answer to b: ")


def make_text(value: object) -> bytes:
    text = describe_returned(value)
    assert text is not None
    assert "\n" not in text
    return text.encode()


class Opaque:
    pass


@dataclasses.dataclass
class Point:
    x: float
    name: str


class TestDescriptions:
    """What a function returned, as text."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1.0, 1.0000001),
            (1e-9, 3e-9),
            (np.float32(0.25), np.float32(0.2500001)),
            (np.linspace(-1, 1, 5000), np.linspace(-1, 1, 5000) + 1e-6),
            (np.array([1e-7, 5.0]), np.array([2e-7, 5.0])),
            ([1e-7, 5.0], [2e-7, 5.0]),
            (np.full((64, 64, 3), 100, np.uint8), np.full((64, 64, 3), 101, np.uint8)),
            ({"a": ["x", 1, None]}, {"a": ["x", 1, None]}),
            (Point(1.0, "a"), Point(1.0000001, "a")),
            (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
            (b"abc", b"abc"),
            ("\udc80", "\udc80"),
        ],
    )
    def test_rounding_is_no_difference(self, one: object, other: object) -> None:
        assert compare_text(make_text(one), make_text(other)) is None

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (1.0, 1.01),
            (1, 2),
            (True, False),
            ("a b", "a c"),
            ("1", 1),
            ([1.0, 2.0], [1.0, 2.02]),
            ([1, 2], [1, 3]),
            ([1, 2], [1, 2, 3]),
            (np.zeros(3), np.zeros(4)),
            (np.zeros(3), np.zeros(3, np.float32)),
            (np.array([1, 2]), np.array([1, 3])),
            (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
            (np.array(["a", "b"]), np.array(["a", "c"])),
            (np.array([3, 4], np.uint8), np.array([3, 5], np.uint8)),
            (np.linspace(0, 1, 5000), np.linspace(0, 1, 5000) ** 2),
            ({"a": 1}, {"b": 1}),
            (b"abc", b"xyz"),
            (Point(1.0, "a"), Point(1.0, "b")),
            ([None], [0]),
            ([1] * 2000, [1] * 600 + [2] * 1400),
            (["a"] * 2000, ["a"] * 600 + ["b"] * 1400),
        ],
    )
    def test_differences(self, one: object, other: object) -> None:
        assert compare_text(make_text(one), make_text(other)) is not None

    @pytest.mark.parametrize("value", [None, Opaque(), [Opaque()], {"a": Opaque()}, {1, 2}, lambda: None])
    def test_what_means_nothing_elsewhere(self, value: object) -> None:
        assert describe_returned(value) is None

    def test_large_values_are_described_briefly(self) -> None:
        nested: object = 1
        for _ in range(100):
            nested = [nested]
        assert describe_returned(nested) is None
        for value in ("x" * 1_000_000, [1] * 1_000_000, np.ones(1_000_000), [["a"] * 1000] * 1000):
            assert len(make_text(value)) < 50_000
        assert compare_text(make_text([1] * 9999), make_text([1] * 10_000)) is not None


class TestReading:
    """What the program wrote is not trusted."""

    @pytest.mark.parametrize(
        "data", [b"[" * 100_000, b"\xff", b"{}", b'{"start_ns": -1, "end_ns": 1, "text": ""}', b"\n"]
    )
    def test_malformed_files(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "returned-1.jsonl").write_bytes(data)
        assert read_returned(tmp_path) == []

    def test_calls_of_processes_are_in_order(self, tmp_path: Path) -> None:
        for pid, start_ns in ((7, 30), (8, 10)):
            line = {"start_ns": start_ns, "end_ns": start_ns + 5, "text": str(pid)}
            (tmp_path / f"returned-{pid}.jsonl").write_text(json.dumps(line) + "\n")
        assert [call.text for call in read_returned(tmp_path)] == ["8", "7"]


class TestReference:
    def test_a_candidate_is_never_the_reference(self) -> None:
        outputs = OutputReference(ProgramTask(command=("x",)))
        assert outputs.compare_part(0, b"1", "tuned", is_baseline=False) is None
        assert not outputs.is_compared("tuned", is_baseline=False)
        outputs.compare_part(0, b"2", DEFAULT.key, is_baseline=True)
        assert outputs.compare_part(0, b"1", "tuned", is_baseline=False) is None, "what varies is not known"
        assert not outputs.is_compared("tuned", is_baseline=False)
        outputs.compare_part(0, b"2", DEFAULT.key, is_baseline=True)
        assert outputs.compare_part(0, b"1", "tuned", is_baseline=False)

    def test_what_varies_as_a_whole_is_not_compared(self) -> None:
        outputs = OutputReference(ProgramTask(command=("x",)))
        for _ in range(2):
            outputs.compare_part(0, b"1", DEFAULT.key, is_baseline=True)
        outputs.compare_part(0, b"1", "tuned", is_baseline=False)
        assert outputs.is_compared("tuned", is_baseline=False)
        outputs.compare_part(0, b"1 2 3", DEFAULT.key, is_baseline=True)
        assert not outputs.is_compared("tuned", is_baseline=False)

    def test_where_all_words_vary_nothing_is_compared(self) -> None:
        outputs = OutputReference(ProgramTask(command=("x",)))
        for text in (b"0.123", b"0.456"):
            outputs.compare_part(0, text, DEFAULT.key, is_baseline=True)
        outputs.compare_part(0, b"garbage", "tuned", is_baseline=False)
        assert not outputs.is_compared("tuned", is_baseline=False)
        assert not outputs.is_compared(DEFAULT.key, is_baseline=True)


def note(folder: Path, texts: Sequence[str | None], *, overlap: bool = False) -> Path:
    """Write what the first calls of a run returned, and return the folder."""
    folder.mkdir(exist_ok=True)
    lines = [
        {"start_ns": 10 * number, "end_ns": 10 * number + (15 if overlap else 5), "text": text}
        for number, text in enumerate(texts)
    ]
    (folder / "returned-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class TestReturnedCalls:
    """What the calls of candidates return, compared with the program as it is."""

    @pytest.fixture
    def outputs(self, tmp_path: Path) -> OutputReference:
        found = OutputReference(ProgramTask(command=("x",), call="m:f"))
        for _ in range(2):
            found.compare_returned(note(tmp_path / "base", ["ok"] * 8), DEFAULT.key, is_baseline=True)
        return found

    def compare(self, outputs: OutputReference, folder: Path, key: str = "tuned") -> str | None:
        return outputs.compare_returned(folder, key, is_baseline=False)

    def test_nothing_instead_of_a_result_is_a_difference(self, outputs: OutputReference, tmp_path: Path) -> None:
        found = self.compare(outputs, note(tmp_path / "a", ["ok", None, None]))
        assert found == "call 2 of m:f returned nothing that can be compared"
        assert self.compare(outputs, note(tmp_path / "b", ["ok"] * 8)) is None

    def test_where_the_program_returns_nothing_a_candidate_may(self, outputs: OutputReference, tmp_path: Path) -> None:
        outputs.compare_returned(note(tmp_path / "base", ["ok", None]), DEFAULT.key, is_baseline=True)
        assert self.compare(outputs, note(tmp_path / "a", ["ok", None])) is None

    def test_a_candidate_without_an_order_does_not_protect_others(
        self, outputs: OutputReference, tmp_path: Path
    ) -> None:
        assert self.compare(outputs, note(tmp_path / "a", ["bad"] * 8, overlap=True)) is None
        assert not outputs.is_compared("tuned", is_baseline=False)
        assert self.compare(outputs, note(tmp_path / "b", ["bad"] * 8), "other")

    def test_they_are_not_compared_on_request(self, tmp_path: Path) -> None:
        outputs = OutputReference(ProgramTask(command=("x",), call="m:f", ignore_outputs=True))
        for _ in range(2):
            outputs.compare_returned(note(tmp_path / "base", ["ok"] * 8), DEFAULT.key, is_baseline=True)
        assert self.compare(outputs, note(tmp_path / "a", ["bad"] * 8)) is None
        assert not outputs.is_compared("tuned", is_baseline=False)

    def test_a_run_counts_once(self, tmp_path: Path) -> None:
        """Calls that were compared before its end are not compared again."""
        outputs = OutputReference(ProgramTask(command=("x",), call="m:f"))
        folder = note(tmp_path / "base", ["a", "b", "c"])
        outputs.compare_returned(folder, DEFAULT.key, is_baseline=True)
        outputs.compare_returned(folder, DEFAULT.key, is_baseline=True, n_known=3)
        assert not outputs.is_compared(DEFAULT.key, is_baseline=True)


class TestPrinted:
    """What complete runs print."""

    def compare(self, outputs: OutputReference, output: bytes | None, key: str = "") -> str | None:
        run = cast("LaunchedProgram", SimpleNamespace(read_output=lambda: output))
        failure = outputs.compare_run(run, key or DEFAULT.key, is_baseline=not key)
        assert failure is None or failure.kind == "wrong_output"
        return failure.message if failure else None

    @pytest.mark.parametrize(("pattern", "best"), [(r"images/s: (\d+)", b"150"), (r"(images)/s: (\d+)", b"150")])
    def test_a_better_metric_is_no_difference(self, pattern: str, best: bytes) -> None:
        outputs = OutputReference(ProgramTask(command=("x",), metric=pattern))
        for _ in range(3):
            self.compare(outputs, b"label 3\nimages/s: 120\n")
        assert self.compare(outputs, b"label 3\nimages/s: " + best, "tuned") == 'line 2: " " is missing'
        assert self.compare(outputs, b"label 3\nimages/s: " + best + b"\n", "tuned") is None
        assert self.compare(outputs, b"label 4\nimages/s: " + best + b"\n", "tuned")

    def test_it_is_not_compared_on_request(self) -> None:
        outputs = OutputReference(ProgramTask(command=("x",), ignore_outputs=True))
        for _ in range(2):
            self.compare(outputs, b"label 3")
        assert self.compare(outputs, b"label 4", "tuned") is None
        assert not outputs.is_compared("tuned", is_baseline=False)

    def test_too_much_output_is_a_difference(self) -> None:
        outputs = OutputReference(ProgramTask(command=("x",)))
        for _ in range(2):
            self.compare(outputs, b"label 3")
        assert self.compare(outputs, None, "tuned") == "it printed more than can be compared"
        assert self.compare(outputs, b"label 4", "other")
        assert self.compare(outputs, None) is None
        assert self.compare(outputs, None, "tuned") is None
        assert not outputs.is_compared("other", is_baseline=False)


class TestCheck:
    """The user's command that judges the output of a run."""

    def check(self, folder: Path, command: str, *, timeout_s: float = 60) -> Failure | None:
        (folder / "stdout").write_text("label 3\n")
        run = cast("LaunchedProgram", SimpleNamespace(folder=folder, stdout=folder / "stdout"))
        return check_output(command, run, timeout_s=timeout_s)

    @pytest.mark.parametrize(
        ("command", "kind", "message"),
        [
            ("grep 'label 4'", "wrong_output", "the check \"grep 'label 4'\" rejects it"),
            ("sh -c 'echo no; echo wrong label >&2; exit 3'", "wrong_output", "rejects it: wrong label"),
            ("sh -c 'head -c 9000000 /dev/zero; echo; echo no label; exit 1'", "wrong_output", "rejects it: no label"),
            ("sh -c 'kill -9 $$'", "crash", "was ended by SIGKILL"),
            ("/no/such/program", "exit", "cannot be started: No such file or directory"),
        ],
    )
    def test_what_does_not_accept_it(self, command: str, kind: str, message: str, tmp_path: Path) -> None:
        """A check that does not run says nothing about the output."""
        failure = self.check(tmp_path, command)
        assert failure is not None
        assert (failure.kind, failure.stage) == (kind, "check")
        assert failure.message.endswith(message)

    def test_what_accepts_it(self, tmp_path: Path) -> None:
        assert self.check(tmp_path, "grep 'label 3'") is None

    def test_one_that_does_not_end(self, tmp_path: Path) -> None:
        """All its processes end."""
        pid = tmp_path / "pid"
        failure = self.check(tmp_path, f"sh -c 'sleep 600 & echo $! >{pid}; wait'", timeout_s=10)
        assert failure is not None
        assert failure.kind == "timeout"
        assert failure.message.endswith("did not end within 10 s")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid.read_text()))
            assert psutil.wait_procs([process], timeout=60)[0] or process.status() == psutil.STATUS_ZOMBIE

    @pytest.mark.skipif(not HAS_DEATH_SIGNAL, reason="only Linux can signal the end of a parent")
    def test_one_whose_ortune_is_killed(self, tmp_path: Path) -> None:
        (tmp_path / "stdout").touch()
        code = (
            "import sys\n"
            "from pathlib import Path\n"
            "from types import SimpleNamespace\n"
            "from ortune.program.outputs import check_output\n"
            "folder = Path(sys.argv[1])\n"
            "run = SimpleNamespace(folder=folder, stdout=folder / 'stdout')\n"
            "check_output(f\"sh -c 'echo $$ >{folder}/pid; exec sleep 600'\", run, timeout_s=600)\n"
        )
        with subprocess.Popen([sys.executable, "-P", "-c", code, str(tmp_path)]) as parent:
            pid = int(wait_for(tmp_path / "pid"))
            parent.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            assert psutil.wait_procs([process], timeout=60)[0] or process.status() == psutil.STATUS_ZOMBIE

    def test_one_that_does_not_run_is_no_comparison(self, tmp_path: Path) -> None:
        (tmp_path / "stdout").touch()
        run = cast("LaunchedProgram", SimpleNamespace(folder=tmp_path, stdout=tmp_path / "stdout"))
        for command, is_compared in (("/no/such/program", False), ("false", True), ("true", True)):
            outputs = OutputReference(ProgramTask(command=("x",), check=command))
            outputs.compare_run(run, "tuned", is_baseline=False)
            assert outputs.is_compared("tuned", is_baseline=False) == is_compared
            # What was not judged is judged when a finalist is run to its end.
            assert outputs.has_ended("tuned") == is_compared

    def test_a_request_without_an_answer_is_no_fault_of_a_check(self) -> None:
        late = Failure(kind="timeout", stage="check", message="the server did not answer")
        assert not is_unjudged(ProgramTask(command=("x",)), late)
        assert is_unjudged(ProgramTask(command=("x",), check="true"), late)
        assert not is_unjudged(ProgramTask(command=("x",), check="true"), WRONG)
