"""Plans that lie, exaggerate or confuse, through every command and function that reads plans of either kind.

Each ends with a result or a message, never with a traceback, and in a time that does not depend on what a plan says.
"""

from __future__ import annotations

import copy
import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortune
from ortune.export import list_targets
from ortune.planning.files import encode_plan
from ortune.sanitize import LOG_COMMAND
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_host_plan_apply import make_host_plan
from tests.test_hostile_kinds import (
    BIDI,
    NESTED,
    Change,
    Document,
    check_call,
    duplicate,
    put,
    put_all,
    run_commands,
    take_turns,
)

ONE, SEVERAL = "one model", "several models"

COMMANDS_OF_LOGS = "##[error]x ##vso[task.complete]y ##teamcity[z]\n::set-output name=a::b\r\n::stop-commands::t"
TERMINAL = "\x1b]0;title\x07\x1b[2J\x9b31m\x1bP$q\x1b\\\x08\x08"
FORMATS = "%s%n%(x)s{0}{trust}{output=FILE}{value!r:>{width}}${{ secrets.X }}[/red][bold]:smile:"
SHELL = "$(touch pwned)`touch pwned`';touch pwned;'\"|&\\"
TRAVERSAL = "../../../../etc/passwd"

FIGURES = ("estimate", "low", "high", "p50_ns", "p99_ns", "cpu_cores", "cpu_ns_per_call", "rate_per_s", "utilization")
TEXTS = ("reason", "text", "problem", "path", "name", "cpu_model", "onnxruntime", "python", "title", "origin")


def estimate(value: Any, low: Any, high: Any, **more: Any) -> Document:
    return {"estimate": value, "low": low, "high": high, "confidence": 0.95, "source": "measured", **more}


def join(*changes: Change) -> Change:
    def change(document: Document) -> None:
        for step in changes:
            step(document)

    return change


def repeat_row(n: int) -> Change:
    def change(document: Document) -> None:
        document["rows"] = [document["rows"][-1]] * n
        if "best" in document:
            document["best"] = dict.fromkeys(document["best"], n - 1)
        document["recommended"] = n - 1

    return change


def repeat_models(n: int) -> Change:
    """Return a change that makes a plan one for so many models, all of them the same."""

    def change(document: Document) -> None:
        document["models"] = [document["models"][0]] * n
        for row in document["rows"]:
            row["models"] = [row["models"][0]] * n
        document["rejected"] = []

    return change


def add_lengths(**changes: Any) -> Change:
    policy = {
        "policy": "sorted by tokens",
        "parameter": 256,
        "items_per_s": estimate(300, 290, 310),
        "predicted_per_s": 310.0,
        "padding": 0.1,
        "n_calls": 2,
        "longest_call_ns": 5e6,
    }
    lengths = {
        "text": "uniform:8-64",
        "lengths": [8, 64],
        "maximum": 64,
        "place": 1,
        "n_points": 4,
        "policies": [policy],
        "recommended": 0,
        "reference": 0,
    }
    own = {name: value for name, value in changes.items() if name in policy}
    others = {name: value for name, value in changes.items() if name not in policy}
    return put({**lengths, **others, "policies": [{**policy, **own}]}, "lengths")


AT_RATE = {"rate_per_s": 1e-280, "p50_ns": 1.0, "p99_ns": 1.0, "utilization": 2.0**60, "source": "predicted"}

