"""Plans of deployments: processes, threads of each, callers of each, and settings, within a target for the latency."""
