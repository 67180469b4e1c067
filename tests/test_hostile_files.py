"""Messages for files that are broken or made to do harm. `tests/test_fuzz.py` has many more of them."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ortune
from ortune import Config, InputsError, ModelError, OrtuneError, RecordError, UsageError, read_record
from ortune.console.safe_console import SafeConsole
from ortune.console.verdict import show_verdict
from ortune.doctor.examine import examine
from ortune.file_kinds import is_record
from ortune.gates.file import MOST_GATES, read_gates
from ortune.gates.reporters.history import read_history
from ortune.host.linux import MAX_CPU_ID, parse_cpu_list
from ortune.knobs.affinity import LARGEST_ID, parse_affinity, split_affinity
from ortune.knobs.legal import find_faults
from ortune.limited import TooLargeError, read_limited
from ortune.model import InputInfo
from ortune.model.child import make_reply, parse_reply
from ortune.model.graph import Graph, read_graph, summarize_graph
from ortune.model.info import ModelInfo
from ortune.model.inspect import inspect_model
from ortune.options import make_request
from ortune.record.files import read_document, read_trials
from ortune.record.trials import decode_trials, is_trials_file
from ortune.report.source import read_source
from ortune.requests import DoctorRequest, SearchRequest
from ortune.worker.session import make_run_options, make_session_options
from ortune.workload import InputOptions, make_feed
from ortune.workload.npz import read_npz
from ortune.workload.workload import MOST_SAMPLES, InputData
from tests.conftest import TINY_CNN
from tests.fuzz.histories import trials_seeds
from tests.simulated import make_model

DATA = Path(__file__).parent / "data"
CORPUS = Path(__file__).parent / "fuzz" / "corpus"

IMAGE = InputInfo(name="image", dtype="float32", shape=("batch", 3, "height", "width"))
IDS = InputInfo(name="ids", dtype="int64", shape=("batch", "n"))


def make_npy(shape: tuple[int, ...], dtype: str, body: bytes = b"") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def write_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def load(path: Path, *inputs: InputInfo) -> Any:
    return make_feed(make_model(inputs=inputs), InputOptions(data=str(path)))


class TestArchives:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("bzip2.npz", "'ids.npy': cannot be read as an .npz file: it is compressed with method 12"),
            ("lzma.npz", "compressed with method 14"),
            ("unknown-method.npz", "compressed with method 99"),
            ("encrypted.npz", "'ids.npy': .* it is encrypted"),
            ("wrong-checksum.npz", "Bad CRC-32"),
            ("truncated.npz", "not a zip file"),
            ("broken-stream.npz", "'ids.npy'"),
            ("token-error.npz", "its header is malformed"),
            ("parentheses.npz", "its header is malformed"),
            ("records.npz", "it holds records"),
            ("negative.npz", "its header is malformed"),
            ("version-9.npz", r"it has version 9\.0 of the format"),
            ("overflow.npz", "is malformed"),
        ],
    )
    def test_what_is_wrong_and_where(self, name: str, message: str) -> None:
        with pytest.raises(InputsError, match=message):
            load(CORPUS / "npz" / name, IDS)

    def test_an_array_twice(self, tmp_path: Path) -> None:
        path = write_zip(tmp_path / "d.npz", {"ids.npy": b"", "ids": b""})
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("ids.npy", "ids"):
                archive.writestr(name, make_npy((0,), "<i8"))
        with pytest.raises(InputsError, match=r"'ids': cannot be read as an \.npz file: it is there twice"):
            load(path, IDS)

    def test_a_large_directory_is_not_read(self, tmp_path: Path) -> None:
        """The end of an archive states the size of its directory, which zipfile reads at once."""
        end = b"PK\x05\x06" + bytes(4) + (1).to_bytes(2, "little") * 2
        path = tmp_path / "d.npz"
        with path.open("wb") as file:
            file.truncate(3 << 30)  # a sparse file
            file.seek(0, os.SEEK_END)
            file.write(end + (3 << 30).to_bytes(4, "little") + bytes(4) + bytes(2))
        with pytest.raises(InputsError, match="its directory has more than 4 MiB"):
            read_npz(path)

    @pytest.mark.parametrize(
        ("members", "message"),
        [
            ({"other.npy": make_npy((1 << 28,), "|u1")}, "'other' is not an input of the model"),
            ({"ids.npy": make_npy((1, 1, 1, 1 << 28), "|u1")}, "ids has shape 1x1x1x268435456"),
            ({"ids.npy": make_npy((1, 1 << 26), "<f4")}, "ids has type float32; the model has int64"),
            ({"ids.npy": make_npy((MOST_SAMPLES + 1, 1, 1), "|i1")}, "100001 samples; at most 100000 are read"),
        ],
    )
    def test_what_does_not_fit_is_not_expanded(
        self, members: dict[str, bytes], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "d.npz"
        (name, header), *_ = members.items()
        n_bytes = math.prod(self.shape_of(header)) * self.item_bytes(header)
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open(name, "w") as file,
        ):
            file.write(header)
            for left in range(n_bytes, 0, -(1 << 24)):
                file.write(bytes(min(left, 1 << 24)))
        monkeypatch.setattr("ortune.workload.npz._read_array", lambda *_: pytest.fail("it was expanded"))
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 1 << 40)
        monkeypatch.setattr("ortune.workload.npz.ALWAYS_EXPANDED_BYTES", 1 << 40)
        with pytest.raises(InputsError, match=message):
            load(path, IDS)

    def shape_of(self, header: bytes) -> tuple[int, ...]:
        text = header.decode("latin-1").partition("'shape': (")[2].partition(")")[0]
        return tuple(int(size) for size in text.split(",") if size.strip())

    def item_bytes(self, header: bytes) -> int:
        return 4 if b"<f4" in header else 1

    def test_a_bomb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It fits the model and the memory, and is refused for how much it expands."""
        monkeypatch.setattr("ortune.workload.npz.ALWAYS_EXPANDED_BYTES", 10**6)
        monkeypatch.setattr("ortune.workload.npz._read_array", lambda *_: pytest.fail("it was expanded"))
        path = write_zip(tmp_path / "d.npz", {"image.npy": make_npy((1, 3, 600, 600), "<f4", bytes(4_320_000))})
        with pytest.raises(InputsError, match=r"kB expand to 4\.32 MB, more than 100-fold") as caught:
            load(path, IMAGE)
        assert "numpy.savez" in caught.value.hint

    def test_large_data_that_does_not_expand(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.npz.ALWAYS_EXPANDED_BYTES", 10**6)
        np.savez(tmp_path / "d.npz", image=np.zeros((1, 3, 600, 600), np.float32))
        assert load(tmp_path / "d.npz", IMAGE).tensors["image"].array.shape == (1, 3, 600, 600)

    def test_the_size_is_that_in_the_type_of_the_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 4 * 10**6)
        np.savez(tmp_path / "d.npz", ids=np.zeros((1, 900_000), np.int8))
        with pytest.raises(InputsError, match=r"in the types of the inputs, its arrays take 7\.2 MB"):
            load(tmp_path / "d.npz", IDS)

    def test_the_size_is_that_of_all_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 4 * 10**6)
        for number in range(3):
            np.savez(tmp_path / f"{number}.npz", ids=np.zeros((1, 50_000), np.int64))
        with pytest.raises(InputsError, match=r"2\.npz: with those of other files, its arrays take 1\.2 MB"):
            load(tmp_path, IDS)

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8"])
    def test_what_numpy_writes_is_read(self, dtype: str, order: Any, tmp_path: Path) -> None:
        array = np.arange(24.0).reshape(1, 3, 2, 4).astype(dtype, order=order)
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "d.npz", image=array)
            assert np.array_equal(load(tmp_path / "d.npz", IMAGE).tensors["image"].array, array)

    @pytest.mark.parametrize(
        "text",
        [
            "{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2)}",
            "{'shape': (1,2,), 'fortran_order': False, 'descr': '<i8'}\n",
            "{'descr':'<i8','fortran_order':True,'shape':(1,2),}   \n",
        ],
    )
    def test_what_other_programs_write_is_read(self, text: str, tmp_path: Path) -> None:
        header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
        path = write_zip(tmp_path / "d.npz", {"ids.npy": header + np.array([[7, 9]]).tobytes()})
        assert load(path, IDS).tensors["ids"].array.tolist() == [[7, 9]]

    def test_a_tensor_that_declares_more_than_it_has(self, tmp_path: Path) -> None:
        tensor = TensorProto(name="ids", data_type=TensorProto.INT64, dims=[10**6, 10**6])
        (tmp_path / "input_0.pb").write_bytes(tensor.SerializeToString())
        with pytest.raises(InputsError, match="declares 1000000000000 values, and has"):
            load(tmp_path, IDS)


