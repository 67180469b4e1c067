"""Reads the CPUs of a Windows host from its environment. Caches and instruction sets are unknown.

Source: the variable `PROCESSOR_IDENTIFIER`, which `platform.processor()` returns.
"""

from __future__ import annotations

import re

from ortune.host.processor import CpuType, Processor, limit_identifier

IDENTIFIER = re.compile(r"\bFamily (\w{1,8}) Model (\w{1,8}) (?:Stepping|Revision) +(\w{1,8}), *(.{1,24})", re.ASCII)


def parse_identifier(text: str) -> Processor:
    """Return what an identifier such as "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel" says about the CPUs."""
    match = IDENTIFIER.search(text)
    vendor = limit_identifier(match[4]) if match else ""
    if not match or not vendor:
        return Processor()
    return Processor(cpu=CpuType(vendor=vendor, family=match[1], model=match[2], stepping=match[3]))
