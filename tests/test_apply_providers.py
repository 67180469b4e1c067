"""Execution providers of programs under `ortune apply`: which records apply to them, and how options are merged."""

from __future__ import annotations

import json
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Config, Record
from ortune.apply.inside.providers import ProviderChoice, Skip, read_requested
from ortune.apply.inside.settings import TunedSession
from ortune.apply.plan import make_hook_plan, make_rule
from ortune.knobs.providers import PROVIDERS, chain_of
from ortune.program_options import ProgramRequest
from ortune.record.schema import Tried
from ortune.record.select import SelectedRecord
from ortune.workload.program import ProgramRun
from tests.applying import run
from tests.conftest import TINY_CNN, long_params
from tests.records import ONE_THREAD, make_record, write

AZURE = "AzureExecutionProvider"
CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
KNOWN = {AZURE, CPU, CUDA, OPENVINO, TENSORRT}

Requested = dict[str, dict[str, str]]


def choose(
    wanted: Requested, requested: Requested, *covered: str, keep: bool = False, known: set[str] = KNOWN
) -> ProviderChoice:
    return ProviderChoice(list(wanted.items()), requested, covered, known, keep=keep)


def chosen(choice: ProviderChoice) -> Requested:
    return dict(zip(choice.names, choice.options, strict=True))


class TestOwnProviders:
    """Settings that were searched with a program are for sessions with the providers that it requests."""

    def test_they_are_kept(self) -> None:
        rule = make_rule("r", "m", (), ONE_THREAD, Tried(), onnxruntime="1", own_providers=True)
        nothing: Any = None  # neither the log of options nor the libraries of plugins are needed
        requested = {CUDA: {"device_id": "1"}, CPU: {}}
        for keep in (False, True):
            session = TunedSession(rule, "m.onnx", {})
            arguments = {"sess_options": None, "providers": [*requested.items()], "provider_options": None}
            session.set_providers(None, arguments, nothing, nothing, keep=keep)
            assert dict(zip(session.providers.names, session.providers.options, strict=True)) == requested
            assert not session.providers.set and not session.providers.replaced
        session.set_providers(None, {**arguments, "providers": None}, nothing, nothing, keep=False)
        assert session.arguments[2:] == (None, None)

    @pytest.mark.parametrize("with_program", [False, True])
    def test_records_of_programs_say_so(self, with_program: bool) -> None:
        record = make_record(TINY_CNN, ONE_THREAD)
        if with_program:
            workload = msgspec.structs.replace(record.workload, program=ProgramRun(program="app.py", sha256="0" * 64))
            record = msgspec.structs.replace(record, workload=workload)
        (rule,) = make_hook_plan([SelectedRecord(record=record, source="r", fits=True, why="")], ProgramRequest(), "")[
            "rules"
        ]
        assert rule["own_providers"] == with_program


