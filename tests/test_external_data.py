"""External data of models: files whose names come from a model or a record stay in the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortune import Config, ModelError, Record, UsageError
from ortune.export import export
from ortune.model import ModelFile, compute_digest, hash_data_file, read_model
from ortune.model.data_files import locate_data_file
from ortune.model.graph import read_graph
from ortune.record.files import encode_record
from ortune.record.select import check_model
from tests.conftest import TINY_CNN, run_ortune
from tests.hostile import ALL_TEXTS
from tests.records import make_record

pytestmark = pytest.mark.usefixtures("forked_children", "models_read_here")

OUTSIDE = ("/etc/hostname", "../secret", "a/../../secret", "..", "C:\\secret", "\\secret", "..\\secret", "", "a\0b")


def save(folder: Path, location: str = "weights.bin") -> Path:
    """Write a model with external data in `weights.bin`, which it names as `location`."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    onnx.save_model(onnx.load(TINY_CNN), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    if location != "weights.bin":
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(model.SerializeToString())
    return path


def record_of(path: Path, files: tuple[ModelFile, ...]) -> Record:
    """Return a record that names these files as those of a model."""
    record = make_record(TINY_CNN, Config())
    digest = compute_digest(files)
    return msgspec.structs.replace(
        record, model=msgspec.structs.replace(record.model, path=str(path), digest=digest, files=files)
    )


class TestLocate:
    @pytest.mark.parametrize("name", OUTSIDE)
    def test_names_that_lead_out(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="is not the name of a file in that folder"):
            locate_data_file(tmp_path, name)

    @pytest.mark.parametrize("name", ["weights.bin", "./weights.bin", "data/weights.bin", "a..b", "..."])
    def test_names_that_stay(self, name: str, tmp_path: Path) -> None:
        assert locate_data_file(tmp_path, name) == tmp_path.resolve() / Path(name)

    def test_links(self, tmp_path: Path) -> None:
        folder = tmp_path / "m"
        (folder / "data").mkdir(parents=True)
        (folder / "inside").symlink_to("data/w.bin")
        (folder / "file").symlink_to("../secret")
        (folder / "folder").symlink_to(tmp_path)
        (folder / "loop").symlink_to("loop")
        assert locate_data_file(folder, "inside") == folder.resolve() / "data" / "w.bin"
        for name in ("file", "folder/secret", "folder"):
            with pytest.raises(ModelError, match="a link that leads out of that folder"):
                locate_data_file(folder, name)
        with pytest.raises(ModelError, match="link"):
            locate_data_file(folder, "loop/w.bin")

    def test_the_folder_may_be_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "link").symlink_to("m")
        assert locate_data_file(tmp_path / "link", "w.bin") == (tmp_path / "m" / "w.bin").resolve()

    @given(name=ALL_TEXTS | st.lists(st.sampled_from(["..", ".", "/", "\\", "C:", "a"])).map("".join))
    def test_no_name_leads_out(self, name: str) -> None:
        folder = Path("/nowhere/model")
        try:
            path = locate_data_file(folder, name)
        except ModelError as error:
            assert str(error).replace("\n", "").isprintable()
        else:
            assert path.is_relative_to(folder)


@pytest.mark.parametrize("location", ["/etc/hostname", "../secret", "link", "a\nb/../../x"])
class TestModels:
    """A model that names data elsewhere is refused by everything that reads it."""

    def make(self, tmp_path: Path, location: str) -> Path:
        (tmp_path / "secret").write_bytes(b"x" * 100_000)
        path = save(tmp_path / "m", location)
        (tmp_path / "m" / "link").symlink_to("../secret")
        return path

    def test_reading(self, location: str, tmp_path: Path) -> None:
        path = self.make(tmp_path, location)
        for read in (read_model, read_graph):
            with pytest.raises(ModelError, match="as a file with external data, which is"):
                read(path)

    @pytest.mark.parametrize("target", ["embedded", "ort"])
    def test_exports(self, target: str, location: str, tmp_path: Path) -> None:
        path, output = self.make(tmp_path, location), tmp_path / "out" / "model.onnx"
        output.parent.mkdir()
        with pytest.raises(ModelError, match="as a file with external data, which is"):
            export(target, make_record(TINY_CNN, Config()), str(path), "r.json", output)
        assert [*output.parent.iterdir()] == []

    def test_commands(self, location: str, tmp_path: Path) -> None:
        path = self.make(tmp_path, location)
        done = run_ortune("doctor", path, cwd=tmp_path)
        assert done.returncode == 2
        assert "as a file with external data" in done.stderr and "Traceback" not in done.stderr


