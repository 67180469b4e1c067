"""The engine that search, bench, verify and gate share: paired, interleaved measurements and their statistics."""