class TestSizes:
    """Memory is estimated before it is allocated."""

    def feed(self, *inputs: InputInfo, **options: Any) -> Any:
        return make_feed(make_model(inputs=inputs), InputOptions(**options))

    def test_a_large_dimension(self) -> None:
        request = make_request(SearchRequest, {"model": "m.onnx", "dim": ["batch=999999999"]}, "cli")
        with pytest.raises(InputsError, match=r"The inputs take 1\.2 PB \(image: float32\[999999999x3x224x224\]\)"):
            make_feed(make_model(inputs=(IMAGE,)), request.input_options)

    def test_too_many_combinations(self) -> None:
        dims = {"batch": tuple(range(1, 200)), "height": tuple(range(1, 200)), "width": tuple(range(1, 200))}
        with pytest.raises(InputsError, match="there are 7880599 combinations of sizes; at most 1000 are measured"):
            self.feed(IMAGE, dims=dims)

    def test_an_empty_axis_beside_a_large_one(self) -> None:
        position = InputInfo(name="position", dtype="int64", shape=(0, 10**12))
        assert self.feed(position).tensors["position"].array.shape == (0, 10**12)
        with pytest.raises(InputsError, match="no array can have the shape 0x"):
            self.feed(InputInfo(name="x", dtype="int64", shape=(0, 10**12, 10**12)))

    def test_too_many_axes(self) -> None:
        with pytest.raises(InputsError, match="no array can have the shape"):
            self.feed(InputInfo(name="x", dtype="float32", shape=(1,) * 65))

    def test_long_strings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 10**6)
        with pytest.raises(InputsError, match="The inputs take 8 MB"):
            self.feed(InputInfo(name="s", dtype="string", shape=(1000,), strings=("x" * 1000,)))
        longer = InputInfo(name="s", dtype="string", shape=(10,), strings=("x" * 100_000, "y"))
        assert set(self.feed(longer).tensors["s"].array.tolist()) == {"y"}

    def test_a_sample_rate_that_the_type_does_not_have(self) -> None:
        feed = self.feed(InputInfo(name="sr", dtype="int8", shape=(1,)))
        assert feed.tensors["sr"].array.dtype == np.int8