class TestRecords:
    """The files of a record are those of the model that it is for, and only these are read."""

    @pytest.mark.parametrize("name", [*OUTSIDE, "link"])
    def test_names_that_lead_out(self, name: str, tmp_path: Path) -> None:
        path = save(tmp_path / "m")
        (tmp_path / "secret").write_bytes(b"")
        (tmp_path / "m" / "link").symlink_to("../secret")
        files = read_model(path).files
        record = record_of(path, (files[0], msgspec.structs.replace(files[1], name=name)))
        with pytest.raises(ModelError, match="as a file with external data, which is"):
            check_model(record, path)

    def test_special_files_are_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelError, match="is not a file"):
            hash_data_file(tmp_path, "pipe")

    def test_names_in_a_record_do_not_choose_what_is_copied(self, tmp_path: Path) -> None:
        """The names in the record were once joined with the folder of the output."""
        path, output = save(tmp_path / "m"), tmp_path / "out" / "model.onnx"
        output.parent.mkdir()
        (tmp_path / "m" / "other.bin").write_bytes(b"other")
        files = (*read_model(path).files, ModelFile(name="../../escaped.bin", size_bytes=1, sha256="0" * 64))
        record = record_of(path, (*files, ModelFile(name="other.bin", size_bytes=1, sha256="0" * 64)))
        done = export("embedded", record, str(path), "r.json", output)
        assert {file.name for file in output.parent.iterdir()} == {"model.onnx", "weights.bin"}
        assert "copied to the same folder: weights.bin." in done.text
        assert not (tmp_path.parent / "escaped.bin").exists()

    def test_a_hostile_record_ends_with_exit_code_2(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m")
        files = read_model(path).files
        record = record_of(path, (files[0], msgspec.structs.replace(files[1], name="/etc/hostname")))
        (tmp_path / "r.json").write_bytes(encode_record(record))
        done = run_ortune("apply", "r.json", path, "--to", "embedded", "-o", tmp_path / "out.onnx", cwd=tmp_path)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out.onnx").exists()


class TestEmbedded:
    def export(self, path: Path, output: Path) -> None:
        export("embedded", make_record(TINY_CNN, Config()), str(path), "r.json", output)

    def test_folders_are_kept(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m", "data/weights.bin")
        (tmp_path / "m" / "data").mkdir()
        (tmp_path / "m" / "weights.bin").rename(tmp_path / "m" / "data" / "weights.bin")
        (tmp_path / "out").mkdir()
        self.export(path, tmp_path / "out" / "model.onnx")
        copied = tmp_path / "out" / "data" / "weights.bin"
        assert copied.read_bytes() == (tmp_path / "m" / "data" / "weights.bin").read_bytes()
        assert read_model(tmp_path / "out" / "model.onnx")

    @pytest.mark.parametrize("target", ["nowhere", "../secret", "weights.bin"])
    def test_a_link_is_not_written_through(self, target: str, tmp_path: Path) -> None:
        path, folder = save(tmp_path / "m"), tmp_path / "out"
        folder.mkdir()
        (folder / "weights.bin").symlink_to(target)
        with pytest.raises(UsageError, match=r"weights\.bin: this"):
            self.export(path, folder / "model.onnx")
        assert {file.name for file in folder.iterdir()} == {"weights.bin"}
        assert not (tmp_path / "secret").exists()

    def test_a_linked_folder_is_not_written_through(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m", "data/weights.bin")
        (tmp_path / "m" / "data").mkdir()
        (tmp_path / "m" / "weights.bin").rename(tmp_path / "m" / "data" / "weights.bin")
        (tmp_path / "out").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out" / "data").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="leads out of the folder"):
            self.export(path, tmp_path / "out" / "model.onnx")
        assert [*(tmp_path / "elsewhere").iterdir()] == []

    def test_the_data_does_not_take_the_name_of_the_output(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m")
        (tmp_path / "out").mkdir()
        with pytest.raises(UsageError, match="already exists"):
            self.export(path, tmp_path / "out" / "weights.bin")
        assert [*(tmp_path / "out").iterdir()] == []

    def test_missing_data(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m")
        (tmp_path / "m" / "weights.bin").unlink()
        (tmp_path / "out").mkdir()
        with pytest.raises(ModelError, match="is missing"):
            self.export(path, tmp_path / "out" / "model.onnx")

    def test_variables_of_a_record_do_not_start_a_process(self, tmp_path: Path) -> None:
        """An export of the optimized model once ran a library that the record named."""
        config = msgspec.structs.replace(Config(), environment={"PYTHONPATH": str(tmp_path / "evil")})
        (tmp_path / "evil").mkdir()
        (tmp_path / "evil" / "sitecustomize.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
        export("ort", make_record(TINY_CNN, config), str(TINY_CNN), "r.json", tmp_path / "out.onnx")
        assert not (tmp_path / "pwned").exists()


def test_positions_in_external_data_are_numbers(tmp_path: Path) -> None:
    path = save(tmp_path / "m")
    model = onnx.load(path, load_external_data=False)
    entry = next(pair for pair in model.graph.initializer[0].external_data if pair.key == "length")
    entry.value = "1e9"
    path.write_bytes(model.SerializeToString())
    for read in (read_model, read_graph):
        with pytest.raises(ModelError, match="no valid position in its external data"):
            read(path)


def test_all_tensors_are_checked(tmp_path: Path) -> None:
    """Data may be named by attributes, subgraphs, functions and sparse tensors, too."""
    from ortune.model.onnx_file import find_data_files

    def external(name: str) -> onnx.TensorProto:
        tensor = onnx.TensorProto(name=name, data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        return tensor

    model = onnx.ModelProto()
    node = model.graph.node.add(op_type="If")
    node.attribute.add(name="t", t=external("attribute"))
    node.attribute.add(name="list", tensors=[external("list")])
    node.attribute.add(name="sparse", sparse_tensor=onnx.SparseTensorProto(values=external("sparse")))
    inner = onnx.GraphProto(initializer=[external("subgraph")])
    inner.sparse_initializer.add(indices=external("indices"))
    node.attribute.add(name="g", g=inner)
    function = model.functions.add(name="f")
    function.node.add(op_type="Constant").attribute.add(name="value", t=external("function"))
    assert set(find_data_files(model)) == {"attribute", "list", "sparse", "subgraph", "indices", "function"}
