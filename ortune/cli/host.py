"""`ortune host`: show the host as ortune sees it."""

from __future__ import annotations

import os

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.requests import HostRequest, JsonOptions


@command(HostRequest, JsonOptions)
def host(values: Values, output: JsonOptions) -> None:
    """Show this host: CPUs, limits, what ONNX Runtime's default does here, and noise."""
    from ortune.host import read_host
    from ortune.host.conditions import read_conditions
    from ortune.host.default_pool import find_default_pool
    from ortune.host.runtime_variables import POOL_VARIABLE
    from ortune.knobs import KNOBS
    from ortune.knobs.default_dimensions import is_newer
    from ortune.worker.devices import Devices, read_devices
    from ortune.worker.installed import find_runtime_packages
    from ortune.worker.runtime import read_installed_runtime

    found = read_host()
    conditions = read_conditions()
    runtime, packages = read_installed_runtime(), find_runtime_packages()
    is_read = runtime is not None and not is_newer(KNOBS[POOL_VARIABLE].since, runtime.onnxruntime)
    pool = find_default_pool(found, os.environ.get(POOL_VARIABLE, "") if is_read else "")
    devices = read_devices() if runtime else Devices()
    if output.json:
        from ortune.host import HostClass

        print_json(
            {
                "host": found,
                "host_class": HostClass.of(found),
                "default": pool,
                "runtime": runtime,
                "packages": packages,
                "devices": devices.devices,
                "plugins": devices.plugins,
                "conditions": conditions,
            }
        )
        return
    from ortune.console.host import show_host
    from ortune.console.widgets import make_console

    show_host(make_console(), found, pool, runtime, packages, devices, conditions)