HOSTILE: dict[str, tuple[str, Change]] = {
    "a capacity below any rate": (
        ONE,
        join(put(3, "rows", 1, "deployment", "clients"), put(estimate(1e-6, 1e-9, 1e-3), "rows", 1, "capacity")),
    ),
    "a capacity of nothing": (ONE, put(estimate(0, 0, 0), "rows", 1, "capacity")),
    "a capacity without end": (ONE, put(estimate(2.0**60, 1e-280, None), "rows", 1, "capacity")),
    "a reversed capacity": (ONE, put(estimate(5, 2.0**60, 1e-280), "rows", 1, "capacity")),
    "a ratio of nothing": (ONE, put(estimate(0, 0, 0), "rows", 1, "ratio")),
    "a reversed ratio": (ONE, join(put(None, "rows", 1, "capacity"), put(estimate(2, 9, 1e-280), "rows", 1, "ratio"))),
    "the smallest figures": (ONE, put_all(1e-280, *FIGURES)),
    "the largest figures": (ONE, put_all(2.0**60, *FIGURES)),
    "figures of nothing": (ONE, put_all(0, *FIGURES)),
    "memory without end": (ONE, put_all(1 << 60, "memory_bytes")),
    "a rate at which batches are small": (
        ONE,
        join(
            put({"max_batch": 65_536, "max_delay_us": 10_000_000}, "rows", 1, "deployment", "batching"),
            put(AT_RATE, "rows", 1, "at_rate"),
        ),
    ),
    "a quota of almost nothing": (ONE, put(1e-300, "host", "cpu_quota")),
    "a negative quota": (ONE, put(-1e300, "host", "cpu_quota")),
    "no CPUs": (ONE, put_all(0, "n_logical", "n_cores", "n_usable", "n_usable_cores")),
    "CPUs of no host": (ONE, put([[1 << 53], [(1 << 53) - 1]], "rows", 1, "deployment", "placement", "cpus")),
    "a CPU many times": (ONE, put([[0] * 50_000] * 2, "rows", 1, "deployment", "placement", "cpus")),
    "hosts without end": (ONE, put_all(10**9, "replicas")),
    "as many rows as a plan has": (ONE, repeat_row(1000)),
    "lengths without end": (ONE, add_lengths(lengths=[1 << 53] * 60_000, maximum=1 << 53, text=SHELL)),
    "a group without end": (ONE, add_lengths(parameter=1 << 53, predicted_per_s=-1e308, padding=1e308)),
    "an unusual outlook": (ONE, join(put(1 - 2**-53, "headroom"), put(0.0, "rate_per_s"), put(0, "price_per_hour"))),
    "a seed without end": (ONE, put(10**4000, "seed")),
    "a time far away": (ONE, put("9998-12-31T23:59:59+14:00", "started")),
    "texts in other directions": (ONE, put_all(BIDI, *TEXTS)),
    "commands of logs": (ONE, put_all(COMMANDS_OF_LOGS, *TEXTS)),
    "escapes of terminals": (ONE, put_all(TERMINAL, *TEXTS)),
    "formats": (ONE, put_all(FORMATS, *TEXTS)),
    "a shell": (ONE, put_all(SHELL, *TEXTS)),
    "a path elsewhere": (ONE, put(TRAVERSAL, "model", "path")),
    "a path of a process": (ONE, put("/proc/self/fd/0", "model", "path")),
    "long texts": (ONE, put_all("x" * 60_000, *TEXTS)),
    "a regular expression": (
        ONE,
        put({"program": "p", "sha256": "0" * 64, "kind": "metric", "metric": "(a+)+$"}, "workload", "program"),
    ),
    "a server elsewhere": (
        ONE,
        put({"program": "p", "sha256": "0" * 64, "kind": "server", "url": "http://[::1]/"}, "workload", "program"),
    ),
    "a rate of almost nothing": (SEVERAL, put(1e-300, "models", 0, "demand", "rate_per_s")),
    "a rate without end": (SEVERAL, put(1.7e308, "models", 0, "demand", "rate_per_s")),
    "a scale of almost nothing": (
        SEVERAL,
        join(
            put(1e-200, "models", 0, "demand", "rate_per_s"),
            put(estimate(1e-100, 1e-180, 1e-90), "rows", 1, "scale"),
        ),
    ),
    "a scale without end": (SEVERAL, put(estimate(2.0**60, 1e-280, None), "rows", 1, "scale")),
    "nothing is used": (SEVERAL, put_all(0, "utilization", "served_per_s", "cpu_ns_per_call")),
    "hardly anything is used": (SEVERAL, put_all(1e-280, "utilization", "served_per_s")),
    "the largest figures of several": (SEVERAL, put_all(2.0**60, "utilization", "served_per_s", "cpu_ns_per_call")),
    "names that are paths": (
        SEVERAL,
        join(put(TRAVERSAL, "models", 0, "demand", "name"), put(f"{SHELL}{TERMINAL}", "models", 1, "demand", "name")),
    ),
    "names that are the same": (SEVERAL, put_all("a", "name")),
    "names of commands of logs": (SEVERAL, put_all(COMMANDS_OF_LOGS, *TEXTS)),
    "names in other directions": (SEVERAL, put_all(BIDI, *TEXTS)),
    "as many models as a plan has": (SEVERAL, repeat_models(64)),
    "as many ways to share as a plan has": (SEVERAL, repeat_row(1000)),
    "limits of all kinds": (
        SEVERAL,
        put({"figure": "score", "bound": 1.7e308, "text": f"{FORMATS}{BIDI}"}, "models", 0, "demand", "slo"),
    ),
}
"""Plans that are legal, however odd. Some are not: then there must be a message."""

