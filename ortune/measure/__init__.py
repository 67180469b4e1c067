"""The measuring engine of search, bench, verify and gate: interleaved blocks, paired runs and their statistics."""