class TestChoice:
    def test_a_program_without_providers_gets_the_records(self) -> None:
        wanted = {CUDA: {"prefer_nhwc": "1"}, CPU: {}}
        choice = choose(wanted, {})
        assert chosen(choice) == wanted
        assert choice.set == {"providers": f"{CUDA},{CPU}", "cuda.prefer_nhwc": "1"}
        assert not choice.replaced

    @pytest.mark.parametrize("keep", [False, True])
    def test_a_provider_that_the_record_does_not_cover_is_left_alone(self, keep: bool) -> None:
        requested = {TENSORRT: {"trt_engine_cache_path": "/c"}, CUDA: {"device_id": "1"}, CPU: {}}
        with pytest.raises(Skip, match=f"^the program requests {TENSORRT}, {CUDA}, which the record does not cover$"):
            choose({CPU: {}}, requested, keep=keep)
        with pytest.raises(Skip, match=f"requests {TENSORRT}, which"):
            choose({CUDA: {}, CPU: {}}, requested, keep=keep)

    def test_options_are_merged_per_provider(self) -> None:
        requested = {CUDA: {"device_id": "1", "prefer_nhwc": "0"}, CPU: {"use_arena": "0"}}
        choice = choose({CUDA: {"prefer_nhwc": "1", "use_tf32": "0"}, CPU: {}}, requested)
        assert chosen(choice) == {
            CUDA: {"device_id": "1", "prefer_nhwc": "1", "use_tf32": "0"},
            CPU: {"use_arena": "0"},
        }
        assert choice.replaced == {"cuda.prefer_nhwc": "0"}
        assert choice.set == {"providers": f"{CUDA},{CPU}", "cuda.prefer_nhwc": "1", "cuda.use_tf32": "0"}
        assert (choice.dropped, choice.reordered) == ([], False)

    def test_with_keep_explicit_the_programs_options_win(self) -> None:
        requested = {CUDA: {"device_id": "1", "prefer_nhwc": "0"}}
        choice = choose({CUDA: {"prefer_nhwc": "1", "use_tf32": "0"}, CPU: {}}, requested, keep=True)
        assert chosen(choice) == {CUDA: {"device_id": "1", "prefer_nhwc": "0", "use_tf32": "0"}}
        assert choice.not_set == ["cuda.prefer_nhwc=1 (the program's 0 is kept)"]
        assert not choice.replaced

    def test_with_keep_explicit_the_first_provider_must_be_the_records(self) -> None:
        with pytest.raises(Skip, match=f"the program requests {CPU}, but the record is for {CUDA}"):
            choose({CUDA: {}, CPU: {}}, {CPU: {}}, keep=True)

    def test_with_keep_explicit_what_the_program_does_not_request_is_reported(self) -> None:
        wanted = {TENSORRT: {}, CUDA: {"use_tf32": "0"}, CPU: {}}
        choice = choose(wanted, {TENSORRT: {}, CPU: {}}, keep=True)
        assert choice.names == [TENSORRT, CPU]
        assert choice.not_set == [
            f"providers={TENSORRT},{CUDA},{CPU} (the program's {TENSORRT},{CPU} are kept)",
            "cuda.use_tf32=0 (the program does not request the provider)",
        ]

    def test_a_provider_that_the_search_tried_is_dropped_and_named(self) -> None:
        requested = {TENSORRT: {"trt_engine_cache_path": "/c"}, CUDA: {"device_id": "1"}, CPU: {}}
        choice = choose({CUDA: {}, CPU: {}}, requested, TENSORRT)
        assert chosen(choice) == {CUDA: {"device_id": "1"}, CPU: {}}
        assert choice.replaced == {
            "providers": f"{TENSORRT},{CUDA},{CPU}",
            "tensorrt.trt_engine_cache_path": "/c",
        }
        assert (choice.dropped, choice.reordered) == ([TENSORRT], False)

    def test_another_order_is_named(self) -> None:
        choice = choose({CUDA: {}, OPENVINO: {}, CPU: {}}, {OPENVINO: {}, CUDA: {}})
        assert choice.names == [CUDA, OPENVINO, CPU]
        assert (choice.dropped, choice.reordered) == ([], True)
        assert choice.replaced == {"providers": f"{OPENVINO},{CUDA}"}

    def test_the_cpu_alone_is_replaced_by_the_records_provider(self) -> None:
        choice = choose({OPENVINO: {}, CPU: {}}, {CPU: {"use_arena": "0"}})
        assert chosen(choice) == {OPENVINO: {}, CPU: {"use_arena": "0"}}
        assert choice.replaced == {"providers": CPU}

    def test_the_cpu_that_onnxruntime_adds_is_no_replacement(self) -> None:
        assert not choose({CUDA: {}, CPU: {}}, {CUDA: {}}).replaced
        assert not choose({CUDA: {}}, {CUDA: {}, CPU: {}}).dropped

    def test_the_gpu_is_that_of_the_program(self) -> None:
        """Also for a provider that the program does not request: otherwise, the session would run on the first GPU."""
        choice = choose({TENSORRT: {}, CUDA: {}, CPU: {}}, {CUDA: {"device_id": "1"}, CPU: {}})
        assert chosen(choice) == {TENSORRT: {"device_id": "1"}, CUDA: {"device_id": "1"}, CPU: {}}

    @pytest.mark.parametrize(
        ("requested", "names"),
        [
            ([AZURE, CPU], [AZURE, OPENVINO, CPU]),
            ([AZURE], [AZURE, OPENVINO, CPU]),
            ([CPU, AZURE], [OPENVINO, CPU, AZURE]),
            ([OPENVINO, AZURE, CPU], [OPENVINO, AZURE, CPU]),
            ([CUDA, CPU], [CUDA, OPENVINO, CPU]),
        ],
    )
    def test_providers_that_run_nothing_here_stay_where_they_are(self, requested: list[str], names: list[str]) -> None:
        """This onnxruntime has no CUDA: it warns, and creates the session without it."""
        given = {name: {"a": name} for name in requested}
        choice = choose({OPENVINO: {}, CPU: {}}, given, known=KNOWN - {CUDA})
        assert choice.names == names
        assert not choice.dropped
        assert all(chosen(choice)[name] == {"a": name} for name in requested)

    def test_with_keep_explicit_they_are_not_the_programs_first_provider(self) -> None:
        wanted: Requested = {OPENVINO: {}, CPU: {}}
        assert choose(wanted, {AZURE: {}}, keep=True).names == [AZURE, OPENVINO, CPU]
        assert choose(wanted, {AZURE: {}, OPENVINO: {}}, keep=True).names == [AZURE, OPENVINO]
        with pytest.raises(Skip, match=f"requests {CPU}, but"):
            choose(wanted, {CUDA: {}, CPU: {}}, keep=True, known=KNOWN - {CUDA})

    def test_a_provider_that_the_program_loads_from_a_library_is_there(self) -> None:
        with pytest.raises(Skip, match="MyExecutionProvider"):
            choose({CPU: {}}, {"MyExecutionProvider": {"shared_lib_path": "/my.so"}, CPU: {}})

    @given(
        st.lists(st.sampled_from(sorted(KNOWN)), unique=True),
        st.sampled_from([CPU, CUDA, TENSORRT, OPENVINO]),
        st.sets(st.sampled_from(sorted(KNOWN))),
        st.booleans(),
    )
    def test_nothing_is_lost_silently(self, names: list[str], first: str, known: set[str], keep: bool) -> None:
        """Each provider and each option of the program is in the session, or is named as replaced."""
        requested = {name: {"own": name, "both": "theirs"} for name in names}
        wanted: Requested = {name: {"both": "ours"} for name, _ in chain_of(first)}
        try:
            choice = choose(wanted, requested, TENSORRT, keep=keep, known=known | {CPU})
        except Skip:
            return
        found = chosen(choice)
        assert len(choice.names) == len(choice.options) == len(found)
        for name in names:
            if name not in found:
                assert name in choice.dropped
                assert name in choice.replaced["providers"].split(",")
                alias = PROVIDERS[name].alias
                assert choice.replaced[f"{alias}.own"] == name
            elif name in wanted:
                assert found[name] == {"own": name, "both": "theirs" if keep else "ours"}
            else:
                assert found[name] == requested[name]
        if keep and any(name in known and name != AZURE for name in names):
            assert not choice.replaced


