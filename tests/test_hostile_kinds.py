"""Records that lie, exaggerate or confuse, through every command and function that reads records.

Each ends with a result or a message, never with a traceback, and in a time that does not depend on what a record says.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ortune
from ortune import OrtuneError
from ortune.export import list_targets
from ortune.planning.read import read_configs
from ortune.record.files import encode_record, parse_document, read_trials
from ortune.report.source import read_source
from tests.conftest import TINY_CNN, run_ortune
from tests.records import ONE_THREAD, make_local_record

Document = dict[str, Any]
Change = Callable[[Document], None]


BIDI = "a\u202egpj.\u2066exe\u200b\ufeffé\u0301" + "\U000e0041" * 3
LONG = "x" * 60_000


def interval(estimate: Any, low: Any, high: Any, confidence: Any = 0.95, **more: Any) -> Document:
    return {"estimate": estimate, "low": low, "high": high, "confidence": confidence, **more}


def speedup(
    estimate: Any, low: Any, high: Any, confidence: Any = 0.95, n_pairs: Any = 9, n_launches: Any = 3
) -> Document:
    return interval(estimate, low, high, confidence, n_pairs=n_pairs, n_launches=n_launches)


def put(value: Any, *path: Any) -> Change:
    """Return a change that puts a value at a place."""

    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def put_all(value: Any, *names: str) -> Change:
    """Return a change that puts a value into all fields of these names."""

    def visit(place: Any) -> None:
        if isinstance(place, dict):
            for name, child in place.items():
                visit(child)
                if name in names and not isinstance(child, (dict, list)):
                    place[name] = value
        elif isinstance(place, list):
            for child in place:
                visit(child)

    return visit


def make_front(n_points: int, **speedups: Document) -> Change:
    def change(document: Document) -> None:
        summary = document["evidence"]["winner"]
        point = {"summary": summary, "speedups": speedups or {"p50": speedup(1.2, 1.1, 1.3)}}
        document["evidence"] |= {"front": [copy.deepcopy(point) for _ in range(n_points)], "verdict": "trade_off"}

    return change


def make_hosts(n_listed: int, n_hosts: int, **changes: Any) -> Change:
    one = interval(1.2, 1.1, 1.3, host="01234567", n_launches=3)
    hosts = {
        "verdict": "faster",
        "n_hosts": n_hosts,
        "speedup": interval(1.2, 1.1, 1.3),
        "another": interval(1.2, 0.9, 1.5),
        "worst": interval(1.1, 1.0, 1.2, host="01234567"),
        "hosts": [one] * n_listed,
    }
    return put({**hosts, **changes}, "evidence", "hosts")


def add_occasions(count: int, **changes: Any) -> Change:
    occasion = {"started": "2026-01-01T00:00:00+00:00", "speedup": {**speedup(1.2, 1.1, 1.3), **changes}}
    return put([occasion] * count, "evidence", "occasions")


def make_program(**fields: Any) -> Change:
    program = {"program": "python", "sha256": "0" * 64, "kind": "call", "call": "os:system", **fields}
    return put(program, "workload", "program")


LOAD = {"scenario": "multi-client", "clients": 1024, "sessions": 64}

LEGAL: dict[str, Change] = {
    "negative zero": put_all(-0.0, "p50_ns", "mean_ns", "estimate", "low", "high", "speedup", "wall_s", "calls_per_s"),
    "zeros": put_all(0, "p50_ns", "p90_ns", "p95_ns", "p99_ns", "mean_ns", "calls_per_s", "cpu_ns_per_call", "load_ns"),
    "largest numbers": put_all(
        1.7e308, "p50_ns", "p99_ns", "mean_ns", "calls_per_s", "budget_s", "wall_s", "max_error"
    ),
    "smallest numbers": put_all(5e-324, "p50_ns", "mean_ns", "calls_per_s", "wall_s", "foreign_share_mean", "drift"),
    "negative numbers": put_all(-1e9, "p50_ns", "p99_ns", "mean_ns", "budget_s", "wall_s", "calls_per_s", "max_error"),
    "counts at their limit": put_all(
        1 << 53, "n_blocks", "n_pairs", "n_launches", "n_tried", "n_candidates", "n_cores"
    ),
    "a million CPUs": put_all(1_000_000, "n_logical", "n_cores", "n_usable", "n_usable_cores", "n_packages"),
    "no CPUs": put_all(0, "n_logical", "n_cores", "n_usable", "n_usable_cores", "n_packages", "n_numa_nodes"),
    "a quota of nothing": put(0.0, "host", "cpu_quota"),
    "a negative quota": put(-1e300, "host", "cpu_quota"),
    "an interval that says nothing": put(speedup(1.39, 1e-9, 11020910035.5), "evidence", "speedup"),
    "an estimate outside": put(speedup(3.0, 1.4, 1.6), "evidence", "speedup"),
    "certainty": put(speedup(1.5, 1.4, 1.6, 1 - 1e-16), "evidence", "speedup"),
    "no launches": put(speedup(1.5, 1.4, 1.6, 0.95, 0, 0), "evidence", "speedup"),
    "a tiny ratio": put(speedup(1e-9, 1e-300, 1e-9), "evidence", "speedup"),
    "a huge ratio": put(speedup(1e9, 1e-9, 1e300), "evidence", "speedup"),
    "a proof without an interval": put(None, "evidence", "speedup"),
    "a gain that is a loss": put(speedup(0.5, 0.4, 0.6), "evidence", "speedup"),
    "texts in other directions": put_all(
        BIDI, "reason", "objective", "cpu_model", "path", "program", "onnxruntime", "name"
    ),
    "long texts": put_all(
        LONG, "reason", "objective", "cpu_model", "path", "onnxruntime", "python", "strategy", "ended_early"
    ),
    "texts that are numbers": put_all("NaN", "reason", "objective", "cpu_model", "path", "onnxruntime", "python"),
    "empty texts": put_all("", "reason", "objective", "cpu_model", "path", "onnxruntime", "python", "system", "id"),
    "combining names of inputs": lambda document: document["workload"].update(
        inputs={f"{name}{BIDI}": data for name, data in document["workload"]["inputs"].items()}
    ),
    "a path of a share": put("\\\\host\\share\\m.onnx", "model", "path"),
    "a path of a process": put("/proc/self/fd/0", "model", "path"),
    "a path of a home": put("~root/m.onnx", "model", "path"),
    "a path with variables": put("$HOME/${PATH}/%USERPROFILE%/m.onnx", "model", "path"),
    "a path with line breaks": put("m\n::error::x\r\n.onnx", "model", "path"),
    "a front of many points": make_front(100),
    "a front without speedups": make_front(3, nonsense=speedup(1.2, 1.1, 1.3)),
    "a knob and its variable": put(
        {
            "session_options": {"intra_op_num_threads": 3},
            "environment": {"ORT_INTRA_OP_NUM_THREADS": "2", "OMP_NUM_THREADS": "9999"},
            "global_thread_pool": {"intra_op_num_threads": 9999, "inter_op_num_threads": 9999},
        },
        "config",
    ),
    "pools of all sizes": put({"workers": 1024, "batch": 65_536, "per_session": [{}] * 100}, "config"),
    "an affinity for other CPUs": put(
        {
            "session_options": {"intra_op_num_threads": 2},
            "session_config": {"session.intra_op_thread_affinities": "1-16384"},
        },
        "config",
    ),
    "another provider": put(
        {"providers": [["TensorrtExecutionProvider", {"trt_fp16_enable": "true"}], ["CPUExecutionProvider", {}]]},
        "config",
    ),
    "a provider many times": put({"providers": [["CPUExecutionProvider", {}]] * 100}, "config"),
    "all clients": put(LOAD, "workload", "load"),
    "the highest rate": put({"scenario": "server", "rate_per_s": 1e6, "arrivals": "poisson"}, "workload", "load"),
    "the lowest rate": put({"scenario": "server", "rate_per_s": 0.2 / 64, "arrivals": "periodic"}, "workload", "load"),
    "huge shapes": put(
        {"image": {"dtype": "float32", "shapes": [[1 << 40, 3, 32, 32]], "origin": ""}}, "workload", "inputs"
    ),
    "shapes of no input": put({"x": {"dtype": "object", "shapes": [[]], "origin": BIDI}}, "workload", "inputs"),
    "shapes of many samples": put(
        {"image": {"dtype": "float32", "shapes": [[1, 3, 32, 32]] * 5000, "origin": ""}}, "workload", "inputs"
    ),
    "all batches": put(list(range(1, 1001)), "workload", "batches"),
    "all objectives": put(["p50"] * 100, "workload", "objectives"),
    "many limits": put([{"figure": "p99", "bound": -1e308, "text": BIDI}] * 100, "workload", "limits"),
    "many hosts": make_hosts(32, 1 << 53),
    "hosts with a wide interval": make_hosts(2, 2, another=interval(1.0, 1e-300, 1e300)),
    "many occasions": add_occasions(3000),
    "occasions without proof": add_occasions(3, low=1e-300, high=1e300),
    "a program of the system": make_program(),
    "a metric that explodes": make_program(kind="metric", metric="(a+)+$|(x|x)*y"),
    "a server elsewhere": make_program(kind="server", url="http://169.254.169.254/latest/meta-data"),
    "a seed without end": put(10**30, "search", "seed"),
    "a budget without end": put(1e300, "search", "budget_s"),
    "a time far away": put("9998-12-31T23:59:59+14:00", "search", "started"),
    "a time without a zone": put("0002-01-01", "search", "started"),
    "trials of another file": put({"file": "r.json", "sha256": "0" * 64}, "search", "trials"),
    "many failures": put({"timeout": 1 << 53, "crash": 1 << 53}, "search", "failed"),
    "names of many models": put({"models": {f"{BIDI}{n}": {} for n in range(2000)}}, "config"),
}
"""Records that are legal, however odd. Some are not: then there must be a message."""

ILLEGAL: dict[str, tuple[Change, str]] = {
    "a reversed interval": (put(speedup(1.5, 1.6, 1.4), "evidence", "speedup"), "low"),
    "an estimate below zero": (put(speedup(-3.0, 1.4, 1.6), "evidence", "speedup"), "estimate"),
    "a ratio below zero": (put(speedup(-1.5, -1.6, -1.4), "evidence", "speedup"), "speedup"),
    "a ratio of zero": (put(speedup(0, 0, 0), "evidence", "speedup"), "speedup"),
    "a gain of a billion": (put(speedup(1e10, 1.4, 1e11), "evidence", "speedup"), "estimate is 1e+10"),
    "too much confidence": (put(speedup(1.5, 1.4, 1.6, 2), "evidence", "speedup"), "confidence"),
    "hosts that contradict": (make_hosts(2, 2, n_slower=2), "verdict"),
    "a reversed interval of hosts": (make_hosts(2, 2, another=interval(1.2, 1.5, 0.9)), "low"),
    "a reversed occasion": (add_occasions(2, low=1.5, high=1.2), "low"),
    "a front beyond all limits": (make_front(101), "length"),
    "a negative count": (put(-1, "search", "n_tried"), "n_tried"),
    "a count without end": (put(10**400, "search", "n_tried"), "n_tried"),
    "an affinity for CPUs of no host": (
        put({"session_config": {"session.intra_op_thread_affinities": "1-16385"}}, "config"),
        "affinities",
    ),
    "a library of a provider": (
        put({"providers": [["QNNExecutionProvider", {"backend_path": "/tmp/evil.so"}]]}, "config"),
        "backend_path",
    ),
    "a library as a provider": (put({"providers": [["/tmp/evil.soExecutionProvider", {}]]}, "config"), "providers"),
    "a schema before the first": (put(0, "schema"), "has schema 0"),
    "a bundle within a record": (put([{"schema": 1, "records": []}], "config", "records"), "records"),
    "too many sessions": (
        put({"scenario": "multi-client", "clients": 1, "sessions": 65}, "workload", "load"),
        "sessions",
    ),
    "the smallest rate": (put({"scenario": "server", "rate_per_s": 5e-324}, "workload", "load"), "requests per second"),
    "a rate of nothing": (put({"scenario": "server", "rate_per_s": 0}, "workload", "load"), "requests per second"),
    "a time before all": (put("0001-01-01", "search", "started"), "year"),
    "a file elsewhere": (
        put(
            [{"name": "m", "size_bytes": 1, "sha256": "0"}, {"name": "~/x/../y", "size_bytes": 1, "sha256": "0"}],
            "model",
            "files",
        ),
        "files",
    ),
}
"""Records that must not be read, and a word of the message."""


@pytest.fixture(scope="module")
def benign() -> Document:
    return dict(json.loads(encode_record(make_local_record(TINY_CNN, ONE_THREAD))))


def write_hostile(benign: Document, change: Change, path: Path) -> Path:
    document = copy.deepcopy(benign)
    change(document)
    path.write_text(json.dumps(document))
    return path


COMMANDS: dict[str, tuple[Any, ...]] = {
    "check": ("apply", "r.json", TINY_CNN, "--any-host"),
    "program": ("apply", "r.json", "--any-host", "--", "true"),
    "program with trust": ("apply", "r.json", "--trust", "--explain", "--", "true", "{workers}"),
    "canary": ("apply", "r.json", "--any-host", "--canary", "50%", "--metrics", "m", "--", "true"),
    "python": ("apply", "r.json", "--to", "python"),
    "verify": ("apply", "r.json", TINY_CNN, "--verify", "--budget", "2s"),
    "update": ("apply", "r.json", TINY_CNN, "--verify", "--update", "--budget", "2s"),
    "bench": ("bench", TINY_CNN, "r.json", "--budget", "2s"),
    "gate": ("gate", f"{TINY_CNN}@default", f"{TINY_CNN}@r.json", "--budget", "2s"),
    "gate of a record": ("gate", "r.json", "--budget", "2s"),
    "merge": ("merge", "r.json", "r.json", "-o", "b.json"),
    "report": ("report", "r.json", "-o", "x.html", "--png", "png"),
    "search": ("search", TINY_CNN, "-o", "r.json", "--budget", "2s"),
    "deploy": (
        "fleet",
        "deploy",
        "--target",
        "kubernetes-job",
        "--nodes",
        "2",
        "--host-class",
        "r.json",
        "--",
        TINY_CNN,
    ),
    "as a model": ("search", "r.json"),
}


def take_turns(cases: Iterable[str], parts: Collection[str], count: int) -> list[Any]:
    """Return parameters: each case with a few parts, so that all cases together have all parts; or, long, with all."""
    turns = itertools.cycle(parts)
    few = [pytest.param(case, [*itertools.islice(turns, count)], id=case) for case in cases]
    return few + [pytest.param(case, parts, id=f"{case}-all", marks=pytest.mark.long) for case in cases]


def run_commands(
    commands: Mapping[str, tuple[Any, ...]],
    names: Iterable[str],
    path: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Run commands on a file, which is as it was before each. Yield each that ended, with its name."""
    content = path.read_bytes()
    for name in names:
        path.write_bytes(content)
        done = run_ortune(*commands[name], cwd=path.parent, simulate=True, timeout=100, environment=environment)
        yield name, done


