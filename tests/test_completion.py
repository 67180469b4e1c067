"""What shells offer after Tab. Shells that are installed run the scripts that Typer writes for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ortune.cli.completion import complete, prepare_completion
from tests.conftest import long_params, run_ortune
from tests.environments import write_command

WITH_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Lets --show-completion and --install-completion take the name of a shell."""

CASES = {
    "ortune sea": ["search"],
    "ortune search --objec": ["--objective"],
    "ortune search --cal": ["--call"],
    "ortune search --gi": [],
    "ortune plan --headr": ["--headroom"],
    "ortune search model.onnx --objective thr": ["throughput"],
    "ortune search model.onnx --pareto p99,c": ["p99,cpu"],
    "ortune search model.onnx --provider cpu,op": ["cpu,openvino"],
    "ortune search model.onnx --strategy ran": ["random"],
    "ortune search model.onnx --arrivals ": ["poisson", "periodic"],
    "ortune search model.onnx --only execution_m": ["execution_mode"],
    "ortune search model.onnx --fix execution_mo": ["execution_mode=ORT_SEQUENTIAL", "execution_mode=ORT_PARALLEL"],
    "ortune apply tuned.json --to kub": ["kubernetes"],
    "ortune gate --only det": ["detector"],
    "ortune gate a.onnx b.onnx --inconclusive f": ["fail"],
    "ortune knobs execution_m": ["execution_mode"],
}
"""Command lines up to the cursor, and what is offered."""

IN_BASH = ("ortune search --gi", "ortune search model.onnx --arrivals ", "ortune search model.onnx --pareto p99,c")
"""Those that bash completes in each run of the tests: no offer, no word yet, and a part of a word."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ortune.toml").write_text('[gate.detector]\nbase = "a.onnx"\nhead = "b.onnx"\n')
    (tmp_path / "bin").mkdir()
    write_command(tmp_path / "bin" / "ortune", "-P", "-m", "ortune")
    return tmp_path


def variables(folder: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "HOME": str(folder), "ORTUNE_HISTORY": "off", **more}


@pytest.mark.parametrize("line", CASES)
def test_fish(line: str, folder: Path) -> None:
    """Its protocol is a word in each line."""
    given = {
        "_ORTUNE_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = run_ortune(cwd=folder, environment=given)
    assert done.stderr == ""
    assert [splitline.split("\t")[0] for splitline in done.stdout.splitlines() if splitline] == CASES[line]


@pytest.mark.parametrize("line", [*IN_BASH, *long_params(*(line for line in CASES if line not in IN_BASH))])
@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash(line: str, folder: Path) -> None:
    """With the script that --show-completion prints, and with the words that bash makes of a line."""
    offered = ask_bash(line, folder)
    # Without an offer, bash completes files.
    assert offered == CASES[line]


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_gets_what_follows_the_equals_sign(folder: Path) -> None:
    """It takes the sign for a word of its own, and replaces the word after it only."""
    assert ask_bash("ortune search model.onnx --fix execution_mode=ORT_P", folder) == ["ORT_PARALLEL"]
    assert ask_bash("ortune search model.onnx --fix execution_mode=", folder) == ["ORT_SEQUENTIAL", "ORT_PARALLEL"]


def ask_bash(line: str, folder: Path) -> list[str]:
    """Return what bash has in COMPREPLY. Words are split as readline does with bash's COMP_WORDBREAKS."""
    words = line.replace("=", " = ").split(" ")
    words = [word for word in words[:-1] if word] + ([words[-1]] if words[-1] or not line.endswith("=") else [])
    script = run_ortune("--show-completion", "bash", cwd=folder, environment=WITH_SHELL).stdout
    array = " ".join(f"'{word}'" for word in words)
    code = f"""{script}
COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}
_ortune_completion ortune
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", code], capture_output=True, text=True, env=variables(folder), cwd=folder, check=True
    )
    assert done.stderr == ""
    return [splitline for splitline in done.stdout.splitlines() if splitline]


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
@pytest.mark.parametrize("line", ["ortune search model.onnx --pareto p99,c", *long_params("ortune sea")])
def test_fish_itself(line: str, folder: Path) -> None:
    script = run_ortune("--show-completion", "fish", cwd=folder, environment=WITH_SHELL).stdout
    code = f"{script}\ncomplete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code],
        capture_output=True,
        text=True,
        env=variables(folder),
        cwd=folder,
        check=True,
    )
    assert [splitline.split("\t")[0] for splitline in done.stdout.splitlines()] == CASES[line]


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_can_read_the_script(folder: Path) -> None:
    """And what is printed for it: an array of words with descriptions."""
    script = run_ortune("--show-completion", "zsh", cwd=folder, environment=WITH_SHELL).stdout
    given = {"_ORTUNE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "ortune search --"}
    offered = run_ortune(cwd=folder, environment=given).stdout
    assert "--objective" in offered
    for text in (script, offered):
        subprocess.run(["zsh", "--no-rcs", "-n", "-c", text], env=variables(folder), check=True)


@pytest.mark.parametrize(
    ("shell", "files"),
    [
        ("bash", [".bashrc", ".bash_completions/ortune.sh"]),
        ("zsh", [".zshrc", ".zfunc/_ortune"]),
        ("fish", [".config/fish/completions/ortune.fish"]),
    ],
)
def test_install(shell: str, files: list[str], folder: Path) -> None:
    done = run_ortune("--install-completion", shell, cwd=folder, environment={**WITH_SHELL, "HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    assert "_ORTUNE_COMPLETE" in (folder / files[-1]).read_text()
    assert all((folder / file).is_file() for file in files)


@pytest.mark.parametrize(
    ("words", "incomplete", "before"),
    [
        (["ortune", "search", "--fix", "cuda.device_id", "=", "1"], "1", "cuda.device_id="),
        (["ortune", "search", "--fix", "cuda.device_id", "="], "", "cuda.device_id="),
        (["ortune", "search", "--fix", "cuda.dev"], "cuda.dev", ""),
        (["ortune", "search", "--budget", "=", "6"], "6", ""),
    ],
)
def test_words_of_bash(words: list[str], incomplete: str, before: str) -> None:
    given = {"COMP_WORDS": "\n".join([*words, "model.onnx"]), "COMP_CWORD": str(len(words) - 1)}
    changed = prepare_completion({"_ORTUNE_COMPLETE": "complete_bash", **given})
    assert changed["COMP_WORDS"].split("\n")[int(changed["COMP_CWORD"])] == incomplete
    assert changed["ORTUNE_COMPLETE_AFTER"] == before
    assert prepare_completion(given) == {}


def test_values_of_several_settings() -> None:
    offered = [word for word, _ in complete("KNOB=VALUE,...", "intra_op_num_threads=1,execution_mode=")]
    assert offered == [f"intra_op_num_threads=1,execution_mode={mode}" for mode in ("ORT_SEQUENTIAL", "ORT_PARALLEL")]


def test_a_broken_file_of_gates_offers_nothing(folder: Path) -> None:
    (folder / "ortune.toml").write_text("[gate")
    given = {"_ORTUNE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "ortune gate --only "}
    done = run_ortune(cwd=folder, environment=given)
    assert done.stderr == ""
    assert "detector" not in done.stdout
