"""`ortune search` with something else than a model: a folder, a package, a program, a record."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from ortune import UsageError
from ortune.cli.explain_model import check_arguments, check_model
from ortune.errors import spell_as_flag
from ortune.model.find import MAX_DEPTH, find_models, find_place
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import ONE_THREAD, make_local_record, write


def make_distribution(folder: Path, name: str, package: str) -> None:
    """Make a package with a model, as pip installs it."""
    models = folder / package / "models"
    models.mkdir(parents=True)
    # Importing it would fail the test.
    (folder / package / "__init__.py").write_text("raise SystemExit('imported')")
    shutil.copy(TINY_CNN, models / "cnn.onnx")
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{package}/models/cnn.onnx,,\n")


class TestWalk:
    def test_the_largest_first(self, tmp_path: Path) -> None:
        (tmp_path / "deep" / "er").mkdir(parents=True)
        (tmp_path / "small.onnx").write_bytes(b"1")
        (tmp_path / "deep" / "er" / "large.ONNX").write_bytes(b"123")
        (tmp_path / "deep" / "middle.ort").write_bytes(b"12")
        (tmp_path / "deep" / "weights.bin").write_bytes(b"12345")
        found = find_models([tmp_path])
        assert [model.path.name for model in found.models] == ["large.ONNX", "middle.ort", "small.onnx"]
        assert [model.size_bytes for model in found.models] == [3, 2, 1]
        assert [model.is_ort for model in found.models] == [False, True, False]
        assert found.is_complete

    def test_external_data_counts(self, tmp_path: Path) -> None:
        (tmp_path / "model.onnx").write_bytes(b"1")
        (tmp_path / "model.onnx_data").write_bytes(b"123456")
        assert [model.size_bytes for model in find_models([tmp_path]).models] == [7]

    def test_links_out_of_the_folder_are_not_followed(self, tmp_path: Path) -> None:
        inside, outside = tmp_path / "inside", tmp_path / "outside"
        for folder in (inside, outside):
            folder.mkdir()
        (outside / "secret.onnx").write_bytes(b"1")
        (inside / "blob").write_bytes(b"12")
        (inside / "linked.onnx").symlink_to("blob")
        (inside / "again.onnx").symlink_to("linked.onnx")
        (inside / "secret.onnx").symlink_to(outside / "secret.onnx")
        (inside / "folder").symlink_to(outside)
        (inside / "loop").symlink_to(inside)
        (inside / "broken.onnx").symlink_to("missing")
        found = find_models([inside])
        assert [model.path.parent.name for model in found.models] == ["inside"]
        assert found.models[0].path.name in {"linked.onnx", "again.onnx"}
        assert found.n_links == 2

    def test_a_folder_whose_name_begins_like_another_is_outside(self, tmp_path: Path) -> None:
        for name in ("models", "models-private"):
            (tmp_path / name).mkdir()
        (tmp_path / "models-private" / "x.onnx").write_bytes(b"1")
        (tmp_path / "models" / "x.onnx").symlink_to("../models-private/x.onnx")
        assert find_models([tmp_path / "models"]).models == ()

    def test_the_walk_is_bounded(self, tmp_path: Path) -> None:
        for number in range(20):
            (tmp_path / f"{number}.onnx").write_bytes(b"1")
        found = find_models([tmp_path], most_entries=10)
        assert len(found.models) == 10
        assert not found.is_complete
        deep = tmp_path.joinpath(*["d"] * (MAX_DEPTH + 2))
        deep.mkdir(parents=True)
        (deep / "x.onnx").write_bytes(b"123")
        found = find_models([tmp_path])
        assert len(found.models) == 20
        assert not found.is_complete

    @pytest.mark.skipif(not hasattr(Path, "is_fifo") or sys.platform == "win32", reason="named pipes")
    def test_what_is_no_file_is_left_out(self, tmp_path: Path) -> None:
        import os

        os.mkfifo(tmp_path / "pipe.onnx")
        (tmp_path / "folder.onnx").mkdir()
        assert find_models([tmp_path, tmp_path / "missing"]).models == ()


class TestPlaces:
    def test_a_package_is_found_and_not_imported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_distribution(tmp_path, "some-ocr", "ocr_of_a_test")
        monkeypatch.syspath_prepend(tmp_path)
        for name, kind in (("ocr_of_a_test", "package"), ("some-ocr", "distribution"), ("Some_OCR", "distribution")):
            place = find_place(name)
            assert place
            assert place.kind == kind
            assert [model.path.name for model in find_models(place.folders, place.files).models] == ["cnn.onnx"]
        inner = find_place("ocr_of_a_test.models")
        assert inner
        assert inner.folders == (tmp_path / "ocr_of_a_test" / "models",)
        assert "ocr_of_a_test" not in sys.modules

    @pytest.mark.parametrize(
        "name", ["no_such_package", "no-such-package", "no.such", "", ".", "..", "a b", "\0", "é" * 300]
    )
    def test_names_of_nothing(self, name: str) -> None:
        assert find_place(name) is None

    def test_a_single_module(self) -> None:
        place = find_place("shlex")
        assert place
        assert place.kind == "module"
        assert find_models(place.folders, place.files).models == ()


def explain(model: str) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        check_model(model)
    return caught.value.render(spell_as_flag)


class TestModel:
    @pytest.mark.usefixtures("models_read_here")
    def test_the_models_of_a_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "with a space"
        folder.mkdir()
        shutil.copy(TINY_CNN, folder / "cnn.onnx")
        shutil.copy(TINY_ENCODER, folder / "encoder.onnx")
        (folder / "broken.onnx").write_bytes(b"no model")
        (folder / "x.ort").write_bytes(b"12345678")
        message, hint = explain(str(folder))
        assert "is a folder with 4 models" in message
        assert f"ortune search {shlex.quote(str(folder / 'cnn.onnx'))}" in message
        assert "image float32[1,3,32,32]" in message
        assert "cannot be read as a model" in message
        assert f"ortune search {shlex.quote(str(folder / 'x.ort'))}" not in message
        assert "ORT format" in message
        assert "ortune inspect -- COMMAND" in hint

    def test_a_folder_without_models(self, tmp_path: Path) -> None:
        message, hint = explain(str(tmp_path))
        assert "is a folder, and no .onnx or .ort file is in it" in message
        assert "ortune inspect -- COMMAND" in hint

    def test_a_record(self, tmp_path: Path) -> None:
        path = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "tuned.json")
        message, hint = explain(str(path))
        assert "is a record, not a model" in message
        assert f"ortune apply {path} -- COMMAND" in hint
        assert f"ortune bench MODEL {path}" in hint

    @pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", b'{"schema"', b"{" * 100_000])
    def test_other_files_are_left_to_the_parser(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.json"
        path.write_bytes(content)
        check_model(str(path))

    @pytest.mark.parametrize("name", ["missing.onnx", "no_such_package", "folder/missing", "\0", "x" * 5000])
    def test_what_is_missing_is_left_to_the_reader(self, name: str) -> None:
        check_model(name)

    def test_names_are_made_printable(self, tmp_path: Path) -> None:
        (tmp_path / "\x1b[31mred\n.onnx").write_bytes(b"1")
        message, _ = explain(str(tmp_path))
        assert "\x1b" not in message


class TestArguments:
    @pytest.mark.parametrize(
        ("words", "written"),
        [
            ("app.py", "-- python app.py"),
            ("python app.py", "-- python app.py"),
            ("/usr/bin/python3.11 app.py --image x.png", "-- /usr/bin/python3.11 app.py --image x.png"),
            ("python", "-- python"),
            ("uvicorn app:app --workers 2", "-- uvicorn app:app --workers 2"),
            ("--budget 60s -q python app.py", "--budget 60s -q -- python app.py"),
            ("--call a:b --budget=60s python -c 'import x'", "--call a:b --budget=60s -- python -c 'import x'"),
            ("-o x.json app.py 'a b'", "-o x.json -- python app.py 'a b'"),
            ("sort app.txt", "-- sort app.txt"),
        ],
    )
    def test_a_program_without_a_separator(self, words: str, written: str) -> None:
        with pytest.raises(UsageError, match="There is no -- before") as caught:
            check_arguments(["ortune", "search", *shlex.split(words)])
        assert caught.value.hint == f"Write: ortune search {written}"

    @pytest.mark.parametrize(
        "words",
        [
            "--call a:b model.onnx",
            "model.onnx --call=a:b",
            "--call a:b",
            "--call a:b -- model.onnx",
            "x.onnx --call a:b -q",
        ],
    )
    def test_options_of_programs(self, words: str) -> None:
        with pytest.raises(UsageError, match="is for programs") as caught:
            check_arguments(["ortune", "search", *words.split()])
        assert caught.value.render(spell_as_flag)[0].startswith("--call is for programs")

    @pytest.mark.parametrize(
        "words",
        [
            "search model.onnx",
            "search --budget 60s model.onnx -q",
            "search --call a:b -- python app.py",
            "search -- python app.py --call a:b",
            "search -- -model.onnx",
            "search -o python model.onnx",
            "search --help",
            "search --call --help",
            "search",
            "search -",
            "search --unknown model.onnx",
            "search model.onnx other.onnx",
            "bench app.py",
            "",
        ],
    )
    def test_everything_else_passes(self, words: str) -> None:
        check_arguments(["ortune", *words.split()])


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("models",), "ortune search models/cnn.onnx"),
            (("app.py",), "Write: ortune search -- python app.py"),
            (("python", "app.py"), "Write: ortune search -- python app.py"),
            (("--url", "http://localhost/", "models/cnn.onnx"), "--url is for programs"),
        ],
    )
    def test_messages(self, tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
        (tmp_path / "models").mkdir()
        shutil.copy(TINY_CNN, tmp_path / "models" / "cnn.onnx")
        done = run_ortune("search", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""
