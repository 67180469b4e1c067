"""Names of CPU generations. They only make host classes readable: classes are compared by the type of the CPU itself.

Source: for Intel, `arch/x86/include/asm/intel-family.h` of Linux; for AMD, `bsp_init_amd` in
`arch/x86/kernel/cpu/amd.c` of Linux; for ARM, `sys-utils/lscpu-arm.c` of util-linux.
"""

from __future__ import annotations

import re

from ortune.host.processor import CpuType

SKYLAKE_SERVER = 0x55

INTEL = {
    **dict.fromkeys((0x1A, 0x1E, 0x1F, 0x2E), "Nehalem"),
    **dict.fromkeys((0x25, 0x2C, 0x2F), "Westmere"),
    **dict.fromkeys((0x2A, 0x2D), "Sandy Bridge"),
    **dict.fromkeys((0x3A, 0x3E), "Ivy Bridge"),
    **dict.fromkeys((0x3C, 0x3F, 0x45, 0x46), "Haswell"),
    **dict.fromkeys((0x3D, 0x47, 0x4F, 0x56), "Broadwell"),
    **dict.fromkeys((0x4E, 0x5E), "Skylake"),
    **dict.fromkeys((0x8E, 0x9E), "Kaby Lake"),
    **dict.fromkeys((0xA5, 0xA6), "Comet Lake"),
    **dict.fromkeys((0x6A, 0x6C, 0x7D, 0x7E), "Ice Lake"),
    **dict.fromkeys((0x8C, 0x8D), "Tiger Lake"),
    0xA7: "Rocket Lake",
    **dict.fromkeys((0x97, 0x9A), "Alder Lake"),
    **dict.fromkeys((0xB7, 0xBA, 0xBF), "Raptor Lake"),
    **dict.fromkeys((0xAA, 0xAC), "Meteor Lake"),
    **dict.fromkeys((0xB5, 0xC5, 0xC6), "Arrow Lake"),
    0xBD: "Lunar Lake",
    0x8F: "Sapphire Rapids",
    0xCF: "Emerald Rapids",
    **dict.fromkeys((0xAD, 0xAE), "Granite Rapids"),
    0xAF: "Sierra Forest",
    0xBE: "Gracemont",
}
"""Generations of family 6, by model."""

AMD = {
    23: (
        (0x00, 0x2F, "Zen"),
        (0x30, 0x4F, "Zen 2"),
        (0x50, 0x5F, "Zen"),
        (0x60, 0x7F, "Zen 2"),
        (0x90, 0x91, "Zen 2"),
        (0xA0, 0xAF, "Zen 2"),
    ),
    25: ((0x00, 0x0F, "Zen 3"), (0x10, 0x1F, "Zen 4"), (0x20, 0x5F, "Zen 3"), (0x60, 0xAF, "Zen 4")),
    26: (
        (0x00, 0x2F, "Zen 5"),
        (0x40, 0x4F, "Zen 5"),
        (0x50, 0x5F, "Zen 6"),
        (0x60, 0x7F, "Zen 5"),
        (0x80, 0xAF, "Zen 6"),
        (0xC0, 0xCF, "Zen 6"),
    ),
}
"""Generations by family: the first and last model of each range."""

ARM = {
    0x41: {
        0xC07: "Cortex-A7",
        0xC09: "Cortex-A9",
        0xC0F: "Cortex-A15",
        0xD03: "Cortex-A53",
        0xD04: "Cortex-A35",
        0xD05: "Cortex-A55",
        0xD07: "Cortex-A57",
        0xD08: "Cortex-A72",
        0xD09: "Cortex-A73",
        0xD0A: "Cortex-A75",
        0xD0B: "Cortex-A76",
        0xD0C: "Neoverse N1",
        0xD0D: "Cortex-A77",
        0xD40: "Neoverse V1",
        0xD41: "Cortex-A78",
        0xD42: "Cortex-A78AE",
        0xD44: "Cortex-X1",
        0xD46: "Cortex-A510",
        0xD47: "Cortex-A710",
        0xD48: "Cortex-X2",
        0xD49: "Neoverse N2",
        0xD4A: "Neoverse E1",
        0xD4B: "Cortex-A78C",
        0xD4D: "Cortex-A715",
        0xD4E: "Cortex-X3",
        0xD4F: "Neoverse V2",
        0xD83: "Neoverse V3AE",
        0xD84: "Neoverse V3",
        0xD8E: "Neoverse N3",
    },
    0x43: {0x0A1: "ThunderX", 0x0AF: "ThunderX2"},
    0x46: {0x001: "A64FX"},
    0x48: {0xD01: "Kunpeng 920"},
    0x51: {0x001: "Oryon"},
    0x61: {
        0x022: "M1 Icestorm",
        0x023: "M1 Firestorm",
        0x024: "M1 Pro Icestorm",
        0x025: "M1 Pro Firestorm",
        0x028: "M1 Max Icestorm",
        0x029: "M1 Max Firestorm",
        0x032: "M2 Blizzard",
        0x033: "M2 Avalanche",
    },
    0xC0: {0xAC3: "AmpereOne", 0xAC4: "AmpereOne A"},
}
"""Cores by implementer and part."""


def name_generation(cpu: CpuType) -> str:
    """Return the name of a generation, such as "Zen 4" or "Neoverse N1", or "" if it is not known.

    The names of several kinds of cores are joined by ` + `.
    """
    models = cpu.model.split("+")
    names = [_name_one(cpu.vendor, cpu.family, model, cpu.stepping) for model in models]
    return " + ".join(dict.fromkeys(names)) if all(names) else ""


def _name_one(vendor: str, family: str, model: str, stepping: str) -> str:
    number = _read_number(model)
    if number is None:
        return ""
    if vendor == "GenuineIntel" and family == "6":
        return _name_skylake(stepping) if number == SKYLAKE_SERVER else INTEL.get(number, "")
    if vendor == "AuthenticAMD":
        ranges = AMD.get(_read_number(family) or 0, ())
        return next((name for first, last, name in ranges if first <= number <= last), "")
    implementer = _read_number(vendor)
    return ARM.get(implementer, {}).get(number, "") if implementer is not None else ""


def _name_skylake(stepping: str) -> str:
    """Return the name of one of the three generations of servers that have the same model.

    Source: steppings in Intel's specification updates of the Xeon Scalable processors: 4 and less; 5 to 7; 10 and 11.
    """
    number = _read_number(stepping)
    if number is None:
        return ""
    if number <= 4:
        return "Skylake"
    return "Cascade Lake" if number <= 7 else "Cooper Lake"


def _read_number(text: str) -> int | None:
    if re.fullmatch(r"0x[0-9a-f]{1,8}", text):
        return int(text, 16)
    return int(text) if re.fullmatch(r"[0-9]{1,8}", text) else None
