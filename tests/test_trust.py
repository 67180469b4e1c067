"""Records are data: what they must not set is an error that names the field, in every command that reads them."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ortune
from ortune import Config, RecordError, UsageError, read_record
from ortune.errors import TrustWarning
from ortune.gates.file import read_gates
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.legal import encode_legal, find_faults, read_legal
from ortune.record.files import read_trials, write_record
from ortune.record.schema import RankedTrial
from ortune.record.trials import Trial, encode_trials
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_local_record, write

PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "preload": ({"environment": {"LD_PRELOAD": "/tmp/evil.so"}}, "$.config.environment.LD_PRELOAD"),
    "variable": ({"environment": {"PYTHONSTARTUP": "/tmp/evil.py"}}, "$.config.environment.PYTHONSTARTUP"),
    "telemetry": ({"environment": {"ORT_DISABLE_TELEMETRY": "0"}}, "$.config.environment.ORT_DISABLE_TELEMETRY"),
    "one model": (
        {"models": {"m.onnx": {"session_options": {"enable_profiling": True}}}},
        "$.config.models.m.onnx.session_options.enable_profiling",
    ),
    "output": (
        {"session_options": {"optimized_model_filepath": "victim.txt"}},
        "$.config.session_options.optimized_model_filepath",
    ),
    "profile": ({"session_options": {"enable_profiling": True}}, "$.config.session_options.enable_profiling"),
    "weights": (
        {"session_config": {"session.model_external_initializers_file_folder_path": "/etc"}},
        "$.config.session_config.session.model_external_initializers_file_folder_path",
    ),
    "plugin": (
        {"providers": [["TensorrtExecutionProvider", {"trt_extra_plugin_lib_paths": "/tmp/evil.so"}]]},
        "$.config.providers[0][1].trt_extra_plugin_lib_paths",
    ),
    "unknown option": (
        {"providers": [["DnnlExecutionProvider", {"library": "/tmp/evil.so"}]]},
        "$.config.providers[0][1].library",
    ),
    "pointer": (
        {"providers": [["CUDAExecutionProvider", {"user_compute_stream": "4096"}]]},
        "$.config.providers[0][1].user_compute_stream",
    ),
    "unknown": ({"session_config": {"session.unheard_of": "1"}}, "$.config.session_config.session.unheard_of"),
    "each session": (
        {"per_session": [{}, {"ep.context_file_path": "x"}]},
        "$.config.per_session[1].ep.context_file_path",
    ),
    "lost calls": ({"run_options": {"terminate": True}}, "$.config.run_options.terminate"),
}
"""Settings that a record must not have unless its reader trusts it, and their JSON paths."""

ILLEGAL: dict[str, tuple[dict[str, Any], str]] = {
    "enum": ({"session_options": {"execution_mode": "ORT_PARALLEL\nimport os"}}, "session_options.execution_mode"),
    "type": ({"session_options": {"intra_op_num_threads": True}}, "session_options.intra_op_num_threads"),
    "range": ({"session_options": {"intra_op_num_threads": 10**6}}, "session_options.intra_op_num_threads"),
    "boolean": ({"session_config": {"session.intra_op.allow_spinning": "yes"}}, "session.intra_op.allow_spinning"),
    "text": ({"session_options": {"logid": "\x1b]0;owned\x07"}}, "session_options.logid"),
    "long text": ({"session_options": {"logid": "x" * 20_000}}, "session_options.logid"),
    "pool": ({"global_thread_pool": {"intra_op_num_threads": -1, "inter_op_num_threads": 1}}, "global_thread_pool"),
    "provider": ({"providers": [["./evil.so", {}]]}, "providers[0][0]"),
    "many": (
        {"session_config": {f"a{number}": "" for number in range(1001)}},
        "length <= 1000 - at `$.config.session_",
    ),
    "many sessions": ({"per_session": [{}] * 101}, "length <= 100 - at `$.config.per_session`"),
    "places": ({"environment": {"OMP_PLACES": "threads(1000000)"}}, "environment.OMP_PLACES"),
    "processor list": ({"environment": {"KMP_AFFINITY": "proclist=[0-100000000],explicit"}}, "KMP_AFFINITY"),
}
"""Settings that no reader can let through, and a part of their JSON paths."""


def hostile(config: dict[str, Any], folder: Path) -> Path:
    path = write(make_local_record(TINY_CNN, ONE_THREAD), folder / "evil.json")
    document = json.loads(path.read_text())
    document["config"] = config
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", PATHS)
def test_what_needs_trust(name: str, tmp_path: Path) -> None:
    config, place = PATHS[name]
    path = hostile(config, tmp_path)
    with pytest.raises(RecordError) as caught:
        read_record(path)
    assert f"`{place}`" in caught.value.message
    assert "{trust}" in caught.value.hint
    with pytest.warns(TrustWarning, match="evil.json is trusted: it sets "):
        assert read_record(path, trust=True).config == msgspec.convert(config, Config)


def list_refusals(path: Path) -> list[str]:
    """Return the messages of a record that is refused, without trust and with it."""
    messages = []
    for trust in (False, True):
        with pytest.raises(RecordError) as caught:
            read_record(path, trust=trust)
        messages.append(caught.value.message)
    return messages


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_is_not_legal(name: str, tmp_path: Path) -> None:
    config, place = ILLEGAL[name]
    for message in list_refusals(hostile(config, tmp_path)):
        assert place in message
        assert message.isprintable()
        assert len(message) < 1000


MISPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "ignored": ({"session_config": {"session.intra_op_num_threads": "4"}}, "intra_op_num_threads in session_options"),
    "renamed": ({"session_config": {"session.log_id": "a"}}, "logid in session_options"),
    "attribute": ({"session_config": {"intra_op_num_threads": "4"}}, "session_options.intra_op_num_threads"),
    "entry": (
        {"session_options": {"session.intra_op.allow_spinning": 0}},
        "session_config.session.intra_op.allow_spin",
    ),
    "of calls": ({"session_config": {"memory.enable_memory_arena_shrinkage": "cpu:0"}}, "run_config.memory.enable"),
    "variable": ({"environment": {"execution_mode": "ORT_PARALLEL"}}, "session_options.execution_mode"),
    "each session": ({"per_session": [{"enable_mem_pattern": "0"}]}, "session_options.enable_mem_pattern"),
    "one model": (
        {"models": {"a": {"session_config": {"session.execution_mode": "ORT_PARALLEL"}}}},
        "execution_mode in session_options",
    ),
}
"""Settings that have no effect where they are, and what the message suggests."""


@pytest.mark.parametrize("name", MISPLACED)
def test_what_has_no_effect(name: str, tmp_path: Path) -> None:
    config, suggestion = MISPLACED[name]
    for message in list_refusals(hostile(config, tmp_path)):
        assert "did you mean " in message
        assert suggestion in message


@pytest.mark.parametrize(
    ("config", "suggestion"),
    [
        ({"session_config": {"session.intra_op.allow_spining": "0"}}, "session.intra_op.allow_spinning"),
        ({"session_options": {"intra_op_threads": 4}}, "intra_op_num_threads"),
        ({"environment": {"OMP_NUM_THREAD": "4"}}, "OMP_NUM_THREADS"),
        ({"providers": [["CUDAExecutionProvider", {"use_tf_32": "1"}]]}, "use_tf32"),
    ],
)
def test_what_is_misspelled(config: dict[str, Any], suggestion: str, tmp_path: Path) -> None:
    """ONNX Runtime would silently accept most of it. A user who trusts the file sees the suggestion, too."""
    path = hostile(config, tmp_path)
    expected = f"ortune does not know this setting; did you mean {suggestion}?"
    with pytest.raises(RecordError) as caught:
        read_record(path)
    assert expected in caught.value.message
    with pytest.warns(TrustWarning) as warned:
        read_record(path, trust=True)
    assert expected in str(warned[0].message)


def test_every_variable_that_a_record_may_set_is_about_speed() -> None:
    variables = [knob for knob in KNOBS.values() if knob.where == "environment"]
    assert not [knob.id for knob in variables if knob.not_tunable and not knob.unsafe]


def test_all_configs_are_checked(tmp_path: Path) -> None:
    evil = Config(environment={"LD_PRELOAD": "/tmp/evil.so"})
    record = make_local_record(TINY_CNN, ONE_THREAD)
    assert record.evidence.winner
    ranked = RankedTrial(config=evil, stage="racing", speedups=(1.0,))
    for place, changed in {
        "$.base": msgspec.structs.replace(record, base=evil),
        "$.evidence.winner.config": msgspec.structs.replace(
            record,
            evidence=msgspec.structs.replace(
                record.evidence, winner=msgspec.structs.replace(record.evidence.winner, config=evil)
            ),
        ),
        "$.search.best[0].config": msgspec.structs.replace(
            record, search=msgspec.structs.replace(record.search, best=(ranked,))
        ),
    }.items():
        with pytest.raises(RecordError) as caught:
            read_record(write(changed, tmp_path / "r.json"))
        assert f"`{place}.environment.LD_PRELOAD`" in caught.value.message


def test_trials_are_checked(tmp_path: Path) -> None:
    trial = Trial(number=1, config=Config(environment={"LD_PRELOAD": "/tmp/evil.so"}), stage="screening")
    record = make_local_record(TINY_CNN, ONE_THREAD)
    trials = msgspec.structs.replace(read_trials(ROOT / "tests" / "data" / "report" / "search.json"), trials=(trial,))
    write_record(record, tmp_path / "r.json", encode_trials(trials))
    with pytest.raises(RecordError, match=r"LD_PRELOAD.*\$\.trials\[0\]\.config\.environment\.LD_PRELOAD"):
        read_trials(tmp_path / "r.json")


def test_sizes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    write_record(record, tmp_path / "r.json", gzip.compress(b" " * 10**6))
    monkeypatch.setattr("ortune.record.trials.MOST_TRIALS_BYTES", 10**5)
    with pytest.raises(RecordError, match="it expands to more than"):
        read_trials(tmp_path / "r.json")
    monkeypatch.setattr("ortune.record.files.MOST_RECORD_BYTES", 1000)
    with pytest.raises(RecordError, match="is not an ortune record: it has more than"):
        read_record(tmp_path / "r.json")


def test_a_proven_record_that_needs_trust_is_not_overwritten(tmp_path: Path) -> None:
    path = hostile({"session_options": {"logid": "x"}, "environment": {"A": "1"}}, tmp_path)
    evidence = msgspec.structs.replace(make_local_record(TINY_CNN, ONE_THREAD).evidence, verdict="inconclusive")
    unproven = msgspec.structs.replace(make_local_record(TINY_CNN, Config()), evidence=evidence)
    before = path.read_bytes()
    assert write_record(unproven, path).kept == tmp_path / "evil.before.json"
    assert (tmp_path / "evil.before.json").read_bytes() == before


COMMANDS = {
    "apply": ("apply", "RECORD"),
    "apply with a model": ("apply", "RECORD", str(TINY_CNN)),
    "verify": ("apply", "RECORD", str(TINY_CNN), "--verify"),
    "export": ("apply", "RECORD", "--to", "python"),
    "offline": ("apply", "RECORD", str(TINY_CNN), "--to", "ort", "-o", "out.onnx"),
    "program": ("apply", "RECORD", "--", "touch", "started"),
    "bench": ("bench", str(TINY_CNN), "RECORD"),
    "gate": ("gate", str(TINY_CNN), f"{TINY_CNN}@RECORD"),
    "profile": ("profile", str(TINY_CNN), "RECORD"),
    "merge": ("merge", "RECORD", "-o", "out.json"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_it(name: str, tmp_path: Path) -> None:
    """No file is written, no program is started."""
    path = hostile({"environment": {"LD_PRELOAD": str(tmp_path / "evil.so")}}, tmp_path)
    done = run_ortune(*(word.replace("RECORD", str(path)) for word in COMMANDS[name]), cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "$.config.environment.LD_PRELOAD" in " ".join(done.stderr.split())
    assert "--trust" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["evil.json"]


def test_a_library_runs_only_with_trust(tmp_path: Path) -> None:
    """The constructor of a preloaded library, which ran before any check."""
    source, library, proof = tmp_path / "evil.c", tmp_path / "evil.so", tmp_path / "proof"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void)\n"
        f'{{ FILE *file = fopen("{proof}", "w"); if (file) fclose(file); }}\n'
    )
    compile_it = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
    if not shutil.which("cc") or subprocess.run(compile_it, check=False).returncode:
        pytest.skip("there is no C compiler")
    path = hostile({"environment": {"LD_PRELOAD": str(library)}}, tmp_path)
    done = run_ortune("apply", path, "--", "true", cwd=tmp_path)
    assert (done.returncode, proof.exists()) == (2, False)
    done = run_ortune("apply", path, "--trust", "--", "true", cwd=tmp_path)
    assert (done.returncode, proof.exists()) == (0, True)
    assert f"trusted: it sets LD_PRELOAD={library}" in done.stderr


def test_python_functions_refuse_it(tmp_path: Path) -> None:
    path = hostile({"session_options": {"optimized_model_filepath": str(tmp_path / "out.onnx")}}, tmp_path)
    for call in (
        lambda: ortune.create_session(TINY_CNN, path),
        lambda: ortune.session_options(path),
        lambda: ortune.run_options(path),
        lambda: ortune.install(path),
        lambda: ortune.verify(path, TINY_CNN),
        lambda: ortune.bench(TINY_CNN, path),
        lambda: ortune.gate(TINY_CNN, f"{TINY_CNN}@{path}"),
    ):
        with pytest.raises(RecordError, match="optimized_model_filepath"):
            call()
    assert not (tmp_path / "out.onnx").exists()
    with pytest.warns(TrustWarning, match="optimized_model_filepath"):
        ortune.create_session(TINY_CNN, path, trust=True)
    assert (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("key", ["beside", "base-python", "head-python"])
def test_programs_in_a_gate_file_need_trust(key: str, tmp_path: Path) -> None:
    path = tmp_path / "ortune.toml"
    path.write_text(f'[gate.a]\nbase = "m.onnx"\nhead = "m.onnx"\n{key} = "/tmp/evil"\n')
    with pytest.raises(UsageError, match=f"line 4: {key} /tmp/evil: this names a program to run") as caught:
        read_gates(str(path))
    assert "--trust" in caught.value.hint
    name = key.replace("-", "_")
    (gate,) = read_gates(str(path), trust=True)
    assert (getattr(gate, name), gate.trust) == ("/tmp/evil", True)
    (gate,) = read_gates(str(path), given={name: sys.executable})
    assert (getattr(gate, name), gate.trust) == (sys.executable, False)


def test_the_command_line_of_a_background_load_is_not_recorded() -> None:
    from ortune.workload.workload import BackgroundProgram

    program = BackgroundProgram.of("/usr/bin/psql --password 'secret word' -c 1")
    assert program.program == "psql"
    assert "secret" not in msgspec.json.encode(program).decode()
    assert program != BackgroundProgram.of("/usr/bin/psql --password other -c 1")
    assert BackgroundProgram.of("'unclosed").program == ""


def test_the_data_of_the_check_is_that_of_the_catalogue() -> None:
    data = (Path(ortune.__file__).parent / "knobs/data/legal.json").read_bytes()
    assert encode_legal(KNOBS) == data, "run: python -m docs.generate"
    for knob in KNOBS.values():
        known = read_legal().get((knob.where, knob.provider, knob.name))
        if known is None:
            assert knob.where in {"config", "dynamic_options"}
            continue
        assert (known.kind, known.values, known.low, known.high) == (knob.kind, knob.values, knob.low, knob.high)
        assert (known.pattern, known.unsafe, known.is_attribute) == (knob.pattern, knob.unsafe, knob.is_attribute)


def test_knobs_that_name_files_need_trust() -> None:
    """By their names and descriptions: a new knob must say whether it does."""
    words = ("file", "path", "folder", "dump", "librar", "lib_")
    harmless = {
        "only_execute_path_to_fetches",
        "session.disable_prepacking",
        "session.load_model_format",
        "session.save_model_format",
        "session.use_memory_mapped_ort_model",
        "session.graph_optimization_level",
        "ep.context_embed_mode",
        "session.moe.offload.allow_file_backing",
        "qnn.disable_file_mapped_weights",
        "qnn.genie_log_level",
        "tensorrt.trt_load_user_initializer",
        "tensorrt.trt_int8_use_native_calibration_table",
        "tensorrt.trt_tactic_sources",
    }
    named = {
        knob.id
        for knob in KNOBS.values()
        if (knob.where, knob.provider, knob.name) in read_legal()
        and any(word in f"{knob.name} {knob.summary}".lower() for word in words)
        and not knob.unsafe
    }
    named = {name for name in named if "profile" not in name.lower() or "file" in name.lower().replace("profile", "")}
    assert named - harmless == set()


def test_what_a_search_may_choose_needs_no_trust() -> None:
    assert not [knob.id for knob in KNOBS.values() if knob.tuned and knob.unsafe]
    assert not list(find_faults(ONE_THREAD))


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "a/../../b", "C:\\x", "\\\\host\\x", "", "a\0b"])
def test_files_of_the_model_are_in_its_folder(name: str, tmp_path: Path) -> None:
    path = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
    document = json.loads(path.read_text())
    document["model"]["files"].append({**document["model"]["files"][0], "name": name})
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"is not the name of a file in the folder of the model.*\$\.model"):
        read_record(path)
