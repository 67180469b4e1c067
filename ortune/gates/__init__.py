"""The gate: whether a head is slower than its base, measured side by side on the same host."""