FUNCTIONS: dict[str, Callable[[Path], object]] = {
    "read_record": lambda path: ortune.read_record(path)._repr_html_(),
    "read_trials": read_trials,
    "session_options": lambda path: ortune.session_options(path, any_host=True),
    "run_options": lambda path: ortune.run_options(path, any_host=True),
    "point": lambda path: ortune.read_record(path).point(1)._repr_html_(),
    **{f"export {target.name}": functools.partial(ortune.export_config, to=target.name) for target in list_targets()},
}
"""What reads records in the Python interface."""


def check_call(function: Callable[[Path], object], path: Path) -> None:
    """Check that a function returns, or says why it cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(path)
        except OrtuneError as error:
            assert str(error)


@pytest.mark.parametrize(("name", "functions"), take_turns(LEGAL, FUNCTIONS, 6))
def test_through_python(name: str, functions: list[str], benign: Document, tmp_path: Path) -> None:
    path = write_hostile(benign, LEGAL[name], tmp_path / "r.json")
    for function in functions:
        check_call(FUNCTIONS[function], path)


@pytest.mark.parametrize(("name", "commands"), take_turns(LEGAL, COMMANDS, 1))
def test_through_commands(name: str, commands: list[str], benign: Document, tmp_path: Path) -> None:
    path = write_hostile(benign, LEGAL[name], tmp_path / "r.json")
    for command, done in run_commands(COMMANDS, commands, path):
        assert done.returncode in {0, 1, 2, 3}, (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (command, done.stderr)
        text = done.stdout + done.stderr
        assert all(character.isprintable() or character == "\n" for character in text), command
        assert done.returncode != 2 or "error" in done.stderr, (command, done.stderr)


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_must_not_be_read(name: str, benign: Document, tmp_path: Path) -> None:
    change, word = ILLEGAL[name]
    path = write_hostile(benign, change, tmp_path / "r.json")
    with pytest.raises(OrtuneError) as caught:
        ortune.read_record(path)
    assert word in caught.value.message
    assert len(caught.value.message) < 1000


def duplicate(name: str, value: str) -> Callable[[str], str]:
    """Return a change of a text that adds a name before one that is there."""
    return lambda text: text.replace(f'"{name}":', f'{value}, "{name}":', 1)


NESTED = "[" * 100_000 + "]" * 100_000

TEXTS: dict[str, Callable[[str], str]] = {
    "a config twice": duplicate("config", '"config": {}'),
    "a config twice, once escaped": duplicate("config", r'"\u0063onfig": {}'),
    "a setting twice": duplicate("intra_op_num_threads", '"intra_op_num_threads": 9'),
    "a schema twice": duplicate("schema", '"schema": 1'),
    "a path twice": duplicate("path", '"path": "other.onnx"'),
    "another document after it": lambda text: text + text,
    "another document before it": lambda text: "{}" + text,
    "a comment": lambda text: "/* */" + text,
    "a byte order mark": lambda text: "\ufeff" + text,
    "null characters": lambda text: text.replace(": ", ":\0 "),
    "wide characters": lambda text: text.replace('"', "\uff02"),
    "an escaped surrogate": lambda text: text.replace('"reason": "', r'"reason": "\ud800'),
    "nesting in an unknown field": lambda text: text.replace("{", f'{{"x": {NESTED},', 1),
    "nesting in a known field": duplicate("reason", f'"x": {NESTED}'),
    "nesting instead of a config": lambda text: text.replace('"config": {', f'"base": {NESTED}, "config": {{', 1),
    "a number without end": lambda text: text.replace('"budget_s": ', f'"budget_s": {"9" * 5000}'),
    "a number that is too small": lambda text: text.replace('"budget_s": ', '"budget_s": 1e-400, "x": '),
    "a truncated text": lambda text: text[: len(text) // 2],
    "only its beginning": lambda text: text[:1],
    "a bundle of bundles": lambda text: f'{{"schema": 1, "records": [{{"schema": 1, "records": [{text}]}}]}}',
    "a bundle of itself": lambda text: text.replace("{", '{"records": [{}],', 1),
    "a bundle of nothing": lambda text: '{"schema": 1, "records": []}',
    "a bundle of numbers": lambda text: '{"schema": 1, "records": [1, null, "a", []]}',
    "a bundle of many schemas": lambda text: f'{{"schema": 1, "records": [{text}, {{"schema": 9}}]}}',
    "a plan of a record": lambda text: text.replace("{", '{"rows": [], "recommended": 1, "measured_scale": 1,', 1),
    "a list of records": lambda text: f"[{text}]",
    "a schema that is no number": lambda text: text.replace('"schema": 1', '"schema": 1.5'),
    "a schema that is true": lambda text: text.replace('"schema": 1', '"schema": true'),
    "a schema to come": lambda text: text.replace('"schema": 1', f'"schema": {10**18}'),
    "empty lists": lambda text: text.replace("{", '{"x": [' + "[]," * 2_000_000 + "[]],", 1),
    "empty texts": lambda text: text.replace("{", '{"x": [' + '"",' * 3_000_000 + '""],', 1),
    "a text without end": lambda text: text.replace('"reason": "', '"reason": "' + "a" * (1 << 20)),
}
"""Texts of records that must not be read."""


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_records(name: str, benign: Document, tmp_path: Path) -> None:
    text = json.dumps(benign)
    changed = TEXTS[name](text)
    assert changed != text
    path = tmp_path / "r.json"
    path.write_bytes(changed.encode(errors="surrogatepass"))
    for read in (
        ortune.read_record,
        parse_document,
        lambda path: read_configs([path]),
        lambda path: read_source(str(path)),
    ):
        with pytest.raises(OrtuneError) as caught:
            read(path)
        assert len(caught.value.message) < 1000
    assert not list(tmp_path.glob("*.before*"))


def test_links_and_names_of_trials(benign: Document, tmp_path: Path) -> None:
    """The trials of a record are read only from a regular file next to it, with the recorded digest."""
    secret = tmp_path / "secret"
    secret.write_text("private")
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    folder = tmp_path / "records"
    folder.mkdir()
    for file in ("../secret", str(secret), "secret", "r.json", ".", "~", "secret\0", "con", "a/b", "a\\b"):
        document = copy.deepcopy(benign)
        document["search"]["trials"] = {"file": file, "sha256": digest}
        (folder / "r.json").write_text(json.dumps(document))
        for target in ("/dev/zero", secret, "secret"):
            (folder / "secret").unlink(missing_ok=True)
            (folder / "secret").symlink_to(target)
            with pytest.raises(OrtuneError) as caught:
                read_trials(folder / "r.json")
            assert "private" not in str(caught.value)
