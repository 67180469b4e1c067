"""The record: strict, versioned, short, written as a whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

import ortune
from ortune import Config, Record, RecordError, Speedup, Tolerance, UsageError, read_record
from ortune.errors import spell_as_flag
from ortune.file_kinds import is_record
from ortune.gates.reporters.history import is_history
from ortune.knobs.config import CPU_PROVIDER
from ortune.measure.host_speedup import HostSpeedup
from ortune.measure.hosts import pool_hosts
from ortune.record import files
from ortune.record import trials as trials_module
from ortune.record.files import (
    check_record_writable,
    check_writable,
    encode_record,
    path_of_trials,
    read_records,
    read_trials,
    write_atomically,
    write_record,
)
from ortune.record.json_schema import json_schema
from ortune.record.layout import encode
from ortune.record.rounding import ratio, round_record, significant
from ortune.record.schema import RECORD_SCHEMA, Bundle, FrontPoint, TrialsFile, Tried
from ortune.record.select import SelectedRecord
from ortune.record.trials import (
    Trial,
    TrialRound,
    Trials,
    TrialSession,
    TrialsHeader,
    decode_trials,
    encode_trials,
    is_trials_file,
    summarize_trials,
)
from ortune.worker import Failure
from tests.conftest import ROOT
from tests.fuzz.histories import history_seeds
from tests.records import ONE_THREAD
from tests.simulated import make_host

DATA = ROOT / "tests" / "data"
EXAMPLE = DATA / "server.ortune.json"
SCHEMA_FILE = ROOT / "docs" / "record.schema.json"


HOSTS = json.loads(
    encode(
        pool_hosts(
            [
                HostSpeedup(host=host, estimate=1.3, low=1.2, high=1.4, confidence=0.95, n_launches=6)
                for host in ("0a0a0a0a", "0b0b0b0b")
            ]
        )
    )
)
"""What two hosts say, as a record holds it."""


def change(function: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(EXAMPLE.read_bytes())
    function(document)
    return json.dumps(document).encode()


def example(**changes: Any) -> Record:
    """Return the example, with other evidence where `changes` say so."""
    record = read_record(EXAMPLE)
    return msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, **changes))


def proven_gain(name: str = "a") -> Record:
    """Return a record that proves a gain, of a model with this name and content."""
    record = msgspec.structs.replace(example(verdict="faster"), config=ONE_THREAD)
    return of_model(record, path=f"{name}.onnx", digest=f"sha256:{name}")


def of_model(record: Record, **changes: str) -> Record:
    """Return the record of another model."""
    return msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, **changes))


class TestForm:
    def test_a_record_comes_back(self) -> None:
        record = read_record(EXAMPLE)
        assert isinstance(record, Record)
        assert msgspec.json.decode(encode_record(record), type=Record) == record
        assert encode_record(record) == EXAMPLE.read_bytes()

    def test_it_is_plain_enough_to_be_applied_by_hand(self) -> None:
        document = json.loads(encode_record(msgspec.structs.replace(example(), config=ONE_THREAD)))
        assert document["config"] == {"session_options": {"intra_op_num_threads": 1}}
        assert list(document) == ["schema", "config", "evidence", "model", "workload", "host", "runtime", "search"]
        assert {"estimate", "low", "high", "confidence", "n_pairs"} <= set(document["evidence"]["speedup"])

    def test_defaults_are_left_out(self) -> None:
        text = EXAMPLE.read_text()
        assert "null" not in text
        for empty in ("[]", '"environment"', '"io_binding"', '"providers": [["CPU'):
            assert empty not in text

    def test_each_kind_of_default_is_left_out(self) -> None:
        """msgspec's own `omit_defaults` keeps values that are equal to the default, but another object."""
        equal = msgspec.json.decode(b'{"relative": 0.001, "absolute": 0.0001}', type=Tolerance)
        assert encode(equal) == b"{}\n"
        assert json.loads(encode(Config(providers=(("CPUExecutionProvider", {}),), environment={}))) == {}

    def test_short_values_are_on_one_line_and_long_ones_are_not(self) -> None:
        lines = EXAMPLE.read_text().splitlines()
        assert max(map(len, lines)) <= 120
        assert any(line.startswith('      {"stage": "screening"') and line.endswith("},") for line in lines)

    @given(
        st.recursive(
            st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=30,
        )
    )
    def test_the_text_is_json(self, value: Any) -> None:
        assert json.loads(encode({"value": value})) == {"value": value}

    def test_a_name_that_is_not_utf8_costs_no_record(self) -> None:
        record = example()
        model = msgspec.structs.replace(record.model, path=os.fsdecode(b"\xff.onnx"))
        text = encode_record(msgspec.structs.replace(record, model=model))
        assert msgspec.json.decode(text, type=Record).model.path == "?.onnx"

    def test_figures_are_rounded(self) -> None:
        assert significant(208103.81339712918) == 208100
        assert ratio(1.27345678) == 1.2735
        # An interval that ends above 1 does so after rounding.
        assert ratio(1.0000004) > 1 > ratio(0.9999996)
        # A ratio has a logarithm after rounding.
        assert ratio(0.0000123456) == ratio(ratio(0.0000123456)) == 0.00001235
        record = read_record(EXAMPLE)
        assert round_record(record) == record

    def test_the_committed_schema_is_that_of_the_code(self) -> None:
        """If this fails, run `python -m docs.generate`."""
        assert json.loads(SCHEMA_FILE.read_text()) == json.loads(json.dumps(json_schema()))


