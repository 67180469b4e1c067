"""Reads the CPUs from sysctl, and the number of cores of each performance level.

macOS does not report which CPU is which.

Source: sysctl(3) and Apple's "Determining system capabilities" and "Determining instruction set characteristics":
`hw.nperflevels`, `hw.perflevelN.physicalcpu`, `hw.perflevelN.logicalcpu`, `hw.optional`; level 0 is the fastest.
"""

from __future__ import annotations

import itertools
import re
import subprocess

from ortune.host.processor import Caches, CpuType, Processor, limit_identifier, select_instructions
from ortune.host.topology import Core, Cpus, NumaNode, Topology

SYSCTL_TIMEOUT_S = 5.0

NAMES = ("hw", "machdep.cpu", "kern.hv_vmm_present")
"""The names to read. If one does not exist, sysctl reports an error and shows the others."""

INSTRUCTIONS = {
    "sse4_1": "hw.optional.sse4_1",
    "avx": "hw.optional.avx1_0",
    "f16c": "hw.optional.f16c",
    "fma": "hw.optional.fma",
    "avx2": "hw.optional.avx2_0",
    "avx512f": "hw.optional.avx512f",
    "avx512bw": "hw.optional.avx512bw",
    "avx512dq": "hw.optional.avx512dq",
    "avx512vl": "hw.optional.avx512vl",
    "avx512_vnni": "hw.optional.avx512vnni",
    "asimdhp": "hw.optional.arm.FEAT_FP16",
    "asimddp": "hw.optional.arm.FEAT_DotProd",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
    "bf16": "hw.optional.arm.FEAT_BF16",
    "sme": "hw.optional.arm.FEAT_SME",
    "sme2": "hw.optional.arm.FEAT_SME2",
}
"""Names of instruction sets on macOS, by those on Linux."""


def run_sysctl() -> str:
    """Return the output of sysctl, or "" if it fails."""
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", *NAMES],
            capture_output=True,
            text=True,
            env={},
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


def build_processor(values: dict[str, str]) -> Processor:
    """Describe the CPUs. On Apple silicon, family and model are `hw.cpufamily` and `hw.cpusubfamily`."""

    def find(*names: str) -> str:
        return next((text for name in names if (text := limit_identifier(values.get(name, "")))), "")

    def find_size(name: str) -> int | None:
        text = find(f"hw.perflevel0.{name}", f"hw.{name}")
        return int(text) if re.fullmatch(r"[1-9]\d{0,11}", text, re.ASCII) else None

    vendor, family = find("machdep.cpu.vendor"), find("machdep.cpu.family")
    if vendor:
        model, stepping = find("machdep.cpu.model"), find("machdep.cpu.stepping")
    else:
        vendor, family, model, stepping = "Apple", find("hw.cpufamily"), find("hw.cpusubfamily"), ""
    caches = Caches(
        l1d_bytes=find_size("l1dcachesize"), l2_bytes=find_size("l2cachesize"), l3_bytes=find_size("l3cachesize")
    )
    return Processor(
        cpu=CpuType(vendor=vendor, family=family, model=model, stepping=stepping) if family else None,
        instructions=select_instructions(
            {instruction for instruction, name in INSTRUCTIONS.items() if values.get(name) == "1"}
        ),
        caches=caches if caches != Caches() else None,
        virtual={"0": False, "1": True}.get(values.get("kern.hv_vmm_present", "")),
    )
