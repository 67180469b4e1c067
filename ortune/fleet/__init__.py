"""Fleets: many processes and hosts that use the same configs."""
