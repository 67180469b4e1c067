"""Reads the state of a GPU through NVML, if the driver and the package nvidia-ml-py are installed.

Source: NVIDIA, "NVML API Reference Guide", device queries; the reasons for lower clocks are bits.
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
"""Reasons for lower clocks that spoil a measurement, by bit. That the GPU is idle is not among them."""


class GpuReader:
    """Reads the state of one GPU. It is made before the session is created.

    Args:
        number: Device id of the GPU, as the provider counts.
    """

    def __init__(self, number: int = 0) -> None:
        self._nvml: Any = None
        self._free_before_bytes: int | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._device = pynvml.nvmlDeviceGetHandleByIndex(find_physical_number(number))
            self._nvml = pynvml
        except Exception:  # noqa: BLE001  (NVML is missing or does not work: there is nothing to read)
            self._nvml = None
        else:
            self._free_before_bytes = self._read_free_bytes()

    def read(self) -> GpuState | None:
        """Return the current state of the GPU, or None if NVML does not work."""
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
                # In a container, NVML reports process ids of the host, so that this process is not found.
                used_bytes=used.get(os.getpid()),
                utilization=nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
                clock_mhz=nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
                slowdowns=tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
                free_bytes=self._read_free_bytes(),
                free_before_bytes=self._free_before_bytes,
            )
        except Exception:  # noqa: BLE001  (some GPUs and users lack a query; that must not fail the candidate)
            return None

    def _read_free_bytes(self) -> int | None:
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._device).free)
        except Exception:  # noqa: BLE001  (GPUs that share the memory of the host have no such query)
            return None


def find_physical_number(number: int) -> int:
    """Return NVML's number of a GPU. Unlike providers, NVML ignores CUDA_VISIBLE_DEVICES."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return int(visible[number]) if number < len(visible) and visible[number].isdigit() else number