ILLEGAL: dict[str, tuple[str, Change, str]] = {
    "not a number": (ONE, put(float("nan"), "rows", 1, "throughput", "estimate"), "is a plan, but it cannot"),
    "an infinite number": (ONE, put(float("inf"), "rows", 1, "throughput", "high"), "is a plan, but it cannot"),
    "a number of hosts without end": (ONE, put(10**400, "rows", 1, "replicas"), "replicas"),
    "memory that is too large": (ONE, put(10**400, "rows", 1, "memory_bytes"), "figures"),
    "a length without end": (ONE, add_lengths(lengths=[10**4000]), "lengths"),
    "a negative length": (ONE, add_lengths(lengths=[-1]), "lengths"),
    "a group of a negative size": (ONE, add_lengths(parameter=-1), "parameter"),
    "calls without end": (ONE, add_lengths(n_calls=10**4000), "n_calls"),
    "more rows than a plan has": (ONE, repeat_row(1001), "1000"),
    "a lack of rows": (ONE, lambda document: document.pop("rows"), "recommended"),
    "a lack of a model": (ONE, lambda document: document.pop("model"), "model"),
    "a list in place of an object": (ONE, put([], "rows", 1, "deployment"), "deployment"),
    "a text in place of a number": (ONE, put("1e9", "rows", 1, "p50_ns"), "p50_ns"),
    "a library": (
        ONE,
        put({"environment": {"LD_PRELOAD": "/tmp/evil.so"}}, "rows", 0, "deployment", "config"),
        "LD_PRELOAD",
    ),
    "a library of a deployment that was tried": (
        ONE,
        put(
            [{"deployment": {"config": {"environment": {"LD_PRELOAD": "/tmp/evil.so"}}}}],
            "screened",
        ),
        "LD_PRELOAD",
    ),
    "a file elsewhere": (
        ONE,
        put([{"name": name, "size_bytes": 1, "sha256": "0"} for name in ("m", TRAVERSAL)], "model", "files"),
        "files",
    ),
    "a time before all": (ONE, put("0001-01-01", "started"), "year"),
    "more models than a plan has": (SEVERAL, repeat_models(65), "models"),
    "a rate of nothing": (SEVERAL, put(0, "models", 0, "demand", "rate_per_s"), "rate"),
    "requests without end": (SEVERAL, put(10**4000, "rows", 1, "models", 0, "n_requests"), "n_requests"),
    "negative cores": (SEVERAL, put(-1, "n_cores"), "n_cores"),
    "a setting that is none": (
        SEVERAL,
        put({"session_options": {"__class__": "x"}}, "rows", 1, "models", 1, "deployment", "config"),
        "__class__",
    ),
}
"""Plans that must not be read, and a word of the message."""