class TestGateFiles:
    GATE = '[gate.a]\nbase = "a.onnx"\nhead = "b.onnx"\n'

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (f"{GATE}seed = {'1' * 5000}\n", r"ortune.toml, line 4: cannot be read: Exceeds the limit \(4300 digits\)"),
            (f"{GATE}seed = 0x{'f' * 5000}\n", r"gate.a.seed is a number that does not fit into 64 bits"),
            (f"{GATE}dim = {{batch = [1, 0x{'f' * 99}]}}\n", r"gate.a.dim.batch is a number that does not fit"),
            ("a." * 65 + "b = 1\n", "is nested too deeply"),
            ("x = {" + "a." * 65 + "b = 1}\n", "is nested too deeply"),
            ("x = " + "[" * 5000, "is nested too deeply"),
            (f"{GATE}[{' ' * 50_000}\n", "is not valid TOML"),
            (f"{GATE}# {'x' * (1 << 20)}", "it has more than 1024 KiB"),
            ("".join(f'[gate.a{number}]\nbase = "x"\n' for number in range(MOST_GATES + 1)), "has 1001 gates"),
        ],
    )
    def test_limits(self, text: str, message: str, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_text(text)
        with pytest.raises(UsageError, match=message):
            read_gates(str(tmp_path / "ortune.toml"))

    def test_bytes_that_are_not_text(self, tmp_path: Path) -> None:
        (tmp_path / "ortune.toml").write_bytes(self.GATE.encode() + b'name = "\xff"\n')
        with pytest.raises(UsageError, match=r"ortune.toml, line 4: is not UTF-8"):
            read_gates(str(tmp_path / "ortune.toml"))

    def test_dots_in_strings_and_comments(self, tmp_path: Path) -> None:
        dots = "." * 100
        text = f'# {dots}\nx = "{dots}"\ny = \'\'\'\n{dots}\'\'\'\nz = """\n{dots} \\" {dots}"""\n{self.GATE}'
        (tmp_path / "ortune.toml").write_text(text)
        assert [gate.name for gate in read_gates(str(tmp_path / "ortune.toml"))] == ["a"]

    def test_the_python_interface(self) -> None:
        with pytest.raises(UsageError, match="seed cannot be read: Exceeds the limit"):
            make_request(SearchRequest, {"model": "m.onnx", "seed": 10**5000})


class TestSettings:
    @pytest.mark.parametrize(
        "config",
        [
            Config(session_options={"log_verbosity_level": 1 << 31}),
            Config(run_options={"log_verbosity_level": 1 << 31}),
            Config(session_options={"execution_mode": " ORT_PARALLEL"}),
            Config(session_config={"session.intra_op.allow_spinning": " 1"}),
            Config(session_config={"session.dynamic_block_base": "+4"}),
            Config(session_config={"session.dynamic_block_base": "٣"}),
            Config(session_config={"optimization.disable_specified_optimizers": "x" * 9000}),
            Config(session_config={"optimization.disable_specified_optimizers": "é" * 5000}),
            Config(session_config={"session.intra_op_thread_affinities": "3-1"}),
            Config(session_config={"session.intra_op_thread_affinities": "1-9999999999"}),
            Config(session_config={"session.intra_op_thread_affinities": f"1-{'1' * 5000}"}),
        ],
        ids=str,
    )
    def test_values_that_onnxruntime_refuses_or_misreads_are_illegal(self, config: Config) -> None:
        assert [fault.is_illegal for fault in find_faults(config)] == [True]

    @pytest.mark.parametrize(
        ("make", "config", "message"),
        [
            (make_session_options, Config(session_config={"new.entry": "x" * 9000}), "does not accept new.entry=xxx"),
            (make_session_options, Config(session_config={"": "1"}), "does not accept =1"),
            (make_session_options, Config(session_options={"log_verbosity_level": 1 << 40}), "SessionOptions.log_verb"),
            (make_run_options, Config(run_config={"x": "é" * 9000}), "does not accept x="),
            (make_run_options, Config(run_options={"log_severity_level": "a"}), "RunOptions.log_severity_level=a"),
        ],
    )
    def test_what_onnxruntime_refuses_is_a_usage_error(self, make: Any, config: Config, message: str) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            make(config)
        assert len(caught.value.message) < 600

    @pytest.mark.parametrize("name", ["integer-of-32-bits", "long-text", "backward-range", "range-of-billions"])
    def test_records(self, name: str) -> None:
        with pytest.raises(RecordError, match="must not set"):
            ortune.session_options(CORPUS / "records" / f"{name}.json", any_host=True)

    def test_affinities(self) -> None:
        assert split_affinity("1-4;7,9") == [range(1, 5), [7, 9]]
        assert parse_affinity(f"1-{LARGEST_ID}")[0][-1] == LARGEST_ID - 1
        with pytest.raises(ValueError, match="there is no CPU 16385"):
            parse_affinity(f"1;16384-{LARGEST_ID + 1}")
        for _ in range(100):  # hours, if all CPUs of the range were counted
            with pytest.raises(ValueError, match="there is no CPU 999999999"):
                parse_affinity("1-999999999")
        with pytest.raises(ValueError, match="more than 1000000 CPUs"):
            parse_affinity(";".join([f"1-{LARGEST_ID}"] * 62))

    def test_a_record_without_objectives(self) -> None:
        with pytest.raises(RecordError, match=r"there are no objectives - at `\$.workload`"):
            read_document(CORPUS / "records" / "no-objectives.json")

    @pytest.mark.parametrize("shapes", [(), ((1, -1),), ((1,),) * (MOST_SAMPLES + 1)])
    def test_recorded_shapes_that_no_data_has(self, shapes: Any) -> None:
        with pytest.raises(ValueError, match=r"shapes|negative"):
            InputData(dtype="float32", shapes=shapes, origin="x")

    def test_a_record_without_limits_of_the_baseline(self) -> None:
        (record,) = read_document(CORPUS / "records" / "limits-of-one-side.json").records
        file = io.StringIO()
        show_verdict(SafeConsole(file=file, width=100), record, None)
        assert re.search(r"p99.* - ", file.getvalue())
        checks = (msgspec.structs.replace(record.evidence.limits[0], limit="p50<1ms"),)
        with pytest.raises(ValueError, match="not about the same limits"):
            msgspec.structs.replace(record.evidence, baseline_limits=checks)


def read_both(path: Path) -> list[str]:
    """Return the messages of both readers; empty for one that reads the model."""
    messages = []
    for read, kind in ((inspect_model, ModelInfo), (summarize_graph, Graph)):
        try:
            parse_reply(make_reply(read, path), path, kind)
            messages.append("")
        except ModelError as error:
            messages.append(error.message)
    return messages


class TestModels:
    @pytest.mark.parametrize(
        ("name", "messages"),
        [
            ("dequantize-without-scale", ["", ""]),
            ("identity-without-input", ["", ""]),
            ("cast-without-input", ["", ""]),
            ("equal-of-three", ["", ""]),
            ("equal-of-one", ["", ""]),
            ("constant-without-output", ["", ""]),
            ("unknown-type", ["", ""]),
            ("empty-scale", ["", ""]),
            ("scale-of-unknown-type", ["", ""]),
            ("scale-of-text", ["", ""]),
            ("short-scale", ["", ""]),
            ("nan-attribute", ["", ""]),
            ("large-opset", ["", ""]),
            ("negative-size", ["its tensor 't' has the shape [-5, 2]"] * 2),
            ("huge-size", ["its tensor 't' has the shape [46116860184273879"] * 2),
            ("name-that-is-not-utf-8", ["a name of its node 0 is not UTF-8"] * 2),
            ("input-that-is-not-utf-8", ["a name of its inputs, outputs or weights is not UTF-8"] * 2),
        ],
    )
    def test_both_readers(self, name: str, messages: list[str]) -> None:
        for message, expected in zip(read_both(CORPUS / "models" / f"{name}.onnx"), messages, strict=True):
            assert expected in message
            assert bool(expected) == bool(message), message

    def test_an_input_of_a_type_that_onnx_does_not_know(self) -> None:
        path = CORPUS / "models" / "unknown-type.onnx"
        info = parse_reply(make_reply(inspect_model, path), path, ModelInfo)
        assert info.inputs[0].dtype == "unknown_99"
        with pytest.raises(InputsError, match="Input x is unknown_99, which cannot be synthesized"):
            make_feed(info, InputOptions())

    def test_a_fault_that_no_check_expects(self, tmp_path: Path) -> None:
        def fail(path: Path) -> ModelInfo:
            raise IndexError("list index out of range")

        with pytest.raises(ModelError, match=r"m.onnx: it is malformed \(IndexError: list index out of range\)"):
            parse_reply(make_reply(fail, tmp_path / "m.onnx"), tmp_path / "m.onnx", ModelInfo)

    @pytest.mark.parametrize("reply", [b"", b"{", b"[]", b'{"facts": {}}', b'{"facts": 1, "hint": 2}', b"\xff"])
    def test_a_reply_that_is_none(self, reply: bytes, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="gave no valid answer"):
            parse_reply(reply, tmp_path / "m.onnx", ModelInfo)

    def test_a_graph_that_is_too_large_for_an_answer(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("ortune.model.child.MOST_FACTS_BYTES", 100)
        node = helper.make_node("Identity", ["x"], ["y"])
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
        model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]))
        onnx.save(model, tmp_path / "m.onnx")
        assert "its graph has more than" in read_both(tmp_path / "m.onnx")[0]


