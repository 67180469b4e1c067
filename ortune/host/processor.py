"""The CPUs of a host: their generation, the instruction sets that ONNX Runtime uses, and their caches."""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from ortune.numbers import Count

INSTRUCTIONS = (
    # x86
    "sse4_1",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "waitpkg",
    # ARM
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "svei8mm",
    "sme",
    "sme2",
)
"""Instruction sets that ONNX Runtime checks for when it chooses kernels, by their names in /proc/cpuinfo.

`waitpkg` decides how its threads spin. It also checks for AVX-VNNI-INT8 and AVX-NE-CONVERT, which Linux does not list,
but which family and model of the CPU imply. A new entry changes the classes of the hosts that have it.

Source: `onnxruntime/core/mlas/lib/platform.cpp` and `onnxruntime/core/common/cpuid_info.cc` of onnxruntime 1.32.
"""

MOST_CHARACTERS = 64
"""Longest text of a property. The longest CPU names have 48 characters."""


class CpuType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Type of a CPU, as it identifies itself. Several kinds of cores are joined by `+`. Empty where unknown.

    Attributes:
        vendor: Vendor, such as "AuthenticAMD"; on ARM, the implementer.
        family: Family; on ARM, the version of the architecture.
        model: Model; on ARM, the part.
        stepping: Stepping; on ARM, variant and revision, as in "r3p1".
    """

    vendor: str = ""
    family: str = ""
    model: str = ""
    stepping: str = ""

    def __str__(self) -> str:
        """Return a text such as "AuthenticAMD family 25 model 17 stepping 1"."""
        if self.vendor.startswith("0x"):
            return " ".join(filter(None, (self.vendor, self.model and f"part {self.model}", self.stepping)))
        fields = (("family", self.family), ("model", self.model), ("stepping", self.stepping))
        return " ".join((self.vendor, *(f"{name} {value}" for name, value in fields if value))).strip()


class Caches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of the caches; if there are several kinds of cores, the largest. None where unknown.

    Attributes:
        l1d_bytes: L1 data cache of a core.
        l2_bytes: L2 cache.
        l3_bytes: L3 cache of a domain, which several cores share.
    """

    l1d_bytes: Count | None = None
    l2_bytes: Count | None = None
    l3_bytes: Count | None = None

    def __str__(self) -> str:
        """Return a text such as "L1d 32K, L2 1M, L3 32M"."""
        sizes = (("L1d", self.l1d_bytes), ("L2", self.l2_bytes), ("L3", self.l3_bytes))
        return ", ".join(f"{name} {_format_size(size)}" for name, size in sizes if size is not None) or "unknown"


class Processor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CPUs that a process may use. Fields are empty or None where unknown.

    Attributes:
        cpu: Their type.
        instructions: Those of `INSTRUCTIONS` that they have, separated by spaces.
        caches: Sizes of their caches.
        platform: Manufacturer or model of the machine. Set only if the CPUs have no marketing name, as on ARM, where
            machines of several manufacturers have the same cores.
        virtual: Whether the host is a virtual machine.
        n_memory_channels: Memory channels in use.
    """

    cpu: CpuType | None = None
    instructions: str = ""
    caches: Caches | None = None
    platform: str = ""
    virtual: bool | None = None
    n_memory_channels: Count | None = None


def select_instructions(names: Collection[str]) -> str:
    """Return those of `INSTRUCTIONS` that are among the names, in the order of `INSTRUCTIONS`."""
    return " ".join(name for name in INSTRUCTIONS if name in names)


def limit_text(text: str) -> str:
    """Return a text of unknown origin without characters that are not printable, cut off if it is too long."""
    return "".join(filter(str.isprintable, text.strip()[:MOST_CHARACTERS])).strip()


def limit_identifier(text: str) -> str:
    """Return a short text if it consists of ASCII letters, digits and a few other characters, else ""."""
    text = text.strip()
    return text if re.fullmatch(r"[A-Za-z0-9_. +!-]{1,24}", text, re.ASCII) else ""


def _format_size(size_bytes: int) -> str:
    for unit, power in (("M", 20), ("K", 10)):
        if size_bytes and not size_bytes % (1 << power):
            return f"{size_bytes >> power}{unit}"
    return f"{size_bytes} bytes"