TEXTS_OF_PLANS: dict[str, Callable[[str], str]] = {
    "rows twice": duplicate("rows", '"rows": []'),
    "rows twice, once escaped": duplicate("rows", r'"\u0072ows": []'),
    "a schema twice": duplicate("schema", '"schema": 1'),
    "another plan after it": lambda text: text + text,
    "a byte order mark": lambda text: "\ufeff" + text,
    "an escaped surrogate": lambda text: text.replace('"reason": "', r'"reason": "\ud800'),
    "nesting in an unknown field": lambda text: text.replace("{", f'{{"x": {NESTED},', 1),
    "nesting in place of rows": lambda text: text.replace('"rows": [', f'"rows": {NESTED}, "x": [', 1),
    "a number without end": lambda text: text.replace('"budget_s": ', f'"budget_s": {"9" * 5000}'),
    "a truncated text": lambda text: text[: len(text) // 2],
    "a plan in a bundle": lambda text: f'{{"schema": 1, "records": [{text}]}}',
    "a plan that is a record": lambda text: text.replace("{", '{"evidence": {}, "search": {}, "config": {},', 1),
    "a list of plans": lambda text: f"[{text}]",
    "a schema to come": lambda text: text.replace('"schema": ', '"schema": 10000000', 1),
    "empty lists": lambda text: text.replace("{", '{"x": [' + "[]," * 1_100_000 + "[]],", 1),
    "a text without end": lambda text: text.replace('"reason": "', '"reason": "' + "a" * (1 << 20)),
}
"""Texts of plans that must not be read."""


@functools.cache
def make_document(kind: str) -> Document:
    plan = make_plan(DEPLOYMENTS["pinned"]) if kind == ONE else make_host_plan()
    return dict(json.loads(encode_plan(plan)))


def write_hostile(kind: str, change: Change, path: Path) -> Path:
    document = copy.deepcopy(make_document(kind))
    change(document)
    path.write_text(json.dumps(document))
    return path


IN_CI = {"GITHUB_ACTIONS": "true"}

COMMANDS: dict[str, tuple[Any, ...]] = {
    "check": ("apply", "p.json", TINY_CNN, "--any-host"),
    "check as JSON": ("apply", "p.json", TINY_CNN, "--any-host", "--json"),
    "program": ("apply", "p.json", "--any-host", "--", "true"),
    "program with trust": ("apply", "p.json", "--trust", "--pick", "1", "--explain", "--", "true", "{workers}"),
    "canary": ("apply", "p.json", "--any-host", "--canary", "50%", "--metrics", "m", "--", "true"),
    "shell": ("apply", "p.json", TINY_CNN, "--to", "uvicorn"),
    "file": ("apply", "p.json", TINY_CNN, "--to", "kubernetes", "-o", "k.yaml"),
    "verify": ("apply", "p.json", TINY_CNN, "--verify", "--budget", "2s"),
    "bench": ("bench", TINY_CNN, "p.json", "--budget", "2s"),
    "gate": ("gate", f"{TINY_CNN}@default", f"{TINY_CNN}@p.json", "--budget", "2s"),
    "merge": ("merge", "p.json", "p.json", "-o", "b.json"),
    "report": ("report", "p.json", "-o", "x.html"),
    "search": ("search", TINY_CNN, "-o", "p.json", "--budget", "2s"),
    "plan": ("plan", "p.json"),
    "plan of several": ("plan", "p.json=1/s", f"{TINY_CNN}=1/s"),
    "deploy": ("fleet", "deploy", "--target", "ssh", "--host-class", "p.json", "--", TINY_CNN),
}


def check_end(command: str, done: subprocess.CompletedProcess[str]) -> None:
    """Check how a command ended, and that what it prints is text to all who may read it."""
    assert done.returncode in {0, 1, 2, 3}, (command, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (command, done.stderr)
    text = done.stdout + done.stderr
    assert all(character.isprintable() or character == "\n" for character in text), command
    assert not LOG_COMMAND.search(text), command
    # Gates have annotations of their own.
    assert command == "gate" or not re.search(r"^\s*::", text, re.MULTILINE), (command, text)
    assert done.returncode != 2 or "error" in done.stderr, (command, done.stderr)


FUNCTIONS: dict[str, Callable[[Path], object]] = {
    "read_plan": ortune.read_plan,
    "read_host_plan": ortune.read_host_plan,
    "session_options": lambda path: ortune.session_options(path, model=str(TINY_CNN), any_host=True),
    "run_options": lambda path: ortune.run_options(path, model=str(TINY_CNN), any_host=True),
    **{
        f"export {target.name} {pick}": functools.partial(
            ortune.export_config, to=target.name, model=TINY_CNN, pick=pick
        )
        for target in list_targets()
        for pick in (None, 1, "memory")
    },
}
"""What reads plans in the Python interface."""


@pytest.mark.parametrize(("name", "functions"), take_turns(HOSTILE, FUNCTIONS, 4))
def test_through_python(name: str, functions: list[str], tmp_path: Path) -> None:
    kind, change = HOSTILE[name]
    path = write_hostile(kind, change, tmp_path / "p.json")
    for function in functions:
        check_call(FUNCTIONS[function], path)


@pytest.mark.parametrize(("name", "commands"), take_turns(HOSTILE, COMMANDS, 1))
def test_through_commands(name: str, commands: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    kind, change = HOSTILE[name]
    path = write_hostile(kind, change, folder / "p.json")
    for command, done in run_commands(COMMANDS, commands, path, IN_CI):
        check_end(command, done)
    assert [entry.name for entry in tmp_path.iterdir()] == ["work"]
    assert not (folder / "pwned").exists()


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_must_not_be_read(name: str, tmp_path: Path) -> None:
    kind, change, word = ILLEGAL[name]
    path = write_hostile(kind, change, tmp_path / "p.json")
    with pytest.raises(ortune.OrtuneError) as caught:
        ortune.session_options(path, any_host=True)
    assert word in caught.value.message
    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("kind", [ONE, SEVERAL])
@pytest.mark.parametrize("name", TEXTS_OF_PLANS)
def test_texts_that_are_no_plans(name: str, kind: str, tmp_path: Path) -> None:
    text = json.dumps(make_document(kind))
    changed = TEXTS_OF_PLANS[name](text)
    assert changed != text
    path = tmp_path / "p.json"
    path.write_bytes(changed.encode(errors="surrogatepass"))
    for read in (
        ortune.read_plan,
        ortune.read_host_plan,
        ortune.read_record,
        ortune.session_options,
    ):
        with pytest.raises(ortune.OrtuneError) as caught:
            read(path)
        assert len(caught.value.message) < 1000


@pytest.mark.parametrize("kind", [ONE, SEVERAL])
def test_only_plans_of_its_own_kind_are_replaced(kind: str, tmp_path: Path) -> None:
    """Also by planning. A record, or a plan that cannot be read, may be all that the user has."""
    models = [TINY_CNN] if kind == ONE else [f"{TINY_CNN}=1/s", f"{TINY_ENCODER}=1/s"]
    path = tmp_path / "p.json"
    other = SEVERAL if kind == ONE else ONE
    damaged = json.dumps(make_document(kind))[:-1]
    record = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json").read_bytes()
    for content in (record, damaged.encode(), json.dumps(make_document(other)).encode(), b'{"rows": 1}'):
        path.write_bytes(content)
        done = run_ortune("plan", *models, "-o", "p.json", "--budget", "2s", cwd=tmp_path, simulate=True)
        assert done.returncode == 2, done.stdout
        assert "was not written by ortune" in done.stderr
        assert path.read_bytes() == content