class TestArguments:
    """The two arguments are read as onnxruntime reads them."""

    def test_names_and_pairs(self) -> None:
        assert read_requested(None, None) == {}
        assert read_requested([], None) == {}
        assert read_requested([CUDA, (CPU, {"a": 1, "b": True})], None) == {CUDA: {}, CPU: {"a": "1", "b": "True"}}
        assert read_requested((CUDA, CPU), [{"device_id": 1}, {}]) == {CUDA: {"device_id": "1"}, CPU: {}}
        assert read_requested([(CUDA, {"a": 1}), CUDA], None) == {CUDA: {"a": "1"}}

    @pytest.mark.parametrize(
        ("providers", "options"),
        [
            (CPU, None),
            (5, None),
            ([5], None),
            ([[CPU, {}]], None),
            ([(CPU,)], None),
            ([(CPU, None)], None),
            ([CPU], []),
            ([CPU], 5),
            ([CPU], [None]),
            ([(CPU, {})], [{}]),
        ],
    )
    def test_what_onnxruntime_rejects_is_left_to_it(self, providers: Any, options: Any) -> None:
        with pytest.raises(Skip, match="not valid"):
            read_requested(providers, options)

    @given(
        st.none()
        | st.lists(st.sampled_from([CPU, AZURE]) | st.tuples(st.just(CPU), st.just({"a": 1})) | st.integers()),
        st.none() | st.lists(st.just({"b": 2}) | st.none()),
    )
    def test_as_onnxruntime_does(self, providers: Any, options: Any) -> None:
        collection = pytest.importorskip("onnxruntime.capi.onnxruntime_inference_collection")
        try:
            with warnings.catch_warnings(action="ignore"):
                names, theirs = collection.check_and_normalize_provider_args(providers, options, [CPU, AZURE])
        except ValueError:
            with pytest.raises(Skip):
                read_requested(providers, options)
        else:
            assert read_requested(providers, options) == dict(zip(names, theirs, strict=True))


PLAIN = f"""
import json, onnxruntime
def create(*arguments, **named):
    session = onnxruntime.InferenceSession({str(TINY_CNN)!r}, *arguments, **named)
    print(json.dumps([session.get_providers(), session.get_session_options().intra_op_num_threads]))
"""


def with_tried(record: Record, *providers: str) -> Record:
    return msgspec.structs.replace(
        record, search=msgspec.structs.replace(record.search, tried=Tried(providers=providers))
    )


