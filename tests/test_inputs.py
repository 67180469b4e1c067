"""Synthesized and given inputs."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from ortune import InputsError
from ortune.model import InputInfo, read_model
from ortune.workload import InputOptions, make_feed
from ortune.workload.data import load_data
from ortune.workload.dimensions import evaluate_sum
from ortune.workload.feed import Feed, load_feed
from ortune.workload.npz import read_npz
from tests.conftest import TINY_ENCODER
from tests.simulated import make_model

pytestmark = pytest.mark.usefixtures("models_read_here")


def info(name: str, dtype: str, shape: tuple[Any, ...] | None, **facts: Any) -> InputInfo:
    return InputInfo(name=name, dtype=dtype, shape=shape, **facts)


def feed_one(given_info: InputInfo, **options: Any) -> np.ndarray:
    model = make_model(inputs=(given_info,))
    return make_feed(model, InputOptions(**options)).tensors[given_info.name].array


@pytest.mark.parametrize(
    ("given_info", "shape"),
    [
        (info("image", "float32", ("N", 3, "H", "W")), (1, 3, 224, 224)),
        (info("x", "float32", ("p2o.DynamicDimension.0", 3, "p2o.DynamicDimension.1", "?")), (1, 3, 224, 224)),
        (info("image", "uint8", (None, None, None, 3)), (1, 224, 224, 3)),
        (info("video", "float32", (None, 3, None, None, None)), (1, 3, 8, 224, 224)),
        (info("input_ids", "int64", ("batch", "sequence")), (1, 128)),
        (info("state", "float32", (2, None, 128)), (2, 1, 128)),
        (info("features", "float32", (None, 20)), (1, 20)),
        (info("sr", "int64", ()), ()),
        (info("x", "float32", ("batch_size", "channels", "time")), (1, 3, 128)),
    ],
    ids=lambda parameter: parameter.name if isinstance(parameter, InputInfo) else None,
)
def test_open_dimensions_get_a_size_by_role(given_info: InputInfo, shape: tuple[int, ...]) -> None:
    assert feed_one(given_info).shape == shape


class TestSizes:
    """One symbolic name has one size, in all inputs."""

    GRAPH = (
        info("atoms", "float32", ("num_atoms", 16)),
        info("bonds", "float32", ("num_edges", 4)),
        info("ends", "int64", (2, "num_edges"), index_dim="num_atoms"),
        info("cell", "float32", ("rows", 9)),
        info("lattice", "float32", (3, "rows")),
    )

    def shapes(self, *inputs: InputInfo, **options: Any) -> dict[str, tuple[int, ...]]:
        feed = make_feed(make_model(inputs=inputs), InputOptions(**options))
        return {name: tensor.array.shape for name, tensor in feed.tensors.items()}

    def test_a_name_has_one_size(self) -> None:
        shapes = self.shapes(*self.GRAPH)
        assert shapes["bonds"][0] == shapes["ends"][1] == 128
        assert shapes["cell"][0] == shapes["lattice"][1] == 128

    def test_one_given_name_leaves_the_others_equal(self) -> None:
        shapes = self.shapes(*self.GRAPH, dims={"num_atoms": (64,)})
        assert shapes["atoms"] == (64, 16)
        assert shapes["bonds"][0] == shapes["ends"][1]

    def test_a_given_shape_gives_its_names_a_size(self) -> None:
        assert self.shapes(*self.GRAPH, shapes={"ends": (2, 300)})["bonds"] == (300, 4)

    def test_given_data_gives_its_names_a_size(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "data.npz", ends=np.zeros((2, 7), np.int64))
        assert self.shapes(*self.GRAPH, data=str(tmp_path / "data.npz"))["bonds"] == (7, 4)

    def test_placeholders_are_no_names(self) -> None:
        assert self.shapes(info("x", "float32", ("?", 3, "?", "?"))) == {"x": (1, 3, 224, 224)}

    def test_indices_stay_within_their_table(self) -> None:
        feed = make_feed(make_model(inputs=self.GRAPH), InputOptions(dims={"num_atoms": (5,), "num_edges": (500,)}))
        assert set(np.unique(feed.tensors["ends"].array)) == set(range(5))

    @pytest.mark.parametrize(
        ("symbol", "size"),
        [("past + 1", 5), ("past + 2*new - 1", 9), ("new*3", 9), ("past - 9", None), ("other + 1", None)],
    )
    def test_computed_sizes(self, symbol: str, size: int | None) -> None:
        assert evaluate_sum(symbol, {"past": 4, "new": 3}) == size

    def test_a_mask_is_as_long_as_past_and_new_tokens(self) -> None:
        mask = info("attention_mask", "int64", ("batch", "past_length + length"))
        past = info("past", "float32", ("batch", 2, "past_length", 8))
        ids = info("input_ids", "int64", ("batch", "length"))
        assert self.shapes(mask, past, ids, dims={"past_length": (16,)})["attention_mask"] == (1, 144)

    @pytest.mark.parametrize(
        ("path", "metadata", "sides"),
        [
            ("320n.onnx", {}, (320, 320)),
            ("det_480x640.onnx", {}, (480, 640)),
            ("model.onnx", {"imgsz": "[640, 320]"}, (640, 320)),
            ("model.onnx", {"image_size": "384"}, (384, 384)),
            ("resnet50-v1-12.onnx", {}, (224, 224)),
            ("net_101.onnx", {"imgsz": "7"}, (224, 224)),
        ],
    )
    def test_sides_of_images(self, path: str, metadata: dict[str, str], sides: tuple[int, int]) -> None:
        model = make_model(inputs=(info("x", "float32", ("N", 3, "H", "W")),))
        model = msgspec.structs.replace(model, path=f"/models/{path}", metadata=metadata)
        assert make_feed(model, InputOptions()).tensors["x"].array.shape == (1, 3, *sides)

    def test_the_sample_rate_of_the_metadata(self) -> None:
        model = msgspec.structs.replace(make_model(inputs=(info("sr", "int64", ()),)), metadata={"sample_rate": "8000"})
        assert make_feed(model, InputOptions()).tensors["sr"].array == 8000

    @pytest.mark.parametrize(
        ("value", "low", "high"),
        [("NominalRange_0_255", 0, 255), ("normalized_1_1", -1, 1), ("Normalized_0_1", 0, 1), ("other", None, None)],
    )
    def test_the_range_of_pixels_of_the_metadata(self, value: str, low: float | None, high: float | None) -> None:
        inputs = (info("x", "float32", (1, 3, 64, 64)), info("y", "float32", (1, 99)))
        model = msgspec.structs.replace(make_model(inputs=inputs), metadata={"Image.NominalPixelRange": value})
        tensors = make_feed(model, InputOptions()).tensors
        if low is None or high is None:
            assert tensors["x"].origin == "random, normal"
            return
        array = tensors["x"].array
        assert low <= array.min() < low + 0.1 * (high - low)
        assert high >= array.max() > high - 0.1 * (high - low)
        assert tensors["x"].origin == f"random, {low} to {high} (pixels)"
        # Only images have pixels.
        assert tensors["y"].origin == "random, normal"


def test_guesses_are_shown() -> None:
    feed = make_feed(make_model(inputs=(info("x", "float32", ("N", 3, None, "W")),)), InputOptions())
    assert feed.tensors["x"].guessed == ("N=1", "axis 2=224", "W=224")


def test_values_by_role() -> None:
    assert set(np.unique(feed_one(info("attention_mask", "int64", (2, 9))))) == {1}
    assert set(np.unique(feed_one(info("token_type_ids", "int64", (2, 9), index_size=2)))) == {0}
    assert feed_one(info("position_ids", "int64", (1, 4), index_size=512)).tolist() == [[0, 1, 2, 3]]
    assert feed_one(info("sr", "int64", ())) == 16000
    assert not feed_one(info("h", "float32", (1, 1, 8))).any()
    assert feed_one(info("ids", "int64", (500,), index_size=9)).max() <= 8
    assert feed_one(info("pixels", "uint8", (500,))).max() > 100
    assert set(feed_one(info("flags", "bool", (5,))).tolist()) == {True}
    assert set(feed_one(info("color", "string", (60,), strings=("red", "blue"))).tolist()) == {"red", "blue"}


def test_values_are_seeded() -> None:
    image = info("image", "float32", (1, 3, 8, 8))
    assert np.array_equal(feed_one(image, seed=1), feed_one(image, seed=1))
    assert not np.array_equal(feed_one(image, seed=1), feed_one(image, seed=2))


@given(
    st.sampled_from(["float32", "float16", "float64", "int32", "int64", "uint8", "bool", "string"]),
    st.lists(st.one_of(st.integers(0, 4), st.none(), st.sampled_from(["batch", "?", "x1"])), max_size=3),
)
def test_any_shape_and_type_gives_data_that_fits(dtype: str, shape: list[Any]) -> None:
    array = feed_one(info("value", dtype, tuple(shape)))
    assert array.ndim == len(shape)
    assert all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, array.shape, strict=True))


def test_dims_and_shapes_can_be_set() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"batch": (2,)}, shapes={"attention_mask": (2, 128)}))
    assert feed.tensors["input_ids"].array.shape == (2, 128)
    assert feed.tensors["attention_mask"].guessed == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"height": 2}}, "no dimension of that name.*batch, sequence"),
        ({"shapes": {"pixels": (1,)}}, "no input of that name"),
        ({"shapes": {"input_ids": (1, 2, 3)}}, "does not fit the model"),
        ({"data": "nothing.npz"}, "no such file"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputsError, match=message):
        make_feed(read_model(TINY_ENCODER), InputOptions(**options))


def test_inputs_that_cannot_be_synthesized() -> None:
    for bad in (info("past", "", None), info("x", "bfloat16", (1,)), info("x", "float32", None)):
        with pytest.raises(InputsError, match="inputs"):
            feed_one(bad)


def test_given_data(tmp_path: Path) -> None:
    ids = np.arange(6).reshape(2, 3)
    np.savez(tmp_path / "data.npz", input_ids=ids, attention_mask=np.ones((2, 3), np.int32))
    feed = make_feed(read_model(TINY_ENCODER), InputOptions(data=str(tmp_path / "data.npz")))
    assert np.array_equal(feed.tensors["input_ids"].array, ids)
    assert feed.tensors["attention_mask"].array.dtype == np.int64
    assert not any(tensor.guessed for tensor in feed.tensors.values())


def test_given_data_in_a_folder(tmp_path: Path) -> None:
    for number, array in enumerate((np.arange(6).reshape(2, 3), np.ones((2, 3), np.int64))):
        (tmp_path / f"input_{number}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    feed = make_feed(read_model(TINY_ENCODER), InputOptions(data=str(tmp_path)))
    assert feed.tensors["input_ids"].array.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pixels": np.ones(3)}, "'pixels' is not an input"),
        ({"input_ids": np.ones(3, np.int64)}, "has shape 3; the model has batchxsequence"),
        ({"input_ids": np.ones((1, 3), np.float32)}, "has type float32; the model has int64"),
    ],
)
def test_given_data_that_does_not_fit(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InputsError, match=message):
        make_feed(read_model(TINY_ENCODER), InputOptions(data=str(tmp_path / "data.npz")))


def test_given_files_that_are_no_data(tmp_path: Path) -> None:
    model = read_model(TINY_ENCODER)
    (tmp_path / "data.npz").write_text("no")
    np.save(tmp_path / "bare.npy", np.ones(3))
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "input_0.pb").write_bytes(b"\xff\xff\xff")
    for name in ("data.npz", "bare.npy", "empty", "broken"):
        with pytest.raises(InputsError, match="inputs"):
            make_feed(model, InputOptions(data=str(tmp_path / name)))


def test_feeds_come_back_from_their_file(tmp_path: Path) -> None:
    model = make_model(inputs=(info("a:0/x", "float32", (2,)), info("s", "string", (3,)), info("n", "int64", ())))
    feed = make_feed(model, InputOptions())
    feed.save(tmp_path / "feed.npz")
    (loaded,), cases = load_feed(tmp_path / "feed.npz")
    assert cases == [0]
    assert list(loaded) == ["a:0/x", "s", "n"]
    assert loaded["s"].dtype == object
    assert isinstance(loaded["s"][0], str)
    assert np.array_equal(loaded["a:0/x"], feed.tensors["a:0/x"].array)


def test_an_empty_feed(tmp_path: Path) -> None:
    Feed(samples=({},)).save(tmp_path / "feed.npz")
    assert load_feed(tmp_path / "feed.npz") == ([{}], [0])


def test_several_sizes_make_cases() -> None:
    model = read_model(TINY_ENCODER)
    feed = make_feed(model, InputOptions(dims={"batch": (1, 8), "sequence": (16, 32)}))
    assert [sample["input_ids"].array.shape for sample in feed.samples] == [(1, 16), (1, 32), (8, 16), (8, 32)]
    assert feed.cases == (0, 1, 2, 3)
    assert feed.describe()["input_ids"].shapes == ((1, 16), (1, 32), (8, 16), (8, 32))
    with pytest.raises(InputsError, match="cannot be combined with inputs"):
        make_feed(model, InputOptions(dims={"batch": (1, 8)}, data=str(TINY_ENCODER)))


def test_an_npz_with_many_samples(tmp_path: Path) -> None:
    ids = np.arange(2 * 3 * 4).reshape(3, 2, 4)
    np.savez(tmp_path / "many.npz", input_ids=ids, attention_mask=np.ones((2, 4), np.int64))
    feed = make_feed(read_model(TINY_ENCODER), InputOptions(data=str(tmp_path / "many.npz")))
    assert len(feed.samples) == 3
    # All samples are one case: the traffic as it is.
    assert feed.n_cases == 1
    for number, sample in enumerate(feed.samples):
        assert np.array_equal(sample["input_ids"].array, ids[number])
        assert sample["attention_mask"].array.shape == (2, 4)
    feed.save(tmp_path / "feed.npz")
    samples, cases = load_feed(tmp_path / "feed.npz")
    assert np.array_equal(samples[2]["input_ids"], ids[2])
    assert cases == [0, 0, 0]


def test_stacks_of_unequal_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", input_ids=np.ones((3, 1, 4), np.int64), attention_mask=np.ones((2, 1, 4), np.int64))
    with pytest.raises(InputsError, match="holds 3 of input_ids, 2 of attention_mask"):
        make_feed(read_model(TINY_ENCODER), InputOptions(data=str(tmp_path / "d.npz")))


def test_a_folder_with_many_samples(tmp_path: Path) -> None:
    model = read_model(TINY_ENCODER)
    for number in (0, 1, 10, 2):
        folder = tmp_path / "sets" / f"test_data_set_{number}"
        folder.mkdir(parents=True)
        for position, array in enumerate((np.full((1, 3), number), np.ones((1, 3), np.int64))):
            (folder / f"input_{position}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    feed = make_feed(model, InputOptions(data=str(tmp_path / "sets")))
    assert [int(sample["input_ids"].array[0, 0]) for sample in feed.samples] == [0, 1, 2, 10]
    (tmp_path / "files").mkdir()
    for number in range(3):
        np.savez(tmp_path / "files" / f"{number}.npz", input_ids=np.full((1, 3), number))
    feed = make_feed(model, InputOptions(data=str(tmp_path / "files"), dims={"sequence": (3,)}))
    assert [int(sample["input_ids"].array[0, 0]) for sample in feed.samples] == [0, 1, 2]
    np.savez(tmp_path / "files" / "3.npz", attention_mask=np.ones((1, 3), np.int64))
    with pytest.raises(InputsError, match="not all samples have the same inputs"):
        make_feed(model, InputOptions(data=str(tmp_path / "files")))


class TestLargeInputs:
    """Inputs that are too large are rejected before memory is allocated for them."""

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (InputOptions(dims={"batch": (10**7,), "sequence": (10**7,)}), "dim The inputs take"),
            (InputOptions(dims={"batch": (1, 10**10)}), r"\[10000000000x128\]"),
            (InputOptions(shapes={"input_ids": (10**7, 10**7)}), r"shape The inputs take 1.6 PB \(input_ids: "),
            (InputOptions(cases=({"input_ids": (10**7, 10**7), "attention_mask": (1, 1)},)), "The inputs take"),
        ],
    )
    def test_synthesized_inputs(self, options: InputOptions, message: str) -> None:
        with pytest.raises(InputsError, match=message):
            make_feed(read_model(TINY_ENCODER), options)

    def test_inputs_beside_later_samples_of_the_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 10**8)
        inputs = (
            InputInfo(name="a", dtype="float32", shape=("batch",)),
            InputInfo(name="b", dtype="float32", shape=("batch", 10_000)),
        )
        for place, batch in enumerate((1, 9999)):
            np.savez(tmp_path / f"{place}.npz", a=np.zeros(batch, np.float32))
        with pytest.raises(InputsError, match=r"b: float32\[9999x10000\]"):
            make_feed(make_model(inputs=inputs), InputOptions(data=str(tmp_path)))

    def archive(self, path: Path, data: bytes, name: str = "input_ids.npy") -> Path:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(name, data)
        return path

    def header(self, shape: str, dtype: str = "<i8") -> bytes:
        text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text

    def test_an_archive_that_declares_more_than_it_has(self, tmp_path: Path) -> None:
        path = self.archive(tmp_path / "d.npz", self.header(f"({10**7}, {10**7})") + bytes(64))
        with pytest.raises(InputsError, match="declares 800000000000000 bytes, and has 64"):
            load_data(path, ())

    def test_an_archive_that_expands(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.workload.size.read_free_memory_bytes", lambda: 10**7)
        path = self.archive(tmp_path / "d.npz", self.header("(5000000,)", "|u1") + bytes(5_000_000))
        assert path.stat().st_size < 50_000
        with pytest.raises(InputsError, match="its arrays take 5 MB, but only 10 MB of memory is free"):
            load_data(path, ())

    def test_objects(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", a=np.array([{}], dtype=object))
        with pytest.raises(InputsError, match="holds Python objects"):
            load_data(tmp_path / "d.npz", ())

    def test_tensors_with_values_elsewhere(self, tmp_path: Path) -> None:
        (tmp_path / "set").mkdir()
        (tmp_path / "secret").write_bytes(bytes(8))
        tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT64, dims=[1], name="x")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret")
        (tmp_path / "set" / "input_0.pb").write_bytes(tensor.SerializeToString())
        with pytest.raises(InputsError, match="its values are in another file"):
            load_data(tmp_path / "set", ())

    @settings(max_examples=300)
    @given(st.data())
    def test_broken_archives_are_input_errors(self, data: st.DataObject) -> None:
        """Whatever byte of an archive is changed: it is read, or there is a message."""
        stream = io.BytesIO()
        save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
        save(stream, a=np.arange(6).reshape(2, 3), b=np.array(["x", "yz"]))
        content = bytearray(stream.getvalue())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(len(content) // 2, len(content)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "d.npz")
            path.write_bytes(bytes(content[:cut]))
            with contextlib.suppress(InputsError):
                assert all(array.dtype != object for array in read_npz(path).values())


@pytest.mark.skipif(sys.platform != "linux", reason="file names are Unicode there")
def test_a_file_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9.npz")
    ids = np.zeros((1, 8), np.int64)
    np.savez(path, input_ids=ids, attention_mask=np.ones_like(ids))
    feed = make_feed(read_model(TINY_ENCODER), InputOptions(data=path))
    described = msgspec.json.encode(feed.describe())
    assert "\N{REPLACEMENT CHARACTER}t\N{REPLACEMENT CHARACTER}.npz" in described.decode()