class TestOtherFiles:
    def test_devices_that_never_end(self, tmp_path: Path) -> None:
        with pytest.raises(TooLargeError, match="more than 64 KiB"):
            read_limited("/dev/zero", 1 << 16)
        with pytest.raises(OSError, match="not a regular file"):
            read_limited("/dev/zero", 1 << 16, only_regular=True)
        assert read_limited(os.devnull, 10) == b""
        with pytest.raises(OSError, match="not a legal path"):
            read_limited("a\0b", 10)

    def test_a_trials_file_that_is_a_pipe(self, tmp_path: Path) -> None:
        """The record names it, so it must not block."""
        document = json.loads((DATA / "server.ortune.json").read_text())
        document["search"]["trials"] = {"file": "t.jsonl.gz", "sha256": "0" * 64}
        (tmp_path / "r.json").write_text(json.dumps(document))
        os.mkfifo(tmp_path / "t.jsonl.gz")
        with pytest.raises(OrtuneError, match="not a regular file"):
            read_trials(tmp_path / "r.json")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    @pytest.mark.parametrize("read", [read_record, read_source])
    def test_a_pipe_with_something_else(self, read: Callable[[str], object], tmp_path: Path) -> None:
        """It has no writer any more when its content turns out to be no record, so it must not be opened again."""
        pipe = tmp_path / "pipe"
        errors: list[OrtuneError] = []
        os.mkfifo(pipe)

        def read_pipe() -> None:
            try:
                read(str(pipe))
            except OrtuneError as error:
                errors.append(error)

        reader = threading.Thread(target=read_pipe, daemon=True)
        reader.start()
        pipe.write_bytes(b"garbage")
        reader.join(10)
        assert [type(error) for error in errors] == [RecordError]

    @pytest.mark.parametrize("content", [b"[" * 100_000, b'{"schema": ' + b"[" * 100_000])
    def test_deep_documents(self, content: bytes) -> None:
        assert not is_record(content)
        assert not is_trials_file(gzip.compress(content))
        with pytest.raises(ValueError, match="line 1: "):
            decode_trials(gzip.compress(content))

    def test_the_line_of_a_fault_in_trials(self) -> None:
        header = trials_seeds()[0].splitlines()[0]
        with pytest.raises(ValueError, match=r"line 2: .*at `\$.number`"):
            decode_trials(gzip.compress(header + b'\n{"type": "trial", "number": "x"}\n'))

    def test_trials_of_another_schema(self) -> None:
        content = trials_seeds()[0].replace(b'"schema":1', b'"schema":2')
        with pytest.raises(ValueError, match="it has schema 2, and this version of ortune reads schema 1"):
            decode_trials(gzip.compress(content))

    def test_a_history_of_broken_lines(self, tmp_path: Path) -> None:
        (tmp_path / "h.jsonl").write_bytes(b"x\n" * 2000)
        with pytest.raises(RecordError, match="more than 1000 lines are no entries"):
            read_history(tmp_path / "h.jsonl")

    def test_lists_of_cpus(self) -> None:
        assert parse_cpu_list(f"0-{MAX_CPU_ID - 1}")[-1] == MAX_CPU_ID - 1
        assert parse_cpu_list(f"0-{MAX_CPU_ID},3") == (3,)


