"""Reads the state of a GPU through NVML, if the driver and the package nvidia-ml-py are installed.

Source: NVIDIA, "NVML API Reference Guide", device queries; the reasons for lower clocks are bits.
"""

from __future__ import annotations

import os
from typing import Any

from ortune.knobs.config import Config
from ortune.worker.block import GpuState

SLOWDOWNS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Reasons for lower clocks that spoil a measurement, by bit. That the GPU is idle is not among them."""


MOST_DIGITS = 4
"""Digits of the number of a GPU. Records are untrusted, and int() rejects texts of thousands of digits."""


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
            self._device = find_device(pynvml, number)
            self._nvml = pynvml
        except Exception:  # noqa: BLE001  (NVML is missing or does not work: there is nothing to read)
            self._nvml = None
        else:
            self._free_before_bytes = self._read_free_bytes()

    def read(self) -> GpuState | None:
        """Return the current state of the GPU, or None if NVML does not work."""
        if self._nvml is None:
            return None
        reasons = self._query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return GpuState(
            used_bytes=self._read_used_bytes(),
            clock_mhz=self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            slowdowns=tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
            free_bytes=self._read_free_bytes(),
            free_before_bytes=self._free_before_bytes,
        )

    def _query(self, name: str, *arguments: Any) -> Any:
        """Return the answer to a query; None if the GPU, the driver or the user's rights do not allow it.

        A candidate must not fail because of that.
        """
        try:
            return getattr(self._nvml, name)(self._device, *arguments)
        except Exception:  # noqa: BLE001
            return None

    def _read_used_bytes(self) -> int | None:
        processes = self._query("nvmlDeviceGetComputeRunningProcesses") or ()
        # In a container, NVML reports process ids of the host, so that this process is not found.
        return next((process.usedGpuMemory or 0 for process in processes if process.pid == os.getpid()), None)

    def _read_free_bytes(self) -> int | None:
        memory = self._query("nvmlDeviceGetMemoryInfo")  # GPUs that share the memory of the host lack it
        return int(memory.free) if memory else None


def find_number(config: Config) -> int:
    """Return the device id of the GPU that a config uses, as its provider counts."""
    device = dict(config.providers)[config.provider].get("device_id", "")
    return int(device) if device.isdecimal() and len(device) <= MOST_DIGITS else 0


def find_device(nvml: Any, number: int) -> Any:
    """Return NVML's handle of a GPU. Unlike providers, NVML ignores CUDA_VISIBLE_DEVICES.

    Args:
        nvml: The module pynvml, initialized.
        number: Device id of the GPU, as the provider counts.

    Raises:
        LookupError: Providers see no such GPU.
        Exception: Any exception of NVML.
    """
    parts = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if number < len(parts) and parts[number].startswith("MIG-"):
        return nvml.nvmlDeviceGetHandleByUUID(parts[number])
    return nvml.nvmlDeviceGetHandleByIndex(list_visible(nvml)[number])


def list_visible(nvml: Any) -> list[int]:
    """Return NVML's numbers of the GPUs that providers see, in their order. Those after an invalid one are not seen.

    Source: NVIDIA, "CUDA C++ Programming Guide", environment variables. CUDA numbers different GPUs by their speed,
    NVML by the bus, unless CUDA_DEVICE_ORDER is PCI_BUS_ID.

    Raises:
        LookupError: GPUs differ, and are selected by numbers in an order that is not known.
        Exception: Any exception of NVML.
    """
    n_gpus = nvml.nvmlDeviceGetCount()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    parts = [part.strip() for part in visible.split(",")] if visible is not None else list(map(str, range(n_gpus)))
    if n_gpus > 1 and any(map(str.isdecimal, parts)) and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        names = {nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(number)) for number in range(n_gpus)}
        if len(names) > 1:
            raise LookupError("different GPUs, whose order is not known")
    found: list[int] = []
    for part in parts:
        number = int(part) if part.isdecimal() and len(part) <= MOST_DIGITS else n_gpus
        if part.startswith("GPU-"):
            uuids = [str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number))) for number in range(n_gpus)]
            number = next((place for place, uuid in enumerate(uuids) if uuid.startswith(part)), n_gpus)
        if number >= n_gpus:
            break
        found.append(number)
    return found


def list_gpus() -> tuple[tuple[str, ...], str]:
    """Return the names of the NVIDIA GPUs that providers see, in their order, and the version of the driver.

    Both are empty if NVML does not work, or if GPUs differ and their order is not known.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        numbers = list_visible(pynvml)
        names = tuple(str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(number))) for number in numbers)
        return names, str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001  (there is no GPU, no NVML, or no known order)
        return (), ""
