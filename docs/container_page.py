"""Runs the commands of how-to/container.md under a real CPU quota, and writes what they print into the page.

    python -m docs.container_page

A cgroup with a quota of one CPU takes the place of the container, so that this needs a Linux host on which the user may
create cgroups. Nothing else may run meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.loads import cpu_quota
from models.build import build

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "how-to" / "container.md"
MODEL = "squeezenet"
QUOTA = 1.0
COLUMNS = 100

APP = """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
image = np.zeros((1, 3, 224, 224), np.float32)
print(session.run(None, {session.get_inputs()[0].name: image})[0].shape)
"""

COMMANDS = (
    "ortune search model.onnx -o tuned.json",
    "ortune-apply tuned.json --explain -- python app.py",
)
"""They are part of commands of the page. Each has a transcript in the part with its number."""


def install_apply(folder: Path) -> Path:
    """Install the package ortune-apply in a folder, and return the folder of its command."""
    package = ROOT / "ortune" / "apply" / "distribution"
    pip = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), str(package)], check=True)
    return folder / "bin"


def run(prefix: list[str], command: str, folder: Path, apply_folder: Path) -> str:
    """Run a command in a folder under the quota, and return what it prints.

    Args:
        prefix: What runs a command under the quota.
        command: The command.
        folder: The folder.
        apply_folder: The folder of the command ortune-apply.

    Raises:
        SystemExit: It fails.
    """
    paths = (apply_folder, Path(sys.executable).parent, os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(map(str, paths)), "COLUMNS": str(COLUMNS)}
    # Earlier searches on this host would be hints.
    environment |= dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), str(folder))
    if command.startswith("ortune-apply"):
        environment["PYTHONPATH"] = str(apply_folder.parent)
    done = subprocess.run(
        [*prefix, *command.split()],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{command} fails with exit code {done.returncode}:\n{done.stdout}")
    return "\n".join(line.rstrip() for line in (f"$ {command}", *done.stdout.strip("\n").splitlines()))


def replace_part(page: str, name: str, text: str) -> str:
    """Return the page with another transcript in the part of this name."""
    pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)"
    assert re.search(pattern, page, re.DOTALL), f"the page has no part {name}"
    return re.sub(pattern, lambda found: f"{found[1]}```\n{text}\n```\n{found[2]}", page, flags=re.DOTALL)


def main() -> None:
    """Run the commands, and write the page."""
    with cpu_quota(QUOTA) as prefix, tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as tools:
        if prefix is None:
            raise SystemExit("a quota needs a cgroup, which cannot be created here")
        folder, apply_folder = Path(name), install_apply(Path(tools))
        shutil.copy(build(MODEL), folder / "model.onnx")
        (folder / "app.py").write_text(APP)
        page = PAGE.read_text()
        for number, command in enumerate(COMMANDS, 1):
            assert command in page, f"the page does not have the command {command}"
            page = replace_part(page, f"transcript {number}", run(prefix, command, folder, apply_folder))
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
