"""Reads the number of cores of each performance level from sysctl. macOS does not report which CPU is which.

Source: sysctl(3) and Apple's "Determining system capabilities": `hw.nperflevels`, `hw.perflevelN.physicalcpu`,
`hw.perflevelN.logicalcpu`; level 0 is the fastest.
"""

from __future__ import annotations

import itertools
import re
import subprocess

from ortune.host.topology import Core, Cpus, NumaNode, Topology

SYSCTL_TIMEOUT_S = 5.0


def run_sysctl() -> str:
    """Return the output of `sysctl hw machdep.cpu.brand_string`, or "" if it fails."""
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "hw", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=SYSCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def parse_sysctl(text: str) -> dict[str, str]:
    """Return the values of sysctl's output, by name."""
    return dict(re.findall(r"^([\w.]+)\s*[:=]\s*(.*?)\s*$", text, re.MULTILINE))


def build_topology(values: dict[str, str]) -> Topology | None:
    """Return the topology, or None if the values of sysctl contain no number of cores.

    CPUs are numbered from the slowest level to the fastest. The numbers have no meaning outside ortune: macOS has no
    CPU ids, and ONNX Runtime does not pin threads there.
    """

    def number(name: str) -> int:
        text = values.get(name, "")
        return int(text) if re.fullmatch(r"\d{1,5}", text) else 0

    n_levels = number("hw.nperflevels")
    levels = [
        (number(f"hw.perflevel{level}.physicalcpu"), number(f"hw.perflevel{level}.logicalcpu"))
        for level in reversed(range(min(n_levels, 16)))
    ]
    levels = [(n_cores, max(n_cores, n_logical)) for n_cores, n_logical in levels if n_cores]
    if not levels:
        n_cores = number("hw.physicalcpu")
        levels = [(n_cores, max(n_cores, number("hw.logicalcpu")))] if n_cores else []
    if not levels:
        return None
    cores: list[Core] = []
    kinds: list[Cpus] = []
    first = 0
    for kind, (n_cores, n_logical) in enumerate(levels):
        cpus = tuple(range(first, first + n_logical))
        bounds = [first + position * n_logical // n_cores for position in range(n_cores + 1)]
        cores += [
            Core(cpus=tuple(range(low, high)), kind=kind if len(levels) > 1 else None)
            for low, high in itertools.pairwise(bounds)
        ]
        kinds.append(cpus)
        first += n_logical
    online = tuple(range(first))
    return Topology(
        online=online,
        cores=tuple(cores),
        packages=(online,),
        numa_nodes=(NumaNode(id=0, cpus=online),),
        kinds=tuple(kinds) if len(kinds) > 1 else (),
        source="sysctl",
    )
