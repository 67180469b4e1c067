"""Records and bundles."""

from __future__ import annotations

import functools
import io
import json
import zlib
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.fuzz.mutation import NUMBERS, WORDS, make_json_mutation, mutate_bytes
from tests.fuzz.target import DATA, Target, attempt, write_input
from tests.simulated import make_model


@functools.cache
def names_of_settings() -> tuple[str, ...]:
    """Return names and values of settings, and fields of records."""
    from ortune.knobs import KNOBS, Config
    from ortune.knobs.config import ThreadPool
    from ortune.record import schema

    found: dict[str, None] = dict.fromkeys([*NUMBERS, *WORDS])
    for knob in KNOBS.values():
        found |= dict.fromkeys([knob.name, knob.id, knob.provider, str(knob.default), *knob.values])
    for kind in (*vars(schema).values(), Config, ThreadPool):
        found |= dict.fromkeys(getattr(kind, "__struct_fields__", ()))
    return tuple(found)


def legal_values(knob: Any) -> list[Any]:
    """Return some legal values of a knob in the form that a config holds, among them the limits."""
    texts = ["0", "1", "true", "1-2", "1:2", "x", "2G", "0.5", *knob.values, knob.default, knob.low, knob.high]
    texts += [2**31 - 1, 2**31, 2**32, 2**63 - 1, -1, -(2**31), -(2**63)]
    found = []
    for text in texts:
        if (value := attempt(knob.read, str(text))) is not None:
            found.append(value)
    return found


@functools.cache
def record_seeds() -> tuple[bytes, ...]:
    from ortune.knobs import KNOBS
    from ortune.record.files import encode_record, read_record
    from ortune.record.schema import RECORD_SCHEMA, Bundle

    server, limits = ((DATA / f"{name}.ortune.json").read_bytes() for name in ("server", "limits"))
    record = read_record(DATA / "server.ortune.json")
    plain = msgspec.to_builtins(record)
    rich: list[bytes] = []
    for at in range(3):
        config: dict[str, Any] = {}
        for knob in KNOBS.values():
            values = legal_values(knob)
            if knob.unsafe or not values:
                continue
            value = values[at % len(values)]
            if knob.where in {"session_options", "session_config", "run_options", "run_config", "environment"}:
                config.setdefault(knob.where, {})[knob.name] = value
        rich.append(json.dumps({**plain, "config": config}).encode())
    bundle = encode_record(Bundle(schema=RECORD_SCHEMA, records=(record, read_record(DATA / "limits.ortune.json"))))
    proven = encode_record(with_hosts(record))
    return (server, limits, bundle, proven, *rich)


def with_hosts(record: Any) -> Any:
    """Return a record with the evidence of several hosts."""
    from ortune.measure.host_speedup import HostSpeedup
    from ortune.measure.hosts import pool_hosts

    gains = [
        HostSpeedup(host=f"{n:08x}", estimate=gain, low=gain / 1.1, high=1.1 * gain, confidence=0.95, n_launches=6)
        for n, gain in enumerate((1.3, 1.4, 0.7))
    ]
    evidence = msgspec.structs.replace(record.evidence, hosts=pool_hosts(gains))
    return msgspec.structs.replace(record, evidence=evidence)


def run_record(data: bytes) -> None:
    """Read a record or a bundle, and use what was read in all ways that start no process."""
    from ortune.record.files import read_document

    path = write_input("r.json", data)
    check = zlib.crc32(data)
    document = attempt(read_document, path, trust=check % 2 == 1)
    if document is None:
        return
    if check % 4 < 2:  # it reads the file twice more
        use_bundle(path, trust=check % 2 == 1)
    for record in document.records[:3]:
        use_record(record, check)


def use_bundle(path: Path, *, trust: bool) -> None:
    from ortune.apply.plan import choose_records, encode_plan, environment_of, make_hook_plan
    from ortune.program_options import ProgramRequest
    from ortune.record.select import Wanted, merge, read_sourced, select_record
    from ortune.workload import Load

    request = ProgramRequest(any_host=True, trust=trust)
    if choices := attempt(choose_records, [path], request):
        attempt(environment_of, choices)
        attempt(lambda: encode_plan(make_hook_plan(choices, request, "")))
    if sourced := attempt(read_sourced, [path], trust=trust):
        attempt(merge, sourced)
        attempt(select_record, sourced, Wanted(load=Load(scenario="server", rate_per_s=50.0), any_host=True))


def make_recorded_feed(record: Any) -> None:
    """Make inputs of the recorded sizes for a model that takes any size."""
    from ortune.apply.verify import recorded_inputs
    from ortune.model import InputInfo
    from ortune.workload import make_feed

    inputs = tuple(
        InputInfo(name=name, dtype=data.dtype, shape=(None,) * len(data.shapes[0]))
        for name, data in record.workload.inputs.items()
    )
    make_feed(make_model(inputs=inputs), recorded_inputs(record, None))


def use_record(record: Any, check: int) -> None:
    import ortune
    from ortune.console.safe_console import SafeConsole
    from ortune.console.verdict import show_verdict
    from ortune.export import TARGETS, render
    from ortune.record.files import encode_record

    attempt(ortune.session_options, record, any_host=True, session=check % 3)
    attempt(ortune.run_options, record, any_host=True)
    attempt(record.point, 1)
    if check % 16 == 0:
        attempt(make_recorded_feed, record)
        attempt(encode_record, record)
        attempt(show_verdict, SafeConsole(file=io.StringIO(), width=80), record, Path("r.json"))
        names = sorted(name for name, target in TARGETS.items() if not target.binary)
        attempt(render, names[check // 16 % len(names)], record, "model.onnx")


def mutate_record(data: bytes, random: Random) -> bytes:
    """Change a record anywhere, or only its config, so that it is often accepted."""
    if random.random() < 0.6:
        return _mutate_json(data, random)
    try:
        document = json.loads(data)
        record = random.choice(document["records"]) if "records" in document else document
        record["config"] = make_config(random)
    except (ValueError, TypeError, LookupError, RecursionError):
        return mutate_bytes(data, random)  # not a record, as atheris makes them
    return json.dumps(document).encode()


_mutate_json = make_json_mutation(names_of_settings)


@functools.cache
def settings_of_catalog() -> tuple[tuple[Any, list[Any]], ...]:
    """Return each knob with some legal values."""
    from ortune.knobs import KNOBS

    return tuple((knob, values) for knob in KNOBS.values() if (values := legal_values(knob)))


def make_config(random: Random) -> dict[str, Any]:
    """Return a config of some settings, most of them legal."""
    config: dict[str, Any] = {}
    for _ in range(int(random.random() * 4)):
        knob, values = random.choice(settings_of_catalog())
        value = random.choice(values) if random.random() < 0.8 else random.choice((*NUMBERS, *WORDS, 2**31, -1, True))
        if knob.where in {"session_options", "session_config", "run_options", "run_config", "environment"}:
            config.setdefault(knob.where, {})[knob.name] = value
        elif knob.where == "provider_options":
            config.setdefault("providers", []).append([knob.provider, {knob.name: value}])
        elif knob.where == "config" and knob.is_settable:
            config[knob.name] = value
    return config


RECORDS = Target(run_record, record_seeds, mutate_record)