FAKES = f"""
import json, os, sys
import onnxruntime
from onnxruntime.capi import onnxruntime_inference_collection as collection

# CUDA and TensorRT seem to be there. What onnxruntime is asked for is noted, and runs on the CPU.
known = [{TENSORRT!r}, {CUDA!r}, {AZURE!r}, {CPU!r}]
onnxruntime.get_available_providers = lambda: known
onnxruntime.preload_dlls = lambda: None
normalize = collection.check_and_normalize_provider_args
asked = []
def note(providers, options, available):
    asked.append(list(zip(*normalize(providers, options, known))))
    return [{CPU!r}], [{{}}]
collection.check_and_normalize_provider_args = note
onnxruntime.InferenceSession.get_providers = lambda session: [name for name, _ in asked[-1]]
onnxruntime.InferenceSession.get_provider_graph_assignment_info = lambda session: []
def create(*arguments, **named):
    session = onnxruntime.InferenceSession({str(TINY_CNN)!r}, *arguments, **named)
    print(json.dumps([asked.pop(), session.get_session_options().intra_op_num_threads]))
"""


class TestPrograms:
    """Programs and live sessions."""

    def program(
        self, code: str, record: Record, tmp_path: Path, *options: str, head: str = FAKES
    ) -> tuple[list[Any], list[dict[str, Any]], str]:
        """Run a program. Return what it prints, what --explain-json writes, and its stderr."""
        log = tmp_path / "log.jsonl"
        log.write_text("")
        done = run(
            sys.executable,
            "-W",
            "ignore",
            "-c",
            head + textwrap.dedent(code),
            record=write(record, tmp_path / "r.json"),
            options=("--explain", "--explain-json", str(log), *options),
        )
        assert done.returncode == 0, done.stderr
        return (
            [json.loads(splitline) for splitline in done.stdout.splitlines()],
            [json.loads(splitline) for splitline in log.read_text().splitlines()],
            done.stderr,
        )

    @pytest.mark.parametrize("options", [(), *long_params(("--keep-explicit",))])
    def test_a_program_on_a_gpu_under_a_record_for_the_cpu(self, options: tuple[str, ...], tmp_path: Path) -> None:
        code = f"""
        create(providers=[({CUDA!r}, {{"device_id": 1}}), {CPU!r}])
        create(None, [{TENSORRT!r}, {CUDA!r}], [{{"trt_engine_cache_enable": True}}, {{}}])
        create(providers=[{AZURE!r}, {CPU!r}])
        create()
        """
        record = make_record(TINY_CNN, ONE_THREAD)
        printed, explained, stderr = self.program(code, record, tmp_path, *options)
        assert printed == [
            [[[CUDA, {"device_id": "1"}], [CPU, {}]], 0],
            [[[TENSORRT, {"trt_engine_cache_enable": "True"}], [CUDA, {}]], 0],
            [[[AZURE, {}], [CPU, {}]], 1],
            [[[CPU, {}]], 1],
        ]
        assert [explanation["matched"] for explanation in explained] == [False, False, True, True]
        assert explained[0]["reason"] == f"the program requests {CUDA}, which the record does not cover"
        assert f"keeps the program's own options: the program requests {TENSORRT}, {CUDA}, which the record" in stderr

    def test_options_of_the_program_are_kept(self, tmp_path: Path) -> None:
        record = make_record(
            TINY_CNN,
            Config(session_options={"intra_op_num_threads": 1}, providers=((CUDA, {"prefer_nhwc": "1"}), (CPU, {}))),
        )
        code = f"""
        create(providers=[({CUDA!r}, {{"device_id": 1, "prefer_nhwc": "0"}}), {CPU!r}])
        create(None, [{CUDA!r}], [{{"device_id": 1, "prefer_nhwc": "0"}}])
        """
        printed, explained, stderr = self.program(code, record, tmp_path)
        assert printed == [[[[CUDA, {"device_id": "1", "prefer_nhwc": "1"}], [CPU, {}]], 1]] * 2
        assert explained[0]["replaced"] == {"cuda.prefer_nhwc": "0"}
        assert explained[0]["set"]["cuda.prefer_nhwc"] == "1"
        assert "replaced   cuda.prefer_nhwc=0" in stderr
        printed, explained, stderr = self.program(code, record, tmp_path, "--keep-explicit")
        assert printed[0] == [[[CUDA, {"device_id": "1", "prefer_nhwc": "0"}], [CPU, {}]], 1]
        assert explained[0]["replaced"] == {}
        assert "not set    cuda.prefer_nhwc=1 (the program's 0 is kept)" in stderr

    def test_providers_that_the_search_tried_are_replaced_and_named(self, tmp_path: Path) -> None:
        record = with_tried(make_record(TINY_CNN, ONE_THREAD), CUDA, TENSORRT)
        code = f"""
        create(providers=[({TENSORRT!r}, {{"trt_engine_cache_path": "/c"}}), {CUDA!r}, {CPU!r}])
        """
        printed, (explained,), stderr = self.program(code, record, tmp_path)
        assert printed == [[[[CPU, {}]], 1]]
        assert explained["replaced"] == {
            "providers": f"{TENSORRT},{CUDA},{CPU}",
            "tensorrt.trt_engine_cache_path": "/c",
        }
        assert explained["providers_dropped"] == [TENSORRT, CUDA]
        assert explained["providers_reordered"] is False
        assert f"dropped    {TENSORRT}, {CUDA}" in stderr

    def test_another_order_is_reported(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config(providers=chain_of(TENSORRT)))
        printed, (explained,), stderr = self.program(f"create(providers=[{CUDA!r}, {TENSORRT!r}])", record, tmp_path)
        assert printed[0][0] == [[TENSORRT, {}], [CUDA, {}], [CPU, {}]]
        assert explained["providers_reordered"] is True
        assert "reordered" in stderr

    def test_all_available_providers(self, tmp_path: Path) -> None:
        """A program that requests all that onnxruntime has, or more than that, has the same providers as without."""
        head = f"""
import json, onnxruntime
def create(*arguments, **named):
    session = onnxruntime.InferenceSession({str(TINY_CNN)!r}, *arguments, **named)
    read = session.get_session_options().intra_op_num_threads
    print(json.dumps([session.get_providers(), sorted(session.get_provider_options()), read]))
"""
        code = f"""
        create(providers=onnxruntime.get_available_providers())
        create(providers=[{CUDA!r}, ({CPU!r}, {{"use_arena": "0"}})])
        create(providers=[{CPU!r}])
        """
        plain = run_plain(head + textwrap.dedent(code))
        printed, explained, _ = self.program(code, make_record(TINY_CNN, ONE_THREAD), tmp_path, head=head)
        assert [line[:2] for line in printed] == [line[:2] for line in plain]
        assert [line[2] for line in printed] == [1, 1, 1]
        assert all(explanation["matched"] and not explanation["replaced"] for explanation in explained)

    def test_arguments_that_onnxruntime_rejects_raise_as_without(self, tmp_path: Path) -> None:
        code = f"""
        import onnxruntime
        try:
            onnxruntime.InferenceSession({str(TINY_CNN)!r}, providers=[{CPU!r}], provider_options=[], enable_fallback=0)
        except ValueError as error:
            print(json.dumps(str(error)))
        """
        printed, _, _ = self.program(code, make_record(TINY_CNN, ONE_THREAD), tmp_path, head="import json")
        assert printed == run_plain("import json" + textwrap.dedent(code))

    def test_a_selection_by_policy_is_left_alone(self, tmp_path: Path) -> None:
        code = """
        options = onnxruntime.SessionOptions()
        options.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)
        create(options)
        """
        printed, (explained,), stderr = self.program(code, make_record(TINY_CNN, ONE_THREAD), tmp_path)
        assert printed[0][1] == 0
        reason = "the program lets ONNX Runtime select execution providers by a policy"
        assert explained["reason"] == reason
        assert f"r.json is not used: {reason}" in stderr

    def test_devices_that_the_program_selects_are_kept(self, tmp_path: Path) -> None:
        """Its own provider is the record's: the session gets the session options, and nothing else."""
        code = """
        import onnxruntime
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == "CPUExecutionProvider"]
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(devices, {"use_arena": "0"})
        create(options)
        """
        printed, (explained,), _ = self.program(code, make_record(TINY_CNN, ONE_THREAD), tmp_path, head=PLAIN)
        assert printed == [[[CPU], 1]]
        assert explained["set"] == {"intra_op_num_threads": 1}
        record = make_record(TINY_CNN, Config(providers=chain_of(CUDA)))
        printed, (explained,), _ = self.program(code, record, tmp_path, head=PLAIN)
        assert printed == [[[CPU], 0]]
        assert not explained["matched"]


def run_plain(code: str) -> list[Any]:
    done = run(sys.executable, "-W", "ignore", "-c", code)
    assert done.returncode == 0, done.stderr
    return [json.loads(splitline) for splitline in done.stdout.splitlines()]
