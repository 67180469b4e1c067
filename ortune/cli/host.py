"""`ortune host`: show the machine, what may be used of it, and what ONNX Runtime's default does here."""

from __future__ import annotations

from ortune.cli import options


def host(json: options.Json = False) -> None:
    """Show this host as ortune sees it: CPUs, limits, what ONNX Runtime's default does here, and noise."""
    from ortune.host import read_host
    from ortune.host.conditions import read_conditions
    from ortune.host.default_pool import find_default_pool
    from ortune.worker.runtime import read_installed_runtime

    found = read_host()
    conditions, pool, runtime = read_conditions(), find_default_pool(found), read_installed_runtime()
    if json:
        from ortune.host import HostClass

        answer = {
            "host": found,
            "fingerprint": HostClass.of(found),
            "default": pool,
            "runtime": runtime,
            "conditions": conditions,
        }
        options.print_json(answer)
        return
    from ortune.console.host import show_host
    from ortune.console.widgets import make_console

    show_host(make_console(), found, pool, runtime, conditions)
