"""Gate files."""

from __future__ import annotations

import functools
from random import Random

import msgspec

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.options import make_small_feed
from tests.fuzz.target import Target, attempt, write_input

GATE_SEEDS = (
    b'[gate]\nbudget = "60s"\nmax-slowdown = "3%"\n[gate.a]\nbase = "a.onnx"\nhead = "b.onnx"\n',
    b'[gate.encoder]\nbase = "a.json"\nclients = 8\nalso = ["memory", "load-time"]\nlimit = ["p99<20ms"]\nseed = 3\n',
    b'[gate.x]\nbase = "a.onnx"\nhead = "a.onnx@r.json"\nrate = "50/s"\narrivals = "periodic"\ndim = {batch = [1, 8]}\n'
    b'shape = {data = [1, 3, 224, 224]}\nmax-slowdown = ["3%", "memory=5%"]\nrtol = 0.1\natol = 1e-3\n',
    b"gate.x.base = 'a.onnx'\ngate.x.head = '''b'''\ngate.x.busy = true\ngate.x.beside = 'true'\n",
    b'[gate.time]\nbase = "a"\nhead = 2026-01-01T00:00:00Z\nbudget = 10\ninputs = "d.npz"\nignore-outputs = true\n',
)
GATE_WORDS = tuple(
    text.encode()
    for text in (
        "[gate.b]",
        "[[gate]]",
        "[gate.a.b]",
        '"""',
        "'''",
        "= [",
        "= {",
        "}",
        "]",
        "\n",
        "#",
        "\\u0000",
        "\\U00110000",
        "base",
        "head",
        "budget",
        "clients",
        "dim",
        "shape",
        "limit",
        "objective",
        "also",
        "seed",
        "inputs",
        "rtol",
        "1m30s",
        "'p99<1.3x'",
        "nan",
        "inf",
        "0x" + "f" * 500,
        "0b1",
        "1e9999",
        "12:00:00",
        "2026-02-30",
        "true",
        "[" * 200,
        "{a=" * 200,
        "a." * 500,
        " " * 3000,
        "[" + " " * 3000,
        '"r.json"',
        '"."',
        '"/dev/full"',
        '""',
    )
)


def run_gate_file(data: bytes) -> None:
    """Read a gate file, and use the gates up to where models are read."""
    from ortune.gates.file import read_gates
    from ortune.gates.prepare import parse_slowdowns
    from ortune.gates.sides import read_side

    gates = attempt(read_gates, str(write_input("ortune.toml", data)))
    for gate in (gates or ())[:3]:
        attempt(lambda gate=gate: (gate.load, gate.tolerance, gate.given_inputs))
        if goal := attempt(lambda gate=gate: gate.goal):
            attempt(parse_slowdowns, gate.max_slowdown, goal)
        for side in (gate.base, gate.head):
            if side is not None and not side.startswith(("-", "/dev/")):
                attempt(read_side, side)
        if inputs := gate.given_inputs:
            attempt(make_small_feed, msgspec.structs.replace(inputs, data=None))


GATE_VALUES = (
    "'60s'",
    "'3%'",
    "['3%', 'memory=5%']",
    "8",
    "0",
    "-1",
    "1.5",
    "nan",
    "inf",
    "true",
    "''",
    "[]",
    "{}",
    "'x'",
    "'50/s'",
    "'periodic'",
    "['p99<20ms']",
    "'p99<1.3x'",
    "'memory>1GB'",
    "{batch = [1, 8]}",
    "{batch = 999999999}",
    "{image = [1, 3, 9, 9]}",
    "{ids = '2x3'}",
    "['memory', 'load-time']",
    "'p99'",
    "'throughput'",
    "1e400",
    "1024",
    "[1, 'x', {a = 1}]",
    "2026-01-01",
    "12:00:00",
    "9223372036854775807",
    "0x" + "f" * 40,
    "[[[[]]]]",
    "'1e-3'",
)


def mutate_gate_file(data: bytes, random: Random) -> bytes:
    """Change bytes of a file, or write a file of some options and values."""
    if random.random() < 0.6:
        return mutate_bytes(data, random, GATE_WORDS, GATE_SEEDS)
    lines = ["[gate.x]", "base = 'a.onnx'", "head = 'b.onnx'"]
    for name in random.sample(list(options_of_gate()), int(random.random() * 5)):
        value = random.choice(GATE_VALUES)
        if random.random() < 0.2:
            value = mutate_bytes(value.encode(), random).decode("utf-8", "replace")
        lines.append(f"{name} = {value}")
    return "\n".join(lines).encode()


@functools.cache
def options_of_gate() -> tuple[str, ...]:
    from ortune.options import options_of
    from ortune.requests import GateRequest

    return tuple(declared.key for declared in options_of(GateRequest).values() if "toml" in declared.option.interfaces)


GATE_FILES = Target(run_gate_file, lambda: GATE_SEEDS, mutate_gate_file)
