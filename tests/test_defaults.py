"""Defaults of options in `ortune.toml` and pyproject.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortune import UsageError
from ortune.cli.defaults import TABLES, read_defaults
from ortune.requests import COMMANDS, HostPlanRequest, PlanRequest, ProgramSearchRequest, SearchRequest
from tests.conftest import TINY_CNN, run_ortune


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "ortune.toml") -> None:
    Path(name).write_text(text)


def test_a_search_takes_them(folder: Path) -> None:
    write('[search]\nclients = 2\nbudget = "30s"\nhistory = false\n')
    done = run_ortune("search", TINY_CNN, "-o", "tuned.json", cwd=folder, simulate=True)
    assert done.returncode == 0, done.stderr
    assert "From [search] of ortune.toml or pyproject.toml: --clients, --budget, --history" in done.stderr
    record = json.loads((folder / "tuned.json").read_text())
    assert record["workload"]["load"]["clients"] == 2
    assert record["search"]["budget_s"] == 30


def test_the_command_line_has_precedence(folder: Path) -> None:
    write('[search]\nclients = 2\nbudget = "30s"\n')
    done = run_ortune("search", TINY_CNN, "--clients", "3", "-o", "tuned.json", cwd=folder, simulate=True)
    assert "pyproject.toml: --budget\n" in done.stderr
    assert json.loads((folder / "tuned.json").read_text())["workload"]["load"]["clients"] == 3


def test_a_setting_on_the_command_line_replaces_that_of_the_file(folder: Path) -> None:
    write('[space]\nfix = ["intra_op_num_threads=2"]\n')
    done = run_ortune("space", TINY_CNN, "--fix", "intra_op_num_threads=1", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    fixed = [load["config"]["session_options"] for load in json.loads(done.stdout)["candidates"]]
    assert {options["intra_op_num_threads"] for options in fixed} == {1}


def test_quiet(folder: Path) -> None:
    write("[search]\nclients = 2\n")
    done = run_ortune("search", TINY_CNN, "-q", "-o", "tuned.json", cwd=folder, simulate=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_both_files() -> None:
    """ortune.toml has precedence, as for gates."""
    write("[search]\nclients = 2\n")
    write('[tool.ortune.search]\nclients = 3\nseed = 4\n[tool.other]\nsearch = "no table"\n', "pyproject.toml")
    assert read_defaults("search", SearchRequest) == {"clients": 2, "seed": 4}


def test_options_of_another_form_are_left_out() -> None:
    write('[search]\nstrategy = "tpe"\nwarmup = 3\nallow-approximate = true\nmaximize = true\n')
    write('[search]\nstrategy = "tpe"\nmaximize = true\n')
    assert read_defaults("search", SearchRequest) == {"strategy": "tpe"}
    assert read_defaults("search", ProgramSearchRequest)["maximize"] is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[search]\nclient = 2", "ortune.toml, line 2: client is not an option.\nDid you mean clients?"),
        ('[search]\n\nclients = "many"', "ortune.toml, line 3: clients many: is not a whole number."),
        ('[search]\nbudget = "soon"', "ortune.toml, line 2: budget soon: is not a duration."),
        ('[search]\nbeside = "rm -rf /"', "ortune.toml, line 2: beside rm -rf /: this names a program to run."),
        (
            '[search]\nfix = ["optimized_model_filepath=/home/u/.bashrc"]',
            "ortune.toml, line 2: fix optimized_model_filepath",
        ),
        ('[search]\ntune = {"tensorrt.trt_engine_decryption_lib_path" = "/tmp/x.so"}', "ortune.toml, line 2: tune"),
        ('[search]\noutput = "x"', "ortune.toml, line 2: output cannot be in a file."),
        ('[search]\nmodel = "x.onnx"', "ortune.toml, line 2: model cannot be in a file."),
        ("search = 3", "ortune.toml, line 1: search is not a table."),
        ("[search", "ortune.toml is not valid TOML"),
    ],
)
def test_errors(text: str, message: str) -> None:
    write(text)
    with pytest.raises(UsageError) as caught:
        read_defaults("search", SearchRequest)
    assert str(caught.value).startswith(message), str(caught.value)


def test_the_form_that_runs_decides() -> None:
    """Targets of several models are no target of one."""
    write('[plan]\nslo = ["p99<50ms", "b=p99<200ms"]\n')
    assert read_defaults("plan", HostPlanRequest)["slo"] == ["p99<50ms", "b=p99<200ms"]
    with pytest.raises(UsageError, match=r"ortune\.toml, line 2: slo"):
        read_defaults("plan", PlanRequest)


def test_an_error_ends_the_command(folder: Path) -> None:
    write("[space]\nfix = 3\n")
    done = run_ortune("space", TINY_CNN, cwd=folder)
    assert done.returncode == 2
    assert "ortune.toml, line 2" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_tables_are_commands() -> None:
    assert set(TABLES) <= {name.split()[0] for name in COMMANDS}


def test_gates_beside_defaults(folder: Path) -> None:
    """Gates in pyproject.toml are found although ortune.toml has other tables."""
    write("[search]\nclients = 2\n")
    write('[tool.ortune.gate.a]\nbase = "a.onnx"\nhead = "b.onnx"\n', "pyproject.toml")
    done = run_ortune("gate", "--all", cwd=folder)
    assert "a.onnx" in done.stderr + done.stdout