REJECTED = [
    (b"", "not JSON"),
    (b"{", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[]", "not an ortune record"),
    (b"{}", "not an ortune record"),
    (b'{"schema": "4"}', r"not an ortune record: Expected `int`, got `str` - at `\$.schema`"),
    (b'{"schema": 1}', "missing required field `config`"),
    (b'{"schema": 1, "records": [{}]}', r"missing required field `schema` - at `\$.records\[0\]`"),
    (change(lambda d: d.update(schema=2)), r"has schema 2, and this version of ortune reads schema 1\."),
    (change(lambda d: d.update(schema=0)), r"has schema 0, and this version of ortune reads schema 1\."),
    (change(lambda d: d.update(extra=1)), "unknown field `extra`"),
    (change(lambda d: d["config"].update(sesion_options={})), r"unknown field `sesion_options` - at `\$\.config`"),
    (change(lambda d: d["config"].update(session_config={"a": 1})), r"Expected `str`.*\$\.config\.session_config"),
    (change(lambda d: d["evidence"].update(verdict="great")), r"\$\.evidence\.verdict"),
    (change(lambda d: d["model"].update(digest=None)), r"\$\.model\.digest"),
    (change(lambda d: d["config"].update(providers=[])), r"there are no providers - at `\$\.config`"),
    (change(lambda d: d["config"].update(environment={"A=B": "x"})), r"'A=B'='x' is .* environment variable"),
    (change(lambda d: d["config"].update(environment={"A": "\0"})), "environment variable"),
    (change(lambda d: d["workload"]["load"].update(clients=0)), r"0 clients .* - at `\$\.workload\.load`"),
    (change(lambda d: d["workload"]["load"].update(rate_per_s=None)), r"scenario server .* - at `\$\.workload\.load`"),
    (change(lambda d: d["workload"]["inputs"]["image"].update(shapes=[])), "there are no shapes"),
    (
        change(lambda d: d["evidence"].update(hosts=HOSTS | {"n_slower": 9})),
        r"9 of 2 hosts .* at `\$\.evidence\.hosts`",
    ),
    (
        change(lambda d: d["evidence"].update(hosts=HOSTS | {"verdict": "slower"})),
        r"the verdict is slower, and the speedup says inconclusive - at `\$\.evidence\.hosts`",
    ),
    (
        change(lambda d: d["evidence"].update(hosts=HOSTS | {"worst": {**HOSTS["worst"], "host": "db-1.example"}})),
        r"'db-1.example' is not 8 hexadecimal digits - at `\$\.evidence\.hosts\.worst`",
    ),
    (change(lambda d: d["evidence"]["speedup"].update(confidence=0)), r"> 0.*\$\.evidence\.speedup\.confidence"),
    (change(lambda d: d["evidence"]["speedup"].update(confidence=1)), r"< 1.*\$\.evidence\.speedup\.confidence"),
    (
        change(lambda d: d["evidence"]["noise"].update(n_blocks=10**400)),
        r"Expected `int` <= 9007199254740992 - at `\$\.evidence\.noise\.n_blocks`",
    ),
    (change(lambda d: d["search"].update(seed=-1)), r"seed is -1, below 0 - at `\$\.search`"),
    (change(lambda d: d["search"].update(started="soon")), r"'soon' - at `\$\.search`"),
    (change(lambda d: d["search"].update(failed={"bored": 1})), r"'bored' - at `key` in `\$\.search\.failed`"),
    (
        change(lambda d: d["search"].update(trials={"file": "../x.gz", "sha256": "0" * 64})),
        r"not a plain file name - at `\$\.search\.trials`",
    ),
    (
        change(lambda d: d["search"].update(trials={"file": "x.gz", "sha256": "0"})),
        r"not a SHA-256 digest - at `\$\.search\.trials`",
    ),
    (change(lambda d: d["evidence"]["winner"].update(p50_ns="x")), r"\$\.evidence\.winner\.p50_ns"),
    (change(lambda d: d["search"]["stages"][0].update(stage=[])), r"\$\.search\.stages\[0\]\.stage"),
    (b'{"schema": 1, "config": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
]


def find_unbounded(kind: inspect.Type, path: str, seen: set[type]) -> Iterator[str]:
    """Yield the places of whole numbers that may be of any size."""
    if isinstance(kind, inspect.IntType):
        if kind.le is None:
            yield path
    elif isinstance(kind, inspect.StructType):
        if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from find_unbounded(field.type, f"{kind.cls.__name__}.{field.name}", seen)
    else:
        parts = [getattr(kind, name, None) for name in ("item_type", "key_type", "value_type")]
        for part in (*parts, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
            if part is not None:
                yield from find_unbounded(part, path, seen)


class TestReading:
    def test_whole_numbers_have_bounds(self) -> None:
        """Some have others than those of their types: `Config` and `Load` check theirs, and a schema is that of ortune.

        A seed may be any number. It is only shown, and passed to random generators.
        """
        kinds = inspect.multi_type_info([Record, TrialsHeader, Trial, TrialRound, TrialSession])
        seen: set[type] = set()
        found = {path for kind in kinds for path in find_unbounded(kind, "", seen)}
        checked = ("Config.", "ModelSettings.", "ThreadPool.", "Load.", "Workload.batches", "SessionInfo.settings")
        assert {path for path in found if not path.startswith(checked)} == {
            "Record.schema",
            "TrialsHeader.schema",
            "Search.seed",
        }

    @pytest.mark.parametrize(("content", "message"), REJECTED)
    def test_what_is_not_a_record_is_rejected(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "c.json"
        path.write_bytes(content)
        with pytest.raises(RecordError, match=message):
            read_record(path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="no file"):
            read_record(tmp_path / "nothing.json")
        with pytest.raises(RecordError, match="Cannot read"):
            read_record(tmp_path)

    def test_stdin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with EXAMPLE.open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert ortune.read_record("-") == read_record(EXAMPLE)


class TestWhatIsKnown:
    """Methods of a record."""

    def test_a_search_without_a_result_proves_nothing(self) -> None:
        assert not example().is_proven
        assert example(verdict="default_is_best").is_proven
        assert msgspec.structs.replace(example(), config=ONE_THREAD).is_proven

    def test_settings_that_were_only_fixed_are_not_applied(self) -> None:
        record = interrupted_with_fixed_settings()
        assert not record.is_proven
        assert not SelectedRecord(record=record, source="", fits=True, why="").applies

    def test_the_gain_is_that_of_the_config(self) -> None:
        record = example()
        assert record.gain is None
        assert msgspec.structs.replace(record, config=ONE_THREAD).gain == record.evidence.speedup

    def front(self) -> Record:
        record = example()
        assert record.evidence.winner
        better = Speedup(estimate=2, low=1.5, high=2.5, confidence=0.95, n_pairs=8, n_launches=4)
        worse = msgspec.structs.replace(better, estimate=0.5, low=0.4, high=0.6)
        points = (
            FrontPoint(summary=msgspec.structs.replace(record.evidence.winner, config=Config()), recommended=True),
            FrontPoint(summary=record.evidence.winner, speedups={"p99": worse, "cpu": better}),
        )
        evidence = msgspec.structs.replace(record.evidence, verdict="trade_off", front=points)
        workload = msgspec.structs.replace(record.workload, objectives=("p99", "cpu"))
        return msgspec.structs.replace(record, evidence=evidence, workload=workload)

    def test_a_point_of_the_front(self) -> None:
        point = self.front().point(2)
        assert point.config == ONE_THREAD
        # What it is better in comes first.
        assert point.objectives == ("cpu", "p99")
        assert point.gain and point.gain.estimate == 2
        assert self.front().point(1).objectives == ("p99", "cpu")
        assert self.front().point(1).gain is None

    @pytest.mark.parametrize("number", [0, 3])
    def test_a_point_that_is_not_there(self, number: int) -> None:
        with pytest.raises(RecordError) as raised:
            self.front().point(number)
        assert raised.value.render(spell_as_flag)[0] == f"--pick {number}: the front has points 1 to 2."
        with pytest.raises(RecordError, match="no Pareto front"):
            example().point(1)

    def test_the_settings_that_were_tried(self) -> None:
        tried = msgspec.structs.replace(example(), config=Config(session_config={"a": "1"})).tried
        assert tried.session_options == ("execution_mode", "intra_op_num_threads")
        assert "a" in tried.session_config

    def test_the_providers_that_were_tried(self) -> None:
        """Those of the config and of the base are among them. The CPU is not named: all others fall back to it."""
        chains = [(("A", {}), CPU_PROVIDER), (("B", {}), ("A", {}), CPU_PROVIDER), (("C", {}), CPU_PROVIDER)]
        record = msgspec.structs.replace(
            example(),
            config=Config(providers=chains[0]),
            base=Config(providers=chains[1]),
            search=msgspec.structs.replace(example().search, tried=Tried.of(Config(providers=chains[2]), Config())),
        )
        assert record.search.tried.providers == ("C",)
        assert record.tried.providers == ("A", "B", "C")
        assert "providers" not in encode_record(example()).decode().partition('"tried"')[2].partition("}")[0]


def interrupted_with_fixed_settings() -> Record:
    """Return the record of a search with `--fix` that was interrupted before its confirmation."""
    record = example(speedup=None, baseline=None, winner=None, limits=(), baseline_limits=())
    search = msgspec.structs.replace(record.search, interrupted=True)
    return msgspec.structs.replace(record, config=ONE_THREAD, base=ONE_THREAD, search=search)


class TestWriting:
    def test_the_file_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "c.json"
        path.write_text("old")
        write_atomically(path, b"new")
        assert path.read_bytes() == b"new"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        target, link = tmp_path / "real" / "c.json", tmp_path / "link.json"
        link.symlink_to(target)
        check_writable(link)
        for content in (b"new file", b"replaced"):
            write_atomically(link, content)
            assert link.is_symlink()
            assert target.read_bytes() == content

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_is_written_to(self, tmp_path: Path) -> None:
        pipe, read = tmp_path / "pipe", []
        os.mkfifo(pipe)
        check_record_writable(pipe)
        reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
        reader.start()
        record = example()
        assert write_record(record, pipe, b"trials").record == record
        reader.join(30)
        assert read == [encode_record(record)]
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert list(tmp_path.iterdir()) == [pipe]

    def test_stdout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> None:
        monkeypatch.chdir(tmp_path)
        check_record_writable(Path("-"))
        write_record(example(), Path("-"), b"trials")
        assert capfdbinary.readouterr().out == EXAMPLE.read_bytes()
        assert list(tmp_path.iterdir()) == []

    def test_a_record_that_proves_more_is_kept(self, tmp_path: Path) -> None:
        path, kept = tmp_path / "c.json", tmp_path / "c.before.json"
        unproven, proven = example(), example(verdict="default_is_best")
        first, second = encode_trials(trials(1)), encode_trials(trials(2))
        assert write_record(unproven, path).kept is None
        assert write_record(proven, path).kept is None
        assert write_record(proven, path, first).kept is None
        assert write_record(unproven, path, second).kept == kept
        assert read_trials(path) == trials(2)
        assert read_record(kept).evidence == proven.evidence
        assert read_trials(kept) == trials(1)
        assert write_record(unproven, path).kept is None

    def test_a_backup_does_not_replace_a_file_of_the_user(self, tmp_path: Path) -> None:
        path, of_user, kept = tmp_path / "c.json", tmp_path / "c.before.json", tmp_path / "c.before-2.json"
        of_user.write_text("notes")
        unproven, proven = example(), example(verdict="default_is_best")
        for _ in range(2):  # its own backup is replaced
            write_record(proven, path)
            assert write_record(unproven, path).kept == kept
        assert of_user.read_text() == "notes"
        assert read_record(kept).evidence == proven.evidence

    def test_a_backup_does_not_replace_a_record_of_the_user(self, tmp_path: Path) -> None:
        path, of_user = tmp_path / "c.json", tmp_path / "c.before.json"
        proven = example(verdict="default_is_best")
        write_record(msgspec.structs.replace(proven, config=ONE_THREAD), of_user)
        before = of_user.read_bytes()
        for _ in range(2):
            write_record(proven, path)
            assert write_record(example(), path).kept == tmp_path / "c.before-2.json"
        assert of_user.read_bytes() == before

    def test_a_backup_does_not_replace_trials_of_the_user(self, tmp_path: Path) -> None:
        path, of_user = tmp_path / "c.json", tmp_path / "c.before.trials.jsonl.gz"
        of_user.write_bytes(b"mine")
        write_record(example(verdict="default_is_best"), path, encode_trials(trials(1)))
        assert write_record(example(), path).kept == tmp_path / "c.before-2.json"
        assert of_user.read_bytes() == b"mine"
        assert read_trials(tmp_path / "c.before-2.json") == trials(1)

    def test_a_proven_gain_is_kept_if_the_default_turns_out_to_be_best(self, tmp_path: Path) -> None:
        path, kept, gain = tmp_path / "c.json", tmp_path / "c.before.json", proven_gain()
        best = msgspec.structs.replace(example(verdict="default_is_best"), model=gain.model)
        write_record(gain, path)
        assert write_record(gain, path).kept is None
        assert write_record(best, path).kept == kept
        assert read_record(kept) == gain
        assert write_record(gain, path).kept is None

    def test_a_proven_gain_of_one_of_several_models_is_kept(self, tmp_path: Path) -> None:
        path, kept = tmp_path / "c.json", tmp_path / "c.before.json"
        first, second = proven_gain("a"), proven_gain("b")
        lost = msgspec.structs.replace(example(), model=second.model)
        both = Bundle(schema=RECORD_SCHEMA, records=(first, second))
        fewer: list[Record | Bundle] = [Bundle(schema=RECORD_SCHEMA, records=(first, lost)), first]
        for new in fewer:
            write_record(both, path)
            assert write_record(new, path).kept == kept
            assert read_records(kept) == both.records
            kept.unlink()
        assert write_record(both, path).kept is None

    @pytest.mark.parametrize("changes", [{"digest": "sha256:other"}, {"path": "moved.onnx"}])
    def test_a_model_that_was_changed_or_moved_is_the_same(self, tmp_path: Path, changes: dict[str, str]) -> None:
        path, old = tmp_path / "c.json", proven_gain()
        write_record(old, path)
        assert write_record(of_model(old, **changes), path).kept is None

    def test_a_record_of_a_newer_version_is_kept(self, tmp_path: Path) -> None:
        path, kept = tmp_path / "c.json", tmp_path / "c.before.json"
        newer = json.dumps({**json.loads(EXAMPLE.read_bytes()), "schema": RECORD_SCHEMA + 1}).encode()
        path.write_bytes(newer)
        assert write_record(example(), path).kept == kept
        assert kept.read_bytes() == newer

    def test_an_interrupted_search_with_fixed_settings_keeps_a_proven_record(self, tmp_path: Path) -> None:
        path = tmp_path / "c.json"
        write_record(example(verdict="default_is_best"), path)
        assert write_record(interrupted_with_fixed_settings(), path).kept == tmp_path / "c.before.json"

    def test_files_of_others_are_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        for content, is_ours in ((b"\x08\x07onnx", False), (b"[1]", False), (b"", True), (EXAMPLE.read_bytes(), True)):
            path.write_bytes(content)
            if is_ours:
                check_record_writable(path)
            else:
                with pytest.raises(UsageError, match=r"model.onnx: this file exists and was not written by ortune"):
                    check_record_writable(path)
            assert path.read_bytes() == content

    @pytest.mark.parametrize(
        "document",
        [
            {"schema": "avro", "mine": 1},
            {"schema": 1, "evidence": {}},
            {"schema": 1, "records": [{"name": "a"}]},
            {"schema": 1, "records": []},
            {"schema": True, "evidence": {}, "search": {}},
        ],
    )
    def test_a_schema_alone_is_no_record(self, document: dict[str, Any], tmp_path: Path) -> None:
        path = tmp_path / "user.json"
        path.write_text(json.dumps(document))
        with pytest.raises(UsageError, match="was not written by ortune"):
            check_record_writable(path)

    def test_records_of_all_schemas_and_bundles_are_records(self) -> None:
        for path in DATA.glob("*.ortune.json"):
            assert is_record(path.read_bytes())
        newer = json.loads(EXAMPLE.read_bytes()) | {"schema": 99}
        assert is_record(json.dumps(newer).encode())
        assert is_record(encode_record(Bundle(schema=RECORD_SCHEMA, records=(example(), example()))))

    def test_a_large_file_is_not_read_to_find_that_it_is_of_another(self, tmp_path: Path) -> None:
        """Reading a terabyte would fail: it does not fit into memory."""
        path = tmp_path / "disk.img"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        for check in (check_record_writable, partial(check_writable, may_replace=is_record)):
            with pytest.raises(UsageError, match=r"disk\.img: this file exists and was not written by ortune"):
                check(path)

    def test_a_history_may_be_large(self, tmp_path: Path) -> None:
        """Lines are added to it by each gate."""
        path = tmp_path / "h.jsonl"
        path.write_bytes(history_seeds()[1] + b"\n")
        os.truncate(path, 1 << 40)
        check_writable(path, "history", is_history)

    def test_files_in_the_place_of_trials_are_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "c.json"
        path_of_trials(path).write_text("mine")
        with pytest.raises(UsageError, match=r"c\.trials\.jsonl\.gz: this file exists"):
            check_record_writable(path)
        path_of_trials(path).write_bytes(encode_trials(trials(1)))
        check_record_writable(path)

    def test_what_cannot_be_written_is_reported_beforehand(self, tmp_path: Path) -> None:
        check_writable(tmp_path / "c.json")
        with pytest.raises(UsageError, match="no folder"):
            check_writable(tmp_path / "nowhere" / "c.json")
        with pytest.raises(UsageError, match="is a folder") as raised:
            check_writable(tmp_path, "study")
        assert raised.value.option == "study"
        assert list(tmp_path.iterdir()) == []


def trials(seed: int) -> Trials:
    return Trials(
        header=TrialsHeader(
            schema=RECORD_SCHEMA,
            model="sha256:0",
            started="2026-01-01",
            objectives=("p50",),
            figures=("p50", "memory"),
            topology=make_host(2).topology,
            usable=(0, 1),
        ),
        trials=(
            Trial(number=0, stage="confirmation", speedups=(1.0,)),
            Trial(number=1, config=ONE_THREAD, stage="confirmation", speedups=(1.5,), n_blocks=seed),
            Trial(number=2, stage="screening", speedups=(3.0,), over_limits=("p99<1ms",)),
            Trial(number=3, stage="screening", failure=Failure(kind="crash", stage="load", message="SIGSEGV")),
            Trial(number=4, stage="screening", speedups=(2.0,)),
        ),
        rounds=(
            TrialRound(
                stage="screening", launch=0, values={0: (120.5, 1000.0), 1: (100.0, 900.0)}, contended=(1,), at_s=0.0
            ),
        ),
    )


class TestTrials:
    def test_they_come_back(self, tmp_path: Path) -> None:
        path = tmp_path / "tuned.ortune.json"
        written = write_record(example(), path, encode_trials(trials(1)))
        assert written.record == read_record(path)
        assert written.record.search.trials
        assert written.record.search.trials.file == "tuned.ortune.trials.jsonl.gz"
        assert read_trials(path) == trials(1)
        assert {file.name for file in tmp_path.iterdir()} == {"tuned.ortune.json", "tuned.ortune.trials.jsonl.gz"}

    def test_the_file_is_reproducible_json_lines(self) -> None:
        data = encode_trials(trials(1))
        assert data == encode_trials(trials(1))
        assert data[4:8] == bytes(4)  # no time in the header of gzip
        header, first, *_ = map(json.loads, gzip.decompress(data).splitlines())
        assert header["type"] == "header"
        assert first == {"type": "trial", "number": 0, "stage": "confirmation", "speedups": [1]}

    def test_record_and_trials_may_be_renamed(self, tmp_path: Path) -> None:
        path, renamed = tmp_path / "a.json", tmp_path / "b.json"
        write_record(example(), path, encode_trials(trials(1)))
        path.rename(renamed)
        assert read_trials(renamed) == trials(1)
        path_of_trials(path).rename(path_of_trials(renamed))
        assert read_trials(renamed) == trials(1)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "There is no file .*a.trials.jsonl.gz"),
            (encode_trials(trials(2)), "does not have the digest"),
            (b"", "does not have the digest"),
        ],
    )
    def test_a_file_that_is_missing_or_was_changed(self, content: bytes | None, message: str, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        written = write_record(example(), path, encode_trials(trials(1)))
        path_of_trials(path).unlink() if content is None else path_of_trials(path).write_bytes(content)
        with pytest.raises(RecordError, match=message):
            read_trials(path)
        assert read_record(path) == written.record  # the record itself is as good as before

    @pytest.mark.parametrize(
        "data",
        [
            b"nonsense",
            gzip.compress(b"", mtime=0),
            gzip.compress(b"{}", mtime=0),
            gzip.compress(b'{"type": "lap"}\n', mtime=0),
            b"\x1f\x8b",
        ],
    )
    def test_a_file_that_is_not_one_of_trials(self, data: bytes, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        write_record(example(), path, data)
        with pytest.raises(RecordError, match="not a trials file"):
            read_trials(path)
        assert not is_trials_file(data)
        assert is_trials_file(encode_trials(trials(1)))

    @pytest.mark.parametrize(
        ("most_bytes", "n_screening", "n_others"), [(10**6, 400, 20), (20_000, 200, 20), (1700, 0, 10)]
    )
    def test_of_too_many_rounds_some_are_left_out(
        self, most_bytes: int, n_screening: int, n_others: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that is too large to be read would be worse. Rounds of the proof are left out last."""
        one = TrialRound(stage="screening", launch=0, values={0: (120.5, 1000.0)}, at_s=0.0)
        screening = [msgspec.structs.replace(one, at_s=float(at)) for at in range(400)]
        others = [msgspec.structs.replace(trial_round, stage="confirmation") for trial_round in screening[:20]]
        written = msgspec.structs.replace(trials(1), rounds=(*screening, *others))
        monkeypatch.setattr(trials_module, "MOST_TRIALS_BYTES", most_bytes)
        found = decode_trials(encode_trials(written))
        assert found.trials == written.trials
        assert [
            sum(trial_round.stage == stage for trial_round in found.rounds) for stage in ("screening", "confirmation")
        ] == [
            n_screening,
            n_others,
        ]
        assert [trial_round for trial_round in written.rounds if trial_round in found.rounds] == list(found.rounds)

    def test_a_record_without_trials(self, tmp_path: Path) -> None:
        write_record(example(), tmp_path / "a.json")
        with pytest.raises(RecordError, match="names no trials file"):
            read_trials(tmp_path / "a.json")

    def test_trials_that_cannot_be_written_cost_no_record(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path_of_trials(path).mkdir()
        with pytest.raises(UsageError, match="trials"):
            write_record(example(), path, b"trials")
        assert read_record(path) == example()

    @pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
    def test_trials_may_be_a_link(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        (tmp_path / "other").mkdir()
        path_of_trials(path).symlink_to(tmp_path / "other" / "target")
        write_record(example(), path, encode_trials(trials(1)))
        assert path_of_trials(path).is_symlink()
        assert read_trials(path) == trials(1)

    def test_trials_for_a_device_that_is_full_cost_no_record(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.json"
        write = files.write_atomically

        def fail(target: Path, data: bytes) -> None:
            if target == path_of_trials(path):
                raise UsageError("It is full.")
            write(target, data)

        monkeypatch.setattr(files, "is_special", lambda file: file == path_of_trials(path))
        monkeypatch.setattr(files, "write_atomically", fail)
        with pytest.raises(UsageError, match="It is full"):
            write_record(example(), path, b"trials")
        assert read_record(path) == example()

    @pytest.mark.skipif(sys.platform == "win32", reason="only POSIX systems limit the size of files")
    def test_a_record_that_cannot_be_written_costs_no_trials(self, tmp_path: Path) -> None:
        """The old record keeps the trials that it names."""
        import resource

        path = tmp_path / "a.json"
        old = write_record(example(), path, encode_trials(trials(1))).record
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))  # the new trials are shorter, and the record is not
        try:
            with pytest.raises(UsageError, match="File too large"):
                write_record(example(), path, b"trials")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert read_record(path) == old
        assert read_trials(path) == trials(1)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "a.trials.jsonl.gz"]

    def test_what_the_record_itself_says_of_them(self) -> None:
        summary = summarize_trials(trials(1).trials)
        assert summary.n_tried == 4
        assert summary.failed == {"crash": 1}
        assert summary.tried == Tried(session_options=("intra_op_num_threads",))
        # What was confirmed comes before what only looked good; what broke a limit is left out.
        assert [trial.speedups for trial in summary.best] == [(1.5,), (2.0,)]

    def test_the_name_in_a_record_leads_to_no_other_folder(self) -> None:
        for name in ("../x", "/x", "a/b", "", "..", "a\\b"):
            with pytest.raises(ValueError, match="plain file name"):
                TrialsFile(file=name, sha256="0" * 64)