class TestModelsThatCrashTheOnnxPackage:
    """The package infers types in C++. A crash ends the child process that reads the model for the doctor."""

    @pytest.fixture
    def crash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let type inference crash in child processes."""
        (tmp_path / "sitecustomize.py").write_text(
            "import os, sys\n"
            "if 'ortune.model.graph' in sys.orig_argv:\n"
            "    import onnx.shape_inference\n"
            "    onnx.shape_inference.infer_shapes = lambda model: os.kill(os.getpid(), 11)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    @pytest.mark.usefixtures("crash")
    @pytest.mark.long
    def test_the_doctor_goes_on_with_other_checks(self) -> None:
        diagnosis = examine(DoctorRequest(model=str(TINY_CNN)))
        skipped = {skipped_check.check: skipped_check.why for skipped_check in diagnosis.skipped}
        assert skipped["float64"] == "the onnx package crashed while it inferred types (SIGSEGV)"
        assert {finding.check for finding in diagnosis.findings} > {
            "loading",
            "operators",
            "opset",
            "initializers",
            "shapes",
        }

    @pytest.mark.usefixtures("crash")
    def test_the_rest_of_the_graph_is_read(self) -> None:
        graph = read_graph(TINY_CNN)
        whole = summarize_graph(TINY_CNN)
        assert graph.no_dtypes == "the onnx package crashed while it inferred types (SIGSEGV)"
        assert graph.dtypes == {weight.name: weight.dtype for weight in graph.weights}
        assert msgspec.structs.replace(graph, dtypes=whole.dtypes, no_dtypes="") == whole

    def test_a_crash_that_has_another_cause_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import os, sys\nif 'ortune.model.graph' in sys.orig_argv:\n    os.kill(os.getpid(), 9)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ModelError, match=r"the parser was ended by SIGKILL\.$"):
            read_graph(TINY_CNN)

    def test_a_model_that_crashed_it(self) -> None:
        """A finding of the fuzz target. Other versions of the onnx package may not crash."""
        graph = read_graph(CORPUS / "models" / "type-inference-crashes.onnx")
        assert "DequantizeLinear" in [node.op for node in graph.nodes]
