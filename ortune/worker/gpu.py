"""Reads the GPU through NVML, where its Python package (nvidia-ml-py) and the driver are there.

Source: NVIDIA, "NVML API Reference Guide", device queries; its reasons for lower clocks are bits.
"""

from __future__ import annotations

import os
from typing import Any

from ortune.worker.block import GpuState

SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of the reasons for lower clocks that spoil a measurement; an idle GPU clocks down too, which does not."""


class GpuReader:
    """Reads one GPU; None is all that it reads where NVML is missing.

    Args:
        number: Number of the GPU, as the provider counts.
    """

    def __init__(self, number: int = 0) -> None:
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByIndex(physical_number(number))
            self._nvml = pynvml
        except Exception:  # noqa: BLE001  (of any kind: without it there is nothing to read)
            self._nvml = None

    def read(self) -> GpuState | None:
        """Return how the GPU is now."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            device = self._device
            used = {
                process.pid: process.usedGpuMemory or 0 for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)
            }
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
            return GpuState(
                # In a container, NVML counts processes by other numbers, and ours cannot be told from others.
                used_bytes=used.get(os.getpid()),
                utilization=nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
                clock_mhz=nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
                slowdowns=tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
            )
        except Exception:  # noqa: BLE001  (NVML raises by kind of GPU and rights; a reading is not worth a candidate)
            return None


def physical_number(number: int) -> int:
    """Return NVML's number of a GPU: NVML does not heed CUDA_VISIBLE_DEVICES, providers do."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return int(visible[number]) if number < len(visible) and visible[number].isdigit() else number
